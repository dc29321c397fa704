"""A queue pair of the package ibverbs: `script.py target|initiator`. The initiator sends messages, and the target answers
each of them with other bytes of the same length. Then the initiator reads the target's memory, and writes there."""

import sys

import ibverbs as ib
import numpy as np

from ends import LENGTHS, finish, pattern, pieces, publish, read, wait

PORT = 1
PEER = {"target": "initiator", "initiator": "target"}
# The wr_id of a request is one of these values, or 0 for a receive, plus the number of its length.
SEND, READ, WRITE = 100, 200, 300
ACCESS = ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_READ | ib.AccessFlags.REMOTE_WRITE


def main(role):
    context = ib.get_device_list()[0].open()
    domain = context.alloc_pd()
    cq = context.create_cq(64)
    qp = domain.create_qp(ib.QPInitAttr(send_cq=cq, recv_cq=cq, qp_type=ib.QPType.RC, max_send_wr=16, max_recv_wr=16))
    out = pattern(1 if role == "initiator" else 2)
    received = np.zeros(sum(LENGTHS), np.uint8)
    out_mr, received_mr = (domain.reg_mr(array.ctypes.data, array.nbytes, ACCESS) for array in (out, received))
    offsets = [(address - out.ctypes.data, length) for address, length in pieces(out)]

    def post_receive(number):
        offset, length = offsets[number]
        qp.post_recv(ib.RecvWR(wr_id=number, sg_list=[ib.SGE(received_mr, length, offset=offset)]))

    def post(opcode, request, mr, **remote):
        offset, length = offsets[request % 100]
        qp.post_send(ib.SendWR(wr_id=request, sg_list=[ib.SGE(mr, length, offset=offset)], opcode=opcode,
                               send_flags=ib.SendFlags.SIGNALED, **remote))

    completed = []

    def complete(request):
        """Waits for the completion of a request."""

        def take():
            for completion in cq.poll(16):
                completion.raise_for_status()
                completed.append(completion.wr_id)
            return request in completed

        wait("a completion", take)

    qp.to_init(PORT, ACCESS)
    for number in range(len(LENGTHS)):
        post_receive(number)
    port = context.query_port(PORT)
    publish(f"{role}.qp", ib.local_qp_info(qp, port, context.query_gid(PORT, 3), port=PORT).to_bytes())
    qp.to_rtr(ib.QPInfo.from_bytes(read(f"{PEER[role]}.qp")), sgid_index=3, mtu=port.active_mtu)
    qp.to_rts(0)
    for number in range(len(LENGTHS)):
        if role == "initiator":
            post(ib.WROpcode.SEND, SEND + number, out_mr)
            complete(SEND + number)
            complete(number)
        else:
            complete(number)
            post(ib.WROpcode.SEND, SEND + number, out_mr)
            complete(SEND + number)
    right = np.array_equal(received, pattern(2 if role == "initiator" else 1))
    if role == "target":
        publish("target.memory", f"{out.ctypes.data} {out_mr.rkey} {received.ctypes.data} {received_mr.rkey}".encode())
        read("written")
        right = right and np.array_equal(received, pattern(3))
    else:
        source, source_key, sink, sink_key = map(int, read("target.memory").split())
        received[:] = 0
        out[:] = pattern(3)
        for number, (offset, _) in enumerate(offsets):
            post(ib.WROpcode.RDMA_READ, READ + number, received_mr, remote_addr=source + offset, rkey=source_key)
            complete(READ + number)
            post(ib.WROpcode.RDMA_WRITE, WRITE + number, out_mr, remote_addr=sink + offset, rkey=sink_key)
            complete(WRITE + number)
        right = right and np.array_equal(received, pattern(2))
        publish("written")
    finish(role, right)
    for thing in (qp, cq, out_mr, received_mr, domain, context):
        thing.close()
    sys.exit(not right)


main(*sys.argv[1:])
