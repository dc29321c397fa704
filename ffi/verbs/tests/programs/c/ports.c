/*
 * Tests that each open context gets an event when the link of the port goes down, and that a query reports the
 * state. Prints `ready` before it waits for the event.
 */
#include <poll.h>

#include "common.h"

int main(void)
{
	struct ibv_context *contexts[2] = { open_device(), open_device() };
	struct ibv_port_attr port;
	CHECK(!ibv_query_port(contexts[0], 1, &port) && port.state == IBV_PORT_ACTIVE && port.phys_state == 5);
	puts("ready");
	fflush(stdout);
	for (int i = 0; i < 2; i++) {
		struct pollfd fd = { .fd = contexts[i]->async_fd, .events = POLLIN };
		struct ibv_async_event event;
		CHECK(poll(&fd, 1, 60000) == 1 && !ibv_get_async_event(contexts[i], &event));
		CHECK(event.event_type == IBV_EVENT_PORT_ERR && event.element.port_num == 1);
		ibv_ack_async_event(&event);
		CHECK(!ibv_query_port(contexts[i], 1, &port) && port.state == IBV_PORT_DOWN && port.phys_state == 3);
		CHECK(poll(&fd, 1, 0) == 0);
	}
	CHECK(!ibv_close_device(contexts[0]) && !ibv_close_device(contexts[1]));
	return 0;
}
