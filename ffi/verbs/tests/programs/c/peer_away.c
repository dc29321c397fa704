/*
 * Tests queue pairs whose peer is missing. A request fails after the time of the retries that the program allows,
 * even while the program sleeps. Without a timeout the request waits. A peer that connects in time is reached, but a
 * peer in ERR is not reached. If the peer is destroyed, a request also fails only after a time.
 */
#include <string.h>
#include <time.h>

#include "common.h"

static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t memory[4096];

static double now(void)
{
	struct timespec at;
	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec + at.tv_nsec / 1e9;
}

/* Sleeps until the next completion. */
static void completion(struct ibv_qp *qp, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc;
	while (!ibv_poll_cq(cq, 1, &wc)) {
		struct ibv_cq *of;
		void *context;
		CHECK(!ibv_req_notify_cq(cq, 0));
		if (ibv_poll_cq(cq, 1, &wc))
			break;
		CHECK(!ibv_get_cq_event(channel, &of, &context));
		ibv_ack_cq_events(of, 1);
	}
	if (wc.status != status || wc.wr_id != wr_id)
		fprintf(stderr, "request %d: %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status));
	CHECK(wc.qp_num == qp->qp_num && wc.wr_id == wr_id && wc.status == status);
}

static void post_write(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 8;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

static void post_recv(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_recv_wr *bad, wr = { .wr_id = wr_id };
	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

/* The end with the larger number waits, and its peer does not connect. */
static void nobody_connects(void)
{
	struct ibv_qp *away = make_qp(pd, cq, 8), *near = make_qp(pd, cq, 8);
	CHECK(away->qp_num < near->qp_num);
	connect_qp(near, away->qp_num);
	post_write(near, 2);
	completion(near, 2, IBV_WC_RETRY_EXC_ERR);
	CHECK(!ibv_destroy_qp(away) && !ibv_destroy_qp(near));
}

static void reset(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	init_qp(qp);
}

/* Connects `qp` to `peer` without a timeout, and posts a Write. */
static void write_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
	to_rtr(qp, peer->qp_num, 12);
	to_rts(qp, 0, 7);
	post_write(qp, 1);
}

/*
 * The end with the larger number waits only for its own peer: a third queue pair that connects to this end is not
 * accepted. A reset of one of the ends also ends the connection attempt.
 */
static void who_is_waited_for(void)
{
	for (int way = 0; way < 3; way++) {
		struct ibv_qp *peer = make_qp(pd, cq, 8), *other = make_qp(pd, cq, 8), *waits = make_qp(pd, cq, 8);
		CHECK(peer->qp_num < waits->qp_num && other->qp_num < waits->qp_num);
		switch (way) {
		case 0:
			write_to(waits, peer);
			to_rtr(other, waits->qp_num, 12);
			usleep(200000);
			nothing_in(cq);
			to_rtr(peer, waits->qp_num, 12);
			break;
		case 1:
			/* A reset ends the wait, and RTR starts the wait again. */
			to_rtr(waits, peer->qp_num, 12);
			reset(waits);
			to_rtr(peer, waits->qp_num, 12);
			usleep(200000);
			write_to(waits, peer);
			break;
		case 2:
			/* The second attempt of the peer replaces the first attempt. */
			to_rtr(peer, waits->qp_num, 12);
			usleep(200000);
			reset(peer);
			to_rtr(peer, waits->qp_num, 12);
			usleep(200000);
			write_to(waits, peer);
			break;
		}
		completion(waits, 1, IBV_WC_SUCCESS);
		/* Each end serves the number of Reads that it has set, and has at most as many Reads outstanding as the
		 * other end serves. */
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;
		CHECK(!ibv_query_qp(waits, &attr, IBV_QP_MAX_DEST_RD_ATOMIC, &init));
		CHECK(attr.max_dest_rd_atomic == 8 && attr.max_rd_atomic == 8);
		CHECK(!ibv_destroy_qp(peer) && !ibv_destroy_qp(other) && !ibv_destroy_qp(waits));
	}
}

/* After the peer is destroyed, a request fails after its retries, and then the posted receive is flushed. */
static void peer_is_destroyed(void)
{
	struct ibv_qp *first = make_qp(pd, cq, 8), *second = make_qp(pd, cq, 8);
	connect_qp(first, second->qp_num);
	connect_qp(second, first->qp_num);
	post_write(first, 1);
	completion(first, 1, IBV_WC_SUCCESS);
	CHECK(!ibv_destroy_qp(second));
	post_recv(first, 7);
	double begun = now();
	post_write(first, 2);
	usleep(100000);
	nothing_in(cq);
	completion(first, 2, IBV_WC_RETRY_EXC_ERR);
	double took = now() - begun;
	fprintf(stderr, "failed after %.2f s\n", took);
	/* The retries began when the peer ended, a little before `begun`. */
	CHECK(took > 0.4 && took < 20);
	completion(first, 7, IBV_WC_WR_FLUSH_ERR);
	CHECK(!ibv_destroy_qp(first));
}

int main(void)
{
	struct ibv_context *context = open_device();
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((channel = ibv_create_comp_channel(context)));
	CHECK((cq = ibv_create_cq(context, 64, NULL, channel, 0)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));

	nobody_connects();
	peer_is_destroyed();
	who_is_waited_for();
	/* Each end has the smaller number once. The end with the smaller number connects, and the other end waits. */
	for (int turn = 0; turn < 2; turn++) {
		struct ibv_qp *first = make_qp(pd, cq, 8), *second = make_qp(pd, cq, 8);
		struct ibv_qp *near = turn ? second : first, *away = turn ? first : second;
		struct ibv_qp *patient = make_qp(pd, cq, 8), *never = make_qp(pd, cq, 8);
		connect_qp(near, away->qp_num);
		to_rtr(patient, never->qp_num, 12);
		to_rts(patient, 0, 7);
		post_recv(near, 7);
		post_write(patient, 1);
		double begun = now();
		post_write(near, 2);
		post_write(near, 3);
		completion(near, 2, IBV_WC_RETRY_EXC_ERR);
		double took = now() - begun;
		fprintf(stderr, "failed after %.2f s\n", took);
		CHECK(took > 0.53 && took < 20);
		completion(near, 3, IBV_WC_WR_FLUSH_ERR);
		completion(near, 7, IBV_WC_WR_FLUSH_ERR);
		CHECK(state_of(near) == IBV_QPS_ERR && state_of(patient) == IBV_QPS_RTS);
		/* The peer connects late, and the request succeeds. */
		to_rtr(never, patient->qp_num, 12);
		completion(patient, 1, IBV_WC_SUCCESS);
		CHECK(!ibv_destroy_qp(first) && !ibv_destroy_qp(second));
		CHECK(!ibv_destroy_qp(patient) && !ibv_destroy_qp(never));

		/* The peer has failed before it was connected. */
		first = make_qp(pd, cq, 8), second = make_qp(pd, cq, 8);
		near = turn ? second : first, away = turn ? first : second;
		connect_qp(near, away->qp_num);
		connect_qp(away, near->qp_num);
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
		CHECK(!ibv_modify_qp(away, &attr, IBV_QP_STATE));
		post_recv(near, 7);
		post_write(near, 2);
		completion(near, 2, IBV_WC_RETRY_EXC_ERR);
		completion(near, 7, IBV_WC_WR_FLUSH_ERR);
		CHECK(state_of(near) == IBV_QPS_ERR);
		CHECK(!ibv_destroy_qp(first) && !ibv_destroy_qp(second));
	}
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	puts("peers that are away are given up in time");
	return 0;
}
