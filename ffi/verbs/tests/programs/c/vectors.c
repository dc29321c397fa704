/*
 * Tests completion vectors: there is one for each online processor, but at least 2. A queue of any vector gets its
 * completions and events, and a vector that does not exist is refused.
 */
#include "common.h"

/* Sends an empty message, and waits for the event of the queue of the receiver. */
static void delivers(struct ibv_pd *pd, struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
	struct ibv_send_wr *bad_send, send = { .wr_id = 1, .opcode = IBV_WR_SEND };
	struct ibv_recv_wr *bad_recv, recv = { .wr_id = 2 };
	struct ibv_qp *qps[2] = { make_qp(pd, cq, 1), make_qp(pd, cq, 1) };
	struct ibv_cq *with_event;
	void *context;
	connect_qp(qps[0], qps[1]->qp_num);
	connect_qp(qps[1], qps[0]->qp_num);
	CHECK(!ibv_req_notify_cq(cq, 0));
	CHECK(!ibv_post_recv(qps[1], &recv, &bad_recv) && !ibv_post_send(qps[0], &send, &bad_send));
	CHECK(!ibv_get_cq_event(channel, &with_event, &context) && with_event == cq);
	ibv_ack_cq_events(cq, 1);
	struct ibv_wc wc = next_of(cq);
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_SUCCESS);
	CHECK(!ibv_destroy_qp(qps[0]) && !ibv_destroy_qp(qps[1]));
}

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	long online = sysconf(_SC_NPROCESSORS_ONLN);
	int vectors = context->num_comp_vectors;
	CHECK(pd && channel && vectors == (online < 2 ? 2 : online));
	for (int vector = 0; vector < vectors; vector++) {
		struct ibv_cq_init_attr_ex of_ex = { .cqe = 4, .channel = channel, .comp_vector = vector };
		struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, channel, vector);
		struct ibv_cq_ex *extended = ibv_create_cq_ex(context, &of_ex);
		CHECK(cq && extended);
		delivers(pd, channel, cq);
		delivers(pd, channel, ibv_cq_ex_to_cq(extended));
		CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_cq(ibv_cq_ex_to_cq(extended)));
	}
	const int wrong[] = { -1, vectors, vectors + 1, INT32_MAX };
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct ibv_cq_init_attr_ex of_ex = { .cqe = 4, .comp_vector = wrong[i] };
		errno = 0;
		CHECK(!ibv_create_cq(context, 4, NULL, NULL, wrong[i]) && errno == EINVAL);
		errno = 0;
		CHECK(!ibv_create_cq_ex(context, &of_ex) && errno == EINVAL);
	}
	CHECK(!ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
