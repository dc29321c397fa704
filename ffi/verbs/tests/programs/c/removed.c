/*
 * Tests the removal of the device, when the interface of the wire is removed. The first argument is the address of this
 * process. The order of the events is the kernel's: the port's error, RDMA_CM_EVENT_DEVICE_REMOVAL for each identifier
 * with a device, and IBV_EVENT_DEVICE_FATAL for each context. Prints `ready` before it waits for the removal.
 */
#include <string.h>

#include "cm.h"

enum { PORT = 7471, WITH_DEVICE = 4 };

static void next_async(struct ibv_context *context, enum ibv_event_type type)
{
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;
	do {
		CHECK(poll(&fd, 1, 60000) == 1 && !ibv_get_async_event(context, &event));
		ibv_ack_async_event(&event);
		/* The queue pairs whose connection ends have events of their own. */
	} while (event.event_type == IBV_EVENT_QP_FATAL);
	if (event.event_type != type)
		fprintf(stderr, "%s for %s\n", ibv_event_type_str(event.event_type), ibv_event_type_str(type));
	CHECK(event.event_type == type && event.element.port_num == 1);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	struct ibv_context *contexts[2] = { open_device(), open_device() };
	struct ibv_pd *pd = ibv_alloc_pd(contexts[0]);
	struct ibv_cq *cq = ibv_create_cq(contexts[0], 16, NULL, NULL, 0);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	static char memory[64];
	CHECK(pd && cq && channel);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	/* Two queue pairs that were connected without the connection manager. */
	struct ibv_qp *qps[2] = { make_qp(pd, cq, 4), make_qp(pd, cq, 4) };
	CHECK(mr);
	connect_qp(qps[0], qps[1]->qp_num);
	connect_qp(qps[1], qps[0]->qp_num);
	struct ibv_send_wr *bad, send = { .wr_id = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };
	CHECK(!ibv_post_send(qps[0], &send, &bad) && next_of(cq).status == IBV_WC_SUCCESS);
	/* Four identifiers with the device: a listener at an address, both ends of a connection, and one whose address is
	 * resolved. A listener at all addresses and a new identifier have no device. */
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_id *ids[6] = { listen_at(channel, argv[1], PORT), resolve(channel, argv[1], PORT) };
	ids[4] = listen_at(channel, "0.0.0.0", PORT + 1);
	CHECK(!rdma_create_id(channel, &ids[5], NULL, RDMA_PS_TCP));
	give_qp(ids[1], 4);
	CHECK(!rdma_connect(ids[1], &param));
	ids[2] = next_request(channel);
	give_qp(ids[2], 4);
	CHECK(!rdma_accept(ids[2], &param));
	pass_event(channel, RDMA_CM_EVENT_ESTABLISHED);
	pass_event(channel, RDMA_CM_EVENT_ESTABLISHED);
	ids[3] = resolve(channel, argv[1], PORT);
	CHECK(ids[0]->verbs && !ids[4]->verbs && !ids[5]->verbs);
	puts("ready");
	fflush(stdout);

	for (int i = 0; i < 2; i++)
		next_async(contexts[i], IBV_EVENT_PORT_ERR);
	next_async(contexts[0], IBV_EVENT_DEVICE_FATAL);
	/* The connection manager's events are there before, and there are no others. */
	for (int seen = 0; seen != (1 << WITH_DEVICE) - 1;) {
		struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
		CHECK(poll(&fd, 1, 0) == 1);
		struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_DEVICE_REMOVAL);
		int at = 0;
		while (at < WITH_DEVICE && event->id != ids[at])
			at++;
		CHECK(at < WITH_DEVICE && !(seen & 1 << at) && !event->status);
		seen |= 1 << at;
		rdma_ack_cm_event(event);
	}
	next_async(contexts[1], IBV_EVENT_DEVICE_FATAL);
	CHECK(is_silent(channel));
	/* Connections are over, and requests are flushed. */
	CHECK(state_of(ids[1]->qp) == IBV_QPS_ERR && state_of(ids[2]->qp) == IBV_QPS_ERR);
	CHECK(!post_empty_send(ids[1]->qp, 7));
	expect(ids[1]->send_cq, 7, IBV_WC_WR_FLUSH_ERR);
	CHECK(!post_empty_recv(ids[2]->qp, 8));
	expect(ids[2]->recv_cq, 8, IBV_WC_WR_FLUSH_ERR);
	CHECK(!ibv_post_send(qps[0], &send, &bad) && next_of(cq).status != IBV_WC_SUCCESS);
	CHECK(state_of(qps[0]) == IBV_QPS_ERR);
	/* The port is down, and no call makes an object. */
	struct ibv_port_attr port;
	struct ibv_device_attr attr;
	CHECK(!ibv_query_port(contexts[0], 1, &port) && port.state == IBV_PORT_DOWN);
	CHECK(!ibv_query_device(contexts[0], &attr));
	errno = 0;
	CHECK(!ibv_alloc_pd(contexts[0]) && errno == EIO);
	errno = 0;
	CHECK(!ibv_create_cq(contexts[0], 1, NULL, NULL, 0) && errno == EIO);
	errno = 0;
	CHECK(!ibv_reg_mr(pd, memory, sizeof(memory), 0) && errno == EIO);
	struct ibv_qp_init_attr init = qp_init(cq, NULL, 1);
	errno = 0;
	CHECK(!ibv_create_qp(pd, &init) && errno == EIO);
	struct rdma_cm_id *id;
	errno = 0;
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) && errno == EIO);
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	errno = 0;
	CHECK(list && !ibv_open_device(list[0]) && errno == EIO);
	ibv_free_device_list(list);
	/* All objects can be destroyed. */
	for (int i = 5; i >= 0; i--)
		destroy(ids[i]);
	rdma_destroy_event_channel(channel);
	CHECK(!ibv_destroy_qp(qps[0]) && !ibv_destroy_qp(qps[1]) && !ibv_dereg_mr(mr));
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
	CHECK(!ibv_close_device(contexts[0]) && !ibv_close_device(contexts[1]));
	return 0;
}
