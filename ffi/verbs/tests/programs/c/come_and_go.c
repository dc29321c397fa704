/*
 * Tests queue pairs that are destroyed or reset, while other queue pairs use the same completion queues. As with a
 * hardware device, the posted requests of such a queue pair get no completion and no event. Its unpolled completions
 * are dropped: they take no room, and their requests in a shared receive queue are free.
 */
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_verbs.h>

#include "common.h"

enum { ENTRIES = 16 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_comp_channel *channel;
static uint8_t memory[64];

static int post_recv(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	return qp->srq ? ibv_post_srq_recv(qp->srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
}

static void post_send(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	wr.send_flags = IBV_SEND_SIGNALED;
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

static void no_event(void)
{
	struct pollfd waits = { channel->fd, POLLIN, 0 };
	CHECK(!poll(&waits, 1, 100));
}

static void an_event(struct ibv_cq *cq)
{
	struct pollfd waits = { channel->fd, POLLIN, 0 };
	struct ibv_cq *of;
	void *user;
	CHECK(poll(&waits, 1, 60000) == 1);
	CHECK(!ibv_get_cq_event(channel, &of, &user) && of == cq);
	ibv_ack_cq_events(of, 1);
}

static void connect_both(struct ibv_qp *a, struct ibv_qp *b)
{
	connect_qp(a, b->qp_num);
	connect_qp(b, a->qp_num);
}

static void modify(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

static struct ibv_qp *make(struct ibv_cq *send, struct ibv_cq *recv, struct ibv_srq *srq, uint32_t depth)
{
	struct ibv_qp_init_attr init = qp_init(send, srq, depth);
	init.recv_cq = recv;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	init_qp(qp);
	return qp;
}

/* A queue pair that is connected to itself still works after many other queue pairs have used its completion
 * queue and were destroyed. */
static void others_come_and_go(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, ENTRIES, NULL, channel, 0);
	struct ibv_cq *other = ibv_create_cq(context, ENTRIES, NULL, NULL, 0);
	CHECK(cq && other);
	struct ibv_qp *keeper = make(cq, cq, NULL, 2);
	connect_qp(keeper, keeper->qp_num);
	CHECK(!ibv_req_notify_cq(cq, 0));
	for (int round = 0; round < 16; round++) {
		/* The bits of `round` choose a connected peer, sends, a reset, and another queue for the completions of
		 * sends. */
		struct ibv_qp *qp = make(round & 8 ? other : cq, cq, NULL, 4);
		struct ibv_qp *peer = make(other, other, NULL, 4);
		if (round & 1)
			connect_both(qp, peer);
		for (int i = 0; i < 4; i++)
			CHECK(!post_recv(qp, 100 + i));
		if (round & 2) {
			if (!(round & 1))
				connect_qp(qp, peer->qp_num);
			for (int i = 0; i < 4; i++)
				post_send(qp, 200 + i);
		}
		if (round & 4) {
			modify(qp, IBV_QPS_RESET);
			init_qp(qp);
			CHECK(!post_recv(qp, 300));
		}
		CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(peer));
		nothing_in(other);
	}
	no_event();
	nothing_in(cq);
	CHECK(state_of(keeper) == IBV_QPS_RTS);
	CHECK(!post_recv(keeper, 1));
	post_send(keeper, 2);
	for (int i = 0; i < 2; i++)
		CHECK(next_of(cq).status == IBV_WC_SUCCESS);
	an_event(cq);
	CHECK(!ibv_destroy_qp(keeper) && !ibv_destroy_cq(cq) && !ibv_destroy_cq(other));
}

/* Unpolled completions are dropped with their queue pair. The completions of other queue pairs are kept in order. */
static void unpolled_completions_go(void)
{
	for (int way = 0; way < 2; way++) {
		struct ibv_cq *cq = ibv_create_cq(context, ENTRIES, NULL, channel, 0);
		CHECK(cq);
		struct ibv_qp *goes = make(cq, cq, NULL, 4), *stays = make(cq, cq, NULL, 16);
		for (int i = 0; i < 4; i++)
			CHECK(!post_recv(goes, i) && !post_recv(stays, 10 + i));
		modify(goes, IBV_QPS_ERR);
		modify(stays, IBV_QPS_ERR);
		if (way) {
			modify(goes, IBV_QPS_RESET);
			init_qp(goes);
		} else {
			CHECK(!ibv_destroy_qp(goes));
		}
		/* The room of the dropped completions is free: the queue holds as many completions as it has entries. */
		for (int i = 4; i < ENTRIES; i++)
			CHECK(!post_recv(stays, 10 + i));
		for (int i = 0; i < ENTRIES; i++) {
			struct ibv_wc wc = next_of(cq);
			CHECK(wc.wr_id == 10u + i && wc.status == IBV_WC_WR_FLUSH_ERR && wc.qp_num == stays->qp_num);
		}
		nothing_in(cq);
		if (way) {
			/* After RESET, completions of the queue pair have its number. */
			CHECK(!post_recv(goes, 7));
			modify(goes, IBV_QPS_ERR);
			struct ibv_wc wc = next_of(cq);
			CHECK(wc.wr_id == 7 && wc.qp_num == goes->qp_num);
			CHECK(!ibv_destroy_qp(goes));
		}
		CHECK(!ibv_destroy_qp(stays) && !ibv_destroy_cq(cq));
	}
}

/* Requests of a shared receive queue are freed when their completions are dropped with a queue pair. */
static void shared_requests_are_free(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_cq *cq = ibv_create_cq(context, ENTRIES, NULL, NULL, 0);
	struct ibv_cq *unpolled = ibv_create_cq(context, ENTRIES, NULL, NULL, 0);
	CHECK(srq && cq && unpolled);
	for (int round = 0; round < 8; round++) {
		struct ibv_qp *to = make(unpolled, unpolled, srq, 4), *from = make(cq, cq, NULL, 4);
		for (int i = 0; i < 4; i++)
			CHECK(!post_recv(to, i));
		CHECK(post_recv(to, 4) == ENOMEM);
		connect_both(to, from);
		/* The completion of a send means that its message was received. */
		for (int i = 0; i < 4; i++)
			post_send(from, 10 + i);
		for (int i = 0; i < 4; i++)
			CHECK(next_of(cq).status == IBV_WC_SUCCESS);
		/* All requests are in use, and each is freed only with its completion. */
		CHECK(post_recv(to, 9) == ENOMEM);
		CHECK(!ibv_destroy_qp(to) && !ibv_destroy_qp(from));
	}
	nothing_in(unpolled);
	CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_cq(cq) && !ibv_destroy_cq(unpolled));
}

/* Tests the same for the queue pair of an identifier, with rdma_destroy_qp and rdma_destroy_ep. */
static void queue_pairs_of_identifiers(void)
{
	struct ibv_cq *cq = NULL;
	for (int way = 0; way < 2; way++) {
		for (int round = 0; round < 8; round++) {
			struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found;
			struct rdma_cm_id *id;
			CHECK(!rdma_getaddrinfo("127.0.0.1", "7999", &hints, &found));
			CHECK(!rdma_create_ep(&id, found, NULL, NULL));
			rdma_freeaddrinfo(found);
			if (!cq) {
				CHECK(cq = ibv_create_cq(id->verbs, 8, NULL, NULL, 0));
			}
			struct ibv_qp_init_attr init = qp_init(cq, NULL, 4);
			CHECK(!rdma_create_qp(id, NULL, &init));
			for (int i = 0; i < 4; i++) {
				struct ibv_recv_wr wr = { .wr_id = i }, *bad;
				CHECK(!ibv_post_recv(id->qp, &wr, &bad));
			}
			if (way == 0) {
				rdma_destroy_qp(id);
				CHECK(!rdma_destroy_id(id));
			} else {
				rdma_destroy_ep(id);
			}
		}
		nothing_in(cq);
	}
	/* The completion queue still works: the requests of another queue pair complete on it. */
	struct ibv_pd *domain = ibv_alloc_pd(cq->context);
	struct ibv_qp_init_attr init = qp_init(cq, NULL, 8);
	struct ibv_qp *qp = ibv_create_qp(domain, &init);
	CHECK(qp);
	CHECK(!ibv_destroy_qp(qp) && !ibv_dealloc_pd(domain) && !ibv_destroy_cq(cq));
}

int main(void)
{
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE)));
	CHECK((channel = ibv_create_comp_channel(context)));
	others_come_and_go();
	unpolled_completions_go();
	shared_requests_are_free();
	queue_pairs_of_identifiers();
	CHECK(!ibv_destroy_comp_channel(channel) && !ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	puts("what is destroyed leaves nothing behind");
	return 0;
}
