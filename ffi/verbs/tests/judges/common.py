"""What the suites of scripts/judges share."""

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
LIMIT = 240


def launcher_words():
    return [os.path.abspath(os.environ.get("UWARP_BIN", ROOT / "target/debug/uwarp")), "run", "--"]


def ended(command, environment, limit, output=subprocess.DEVNULL):
    """Runs a command. Returns its status, or None if it was ended after `limit` seconds."""
    try:
        return subprocess.run(command, env=environment, timeout=limit, check=False, stdin=subprocess.DEVNULL,
                              stdout=output, stderr=output).returncode
    except subprocess.TimeoutExpired:
        return None


def how(status):
    return "it was ended after its limit" if status is None else f"it ended with {status}"


def host_address():
    """Returns an address of this host that is not a loopback address, since libfabric gives a listener at a loopback
    address another port."""
    listed = subprocess.run(["ip", "-j", "-4", "address", "show", "scope", "global"], check=True,
                            stdout=subprocess.PIPE).stdout
    return json.loads(listed)[0]["addr_info"][0]["local"]


def listens(scratch, pid):
    """Returns whether a process listens on the wire, or this process listens on a socket of the kernel's TCP."""
    if list(Path(scratch).glob("*/listen/*")):
        return True
    try:
        inodes = [os.readlink(fd)[len("socket:["):-1] for fd in Path(f"/proc/{pid}/fd").iterdir()]
        tables = Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii").splitlines()
        tables += Path(f"/proc/{pid}/net/tcp6").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    # 0A is the state LISTEN.
    return any(fields[3] == "0A" and fields[9] in inodes for fields in map(str.split, tables) if len(fields) > 9)


def wait_to_listen(scratch, server):
    """Waits until a server listens, has ended, or has had 10 seconds. Clients do not wait for their server."""
    until = time.monotonic() + 10
    while time.monotonic() < until and server.poll() is None and not listens(scratch, server.pid):
        time.sleep(0.05)


def wait_to_end(server):
    """Gives a server 10 seconds to end by itself."""
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        pass


def pair(scratch, environment, server_command, client_command, pause=0.2):
    """Runs a server and a client. Returns the outcome, the reason, and the output of the client. The pair passes if both
    programs succeed."""
    with (tempfile.TemporaryFile() as said,
          subprocess.Popen(server_command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL) as server):
        wait_to_listen(scratch, server)
        time.sleep(pause)
        client = ended(client_command, environment, 40, said)
        if client == 0:
            wait_to_end(server)
        status = server.poll()
        server.kill()
        said.seek(0)
        text = said.read().decode(errors="replace")
    if client == 0 and status == 0:
        return "ok", "", text
    return "fail", f"the client: {how(client)}; the server: {how(status)}", text


def fetch_crates(folder, crates, pinned=None):
    """Makes a folder with the sources of these crates, and returns this folder. `pinned` are versions of dependencies
    that are no longer offered, and that cargo uses only if a lock file has them."""
    project = Path(folder) / "fetched"
    (project / "src").mkdir(parents=True)
    (project / "src/lib.rs").touch()
    wanted = "".join(f'{name} = "={version}"\n' for name, version in crates.items())
    (project / "Cargo.toml").write_text('[package]\nname = "fetched"\nversion = "0.0.0"\nedition = "2021"\n'
                                        f"[dependencies]\n{wanted}[workspace]\n", encoding="utf-8")
    pin(project, pinned or {})
    subprocess.run(["cargo", "vendor", "--quiet", "crates"], cwd=project, check=True, stdout=subprocess.DEVNULL)
    return project / "crates"


def pin(project, versions):
    """Writes a lock file with these versions, unless the project has one."""
    lock = project / "Cargo.lock"
    if versions and not lock.exists():
        source = 'source = "registry+https://github.com/rust-lang/crates.io-index"\n'
        packages = "".join(f'[[package]]\nname = "{name}"\nversion = "{version}"\n{source}'
                           for name, version in versions.items())
        lock.write_text("version = 3\n" + packages, encoding="utf-8")
