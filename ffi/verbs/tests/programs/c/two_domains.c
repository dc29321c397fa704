/*
 * Tests queue pairs of two protection domains that share a completion queue, which is smaller than their queues
 * together. One queue pair uses a shared receive queue of the other domain. Also tests parent domains.
 */
#include <time.h>

#include "common.h"

static uint64_t memory[512];

/* Waits for the completions of a Send and of a receive, which have to have these statuses. */
static void both(struct ibv_cq *cq, enum ibv_wc_status sent, enum ibv_wc_status received)
{
	time_t end = time(NULL) + 10;
	for (uint64_t seen = 0; seen != 3;) {
		struct ibv_wc wc;
		int found = ibv_poll_cq(cq, 1, &wc);
		CHECK(found >= 0 && time(NULL) < end);
		CHECK(!found || wc.status == (wc.wr_id == 2 ? sent : received));
		if (found)
			seen |= wc.wr_id;
	}
}

/* Sends a message to a queue pair of `pds[0]`, which receives the message into memory of `pds[from]` by a shared
 * receive queue of `pds[1]`. */
static void shared_queue(struct ibv_pd **pds, struct ibv_cq *cq, int from, int is_right)
{
	struct ibv_srq_init_attr of = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pds[1], &of);
	struct ibv_qp_init_attr init = qp_init(cq, srq, 1);
	struct ibv_qp *target = ibv_create_qp(pds[0], &init), *source = make_qp(pds[0], cq, 4);
	struct ibv_mr *send_mr = ibv_reg_mr(pds[0], memory, 8, 0);
	struct ibv_mr *recv_mr = ibv_reg_mr(pds[from], memory + 8, 8, IBV_ACCESS_LOCAL_WRITE);
	CHECK(srq && target && send_mr && recv_mr);
	init_qp(target);
	connect_qp(target, source->qp_num);
	connect_qp(source, target->qp_num);
	struct ibv_sge here = { (uintptr_t)memory, 8, send_mr->lkey };
	struct ibv_sge there = { (uintptr_t)(memory + 8), 8, recv_mr->lkey };
	struct ibv_recv_wr *bad_recv, recv = { .wr_id = 1, .sg_list = &there, .num_sge = 1 };
	struct ibv_send_wr *bad, send = { .wr_id = 2, .sg_list = &here, .num_sge = 1, .opcode = IBV_WR_SEND };
	send.send_flags = IBV_SEND_SIGNALED;
	memory[0] = 77;
	memory[8] = 0;
	CHECK(!ibv_post_srq_recv(srq, &recv, &bad_recv) && !ibv_post_send(source, &send, &bad));
	both(cq, is_right ? IBV_WC_SUCCESS : IBV_WC_REM_OP_ERR, is_right ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR);
	CHECK(memory[8] == (is_right ? 77 : 0));
	CHECK(!ibv_destroy_qp(target) && !ibv_destroy_qp(source) && !ibv_destroy_srq(srq));
	CHECK(!ibv_dereg_mr(send_mr) && !ibv_dereg_mr(recv_mr));
}

/* A parent domain acts like its domain. The parent domain uses its domain and its thread domain, so these domains
 * cannot be deallocated before the parent domain. */
static void parents(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_td_init_attr none = { 0 };
	struct ibv_td *td = ibv_alloc_td(context, &none);
	CHECK(td);
	struct ibv_parent_domain_init_attr attr = { .pd = pd, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
	CHECK(parent);
	attr.pd = parent;
	CHECK(!ibv_alloc_parent_domain(context, &attr) && errno == EINVAL);
	struct ibv_cq_init_attr_ex of_cq = {
		.cqe = 8,
		.wc_flags = IBV_WC_EX_WITH_BYTE_LEN,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
		.parent_domain = pd,
	};
	CHECK(!ibv_create_cq_ex(context, &of_cq) && errno == EINVAL);
	of_cq.parent_domain = parent;
	struct ibv_cq_ex *extended = ibv_create_cq_ex(context, &of_cq);
	CHECK(extended && !ibv_destroy_cq(ibv_cq_ex_to_cq(extended)));
	CHECK(ibv_dealloc_td(td) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
	struct ibv_qp *qp = make_qp(parent, cq, 8);
	CHECK(ibv_dealloc_pd(parent) == EBUSY);
	struct ibv_pd *names[2] = { pd, parent };
	shared_queue(names, cq, 0, 1);
	CHECK(!ibv_destroy_qp(qp) && !ibv_dealloc_pd(parent) && !ibv_dealloc_td(td));
}

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	struct ibv_pd *pds[2] = { ibv_alloc_pd(context), ibv_alloc_pd(context) };
	CHECK(cq && pds[0] && pds[1]);
	struct ibv_qp *qps[2] = { make_qp(pds[0], cq, 64), make_qp(pds[1], cq, 64) };
	connect_qp(qps[0], qps[1]->qp_num);
	connect_qp(qps[1], qps[0]->qp_num);
	struct ibv_recv_wr *bad_recv, recv = { .wr_id = 1 };
	struct ibv_send_wr *bad, send = { .wr_id = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	CHECK(!ibv_post_recv(qps[1], &recv, &bad_recv));
	CHECK(!ibv_post_send(qps[0], &send, &bad));
	both(cq, IBV_WC_SUCCESS, IBV_WC_SUCCESS);
	shared_queue(pds, cq, 1, 1);
	shared_queue(pds, cq, 0, 0);
	parents(context, pds[0], cq);
	CHECK(!ibv_destroy_qp(qps[0]) && !ibv_destroy_qp(qps[1]) && !ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(pds[0]) && !ibv_dealloc_pd(pds[1]) && !ibv_close_device(context));
	return 0;
}
