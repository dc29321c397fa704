"""A transfer engine of Mooncake: `mooncake_ends.py target|initiator`. The initiator reads the target's memory, and then
writes other bytes there."""

import sys

import numpy as np
from mooncake.engine import TransferEngine

from ends import LENGTHS, finish, pattern, pieces, publish, read


def main(role):
    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "uwarp0"):
        sys.exit("initialize failed")
    array = pattern(1) if role == "target" else np.zeros(sum(LENGTHS), np.uint8)
    base = array.ctypes.data
    if engine.register_memory(base, array.nbytes):
        sys.exit("register_memory failed")
    if role == "target":
        publish("target.address", f"127.0.0.1:{engine.get_rpc_port()} {base}".encode())
        read("written")
        right = np.array_equal(array, pattern(2))
    else:
        target, remote = read("target.address").decode().split()
        there = int(remote) - base
        for address, length in pieces(array):
            if engine.transfer_sync_read(target, address, address + there, length):
                sys.exit(f"read of {length} bytes failed")
        right = np.array_equal(array, pattern(1))
        array[:] = pattern(2)
        here, lengths = zip(*pieces(array))
        if engine.batch_transfer_sync_write(target, here, [address + there for address in here], lengths):
            sys.exit("write failed")
        publish("written")
    finish(role, right)
    engine.unregister_memory(base)
    sys.exit(not right)


main(*sys.argv[1:])
