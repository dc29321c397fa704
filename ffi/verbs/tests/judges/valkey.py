"""valkey's own test of RDMA, and cases of ours with its server and clients."""

import os
import random
import re
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from common import LIMIT, how, launcher_words

class Wrong(Exception):
    """Why a case of this script's own failed."""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def soon(what, seconds, condition):
    """Waits until a condition is true. Raises Wrong, with what did not happen, if the condition stays false."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise Wrong(f"{what} within {seconds} s")
        time.sleep(0.05)


class Valkey:
    """A server of valkey, which listens at one address of the kernel's TCP and one of RDMA."""

    def __init__(self, folder, scratch, *words):
        self.folder, self.port = Path(folder), free_port()
        self.environment = dict(os.environ, UWARP_DIR=scratch)
        # Standard error is also the server's log.
        self.server = self.start("src/valkey-server", "--dir", scratch, "--save", "", "--loglevel", "warning",
                                 "--bind", "127.0.0.1", "--port", str(self.port),
                                 "--rdma-bind", "127.0.0.1", "--rdma-port", "6379", *words)

    def __enter__(self):
        soon("the server did not listen", 20, self.listens)
        return self

    def __exit__(self, *_):
        self.server.kill()
        self.server.wait()

    def listens(self):
        try:
            return self.ask("PING") == b"PONG"
        except OSError:
            return False

    def start(self, program, *words):
        return subprocess.Popen([*launcher_words(), self.folder / program, *words], env=self.environment,
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def run(self, program, *words, text=b""):
        """Runs a client to its end, and returns its output."""
        try:
            done = subprocess.run([*launcher_words(), self.folder / program, *words], env=self.environment, input=text,
                                  timeout=120, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except subprocess.TimeoutExpired as error:
            raise Wrong(f"{program} was ended after its limit") from error
        if done.returncode != 0:
            raise Wrong(f"{program}: {how(done.returncode)}: {done.stdout[-150:]!r}")
        return done.stdout

    def ask(self, *words):
        """Sends a command over TCP, and returns the answer: a status, a number, or a value."""
        words = [word if isinstance(word, bytes) else word.encode() for word in words]
        command = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(command)
            answer = connection.makefile("rb")
            first = answer.readline().rstrip(b"\r\n")
            return answer.read(int(first[1:])) if first.startswith(b"$") else first[1:]

    def info(self, name):
        return int(re.search(rb"^%s:(\d+)" % name.encode(), self.ask("INFO", "everything"), re.M)[1])


def valkey_values(server, size):
    """Sets and gets values by RDMA, and compares them with what the kernel's TCP says."""
    for number in range(4):
        value = random.Random(f"{size} {number}").randbytes(size)
        key = f"value:{number}"
        answer = server.run("src/valkey-cli", "--rdma", "-h", "127.0.0.1", "-x", "SET", key, text=value)
        if answer.strip() != b"OK" or server.ask("GET", key) != value:
            raise Wrong("a value that was set by RDMA differs")
        value = value[::-1]
        server.ask("SET", key, value)
        answer = server.run("src/valkey-cli", "--rdma", "-h", "127.0.0.1", "--raw", "GET", key)
        if answer != value + b"\n":
            raise Wrong("a value that was read by RDMA differs")


def valkey_benchmark(server, size, requests):
    before = server.info("total_commands_processed")
    server.run("src/valkey-benchmark", "--rdma", "-h", "127.0.0.1", "-c", "64", "-P", "32", "-d", str(size),
               "-n", str(requests), "-t", "set,get", "-q")
    if server.info("total_commands_processed") < before + 2 * requests:
        raise Wrong("the server has served fewer commands than the benchmark has sent")
    value = server.ask("GET", "key:__rand_int__")
    if len(value) != size:
        raise Wrong(f"the value has {len(value)} bytes")


def valkey_at_work(server):
    """Starts a benchmark without an end, and returns when its 16 clients work."""
    work = server.start("src/valkey-benchmark", "--rdma", "-h", "127.0.0.1", "-c", "16", "-P", "4", "-d", "1000",
                        "-n", "1000000000", "-t", "set", "-q")
    try:
        soon("the benchmark did not work", 20, lambda: server.info("connected_clients") > 16
             and server.info("total_commands_processed") > 2000)
    except BaseException:
        work.kill()
        raise
    return work


def valkey_server_killed(server):
    """Kills a server while a benchmark works, and while a client waits for a message."""
    clients = [valkey_at_work(server),
               server.start("src/valkey-cli", "--rdma", "-h", "127.0.0.1", "BLPOP", "list", "0")]
    try:
        soon("no client waited", 20, lambda: server.info("blocked_clients") == 1)
        server.server.kill()
        for client in clients:
            soon("a client did not notice that its server was killed", 10,
                 lambda client=client: client.poll() is not None)
    finally:
        for client in clients:
            client.kill()
            client.wait()


def valkey_client_killed(server):
    client = valkey_at_work(server)
    client.kill()
    client.wait()
    soon("the server did not notice that its client was killed", 10, lambda: server.info("connected_clients") == 1)
    valkey_values(server, 1000)


def valkey_rdma_test(server):
    """The program gives up if an answer takes a second. On a busy machine that happens, since each thread of a server with
    several threads spins, so the program runs again."""
    for attempt in range(3):
        try:
            said = server.run("tests/rdma/rdma-test", "--thread", "4", "-h", "127.0.0.1")
        except Wrong as error:
            if attempt == 2 or "timeout" not in str(error):
                raise
            continue
        if b"Valkey Over RDMA test [OK]" not in said:
            raise Wrong("the program does not say [OK]")
        return


VALKEY_CASES = {
    "rdma-test": valkey_rdma_test,
    "values_64": lambda server: valkey_values(server, 64),
    "values_100K": lambda server: valkey_values(server, 100 << 10),
    "values_3M": lambda server: valkey_values(server, 3 << 20),
    "benchmark_64": lambda server: valkey_benchmark(server, 64, 100_000),
    "benchmark_100K": lambda server: valkey_benchmark(server, 100 << 10, 4_096),
    "server_killed": valkey_server_killed,
    "client_killed": valkey_client_killed,
}


def valkey_case(folder, run, *words):
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with Valkey(folder, scratch, *words) as server:
                run(server)
        except (Wrong, OSError) as error:
            return "fail", str(error)
    return "ok", ""


def run_valkey(folder):
    """Runs valkey's own test and script, and cases of this script's own with one thread and with four."""
    found = {}
    for threads in ("1", "4"):
        for case, run in VALKEY_CASES.items():
            found[f"io-threads-{threads}:{case}"] = valkey_case(folder, run, "--io-threads", threads)
    with tempfile.TemporaryDirectory() as scratch:
        # The script looks for the device in /sys, and succeeds even if there is none.
        script = subprocess.run([*launcher_words(), "/usr/bin/python3", os.path.join(folder, "tests/rdma/run.py")],
                                env=dict(os.environ, UWARP_DIR=scratch), timeout=LIMIT, check=False,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    good = re.search(r"^Valkey Over RDMA test over .* \[OK\]$", script.stdout, re.M)
    found["run.py"] = ("ok", "") if good else ("fail", script.stdout.strip()[-150:])
    return found
