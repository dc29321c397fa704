/*
 * Objects that other objects use cannot be destroyed (EBUSY), however often a program tries, and keep working. When
 * the last user of an object is destroyed, the object can be destroyed.
 */
#include "common.h"

int main(void)
{
	static uint8_t memory[64];
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(pd && channel);
	struct ibv_cq *cqs[2];
	for (int i = 0; i < 2; i++)
		CHECK((cqs[i] = ibv_create_cq(context, 4, NULL, channel, 0)));
	struct ibv_srq_init_attr of_srq = { .attr = { .max_wr = 2, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &of_srq);
	struct ibv_td_init_attr no_attr = { 0 };
	struct ibv_td *td = ibv_alloc_td(context, &no_attr);
	struct ibv_parent_domain_init_attr of_parent = { .pd = pd, .td = td };
	CHECK(srq && td);
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &of_parent);
	CHECK(parent);
	struct ibv_qp_init_attr init = qp_init(cqs[0], srq, 2);
	init.recv_cq = cqs[1];
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	init_qp(qp);
	for (int tries = 0; tries < 2; tries++) {
		CHECK(ibv_destroy_cq(cqs[0]) == EBUSY && errno == EBUSY && ibv_destroy_cq(cqs[1]) == EBUSY);
		CHECK(ibv_destroy_srq(srq) == EBUSY && ibv_destroy_comp_channel(channel) == EBUSY);
		CHECK(ibv_dealloc_pd(pd) == EBUSY && ibv_dealloc_td(td) == EBUSY);
	}
	/* The objects still work. */
	connect_qp(qp, qp->qp_num);
	struct ibv_recv_wr *bad_recv, recv = { .wr_id = 1 };
	struct ibv_send_wr *bad, send = { .wr_id = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	CHECK(!ibv_req_notify_cq(cqs[1], 0) && !ibv_post_srq_recv(srq, &recv, &bad_recv));
	CHECK(!ibv_post_send(qp, &send, &bad));
	CHECK(next_of(cqs[1]).wr_id == 1 && next_of(cqs[0]).wr_id == 2);
	struct ibv_cq *told;
	void *user;
	CHECK(!ibv_get_cq_event(channel, &told, &user) && told == cqs[1]);
	ibv_ack_cq_events(told, 1);
	CHECK(!ibv_destroy_qp(qp));
	/* Each object can be destroyed after its last user. */
	CHECK(!ibv_destroy_cq(cqs[0]) && ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(!ibv_destroy_cq(cqs[1]) && !ibv_destroy_comp_channel(channel));
	CHECK(ibv_dealloc_pd(pd) == EBUSY && !ibv_destroy_srq(srq) && ibv_dealloc_pd(pd) == EBUSY);
	CHECK(!ibv_dealloc_pd(parent) && !ibv_dealloc_td(td));
	/* A memory region and a memory window also keep their domain in use. */
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && ibv_dealloc_pd(pd) == EBUSY && !ibv_dereg_mr(mr));
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	CHECK(mw && ibv_dealloc_pd(pd) == EBUSY && !ibv_dealloc_mw(mw));
	/* If a region moves to another domain, the other domain is in use instead. */
	struct ibv_pd *other = ibv_alloc_pd(context);
	CHECK(other && (mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE)));
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0) && mr->pd == other);
	CHECK(!ibv_dealloc_pd(pd) && ibv_dealloc_pd(other) == EBUSY);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(other) && !ibv_close_device(context));
	return 0;
}
