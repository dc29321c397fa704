/*
 * Tests the rights of a queue pair (qp_access_flags): a Write, a Read or an atomic of the peer needs its right, whether
 * the queue pair got its rights when it was initialized, later, or from the connection manager. The request without the
 * right fails with a remote access error, and the refusing queue pair gets IBV_EVENT_QP_ACCESS_ERR.
 */
#include <string.h>

#include "cm.h"

enum { ALL = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

/* Each operation, and the right that it needs. A Send needs none. */
static const struct {
	enum ibv_wr_opcode opcode;
	int right;
} operations[] = {
	{ IBV_WR_SEND, 0 },
	{ IBV_WR_RDMA_WRITE, IBV_ACCESS_REMOTE_WRITE },
	{ IBV_WR_RDMA_WRITE_WITH_IMM, IBV_ACCESS_REMOTE_WRITE },
	{ IBV_WR_RDMA_READ, IBV_ACCESS_REMOTE_READ },
	{ IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_ACCESS_REMOTE_ATOMIC },
	{ IBV_WR_ATOMIC_CMP_AND_SWP, IBV_ACCESS_REMOTE_ATOMIC },
};
enum { OPERATIONS = sizeof(operations) / sizeof(operations[0]) };

static uint64_t memory[2] __attribute__((aligned(8)));

/* Posts an operation that uses the words of `memory`: the first one is local, and the second one is the peer's. The
 * receiver has a receive for a Send and for immediate data. */
static struct ibv_wc do_one(struct ibv_qp *from, struct ibv_qp *to, enum ibv_wr_opcode opcode, struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)&memory[0], 8, mr->lkey }, at = { (uintptr_t)&memory[1], 8, mr->lkey };
	struct ibv_recv_wr *bad_recv, recv = { .wr_id = 2, .sg_list = &at, .num_sge = 1 };
	struct ibv_send_wr *bad_send, send = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode };
	send.send_flags = IBV_SEND_SIGNALED;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		send.wr.atomic.remote_addr = (uintptr_t)&memory[1];
		send.wr.atomic.rkey = mr->rkey;
		send.wr.atomic.compare_add = 17;
		send.wr.atomic.swap = 5;
	} else {
		send.wr.rdma.remote_addr = (uintptr_t)&memory[1];
		send.wr.rdma.rkey = mr->rkey;
	}
	memory[0] = 3;
	memory[1] = 17;
	if (opcode == IBV_WR_SEND || opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		CHECK(!ibv_post_recv(to, &recv, &bad_recv));
	CHECK(!ibv_post_send(from, &send, &bad_send));
	return next_of(from->send_cq);
}

/* The words that an operation leaves behind. */
static void changed(enum ibv_wr_opcode opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_READ:
		CHECK(memory[0] == 17 && memory[1] == 17);
		break;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		CHECK(memory[0] == 17 && memory[1] == 34);
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		CHECK(memory[0] == 17 && memory[1] == 5);
		break;
	default:
		CHECK(memory[0] == 3 && memory[1] == 3);
	}
}

/* Waits for the event of the queue pair that has refused a request. The other end has its own event. */
static void refused(struct ibv_context *context, struct ibv_qp *by)
{
	for (int seen = 0; !seen;) {
		struct ibv_async_event event;
		CHECK(!ibv_get_async_event(context, &event));
		if (event.element.qp == by) {
			CHECK(event.event_type == IBV_EVENT_QP_ACCESS_ERR);
			seen = 1;
		}
		ibv_ack_async_event(&event);
	}
}

/* Does each operation that these rights allow, and checks that it succeeds. */
static void do_all(struct ibv_qp *from, struct ibv_qp *to, struct ibv_mr *mr, int rights)
{
	for (int i = 0; i < OPERATIONS; i++) {
		if (operations[i].right & ~rights)
			continue;
		struct ibv_wc wc = do_one(from, to, operations[i].opcode, mr);
		if (wc.status != IBV_WC_SUCCESS)
			fprintf(stderr, "operation %d with %d: %s\n", i, rights, ibv_wc_status_str(wc.status));
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 1);
		if (operations[i].opcode == IBV_WR_SEND || operations[i].opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
			CHECK(next_of(to->recv_cq).status == IBV_WC_SUCCESS);
		changed(operations[i].opcode);
	}
}

/* Does an operation without its right, and checks that it fails. */
static void fails(struct ibv_qp *from, struct ibv_qp *to, struct ibv_mr *mr, int operation)
{
	struct ibv_wc wc = do_one(from, to, operations[operation].opcode, mr);
	if (wc.status != IBV_WC_REM_ACCESS_ERR)
		fprintf(stderr, "operation %d: %s\n", operation, ibv_wc_status_str(wc.status));
	CHECK(wc.status == IBV_WC_REM_ACCESS_ERR && wc.wr_id == 1);
	refused(to->context, to);
	CHECK(memory[0] == 3 && memory[1] == 17 && state_of(to) == IBV_QPS_ERR && state_of(from) == IBV_QPS_ERR);
}

static int rights_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_ACCESS_FLAGS, &init));
	return attr.qp_access_flags;
}

static void set_rights(struct ibv_qp *qp, int rights)
{
	struct ibv_qp_attr attr = { .qp_access_flags = rights };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_ACCESS_FLAGS) && rights_of(qp) == rights);
}

/* Tests rights that a queue pair has from INIT on, or that change while it is connected. The queue pair that sends has
 * no rights, since a right allows the peer's requests only. */
static void out_of_band(struct ibv_pd *pd, struct ibv_cq *cqs[2], struct ibv_mr *mr)
{
	for (int later = 0; later < 2; later++) {
		for (int i = 1; i < OPERATIONS; i++) {
			int rights = ALL & ~operations[i].right;
			struct ibv_qp_init_attr init = qp_init(cqs[0], NULL, 4);
			struct ibv_qp *qps[2];
			for (int end = 0; end < 2; end++) {
				init.recv_cq = cqs[1];
				CHECK((qps[end] = ibv_create_qp(pd, &init)));
				struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
				attr.qp_access_flags = !end ? 0 : later ? ALL : rights;
				CHECK(!ibv_modify_qp(qps[end], &attr,
						     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
			}
			connect_qp(qps[0], qps[1]->qp_num);
			connect_qp(qps[1], qps[0]->qp_num);
			if (later) {
				do_all(qps[0], qps[1], mr, ALL);
				set_rights(qps[1], rights);
			}
			do_all(qps[0], qps[1], mr, rights);
			fails(qps[0], qps[1], mr, i);
			CHECK(!ibv_destroy_qp(qps[0]) && !ibv_destroy_qp(qps[1]));
		}
	}
}

/* Tests the rights that the connection manager gives, and that they change as those of other queue pairs. */
static void managed(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *listener = listen_at(channel, "127.0.0.1", 7471);
	for (int i = 0; i < OPERATIONS; i++) {
		struct rdma_cm_id *from = resolve(channel, "127.0.0.1", 7471), *to;
		struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
		give_qp(from, 4);
		CHECK(rights_of(from->qp) == ALL && !rdma_connect(from, &param));
		to = next_request(channel);
		give_qp(to, 4);
		CHECK(!rdma_accept(to, &param));
		pass_event(channel, RDMA_CM_EVENT_ESTABLISHED);
		pass_event(channel, RDMA_CM_EVENT_ESTABLISHED);
		struct ibv_mr *mr = ibv_reg_mr(to->pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | ALL);
		CHECK(mr && rights_of(to->qp) == ALL);
		do_all(from->qp, to->qp, mr, ALL);
		if (i) {
			set_rights(to->qp, ALL & ~operations[i].right);
			do_all(from->qp, to->qp, mr, ALL & ~operations[i].right);
			fails(from->qp, to->qp, mr, i);
		} else {
			CHECK(!rdma_disconnect(from));
		}
		pass_event(channel, RDMA_CM_EVENT_DISCONNECTED);
		pass_event(channel, RDMA_CM_EVENT_DISCONNECTED);
		CHECK(!ibv_dereg_mr(mr));
		destroy(from);
		destroy(to);
	}
	destroy(listener);
}

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cqs[2] = { ibv_create_cq(context, 8, NULL, NULL, 0), ibv_create_cq(context, 8, NULL, NULL, 0) };
	CHECK(pd && cqs[0] && cqs[1]);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | ALL);
	CHECK(mr);
	out_of_band(pd, cqs, mr);
	CHECK(!ibv_dereg_mr(mr));
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(channel);
	managed(channel);
	rdma_destroy_event_channel(channel);
	CHECK(!ibv_destroy_cq(cqs[0]) && !ibv_destroy_cq(cqs[1]) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
