/*
 * Tests connections whose identifiers name a queue pair of type UD, as UCX's do: the connection carries private data and
 * its end, and the queue pair stays as it is. With UWARP_PRETEND=ib, the connecting side gets CONNECT_RESPONSE.
 */
#include <string.h>

#include "cm.h"

static const char *const host = "127.0.0.1";
static struct rdma_event_channel *channel;
static struct ibv_qp *dummy;

static void make_dummy(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = qp_init(cq, NULL, 1);
	init.qp_type = IBV_QPT_UD;
	CHECK((dummy = ibv_create_qp(pd, &init)));
}

/* Checks the type and the private data of the next event, and returns its identifier. */
static struct rdma_cm_id *with_data(enum rdma_cm_event_type type, const char *data)
{
	struct rdma_cm_event *event = next_event(channel, type);
	CHECK(event->param.conn.private_data_len >= strlen(data));
	CHECK(!memcmp(event->param.conn.private_data, data, strlen(data)));
	struct rdma_cm_id *id = event->id;
	rdma_ack_cm_event(event);
	return id;
}

static struct rdma_conn_param param_with(const char *data)
{
	return (struct rdma_conn_param){ .private_data = data, .private_data_len = strlen(data), .qp_num = dummy->qp_num };
}

/* Connects and disconnects. `ends` is the side that ends the connection: 0, the connecting one, or 1. */
static void connects(int ends)
{
	struct rdma_conn_param param = param_with("question");
	struct rdma_cm_id *ids[2] = { resolve(channel, host, 7471) };
	CHECK(!ids[0]->qp && !rdma_connect(ids[0], &param));
	ids[1] = with_data(RDMA_CM_EVENT_CONNECT_REQUEST, "question");
	/* UCX reads the path to the peer. */
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };
	int mask;
	CHECK(!rdma_init_qp_attr(ids[1], &attr, &mask) && attr.path_mtu >= IBV_MTU_1024 && attr.path_mtu <= IBV_MTU_4096);
	CHECK(attr.ah_attr.is_global && attr.ah_attr.port_num == 1 && attr.ah_attr.grh.hop_limit);
	param = param_with("answer");
	CHECK(!rdma_accept(ids[1], &param));
	int response = getenv("UWARP_PRETEND") != NULL;
	for (int both = 0; both < 2; both++) {
		struct rdma_cm_event *event = any_event(channel);
		int active = event->id == ids[0];
		CHECK(event->event == (active && response ? RDMA_CM_EVENT_CONNECT_RESPONSE : RDMA_CM_EVENT_ESTABLISHED));
		CHECK(!active || !memcmp(event->param.conn.private_data, "answer", 6));
		rdma_ack_cm_event(event);
	}
	CHECK(!rdma_establish(ids[0]) && state_of(dummy) == IBV_QPS_RESET);
	CHECK(!rdma_disconnect(ids[ends]));
	pass_event(channel, RDMA_CM_EVENT_DISCONNECTED);
	pass_event(channel, RDMA_CM_EVENT_DISCONNECTED);
	for (int at = 0; at < 2; at++)
		CHECK(!rdma_destroy_id(ids[at]));
	CHECK(state_of(dummy) == IBV_QPS_RESET);
}

/* The listener rejects, and an identifier is destroyed while it is connected. */
static void ends_otherwise(void)
{
	struct rdma_conn_param param = param_with("question");
	struct rdma_cm_id *id = resolve(channel, host, 7471), *other;
	CHECK(!rdma_connect(id, &param));
	other = with_data(RDMA_CM_EVENT_CONNECT_REQUEST, "question");
	CHECK(!rdma_reject(other, "no", 2) && !rdma_destroy_id(other));
	CHECK(with_data(RDMA_CM_EVENT_REJECTED, "no") == id && !rdma_destroy_id(id));
	id = resolve(channel, host, 7471);
	CHECK(!rdma_connect(id, &param));
	other = with_data(RDMA_CM_EVENT_CONNECT_REQUEST, "question");
	CHECK(!rdma_accept(other, &param));
	for (int both = 0; both < 2; both++)
		rdma_ack_cm_event(any_event(channel));
	CHECK(!rdma_destroy_id(id));
	pass_event(channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(!rdma_destroy_id(other));
	/* Nobody listens there. */
	id = resolve(channel, host, 7472);
	CHECK(!rdma_connect(id, &param));
	pass_event(channel, RDMA_CM_EVENT_REJECTED);
	CHECK(!rdma_destroy_id(id));
}

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	CHECK(pd && cq && (channel = rdma_create_event_channel()));
	make_dummy(pd, cq);
	struct rdma_cm_id *listener = listen_at(channel, host, 7471);
	connects(0);
	connects(1);
	ends_otherwise();
	CHECK(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
	CHECK(!ibv_destroy_qp(dummy) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
