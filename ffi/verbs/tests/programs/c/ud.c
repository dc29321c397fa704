/*
 * Tests queue pairs of type UD, which exchange datagrams within the process: changes of state, address handles, the
 * fields of completions, both interfaces for posting, dropped datagrams, and multicast.
 */
#include <arpa/inet.h>
#include <string.h>

#include "common.h"

enum { QKEY = 0x1ee7a330, GRH = 40, ROOM = 512, DEPTH = 16 };
enum {
	TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
	TO_RTR = IBV_QP_STATE,
	TO_RTS = IBV_QP_STATE | IBV_QP_SQ_PSN,
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq, *far_cq;
static struct ibv_cq_ex *far_cq_ex;
static struct ibv_mr *mr;
static uint8_t memory[8192];
static uint32_t longest;
static int gid_count;

static int change(struct ibv_qp *qp, enum ibv_qp_state state, int mask)
{
	struct ibv_qp_attr attr = { .qp_state = state, .port_num = 1, .qkey = QKEY, .sq_psn = 77 };
	return ibv_modify_qp(qp, &attr, mask);
}

static void open_qp(struct ibv_qp *qp)
{
	CHECK(!change(qp, IBV_QPS_INIT, TO_INIT) && !change(qp, IBV_QPS_RTR, TO_RTR) && !change(qp, IBV_QPS_RTS, TO_RTS));
}

static struct ibv_qp *make(struct ibv_cq *of, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = qp_init(of, srq, DEPTH);
	init.qp_type = IBV_QPT_UD;
	init.cap.max_send_sge = 2;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp && qp->qp_type == IBV_QPT_UD && qp->qp_num > 1 && init.cap.max_inline_data >= 64);
	return qp;
}

/* A handle from our GID at this index to the same GID. */
static struct ibv_ah *handle(int index)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 255, .sgid_index = index } };
	CHECK(!ibv_query_gid(context, 1, index, &attr.grh.dgid));
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	CHECK(ah && ah->context == context && ah->pd == pd);
	return ah;
}

static void recv_to(struct ibv_qp *qp, uint64_t wr_id, size_t offset, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)(memory + offset), length, mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };
	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

/* Posts a datagram with the first bytes of the memory. Returns the result of the post. */
static int post(struct ibv_qp *qp, struct ibv_ah *ah, uint32_t to, uint32_t qkey, uint32_t length, int opcode, int flags)
{
	struct ibv_sge sge[2] = { { (uintptr_t)memory, length / 3, mr->lkey },
				  { (uintptr_t)memory + length / 3, length - length / 3, mr->lkey } };
	struct ibv_send_wr *bad = NULL, wr = {
		.wr_id = 100 + length,
		.sg_list = sge,
		.num_sge = 2,
		.opcode = opcode,
		.imm_data = htonl(0x01020304),
		.send_flags = flags | IBV_SEND_SIGNALED,
		.wr.ud = { ah, to, qkey },
	};
	int result = ibv_post_send(qp, &wr, &bad);
	CHECK(!result == !bad);
	return result;
}

static void sent(uint64_t wr_id)
{
	struct ibv_wc wc = next_of(cq);
	CHECK(wc.wr_id == wr_id && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND && !wc.src_qp && !wc.sl);
	CHECK(!(wc.wc_flags & IBV_WC_GRH));
}

static void states(void)
{
	struct ibv_qp *qp = make(cq, NULL);
	CHECK(change(qp, IBV_QPS_INIT, TO_INIT & ~IBV_QP_QKEY) == EINVAL);
	CHECK(change(qp, IBV_QPS_INIT, TO_INIT | IBV_QP_ACCESS_FLAGS) == EINVAL);
	CHECK(change(qp, IBV_QPS_RTR, TO_RTR) == EINVAL && !change(qp, IBV_QPS_INIT, TO_INIT));
	CHECK(change(qp, IBV_QPS_RTR, TO_RTR | IBV_QP_DEST_QPN) == EINVAL && change(qp, IBV_QPS_RTS, TO_RTS) == EINVAL);
	struct ibv_ah *ah = handle(0);
	CHECK(post(qp, ah, qp->qp_num, QKEY, 3, IBV_WR_SEND, 0) == EINVAL);
	CHECK(!change(qp, IBV_QPS_RTR, TO_RTR) && state_of(qp) == IBV_QPS_RTR);
	CHECK(post(qp, ah, qp->qp_num, QKEY, 3, IBV_WR_SEND, 0) == EINVAL);
	CHECK(change(qp, IBV_QPS_RTS, IBV_QP_STATE) == EINVAL && !change(qp, IBV_QPS_RTS, TO_RTS));
	CHECK(state_of(qp) == IBV_QPS_RTS && qp->state == IBV_QPS_RTS);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_QKEY, &init) && attr.qkey == QKEY && init.qp_type == IBV_QPT_UD);

	/* After a reset, the queue pair has the same number, and works as before. */
	uint32_t number = qp->qp_num;
	recv_to(qp, 1, 0, 100);
	CHECK(!change(qp, IBV_QPS_RESET, IBV_QP_STATE));
	open_qp(qp);
	recv_to(qp, 2, 4096, 100);
	CHECK(qp->qp_num == number && !post(qp, ah, number, QKEY, 5, IBV_WR_SEND, 0));
	struct ibv_wc first = next_of(cq), second = next_of(cq);
	CHECK(first.status == IBV_WC_SUCCESS && second.status == IBV_WC_SUCCESS);
	CHECK(first.wr_id + second.wr_id == 107 && first.qp_num == number && second.qp_num == number);

	/* In ERR all requests are flushed. */
	recv_to(qp, 3, 0, 100);
	CHECK(!change(qp, IBV_QPS_ERR, IBV_QP_STATE) && !post(qp, ah, number, QKEY, 7, IBV_WR_SEND, 0));
	first = next_of(cq), second = next_of(cq);
	CHECK(first.status == IBV_WC_WR_FLUSH_ERR && second.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(ibv_dealloc_pd(pd) == EBUSY && !ibv_destroy_ah(ah) && !ibv_destroy_qp(qp));
}

/* Checks the fields of a received datagram of `length` bytes, and answers it with a handle that is made from it. */
static void received(struct ibv_qp *qp, struct ibv_qp *from, uint32_t length, int flags)
{
	struct ibv_wc wc = next_of(far_cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == GRH + length);
	CHECK(wc.qp_num == qp->qp_num && wc.src_qp == from->qp_num && wc.wc_flags == (unsigned)(IBV_WC_GRH | flags));
	/* The service level has the type of the packet, as with mlx5: UDP and IPv4, or UDP and IPv6. */
	CHECK(wc.sl == (memory[wc.wr_id] >> 4 == 6 ? 9 : 10));
	if (flags & IBV_WC_WITH_IMM)
		CHECK(wc.imm_data == htonl(0x01020304));
	size_t offset = wc.wr_id;
	CHECK(!memcmp(memory + offset + GRH, memory, length));
	struct ibv_grh *grh = (struct ibv_grh *)(memory + offset);
	struct ibv_ah_attr attr;
	CHECK(!ibv_init_ah_from_wc(context, 1, &wc, grh, &attr) && attr.is_global && attr.port_num == 1);
	union ibv_gid ours;
	/* The message came from this process, so both ends of the answer have the same GID. */
	CHECK(!ibv_query_gid(context, 1, attr.grh.sgid_index, &ours) && !memcmp(&attr.grh.dgid, &ours, sizeof ours));
	struct ibv_ah *back = ibv_create_ah_from_wc(pd, &wc, grh, 1);
	CHECK(back);
	recv_to(from, 9, 6000, ROOM);
	CHECK(!post(qp, back, wc.src_qp, QKEY, 11, IBV_WR_SEND, 0) && !ibv_destroy_ah(back));
	struct ibv_wc answer = next_of(cq);
	CHECK(answer.wr_id == 9 && answer.src_qp == qp->qp_num && next_of(far_cq).wr_id == 111);
}

static void messages(struct ibv_qp *qp, struct ibv_qp *far)
{
	for (int index = 0; index < gid_count; index++) {
		struct ibv_ah *ah = handle(index);
		recv_to(far, 4096, 4096, ROOM);
		CHECK(!post(qp, ah, far->qp_num, QKEY, 100 + index, IBV_WR_SEND, IBV_SEND_SOLICITED));
		/* The handle may be destroyed while the request is not complete. */
		CHECK(!ibv_destroy_ah(ah));
		sent(200 + index);
		received(far, qp, 100 + index, 0);
	}
	struct ibv_ah *ah = handle(0);
	recv_to(far, 4096, 4096, ROOM);
	/* The highest bit of the Q_Key stands for the sender's own Q_Key. */
	CHECK(!post(qp, ah, far->qp_num, 0x80000000, 33, IBV_WR_SEND_WITH_IMM, IBV_SEND_INLINE));
	sent(133);
	received(far, qp, 33, IBV_WC_WITH_IMM);
	/* Of a number, the lower 24 bits count. */
	recv_to(far, 4096, 4096, ROOM);
	CHECK(!post(qp, ah, far->qp_num | 0xde000000, QKEY, 34, IBV_WR_SEND, 0));
	sent(134);
	received(far, qp, 34, 0);

	/* Dropped: no receive, a wrong Q_Key, a wrong number, a receive that is too short. */
	CHECK(!post(qp, ah, far->qp_num, QKEY, 1, IBV_WR_SEND, 0));
	sent(101);
	nothing_in(far_cq);
	recv_to(far, 4096, 4096, GRH + 4);
	CHECK(!post(qp, ah, far->qp_num, QKEY + 1, 2, IBV_WR_SEND, 0));
	CHECK(!post(qp, ah, far->qp_num + 1000, QKEY, 3, IBV_WR_SEND, 0));
	CHECK(!post(qp, ah, far->qp_num, QKEY, 5, IBV_WR_SEND, 0));
	CHECK(!post(qp, ah, far->qp_num, QKEY, 4, IBV_WR_SEND, 0));
	sent(102), sent(103), sent(105), sent(104);
	received(far, qp, 4, 0);

	/* A message has at most one path MTU, and only Sends are datagrams. */
	CHECK(post(qp, ah, far->qp_num, QKEY, longest + 1, IBV_WR_SEND, 0) == EINVAL);
	CHECK(post(qp, ah, far->qp_num, QKEY, 1, IBV_WR_RDMA_WRITE, 0) == EINVAL);
	CHECK(post(qp, NULL, far->qp_num, QKEY, 1, IBV_WR_SEND, 0) == EINVAL);
	CHECK(!ibv_destroy_ah(ah));
	struct ibv_ah_attr wrong = { .is_global = 1, .port_num = 2 };
	CHECK(!ibv_create_ah(pd, &wrong) && errno == EINVAL);
	wrong.port_num = 1, wrong.grh.sgid_index = gid_count;
	CHECK(!ibv_create_ah(pd, &wrong) && errno == EINVAL);
}

/* Posts by ibv_wr_send, and polls by ibv_start_poll. */
static void extended(void)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_UD,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
	};
	struct ibv_qp *base = ibv_create_qp_ex(context, &init);
	CHECK(base);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(base);
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_qp *far = make(ibv_cq_ex_to_cq(far_cq_ex), srq);
	open_qp(base), open_qp(far);
	struct ibv_sge sge = { (uintptr_t)(memory + 4096), ROOM, mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = 4096, .sg_list = &sge, .num_sge = 1 };
	CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
	struct ibv_ah *ah = handle(3);
	ibv_wr_start(qp);
	qp->wr_id = 5, qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_imm(qp, htonl(9));
	ibv_wr_set_ud_addr(qp, ah, far->qp_num, QKEY);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 20);
	CHECK(!ibv_wr_complete(qp));
	sent(5);
	struct ibv_poll_cq_attr attr = { 0 };
	for (time_t end = time(NULL) + 60; ibv_start_poll(far_cq_ex, &attr) == ENOENT;)
		CHECK(time(NULL) < end);
	CHECK(far_cq_ex->wr_id == 4096 && far_cq_ex->status == IBV_WC_SUCCESS);
	CHECK(ibv_wc_read_src_qp(far_cq_ex) == base->qp_num && ibv_wc_read_imm_data(far_cq_ex) == htonl(9));
	CHECK(ibv_wc_read_wc_flags(far_cq_ex) == (IBV_WC_GRH | IBV_WC_WITH_IMM));
	CHECK(ibv_wc_read_byte_len(far_cq_ex) == GRH + 20 && ibv_wc_read_sl(far_cq_ex) >= 9);
	ibv_end_poll(far_cq_ex);
	/* A request without a destination is refused. */
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 20);
	CHECK(ibv_wr_complete(qp) == EINVAL);
	CHECK(!ibv_destroy_ah(ah) && !ibv_destroy_qp(base) && !ibv_destroy_qp(far) && !ibv_destroy_srq(srq));
}

/* A queue pair that was made with IBV_QP_CREATE_BLOCK_SELF_MCAST_LB does not receive its own messages to its group. */
static void blocks_own(struct ibv_ah *ah, struct ibv_qp *far, union ibv_gid *group)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_UD,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.pd = pd,
		.create_flags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	CHECK(qp);
	/* A reset keeps the flag. */
	for (int round = 0; round < 2; round++) {
		open_qp(qp);
		CHECK(!ibv_attach_mcast(qp, group, 0));
		recv_to(qp, 2, 6000, ROOM);
		recv_to(far, 4096, 4096, ROOM);
		CHECK(!post(qp, ah, 0xffffff, QKEY, 40, IBV_WR_SEND, 0));
		sent(140);
		CHECK(next_of(far_cq).src_qp == qp->qp_num);
		nothing_in(cq);
		/* The messages of others arrive. */
		CHECK(!post(far, ah, 0xffffff, QKEY, 41, IBV_WR_SEND, 0));
		struct ibv_wc wc = next_of(cq);
		CHECK(wc.wr_id == 2 && wc.src_qp == far->qp_num && wc.qp_num == qp->qp_num);
		CHECK(next_of(far_cq).wr_id == 141 && !change(qp, IBV_QPS_RESET, IBV_QP_STATE));
	}
	CHECK(!ibv_destroy_qp(qp));
	init.qp_type = IBV_QPT_RC;
	CHECK(!ibv_create_qp_ex(context, &init) && errno == EOPNOTSUPP);
	init.create_flags = 0;
	CHECK((qp = ibv_create_qp_ex(context, &init)) && !ibv_destroy_qp(qp));
	init.qp_type = IBV_QPT_UD, init.create_flags = IBV_QP_CREATE_SOURCE_QPN;
	CHECK(!ibv_create_qp_ex(context, &init) && errno == EOPNOTSUPP);
	/* Without its bit in the mask, the field is ignored. */
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	CHECK((qp = ibv_create_qp_ex(context, &init)) && !ibv_destroy_qp(qp));
}

static void multicast(struct ibv_qp *qp, struct ibv_qp *far)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
	/* The GID that stands for the group 239.1.2.3. */
	uint8_t group[16] = { 0xff, 0x0e, [10] = 0xff, 0xff, 239, 1, 2, 3 };
	memcpy(attr.grh.dgid.raw, group, sizeof group);
	CHECK(!ibv_attach_mcast(qp, &attr.grh.dgid, 0) && !ibv_attach_mcast(far, &attr.grh.dgid, 0));
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	recv_to(qp, 1, 6000, ROOM);
	recv_to(far, 4096, 4096, ROOM);
	CHECK(!post(qp, ah, 0xffffff, QKEY, 50, IBV_WR_SEND, 0));
	sent(150);
	struct ibv_wc wc = next_of(far_cq);
	CHECK(wc.wr_id == 4096 && wc.src_qp == qp->qp_num && wc.byte_len == GRH + 50);
	/* A member also receives its own message, as with Linux's rxe. */
	wc = next_of(cq);
	CHECK(wc.wr_id == 1 && wc.src_qp == qp->qp_num && wc.byte_len == GRH + 50);
	CHECK(!memcmp(memory + 6000 + GRH, memory, 50));
	blocks_own(ah, far, &attr.grh.dgid);
	CHECK(!ibv_detach_mcast(far, &attr.grh.dgid, 0));
	recv_to(far, 4096, 4096, ROOM);
	CHECK(!post(qp, ah, 0xffffff, QKEY, 51, IBV_WR_SEND, 0));
	sent(151);
	nothing_in(far_cq);
	CHECK(!ibv_detach_mcast(qp, &attr.grh.dgid, 0) && !ibv_destroy_ah(ah));
	union ibv_gid ours;
	CHECK(!ibv_query_gid(context, 1, 0, &ours) && ibv_attach_mcast(qp, &ours, 0) == EINVAL);
}

/* A queue pair may be attached before it is open, and stays attached in RESET. A process has a limited number of
 * groups, and each group counts once. */
static void attached_early(struct ibv_qp *qp)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
	uint8_t group[16] = { 0xff, 0x0e, [10] = 0xff, 0xff, 239, 1, 2, 4 };
	memcpy(attr.grh.dgid.raw, group, sizeof group);
	struct ibv_qp *early = make(far_cq, NULL);
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	CHECK(!ibv_attach_mcast(early, &attr.grh.dgid, 0) && !ibv_attach_mcast(early, &attr.grh.dgid, 0));
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	for (int round = 0; round < 2; round++) {
		open_qp(early);
		recv_to(early, 4096, 4096, ROOM);
		CHECK(!post(qp, ah, 0xffffff, QKEY, 60, IBV_WR_SEND, 0));
		sent(160);
		struct ibv_wc wc = next_of(far_cq);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.qp_num == early->qp_num && wc.byte_len == GRH + 60);
		CHECK(!ibv_modify_qp(early, &reset, IBV_QP_STATE));
	}
	struct ibv_device_attr device;
	CHECK(!ibv_query_device(context, &device));
	for (int more = 1; more < device.max_mcast_grp; more++) {
		attr.grh.dgid.raw[13] = 1 + more;
		CHECK(!ibv_attach_mcast(early, &attr.grh.dgid, 0));
	}
	attr.grh.dgid.raw[13] = 0xff;
	CHECK(ibv_attach_mcast(early, &attr.grh.dgid, 0) == ENOMEM);
	CHECK(!ibv_destroy_qp(early) && !ibv_destroy_ah(ah));
	CHECK(!ibv_attach_mcast(qp, &attr.grh.dgid, 0) && !ibv_detach_mcast(qp, &attr.grh.dgid, 0));
}

/* A process has a limited number of address handles. */
static void many_handles(int limit)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
	CHECK(!ibv_query_gid(context, 1, 0, &attr.grh.dgid));
	struct ibv_ah **all = calloc(limit, sizeof *all);
	CHECK(all);
	for (int at = 0; at < limit; at++)
		CHECK((all[at] = ibv_create_ah(pd, &attr)));
	CHECK(!ibv_create_ah(pd, &attr) && errno == ENOMEM);
	CHECK(!ibv_destroy_ah(all[0]) && (all[0] = ibv_create_ah(pd, &attr)));
	CHECK(!ibv_create_ah(pd, &attr) && errno == ENOMEM);
	for (int at = 0; at < limit; at++)
		CHECK(!ibv_destroy_ah(all[at]));
	free(all);
}

int main(void)
{
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)));
	for (size_t byte = 0; byte < 4096; byte++)
		memory[byte] = (uint8_t)(byte * 7);
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)));
	CHECK((cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0)));
	CHECK((far_cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0)));
	struct ibv_cq_init_attr_ex ex = { .cqe = DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS };
	CHECK((far_cq_ex = ibv_create_cq_ex(context, &ex)));
	struct ibv_port_attr port;
	CHECK(!ibv_query_port(context, 1, &port) && port.active_mtu >= IBV_MTU_1024 && port.active_mtu <= port.max_mtu);
	longest = 128u << port.active_mtu;
	gid_count = port.gid_tbl_len;
	struct ibv_device_attr device;
	CHECK(!ibv_query_device(context, &device) && device.max_ah > 0 && device.max_mcast_grp > 0);

	states();
	struct ibv_qp *qp = make(cq, NULL), *far = make(far_cq, NULL);
	open_qp(qp), open_qp(far);
	messages(qp, far);
	multicast(qp, far);
	attached_early(qp);
	extended();
	many_handles(device.max_ah);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(far) && !ibv_dereg_mr(mr));
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_cq(far_cq) && !ibv_destroy_cq(ibv_cq_ex_to_cq(far_cq_ex)));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
