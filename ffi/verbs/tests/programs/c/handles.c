/*
 * Tests objects whose handle was overwritten: each call that the kernel would refuse is refused, and leaves the
 * object unchanged.
 */
#include "common.h"

#define BAD(object, call)                                 \
	do {                                              \
		(object)->handle ^= 0xdeadbeef;           \
		errno = 0;                                \
		CHECK((call) && errno == ENOENT);         \
		(object)->handle ^= 0xdeadbeef;           \
	} while (0)

int main(void)
{
	static uint8_t memory[4096];
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	CHECK(pd && cq);
	struct ibv_srq_init_attr of_srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &of_srq);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	CHECK(srq && mr && mw);
	struct ibv_qp_init_attr init = qp_init(cq, srq, 1);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	struct ibv_ah_attr of_ah = { .is_global = 1, .port_num = 1 };
	CHECK(!ibv_query_gid(context, 1, 0, &of_ah.grh.dgid));
	struct ibv_ah *ah = ibv_create_ah(pd, &of_ah);
	CHECK(ah);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr asked;

	BAD(pd, !ibv_create_qp(pd, &init));
	BAD(pd, !ibv_create_srq(pd, &of_srq));
	BAD(pd, !ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE));
	BAD(pd, !ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	BAD(pd, !ibv_create_ah(pd, &of_ah));
	BAD(pd, ibv_dealloc_pd(pd) == ENOENT);
	BAD(cq, !ibv_create_qp(pd, &init));
	BAD(srq, !ibv_create_qp(pd, &init));
	BAD(qp, ibv_modify_qp(qp, &attr, IBV_QP_STATE) == ENOENT);
	BAD(qp, ibv_query_qp(qp, &attr, IBV_QP_STATE, &asked) == ENOENT);
	BAD(qp, ibv_destroy_qp(qp) == ENOENT);
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &asked) && attr.qp_state == IBV_QPS_RESET);
	CHECK(!ibv_destroy_qp(qp));
	BAD(cq, ibv_destroy_cq(cq) == ENOENT);
	BAD(srq, ibv_destroy_srq(srq) == ENOENT);
	BAD(mr, ibv_dereg_mr(mr) == ENOENT);
	BAD(mw, ibv_dealloc_mw(mw) == ENOENT);
	BAD(ah, ibv_destroy_ah(ah) == ENOENT);
	CHECK(ibv_dealloc_pd(pd) == EBUSY && !ibv_destroy_ah(ah));
	CHECK(!ibv_dealloc_mw(mw) && !ibv_dereg_mr(mr) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(cq));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
