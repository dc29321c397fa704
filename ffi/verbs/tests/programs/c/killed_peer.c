/*
 * Tests the end whose peer is killed: the oldest outstanding send request fails with IBV_WC_RETRY_EXC_ERR, all other
 * requests are flushed, and the event of the connection has the reason. Without the connection manager, an event of
 * the queue pair takes the place of this event. The receives of a queue pair without a send are also flushed, unlike
 * on a hardware device.
 *
 * `killed_peer [HOST]`: both ends are at this address.
 */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "cm.h"

enum { DEPTH = 16, PORT = 7471, SENDS = 3, RECVS = 2 };

/* Posts requests at the surviving end. The other end has no receive for the sends. */
static void post_all(struct ibv_qp *qp, int sends)
{
	for (int i = 0; i < RECVS; i++)
		CHECK(!post_empty_recv(qp, 100 + i));
	for (int i = 0; i < sends; i++)
		CHECK(!post_empty_send(qp, i));
}

static void expect_all(struct ibv_cq *send_cq, struct ibv_cq *recv_cq, int sends)
{
	for (int i = 0; i < sends; i++)
		expect(send_cq, i, i ? IBV_WC_WR_FLUSH_ERR : IBV_WC_RETRY_EXC_ERR);
	for (int i = 0; i < RECVS; i++)
		expect(recv_cq, 100 + i, IBV_WC_WR_FLUSH_ERR);
}

/* Checks that the queue pair is in ERR, and that later requests are flushed. */
static void expect_error(struct ibv_qp *qp)
{
	CHECK(state_of(qp) == IBV_QPS_ERR);
	CHECK(!post_empty_send(qp, 7) && !post_empty_recv(qp, 107));
	expect(qp->send_cq, 7, IBV_WC_WR_FLUSH_ERR);
	expect(qp->recv_cq, 107, IBV_WC_WR_FLUSH_ERR);
}

static void kill_and_wait(pid_t child)
{
	CHECK(!kill(child, SIGKILL));
	CHECK(waitpid(child, NULL, 0) == child);
}

/* Tests a connection that is made by the connection manager. If `passive`, the end that listens survives. */
static void managed(const char *host, int passive, int sends)
{
	int ready[2];
	char byte;
	CHECK(!pipe(ready));
	pid_t child = fork();
	CHECK(child >= 0);
	int survives = child != 0;
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id, *listener = NULL;
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	CHECK(channel);
	if (survives == passive) {
		listener = listen_at(channel, host, PORT);
		id = next_request(channel);
		give_qp(id, DEPTH);
		CHECK(!rdma_accept(id, &param));
	} else {
		id = resolve(channel, host, PORT);
		give_qp(id, DEPTH);
		CHECK(!rdma_connect(id, &param));
	}
	pass_event(channel, RDMA_CM_EVENT_ESTABLISHED);
	if (!child) {
		CHECK(write(ready[1], "", 1) == 1);
		for (;;)
			pause();
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	post_all(id->qp, sends);
	kill_and_wait(child);
	expect_all(id->send_cq, id->recv_cq, sends);
	struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_DISCONNECTED);
	fprintf(stderr, "DISCONNECTED %d\n", event->status);
	CHECK(event->status == -ECONNRESET || event->status == -ETIMEDOUT);
	rdma_ack_cm_event(event);
	expect_error(id->qp);
	destroy(id);
	if (listener)
		destroy(listener);
	rdma_destroy_event_channel(channel);
}

/* Synchronous identifiers have channels of their own, which librdmacm's rsockets read. rsockets ignore an event
 * with an error, so the disconnect event of such an identifier has status 0. */
static void synchronous(const char *host, int passive)
{
	int ready[2];
	char byte;
	CHECK(!pipe(ready));
	pid_t child = fork();
	CHECK(child >= 0);
	int survives = child != 0;
	struct rdma_addrinfo *info, hints = { .ai_port_space = RDMA_PS_TCP };
	struct ibv_qp_init_attr init = qp_init(NULL, NULL, DEPTH);
	struct rdma_cm_id *id, *listener = NULL;
	char port[8];
	snprintf(port, sizeof(port), "%d", PORT);
	hints.ai_flags = survives == passive ? RAI_PASSIVE : 0;
	CHECK(!rdma_getaddrinfo(host, port, &hints, &info));
	if (survives == passive) {
		CHECK(!rdma_create_ep(&listener, info, NULL, &init) && !rdma_listen(listener, 1));
		CHECK(!rdma_get_request(listener, &id) && !rdma_accept(id, NULL));
	} else {
		CHECK(!rdma_create_ep(&id, info, NULL, &init) && !rdma_connect(id, NULL));
	}
	rdma_freeaddrinfo(info);
	if (!child) {
		CHECK(write(ready[1], "", 1) == 1);
		for (;;)
			pause();
	}
	CHECK(read(ready[0], &byte, 1) == 1);
	CHECK(!post_empty_recv(id->qp, 1));
	kill_and_wait(child);
	expect(id->recv_cq, 1, IBV_WC_WR_FLUSH_ERR);
	struct rdma_cm_event *event = next_event(id->channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(event->status == 0);
	rdma_ack_cm_event(event);
	rdma_destroy_ep(id);
	if (listener)
		rdma_destroy_ep(listener);
}

struct name {
	union ibv_gid gid;
	uint32_t number;
};

/* Tests a connection that is made without the connection manager. */
static void by_gid(int sends)
{
	int to_child[2], to_parent[2];
	char byte;
	CHECK(!pipe(to_child) && !pipe(to_parent));
	pid_t child = fork();
	CHECK(child >= 0);
	int out = child ? to_child[1] : to_parent[1], in = child ? to_parent[0] : to_child[0];
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *send_cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
	struct ibv_cq *recv_cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
	CHECK(pd && send_cq && recv_cq);
	struct ibv_qp_init_attr init = qp_init(send_cq, NULL, DEPTH);
	init.recv_cq = recv_cq;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	init_qp(qp);
	struct name ours = { .number = qp->qp_num }, peer;
	CHECK(!ibv_query_gid(context, 1, 0, &ours.gid));
	CHECK(write(out, &ours, sizeof(ours)) == sizeof(ours) && read(in, &peer, sizeof(peer)) == sizeof(peer));
	to_rtr_of(qp, peer.gid, peer.number, 12);
	to_rts(qp, 14, 7);
	/* One message is sent in each direction, so that there is a connection. */
	CHECK(!post_empty_recv(qp, 50));
	CHECK(!post_empty_send(qp, 60));
	expect(recv_cq, 50, IBV_WC_SUCCESS);
	expect(send_cq, 60, IBV_WC_SUCCESS);
	CHECK(write(out, "", 1) == 1);
	if (!child)
		for (;;)
			pause();
	CHECK(read(in, &byte, 1) == 1);
	post_all(qp, sends);
	kill_and_wait(child);
	expect_all(send_cq, recv_cq, sends);
	struct ibv_async_event event;
	CHECK(!ibv_get_async_event(context, &event));
	CHECK(event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == qp);
	ibv_ack_async_event(&event);
	expect_error(qp);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(send_cq) && !ibv_destroy_cq(recv_cq));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
}

/* Each case runs in a child process that is forked before verbs are used. */
int main(int argc, char **argv)
{
	const char *host = argc > 1 ? argv[1] : "127.0.0.1";
	for (int row = 0; row < 8; row++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			int sends = row & 1 ? SENDS : 0;
			if (row < 4)
				managed(host, !!(row & 2), sends);
			else if (row < 6)
				by_gid(sends);
			else
				synchronous(host, row & 1);
			exit(0);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child);
		if (status)
			fprintf(stderr, "row %d\n", row);
		CHECK(!status);
	}
	puts("the oldest request under way fails, and all others are flushed");
	return 0;
}
