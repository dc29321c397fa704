/*
 * Tests that an orderly end of a connection generates no IBV_EVENT_QP_FATAL, as on RoCE devices and siw: neither if the
 * queue pair is idle, nor if requests wait for the peer, which then fail or are flushed. The same holds if the peer's
 * program moves its queue pair to ERR.
 */
#include <string.h>

#include "cm.h"

enum { BYTES = 1 << 20, READS = 4 };

static const char *const host = "127.0.0.1";
static char memory[2][BYTES];

/* Checks that a context has no event for a while. */
static void nothing_told(struct ibv_context *context)
{
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	if (poll(&fd, 1, 300)) {
		struct ibv_async_event event;
		CHECK(!ibv_get_async_event(context, &event));
		fprintf(stderr, "%s\n", ibv_event_type_str(event.event_type));
		CHECK(0);
	}
}

enum waiting { NOTHING, A_SEND, READS_OF_PEER };

/* Connects two identifiers. The first one ends the connection while requests of the other one wait. */
static void managed(struct rdma_event_channel *channel, struct rdma_cm_id *listener, enum waiting waiting)
{
	struct rdma_conn_param param = { .responder_resources = READS, .initiator_depth = READS, .rnr_retry_count = 7 };
	struct rdma_cm_id *ids[2] = { resolve(channel, host, 7471) };
	give_qp(ids[0], 8);
	CHECK(!rdma_connect(ids[0], &param));
	ids[1] = next_request(channel);
	give_qp(ids[1], 8);
	CHECK(!rdma_accept(ids[1], &param) && listener->verbs);
	pass_event(channel, RDMA_CM_EVENT_ESTABLISHED);
	pass_event(channel, RDMA_CM_EVENT_ESTABLISHED);
	struct ibv_mr *mrs[2];
	for (int i = 0; i < 2; i++)
		CHECK((mrs[i] = ibv_reg_mr(ids[i]->pd, memory[i], BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ)));
	struct ibv_sge sge = { (uintptr_t)memory[1], BYTES, mrs[1]->lkey };
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_RDMA_READ, .sg_list = &sge, .num_sge = 1 };
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = (uintptr_t)memory[0];
	wr.wr.rdma.rkey = mrs[0]->rkey;
	int count = waiting == A_SEND ? 1 : waiting == READS_OF_PEER ? READS : 0;
	for (int i = 0; i < count; i++)
		CHECK(!(waiting == A_SEND ? post_empty_send(ids[1]->qp, 1) : ibv_post_send(ids[1]->qp, &wr, &bad)));
	CHECK(!rdma_disconnect(ids[0]));
	pass_event(channel, RDMA_CM_EVENT_DISCONNECTED);
	pass_event(channel, RDMA_CM_EVENT_DISCONNECTED);
	for (int i = 0; i < count; i++)
		CHECK(waiting == READS_OF_PEER || next_of(ids[1]->send_cq).status != IBV_WC_SUCCESS);
	nothing_told(ids[0]->verbs);
	for (int i = 0; i < 2; i++) {
		CHECK(state_of(ids[i]->qp) == IBV_QPS_ERR && !ibv_dereg_mr(mrs[i]));
		destroy(ids[i]);
	}
}

/* Connects two queue pairs without the connection manager, and ends one of them: destroys it, or moves it to ERR. */
static void out_of_band(struct ibv_context *context, int destroys)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(pd && cq);
	struct ibv_qp *qps[2] = { make_qp(pd, cq, 4), make_qp(pd, cq, 4) };
	struct ibv_qp_attr failed = { .qp_state = IBV_QPS_ERR };
	connect_qp(qps[0], qps[1]->qp_num);
	connect_qp(qps[1], qps[0]->qp_num);
	CHECK(!post_empty_recv(qps[1], 1) && !post_empty_send(qps[0], 2));
	CHECK(next_of(cq).status == IBV_WC_SUCCESS && next_of(cq).status == IBV_WC_SUCCESS);
	CHECK(destroys ? !ibv_destroy_qp(qps[1]) : !ibv_modify_qp(qps[1], &failed, IBV_QP_STATE));
	nothing_told(context);
	/* The other one notices the end of a destroyed queue pair only when a request fails. */
	CHECK(!destroys || state_of(qps[0]) == IBV_QPS_RTS);
	CHECK(!post_empty_send(qps[0], 3));
	enum ibv_wc_status status = next_of(cq).status;
	CHECK(destroys ? status == IBV_WC_RETRY_EXC_ERR : status != IBV_WC_SUCCESS);
	CHECK(state_of(qps[0]) == IBV_QPS_ERR);
	nothing_told(context);
	CHECK(destroys || !ibv_destroy_qp(qps[1]));
	CHECK(!ibv_destroy_qp(qps[0]) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
}

int main(void)
{
	struct ibv_context *context = open_device();
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(channel);
	struct rdma_cm_id *listener = listen_at(channel, host, 7471);
	managed(channel, listener, NOTHING);
	managed(channel, listener, A_SEND);
	managed(channel, listener, READS_OF_PEER);
	destroy(listener);
	out_of_band(context, 1);
	out_of_band(context, 0);
	rdma_destroy_event_channel(channel);
	CHECK(!ibv_close_device(context));
	return 0;
}
