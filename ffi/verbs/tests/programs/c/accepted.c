/*
 * Tests the calls and events of a connection, and the states of its queue pairs. A queue pair is in RTS when
 * `rdma_accept` returns, also if the identifier has moved to another channel, and if the program has made the queue
 * pair without the identifier. Programs can post sends at once, and the library sends them as soon as MPA allows.
 * After `rdma_disconnect` and after a change to ERR, programs can still post requests, which are flushed after all
 * earlier requests, by whichever call they are posted.
 */
#include <rdma/rdma_verbs.h>
#include <string.h>

#include "cm.h"

enum { DEPTH = 16, PORT = 7471, ROUNDS = 30 };

static const struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };

/* Whether the state in the struct and the state that the library reports are both `state`. */
static int is_in(struct ibv_qp *qp, enum ibv_qp_state state)
{
	return qp->state == state && state_of(qp) == state;
}

/* The server's queue pair is made by rdma_create_qp, by rdma_create_qp_ex for the calls ibv_wr_*, or by
 * ibv_create_qp. In the last case the identifier does not have the queue pair, and rdma_accept gets its number. */
enum kind { OF_ID, EXTENDED, OWN, KINDS };

struct pair {
	struct rdma_cm_id *server, *client;
	/* The server's queue pair, which `server` may not have. */
	struct ibv_qp *qp;
};

/* Makes a queue pair that takes the calls ibv_wr_*. */
static void give_extended_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr plain = qp_init(NULL, NULL, DEPTH);
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_RC, .cap = plain.cap };
	CHECK((init.send_cq = ibv_create_cq(id->verbs, DEPTH, NULL, NULL, 0)));
	CHECK((init.recv_cq = ibv_create_cq(id->verbs, DEPTH, NULL, NULL, 0)));
	init.cap.max_inline_data = 16;
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	init.send_ops_flags = IBV_QP_EX_WITH_SEND;
	init.pd = id->pd;
	CHECK(!rdma_create_qp_ex(id, &init));
}

/* Makes a queue pair without the identifier, and moves it to INIT. */
static struct ibv_qp *make_own_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = qp_init(ibv_create_cq(id->verbs, DEPTH, NULL, NULL, 0), NULL, DEPTH);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	struct ibv_qp *qp;
	int mask;
	CHECK((init.recv_cq = ibv_create_cq(id->verbs, DEPTH, NULL, NULL, 0)));
	CHECK(init.send_cq && (qp = ibv_create_qp(id->pd, &init)) && !id->qp);
	CHECK(!rdma_init_qp_attr(id, &attr, &mask) && !ibv_modify_qp(qp, &attr, mask));
	return qp;
}

/* Accepts the next request with a queue pair, and posts a send at once. If `moved_to` is a channel, the server's
 * identifier moves there before. */
static struct pair accept_by(struct rdma_event_channel *servers, struct rdma_event_channel *clients, enum kind kind,
			     struct rdma_event_channel *moved_to)
{
	struct pair pair = { .client = resolve(clients, "127.0.0.1", PORT) };
	struct rdma_conn_param of_end = param;
	if (kind == EXTENDED)
		give_extended_qp(pair.client);
	else
		give_qp(pair.client, DEPTH);
	CHECK(!post_empty_recv(pair.client->qp, 10));
	of_end.private_data = "ask";
	of_end.private_data_len = 3;
	CHECK(!rdma_connect(pair.client, &of_end));
	struct rdma_cm_event *event = next_event(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(event->param.conn.private_data_len == 3 && !memcmp(event->param.conn.private_data, "ask", 3));
	pair.server = event->id;
	rdma_ack_cm_event(event);
	if (moved_to)
		CHECK(!rdma_migrate_id(pair.server, moved_to) && pair.server->channel == moved_to);
	if (kind == OWN)
		pair.qp = make_own_qp(pair.server);
	else if (kind == EXTENDED)
		give_extended_qp(pair.server);
	else
		give_qp(pair.server, DEPTH);
	if (kind != OWN)
		pair.qp = pair.server->qp;
	CHECK(!post_empty_recv(pair.qp, 20));
	CHECK(is_in(pair.qp, IBV_QPS_INIT));
	CHECK(rdma_get_dst_port(pair.server) == rdma_get_src_port(pair.client));
	CHECK(rdma_get_src_port(pair.server) == htons(PORT));
	CHECK(rdma_disconnect(pair.server) && errno == ENOTCONN);
	of_end.private_data = "answer";
	of_end.private_data_len = 6;
	of_end.qp_num = pair.qp->qp_num;
	CHECK(!rdma_accept(pair.server, &of_end));
	CHECK(is_in(pair.qp, IBV_QPS_RTS));
	CHECK(!post_empty_send(pair.qp, 21));
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(pair.qp, &attr, IBV_QP_MAX_QP_RD_ATOMIC, &init) && attr.max_rd_atomic == 1);
	event = next_event(clients, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->param.conn.private_data_len == 6 && !memcmp(event->param.conn.private_data, "answer", 6));
	rdma_ack_cm_event(event);
	CHECK(is_in(pair.client->qp, IBV_QPS_RTS));
	CHECK(!post_empty_send(pair.client->qp, 11));
	pass_event(moved_to ? moved_to : servers, RDMA_CM_EVENT_ESTABLISHED);
	expect(pair.client->recv_cq, 10, IBV_WC_SUCCESS);
	expect(pair.qp->recv_cq, 20, IBV_WC_SUCCESS);
	expect(pair.client->send_cq, 11, IBV_WC_SUCCESS);
	expect(pair.qp->send_cq, 21, IBV_WC_SUCCESS);
	return pair;
}

static struct pair accept_and_send(struct rdma_event_channel *servers, struct rdma_event_channel *clients)
{
	return accept_by(servers, clients, OF_ID, NULL);
}

static void end(struct pair pair)
{
	destroy(pair.client);
	if (!pair.server->qp) {
		struct ibv_cq *cqs[2] = { pair.qp->send_cq, pair.qp->recv_cq };
		CHECK(!ibv_destroy_qp(pair.qp) && !ibv_destroy_cq(cqs[0]) && !ibv_destroy_cq(cqs[1]));
	}
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

/* The calls that post sends. */
enum way { BY_POST, BY_CM, BY_WR, INLINE, INLINE_BY_WR, WAYS };

static int post_by(struct rdma_cm_id *id, enum way way, uint64_t wr_id)
{
	struct ibv_sge sge = { .addr = (uintptr_t) "inline", .length = 6 };
	struct ibv_send_wr *bad, wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	struct ibv_qp_ex *extended = ibv_qp_to_qp_ex(id->qp);
	switch (way) {
	case BY_POST:
		return post_empty_send(id->qp, wr_id);
	case BY_CM:
		return rdma_post_send(id, (void *)(uintptr_t)wr_id, NULL, 0, NULL, IBV_SEND_SIGNALED);
	case INLINE:
		wr.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
		return ibv_post_send(id->qp, &wr, &bad);
	default:
		ibv_wr_start(extended);
		extended->wr_id = wr_id;
		extended->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(extended);
		if (way == INLINE_BY_WR)
			ibv_wr_set_inline_data(extended, "inline", 6);
		else
			ibv_wr_set_sge_list(extended, 0, NULL);
		return ibv_wr_complete(extended);
	}
}

static int post_recv_by(struct rdma_cm_id *id, enum way way, uint64_t wr_id)
{
	return way == BY_CM ? rdma_post_recvv(id, (void *)(uintptr_t)wr_id, NULL, 0) : post_empty_recv(id->qp, wr_id);
}

/* Posts two sends together. The first of them is inline. */
static int post_together(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_qp_ex *extended = ibv_qp_to_qp_ex(qp);
	ibv_wr_start(extended);
	for (int i = 0; i < 2; i++) {
		extended->wr_id = wr_id + i;
		extended->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(extended);
		if (i)
			ibv_wr_set_sge_list(extended, 0, NULL);
		else
			ibv_wr_set_inline_data(extended, "inline", 6);
	}
	return ibv_wr_complete(extended);
}

/* Posts requests by all calls. All of them are flushed, in order. */
static void flushed_by_all_ways(struct rdma_cm_id *id, uint64_t first)
{
	for (enum way way = 0; way < WAYS; way++)
		CHECK(!post_by(id, way, first + way) && !post_recv_by(id, way, first + 10 + way));
	CHECK(!post_together(id->qp, first + WAYS));
	for (enum way way = 0; way < WAYS + 2; way++)
		expect(id->send_cq, first + way, IBV_WC_WR_FLUSH_ERR);
	for (enum way way = 0; way < WAYS; way++)
		expect(id->recv_cq, first + 10 + way, IBV_WC_WR_FLUSH_ERR);
}

/*
 * Requests are flushed by whichever call they are posted, after `rdma_disconnect`, after the change to ERR, or
 * after both, and before and after the event. The end that calls is the client or the server. The peer gets none of
 * the Sends.
 */
static void all_ways(struct rdma_event_channel *servers, struct rdma_event_channel *clients)
{
	for (int row = 0; row < 6; row++) {
		struct pair pair = accept_by(servers, clients, EXTENDED, NULL);
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
		int is_server = row % 2, disconnects = row / 2 != 0, fails = row / 2 != 1;
		struct rdma_cm_id *id = is_server ? pair.server : pair.client;
		struct rdma_cm_id *peer = is_server ? pair.client : pair.server;
		for (enum way way = 0; way < WAYS; way++)
			CHECK(!post_recv_by(peer, way, 70 + way));
		if (disconnects)
			CHECK(!rdma_disconnect(id));
		if (fails)
			CHECK(!ibv_modify_qp(id->qp, &attr, IBV_QP_STATE));
		/* Without the change to ERR, the receives of an end are flushed when its peer has answered. */
		flushed_by_all_ways(id, 100);
		pass_event(clients, RDMA_CM_EVENT_DISCONNECTED);
		pass_event(servers, RDMA_CM_EVENT_DISCONNECTED);
		flushed_by_all_ways(id, 200);
		for (enum way way = 0; way < WAYS; way++)
			expect(peer->recv_cq, 70 + way, IBV_WC_WR_FLUSH_ERR);
		flushed_by_all_ways(peer, 300);
		end(pair);
	}
}

int main(void)
{
	struct rdma_event_channel *servers = rdma_create_event_channel(), *clients = rdma_create_event_channel();
	struct rdma_event_channel *other = rdma_create_event_channel();
	CHECK(servers && clients && other);
	struct rdma_cm_id *listener = listen_at(servers, "127.0.0.1", PORT);
	for (int round = 0; round < ROUNDS; round++)
		for (enum kind kind = 0; kind < KINDS; kind++) {
			end(accept_by(servers, clients, kind, NULL));
			end(accept_by(servers, clients, kind, other));
		}
	sends_behind_disconnect(servers, clients);
	sends_behind_error(servers, clients, 0);
	sends_behind_error(servers, clients, 1);
	all_ways(servers, clients);
	destroy(listener);
	CHECK(is_silent(servers) && is_silent(clients) && is_silent(other));
	rdma_destroy_event_channel(servers);
	rdma_destroy_event_channel(clients);
	rdma_destroy_event_channel(other);
	puts("requests are taken from the acceptance on, and after the end");
	return 0;
}
