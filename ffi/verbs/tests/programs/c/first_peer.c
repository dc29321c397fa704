/*
 * Tests a device whose wire has one peer, which does not connect while this program runs. The missing peer is no
 * failure: the port is active (programs check this before they listen), and there is no event.
 */
#include <poll.h>
#include <unistd.h>

#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	for (int looks = 0; looks < 50; looks++) {
		struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
		struct ibv_port_attr port;
		CHECK(!ibv_query_port(context, 1, &port) && port.state == IBV_PORT_ACTIVE && port.phys_state == 5);
		CHECK(poll(&fd, 1, 10) == 0);
	}
	CHECK(!ibv_close_device(context));
	return 0;
}
