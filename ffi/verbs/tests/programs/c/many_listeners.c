/*
 * Tests that a process can listen at many ports, as with the kernel's rdma_cm: DAPL listens at 100 and more. A
 * connection to each port reaches the identifier that listens there.
 */
#include "cm.h"

enum { LISTENERS = 200 };

int main(void)
{
	struct rdma_event_channel *servers = rdma_create_event_channel(), *clients = rdma_create_event_channel();
	struct rdma_cm_id *listeners[LISTENERS];
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	CHECK(servers && clients);
	for (int i = 0; i < LISTENERS; i++)
		listeners[i] = listen_at(servers, "127.0.0.1", 0);
	for (int i = 0; i < LISTENERS; i++) {
		struct rdma_cm_id *client = resolve(clients, "127.0.0.1", ntohs(rdma_get_src_port(listeners[i])));
		give_qp(client, 1);
		CHECK(!rdma_connect(client, &param));
		struct rdma_cm_event *event = next_event(servers, RDMA_CM_EVENT_CONNECT_REQUEST);
		struct rdma_cm_id *server = event->id;
		CHECK(event->listen_id == listeners[i]);
		rdma_ack_cm_event(event);
		CHECK(!rdma_reject(server, NULL, 0));
		destroy(server);
		pass_event(clients, RDMA_CM_EVENT_REJECTED);
		destroy(client);
	}
	for (int i = 0; i < LISTENERS; i++)
		destroy(listeners[i]);
	rdma_destroy_event_channel(servers);
	rdma_destroy_event_channel(clients);
	return 0;
}
