/*
 * Tests the calls of the connection manager one by one: the arguments that a call refuses, with the error number;
 * the identifier's fields after the call; and the data of its events.
 */
#include <dirent.h>
#include <rdma/rdma_verbs.h>
#include <string.h>

#include "cm.h"

enum { PORT = 7471, MANY = 20, DEPTH = 4 };

static struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
static struct rdma_event_channel *servers, *clients;

/* Checks that the call fails with this error number. */
#define REFUSED(call, number)                    \
	do {                                     \
		errno = 0;                       \
		CHECK((call) && errno == number); \
	} while (0)

static struct sockaddr *addr(struct sockaddr_in *address)
{
	return (struct sockaddr *)address;
}

static struct rdma_cm_id *make(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(channel, &id, &param, RDMA_PS_TCP) && id->context == &param);
	CHECK(id->channel == channel && !id->verbs && !id->qp && !id->pd && id->ps == RDMA_PS_TCP);
	return id;
}

static int open_descriptors(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;
	CHECK(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

static void names(void)
{
	struct sockaddr_in local = address_of("127.0.0.1", PORT), any = address_of("0.0.0.0", 0);
	struct sockaddr_in foreign = address_of("192.0.2.1", PORT), to;
	struct rdma_cm_id *id;
	REFUSED(rdma_create_id(clients, &id, NULL, RDMA_PS_IPOIB), EOPNOTSUPP);
	REFUSED(rdma_create_id(clients, &id, NULL, RDMA_PS_IB), EOPNOTSUPP);
	/* Addresses and the device are unset before they are resolved. */
	id = make(clients);
	REFUSED(rdma_resolve_route(id, 2000), EINVAL);
	REFUSED(rdma_bind_addr(id, NULL), EINVAL);
	REFUSED(rdma_bind_addr(id, addr(&foreign)), EADDRNOTAVAIL);
	to = local;
	to.sin_family = 27; /* AF_IB */
	REFUSED(rdma_bind_addr(id, addr(&to)), ENODEV);
	to.sin_family = AF_UNIX;
	REFUSED(rdma_bind_addr(id, addr(&to)), EINVAL);
	CHECK(!rdma_get_src_port(id) && !rdma_get_dst_port(id));
	/* Refused calls had no effect. An address of the host belongs to the device. A wildcard belongs to no device. */
	CHECK(!rdma_bind_addr(id, addr(&local)) && id->verbs && id->pd && id->port_num == 1);
	CHECK(rdma_get_src_port(id) == htons(PORT));
	REFUSED(rdma_bind_addr(id, addr(&local)), EINVAL);
	destroy(id);
	id = make(clients);
	CHECK(!rdma_bind_addr(id, addr(&any)) && !id->verbs && rdma_get_src_port(id));
	/* A listening identifier cannot connect, and cannot listen again. */
	CHECK(!rdma_listen(id, 1));
	REFUSED(rdma_listen(id, 1), EINVAL);
	REFUSED(rdma_resolve_addr(id, NULL, addr(&local), 2000), EINVAL);
	destroy(id);
	/* Without an address, the identifier listens at a port that the library chooses. */
	id = make(clients);
	CHECK(!rdma_listen(id, 1) && rdma_get_src_port(id));
	destroy(id);
	/* No peer can have this address. */
	id = make(clients);
	CHECK(!rdma_resolve_addr(id, NULL, addr(&foreign), 2000));
	struct rdma_cm_event *event = next_event(clients, RDMA_CM_EVENT_ADDR_ERROR);
	CHECK(event->id == id && event->status == -ENODEV && !event->listen_id);
	rdma_ack_cm_event(event);
	destroy(id);
	/* The program names the source address, whose port is not changed. */
	id = make(clients);
	struct sockaddr_in from = address_of("127.0.0.1", PORT + 1);
	CHECK(!rdma_resolve_addr(id, addr(&from), addr(&local), 2000));
	pass_event(clients, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_get_src_port(id) == htons(PORT + 1) && rdma_get_dst_port(id) == htons(PORT));
	destroy(id);
	/* The unspecified address means this host. */
	id = make(clients);
	to = address_of("0.0.0.0", PORT);
	CHECK(!rdma_resolve_addr(id, NULL, addr(&to), 2000));
	pass_event(clients, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(((struct sockaddr_in *)rdma_get_peer_addr(id))->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	CHECK(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
	CHECK(id->verbs && rdma_get_src_port(id) && rdma_get_dst_port(id) == htons(PORT));
	/* The identifier has no request and no queue pair, and the parameters name no queue pair that exists. */
	struct rdma_conn_param wrong = param;
	wrong.qp_num = 0xfffff;
	REFUSED(rdma_connect(id, NULL), EINVAL);
	REFUSED(rdma_connect(id, &wrong), EINVAL);
	REFUSED(rdma_accept(id, &wrong), EINVAL);
	REFUSED(rdma_reject(id, NULL, 0), EINVAL);
	REFUSED(rdma_disconnect(id), ENOTCONN);
	struct rdma_cm_id *none;
	REFUSED(rdma_get_request(id, &none), EINVAL);
	destroy(id);
	REFUSED(rdma_get_cm_event(clients, NULL), EINVAL);
	REFUSED(rdma_get_cm_event(NULL, &event), EINVAL);
	REFUSED(rdma_ack_cm_event(NULL), EINVAL);
	REFUSED(rdma_establish(NULL), EINVAL);
}

static void options(void)
{
	struct rdma_cm_id *id = make(clients);
	int on = 1;
	uint8_t byte = 1;
	REFUSED(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)), EINVAL);
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, 99, &on, sizeof(on)), EINVAL);
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, 1), EINVAL);
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, 1), EINVAL);
	REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &on, sizeof(on)), EINVAL);
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1));
	destroy(id);
}

/* Tests queue pairs of identifiers, and the completion queues that the library makes for the queue pairs. */
static void queue_pairs(void)
{
	struct rdma_cm_id *id = make(clients);
	struct ibv_qp_init_attr init = { .cap = { 2, 3, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	/* The identifier has no device yet. */
	REFUSED(rdma_create_qp(id, NULL, &init), EINVAL);
	destroy(id);
	id = resolve(clients, "127.0.0.1", PORT);
	struct ibv_pd *own = ibv_alloc_pd(id->verbs), *of_id = id->pd;
	CHECK(own && of_id);
	struct ibv_srq_init_attr of_srq = { .attr = { .max_wr = 300, .max_sge = 1 } };
	int before = open_descriptors();
	for (int round = 0; round < 3; round++) {
		struct ibv_srq *srq = round == 1 ? ibv_create_srq(own, &of_srq) : NULL;
		init = (struct ibv_qp_init_attr){ .cap = { 2, 3, 1, 1, 0 }, .srq = srq, .qp_type = IBV_QPT_RC };
		CHECK(!rdma_create_qp(id, round ? own : NULL, &init));
		CHECK(id->qp->pd == (round ? own : of_id) && id->pd == id->qp->pd);
		CHECK(id->send_cq == id->qp->send_cq && id->recv_cq == id->qp->recv_cq && id->send_cq != id->recv_cq);
		CHECK(id->send_cq->channel == id->send_cq_channel && id->recv_cq->channel == id->recv_cq_channel);
		CHECK(id->send_cq->cq_context == id && id->send_cq->cqe >= 2);
		/* All requests of a shared receive queue may complete on this queue. */
		CHECK(id->recv_cq->cqe >= (srq ? 300 : 3));
		struct ibv_qp_init_attr second = init;
		REFUSED(rdma_create_qp(id, NULL, &second), EINVAL);
		rdma_destroy_qp(id);
		CHECK(!id->qp && !id->send_cq && !id->recv_cq && !id->send_cq_channel && !id->recv_cq_channel);
		CHECK(open_descriptors() == before && (!srq || !ibv_destroy_srq(srq)));
	}
	/* A domain that the program has chosen stays when the device is assigned again. */
	struct rdma_cm_id *bound = make(clients);
	struct sockaddr_in from = address_of("127.0.0.1", 0), to = address_of("127.0.0.1", PORT);
	CHECK(!rdma_bind_addr(bound, addr(&from)));
	init = (struct ibv_qp_init_attr){ .cap = { 2, 3, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	CHECK(!rdma_create_qp(bound, own, &init) && !rdma_resolve_addr(bound, NULL, addr(&to), 2000));
	pass_event(clients, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(bound->pd == own);
	rdma_destroy_qp(bound);
	destroy(bound);
	/* If the creation is refused, no completion queue is left behind. */
	init = (struct ibv_qp_init_attr){ .cap = { 2, 3, 99, 1, 0 }, .qp_type = IBV_QPT_RC };
	REFUSED(rdma_create_qp(id, own, &init), EINVAL);
	CHECK(!id->send_cq && !id->recv_cq && open_descriptors() == before);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	int mask = -1;
	CHECK(!rdma_init_qp_attr(id, &attr, &mask) && mask == (IBV_QP_STATE | IBV_QP_ACCESS_FLAGS));
	for (attr.qp_state = IBV_QPS_RTR; attr.qp_state <= IBV_QPS_RTS; attr.qp_state++) {
		mask = -1;
		CHECK(!rdma_init_qp_attr(id, &attr, &mask) && mask == 0);
	}
	attr.qp_state = IBV_QPS_SQD;
	REFUSED(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
	CHECK(!ibv_dealloc_pd(own));
	destroy(id);
}

static void check_data(struct rdma_cm_event *event, const char *text)
{
	uint8_t length = event->param.conn.private_data_len;
	if (length != strlen(text))
		fprintf(stderr, "way %s: %d bytes for %zu\n", rdma_event_str(event->event), length, strlen(text));
	CHECK(length == strlen(text) && (!length ? !event->param.conn.private_data :
							     !memcmp(event->param.conn.private_data, text, length)));
}

/* Tests that exactly the private data of a request, an acceptance and a rejection arrive. */
static void private_data(void)
{
	/* If the listener is bound to a wildcard, the new identifier has the address to which the client connected. */
	struct rdma_cm_id *listener = listen_at(servers, "0.0.0.0", PORT);
	char longest[256];
	memset(longest, 'x', 255);
	longest[255] = 0;
	const char *texts[] = { "", "a", longest };
	for (int round = 0; round < 6; round++) {
		const char *text = texts[round % 3];
		int accepts = round >= 3;
		struct rdma_conn_param with = param;
		with.private_data = text;
		with.private_data_len = strlen(text);
		struct rdma_cm_id *client = resolve(clients, "127.0.0.1", PORT);
		give_qp(client, DEPTH);
		CHECK(!rdma_connect(client, &with));
		REFUSED(rdma_connect(client, &with), EINVAL);
		struct rdma_cm_event *event = next_event(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
		struct rdma_cm_id *server = event->id;
		CHECK(event->listen_id == listener && server != listener && event->status == 0);
		check_data(event, text);
		rdma_ack_cm_event(event);
		CHECK(server->verbs && server->context == listener->context && server->channel == servers);
		struct sockaddr_in *there = (struct sockaddr_in *)rdma_get_local_addr(server);
		struct sockaddr_in *here = (struct sockaddr_in *)rdma_get_peer_addr(server);
		CHECK(there->sin_addr.s_addr == htonl(INADDR_LOOPBACK) && there->sin_port == htons(PORT));
		CHECK(here->sin_addr.s_addr == htonl(INADDR_LOOPBACK) && here->sin_port == rdma_get_src_port(client));
		if (accepts) {
			give_qp(server, DEPTH);
			CHECK(!rdma_accept(server, &with));
			/* The request was already accepted or rejected. */
			REFUSED(rdma_accept(server, &with), EINVAL);
			REFUSED(rdma_reject(server, NULL, 0), EINVAL);
		} else {
			CHECK(!rdma_reject(server, text, strlen(text)));
			REFUSED(rdma_reject(server, text, strlen(text)), EINVAL);
		}
		event = next_event(clients, accepts ? RDMA_CM_EVENT_ESTABLISHED : RDMA_CM_EVENT_REJECTED);
		CHECK(event->id == client && !event->listen_id && event->status == (accepts ? 0 : -ECONNREFUSED));
		check_data(event, text);
		rdma_ack_cm_event(event);
		CHECK(client->qp->state == (accepts ? IBV_QPS_RTS : IBV_QPS_ERR));
		if (accepts) {
			event = next_event(servers, RDMA_CM_EVENT_ESTABLISHED);
			CHECK(event->id == server && !event->listen_id);
			check_data(event, "");
			rdma_ack_cm_event(event);
			REFUSED(rdma_resolve_addr(client, NULL, rdma_get_peer_addr(client), 2000), EINVAL);
			CHECK(!rdma_disconnect(client));
			pass_event(clients, RDMA_CM_EVENT_DISCONNECTED);
			pass_event(servers, RDMA_CM_EVENT_DISCONNECTED);
			CHECK(client->qp->state == IBV_QPS_ERR && server->qp->state == IBV_QPS_ERR);
		}
		destroy(client);
		destroy(server);
	}
	destroy(listener);
}

/* Tests requests that wait for a decision: a few more than a small backlog, and any number with a backlog of 0. */
static void backlogs(void)
{
	for (int backlog = 0; backlog < 2; backlog++) {
		int count = backlog ? MANY / 2 : MANY;
		struct rdma_cm_id *listener = make(servers), *ids[MANY];
		struct sockaddr_in local = address_of("127.0.0.1", PORT);
		CHECK(!rdma_bind_addr(listener, addr(&local)) && !rdma_listen(listener, backlog));
		for (int i = 0; i < count; i++) {
			ids[i] = resolve(clients, "127.0.0.1", PORT);
			give_qp(ids[i], DEPTH);
			CHECK(!rdma_connect(ids[i], &param));
		}
		for (int i = 0; i < count; i++) {
			struct rdma_cm_id *request = next_request(servers);
			CHECK(!rdma_reject(request, NULL, 0));
			destroy(request);
		}
		for (int i = 0; i < count; i++)
			pass_event(clients, RDMA_CM_EVENT_REJECTED);
		for (int i = 0; i < count; i++)
			destroy(ids[i]);
		destroy(listener);
	}
}

/* Tests a queue pair that a program makes without an identifier. The connection parameters have the number of the
 * queue pair. */
static void by_number(void)
{
	struct rdma_cm_id *listener = listen_at(servers, "127.0.0.1", PORT);
	struct rdma_cm_id *client = resolve(clients, "127.0.0.1", PORT);
	struct ibv_cq *cq = ibv_create_cq(client->verbs, 2 * DEPTH, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp_init_attr init = qp_init(cq, NULL, DEPTH);
	struct ibv_qp *qps[2] = { ibv_create_qp(client->pd, &init), ibv_create_qp(client->pd, &init) };
	CHECK(qps[0] && qps[1]);
	struct rdma_conn_param with = param;
	with.qp_num = qps[0]->qp_num;
	CHECK(!rdma_connect(client, &with));
	struct rdma_cm_id *server = next_request(servers);
	with.qp_num = qps[1]->qp_num;
	CHECK(!rdma_accept(server, &with) && state_of(qps[1]) == IBV_QPS_RTS);
	pass_event(clients, RDMA_CM_EVENT_ESTABLISHED);
	pass_event(servers, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(state_of(qps[0]) == IBV_QPS_RTS);
	CHECK(!post_empty_recv(qps[1], 1) && !post_empty_send(qps[0], 1));
	expect(cq, 1, IBV_WC_SUCCESS);
	expect(cq, 1, IBV_WC_SUCCESS);
	CHECK(!ibv_destroy_qp(qps[0]) && !ibv_destroy_qp(qps[1]) && !ibv_destroy_cq(cq));
	pass_event(servers, RDMA_CM_EVENT_DISCONNECTED);
	destroy(client);
	destroy(server);
	destroy(listener);
}

/* Tests the results of calls of synchronous identifiers, and that these identifiers leave no descriptor open. */
static void synchronous(void)
{
	int before = open_descriptors();
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr init = { .cap = { DEPTH, DEPTH, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	CHECK(!rdma_getaddrinfo("127.0.0.1", "7472", &hints, &found));
	for (int round = 0; round < 3; round++) {
		struct rdma_cm_id *id;
		struct ibv_qp_init_attr of_qp = init;
		CHECK(!rdma_create_ep(&id, found, NULL, &of_qp) && id->qp && id->event);
		/* No program listens at this address. */
		REFUSED(rdma_connect(id, &param), ECONNREFUSED);
		CHECK(id->event->event == RDMA_CM_EVENT_REJECTED && id->event->status == -ECONNREFUSED);
		if (round) {
			/* The identifier migrates to another channel and, in the last round, back. Its calls wait only while
			 * it has a channel of its own. */
			CHECK(!rdma_migrate_id(id, clients) && id->channel == clients);
			struct rdma_cm_id *none;
			REFUSED(rdma_get_request(id, &none), EINVAL);
			if (round == 2)
				CHECK(!rdma_migrate_id(id, NULL) && id->channel != clients);
		}
		rdma_destroy_ep(id);
		CHECK(open_descriptors() == before);
	}
	/* If an endpoint cannot be made, no object is left behind. */
	struct ibv_qp_init_attr wrong = init;
	struct rdma_cm_id *none;
	wrong.cap.max_send_sge = 99;
	REFUSED(rdma_create_ep(&none, found, NULL, &wrong), EINVAL);
	CHECK(open_descriptors() == before);
	rdma_freeaddrinfo(found);
	/* The queue pairs of requests have the attributes given for the listener. */
	hints.ai_flags = RAI_PASSIVE;
	CHECK(!rdma_getaddrinfo("127.0.0.1", "7472", &hints, &found));
	struct rdma_cm_id *listener, *server;
	CHECK(!rdma_create_ep(&listener, found, NULL, &init) && !rdma_listen(listener, 1));
	rdma_freeaddrinfo(found);
	struct rdma_cm_id *client = resolve(clients, "127.0.0.1", 7472);
	give_qp(client, DEPTH);
	CHECK(!rdma_connect(client, &param));
	CHECK(!rdma_get_request(listener, &server) && server->qp && server->event);
	CHECK(server->event->event == RDMA_CM_EVENT_CONNECT_REQUEST && server->channel != listener->channel);
	CHECK(!rdma_accept(server, NULL) && server->event->event == RDMA_CM_EVENT_ESTABLISHED);
	pass_event(clients, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(!rdma_disconnect(server) && server->event->event == RDMA_CM_EVENT_DISCONNECTED);
	pass_event(clients, RDMA_CM_EVENT_DISCONNECTED);
	destroy(client);
	rdma_destroy_ep(server);
	rdma_destroy_ep(listener);
	CHECK(open_descriptors() == before);
}

int main(void)
{
	CHECK((servers = rdma_create_event_channel()) && (clients = rdma_create_event_channel()));
	names();
	options();
	queue_pairs();
	private_data();
	backlogs();
	by_number();
	synchronous();
	CHECK(is_silent(servers) && is_silent(clients));
	rdma_destroy_event_channel(servers);
	rdma_destroy_event_channel(clients);
	puts("each call says why it is refused");
	return 0;
}
