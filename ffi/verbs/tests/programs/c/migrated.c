/*
 * Tests identifiers that migrate to another channel: their events move with them, and events of other identifiers
 * stay. The new identifier of a waiting request moves with the listener. The call waits for events that were read.
 * Also tests that the events and the connection of a destroyed identifier end.
 */
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "common.h"

static struct sockaddr_in address = { .sin_family = AF_INET };

static int is_readable(struct rdma_event_channel *channel, int ms)
{
	struct pollfd waits = { channel->fd, POLLIN, 0 };
	int found = poll(&waits, 1, ms);
	CHECK(found >= 0);
	return found;
}

static struct rdma_event_channel *open_channel(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(channel);
	return channel;
}

static struct rdma_cm_id *make(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	return id;
}

static void resolve(struct rdma_cm_id *id)
{
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000));
}

static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type type,
				  struct rdma_cm_id *id)
{
	struct rdma_cm_event *event;
	CHECK(is_readable(channel, 60000));
	CHECK(!rdma_get_cm_event(channel, &event));
	if (event->event != type)
		fprintf(stderr, "%s\n", rdma_event_str(event->event));
	CHECK(event->event == type && (!id || event->id == id));
	return event;
}

static void events_move(void)
{
	struct rdma_event_channel *from = open_channel(), *to = open_channel();
	struct rdma_cm_id *first = make(from), *moves = make(from), *last = make(from), *there = make(to);
	resolve(there);
	resolve(first);
	resolve(moves);
	CHECK(!rdma_resolve_route(moves, 1000));
	resolve(last);
	CHECK(!rdma_migrate_id(moves, to) && moves->channel == to);
	rdma_ack_cm_event(next(to, RDMA_CM_EVENT_ADDR_RESOLVED, there));
	rdma_ack_cm_event(next(to, RDMA_CM_EVENT_ADDR_RESOLVED, moves));
	/* Migrating to the present channel has no effect. */
	resolve(there);
	CHECK(!rdma_migrate_id(moves, to));
	rdma_ack_cm_event(next(to, RDMA_CM_EVENT_ROUTE_RESOLVED, moves));
	rdma_ack_cm_event(next(to, RDMA_CM_EVENT_ADDR_RESOLVED, there));
	CHECK(!is_readable(to, 0));
	rdma_ack_cm_event(next(from, RDMA_CM_EVENT_ADDR_RESOLVED, first));
	rdma_ack_cm_event(next(from, RDMA_CM_EVENT_ADDR_RESOLVED, last));
	CHECK(!is_readable(from, 50));
	/* Later events also arrive at the new channel. */
	CHECK(!rdma_resolve_route(moves, 1000));
	rdma_ack_cm_event(next(to, RDMA_CM_EVENT_ROUTE_RESOLVED, moves));
	/* The identifier migrates back, through a channel of its own. */
	resolve(first);
	CHECK(!rdma_migrate_id(first, NULL));
	CHECK(first->channel != from && !is_readable(from, 50) && is_readable(first->channel, 0));
	CHECK(!rdma_migrate_id(first, from));
	rdma_ack_cm_event(next(from, RDMA_CM_EVENT_ADDR_RESOLVED, first));
	CHECK(!is_readable(from, 0));
	CHECK(!rdma_destroy_id(first) && !rdma_destroy_id(moves) && !rdma_destroy_id(last) && !rdma_destroy_id(there));
	rdma_destroy_event_channel(from);
	rdma_destroy_event_channel(to);
}

/* A synchronous identifier keeps the event of its last call, until the next call or until it moves. */
static void an_event_that_is_kept_holds_nobody(void)
{
	struct rdma_event_channel *channel = open_channel();
	for (int way = 0; way < 2; way++) {
		struct rdma_cm_id *id = make(NULL);
		resolve(id);
		CHECK(id->event && id->event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(!rdma_migrate_id(id, way ? channel : NULL) && !id->event);
		CHECK(!rdma_resolve_route(id, 1000));
		if (way)
			rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED, id));
		else
			CHECK(id->event && id->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
		CHECK(!rdma_destroy_id(id));
	}
	rdma_destroy_event_channel(channel);
}

struct mover {
	struct rdma_cm_id *id;
	struct rdma_event_channel *to;
	atomic_int begun, done;
};

static void *move(void *of)
{
	struct mover *mover = of;
	mover->begun = 1;
	CHECK(!rdma_migrate_id(mover->id, mover->to));
	mover->done = 1;
	return NULL;
}

static void moving_waits_for_acknowledgements(void)
{
	struct rdma_event_channel *from = open_channel(), *to = open_channel();
	struct mover mover = { .id = make(from), .to = to };
	resolve(mover.id);
	struct rdma_cm_event *event = next(from, RDMA_CM_EVENT_ADDR_RESOLVED, mover.id);
	pthread_t thread;
	CHECK(!pthread_create(&thread, NULL, move, &mover));
	while (!mover.begun)
		sched_yield();
	usleep(200000);
	CHECK(!mover.done);
	rdma_ack_cm_event(event);
	CHECK(!pthread_join(thread, NULL) && mover.done);
	CHECK(!rdma_destroy_id(mover.id));
	rdma_destroy_event_channel(from);
	rdma_destroy_event_channel(to);
}

/* The queue pair has its own completion queues. */
static void create_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	CHECK(!rdma_create_qp(id, NULL, &init));
}

/* Listens on this host at a port that the library chooses. Returns the address. */
static struct sockaddr_in listen_at(struct rdma_cm_id *listener)
{
	struct sockaddr_in local = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&local) && !rdma_listen(listener, 1));
	local.sin_port = rdma_get_src_port(listener);
	return local;
}

/* An identifier with a queue pair that connects to the address. */
static struct rdma_cm_id *connect_to(struct sockaddr_in to, struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = make(channel);
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000));
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ADDR_RESOLVED, id));
	CHECK(!rdma_resolve_route(id, 1000));
	rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED, id));
	create_qp(id);
	CHECK(!rdma_connect(id, &param));
	return id;
}

/* Waits for the request of `client`, and accepts the request. Returns the new identifier. */
static struct rdma_cm_id *take(struct rdma_cm_id *listener, struct rdma_cm_id *client)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_event *event = next(listener->channel, RDMA_CM_EVENT_CONNECT_REQUEST, NULL);
	struct rdma_cm_id *server = event->id;
	CHECK(event->listen_id == listener && server->channel == listener->channel);
	create_qp(server);
	CHECK(!rdma_accept(server, &param));
	rdma_ack_cm_event(event);
	rdma_ack_cm_event(next(server->channel, RDMA_CM_EVENT_ESTABLISHED, server));
	rdma_ack_cm_event(next(client->channel, RDMA_CM_EVENT_ESTABLISHED, client));
	return server;
}

/* If a listener moves while a request waits, and its old channel is destroyed, the connection is still made. */
static void requests_move_with_their_listener(void)
{
	struct rdma_event_channel *of_client = open_channel(), *old = open_channel(), *new = open_channel();
	struct rdma_cm_id *listener = make(old);
	struct sockaddr_in local = listen_at(listener);
	struct rdma_cm_id *client = connect_to(local, of_client);
	CHECK(is_readable(old, 60000));
	CHECK(!rdma_migrate_id(listener, new) && !is_readable(old, 0));
	rdma_destroy_event_channel(old);
	struct rdma_cm_id *server = take(listener, client);
	/* An event of a connection moves with its identifier. */
	CHECK(!rdma_disconnect(client));
	CHECK(is_readable(new, 60000) && is_readable(of_client, 60000));
	rdma_destroy_qp(server);
	rdma_destroy_qp(client);
	CHECK(!rdma_destroy_id(server) && !rdma_destroy_id(client));
	CHECK(!is_readable(new, 0) && !is_readable(of_client, 0));

	/* If a listener is destroyed, a request that was not read is rejected, and no event is left. */
	client = connect_to(local, of_client);
	CHECK(is_readable(new, 60000));
	CHECK(!rdma_destroy_id(listener) && !is_readable(new, 50));
	struct rdma_cm_event *refused;
	CHECK(is_readable(of_client, 60000) && !rdma_get_cm_event(of_client, &refused));
	CHECK(refused->id == client && refused->status < 0);
	rdma_ack_cm_event(refused);
	rdma_destroy_qp(client);
	CHECK(!rdma_destroy_id(client));
	rdma_destroy_event_channel(of_client);
	rdma_destroy_event_channel(new);
}

/* If a queue pair outlives its identifier, its connection ends, its requests are flushed, and the peer is
 * notified. */
static void a_connection_ends_with_its_identifier(void)
{
	struct rdma_event_channel *of_client = open_channel(), *of_server = open_channel();
	struct rdma_cm_id *listener = make(of_server);
	struct rdma_cm_id *client = connect_to(listen_at(listener), of_client), *server = take(listener, client);
	struct ibv_qp *qp = client->qp;
	struct ibv_recv_wr wr = { .wr_id = 3 }, *bad;
	CHECK(!ibv_post_recv(qp, &wr, &bad));
	CHECK(!rdma_destroy_id(client));
	rdma_ack_cm_event(next(of_server, RDMA_CM_EVENT_DISCONNECTED, server));
	struct ibv_wc wc;
	time_t end = time(NULL) + 60;
	while (!ibv_poll_cq(qp->recv_cq, 1, &wc))
		CHECK(time(NULL) < end);
	CHECK(wc.wr_id == 3 && wc.status == IBV_WC_WR_FLUSH_ERR && state_of(qp) == IBV_QPS_ERR);
	CHECK(!is_readable(of_client, 0));
	struct ibv_cq *cqs[] = { qp->recv_cq, qp->send_cq };
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cqs[0]) && !ibv_destroy_cq(cqs[1]));
	rdma_destroy_ep(server);
	CHECK(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(of_client);
	rdma_destroy_event_channel(of_server);
}

int main(void)
{
	address.sin_port = htons(7999);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	events_move();
	an_event_that_is_kept_holds_nobody();
	moving_waits_for_acknowledgements();
	requests_move_with_their_listener();
	a_connection_ends_with_its_identifier();
	puts("events move with their identifiers");
	return 0;
}
