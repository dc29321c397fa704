/*
 * Tests a program that runs out of descriptors: calls that need a descriptor fail with EMFILE, no event reports a
 * refusal by the peer, and everything works again when there are descriptors. An established connection has no
 * descriptor of its own.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <string.h>
#include <sys/resource.h>

#include "common.h"

enum { CONNECTIONS = 100, LIMIT = 128, PORT = 7471 };

static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener;
static int spare[LIMIT], spares;

static int descriptors(void)
{
	int count = 0;
	for (int fd = 0; fd < LIMIT; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static void exhaust(void)
{
	while ((spare[spares] = open("/dev/null", O_RDONLY)) >= 0)
		spares++;
	CHECK(errno == EMFILE);
}

static void release(void)
{
	while (spares)
		close(spare[--spares]);
}

static struct sockaddr_in at(int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return address;
}

static void add_qp(struct rdma_cm_id *id)
{
	static struct ibv_cq *cq;
	if (!cq)
		cq = ibv_create_cq(id->verbs, 1000, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp_init_attr init = qp_init(cq, NULL, 2);
	CHECK(!rdma_create_qp(id, NULL, &init));
}

/* Waits for the next event that is not a connection request, returns its type, and stores its identifier. Accepts
 * the requests that arrive before it. */
static enum rdma_cm_event_type next(struct rdma_cm_id **id)
{
	for (;;) {
		struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
		CHECK(poll(&fd, 1, 60000) == 1);
		struct rdma_cm_event *event;
		CHECK(!rdma_get_cm_event(channel, &event));
		enum rdma_cm_event_type type = event->event;
		*id = event->id;
		int is_accepted = event->listen_id == listener && type == RDMA_CM_EVENT_CONNECT_REQUEST;
		CHECK(!rdma_ack_cm_event(event));
		if (!is_accepted)
			return type;
		struct rdma_conn_param param = { .rnr_retry_count = 7 };
		add_qp(*id);
		CHECK(!rdma_accept(*id, &param));
	}
}

/* Makes an identifier with a queue pair, and with a resolved address and route. */
static struct rdma_cm_id *resolved(int is_bound)
{
	struct rdma_cm_id *id, *other;
	struct sockaddr_in there = at(PORT), here = at(0);
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, is_bound ? (struct sockaddr *)&here : NULL, (struct sockaddr *)&there, 2000));
	CHECK(next(&other) == RDMA_CM_EVENT_ADDR_RESOLVED && other == id);
	CHECK(!rdma_resolve_route(id, 2000));
	CHECK(next(&other) == RDMA_CM_EVENT_ROUTE_RESOLVED && other == id);
	add_qp(id);
	return id;
}

static int connect_to_peer(struct rdma_cm_id *id)
{
	struct rdma_conn_param param = { .rnr_retry_count = 7 };
	return rdma_connect(id, &param);
}

/* Connects, and waits until both ends report the connection. */
static void establish(struct rdma_cm_id *id)
{
	struct rdma_cm_id *ends[2];
	CHECK(!connect_to_peer(id));
	for (int end = 0; end < 2; end++)
		CHECK(next(&ends[end]) == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(ends[0] == id || ends[1] == id);
}

static struct rdma_cm_id *bound(int port)
{
	struct rdma_cm_id *id;
	struct sockaddr_in here = at(port);
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&here));
	return id;
}

static void is_refused(int outcome)
{
	CHECK(outcome == -1 && errno == EMFILE);
	errno = 0;
}

int main(void)
{
	struct rlimit limit = { .rlim_cur = LIMIT, .rlim_max = LIMIT };
	CHECK(!setrlimit(RLIMIT_NOFILE, &limit));

	/* The start of the engine fails, and is tried again later. */
	exhaust();
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count == 1);
	CHECK(!ibv_open_device(list[0]) && errno == EMFILE);
	errno = 0;
	CHECK(!rdma_create_event_channel() && errno == EMFILE);
	release();
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context);
	channel = rdma_create_event_channel();
	CHECK(channel);

	listener = bound(PORT);
	CHECK(!rdma_listen(listener, 0));
	establish(resolved(0));
	establish(resolved(1));
	int before = descriptors();
	for (int made = 2; made < CONNECTIONS; made++)
		establish(resolved(made % 2));
	CHECK(descriptors() == before);

	struct rdma_cm_id *waits[] = { resolved(0), resolved(1) }, *binds = bound(PORT + 1), *fresh;
	struct sockaddr_in there = at(PORT), here = at(PORT + 2);
	CHECK(!rdma_create_id(channel, &fresh, NULL, RDMA_PS_TCP));
	exhaust();
	is_refused(connect_to_peer(waits[0]));
	is_refused(connect_to_peer(waits[1]));
	is_refused(rdma_listen(binds, 0));
	is_refused(rdma_resolve_addr(fresh, NULL, (struct sockaddr *)&there, 2000));
	is_refused(rdma_bind_addr(fresh, (struct sockaddr *)&here));
	/* Without a descriptor, the library cannot find out whether another address belongs to this host. */
	here.sin_addr.s_addr = htonl(0xc0000201);
	is_refused(rdma_bind_addr(fresh, (struct sockaddr *)&here));
	is_refused(rdma_resolve_addr(fresh, NULL, (struct sockaddr *)&here, 2000));
	here = at(PORT + 2);
	CHECK(!rdma_create_event_channel() && errno == EMFILE);
	CHECK(!ibv_create_comp_channel(context) && errno == EMFILE);
	struct rdma_cm_id *sync;
	is_refused(rdma_create_id(NULL, &sync, NULL, RDMA_PS_TCP));
	/* No event reports that a peer has refused the connection. */
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	CHECK(poll(&fd, 1, 300) == 0);

	release();
	establish(waits[0]);
	establish(waits[1]);
	CHECK(!rdma_listen(binds, 0));
	CHECK(!rdma_bind_addr(fresh, (struct sockaddr *)&here));
	CHECK(ibv_create_comp_channel(context));
	return 0;
}
