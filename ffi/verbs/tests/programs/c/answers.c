/*
 * Tests queries without a connection: the device's limits, rates, unsupported features (which fail with an error),
 * names of hosts and services, and the shared receive queues of identifiers.
 */
#include <rdma/rdma_verbs.h>
#include <string.h>

#include "cm.h"

#define REFUSED(call, number)                    \
	do {                                     \
		errno = 0;                       \
		CHECK((call) && errno == number); \
	} while (0)

static void device(struct ibv_context *context)
{
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	int count = 0;
	CHECK(!ibv_query_device(context, &attr) && !ibv_query_port(context, 1, &port));
	CHECK(attr.node_guid == ibv_get_device_guid(context->device) && attr.sys_image_guid == attr.node_guid);
	CHECK(attr.max_sge == 8 && attr.max_sge_rd == 8 && attr.max_srq_sge == 8);
	CHECK(attr.max_qp_rd_atom == 128 && attr.max_qp_init_rd_atom == 128 && attr.max_res_rd_atom > 128);
	CHECK(attr.atomic_cap == IBV_ATOMIC_HCA && attr.phys_port_cnt == 1 && attr.max_pkeys == 1);
	CHECK(attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW && attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
	CHECK(port.max_msg_sz == INT32_MAX && port.gid_tbl_len == 6 && port.pkey_tbl_len == 1);
	CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET && port.phys_state == 5);
	CHECK(!strcmp(ibv_get_device_name(context->device), "uwarp0"));
	struct ibv_context **list = rdma_get_devices(&count);
	CHECK(list && count == 1 && list[0] && !list[1]);
	rdma_free_devices(list);
	/* The maximums for shared receive queues are granted, and a request for more is refused. */
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_srq_init_attr of_srq = { .attr = { .max_wr = attr.max_srq_wr, .max_sge = attr.max_srq_sge } };
	struct ibv_srq *srq = ibv_create_srq(pd, &of_srq);
	CHECK(pd && srq && !ibv_destroy_srq(srq));
	of_srq.attr.max_wr++;
	REFUSED(!ibv_create_srq(pd, &of_srq), EINVAL);
	/* A parent domain needs a domain of this context that is not a parent itself, and a known mask. */
	struct ibv_context *other = open_device();
	struct ibv_pd *foreign = ibv_alloc_pd(other), *parent;
	struct ibv_parent_domain_init_attr of_parent = { .pd = pd };
	struct ibv_td_init_attr of_td = { .comp_mask = 1 };
	CHECK(foreign && (parent = ibv_alloc_parent_domain(context, &of_parent)) && ibv_dealloc_pd(pd) == EBUSY);
	of_parent.pd = parent;
	REFUSED(!ibv_alloc_parent_domain(context, &of_parent), EINVAL);
	of_parent.pd = foreign;
	REFUSED(!ibv_alloc_parent_domain(context, &of_parent), EINVAL);
	of_parent.pd = NULL;
	REFUSED(!ibv_alloc_parent_domain(context, &of_parent), EINVAL);
	of_parent = (struct ibv_parent_domain_init_attr){ .pd = pd, .comp_mask = 1 << 20 };
	REFUSED(!ibv_alloc_parent_domain(context, &of_parent), EINVAL);
	REFUSED(!ibv_alloc_td(context, &of_td), EINVAL);
	/* An address handle needs a GID or a LID. A queue pair of type RC joins no multicast group. */
	struct ibv_ah_attr ah = { .port_num = 1 };
	union ibv_gid gid;
	CHECK(!ibv_query_gid(context, 1, 0, &gid));
	REFUSED(!ibv_create_ah(pd, &ah), EINVAL);
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp *qp = make_qp(pd, cq, 1);
	CHECK(ibv_attach_mcast(qp, &gid, 0) == EINVAL && ibv_detach_mcast(qp, &gid, 0) == EINVAL);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(parent) && !ibv_dealloc_pd(pd));
	/* Closing a device does not free its objects, which can be freed afterwards. */
	CHECK(!ibv_close_device(other) && !ibv_dealloc_pd(foreign));
}

static void rates(void)
{
	CHECK(ibv_rate_to_mult(IBV_RATE_2_5_GBPS) == 1 && ibv_rate_to_mult(IBV_RATE_300_GBPS) == 120);
	CHECK(ibv_rate_to_mbps(IBV_RATE_10_GBPS) == 10000 && ibv_rate_to_mbps(IBV_RATE_14_GBPS) == 14062);
	CHECK(mult_to_ibv_rate(4) == IBV_RATE_10_GBPS && mbps_to_ibv_rate(25781) == IBV_RATE_25_GBPS);
	CHECK(ibv_rate_to_mult(99) == -1 && ibv_rate_to_mbps(99) == -1);
	CHECK(mult_to_ibv_rate(3) == IBV_RATE_MAX && mbps_to_ibv_rate(3) == IBV_RATE_MAX);
}

static void names(void)
{
	struct rdma_addrinfo hints = { .ai_port_space = 0 }, *found;
	REFUSED(rdma_getaddrinfo(NULL, NULL, NULL, &found), EINVAL);
	REFUSED(rdma_getaddrinfo(NULL, NULL, &hints, &found), EINVAL);
	CHECK(!rdma_getaddrinfo("127.0.0.1", "7471", NULL, &found));
	CHECK(!found->ai_src_addr && found->ai_dst_addr && found->ai_family == AF_INET && !found->ai_next);
	CHECK(found->ai_qp_type == IBV_QPT_RC && found->ai_port_space == RDMA_PS_TCP);
	CHECK(((struct sockaddr_in *)found->ai_dst_addr)->sin_port == htons(7471));
	rdma_freeaddrinfo(found);
	hints.ai_flags = RAI_PASSIVE;
	CHECK(!rdma_getaddrinfo(NULL, "7471", &hints, &found) && found->ai_src_addr && !found->ai_dst_addr);
	rdma_freeaddrinfo(found);
	/* A source in the hints is returned with the destination that the program names. */
	struct sockaddr_in from = address_of("127.0.0.1", 99);
	hints = (struct rdma_addrinfo){ .ai_src_addr = (struct sockaddr *)&from, .ai_src_len = sizeof(from) };
	CHECK(!rdma_getaddrinfo("127.0.0.1", "7471", &hints, &found) && found->ai_dst_addr && found->ai_src_addr);
	CHECK(!memcmp(found->ai_src_addr, &from, sizeof(from)) && found->ai_src_addr != (struct sockaddr *)&from);
	rdma_freeaddrinfo(found);
	/* With these flags, the name must be numeric and of the given family. */
	hints = (struct rdma_addrinfo){ .ai_flags = RAI_NUMERICHOST };
	REFUSED(rdma_getaddrinfo("localhost", "7471", &hints, &found), ENODATA);
	hints = (struct rdma_addrinfo){ .ai_flags = RAI_NUMERICHOST | RAI_FAMILY, .ai_family = AF_INET6 };
	CHECK(rdma_getaddrinfo("127.0.0.1", "7471", &hints, &found));
	hints.ai_flags = RAI_NUMERICHOST;
	CHECK(!rdma_getaddrinfo("127.0.0.1", "7471", &hints, &found) && found->ai_family == AF_INET);
	rdma_freeaddrinfo(found);
}

/* The queue pair of an identifier uses the identifier's shared receive queue, unless the program names another
 * shared receive queue. */
static void shared_queues(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = resolve(channel, "127.0.0.1", 7471);
	struct ibv_srq_init_attr of_srq = { .attr = { .max_wr = 3, .max_sge = 1 } };
	struct ibv_srq_init_attr_ex of_ex = { .attr = of_srq.attr, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE };
	of_ex.srq_type = IBV_SRQT_XRC;
	REFUSED(rdma_create_srq_ex(id, &of_ex), EOPNOTSUPP);
	CHECK(!id->srq && !rdma_create_srq(id, NULL, &of_srq) && id->srq && id->srq->pd == id->pd);
	for (int is_ex = 0; is_ex < 2; is_ex++) {
		struct ibv_qp_init_attr init = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
		struct ibv_qp_init_attr_ex ex = { .cap = init.cap, .qp_type = IBV_QPT_RC };
		CHECK(!(is_ex ? rdma_create_qp_ex(id, &ex) : rdma_create_qp(id, NULL, &init)));
		CHECK(id->qp->srq == id->srq && id->qp->pd == id->pd);
		/* The completion queue has a place for each receive of the shared receive queue. */
		CHECK(id->recv_cq->cqe >= 3 && id->send_cq->cqe >= 1);
		/* An identifier has at most one queue pair. A refused call changes nothing. */
		struct rdma_cm_id before = *id;
		struct ibv_qp_init_attr again = init;
		struct ibv_qp_init_attr_ex again_ex = { .cap = init.cap, .qp_type = IBV_QPT_RC };
		again.send_cq = again.recv_cq = NULL;
		REFUSED(rdma_create_qp(id, NULL, &again), EINVAL);
		REFUSED(rdma_create_qp_ex(id, &again_ex), EINVAL);
		CHECK(id->qp == before.qp && id->recv_cq == before.recv_cq && id->send_cq == before.send_cq);
		rdma_destroy_qp(id);
		CHECK(!id->qp);
	}
	rdma_destroy_srq(id);
	CHECK(!id->srq);
	struct sockaddr_in group = address_of("224.0.0.1", 0);
	/* Only identifiers of datagram services join groups. */
	REFUSED(rdma_join_multicast(id, (struct sockaddr *)&group, NULL), EINVAL);
	REFUSED(rdma_leave_multicast(id, (struct sockaddr *)&group), EADDRNOTAVAIL);
	destroy(id);
}

int main(void)
{
	struct ibv_context *context = open_device();
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(channel);
	device(context);
	rates();
	names();
	shared_queues(channel);
	rdma_destroy_event_channel(channel);
	CHECK(!ibv_close_device(context));
	return 0;
}
