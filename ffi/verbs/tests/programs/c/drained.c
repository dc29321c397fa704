/*
 * Tests the state SQD: requests that have begun continue, and no other request starts. An event reports when no
 * request is in progress. In RTS everything continues.
 */
#include <poll.h>
#include <string.h>
#include <time.h>

#include "common.h"

enum { BYTES = 4 << 20, DEPTH = 16 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t *memory;

static void post(struct ibv_qp *qp, uint64_t wr_id, enum ibv_wr_opcode opcode, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)memory, length, mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = opcode };
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = (uintptr_t)memory + BYTES / 2;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

static int to(struct ibv_qp *qp, enum ibv_qp_state state, int notifies)
{
	struct ibv_qp_attr attr = { .qp_state = state, .en_sqd_async_notify = notifies != 0 };
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | (notifies >= 0 ? IBV_QP_EN_SQD_ASYNC_NOTIFY : 0));
}

static void expect(uint64_t first, int count, enum ibv_wc_status status)
{
	struct ibv_wc wc;
	time_t limit = time(NULL) + 30;
	for (int i = 0; i < count; i++) {
		while (!ibv_poll_cq(cq, 1, &wc))
			CHECK(time(NULL) < limit);
		if (wc.wr_id != first + i || wc.status != status)
			fprintf(stderr, "request %d: %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status));
		CHECK(wc.wr_id == first + i && wc.status == status);
	}
}

static void expect_nothing(void)
{
	struct timespec pause = { .tv_nsec = 100000000 };
	struct ibv_wc wc;
	for (int i = 0; i < 2000; i++)
		CHECK(!ibv_poll_cq(cq, 1, &wc));
	nanosleep(&pause, NULL);
	CHECK(!ibv_poll_cq(cq, 1, &wc));
}

static int has_event(void)
{
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	int found = poll(&fd, 1, 0);
	CHECK(found >= 0);
	return found;
}

static void drained(struct ibv_qp *qp)
{
	struct ibv_async_event event;
	struct ibv_wc wc;
	time_t limit = time(NULL) + 30;
	/* Calls of ibv_poll_cq also poll the engine. */
	while (!has_event())
		CHECK(time(NULL) < limit && !ibv_poll_cq(cq, 0, &wc));
	CHECK(!ibv_get_async_event(context, &event));
	CHECK(event.event_type == IBV_EVENT_SQ_DRAINED && event.element.qp == qp);
	ibv_ack_async_event(&event);
	CHECK(!has_event());
}

/* Tests two queue pairs that are connected to each other, or one queue pair that is connected to itself. */
static void run(int is_alone)
{
	struct ibv_qp *qp = make_qp(pd, cq, DEPTH), *peer = is_alone ? qp : make_qp(pd, cq, 1);
	CHECK(to(qp, IBV_QPS_SQD, 1) == EINVAL);
	connect_qp(qp, peer->qp_num);
	if (!is_alone)
		connect_qp(peer, qp->qp_num);
	post(qp, 1, IBV_WR_RDMA_WRITE, 8);
	expect(1, 1, IBV_WC_SUCCESS);

	/* No request is in progress. */
	CHECK(!to(qp, IBV_QPS_SQD, 1) && state_of(qp) == IBV_QPS_SQD);
	drained(qp);
	for (int i = 0; i < 3; i++)
		post(qp, 2 + i, i == 1 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 8);
	expect_nothing();
	/* Attributes may change, and the state does not change. */
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS) && state_of(qp) == IBV_QPS_SQD);
	expect_nothing();
	CHECK(!to(qp, IBV_QPS_RTS, -1) && state_of(qp) == IBV_QPS_RTS);
	expect(2, 3, IBV_WC_SUCCESS);
	CHECK(!has_event());

	/* There is no event without the flag, or without the bit in the mask. */
	for (int notifies = -1; notifies < 1; notifies++) {
		CHECK(!to(qp, IBV_QPS_SQD, notifies));
		post(qp, 5, IBV_WR_RDMA_WRITE, 8);
		expect_nothing();
		CHECK(!has_event() && !to(qp, IBV_QPS_RTS, -1));
		expect(5, 1, IBV_WC_SUCCESS);
		CHECK(!has_event());
	}

	/* Whichever requests are posted, those that have begun end before the event, and all other requests wait. */
	for (int round = 0; round < 20; round++) {
		int count = 8, done = 0;
		for (int i = 0; i < count; i++)
			post(qp, 10 + i, i % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, BYTES / 2);
		struct ibv_wc wc;
		for (int i = 0; i < round % 5; i++)
			done += ibv_poll_cq(cq, 1, &wc);
		CHECK(!to(qp, IBV_QPS_SQD, 1));
		post(qp, 10 + count, IBV_WR_RDMA_WRITE, 8);
		struct ibv_async_event event;
		time_t limit = time(NULL) + 30;
		while (!has_event()) {
			CHECK(time(NULL) < limit);
			int got = ibv_poll_cq(cq, 1, &wc);
			CHECK(!got || (wc.status == IBV_WC_SUCCESS && wc.wr_id == 10u + done));
			done += got;
		}
		CHECK(!ibv_get_async_event(context, &event) && event.event_type == IBV_EVENT_SQ_DRAINED);
		ibv_ack_async_event(&event);
		/* When the event occurs, all completions are in the queue, and no other completion follows. */
		while (ibv_poll_cq(cq, 1, &wc))
			CHECK(wc.wr_id == 10u + done++);
		CHECK(done <= count);
		if (round % 4 == 0)
			expect_nothing();
		CHECK(!to(qp, IBV_QPS_RTS, -1));
		expect(10 + done, count + 1 - done, IBV_WC_SUCCESS);
		CHECK(!has_event());
	}

	/* The change to ERR flushes requests that wait because of SQD. */
	CHECK(!to(qp, IBV_QPS_SQD, 0));
	post(qp, 30, IBV_WR_RDMA_WRITE, 8);
	post(qp, 31, IBV_WR_RDMA_READ, 8);
	expect_nothing();
	CHECK(!to(qp, IBV_QPS_ERR, -1));
	expect(30, 2, IBV_WC_WR_FLUSH_ERR);
	post(qp, 32, IBV_WR_RDMA_WRITE, 8);
	expect(32, 1, IBV_WC_WR_FLUSH_ERR);
	CHECK(to(qp, IBV_QPS_SQD, 0) == EINVAL && !ibv_destroy_qp(qp));
	CHECK(is_alone || !ibv_destroy_qp(peer));
}

/* Without a peer, a queue pair is drained at once, even if requests wait. */
static void without_peer(void)
{
	struct ibv_qp *qp = make_qp(pd, cq, DEPTH);
	connect_qp(qp, 77);
	post(qp, 1, IBV_WR_RDMA_WRITE, 8);
	CHECK(!to(qp, IBV_QPS_SQD, 1));
	drained(qp);
	CHECK(!to(qp, IBV_QPS_ERR, -1));
	expect(1, 1, IBV_WC_WR_FLUSH_ERR);
	CHECK(!ibv_destroy_qp(qp));
}

/* A request that is posted before the change to SQD is executed, even if the library slept before. */
static void posted_before(void)
{
	struct ibv_qp *qp = make_qp(pd, cq, DEPTH), *peer = make_qp(pd, cq, 1);
	struct timespec pause = { .tv_nsec = 50000000 };
	connect_qp(qp, peer->qp_num);
	connect_qp(peer, qp->qp_num);
	post(qp, 1, IBV_WR_RDMA_WRITE, 8);
	expect(1, 1, IBV_WC_SUCCESS);
	for (int i = 0; i < 20; i++) {
		nanosleep(&pause, NULL);
		post(qp, 2 + i, IBV_WR_RDMA_WRITE, 8);
		CHECK(!to(qp, IBV_QPS_SQD, 0));
		expect(2 + i, 1, IBV_WC_SUCCESS);
		CHECK(!to(qp, IBV_QPS_RTS, -1));
	}
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(peer));
}

/* A queue pair that is destroyed in SQD sends nothing more. */
static void destroyed(void)
{
	struct ibv_qp *qp = make_qp(pd, cq, DEPTH), *peer = make_qp(pd, cq, 1);
	connect_qp(qp, peer->qp_num);
	connect_qp(peer, qp->qp_num);
	post(qp, 1, IBV_WR_RDMA_WRITE, 8);
	expect(1, 1, IBV_WC_SUCCESS);
	CHECK(!to(qp, IBV_QPS_SQD, 0));
	memset(memory, 7, 8);
	memset(memory + BYTES / 2, 0, 8);
	post(qp, 2, IBV_WR_RDMA_WRITE, 8);
	CHECK(!ibv_destroy_qp(qp));
	expect_nothing();
	CHECK(!memory[BYTES / 2] && !ibv_destroy_qp(peer));
}

int main(void)
{
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	CHECK((memory = calloc(1, BYTES)));
	CHECK((mr = ibv_reg_mr(pd, memory, BYTES,
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)));
	run(0);
	run(1);
	without_peer();
	posted_before();
	destroyed();
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
