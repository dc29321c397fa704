"""Mercury's tests and measurements."""

import os
import subprocess
import tempfile
import time
from pathlib import Path

from common import ended, how, launcher_words, wait_to_end

# For each of Mercury's plugins: the prefix of its cases, the options of both programs, and further variables.
MERCURY = (
    ("ofi", ("-c", "ofi", "-p", "verbs"), {}),
    ("ucx-rc", ("-c", "ucx", "-p", "all"), {"UCX_TLS": "rc_verbs,self", "UCX_NET_DEVICES": "uwarp0:1"}),
    ("ucx-ud", ("-c", "ucx", "-p", "all"), {"UCX_TLS": "ud_verbs,self", "UCX_NET_DEVICES": "uwarp0:1"}),
)
# Servers and clients. The clients with -v compare the bytes. A client ends its server.
MERCURY_PAIRS = """
na_test_lookup_server na_test_lookup | na_perf_server na_lat -v -l 20 | na_perf_server na_bw_get -v -l 5 -z 262144
na_perf_server na_bw_put -v -l 5 -z 262144 | hg_test_server hg_test_lookup | hg_test_server hg_test_rpc
hg_test_server hg_test_bulk | hg_test_server hg_test_kill | hg_perf_server hg_first | hg_perf_server hg_rate -v -l 20
hg_perf_server hg_bw_read -v -l 5 -z 262144 | hg_perf_server hg_bw_write -v -l 5 -z 262144
"""


def mercury_case(folder, options, variables, words):
    """Returns the outcome of a server and a client. The server writes its address to a file when it is ready."""
    server, client, *rest = words.split()
    with tempfile.TemporaryDirectory() as scratch:
        # libfabric's ofi_rxm and UCX use the device only if it reports itself as an InfiniBand device.
        environment = dict(os.environ, UWARP_DIR=scratch, UWARP_PRETEND="ib", **variables)
        said, address = Path(scratch) / "said", Path(scratch) / "port.cfg"
        command = lambda name, *more: [*launcher_words(), os.path.join(folder, name), *options, *more, "-f", str(address)]
        with subprocess.Popen(command(server), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as running:
            until = time.monotonic() + 20
            while time.monotonic() < until and running.poll() is None and not (address.exists() and address.stat().st_size):
                time.sleep(0.05)
            with open(said, "w", encoding="utf-8") as out:
                status = ended(command(client, *rest), environment, 60, out)
            if status == 0:
                wait_to_end(running)
            status_of_server = running.poll()
            running.kill()
        text = said.read_text(encoding="utf-8", errors="replace")
    if status == 0 and status_of_server == 0 and "FAILED" not in text and "[error]" not in text:
        return "ok", ""
    return "fail", f"the client: {how(status)}; the server: {how(status_of_server)}"


def run_mercury(folder):
    found = {}
    for prefix, options, variables in MERCURY:
        for words in (words for line in MERCURY_PAIRS.strip().splitlines() for words in line.split(" | ")):
            found[f"{prefix}:{words.split()[1]}"] = mercury_case(folder, options, variables, words)
    return found
