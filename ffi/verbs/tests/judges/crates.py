"""The tests and examples of crates that wrap verbs."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from common import LIMIT, ended, fetch_crates, how, launcher_words, pair, pin

class Crate(NamedTuple):
    """A crate that wraps verbs: what is run of it."""
    version: str
    # The arguments with which cargo builds and runs the tests.
    tests: tuple = ()
    # The arguments with which cargo builds the examples.
    features: tuple = ()
    # Examples that need no peer, and pairs of a server and a client.
    alone: tuple = ()
    pairs: tuple = ()
    # Versions of dependencies that are no longer offered.
    pinned: dict = {}


CRATES = {
    "sideway": Crate(
        "0.4.3", tests=("--lib", "--test", "test_*"),
        alone=("show_gids", "ibv_devinfo"),
        pairs=(("rc_pingpong -d uwarp0 -g 1", "rc_pingpong -d uwarp0 -g 1 127.0.0.1"),
               ("rc_pingpong_split -d uwarp0 -g 1", "rc_pingpong_split -d uwarp0 -g 1 127.0.0.1"),
               ("cmtime -b 127.0.0.1", "cmtime -b 127.0.0.1 -s 127.0.0.1"))),
    "ruapc": Crate("0.2.0-alpha.7", tests=("--lib", "--tests", "--features", "rdma")),
    "ruapc-rdma": Crate("0.2.0-alpha.7", tests=("--lib",)),
    "rdma": Crate("0.3.0", tests=("--lib",), pinned={"simd-abstraction": "0.5.1"}),
    "rdma-sys": Crate("0.3.0", pairs=(("server", "client 127.0.0.1 7471"),)),
    "async-rdma": Crate(
        "0.5.0", tests=("--tests", "--features", "cm raw"), features=("--features", "cm raw"),
        alone=("rpc",), pairs=(("server", "client"), ("cm_server", "cm_client 127.0.0.1 7471")),
        pinned={"simd-abstraction": "0.5.1"}),
}


def crate_tests(name, folder, environment):
    """Returns the outcome of each test of a crate."""
    if not CRATES[name].tests:
        return {}
    found, target = {}, ""
    ran = subprocess.run(["cargo", "test", "--no-fail-fast", *CRATES[name].tests], cwd=folder, env=environment,
                         timeout=10 * LIMIT, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    # Cargo prints the source of each test program before the program runs.
    for line in ran.stdout.splitlines():
        if running := re.match(r" *Running (?:unittests )?\S*?(\w+)\.rs ", line):
            target = running[1]
        elif slow := re.match(r"test (\S+) has been running for over", line):
            # If the test ends all the same, another line replaces this one.
            found[f"{name}::{target}::{slow[1]}"] = ("fail", "it hangs")
        elif test := re.match(r"test (\S+)(?: - should panic)? \.\.\. (\w+)", line):
            found[f"{name}::{target}::{test[1]}"] = ({"ok": "ok", "ignored": "skip"}.get(test[2], "fail"), "")
    return found


def crate_examples(name, folder, environment):
    """Returns the outcome of each example of a crate."""
    crate, found = CRATES[name], {}
    if not crate.alone + crate.pairs:
        return found
    subprocess.run(["cargo", "build", "--quiet", "--examples", *crate.features], cwd=folder, env=environment,
                   timeout=10 * LIMIT, check=True)
    command = lambda words: [*launcher_words(), f"{environment['CARGO_TARGET_DIR']}/debug/examples/{words.split()[0]}",
                             *words.split()[1:]]
    for words in crate.alone:
        status = ended(command(words), environment, 40)
        found[f"{name}::examples::{words}"] = ("ok", "") if status == 0 else ("fail", how(status))
    for server, client in crate.pairs:
        with tempfile.TemporaryDirectory() as scratch:
            found[f"{name}::examples::{server.split()[0]}"] = pair(
                scratch, dict(environment, UWARP_DIR=scratch), command(server), command(client))[:2]
    return found


def run_crates(*names):
    """Returns the outcome of the tests and examples of these crates, or of all crates. The sources stay in cargo's folder
    for builds, so that the next run builds nothing again."""
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(os.environ.get("CARGO_TARGET_DIR", os.path.join(scratch, "target"))).absolute()
        target.mkdir(parents=True, exist_ok=True)
        # The crates are as old as the lints that they deny, so lints are only warnings.
        wrapper = target / "without_lints"
        wrapper.write_text('#!/bin/sh\nexec "$@" --cap-lints=warn\n', encoding="utf-8")
        wrapper.chmod(0o755)
        # Each test program has 100 seconds. Without debug information, the build takes half the time.
        environment = dict(os.environ, UWARP_DIR=scratch, CARGO_TARGET_DIR=str(target),
                           CARGO_PROFILE_DEV_DEBUG="0", CARGO_PROFILE_TEST_DEBUG="0",
                           RUSTC_WORKSPACE_WRAPPER=str(wrapper),
                           CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=f"timeout 100 {' '.join(launcher_words())}")
        folders = {name: target / "sources" / f"{name}-{CRATES[name].version}" for name in names or CRATES}
        missing = [name for name, folder in folders.items() if not folder.exists()]
        if missing:
            pinned = dict(item for name in missing for item in CRATES[name].pinned.items())
            sources = fetch_crates(scratch, {name: CRATES[name].version for name in missing}, pinned)
        for name, folder in folders.items():
            if name in missing:
                shutil.copytree(sources / name, folder)
                pin(folder, CRATES[name].pinned)
                # The folder for builds may be in another workspace.
                with open(folder / "Cargo.toml", "a", encoding="utf-8") as manifest:
                    manifest.write("\n[workspace]\n")
            for run in (crate_tests, crate_examples):
                found.update(run(name, folder, environment))
    return found
