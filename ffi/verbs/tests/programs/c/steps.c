/*
 * Tests the state that a program sees between two steps of the engine. Without the library's thread
 * (UWARP_THREAD=caller), the engine advances only in calls that poll or wait, so nothing changes between such calls.
 */
#include <string.h>

#include "cm.h"

enum { PORT = 7471, DEPTH = 4 };

static uint8_t memory[64];

/* Returns the state from a query, which has to equal the state in the struct. */
static enum ibv_qp_state both_states(struct ibv_qp *qp)
{
	enum ibv_qp_state state = state_of(qp);
	CHECK(qp->state == state);
	return state;
}

static void post_recv(struct ibv_qp *qp, struct ibv_mr *mr, uint64_t wr_id, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)memory, length, mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };
	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static void post(struct ibv_qp *qp, uint64_t wr_id, enum ibv_wr_opcode opcode, uint32_t lkey, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = opcode };
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 32;
	wr.wr.rdma.rkey = rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

/*
 * A queue pair that is connected to itself has two ends in the library, which fail one after the other. The program
 * sees the queue pair in ERR at the first failed completion, whichever end failed, and both of its queues are
 * flushed.
 */
static void connected_to_itself(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0);
	CHECK(pd && cq);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	/* The four ways are a key unknown to the sender, a key unknown to the receiver, a receive that is too short,
	 * and no receive. */
	for (int way = 0; way < 4; way++) {
		struct ibv_qp *qp = make_qp(pd, cq, DEPTH);
		to_rtr(qp, qp->qp_num, 1);
		to_rts(qp, 14, 1);
		post_recv(qp, mr, 1, 8);
		post(qp, 2, IBV_WR_SEND, mr->lkey, 0);
		for (int i = 0; i < 2; i++)
			CHECK(next_of(cq).status == IBV_WC_SUCCESS && both_states(qp) == IBV_QPS_RTS);
		if (way < 3) {
			post_recv(qp, mr, 3, way == 2 ? 7 : 8);
			post_recv(qp, mr, 4, 8);
		}
		post(qp, 5, way == 1 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND, way == 0 ? mr->lkey + 256 : mr->lkey,
		     way == 1 ? mr->rkey + 256 : 0);
		post(qp, 6, IBV_WR_SEND, mr->lkey, 0);
		unsigned seen = 0;
		for (int i = 0; i < (way < 3 ? 4 : 2); i++) {
			struct ibv_wc wc = next_of(cq);
			enum ibv_qp_state state = both_states(qp);
			if (wc.status == IBV_WC_SUCCESS || state != IBV_QPS_ERR)
				fprintf(stderr, "way %d: request %d: %s, state %d\n", way, (int)wc.wr_id,
					ibv_wc_status_str(wc.status), state);
			CHECK(wc.status != IBV_WC_SUCCESS && state == IBV_QPS_ERR);
			/* Only the failed request and the receive that was too short have an error other than flushed. */
			CHECK((wc.status == IBV_WC_WR_FLUSH_ERR) == !(wc.wr_id == 5 || (wc.wr_id == 3 && way == 2)));
			seen |= 1u << wc.wr_id;
		}
		CHECK(seen == ((way < 3 ? 1u << 3 | 1u << 4 : 0) | 1u << 5 | 1u << 6));
		nothing_in(cq);
		CHECK(!ibv_destroy_qp(qp));
	}
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
}

/* When ibv_destroy_qp returns, the peer's memory has the bytes of all posted requests. */
static void destroyed(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0);
	CHECK(pd && cq);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp *qp = make_qp(pd, cq, DEPTH), *peer = make_qp(pd, cq, DEPTH);
	CHECK(mr);
	connect_qp(qp, peer->qp_num);
	connect_qp(peer, qp->qp_num);
	memset(memory, 1, 8);
	post(qp, 1, IBV_WR_RDMA_WRITE, mr->lkey, mr->rkey);
	CHECK(next_of(cq).status == IBV_WC_SUCCESS);
	memset(memory, 2, 8);
	post(qp, 2, IBV_WR_RDMA_WRITE, mr->lkey, mr->rkey);
	CHECK(!ibv_destroy_qp(qp));
	CHECK(memory[32] == 2 && memory[39] == 2);
	CHECK(!ibv_destroy_qp(peer) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
}

/* Waits in the call, not at the descriptor, so that the engine advances. Returns the event's identifier. */
static struct rdma_cm_id *take(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(channel, &event) && event->event == type);
	struct rdma_cm_id *id = event->id;
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

/*
 * Between rdma_accept and RDMA_CM_EVENT_ESTABLISHED, a program may drain the queue pair or end the
 * connection. The event does not undo the drain.
 */
static void accepted(void)
{
	static struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_event_channel *servers = rdma_create_event_channel(), *clients = rdma_create_event_channel();
	CHECK(servers && clients);
	struct rdma_cm_id *listener = listen_at(servers, "127.0.0.1", PORT);
	for (int ends = 0; ends < 2; ends++) {
		struct rdma_cm_id *client = resolve(clients, "127.0.0.1", PORT), *server;
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD };
		give_qp(client, DEPTH);
		CHECK(!rdma_connect(client, &param));
		server = take(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
		give_qp(server, DEPTH);
		CHECK(!rdma_accept(server, &param) && both_states(server->qp) == IBV_QPS_RTS);
		if (ends) {
			CHECK(!rdma_disconnect(server));
		} else {
			CHECK(!ibv_modify_qp(server->qp, &attr, IBV_QP_STATE));
			take(clients, RDMA_CM_EVENT_ESTABLISHED);
			take(servers, RDMA_CM_EVENT_ESTABLISHED);
			CHECK(both_states(server->qp) == IBV_QPS_SQD);
			/* A send that is posted now waits. */
			CHECK(!post_empty_recv(client->qp, 1) && !post_empty_send(server->qp, 2));
			nothing_in(server->send_cq);
			attr.qp_state = IBV_QPS_RTS;
			CHECK(!ibv_modify_qp(server->qp, &attr, IBV_QP_STATE));
			expect(server->send_cq, 2, IBV_WC_SUCCESS);
			expect(client->recv_cq, 1, IBV_WC_SUCCESS);
		}
		destroy(client);
		destroy(server);
	}
	destroy(listener);
	rdma_destroy_event_channel(servers);
	rdma_destroy_event_channel(clients);
}

int main(void)
{
	CHECK(!setenv("UWARP_THREAD", "caller", 1));
	struct ibv_context *context = open_device();
	connected_to_itself(context);
	destroyed(context);
	accepted();
	CHECK(!ibv_close_device(context));
	puts("each step shows what it did");
	return 0;
}
