/*
 * Tests the calls and events of a connection, and the states of its queue pairs. A queue pair is in RTS when
 * `rdma_accept` returns. Programs can post sends at once, and the library sends them as soon as MPA allows. After
 * `rdma_disconnect` and after a change to ERR, programs can still post sends, which are flushed after all earlier
 * requests.
 */
#include <string.h>

#include "cm.h"

enum { DEPTH = 16, PORT = 7471, ROUNDS = 50 };

static const struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };

/* Whether the state in the struct and the state that the library reports are both `state`. */
static int is_in(struct ibv_qp *qp, enum ibv_qp_state state)
{
	return qp->state == state && state_of(qp) == state;
}

struct pair {
	struct rdma_cm_id *server, *client;
};

/* Accepts the next request with a queue pair, and posts a send at once. */
static struct pair accept_and_send(struct rdma_event_channel *servers, struct rdma_event_channel *clients)
{
	struct pair pair = { .client = resolve(clients, "127.0.0.1", PORT) };
	struct rdma_conn_param of_end = param;
	give_qp(pair.client, DEPTH);
	CHECK(!post_empty_recv(pair.client->qp, 10));
	of_end.private_data = "ask";
	of_end.private_data_len = 3;
	CHECK(!rdma_connect(pair.client, &of_end));
	struct rdma_cm_event *event = next_event(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->param.conn.private_data_len == 3 && !memcmp(event->param.conn.private_data, "ask", 3));
	pair.server = event->id;
	rdma_ack_cm_event(event);
	give_qp(pair.server, DEPTH);
	CHECK(!post_empty_recv(pair.server->qp, 20));
	CHECK(is_in(pair.server->qp, IBV_QPS_INIT));
	CHECK(rdma_get_dst_port(pair.server) == rdma_get_src_port(pair.client));
	CHECK(rdma_get_src_port(pair.server) == htons(PORT));
	CHECK(rdma_disconnect(pair.server) && errno == ENOTCONN);
	of_end.private_data = "answer";
	of_end.private_data_len = 6;
	CHECK(!rdma_accept(pair.server, &of_end));
	CHECK(is_in(pair.server->qp, IBV_QPS_RTS));
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(pair.server->qp, &attr, IBV_QP_MAX_QP_RD_ATOMIC, &init) && attr.max_rd_atomic == 1);
	CHECK(!post_empty_send(pair.server->qp, 21));
	event = next_event(clients, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->param.conn.private_data_len == 6 && !memcmp(event->param.conn.private_data, "answer", 6));
	rdma_ack_cm_event(event);
	CHECK(is_in(pair.client->qp, IBV_QPS_RTS));
	CHECK(!post_empty_send(pair.client->qp, 11));
	pass_event(servers, RDMA_CM_EVENT_ESTABLISHED);
	expect(pair.client->recv_cq, 10, IBV_WC_SUCCESS);
	expect(pair.server->recv_cq, 20, IBV_WC_SUCCESS);
	expect(pair.client->send_cq, 11, IBV_WC_SUCCESS);
	expect(pair.server->send_cq, 21, IBV_WC_SUCCESS);
	return pair;
}

static void end(struct pair pair)
{
	destroy(pair.client);
	destroy(pair.server);
}

/* After a graceful end, the new sends of both ends are flushed, before and after the disconnect event. */
static void sends_behind_disconnect(struct rdma_event_channel *servers, struct rdma_event_channel *clients)
{
	struct pair pair = accept_and_send(servers, clients);
	struct rdma_cm_event *event;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK(!post_empty_recv(pair.server->qp, 30));
	CHECK(!post_empty_send(pair.client->qp, 31));
	CHECK(!rdma_disconnect(pair.client));
	CHECK(!post_empty_send(pair.client->qp, 32) && !post_empty_send(pair.client->qp, 33));
	/* Requests that are posted before the call are sent, and requests that are posted after the call are not
	 * sent. */
	expect(pair.server->recv_cq, 30, IBV_WC_SUCCESS);
	expect(pair.client->send_cq, 31, IBV_WC_SUCCESS);
	expect(pair.client->send_cq, 32, IBV_WC_WR_FLUSH_ERR);
	expect(pair.client->send_cq, 33, IBV_WC_WR_FLUSH_ERR);
	event = next_event(clients, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(event->status == 0);
	rdma_ack_cm_event(event);
	event = next_event(servers, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(event->status == 0);
	rdma_ack_cm_event(event);
	for (int i = 0; i < 2; i++) {
		struct rdma_cm_id *id = i ? pair.server : pair.client;
		CHECK(is_in(id->qp, IBV_QPS_ERR));
		CHECK(!post_empty_send(id->qp, 40));
		expect(id->send_cq, 40, IBV_WC_WR_FLUSH_ERR);
		/* The connection has already ended, so the call succeeds without effect. */
		CHECK(!rdma_disconnect(id));
		CHECK(!ibv_modify_qp(id->qp, &attr, IBV_QP_STATE));
		CHECK(!post_empty_send(id->qp, 41) && !post_empty_recv(id->qp, 42));
		expect(id->send_cq, 41, IBV_WC_WR_FLUSH_ERR);
		expect(id->recv_cq, 42, IBV_WC_WR_FLUSH_ERR);
	}
	end(pair);
}

/*
 * Sends that are posted after the change to ERR are flushed in order, with or without a call of
 * `rdma_disconnect`. The peer does not receive these Sends.
 */
static void sends_behind_error(struct rdma_event_channel *servers, struct rdma_event_channel *clients, int disconnects)
{
	struct pair pair = accept_and_send(servers, clients);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK(!post_empty_recv(pair.server->qp, 50));
	if (disconnects)
		CHECK(!rdma_disconnect(pair.client));
	CHECK(!ibv_modify_qp(pair.client->qp, &attr, IBV_QP_STATE));
	CHECK(is_in(pair.client->qp, IBV_QPS_ERR));
	for (int i = 0; i < DEPTH; i++)
		CHECK(!post_empty_send(pair.client->qp, 60 + i));
	/* The queue is full. */
	CHECK(post_empty_send(pair.client->qp, 99));
	for (int i = 0; i < DEPTH; i++)
		expect(pair.client->send_cq, 60 + i, IBV_WC_WR_FLUSH_ERR);
	CHECK(!post_empty_send(pair.client->qp, 98));
	expect(pair.client->send_cq, 98, IBV_WC_WR_FLUSH_ERR);
	expect(pair.server->recv_cq, 50, IBV_WC_WR_FLUSH_ERR);
	pass_event(clients, RDMA_CM_EVENT_DISCONNECTED);
	pass_event(servers, RDMA_CM_EVENT_DISCONNECTED);
	end(pair);
}

int main(void)
{
	struct rdma_event_channel *servers = rdma_create_event_channel(), *clients = rdma_create_event_channel();
	CHECK(servers && clients);
	struct rdma_cm_id *listener = listen_at(servers, "127.0.0.1", PORT);
	for (int round = 0; round < ROUNDS; round++)
		end(accept_and_send(servers, clients));
	sends_behind_disconnect(servers, clients);
	sends_behind_error(servers, clients, 0);
	sends_behind_error(servers, clients, 1);
	destroy(listener);
	CHECK(is_silent(servers) && is_silent(clients));
	rdma_destroy_event_channel(servers);
	rdma_destroy_event_channel(clients);
	puts("sends are taken from the acceptance on, and after the end");
	return 0;
}
