/*
 * Tests datagram services of the connection manager (RDMA_PS_UDP): the steps of an identifier, the fields of events,
 * private data in both directions, rejected requests, services that nobody offers, many requests at one listener, both
 * port spaces, and synchronous endpoints.
 *
 * Without arguments both ends are in one process, or in a process and its child. `services server ADDRESS` and
 * `services client ADDRESS` are two ends that exchange datagrams.
 */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "cm.h"
#include <rdma/rdma_verbs.h>

enum { PORT = 7471, DEPTH = 16, QKEY = 0x01234567, GRH = 40, ROOM = 256, REQUEST_DATA = 180, REPLY_DATA = 136 };
/* The status of an event: the host does not offer the service, or the service refuses. */
enum { UNSUPPORTED = 1, REFUSED_BY_SERVICE = 2 };

static struct rdma_event_channel *servers, *clients;

/* Checks that a call fails with this error number. */
#define REFUSED(call, error) CHECK((errno = 0, (call)) != 0 && errno == (error))

static struct rdma_cm_id *make(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(channel, &id, (void *)7, RDMA_PS_UDP));
	CHECK(id->ps == RDMA_PS_UDP && id->qp_type == IBV_QPT_UD && !id->qp && !id->verbs);
	return id;
}

static struct rdma_cm_id *serve_at(const char *host, uint16_t port)
{
	struct sockaddr_in address = address_of(host, port);
	struct rdma_cm_id *id = make(servers);
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&address) && !rdma_listen(id, 8));
	return id;
}

/* Makes an identifier with a resolved route to a service. */
static struct rdma_cm_id *routed(const char *host, uint16_t port)
{
	struct sockaddr_in address = address_of(host, port);
	struct rdma_cm_id *id = make(clients);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
	pass_event(clients, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(id, 2000));
	pass_event(clients, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

static struct rdma_conn_param param_of(const void *data, uint8_t length)
{
	return (struct rdma_conn_param){ .private_data = data, .private_data_len = length };
}

/* Asks the service at an address, with private data. */
static struct rdma_cm_id *asks_at(const char *host, uint16_t port, const void *data, uint8_t length)
{
	struct rdma_cm_id *id = routed(host, port);
	struct rdma_conn_param param = param_of(data, length);
	CHECK(!rdma_connect(id, &param));
	return id;
}

static struct rdma_cm_id *asks(uint16_t port)
{
	return asks_at("127.0.0.1", port, NULL, 0);
}

static void give_ud_qp(struct rdma_cm_id *id)
{
	struct ibv_cq *send_cq, *recv_cq;
	CHECK((send_cq = ibv_create_cq(id->verbs, DEPTH, NULL, NULL, 0)));
	CHECK((recv_cq = ibv_create_cq(id->verbs, DEPTH, NULL, NULL, 0)));
	struct ibv_qp_init_attr init = qp_init(send_cq, NULL, DEPTH), answer;
	init.recv_cq = recv_cq;
	REFUSED(rdma_create_qp(id, NULL, &init), EINVAL);
	init.qp_type = IBV_QPT_UD;
	CHECK(!rdma_create_qp(id, NULL, &init));
	/* The queue pair sends and receives at once, with the Q_Key of all services. */
	struct ibv_qp_attr attr;
	CHECK(!ibv_query_qp(id->qp, &attr, IBV_QP_QKEY | IBV_QP_STATE, &answer));
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.qkey == QKEY && answer.qp_type == IBV_QPT_UD);
}

/* Checks private data: `length` bytes of the program, and zeros up to the end of the message's field. */
static void check_data(struct rdma_ud_param *ud, const void *data, size_t length, size_t whole)
{
	CHECK(ud->private_data_len == whole && !memcmp(ud->private_data, data, length));
	for (size_t at = length; at < whole; at++)
		CHECK(!((const uint8_t *)ud->private_data)[at]);
}

/* Waits until an identifier learns that its service does not answer, or refuses. */
static void unreachable(struct rdma_cm_id *id, int status, const void *data, size_t length)
{
	struct rdma_cm_event *event = next_event(clients, RDMA_CM_EVENT_UNREACHABLE);
	CHECK(event->id == id && event->status == status);
	if (status > 0)
		check_data(&event->param.ud, data, length, REPLY_DATA);
	rdma_ack_cm_event(event);
	CHECK(!rdma_destroy_id(id));
}

static struct ibv_mr *mr;
static uint8_t memory[4096];

static void recv_at(struct rdma_cm_id *id, size_t offset)
{
	struct ibv_sge sge = { (uintptr_t)(memory + offset), ROOM, mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = offset, .sg_list = &sge, .num_sge = 1 };
	CHECK(!ibv_post_recv(id->qp, &wr, &bad));
}

static void send_to(struct rdma_cm_id *id, struct ibv_ah *ah, uint32_t number, uint32_t qkey, const char *text)
{
	struct ibv_sge sge = { (uintptr_t)text, strlen(text) + 1, 0 };
	struct ibv_send_wr *bad, wr = {
		.wr_id = 5,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
		.wr.ud = { ah, number, qkey },
	};
	CHECK(ah && !ibv_post_send(id->qp, &wr, &bad) && next_of(id->send_cq).status == IBV_WC_SUCCESS);
}

/* Waits for a datagram. */
static struct ibv_wc receives(struct rdma_cm_id *id, const char *text)
{
	struct ibv_wc wc = next_of(id->recv_cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == GRH + strlen(text) + 1 && wc.wc_flags & IBV_WC_GRH);
	CHECK(!strcmp((char *)memory + wc.wr_id + GRH, text));
	return wc;
}

/* Exchanges datagrams: the client knows the server from its event, and the server the client from its message. */
static void talk(struct rdma_cm_id *client, struct rdma_cm_id *server, struct rdma_ud_param *ud)
{
	recv_at(client, 0);
	recv_at(server, 1024);
	struct ibv_ah *ah = ibv_create_ah(client->pd, &ud->ah_attr);
	send_to(client, ah, ud->qp_num, ud->qkey, "question");
	struct ibv_wc wc = receives(server, "question");
	CHECK(wc.src_qp == client->qp->qp_num);
	struct ibv_ah *back = ibv_create_ah_from_wc(server->pd, &wc, (struct ibv_grh *)(memory + wc.wr_id), server->port_num);
	send_to(server, back, wc.src_qp, QKEY, "answer");
	CHECK(receives(client, "answer").src_qp == ud->qp_num);
	CHECK(!ibv_destroy_ah(ah) && !ibv_destroy_ah(back));
}

static void steps(void)
{
	struct rdma_cm_id *listener = serve_at("127.0.0.1", PORT), *id = make(clients), *child;
	struct sockaddr_in address = address_of("127.0.0.1", PORT);
	struct rdma_conn_param param = param_of(NULL, 0);
	REFUSED(rdma_listen(listener, 8), EINVAL);
	REFUSED(rdma_connect(listener, &param), EINVAL);
	REFUSED(rdma_resolve_addr(listener, NULL, (struct sockaddr *)&address, 2000), EINVAL);
	REFUSED(rdma_connect(id, &param), EINVAL);
	REFUSED(rdma_resolve_route(id, 2000), EINVAL);
	REFUSED(rdma_disconnect(id), EINVAL);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
	pass_event(clients, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(id->verbs && id->port_num == 1 && id->pd);
	REFUSED(rdma_connect(id, &param), EINVAL);
	CHECK(!rdma_resolve_route(id, 2000));
	pass_event(clients, RDMA_CM_EVENT_ROUTE_RESOLVED);
	REFUSED(rdma_resolve_route(id, 2000), EINVAL);
	REFUSED(rdma_accept(id, &param), EINVAL);
	REFUSED(rdma_reject(id, NULL, 0), EINVAL);

	/* After a refused call the identifier asks as before. */
	uint8_t data[255];
	for (size_t at = 0; at < sizeof data; at++)
		data[at] = at + 1;
	param = param_of(data, REQUEST_DATA + 1);
	REFUSED(rdma_connect(id, &param), EINVAL);
	param = param_of(data, REQUEST_DATA);
	CHECK(!rdma_connect(id, &param));
	REFUSED(rdma_connect(id, &param), EINVAL);

	struct rdma_cm_event *event = next_event(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
	child = event->id;
	CHECK(event->listen_id == listener && child != listener && !event->status && child->context == listener->context);
	CHECK(child->ps == RDMA_PS_UDP && child->qp_type == IBV_QPT_UD && child->verbs && child->port_num == 1);
	CHECK(rdma_get_src_port(child) == htons(PORT) && rdma_get_dst_port(child) == rdma_get_src_port(id));
	CHECK(((struct sockaddr_in *)rdma_get_local_addr(child))->sin_addr.s_addr == address.sin_addr.s_addr);
	CHECK(((struct sockaddr_in *)rdma_get_peer_addr(child))->sin_addr.s_addr == address.sin_addr.s_addr);
	check_data(&event->param.ud, data, REQUEST_DATA, REQUEST_DATA);
	rdma_ack_cm_event(event);

	give_ud_qp(id), give_ud_qp(child);
	CHECK((mr = ibv_reg_mr(id->pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)));
	param = param_of(data + 7, REPLY_DATA);
	CHECK(!rdma_accept(child, &param));
	REFUSED(rdma_accept(child, &param), EINVAL);
	REFUSED(rdma_reject(child, NULL, 0), EINVAL);
	event = next_event(clients, RDMA_CM_EVENT_ESTABLISHED);
	struct rdma_ud_param *ud = &event->param.ud;
	CHECK(event->id == id && !event->status && ud->qp_num == child->qp->qp_num && ud->qkey == QKEY);
	check_data(ud, data + 7, REPLY_DATA, REPLY_DATA);
	union ibv_gid gid;
	CHECK(ud->ah_attr.is_global && ud->ah_attr.port_num == 1 && ud->ah_attr.grh.hop_limit);
	CHECK(!ibv_query_gid(id->verbs, 1, ud->ah_attr.grh.sgid_index, &gid));
	CHECK(!memcmp(&gid, &ud->ah_attr.grh.dgid, sizeof gid) && ud->ah_attr.grh.sgid_index == 5);
	talk(id, child, ud);
	rdma_ack_cm_event(event);

	/* There is no connection: the other end notices nothing. */
	CHECK(!rdma_disconnect(id) && state_of(id->qp) == IBV_QPS_ERR && state_of(child->qp) == IBV_QPS_RTS);
	CHECK(is_silent(clients) && is_silent(servers));
	CHECK(!ibv_dereg_mr(mr));
	destroy(id), destroy(child), destroy(listener);
}

/* The attributes for a program that changes the state of its queue pair itself. */
static void attributes(void)
{
	struct rdma_cm_id *id = routed("127.0.0.1", PORT);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	int mask;
	CHECK(!rdma_init_qp_attr(id, &attr, &mask));
	CHECK(mask == (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	CHECK(attr.qkey == QKEY && attr.port_num == 1 && !attr.pkey_index);
	CHECK(!rdma_destroy_id(id));
}

static void refusals(void)
{
	struct rdma_cm_id *listener = serve_at("127.0.0.1", PORT), *id, *child;
	uint8_t data[255] = "not today", nothing[REPLY_DATA] = { 0 };
	struct rdma_conn_param param;

	id = asks(PORT), child = next_request(servers);
	REFUSED(rdma_reject(child, data, REPLY_DATA + 1), EINVAL);
	CHECK(!rdma_reject(child, data, REPLY_DATA));
	REFUSED(rdma_reject(child, NULL, 0), EINVAL);
	REFUSED(rdma_accept(child, NULL), EINVAL);
	unreachable(id, REFUSED_BY_SERVICE, data, REPLY_DATA);
	destroy(child);

	/* A call that fails rejects the request: private data that is too long, or no queue pair. */
	id = asks(PORT), child = next_request(servers);
	give_ud_qp(child);
	param = param_of(data, REPLY_DATA + 1);
	REFUSED(rdma_accept(child, &param), EINVAL);
	unreachable(id, REFUSED_BY_SERVICE, nothing, REPLY_DATA);
	destroy(child);
	id = asks(PORT), child = next_request(servers);
	REFUSED(rdma_accept(child, NULL), EINVAL);
	unreachable(id, REFUSED_BY_SERVICE, nothing, REPLY_DATA);
	destroy(child);

	/* A request that is destroyed, or whose listener is. */
	id = asks(PORT), child = next_request(servers);
	destroy(child);
	unreachable(id, REFUSED_BY_SERVICE, nothing, REPLY_DATA);
	id = asks(PORT);
	struct pollfd fd = { .fd = servers->fd, .events = POLLIN };
	CHECK(poll(&fd, 1, 60000) == 1);
	destroy(listener);
	unreachable(id, REFUSED_BY_SERVICE, nothing, REPLY_DATA);

	/* Now nobody listens. */
	unreachable(asks(PORT), UNSUPPORTED, nothing, REPLY_DATA);
	CHECK(is_silent(clients) && is_silent(servers));
}

/* A service with another queue pair than that of an identifier. A client needs no queue pair. */
static void other_queue_pairs(void)
{
	struct rdma_cm_id *listener = serve_at("127.0.0.1", PORT), *first = asks(PORT), *child = next_request(servers);
	give_ud_qp(child);
	struct rdma_cm_id *second = asks(PORT), *other = next_request(servers);
	struct rdma_conn_param param = { .qp_num = child->qp->qp_num };
	CHECK(!rdma_accept(other, &param));
	struct rdma_cm_event *event = next_event(clients, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == second && event->param.ud.qp_num == child->qp->qp_num && event->param.ud.qkey == QKEY);
	rdma_ack_cm_event(event);
	CHECK(!rdma_accept(child, NULL));
	event = next_event(clients, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == first && event->param.ud.qp_num == child->qp->qp_num);
	rdma_ack_cm_event(event);
	destroy(first), destroy(second), destroy(other), destroy(child), destroy(listener);
}

/* A port of each port space, and listeners at one port of several addresses. */
static void ports(void)
{
	struct rdma_cm_id *of_tcp = listen_at(servers, "127.0.0.1", PORT), *one = serve_at("127.0.0.1", PORT);
	struct rdma_cm_id *two = serve_at("127.0.0.2", PORT), *id, *again = make(servers);
	struct sockaddr_in address = address_of("127.0.0.1", PORT);
	REFUSED(rdma_bind_addr(again, (struct sockaddr *)&address), EADDRINUSE);
	address = address_of("0.0.0.0", PORT);
	REFUSED(rdma_bind_addr(again, (struct sockaddr *)&address), EADDRNOTAVAIL);
	destroy(again);
	struct rdma_cm_id *listeners[] = { one, two };
	for (int which = 0; which < 2; which++) {
		id = asks_at(which ? "127.0.0.2" : "127.0.0.1", PORT, NULL, 0);
		struct rdma_cm_event *event = next_event(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
		struct rdma_cm_id *child = event->id;
		CHECK(event->listen_id == listeners[which]);
		rdma_ack_cm_event(event);
		destroy(child);
		pass_event(clients, RDMA_CM_EVENT_UNREACHABLE);
		destroy(id);
	}
	/* A connection goes to the listener for connections. */
	id = resolve(clients, "127.0.0.1", PORT);
	give_qp(id, DEPTH);
	struct rdma_conn_param param = { .responder_resources = 1 };
	CHECK(!rdma_connect(id, &param));
	struct rdma_cm_event *event = next_event(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *child = event->id;
	CHECK(event->listen_id == of_tcp && child->qp_type == IBV_QPT_RC);
	rdma_ack_cm_event(event);
	CHECK(!rdma_reject(child, NULL, 0));
	pass_event(clients, RDMA_CM_EVENT_REJECTED);
	destroy(id), destroy(child), destroy(of_tcp), destroy(one), destroy(two);

	/* A wildcard, and a port that the library chooses. */
	struct rdma_cm_id *any = serve_at("0.0.0.0", 0);
	id = asks_at("127.0.0.3", ntohs(rdma_get_src_port(any)), NULL, 0);
	child = next_request(servers);
	address = address_of("127.0.0.3", 0);
	CHECK(((struct sockaddr_in *)rdma_get_local_addr(child))->sin_addr.s_addr == address.sin_addr.s_addr);
	CHECK(rdma_get_src_port(child) == rdma_get_src_port(any) && rdma_get_src_port(any));
	destroy(child), destroy(any);
	pass_event(clients, RDMA_CM_EVENT_UNREACHABLE);
	destroy(id);
}

/* Many requests wait at one listener. The answers go to those who asked. */
static void many(void)
{
	enum { COUNT = 300 };
	static struct rdma_cm_id *ids[COUNT], *children[COUNT];
	struct rdma_cm_id *listener = serve_at("127.0.0.1", PORT);
	for (int at = 0; at < COUNT; at++)
		ids[at] = asks_at("127.0.0.1", PORT, &at, sizeof at);
	for (int count = 0; count < COUNT; count++) {
		int at;
		struct rdma_cm_event *event = next_event(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
		memcpy(&at, event->param.ud.private_data, sizeof at);
		CHECK(at >= 0 && at < COUNT && !children[at]);
		children[at] = event->id;
		CHECK(rdma_get_dst_port(event->id) == rdma_get_src_port(ids[at]));
		rdma_ack_cm_event(event);
	}
	for (int at = COUNT; at-- > 0;) {
		int answer = ~at;
		struct rdma_conn_param param = param_of(&answer, sizeof answer);
		param.qp_num = 1000 + at;
		CHECK(!rdma_accept(children[at], &param));
	}
	for (int count = 0; count < COUNT; count++) {
		int answer;
		struct rdma_cm_event *event = next_event(clients, RDMA_CM_EVENT_ESTABLISHED);
		memcpy(&answer, event->param.ud.private_data, sizeof answer);
		CHECK(event->id == ids[~answer] && event->param.ud.qp_num == 1000u + ~answer);
		rdma_ack_cm_event(event);
	}
	for (int at = 0; at < COUNT; at++)
		destroy(ids[at]), destroy(children[at]);
	destroy(listener);
}

/* Takes an endpoint by its address information. */
static struct rdma_cm_id *endpoint(int flags, struct ibv_qp_init_attr *init)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_UDP }, *info;
	struct rdma_cm_id *id;
	CHECK(!rdma_getaddrinfo("127.0.0.1", "7471", &hints, &info));
	CHECK(info->ai_port_space == RDMA_PS_UDP && info->ai_qp_type == IBV_QPT_UD);
	CHECK(!rdma_create_ep(&id, info, NULL, init));
	rdma_freeaddrinfo(info);
	return id;
}

/* Synchronous endpoints in two processes. The server exits as soon as it has answered. */
static void endpoints(void)
{
	int ready[2], status;
	char byte;
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	CHECK(!pipe(ready));
	pid_t server = fork();
	CHECK(server >= 0);
	if (!server) {
		struct rdma_cm_id *listener = endpoint(RAI_PASSIVE, &init), *id;
		CHECK(!rdma_listen(listener, 1) && write(ready[1], "", 1) == 1);
		CHECK(!rdma_get_request(listener, &id) && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
		CHECK(id->qp && id->qp->qp_type == IBV_QPT_UD && state_of(id->qp) == IBV_QPS_RTS);
		check_data(&id->event->param.ud, "hello", 6, REQUEST_DATA);
		CHECK((mr = rdma_reg_msgs(id, memory, sizeof memory)) && !rdma_post_recv(id, NULL, memory, ROOM, mr));
		struct rdma_conn_param param = param_of("welcome", 8);
		CHECK(!rdma_accept(id, &param));
		struct ibv_wc wc;
		CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.byte_len == GRH + 9 && !strcmp((char *)memory + GRH, "datagram"));
		_exit(0);
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	struct rdma_cm_id *id = endpoint(0, &init);
	struct rdma_conn_param param = param_of("hello", 6);
	CHECK(!rdma_connect(id, &param) && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	struct rdma_ud_param *ud = &id->event->param.ud;
	check_data(ud, "welcome", 8, REPLY_DATA);
	struct ibv_ah *ah = ibv_create_ah(id->pd, &ud->ah_attr);
	char text[] = "datagram";
	CHECK(ah && !rdma_post_ud_send(id, NULL, text, sizeof text, NULL, IBV_SEND_INLINE, ah, ud->qp_num));
	struct ibv_wc wc;
	CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !ibv_destroy_ah(ah));
	CHECK(!rdma_disconnect(id));
	rdma_destroy_ep(id);
	CHECK(waitpid(server, &status, 0) == server && !status);
}

/* A server that does not run for a while gets the repetitions of a request at once. It is told only once. */
static void repeated(void)
{
	int ready[2], status;
	char byte;
	CHECK(!pipe(ready));
	pid_t server = fork();
	CHECK(server >= 0);
	if (!server) {
		servers = rdma_create_event_channel();
		struct rdma_cm_id *listener = serve_at("127.0.0.1", PORT), *id;
		CHECK(write(ready[1], "", 1) == 1);
		CHECK(raise(SIGSTOP) == 0);
		struct rdma_conn_param param = { .qp_num = 9 };
		id = next_request(servers);
		CHECK(is_silent(servers) && !rdma_accept(id, &param) && is_silent(servers));
		destroy(id), destroy(listener);
		_exit(0);
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	CHECK(waitpid(server, &status, WUNTRACED) == server && WIFSTOPPED(status));
	clients = rdma_create_event_channel();
	struct rdma_cm_id *id = asks(PORT);
	/* The request is sent after 0.25 and 0.75 seconds again. */
	usleep(1500000);
	CHECK(!kill(server, SIGCONT));
	struct rdma_cm_event *event = next_event(clients, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(event->id == id && event->param.ud.qp_num == 9);
	rdma_ack_cm_event(event);
	CHECK(is_silent(clients));
	destroy(id);
	rdma_destroy_event_channel(clients);
	CHECK(waitpid(server, &status, 0) == server && !status);
}

/* The end that offers a service to one client, and sends back its datagram. */
static void serve_one(const char *host)
{
	struct rdma_cm_id *listener = serve_at(host, PORT);
	printf("ready\n");
	fflush(stdout);
	struct rdma_cm_event *event = next_event(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	check_data(&event->param.ud, "hello", 6, REQUEST_DATA);
	CHECK(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr.s_addr == address_of(host, 0).sin_addr.s_addr);
	rdma_ack_cm_event(event);
	give_ud_qp(id);
	CHECK((mr = ibv_reg_mr(id->pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)));
	recv_at(id, 1024);
	struct rdma_conn_param param = param_of("welcome", 8);
	CHECK(!rdma_accept(id, &param));
	struct ibv_wc wc = receives(id, "question");
	struct ibv_ah *back = ibv_create_ah_from_wc(id->pd, &wc, (struct ibv_grh *)(memory + wc.wr_id), id->port_num);
	send_to(id, back, wc.src_qp, QKEY, "answer");
	CHECK(!ibv_destroy_ah(back));
	destroy(id), destroy(listener);
}

static void ask_one(const char *host)
{
	/* A port at which no service is: the server's host or its process refuses. */
	struct rdma_cm_id *id = asks_at(host, PORT + 1, NULL, 0);
	struct rdma_cm_event *event = next_event(clients, RDMA_CM_EVENT_UNREACHABLE);
	CHECK(event->id == id && event->status == UNSUPPORTED);
	rdma_ack_cm_event(event);
	destroy(id);
	id = routed(host, PORT);
	give_ud_qp(id);
	CHECK((mr = ibv_reg_mr(id->pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)));
	recv_at(id, 0);
	struct rdma_conn_param param = param_of("hello", 6);
	CHECK(!rdma_connect(id, &param));
	event = next_event(clients, RDMA_CM_EVENT_ESTABLISHED);
	struct rdma_ud_param *ud = &event->param.ud;
	check_data(ud, "welcome", 8, REPLY_DATA);
	struct ibv_ah *ah = ibv_create_ah(id->pd, &ud->ah_attr);
	send_to(id, ah, ud->qp_num, ud->qkey, "question");
	CHECK(receives(id, "answer").src_qp == ud->qp_num);
	CHECK(!ibv_destroy_ah(ah));
	rdma_ack_cm_event(event);
	destroy(id);
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		/* The children are made before this process uses the library. */
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			endpoints();
			exit(0);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child && !status);
		repeated();
	}
	CHECK((servers = rdma_create_event_channel()) && (clients = rdma_create_event_channel()));
	if (argc > 2 && !strcmp(argv[1], "server")) {
		serve_one(argv[2]);
	} else if (argc > 2) {
		ask_one(argv[2]);
	} else {
		steps();
		attributes();
		refusals();
		other_queue_pairs();
		ports();
		many();
	}
	rdma_destroy_event_channel(servers);
	rdma_destroy_event_channel(clients);
	return 0;
}
