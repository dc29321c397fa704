/*
 * Tests many requests at the same moment, for a listener with a small backlog whose events are read late: all
 * requests wait, and no request is rejected.
 */
#include "cm.h"

enum { PORT = 7481, COUNT = 400 };

static struct rdma_cm_id *asks[COUNT], *answers[COUNT];
static struct ibv_cq *cq;

static void add_qp(struct rdma_cm_id *id)
{
	if (!cq)
		CHECK((cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0)));
	struct ibv_qp_init_attr init = qp_init(cq, NULL, 1);
	CHECK(!rdma_create_qp(id, NULL, &init));
}

static void burst(const char *host, int backlog)
{
	struct rdma_event_channel *asking = rdma_create_event_channel(), *answering = rdma_create_event_channel();
	CHECK(asking && answering);
	struct sockaddr_in address = address_of(host, PORT);
	struct rdma_cm_id *listener;
	CHECK(!rdma_create_id(answering, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&address) && !rdma_listen(listener, backlog));
	for (int i = 0; i < COUNT; i++) {
		asks[i] = resolve(asking, host, PORT);
		add_qp(asks[i]);
	}
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	for (int i = 0; i < COUNT; i++)
		CHECK(!rdma_connect(asks[i], &param));
	/* The requests arrive and wait. The clients get no event before their requests are accepted. */
	CHECK(is_silent(asking));
	for (int requests = 0, established = 0; established < COUNT;) {
		struct rdma_cm_event *event = any_event(answering);
		enum rdma_cm_event_type type = event->event;
		struct rdma_cm_id *id = event->id;
		rdma_ack_cm_event(event);
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			add_qp(id);
			CHECK(!rdma_accept(id, &param) && requests < COUNT);
			answers[requests++] = id;
		} else {
			CHECK(type == RDMA_CM_EVENT_ESTABLISHED);
			established++;
		}
	}
	for (int i = 0; i < COUNT; i++)
		pass_event(asking, RDMA_CM_EVENT_ESTABLISHED);
	for (int i = 0; i < COUNT; i++) {
		struct rdma_cm_id *ids[2] = { asks[i], answers[i] };
		for (int end = 0; end < 2; end++) {
			rdma_destroy_qp(ids[end]);
			CHECK(!rdma_destroy_id(ids[end]));
		}
	}
	CHECK(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(asking);
	rdma_destroy_event_channel(answering);
}

int main(void)
{
	burst("127.0.0.1", 1);
	burst("127.0.0.1", 100);
	burst("127.0.0.1", 0);
	return 0;
}
