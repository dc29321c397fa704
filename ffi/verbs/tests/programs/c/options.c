/*
 * Tests that the timeout of an identifier applies to its queue pair, whether the timeout is set before or after the
 * queue pair is made.
 */
#include <netinet/in.h>
#include <rdma/rdma_cma.h>

#include "common.h"

static void set(struct rdma_cm_id *id, uint8_t timeout)
{
	CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout)));
}

static int timeout_of(struct rdma_cm_id *id)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(id->qp, &attr, IBV_QP_TIMEOUT, &init));
	return attr.timeout;
}

int main(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct rdma_cm_id *id;
	uint32_t wide = 9;
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&at));
	set(id, 17);
	CHECK(!rdma_create_qp(id, NULL, &init) && timeout_of(id) == 17);
	set(id, 21);
	CHECK(timeout_of(id) == 21);
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &wide, sizeof(wide)) == -1);
	CHECK(errno == EINVAL && timeout_of(id) == 21);
	rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
	return 0;
}
