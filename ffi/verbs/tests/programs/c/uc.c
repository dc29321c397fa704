/*
 * Tests queue pairs of type UC: changes of state, operations that are refused, messages that are dropped, and a peer
 * that is gone, killed, not there yet, or of type RC.
 *
 * `uc [HOST]`: all queue pairs are at this address.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <rdma/rdma_cma.h>

#include "common.h"

enum { DEPTH = 16, SIZE = 1 << 20, FAR = SIZE, ROOM = 256 };
enum {
	TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
	TO_RTS = IBV_QP_STATE | IBV_QP_SQ_PSN,
	RIGHTS = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
};

static struct ibv_context *context;
static struct ibv_pd *pd;
/* The completion queues of the sending and of the receiving queue pair. */
static struct ibv_cq *cq, *far_cq;
static struct ibv_mr *mr;
/* The first half is sent, and the second half receives. */
static uint8_t memory[2 * SIZE];

static int change_at(struct ibv_qp *qp, enum ibv_qp_state state, int mask, union ibv_gid gid, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = state,
		.cur_qp_state = IBV_QPS_RTS,
		.port_num = 1,
		.qp_access_flags = RIGHTS,
		.path_mtu = IBV_MTU_2048,
		.dest_qp_num = peer,
		.rq_psn = 7,
		.sq_psn = 9,
		.ah_attr = { .grh = { .dgid = gid }, .is_global = 1, .port_num = 1 },
	};
	return ibv_modify_qp(qp, &attr, mask);
}

static int change(struct ibv_qp *qp, enum ibv_qp_state state, int mask, uint32_t peer)
{
	union ibv_gid gid;
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	return change_at(qp, state, mask, gid, peer);
}

static struct ibv_qp *make(struct ibv_cq *of, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = qp_init(of, srq, DEPTH);
	init.qp_type = IBV_QPT_UC;
	init.cap.max_send_sge = 2;
	init.cap.max_inline_data = 64;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp && qp->qp_type == IBV_QPT_UC && qp->state == IBV_QPS_RESET && init.cap.max_inline_data >= 64);
	return qp;
}

static void begin(struct ibv_qp *qp)
{
	CHECK(!change(qp, IBV_QPS_INIT, TO_INIT, 0));
}

static void join(struct ibv_qp *qp, uint32_t peer)
{
	CHECK(!change(qp, IBV_QPS_RTR, TO_RTR, peer) && !change(qp, IBV_QPS_RTS, TO_RTS, peer));
}

/* Connects two queue pairs in INIT. */
static void connect_both(struct ibv_qp *qp, struct ibv_qp *far)
{
	join(qp, far->qp_num);
	join(far, qp->qp_num);
}

static void end(struct ibv_qp *qp, struct ibv_qp *far)
{
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(far));
}

static void recv_to(struct ibv_qp *qp, uint64_t wr_id, size_t offset, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)(memory + FAR + offset), length, mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };
	CHECK(!(qp->srq ? ibv_post_srq_recv(qp->srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad)));
}

/* Posts a request with the first `length` bytes of the memory. A Write is to the start of the second half. Returns the
 * result of the post. */
static int post(struct ibv_qp *qp, int opcode, uint32_t length, uint32_t rkey, int flags)
{
	struct ibv_sge sge[2] = { { (uintptr_t)memory, length / 3, mr->lkey },
				  { (uintptr_t)memory + length / 3, length - length / 3, mr->lkey } };
	struct ibv_send_wr *bad = NULL, wr = {
		.wr_id = length,
		.sg_list = sge,
		.num_sge = 2,
		.opcode = opcode,
		.imm_data = htonl(0x01020304),
		.send_flags = flags | IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)(memory + FAR), rkey },
	};
	int result = ibv_post_send(qp, &wr, &bad);
	CHECK(!result == !bad);
	return result;
}

static void sent(uint64_t wr_id)
{
	struct ibv_wc wc = next_of(cq);
	CHECK(wc.wr_id == wr_id && wc.status == IBV_WC_SUCCESS);
}

/* Posts a request, and waits for its success. The message is then received or dropped. */
static void send_one(struct ibv_qp *qp, int opcode, uint32_t length)
{
	CHECK(!post(qp, opcode, length, mr->rkey, 0));
	sent(length);
}

static void received(uint64_t wr_id, int opcode, uint32_t length, int with_imm)
{
	struct ibv_wc wc = next_of(far_cq);
	CHECK(wc.wr_id == wr_id && wc.status == IBV_WC_SUCCESS && wc.opcode == (enum ibv_wc_opcode)opcode);
	CHECK(wc.byte_len == length && !(wc.wc_flags & IBV_WC_WITH_IMM) == !with_imm);
	if (with_imm)
		CHECK(wc.imm_data == htonl(0x01020304));
}

static int is_written(size_t offset, uint32_t length)
{
	return !memcmp(memory + FAR + offset, memory, length);
}

static void states(void)
{
	struct ibv_qp *qp = make(cq, NULL);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	/* iWARP drivers accept the access flags alone, but not for this type. */
	CHECK(change(qp, IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS, 0) == EINVAL);
	CHECK(change(qp, IBV_QPS_INIT, TO_INIT | IBV_QP_QKEY, 0) == EINVAL);
	for (int bit = 1; bit <= TO_INIT; bit <<= 1)
		if (TO_INIT & bit & ~IBV_QP_STATE)
			CHECK(change(qp, IBV_QPS_INIT, TO_INIT & ~bit, 0) == EINVAL);
	CHECK(change(qp, IBV_QPS_RTR, TO_RTR, 1) == EINVAL);
	begin(qp);
	CHECK(post(qp, IBV_WR_SEND, 3, 0, 0) == EINVAL);
	for (int bit = 1; bit <= TO_RTR; bit <<= 1)
		if (TO_RTR & bit & ~IBV_QP_STATE)
			CHECK(change(qp, IBV_QPS_RTR, TO_RTR & ~bit, qp->qp_num) == EINVAL);
	CHECK(change(qp, IBV_QPS_RTR, TO_RTR | IBV_QP_MAX_DEST_RD_ATOMIC, qp->qp_num) == EINVAL);
	CHECK(change(qp, IBV_QPS_RTR, TO_RTR | IBV_QP_MIN_RNR_TIMER, qp->qp_num) == EINVAL);
	CHECK(change(qp, IBV_QPS_RTS, TO_RTS, 0) == EINVAL);
	/* The queue pair is connected to itself. */
	CHECK(!change(qp, IBV_QPS_RTR, TO_RTR | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX, qp->qp_num));
	CHECK(state_of(qp) == IBV_QPS_RTR);
	static const int not_of_uc[] = { IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_MAX_QP_RD_ATOMIC,
					 IBV_QP_MIN_RNR_TIMER };
	for (size_t i = 0; i < sizeof(not_of_uc) / sizeof(*not_of_uc); i++)
		CHECK(change(qp, IBV_QPS_RTS, TO_RTS | not_of_uc[i], 0) == EINVAL);
	CHECK(change(qp, IBV_QPS_RTS, IBV_QP_STATE, 0) == EINVAL && !change(qp, IBV_QPS_RTS, TO_RTS, 0));
	CHECK(change(qp, IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER, 0) == EINVAL);
	CHECK(!change(qp, IBV_QPS_RTS, IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS, 0));
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	CHECK(attr.qp_state == IBV_QPS_RTS && qp->state == IBV_QPS_RTS && init.qp_type == IBV_QPT_UC);
	CHECK(attr.dest_qp_num == qp->qp_num && attr.rq_psn == 7 && attr.sq_psn == 9 && attr.path_mtu == IBV_MTU_2048);
	CHECK(attr.qp_access_flags == RIGHTS && !attr.max_rd_atomic && !attr.max_dest_rd_atomic && !attr.timeout);
	CHECK(!attr.retry_cnt && !attr.rnr_retry && !attr.min_rnr_timer);

	/* In SQD, requests wait. */
	CHECK(!change(qp, IBV_QPS_SQD, IBV_QP_STATE, 0));
	CHECK(change(qp, IBV_QPS_SQD, IBV_QP_STATE | IBV_QP_TIMEOUT, 0) == EINVAL);
	CHECK(!change(qp, IBV_QPS_SQD, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS, 0));
	recv_to(qp, 1, 0, ROOM);
	CHECK(!post(qp, IBV_WR_SEND, 5, 0, 0));
	nothing_in(cq);
	CHECK(!change(qp, IBV_QPS_RTS, IBV_QP_STATE, 0));
	struct ibv_wc first = next_of(cq), second = next_of(cq);
	CHECK(first.status == IBV_WC_SUCCESS && second.status == IBV_WC_SUCCESS && first.wr_id + second.wr_id == 6);
	CHECK(first.qp_num == qp->qp_num && second.qp_num == qp->qp_num && is_written(0, 5));
	/* The connection has no Reads. */
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) && !attr.max_rd_atomic && !attr.max_dest_rd_atomic);

	/* In ERR all requests are flushed. After a reset, the queue pair has the same number, and works as before. */
	recv_to(qp, 2, 0, ROOM);
	CHECK(!change(qp, IBV_QPS_ERR, IBV_QP_STATE, 0) && !post(qp, IBV_WR_SEND, 7, 0, 0));
	first = next_of(cq), second = next_of(cq);
	CHECK(first.status == IBV_WC_WR_FLUSH_ERR && second.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(!change(qp, IBV_QPS_RESET, IBV_QP_STATE, 0));
	begin(qp);
	join(qp, qp->qp_num);
	send_one(qp, IBV_WR_SEND, 8);
	CHECK(!ibv_destroy_qp(qp));
}

/* The operations that the type does not have are refused by both interfaces for posting. */
static void refused(struct ibv_qp *qp, const char *host)
{
	static const int opcodes[] = { IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
				       IBV_WR_SEND_WITH_INV };
	for (size_t i = 0; i < sizeof(opcodes) / sizeof(*opcodes); i++)
		CHECK(post(qp, opcodes[i], 8, mr->rkey, 0) == EINVAL);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_UC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
	};
	static const uint64_t operations[] = { IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
					       IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_SEND_WITH_INV };
	for (size_t i = 0; i < sizeof(operations) / sizeof(*operations); i++) {
		init.send_ops_flags = IBV_QP_EX_WITH_SEND | operations[i];
		CHECK(!ibv_create_qp_ex(context, &init) && errno == EOPNOTSUPP);
	}
	/* rdma_cm has no port space for the type. */
	struct rdma_cm_id *id;
	struct ibv_qp_init_attr plain = qp_init(NULL, NULL, DEPTH);
	struct sockaddr_in here = { .sin_family = AF_INET };
	CHECK(inet_pton(AF_INET, host, &here.sin_addr) == 1);
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) && !rdma_bind_addr(id, (struct sockaddr *)&here));
	plain.qp_type = IBV_QPT_UC;
	CHECK(rdma_create_qp(id, NULL, &plain) && errno == EINVAL && !id->qp);
	plain.qp_type = IBV_QPT_RC;
	CHECK(!rdma_create_qp(id, NULL, &plain) && id->qp);
	rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
}

static void messages(struct ibv_qp *qp, struct ibv_qp *far)
{
	static const uint32_t lengths[] = { 0, 1, 100, 5000, SIZE };
	for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		uint32_t length = lengths[i];
		memset(memory + FAR, 0, SIZE);
		recv_to(far, 1, 0, SIZE);
		send_one(qp, IBV_WR_SEND, length);
		received(1, IBV_WC_RECV, length, 0);
		CHECK(is_written(0, length));
		recv_to(far, 2, 0, SIZE);
		send_one(qp, IBV_WR_SEND_WITH_IMM, length);
		received(2, IBV_WC_RECV, length, 1);
		memset(memory + FAR, 0, SIZE);
		send_one(qp, IBV_WR_RDMA_WRITE, length);
		CHECK(is_written(0, length));
		recv_to(far, 3, 0, 0);
		send_one(qp, IBV_WR_RDMA_WRITE_WITH_IMM, length);
		received(3, IBV_WC_RECV_RDMA_WITH_IMM, length, 1);
	}
	/* The memory of an inline request may change after the post. */
	recv_to(far, 4, 0, ROOM);
	memory[0] = 77;
	CHECK(!post(qp, IBV_WR_SEND, 50, 0, IBV_SEND_INLINE | IBV_SEND_SOLICITED));
	memory[0] = 0;
	sent(50);
	received(4, IBV_WC_RECV, 50, 0);
	CHECK(memory[FAR] == 77);
}

/* Each message that is dropped is followed by one that is received. */
static void drops(struct ibv_qp *qp, struct ibv_qp *far)
{
	/* No receive. The data of a Write is written. */
	send_one(qp, IBV_WR_SEND, 10);
	send_one(qp, IBV_WR_SEND_WITH_IMM, 11);
	send_one(qp, IBV_WR_SEND, SIZE);
	memset(memory + FAR, 0, ROOM);
	send_one(qp, IBV_WR_RDMA_WRITE_WITH_IMM, 12);
	CHECK(is_written(0, 12));
	nothing_in(far_cq);
	recv_to(far, 1, ROOM, ROOM);
	send_one(qp, IBV_WR_SEND, 13);
	received(1, IBV_WC_RECV, 13, 0);

	/* A receive that is too short stays posted. */
	recv_to(far, 2, ROOM, 20);
	send_one(qp, IBV_WR_SEND, 21);
	send_one(qp, IBV_WR_SEND_WITH_IMM, SIZE);
	nothing_in(far_cq);
	send_one(qp, IBV_WR_SEND, 20);
	received(2, IBV_WC_RECV, 20, 0);

	/* A wrong key, also with a receive for the immediate. */
	memset(memory + FAR, 0, SIZE);
	recv_to(far, 3, ROOM, ROOM);
	CHECK(!post(qp, IBV_WR_RDMA_WRITE, 30, mr->rkey ^ 0xff, 0));
	CHECK(!post(qp, IBV_WR_RDMA_WRITE_WITH_IMM, 31, mr->rkey ^ 0xff, 0));
	CHECK(!post(qp, IBV_WR_RDMA_WRITE_WITH_IMM, SIZE, mr->rkey ^ 0xff, 0));
	sent(30), sent(31), sent(SIZE);
	nothing_in(far_cq);
	CHECK(!memory[FAR + 1] && !memory[FAR + SIZE - 1]);
	/* The queue pair without the right. */
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_REMOTE_READ };
	CHECK(!ibv_modify_qp(far, &attr, IBV_QP_ACCESS_FLAGS));
	send_one(qp, IBV_WR_RDMA_WRITE, 32);
	CHECK(!memory[FAR + 1]);
	attr.qp_access_flags = RIGHTS;
	CHECK(!ibv_modify_qp(far, &attr, IBV_QP_ACCESS_FLAGS));
	send_one(qp, IBV_WR_SEND_WITH_IMM, 33);
	received(3, IBV_WC_RECV, 33, 1);
	CHECK(state_of(qp) == IBV_QPS_RTS && state_of(far) == IBV_QPS_RTS);
}

/* Posts by ibv_wr_send, to a queue pair with a shared receive queue. */
static void extended(void)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_UC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
				  IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
	};
	struct ibv_qp *base = ibv_create_qp_ex(context, &init);
	CHECK(base);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(base);
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	CHECK(srq);
	struct ibv_qp *far = make(far_cq, srq);
	begin(base), begin(far);
	connect_both(base, far);
	send_one(base, IBV_WR_SEND, 5);
	nothing_in(far_cq);
	recv_to(far, 1, 0, ROOM);
	recv_to(far, 2, 0, ROOM);
	ibv_wr_start(qp);
	qp->wr_id = 3, qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_imm(qp, htonl(0x01020304));
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 20);
	qp->wr_id = 4;
	ibv_wr_rdma_write_imm(qp, mr->rkey, (uintptr_t)(memory + FAR + 1000), htonl(0x01020304));
	ibv_wr_set_inline_data(qp, memory, 30);
	CHECK(!ibv_wr_complete(qp));
	sent(3), sent(4);
	received(1, IBV_WC_RECV, 20, 1);
	received(2, IBV_WC_RECV_RDMA_WITH_IMM, 30, 1);
	CHECK(is_written(0, 20) && is_written(1000, 30));
	/* Operations that the queue pair does not have are refused. */
	ibv_wr_start(qp);
	ibv_wr_rdma_read(qp, mr->rkey, (uintptr_t)(memory + FAR));
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 8);
	CHECK(ibv_wr_complete(qp) == EINVAL);
	end(base, far);
	CHECK(!ibv_destroy_srq(srq));
}

/* Checks that no request completes, and that no event is reported. */
static void nothing_more(void)
{
	struct pollfd waits = { context->async_fd, POLLIN, 0 };
	nothing_in(cq);
	nothing_in(far_cq);
	CHECK(!poll(&waits, 1, 0));
}

/* The peer's queue pair is destroyed, or enters ERR. Sends succeed, receives stay, and the state stays RTS. */
static void peer_ends(int by_error)
{
	struct ibv_qp *qp = make(cq, NULL), *far = make(far_cq, NULL);
	begin(qp), begin(far);
	connect_both(qp, far);
	recv_to(far, 1, 0, ROOM);
	send_one(qp, IBV_WR_SEND, 5);
	received(1, IBV_WC_RECV, 5, 0);
	recv_to(qp, 2, 0, ROOM);
	if (by_error)
		CHECK(!change(far, IBV_QPS_ERR, IBV_QP_STATE, 0));
	else
		CHECK(!ibv_destroy_qp(far));
	for (uint32_t i = 10; i < 20; i++)
		send_one(qp, i & 1 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM, i);
	nothing_more();
	CHECK(state_of(qp) == IBV_QPS_RTS);
	CHECK(!change(qp, IBV_QPS_ERR, IBV_QP_STATE, 0));
	struct ibv_wc wc = next_of(cq);
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(!ibv_destroy_qp(qp) && (!by_error || !ibv_destroy_qp(far)));
}

/* The peer's queue pair enters RTR late. Sends before succeed and are lost, sends afterwards arrive. */
static void peer_is_late(void)
{
	struct ibv_qp *qp = make(cq, NULL), *far = make(far_cq, NULL);
	begin(qp), begin(far);
	recv_to(far, 1, 0, ROOM);
	join(qp, far->qp_num);
	send_one(qp, IBV_WR_SEND, 5);
	CHECK(state_of(qp) == IBV_QPS_RTS);
	join(far, qp->qp_num);
	send_one(qp, IBV_WR_SEND, 6);
	received(1, IBV_WC_RECV, 6, 0);
	end(qp, far);
}

/* A queue pair of type UC and one of type RC are not connected. */
static void other_type(void)
{
	for (int swapped = 0; swapped < 2; swapped++) {
		/* The queue pair with the smaller number, which is made first, connects to the other. */
		struct ibv_qp *qp = swapped ? NULL : make(cq, NULL), *rc = make_qp(pd, far_cq, DEPTH);
		qp = qp ? qp : make(cq, NULL);
		CHECK((qp->qp_num < rc->qp_num) == !swapped);
		begin(qp);
		join(qp, rc->qp_num);
		connect_qp(rc, qp->qp_num);
		send_one(qp, IBV_WR_SEND, 5);
		CHECK(state_of(qp) == IBV_QPS_RTS);
		CHECK(!post(rc, IBV_WR_SEND, 6, 0, 0));
		CHECK(next_of(far_cq).status == IBV_WC_RETRY_EXC_ERR && state_of(rc) == IBV_QPS_ERR);
		end(qp, rc);
	}
}

struct name {
	union ibv_gid gid;
	uint32_t number;
};

/* The peer's process is killed. Sends succeed, and nothing tells of the peer. */
static void killed_peer(void)
{
	int to_child[2], to_parent[2];
	char byte;
	CHECK(!pipe(to_child) && !pipe(to_parent));
	pid_t child = fork();
	CHECK(child >= 0);
	int out = child ? to_child[1] : to_parent[1], in = child ? to_parent[0] : to_child[0];
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | RIGHTS)));
	CHECK((cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0)));
	CHECK((far_cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0)));
	struct ibv_qp_init_attr init = qp_init(cq, NULL, DEPTH);
	init.qp_type = IBV_QPT_UC, init.recv_cq = far_cq, init.cap.max_send_sge = 2;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	begin(qp);
	struct name ours = { .number = qp->qp_num }, peer;
	CHECK(!ibv_query_gid(context, 1, 0, &ours.gid));
	CHECK(write(out, &ours, sizeof ours) == sizeof ours && read(in, &peer, sizeof peer) == sizeof peer);
	recv_to(qp, 1, 0, ROOM);
	recv_to(qp, 2, 0, ROOM);
	CHECK(!change_at(qp, IBV_QPS_RTR, TO_RTR, peer.gid, peer.number));
	CHECK(!change(qp, IBV_QPS_RTS, TO_RTS, 0));
	/* One message is sent in each direction, so that there is a connection. */
	send_one(qp, IBV_WR_SEND, 3);
	received(1, IBV_WC_RECV, 3, 0);
	CHECK(write(out, "", 1) == 1);
	if (!child)
		for (;;)
			pause();
	CHECK(read(in, &byte, 1) == 1);
	CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
	for (uint32_t i = 10; i < 20; i++)
		send_one(qp, IBV_WR_SEND, i);
	send_one(qp, IBV_WR_SEND, SIZE);
	nothing_more();
	CHECK(state_of(qp) == IBV_QPS_RTS);
	CHECK(!change(qp, IBV_QPS_ERR, IBV_QP_STATE, 0) && next_of(far_cq).wr_id == 2);
	CHECK(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_destroy_cq(far_cq));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
}

int main(int argc, char **argv)
{
	const char *host = argc > 1 ? argv[1] : "127.0.0.1";
	for (size_t byte = 0; byte < SIZE; byte++)
		memory[byte] = (uint8_t)(byte * 7 + byte / 251);
	/* The child is forked before verbs are used. */
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		killed_peer();
		exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && !status);
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | RIGHTS)));
	CHECK((cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0)));
	CHECK((far_cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0)));
	states();
	struct ibv_qp *qp = make(cq, NULL), *far = make(far_cq, NULL);
	begin(qp), begin(far);
	connect_both(qp, far);
	refused(qp, host);
	messages(qp, far);
	drops(qp, far);
	/* The other direction. */
	recv_to(qp, 1, 0, ROOM);
	CHECK(!post(far, IBV_WR_SEND, 9, 0, 0));
	struct ibv_wc wc = next_of(cq), own = next_of(far_cq);
	CHECK(wc.wr_id == 1 && wc.byte_len == 9 && own.wr_id == 9 && own.status == IBV_WC_SUCCESS);
	end(qp, far);
	extended();
	peer_ends(0);
	peer_ends(1);
	peer_is_late();
	other_type();
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_destroy_cq(far_cq));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
