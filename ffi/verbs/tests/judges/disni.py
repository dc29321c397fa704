"""DiSNI's examples and benchmarks, in Java."""

import os
import re
import tempfile

from common import launcher_words, pair

# For each pair of programs of DiSNI: the first part of their names, their arguments, and what the client has to print.
DISNI = (
    ("examples.Read", "", r"This is a RDMA/read on stag -?\d+ !"),
    ("examples.SendRecv", "", r"Message from the server: Hello from the server"),
    ("examples.Verbs", "", r"This is a RDMA/read on stag -?\d+ !"),
    ("benchmarks.Read", "-k 1000 -s 65536", r"latency"),
    ("benchmarks.SendRecv", "-k 1000 -s 65536 -q 16", r"iops"),
    ("benchmarks.RDMAvsTcpBenchmark", "-k 1000 -s 4096", r"RDMA result:"),
)
DISNI_JARS = ("commons-cli", "slf4j-api", "slf4j-nop")


def run_disni(folder):
    """Runs pairs of DiSNI's examples and benchmarks."""
    found = {}
    jars = [f"/usr/share/java/{jar}.jar" for jar in DISNI_JARS]
    java = ["java", "--add-exports", "java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens", "java.base/java.nio=ALL-UNNAMED",
            "-cp", ":".join([os.path.join(folder, "classes"), *jars])]
    for name, words, prints in DISNI:
        with tempfile.TemporaryDirectory() as scratch:
            environment = dict(os.environ, UWARP_DIR=scratch, LD_LIBRARY_PATH=os.path.join(folder, "lib"))
            commands = [[*launcher_words(), *java, f"com.ibm.disni.{name}{end}", "-a", "127.0.0.1", *words.split()]
                        for end in ("Server", "Client")]
            outcome, reason, text = pair(scratch, environment, *commands)
            if outcome == "ok" and not re.search(prints, text):
                outcome, reason = "fail", "the client does not print what it has received"
            found[name] = (outcome, reason)
    return found
