/* Functions for connections by the connection manager, for the programs of this folder. */
#ifndef CM_H
#define CM_H

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <time.h>

#include "common.h"

/* Waits for the next event of a channel, of any type. */
static inline struct rdma_cm_event *any_event(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;
	struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
	/* If the library has no thread, only its calls deliver events, and poll() would wait for ever. */
	CHECK(getenv("UWARP_THREAD") || poll(&fd, 1, 60000) == 1);
	CHECK(!rdma_get_cm_event(channel, &event));
	return event;
}

/* Waits for the next event of a channel, which has to be of this type. */
static inline struct rdma_cm_event *next_event(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event = any_event(channel);
	if (event->event != type)
		fprintf(stderr, "%s, status %d, for %s\n", rdma_event_str(event->event), event->status,
			rdma_event_str(type));
	CHECK(event->event == type);
	return event;
}

static inline void pass_event(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	rdma_ack_cm_event(next_event(channel, type));
}

/* Whether no event arrives at a channel for a while. The descriptor may have been readable for an event that was
 * removed with its identifier. */
static inline int is_silent(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;
	int flags = fcntl(channel->fd, F_GETFL), result;
	CHECK(flags >= 0 && !fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK));
	usleep(200000);
	result = rdma_get_cm_event(channel, &event);
	if (!result)
		fprintf(stderr, "%s, status %d\n", rdma_event_str(event->event), event->status);
	else
		CHECK(errno == EAGAIN);
	CHECK(!fcntl(channel->fd, F_SETFL, flags));
	return result != 0;
}

/*
 * Waits for the next completion, which has to have this wr_id and status. The time limit is longer than the
 * time after which the library ends the connection to a silent peer.
 */
static inline void expect(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc;
	for (time_t end = time(NULL) + 60; !ibv_poll_cq(cq, 1, &wc); usleep(100))
		CHECK(time(NULL) < end);
	if (wc.wr_id != wr_id || wc.status != status)
		fprintf(stderr, "request %d: %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status));
	CHECK(wc.wr_id == wr_id && wc.status == status);
}

static inline struct sockaddr_in address_of(const char *text, uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	CHECK(inet_pton(AF_INET, text, &address.sin_addr) == 1);
	return address;
}

/* Makes an identifier that listens. */
static inline struct rdma_cm_id *listen_at(struct rdma_event_channel *channel, const char *host, uint16_t port)
{
	struct sockaddr_in address = address_of(host, port);
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&address) && !rdma_listen(id, 16));
	return id;
}

/* Makes an identifier with a resolved address and route to a listener. */
static inline struct rdma_cm_id *resolve(struct rdma_event_channel *channel, const char *host, uint16_t port)
{
	struct sockaddr_in address = address_of(host, port);
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
	pass_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(id, 2000));
	pass_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

/* Waits for the next request, and returns its identifier. */
static inline struct rdma_cm_id *next_request(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *id = event->id;
	rdma_ack_cm_event(event);
	return id;
}

/* Makes a queue pair for an identifier, with a completion queue for each of its queues. */
static inline void give_qp(struct rdma_cm_id *id, uint32_t depth)
{
	struct ibv_cq *send_cq, *recv_cq;
	CHECK((send_cq = ibv_create_cq(id->verbs, depth, NULL, NULL, 0)));
	CHECK((recv_cq = ibv_create_cq(id->verbs, depth, NULL, NULL, 0)));
	struct ibv_qp_init_attr init = qp_init(send_cq, NULL, depth);
	init.recv_cq = recv_cq;
	CHECK(!rdma_create_qp(id, NULL, &init));
}

/* Destroys an identifier, with the objects that `give_qp` has made, if any. */
static inline void destroy(struct rdma_cm_id *id)
{
	if (id->qp) {
		struct ibv_cq *cqs[2] = { id->send_cq, id->recv_cq };
		rdma_destroy_qp(id);
		CHECK(!ibv_destroy_cq(cqs[0]) && !ibv_destroy_cq(cqs[1]));
	}
	CHECK(!rdma_destroy_id(id));
}

/* Posts a Send without bytes. */
static inline int post_empty_send(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_send_wr *bad, wr = { .wr_id = wr_id, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	return ibv_post_send(qp, &wr, &bad);
}

/* Posts a receive without bytes. */
static inline int post_empty_recv(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_recv_wr *bad, wr = { .wr_id = wr_id };
	return ibv_post_recv(qp, &wr, &bad);
}

#endif
