"""An agent of NIXL: `nixl.py target|initiator files|listener`. The initiator reads the target's memory, and then writes
other bytes there. The agents exchange their metadata by files or by NIXL's listener."""

import sys
import time

import numpy as np
from nixl_cu12 import nixl_agent, nixl_agent_config

from ends import LENGTHS, finish, pattern, pieces, publish, read, wait

PORTS = {"target": 5599, "initiator": 5600}
PEER = {"target": "initiator", "initiator": "target"}


def main(role, way):
    peer = PEER[role]
    listens = way == "listener"
    agent = nixl_agent(role, nixl_agent_config(enable_listen_thread=listens, listen_port=PORTS[role]))
    array = pattern(1) if role == "target" else np.zeros(sum(LENGTHS), np.uint8)
    registered = agent.register_memory([(array.ctypes.data, array.nbytes, 0, "")], "DRAM")
    if listens:
        publish(f"{role}.listens")
        if role == "initiator":
            read("target.listens")
            agent.fetch_remote_metadata(peer, "127.0.0.1", PORTS[peer])
            agent.send_local_metadata("127.0.0.1", PORTS[peer])
        wait("the metadata", lambda: agent.check_remote_metadata(peer))
    else:
        publish(f"{role}.metadata", agent.get_agent_metadata())
        agent.add_remote_agent(read(f"{peer}.metadata"))
    local = agent.get_xfer_descs([(address, length, 0) for address, length in pieces(array)], "DRAM")

    def wait_for(word):
        wait(word, lambda: agent.check_remote_xfer_done(peer, word))

    def transfer(operation, remote, word):
        handle = agent.initialize_xfer(operation, local, remote, peer, word)
        state = agent.transfer(handle)
        until = time.monotonic() + 60
        while state == "PROC" and time.monotonic() < until:
            time.sleep(0.0005)
            state = agent.check_xfer_state(handle)
        if state != "DONE":
            sys.exit(f"{operation}: {state}")
        agent.release_xfer_handle(handle)

    if role == "target":
        agent.send_notif(peer, agent.get_serialized_descs(local))
        wait_for(b"read")
        wait_for(b"written")
        right = np.array_equal(array, pattern(2))
        agent.send_notif(peer, b"compared")
    else:
        remote = agent.deserialize_descs(wait("the descriptors", lambda: agent.get_new_notifs().get(peer))[0])
        transfer("READ", remote, b"read")
        right = np.array_equal(array, pattern(1))
        array[:] = pattern(2)
        transfer("WRITE", remote, b"written")
        wait_for(b"compared")
    finish(role, right)
    agent.deregister_memory(registered)
    agent.remove_remote_agent(peer)
    sys.exit(not right)


main(*sys.argv[1:])
