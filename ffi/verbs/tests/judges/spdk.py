"""SPDK's NVMe-oF target."""

import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from common import ended, host_address, how, launcher_words

# The programs of SPDK that use the target, without the options that name the target. Programs in which the target is an
# SPDK bdev get it by a file, and compare the data themselves, except spdk_dd.
SPDK_CASES = """
examples/identify | examples/hello_world | examples/perf -q 32 -o 4096 -w randrw -M 50 -t 2
examples/perf -q 32 -o 131072 -w randread -t 2 | examples/perf -q 32 -o 131072 -w randwrite -t 2
examples/perf -q 8 -o 36864 -O 512 -w randrw -M 30 -t 2 | examples/reconnect -q 16 -o 4096 -w randrw -M 50 -t 2
examples/bdevperf -q 32 -o 4096 -w verify -t 2 | examples/bdevperf -q 16 -o 65536 -w verify -t 2
examples/bdevperf -q 32 -o 4096 -w reset -t 2 | bin/spdk_dd
"""
# The target, and how much is written to its disk and read again.
SPDK_NAME = "nqn.2016-06.io.spdk:uwarp"
SPDK_BYTES = 20 << 20
HUGE_PAGES = Path("/proc/sys/vm/nr_hugepages")


def stop(process):
    """Ends a process that runs in a process group of its own, with its children."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    return process.wait()


def spdk_files(scratch, address):
    """Writes the configurations of the target and of the programs whose bdev is the target. Small pools need fewer
    hugepages."""
    pools = [
        {"subsystem": "iobuf", "config": [
            {"method": "iobuf_set_options", "params": {"small_pool_count": 1024, "large_pool_count": 256}}]},
    ]
    options = {"method": "bdev_set_options", "params": {"bdev_io_pool_size": 4095, "bdev_io_cache_size": 64}}
    at = {"trtype": "RDMA", "adrfam": "IPv4", "traddr": address, "trsvcid": "4420"}
    disk = {"method": "bdev_malloc_create", "params": {"name": "Malloc0", "num_blocks": 65536, "block_size": 512}}
    calls = (
        ("nvmf_create_transport", {"trtype": "RDMA", "num_shared_buffers": 200, "buf_cache_size": 16}),
        ("nvmf_create_subsystem", {"nqn": SPDK_NAME, "allow_any_host": True, "serial_number": "UWARP1"}),
        ("nvmf_subsystem_add_ns", {"nqn": SPDK_NAME, "namespace": {"bdev_name": "Malloc0"}}),
        ("nvmf_subsystem_add_listener", {"nqn": SPDK_NAME, "listen_address": at}),
    )
    nvmf = {"subsystem": "nvmf", "config": [{"method": name, "params": params} for name, params in calls]}
    attach = {"method": "bdev_nvme_attach_controller", "params": dict(at, name="Nvme0", subnqn=SPDK_NAME)}
    for name, subsystems in (("target", [*pools, {"subsystem": "bdev", "config": [options, disk]}, nvmf]),
                             ("client", [*pools, {"subsystem": "bdev", "config": [options, attach]}])):
        (Path(scratch) / f"{name}.json").write_text(json.dumps({"subsystems": subsystems}), encoding="utf-8")


def with_huge_pages(scratch):
    """Returns the words that start a program of SPDK. The program finds hugepages at a mount that only it sees."""
    folder = Path(scratch) / "huge"
    folder.mkdir(exist_ok=True)
    mounts = f'mount -t hugetlbfs none {folder} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", mounts, "sh", *launcher_words()]


def spdk_ended(command, environment, scratch):
    """As `ended`. SPDK gives up if an event of the connection manager takes more than a second, which happens on a busy
    machine, so such a program runs again."""
    said = Path(scratch) / "said"
    for _ in range(3):
        with open(said, "w", encoding="utf-8") as out:
            status = ended(command, environment, 60, out)
        if status is None:
            return None
        # The time limit is NVME_RDMA_QPAIR_CM_EVENT_TIMEOUT_US, and 99 is EADDRNOTAVAIL.
        if status == 0 or "RDMA connect error -99" not in said.read_text(encoding="utf-8", errors="replace"):
            break
    return status


def spdk_case(folder, scratch, environment, address, words):
    """Returns the outcome of a program of SPDK."""
    name, *rest = words.split()
    at = f"trtype:RDMA adrfam:IPv4 traddr:{address} trsvcid:4420 subnqn:{SPDK_NAME}"
    memory = ["-d", "128"] if name in ("examples/identify", "examples/hello_world") else ["-s", "128", "-c", "0x2"]
    command = [*with_huge_pages(scratch), os.path.join(folder, name)]
    if name not in ("examples/bdevperf", "bin/spdk_dd"):
        status = spdk_ended([*command, *memory, *rest, "-r", at], environment, scratch)
        return ("ok", "") if status == 0 else ("fail", how(status))
    command += ["-s", "192", "--no-pci", "-m", "0x2", "-r", f"{scratch}/client.sock", "-c", f"{scratch}/client.json", *rest]
    if name == "examples/bdevperf":
        status = spdk_ended(command, environment, scratch)
        return ("ok", "") if status == 0 else ("fail", how(status))
    given, got = Path(scratch) / "given", Path(scratch) / "got"
    given.write_bytes(random.Random(1).randbytes(SPDK_BYTES))
    status = spdk_ended([*command, f"--if={given}", "--ob=Nvme0n1", "--bs=131072"], environment, scratch)
    if status == 0:
        command += ["--ib=Nvme0n1", f"--of={got}", "--bs=65536", f"--count={SPDK_BYTES // 65536}"]
        status = spdk_ended(command, environment, scratch)
    if status != 0:
        return "fail", how(status)
    return ("ok", "") if given.read_bytes() == got.read_bytes() else ("fail", "the bytes differ")


def spdk_is_ready(path):
    """Waits until the target has carried out its configuration. The target listens a moment before that."""
    until = time.monotonic() + 30
    with socket.socket(socket.AF_UNIX) as to_target:
        to_target.settimeout(30)
        while time.monotonic() < until and to_target.connect_ex(path) != 0:
            time.sleep(0.1)
        to_target.sendall(b'{"jsonrpc": "2.0", "id": 1, "method": "framework_wait_init"}')
        to_target.recv(4096)


def run_spdk(folder):
    found, address, before = {}, host_address(), int(HUGE_PAGES.read_text())
    with tempfile.TemporaryDirectory() as scratch:
        environment = dict(os.environ, UWARP_DIR=scratch, LD_LIBRARY_PATH=os.path.join(folder, "lib"))
        spdk_files(scratch, address)
        HUGE_PAGES.write_text(str(before + 256))
        command = [*with_huge_pages(scratch), os.path.join(folder, "bin/nvmf_tgt"), "-s", "256", "--no-pci", "-m", "0x1",
                   "-r", f"{scratch}/target.sock", "-c", f"{scratch}/target.json"]
        try:
            with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, start_new_session=True) as target:
                spdk_is_ready(f"{scratch}/target.sock")
                for words in (words for line in SPDK_CASES.strip().splitlines() for words in line.split(" | ")):
                    case = "_".join(words.split("/")[1].split())
                    found[case] = spdk_case(folder, scratch, environment, address, words)
                found["nvmf_tgt"] = ("ok", "") if target.poll() is None else ("fail", how(target.poll()))
                stop(target)
        finally:
            HUGE_PAGES.write_text(str(before))
    return found
