"""librpma's examples."""

import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import ended, how, launcher_words, wait_to_end, wait_to_listen

# The arguments after address and port of librpma's examples, as in its run-all-examples.sh: those of the server, and those
# of each client. An example that is not here has no arguments, and uses persistent memory if it is given a file.
RPMA_ARGUMENTS = {
    "06-multiple-connections": ("", ["8", "9", "11", "12"]),
    "06scch-multiple-connections": ("", ["8", "9", "11", "12"]),
    "07-atomic-write": ("", ["1st_word 2nd_word 3rd_word"]),
    "08-messages-ping-pong": ("", ["7 3"]),
    "08srq-simple-messages-ping-pong-with-srq": ("", ["7 3"]),
    "10-send-with-imm": ("", ["1234 1st_word"]),
    "11-write-with-imm": ("", ["1234"]),
    "12-receive-completion-queue": ("", ["7 3"]),
    "12scch-receive-completion-queue": ("", ["7 3"]),
    "13-messages-ping-pong-with-srq": ("3", ["1 3", "5 3", "10 3"]),
}
# The examples that keep data in persistent memory.
RPMA_PMEM = ("03-read-to-persistent", "04-write-to-persistent", "05-flush-to-persistent", "07-atomic-write",
             "09-flush-to-persistent-GPSPM", "09scch-flush-to-persistent-GPSPM")
# The examples whose client also has a file, and the offset of its part of the file.
RPMA_PMEM_CLIENTS = ("03-", "04-", "05-", "09-", "09scch-")


def rpma_case(folder, example, pmem):
    """Returns the outcome of an example, whose clients run at the same time if its server has arguments."""
    server_arguments, clients = RPMA_ARGUMENTS.get(example, ("", [""]))
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        environment = dict(os.environ, UWARP_DIR=scratch)
        if pmem:
            # With this name, the examples take the file for a device, and do not call ibv_advise_mr, which is only for
            # regions with on-demand paging.
            pmem = os.path.join(memory, "dev/dax0.0")
            os.mkdir(os.path.dirname(pmem))
            Path(pmem).write_bytes(bytes(16 << 20))
            environment["PMEM_IS_PMEM_FORCE"] = "1"
            server_arguments = pmem
            if example.startswith(RPMA_PMEM_CLIENTS):
                clients = [f"{pmem} 1024"]
        command = [*launcher_words(), os.path.join(folder, example, "server"), "127.0.0.1", "7204"]
        with subprocess.Popen([*command, *server_arguments.split()], env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            wait_to_listen(scratch, server)
            command[-3] = os.path.join(folder, example, "client")
            words = [[*command, *arguments.split()] for arguments in clients]
            with ThreadPoolExecutor(len(words) if server_arguments.isdigit() else 1) as pool:
                statuses = list(pool.map(lambda command: ended(command, environment, 20), words))
            # A server for many clients does not end by itself.
            stays = "multiple" in example
            if not stays and set(statuses) == {0}:
                wait_to_end(server)
            status = server.poll()
            server.kill()
    if set(statuses) == {0} and status == (None if stays else 0):
        return "ok", ""
    return "fail", f"the clients: {', '.join(map(how, statuses))}; the server: {how(status)}"


def run_rpma(folder):
    found = {}
    for path in sorted(Path(folder).glob("*/server")):
        example = path.parent.name
        found[example] = rpma_case(folder, example, False)
        if example in RPMA_PMEM:
            found[f"pmem:{example}"] = rpma_case(folder, example, True)
    return found
