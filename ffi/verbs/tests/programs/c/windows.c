/*
 * Tests type 2 windows: a program chooses only the last byte of the key, and finds the whole key in the window. A
 * Read with this key succeeds, and a Read with the key of the previous bind fails.
 */
#include <string.h>
#include <time.h>

#include "common.h"

static struct ibv_cq *cq;
static uint8_t memory[8192];

static enum ibv_wc_status completion(void)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + 10;
	while (!ibv_poll_cq(cq, 1, &wc))
		CHECK(time(NULL) < end);
	return wc.status;
}

static enum ibv_wc_status read_with(struct ibv_qp *qp, struct ibv_mr *mr, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)memory + 4096, 64, mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ };
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = (uintptr_t)memory;
	wr.wr.rdma.rkey = rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	return completion();
}

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	CHECK(pd && cq && mr && mw);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV,
	};
	struct ibv_qp *target = ibv_create_qp_ex(context, &init);
	CHECK(target);
	init_qp(target);
	struct ibv_qp *reader = make_qp(pd, cq, 8);
	connect_qp(target, reader->qp_num);
	connect_qp(reader, target->qp_num);
	uint32_t index = mw->rkey & ~0xffu;
	struct ibv_mw_bind_info info = { mr, (uintptr_t)memory, 4096, IBV_ACCESS_REMOTE_READ };

	memset(memory, 'a', 64);
	struct ibv_send_wr *bad, bind = { .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };
	bind.bind_mw.mw = mw;
	bind.bind_mw.rkey = 1024 + 17;
	bind.bind_mw.bind_info = info;
	CHECK(!ibv_post_send(target, &bind, &bad) && completion() == IBV_WC_SUCCESS);
	CHECK(mw->rkey == (index | 17));
	CHECK(read_with(reader, mr, mw->rkey) == IBV_WC_SUCCESS && memory[4096 + 63] == 'a');

	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(target);
	CHECK(ex);
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_local_inv(ex, mw->rkey);
	ibv_wr_bind_mw(ex, mw, 18, &info);
	CHECK(!ibv_wr_complete(ex));
	CHECK(completion() == IBV_WC_SUCCESS && completion() == IBV_WC_SUCCESS);
	CHECK(mw->rkey == (index | 18));
	memset(memory, 'b', 64);
	CHECK(read_with(reader, mr, mw->rkey) == IBV_WC_SUCCESS && memory[4096 + 63] == 'b');
	CHECK(read_with(reader, mr, index | 17) == IBV_WC_REM_ACCESS_ERR);
	return 0;
}
