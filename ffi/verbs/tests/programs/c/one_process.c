/*
 * Tests queue pairs of one process: two queue pairs that are connected to each other, and one queue pair that is
 * connected to itself. They post Sends, Writes, Reads, atomics and immediates, and the bytes are checked.
 */
#include <arpa/inet.h>
#include <string.h>
#include <time.h>

#include "common.h"

enum { BYTES = 1 << 20, DEPTH = 64 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t *memory;

/* Returns the next completion, which has to belong to `qp`. Fails after ten seconds. */
static struct ibv_wc completion(struct ibv_qp *qp, enum ibv_wc_status status)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + 10;
	int found;
	while (!(found = ibv_poll_cq(cq, 1, &wc)))
		CHECK(time(NULL) < end);
	CHECK(found == 1);
	if (wc.status != status)
		fprintf(stderr, "status %s\n", ibv_wc_status_str(wc.status));
	CHECK(wc.status == status);
	CHECK(wc.qp_num == qp->qp_num);
	return wc;
}

static void post_recv(struct ibv_qp *qp, size_t at, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)memory + at, length, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static void post_send(struct ibv_qp *qp, enum ibv_wr_opcode opcode, size_t from, size_t to, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)memory + from, length, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 9, .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.imm_data = htonl(0x12345678);
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)memory + to;
		wr.wr.atomic.rkey = mr->rkey;
		wr.wr.atomic.compare_add = 5;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)memory + to;
		wr.wr.rdma.rkey = mr->rkey;
	}
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

/* Waits for both completions of a message, in any order. */
static void both(struct ibv_qp *from, struct ibv_qp *to, uint32_t length, int with_imm)
{
	int sent = 0, received = 0;
	struct ibv_wc wc;
	time_t end = time(NULL) + 10;
	while (!sent || !received) {
		if (!ibv_poll_cq(cq, 1, &wc)) {
			CHECK(time(NULL) < end);
			continue;
		}
		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode & IBV_WC_RECV) {
			CHECK(wc.wr_id == 7 && wc.qp_num == to->qp_num && wc.byte_len == length);
			CHECK(!(wc.wc_flags & IBV_WC_WITH_IMM) == !with_imm);
			CHECK(!with_imm || wc.imm_data == htonl(0x12345678));
			received = 1;
		} else {
			CHECK(wc.wr_id == 9 && wc.qp_num == from->qp_num);
			sent = 1;
		}
	}
}

static void talk(struct ibv_qp *from, struct ibv_qp *to)
{
	const size_t half = BYTES / 2;
	for (size_t at = 0; at < BYTES; at++)
		memory[at] = at < half ? at * 31 >> 3 : 0;
	post_recv(to, half, half);
	post_send(from, IBV_WR_SEND, 0, 0, 100000);
	both(from, to, 100000, 0);
	CHECK(!memcmp(memory, memory + half, 100000));

	post_recv(to, half, half);
	post_send(from, IBV_WR_SEND_WITH_IMM, 0, 0, 10);
	both(from, to, 10, 1);

	/* This Send waits for its receive. */
	post_send(from, IBV_WR_SEND, 0, 0, 64);
	for (int turn = 0; turn < 1000; turn++) {
		struct ibv_wc wc;
		int found = ibv_poll_cq(cq, 1, &wc);
		CHECK(found == 0 || (found == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND));
		if (found) {
			post_recv(to, half, half);
			completion(to, IBV_WC_SUCCESS);
			goto received;
		}
	}
	post_recv(to, half, half);
	both(from, to, 64, 0);
received:
	/* When a Write completes, the peer's memory has its bytes. */
	post_send(from, IBV_WR_RDMA_WRITE, 0, half, half);
	completion(from, IBV_WC_SUCCESS);
	CHECK(!memcmp(memory, memory + half, half));
	post_send(from, IBV_WR_RDMA_READ, half - 64, half, 64);
	completion(from, IBV_WC_SUCCESS);
	CHECK(!memcmp(memory, memory + half, half - 64));
	CHECK(!memcmp(memory + half - 64, memory + half, 64));

	post_recv(to, 0, 0);
	post_send(from, IBV_WR_RDMA_WRITE_WITH_IMM, 0, half, 1000);
	both(from, to, 1000, 1);

	uint64_t *word = (uint64_t *)(memory + half);
	*word = 37;
	post_send(from, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, half, 8);
	completion(from, IBV_WC_SUCCESS);
	CHECK(*(uint64_t *)memory == 37 && *word == 42);
}

static void reset(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	init_qp(qp);
}

/* Returns the next completion of a queue pair, and ignores the flushed requests of its peer. */
static struct ibv_wc next_of_qp(struct ibv_qp *qp)
{
	struct ibv_wc wc;
	for (time_t end = time(NULL) + 10; ;) {
		CHECK(time(NULL) < end);
		if (!ibv_poll_cq(cq, 1, &wc))
			continue;
		if (wc.qp_num == qp->qp_num)
			return wc;
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
	}
}

/*
 * The peer's queue pair does not allow atomics, whatever the memory allows. The completion with an error is that of
 * the refused request. RESET removes the rights and drops unpolled completions.
 */
static void refused(struct ibv_qp *from, struct ibv_qp *to)
{
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	struct ibv_wc wc;
	CHECK(!ibv_modify_qp(to, &attr, IBV_QP_ACCESS_FLAGS));
	post_recv(to, 0, 64);
	post_send(from, IBV_WR_RDMA_WRITE, 0, 4096, 64);
	post_send(from, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 4096, 8);
	post_send(from, IBV_WR_RDMA_WRITE, 0, 4096, 64);
	CHECK(next_of_qp(from).status == IBV_WC_SUCCESS);
	CHECK(next_of_qp(from).status == IBV_WC_REM_ACCESS_ERR);
	reset(from);
	reset(to);
	for (int turn = 0; turn < 1000; turn++)
		CHECK(!ibv_poll_cq(cq, 1, &wc));
	connect_qp(from, to->qp_num);
	connect_qp(to, from->qp_num);
	talk(from, to);
}

/* A region keeps its keys when its rights change. */
static void changed_rights(struct ibv_qp *from)
{
	const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			IBV_ACCESS_REMOTE_ATOMIC;
	uint32_t rkey = mr->rkey;
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
			    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
	post_send(from, IBV_WR_RDMA_READ, 0, 4096, 64);
	completion(from, IBV_WC_SUCCESS);
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, all));
	CHECK(mr->rkey == rkey);
	post_send(from, IBV_WR_RDMA_WRITE, 0, 4096, 64);
	completion(from, IBV_WC_SUCCESS);
}

int main(void)
{
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0)));
	CHECK((memory = aligned_alloc(4096, BYTES)));
	CHECK((mr = ibv_reg_mr(pd, memory, BYTES,
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				       IBV_ACCESS_REMOTE_ATOMIC)));

	struct ibv_qp *a = make_qp(pd, cq, DEPTH), *b = make_qp(pd, cq, DEPTH);
	connect_qp(a, b->qp_num);
	connect_qp(b, a->qp_num);
	talk(a, b);
	talk(b, a);
	refused(a, b);
	changed_rights(b);
	/* One queue pair is destroyed, and the other can be used until it sends. */
	post_recv(b, 0, 64);
	CHECK(!ibv_destroy_qp(a));
	struct ibv_wc wc;
	for (int turn = 0; turn < 1000; turn++)
		CHECK(!ibv_poll_cq(cq, 1, &wc));
	post_send(b, IBV_WR_SEND, 0, 0, 64);
	completion(b, IBV_WC_RETRY_EXC_ERR);
	completion(b, IBV_WC_WR_FLUSH_ERR);
	CHECK(!ibv_destroy_qp(b));

	struct ibv_qp *self = make_qp(pd, cq, DEPTH);
	for (int round = 0; round < 2; round++) {
		connect_qp(self, self->qp_num);
		talk(self, self);
		/* The queue pair is tested again after RESET, with the same number. */
		reset(self);
	}
	/* Receives of a destroyed queue pair get no completion, since their wr_id may be in use again. */
	connect_qp(self, self->qp_num);
	post_recv(self, 0, 64);
	post_recv(self, 0, 64);
	CHECK(!ibv_destroy_qp(self));
	for (time_t end = time(NULL) + 2; time(NULL) < end;)
		CHECK(!ibv_poll_cq(cq, 1, &wc));

	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	puts("all bytes are right");
	return 0;
}
