/*
 * Tests waiting events and requests whose identifier is destroyed or migrates. When a listener is destroyed,
 * requests that the program has not seen are rejected, and requests that the program has seen stay. Events of a
 * destroyed identifier are never seen. Events of a migrated identifier, including those of its requests, are seen at
 * its new channel.
 */
#include "cm.h"

enum { PORT = 7471, CLIENTS = 4 };

static const struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };

static struct rdma_cm_id *begin_to_connect(struct rdma_event_channel *channel)
{
	struct rdma_conn_param of_client = param;
	struct rdma_cm_id *id = resolve(channel, "127.0.0.1", PORT);
	give_qp(id, 4);
	CHECK(!rdma_connect(id, &of_client));
	return id;
}

static void accept_with_qp(struct rdma_cm_id *id)
{
	struct rdma_conn_param of_server = param;
	give_qp(id, 4);
	CHECK(!rdma_accept(id, &of_server));
}

/* The program has seen one of several requests when the listener is destroyed. */
static void requests_of_a_listener_that_goes(void)
{
	struct rdma_event_channel *servers = rdma_create_event_channel(), *clients[CLIENTS];
	struct rdma_cm_id *listener = listen_at(servers, "127.0.0.1", PORT), *ids[CLIENTS], *seen;
	for (int i = 0; i < CLIENTS; i++) {
		CHECK((clients[i] = rdma_create_event_channel()));
		ids[i] = begin_to_connect(clients[i]);
	}
	seen = next_request(servers);
	/* The other requests have time to arrive. Requests that arrive later are also rejected. */
	usleep(200000);
	destroy(listener);
	CHECK(is_silent(servers));
	/* The answer shows which client's request the program has seen. */
	accept_with_qp(seen);
	int accepted = 0;
	for (int i = 0; i < CLIENTS; i++) {
		struct rdma_cm_event *event = any_event(clients[i]);
		if (event->event == RDMA_CM_EVENT_ESTABLISHED)
			accepted++;
		else
			CHECK(event->event == RDMA_CM_EVENT_REJECTED && event->status == -ECONNREFUSED);
		rdma_ack_cm_event(event);
		destroy(ids[i]);
		rdma_destroy_event_channel(clients[i]);
	}
	CHECK(accepted == 1);
	pass_event(servers, RDMA_CM_EVENT_ESTABLISHED);
	pass_event(servers, RDMA_CM_EVENT_DISCONNECTED);
	destroy(seen);
	rdma_destroy_event_channel(servers);
}

/* Tests a request that the program has seen. The program destroys the identifier without accepting or rejecting
 * the request. */
static void request_that_is_given_up(void)
{
	struct rdma_event_channel *servers = rdma_create_event_channel(), *clients = rdma_create_event_channel();
	struct rdma_cm_id *listener = listen_at(servers, "127.0.0.1", PORT);
	struct rdma_cm_id *client = begin_to_connect(clients);
	destroy(next_request(servers));
	pass_event(clients, RDMA_CM_EVENT_REJECTED);
	destroy(client);
	/* The listener continues to serve. */
	client = begin_to_connect(clients);
	struct rdma_cm_id *server = next_request(servers);
	accept_with_qp(server);
	pass_event(clients, RDMA_CM_EVENT_ESTABLISHED);
	pass_event(servers, RDMA_CM_EVENT_ESTABLISHED);
	/* A disconnect event that waits when its identifier is destroyed is never seen. */
	CHECK(!rdma_disconnect(client));
	pass_event(clients, RDMA_CM_EVENT_DISCONNECTED);
	usleep(200000);
	destroy(server);
	CHECK(is_silent(servers));
	destroy(client);
	destroy(listener);
	CHECK(is_silent(servers) && is_silent(clients));
	rdma_destroy_event_channel(servers);
	rdma_destroy_event_channel(clients);
}

/* When a listener migrates, its requests move with it, and other events do not. */
static void requests_that_move(void)
{
	struct rdma_event_channel *first = rdma_create_event_channel(), *second = rdma_create_event_channel();
	struct rdma_event_channel *clients = rdma_create_event_channel();
	struct rdma_cm_id *listener = listen_at(first, "127.0.0.1", PORT), *other;
	struct sockaddr_in address = address_of("127.0.0.1", PORT);
	struct rdma_cm_id *client = begin_to_connect(clients);
	CHECK(!rdma_create_id(first, &other, NULL, RDMA_PS_TCP));
	usleep(200000);
	CHECK(!rdma_resolve_addr(other, NULL, (struct sockaddr *)&address, 2000));
	CHECK(!rdma_migrate_id(listener, second));
	CHECK(listener->channel == second);
	struct rdma_cm_id *server = next_request(second);
	CHECK(server->channel == second);
	pass_event(first, RDMA_CM_EVENT_ADDR_RESOLVED);
	/* No event of the destroyed identifier is left at the first channel. */
	destroy(other);
	CHECK(is_silent(first));
	rdma_destroy_event_channel(first);
	accept_with_qp(server);
	pass_event(second, RDMA_CM_EVENT_ESTABLISHED);
	pass_event(clients, RDMA_CM_EVENT_ESTABLISHED);
	/* A disconnect event also moves with its identifier. */
	CHECK(!rdma_disconnect(client));
	pass_event(clients, RDMA_CM_EVENT_DISCONNECTED);
	usleep(200000);
	CHECK((first = rdma_create_event_channel()));
	CHECK(!rdma_migrate_id(server, first));
	CHECK(is_silent(second));
	pass_event(first, RDMA_CM_EVENT_DISCONNECTED);
	destroy(server);
	destroy(client);
	destroy(listener);
	rdma_destroy_event_channel(first);
	rdma_destroy_event_channel(second);
	rdma_destroy_event_channel(clients);
}

int main(void)
{
	requests_of_a_listener_that_goes();
	request_that_is_given_up();
	requests_that_move();
	puts("nothing is left behind");
	return 0;
}
