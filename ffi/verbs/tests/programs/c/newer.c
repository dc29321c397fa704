/*
 * Tests programs that were compiled with newer headers, and features that the device does not have. Also tests that
 * a queue pair whose connection is rejected, or finds no listener, is in ERR, and that its receives are flushed.
 */
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <string.h>
#include <time.h>

#include "common.h"

/* Tests structs of other lengths than the library's struct: additional fields are set to 0, and no byte behind
 * the struct is written. */
static void sizes(struct ibv_context *context)
{
	enum { MORE = 48, GUARD = 16, GIDS = 6 };
	struct {
		union {
			struct ibv_device_attr_ex device;
			struct ibv_port_attr port;
			struct ibv_gid_entry gid, gids[GIDS];
			uint8_t bytes[sizeof(struct ibv_device_attr_ex) + GIDS * MORE + GUARD];
		} newer;
	} s;
	struct verbs_context *calls = verbs_get_ctx(context);
	CHECK(calls);
	for (int call = 0; call < 4; call++) {
		size_t known = call == 0 ? sizeof(s.newer.device) : call == 1 ? sizeof(s.newer.port) : sizeof(s.newer.gid);
		for (int less = 0; less < 2; less++) {
			size_t size = less ? known - 4 : known + MORE, from = known;
			memset(&s, 0xee, sizeof(s));
			switch (call) {
			case 0:
				CHECK(!calls->query_device_ex(context, NULL, &s.newer.device, size));
				CHECK(s.newer.device.orig_attr.max_qp > 0);
				break;
			case 1:
				CHECK(!calls->query_port(context, 1, &s.newer.port, size));
				CHECK(s.newer.port.state == IBV_PORT_ACTIVE);
				break;
			case 2:
				CHECK(!_ibv_query_gid_ex(context, 1, 0, &s.newer.gid, 0, size));
				CHECK(s.newer.gid.port_num == 1);
				break;
			case 3:
				/* The entries of a newer program lie `size` bytes apart. */
				CHECK(_ibv_query_gid_table(context, &s.newer.gid, GIDS, 0, size) == GIDS);
				for (uint32_t i = 0; i < GIDS; i++) {
					struct ibv_gid_entry *at = (void *)(s.newer.bytes + i * size);
					CHECK(at->port_num == 1 && at->gid_index == i);
				}
				size *= GIDS;
				from = size;
				break;
			}
			for (size_t i = from; i < size; i++)
				CHECK(s.newer.bytes[i] == 0);
			for (size_t i = size; i < size + GUARD; i++)
				CHECK(s.newer.bytes[i] == 0xee);
		}
	}
	/* A GID entry has the index of an interface of the system, since programs look up the name of the interface. */
	struct ibv_gid_entry entry;
	char name[IF_NAMESIZE];
	CHECK(!ibv_query_gid_ex(context, 1, 0, &entry, 0) && if_indextoname(entry.ndev_ifindex, name));
	CHECK(!strcmp(name, "lo"));
	/* There is one port with one partition key, and no flag is known. A table does not fit into less room. */
	CHECK(_ibv_query_gid_ex(context, 1, GIDS, &entry, 0, sizeof(entry)) == EINVAL);
	CHECK(_ibv_query_gid_ex(context, 2, 0, &entry, 0, sizeof(entry)) == EINVAL);
	CHECK(_ibv_query_gid_ex(context, 1, 0, &entry, 1, sizeof(entry)) == EINVAL);
	CHECK(_ibv_query_gid_table(context, &entry, 0, 0, sizeof(entry)) == -EINVAL);
	CHECK(_ibv_query_gid_table(context, s.newer.gids, GIDS - 1, 0, sizeof(entry)) == -EINVAL);
	CHECK(_ibv_query_gid_table(context, s.newer.gids, GIDS, 1, sizeof(entry)) == -EINVAL);
	CHECK(ibv_get_pkey_index(context, 1, 0xffff) == 0 && ibv_get_pkey_index(context, 1, 0x7fff) == -1);
	CHECK(ibv_get_pkey_index(context, 2, 0xffff) == -1);
	union ibv_gid gid;
	__be16 pkey;
	CHECK(!ibv_query_pkey(context, 1, 0, &pkey) && pkey == 0xffff);
	CHECK(ibv_query_pkey(context, 1, 1, &pkey) && ibv_query_gid(context, 1, GIDS, &gid));
	CHECK(ibv_query_gid(context, 0, 0, &gid) && ibv_query_gid(context, 1, -1, &gid));
	struct ibv_port_attr port;
	CHECK(!ibv_query_port(context, 1, &port) && port.lid && ibv_query_port(context, 0, &port) == EINVAL);
	CHECK(calls->query_device_ex(context, NULL, &s.newer.device, sizeof(struct ibv_device_attr) - 1) == EINVAL);
	/* This library refuses a request of newer programs that it does not know. */
	struct ibv_query_device_ex_input input = { .comp_mask = 1 };
	CHECK(calls->query_device_ex(context, &input, &s.newer.device, sizeof(s.newer.device)) == EINVAL);
}

/* Masks with unknown bits are refused, not ignored. */
static void masks(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex qp = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd };
	qp.comp_mask = IBV_QP_INIT_ATTR_PD | 1 << 20;
	CHECK(!ibv_create_qp_ex(context, &qp) && errno == EOPNOTSUPP);
	qp.comp_mask = 0;
	CHECK(!ibv_create_qp_ex(context, &qp) && errno == EINVAL);
	qp.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	qp.send_ops_flags = 1ull << 40;
	CHECK(!ibv_create_qp_ex(context, &qp) && errno == EOPNOTSUPP);
	struct ibv_cq_init_attr_ex cq_ex = { .cqe = 1, .comp_mask = 1 << 20 };
	CHECK(!ibv_create_cq_ex(context, &cq_ex) && errno == EINVAL);
	cq_ex = (struct ibv_cq_init_attr_ex){ .cqe = 1, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = 1 << 20 };
	CHECK(!ibv_create_cq_ex(context, &cq_ex) && errno == EOPNOTSUPP);
	cq_ex = (struct ibv_cq_init_attr_ex){ .cqe = 1, .wc_flags = 1ull << 40 };
	CHECK(!ibv_create_cq_ex(context, &cq_ex) && errno == EOPNOTSUPP);
	/* A field is ignored if its bit in the mask is not set. */
	cq_ex = (struct ibv_cq_init_attr_ex){ .cqe = 1, .flags = 1 << 20, .parent_domain = (void *)1 };
	struct ibv_cq_ex *plain = ibv_create_cq_ex(context, &cq_ex);
	CHECK(plain && !ibv_destroy_cq(ibv_cq_ex_to_cq(plain)));
	/* ECE options are not supported. */
	struct ibv_qp *made = make_qp(pd, cq, 1);
	struct ibv_ece ece = { .vendor_id = 7 };
	CHECK(ibv_query_ece(made, &ece) == EOPNOTSUPP && ibv_set_ece(made, &ece) == EOPNOTSUPP);
	CHECK(ece.vendor_id == 7);
	/* A queue pair that was made without the extended interface does not offer the calls of that interface. */
	CHECK(!ibv_qp_to_qp_ex(made) && !ibv_destroy_qp(made));
}

static struct rdma_event_channel *channel;

static struct rdma_cm_id *take(enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(channel, &event));
	if (event->event != kind)
		fprintf(stderr, "%s %d\n", rdma_event_str(event->event), event->status);
	CHECK(event->event == kind);
	struct rdma_cm_id *id = event->id;
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

/* Tests a connection that a listener rejects, or for which there is no listener. */
static void refused(int has_listener)
{
	struct rdma_cm_id *listener = NULL, *client;
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	address.sin_port = htons(1717);
	if (has_listener) {
		address.sin_port = 0;
		CHECK(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
		CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&address) && !rdma_listen(listener, 1));
		address.sin_port = rdma_get_src_port(listener);
	}
	CHECK(!rdma_create_id(channel, &client, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(client, NULL, (struct sockaddr *)&address, 5000));
	take(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(client, 5000));
	take(RDMA_CM_EVENT_ROUTE_RESOLVED);
	struct ibv_pd *pd = ibv_alloc_pd(client->verbs);
	struct ibv_cq *cq = ibv_create_cq(client->verbs, 8, NULL, NULL, 0);
	static uint8_t memory[64];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	CHECK(pd && cq && mr);
	struct ibv_qp_init_attr init = qp_init(cq, NULL, 4);
	CHECK(!rdma_create_qp(client, pd, &init));
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_recv_wr *bad, wr = { .sg_list = &sge, .num_sge = 1 };
	for (wr.wr_id = 1; wr.wr_id <= 2; wr.wr_id++)
		CHECK(!ibv_post_recv(client->qp, &wr, &bad));
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	CHECK(!rdma_connect(client, &param));
	if (has_listener) {
		struct rdma_cm_id *server = take(RDMA_CM_EVENT_CONNECT_REQUEST);
		CHECK(!rdma_reject(server, NULL, 0) && !rdma_destroy_id(server));
	}
	take(RDMA_CM_EVENT_REJECTED);
	CHECK(client->qp->state == IBV_QPS_ERR && state_of(client->qp) == IBV_QPS_ERR);
	/* A receive that is posted later is also flushed. */
	CHECK(!ibv_post_recv(client->qp, &wr, &bad));
	struct ibv_wc wc;
	for (uint64_t id = 1; id <= 3; id++) {
		time_t limit = time(NULL) + 30;
		while (!ibv_poll_cq(cq, 1, &wc))
			CHECK(time(NULL) < limit);
		CHECK(wc.wr_id == id && wc.status == IBV_WC_WR_FLUSH_ERR && wc.qp_num == client->qp->qp_num);
	}
	CHECK(!ibv_poll_cq(cq, 1, &wc));
	rdma_destroy_qp(client);
	CHECK(!rdma_destroy_id(client) && (!listener || !rdma_destroy_id(listener)));
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
}

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	CHECK(pd && cq && (channel = rdma_create_event_channel()));
	sizes(context);
	masks(context, pd, cq);
	refused(1);
	refused(0);
	rdma_destroy_event_channel(channel);
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
