/*
 * Tests failing requests: the completions at both ends have InfiniBand's statuses for the error.
 */
#include <poll.h>
#include <time.h>

#include "common.h"

static struct ibv_cq *cqs[2];
static struct ibv_pd *pd;
static struct ibv_mr *mr, *plain;
static struct ibv_qp *qps[2];
static uint64_t memory[512];

static void connected(void)
{
	for (int end = 0; end < 2; end++)
		qps[end] = make_qp(pd, cqs[end], 8);
	connect_qp(qps[0], qps[1]->qp_num);
	connect_qp(qps[1], qps[0]->qp_num);
}

static void completion(int end, enum ibv_wc_status status)
{
	struct ibv_wc wc;
	time_t limit = time(NULL) + 10;
	while (!ibv_poll_cq(cqs[end], 1, &wc))
		CHECK(time(NULL) < limit);
	if (wc.status != status)
		fprintf(stderr, "end %d: %s\n", end, ibv_wc_status_str(wc.status));
	CHECK(wc.status == status);
}

/* Posts a request of `length` bytes for offset `at` of the other end's memory. The completion has to have
 * `status`. */
static void request(enum ibv_wr_opcode opcode, uint32_t length, uint32_t lkey, size_t at, uint32_t rkey,
		    enum ibv_wc_status status)
{
	struct ibv_sge sge = { (uintptr_t)memory, length, lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode };
	wr.send_flags = IBV_SEND_SIGNALED;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)memory + 2048 + at;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 1;
	} else if (opcode == IBV_WR_LOCAL_INV) {
		wr.num_sge = 0;
		wr.invalidate_rkey = rkey;
	}
	CHECK(!ibv_post_send(qps[0], &wr, &bad));
	completion(0, status);
	CHECK(state_of(qps[0]) == IBV_QPS_ERR);
}

/*
 * Checks that each end gets one event. The end that refused a faulty message of the peer gets `type`. The
 * other end, whose stream ended, gets IBV_EVENT_QP_FATAL.
 */
static void told(struct ibv_context *context, enum ibv_event_type type)
{
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	int seen[2] = { 0, 0 };
	for (int i = 0; i < 2; i++) {
		struct ibv_async_event event;
		CHECK(poll(&fd, 1, 30000) == 1 && !ibv_get_async_event(context, &event));
		int end = event.element.qp == qps[1];
		if (event.event_type != (end ? type : IBV_EVENT_QP_FATAL))
			fprintf(stderr, "end %d: %s\n", end, ibv_event_type_str(event.event_type));
		CHECK(event.element.qp == qps[end] && event.event_type == (end ? type : IBV_EVENT_QP_FATAL));
		seen[end]++;
		ibv_ack_async_event(&event);
	}
	CHECK(seen[0] == 1 && seen[1] == 1 && poll(&fd, 1, 0) == 0);
}

static void disconnected(void)
{
	CHECK(!ibv_destroy_qp(qps[0]) && !ibv_destroy_qp(qps[1]));
}

int main(void)
{
	struct ibv_context *context = open_device();
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((cqs[0] = ibv_create_cq(context, 64, NULL, NULL, 0)));
	CHECK((cqs[1] = ibv_create_cq(context, 64, NULL, NULL, 0)));
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), all | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND)));
	CHECK((plain = ibv_reg_mr(pd, memory, sizeof(memory), all)));
	uint64_t *word = &memory[256];
	enum ibv_wr_opcode add = IBV_WR_ATOMIC_FETCH_AND_ADD;

	/*
	 * An atomic needs the right for remote atomics: rights for remote reads and writes do not suffice.
	 * The alignment is checked before the rights. The buffer for the result has to have 8 bytes.
	 */
	connected();
	request(add, 8, mr->lkey, 0, plain->rkey, IBV_WC_REM_ACCESS_ERR);
	told(context, IBV_EVENT_QP_ACCESS_ERR);
	disconnected();
	connected();
	request(add, 8, mr->lkey, 4, mr->rkey, IBV_WC_REM_INV_REQ_ERR);
	told(context, IBV_EVENT_QP_REQ_ERR);
	disconnected();
	connected();
	request(add, 8, mr->lkey, 4, plain->rkey, IBV_WC_REM_INV_REQ_ERR);
	disconnected();
	connected();
	request(add, 9, mr->lkey, 0, mr->rkey, IBV_WC_LOC_LEN_ERR);
	CHECK(*word == 0 && state_of(qps[1]) == IBV_QPS_RTS);
	disconnected();
	/*
	 * If the requester cannot store the result, the remote word has changed all the same, and the other
	 * end does not notice the error.
	 */
	connected();
	request(add, 8, ~mr->lkey, 0, mr->rkey, IBV_WC_LOC_PROT_ERR);
	CHECK(*word == 1 && state_of(qps[1]) == IBV_QPS_RTS);
	disconnected();

	/* This message is longer than its receive buffer. */
	connected();
	struct ibv_sge sge = { (uintptr_t)word, 8, mr->lkey };
	struct ibv_recv_wr *bad, recv = { .sg_list = &sge, .num_sge = 1 };
	CHECK(!ibv_post_recv(qps[1], &recv, &bad));
	request(IBV_WR_SEND, 9, mr->lkey, 0, 0, IBV_WC_REM_INV_REQ_ERR);
	completion(1, IBV_WC_LOC_LEN_ERR);
	CHECK(state_of(qps[1]) == IBV_QPS_ERR);
	disconnected();

	/* The key to invalidate is unknown. */
	connected();
	request(IBV_WR_LOCAL_INV, 0, 0, 0, ~mr->rkey, IBV_WC_MW_BIND_ERR);
	disconnected();

	/*
	 * libibverbs itself refuses the first three calls of ibv_rereg_mr, and the device refuses the last
	 * call.
	 */
	CHECK(ibv_rereg_mr(plain, 0x80, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(plain, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 8, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(plain, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, all) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(plain, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) ==
	      IBV_REREG_MR_ERR_CMD);
	CHECK(errno == EINVAL);
	CHECK(!ibv_dereg_mr(plain) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cqs[0]) && !ibv_destroy_cq(cqs[1]));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
