/*
 * Tests the exported function ibv_query_port, which rdma-core's headers replace by an inline function. Programs in
 * other languages call the exported function, which fills the struct of older versions.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	int (*query_port)(struct ibv_context *, uint8_t, void *) = dlsym(RTLD_DEFAULT, "ibv_query_port");
	CHECK(query_port);
	/* The old struct ends before the last field of the new struct. */
	struct ibv_port_attr old, new;
	memset(&old, 0xa5, sizeof(old));
	CHECK(!query_port(context, 1, &old) && !ibv_query_port(context, 1, &new));
	CHECK(old.state == IBV_PORT_ACTIVE && new.state == IBV_PORT_ACTIVE);
	const size_t end = offsetof(struct ibv_port_attr, port_cap_flags2);
	CHECK(!memcmp(&old, &new, end));
	CHECK(old.port_cap_flags2 == 0xa5a5);
	CHECK(query_port(context, 2, &old));
	CHECK(!ibv_close_device(context));
	return 0;
}
