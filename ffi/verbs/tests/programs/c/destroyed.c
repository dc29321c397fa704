/*
 * Tests destroyed identifiers and channels, which perftest uses after its peer has refused the connection. Each call
 * with such an identifier or channel is refused.
 */
#include <netinet/in.h>
#include <rdma/rdma_verbs.h>
#include <string.h>

#include "common.h"

#define REFUSED(call) do { errno = 0; CHECK((call) == -1 && errno == EINVAL); } while (0)

static void refused(struct rdma_cm_id *id)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7000), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr *address = (struct sockaddr *)&to;
	struct rdma_conn_param param = { 0 };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	int mask;
	REFUSED(rdma_bind_addr(id, address));
	REFUSED(rdma_resolve_addr(id, NULL, address, 1000));
	REFUSED(rdma_resolve_route(id, 1000));
	REFUSED(rdma_create_qp(id, NULL, &init));
	REFUSED(rdma_listen(id, 1));
	REFUSED(rdma_connect(id, &param));
	REFUSED(rdma_accept(id, &param));
	REFUSED(rdma_reject(id, NULL, 0));
	REFUSED(rdma_disconnect(id));
	REFUSED(rdma_init_qp_attr(id, &attr, &mask));
	REFUSED(rdma_migrate_id(id, NULL));
	REFUSED(rdma_destroy_id(id));
	CHECK(!rdma_get_src_port(id) && !rdma_get_dst_port(id));
	rdma_destroy_qp(id);
	rdma_destroy_srq(id);
	rdma_destroy_ep(id);
}

int main(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(channel);
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_destroy_id(id));
	refused(id);
	/* No identifier or other struct ever had these addresses. */
	refused((struct rdma_cm_id *)0x1234567);
	refused(NULL);
	rdma_destroy_event_channel(channel);
	REFUSED(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	rdma_destroy_event_channel(channel);
	return 0;
}
