/*
 * Tests the sizes of queues: send and receive queues of different depths, each with its own completion queue, and
 * completion queues that are resized. If a queue is full, one more request is refused, and one more completion is an
 * overflow.
 */
#include <poll.h>

#include "common.h"

enum { SENDS = 3, RECVS = 5 };

static struct ibv_context *context;
static struct ibv_pd *pd;

static int post_recv(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_recv_wr wr = { .wr_id = wr_id }, *bad = NULL;
	int error = ibv_post_recv(qp, &wr, &bad);
	CHECK(!error || bad == &wr);
	return error;
}

static int post_send(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_send_wr wr = { .wr_id = wr_id, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad = NULL;
	int error = ibv_post_send(qp, &wr, &bad);
	CHECK(!error || bad == &wr);
	return error;
}

static void to_error(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

static struct ibv_cq *make_cq(int entries)
{
	struct ibv_cq *cq = ibv_create_cq(context, entries, NULL, NULL, 0);
	CHECK(cq && cq->cqe >= entries);
	return cq;
}

/* An entry of a send or receive queue is in use until its completion is polled. */
static void two_depths(void)
{
	struct ibv_cq *sends = make_cq(SENDS), *recvs = make_cq(RECVS);
	struct ibv_qp_init_attr init = qp_init(sends, NULL, SENDS);
	init.recv_cq = recvs;
	init.cap.max_recv_wr = RECVS;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp && init.cap.max_send_wr == SENDS && init.cap.max_recv_wr == RECVS);
	init_qp(qp);
	/* The peer is a queue pair that is never connected. */
	struct ibv_qp *never = make_qp(pd, sends, 1);
	to_rtr(qp, never->qp_num, 12);
	to_rts(qp, 0, 7);
	for (int at = 0; at < RECVS; at++)
		CHECK(!post_recv(qp, at));
	CHECK(post_recv(qp, 99) == ENOMEM);
	for (int at = 0; at < SENDS; at++)
		CHECK(!post_send(qp, at));
	CHECK(post_send(qp, 99) == ENOMEM && post_recv(qp, 99) == ENOMEM);
	to_error(qp);
	CHECK(post_send(qp, 99) == ENOMEM && post_recv(qp, 99) == ENOMEM);
	/* In ERR each request is flushed at once, and the entry of the request is free when the completion is polled. */
	for (uint64_t round = 0; round < 20; round++) {
		for (int at = 0; at < RECVS; at++) {
			CHECK(next_of(recvs).wr_id == round * RECVS + at);
			CHECK(!post_recv(qp, (round + 1) * RECVS + at));
			CHECK(post_recv(qp, 99) == ENOMEM && post_send(qp, 99) == ENOMEM);
		}
		for (int at = 0; at < SENDS; at++) {
			CHECK(next_of(sends).wr_id == round * SENDS + at);
			CHECK(!post_send(qp, (round + 1) * SENDS + at));
			CHECK(post_recv(qp, 99) == ENOMEM && post_send(qp, 99) == ENOMEM);
		}
	}
	struct ibv_qp_attr attr;
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_CAP, &init));
	CHECK(init.cap.max_send_wr == SENDS && init.cap.max_recv_wr == RECVS);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(never));
	CHECK(!ibv_destroy_cq(sends) && !ibv_destroy_cq(recvs));
}

static int overflows(void)
{
	struct pollfd waits = { context->async_fd, POLLIN, 0 };
	if (!poll(&waits, 1, 50))
		return 0;
	struct ibv_async_event event;
	CHECK(!ibv_get_async_event(context, &event) && event.event_type == IBV_EVENT_CQ_ERR);
	ibv_ack_async_event(&event);
	return 1;
}

static void resized(void)
{
	struct ibv_cq *cq = make_cq(8);
	struct ibv_qp *qp = make_qp(pd, cq, 64);
	to_error(qp);
	for (int at = 0; at < 5; at++)
		CHECK(!post_recv(qp, at));
	/*
	 * The refused sizes are too small for the waiting completions, are zero or negative, or exceed the
	 * maximum.
	 */
	struct ibv_device_attr device;
	CHECK(!ibv_query_device(context, &device));
	const int wrong[] = { 4, 1, 0, -1, device.max_cqe + 1 };
	for (size_t at = 0; at < sizeof(wrong) / sizeof(*wrong); at++)
		CHECK(ibv_resize_cq(cq, wrong[at]) == EINVAL && cq->cqe == 8);
	CHECK(!ibv_create_cq(context, 0, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(context, device.max_cqe + 1, NULL, NULL, 0) && errno == EINVAL);
	/* The maximum size and each completion vector are accepted. */
	CHECK(!ibv_destroy_cq(make_cq(device.max_cqe)) && context->num_comp_vectors >= 2);
	for (int vector = -1; vector <= context->num_comp_vectors; vector++) {
		struct ibv_cq *of_vector = ibv_create_cq(context, 1, NULL, NULL, vector);
		if (vector >= 0 && vector < context->num_comp_vectors)
			CHECK(of_vector && !ibv_destroy_cq(of_vector));
		else
			CHECK(!of_vector && errno == EINVAL);
	}
	CHECK(!ibv_resize_cq(cq, device.max_cqe) && cq->cqe == device.max_cqe);
	CHECK(!ibv_resize_cq(cq, 5) && cq->cqe == 5);
	CHECK(next_of(cq).wr_id == 0);
	CHECK(!post_recv(qp, 5));
	CHECK(!ibv_resize_cq(cq, 7) && cq->cqe == 7);
	CHECK(!post_recv(qp, 6) && !post_recv(qp, 7));
	CHECK(!overflows());
	for (int at = 1; at < 8; at++)
		CHECK(next_of(cq).wr_id == (uint64_t)at);
	nothing_in(cq);
	/* With the minimum size, the second completion is one too many. */
	CHECK(!ibv_resize_cq(cq, 1));
	CHECK(!post_recv(qp, 8) && !overflows());
	CHECK(!post_recv(qp, 9) && overflows());
	CHECK(next_of(cq).wr_id == 8);
	nothing_in(cq);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
}

/* A poll removes the requested number of completions, or all completions if there are fewer. */
static void polls_of_many(void)
{
	enum { COUNT = 50 };
	struct ibv_cq *cq = make_cq(COUNT);
	struct ibv_qp *qp = make_qp(pd, cq, COUNT);
	struct ibv_wc wcs[COUNT + 1];
	to_error(qp);
	const int asks[] = { 0, 1, 2, 3, 16, 17, 32, 33, COUNT, COUNT + 1 };
	for (size_t at = 0; at < sizeof(asks) / sizeof(*asks); at++) {
		for (int i = 0; i < COUNT; i++)
			CHECK(!post_recv(qp, i));
		int first = asks[at] < COUNT ? asks[at] : COUNT;
		CHECK(ibv_poll_cq(cq, asks[at], wcs) == first);
		CHECK(ibv_poll_cq(cq, COUNT + 1, wcs + first) == COUNT - first);
		for (int i = 0; i < COUNT; i++)
			CHECK(wcs[i].wr_id == (uint64_t)i && wcs[i].qp_num == qp->qp_num);
		nothing_in(cq);
	}
	CHECK(ibv_poll_cq(cq, -1, wcs) < 0);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
}

int main(void)
{
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)));
	two_depths();
	resized();
	polls_of_many();
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	puts("queues have their sizes");
	return 0;
}
