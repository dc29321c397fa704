"""Functions of the two scripts that exchange bytes. The scripts run in the same folder, and their files tell the other
script and the test how far they are."""

import os
import sys
import time

import numpy as np

# The lengths of the transfers.
LENGTHS = (1, 7, 64, 1000, 4096, 8193, 65536, 1 << 20, 3000001)
# Maximum time of each step in seconds.
LIMIT = 60


def pattern(seed):
    """Returns an array with bytes that depend on the seed."""
    return np.random.default_rng(seed).integers(0, 256, sum(LENGTHS), dtype=np.uint8)


def pieces(array):
    """Returns the address and the length of each transfer. The transfers cover the array."""
    first = 0
    for length in LENGTHS:
        yield array.ctypes.data + first, length
        first += length


def wait(what, condition):
    until = time.monotonic() + LIMIT
    while not (result := condition()):
        if time.monotonic() > until:
            sys.exit(f"{what}: not within {LIMIT} s")
        time.sleep(0.002)
    return result


def publish(name, content=b""):
    """Makes a file, whole at once."""
    with open(name + ".part", "wb") as file:
        file.write(content)
    os.rename(name + ".part", name)


def read(name):
    """Waits for a file, and returns its content."""
    wait(name, lambda: os.path.exists(name))
    with open(name, "rb") as file:
        return file.read()


def finish(role, right):
    """Tells the test whether the bytes were right, and waits until the test has looked at the connections."""
    print(f"{role}: the bytes are {'right' if right else 'wrong'}", flush=True)
    publish(f"{role}.done")
    read("seen")
