/*
 * Elements of requests may be in packed structs, where they are not aligned (libiscsi). Compilers for x86 and ARM make
 * such accesses work in C, and so do the kernel's drivers.
 */
#include <string.h>

#include "common.h"

enum { BYTES = 32 };

struct __attribute__((packed)) packed {
	char before;
	struct ibv_sge elements[2];
	char between;
	struct ibv_data_buf parts[2];
};

static char memory[2][BYTES];
static struct ibv_mr *mrs[2];

/* Two elements, each with half of a memory. */
static void fill(struct packed *packed, int which)
{
	for (int half = 0; half < 2; half++) {
		char *from = memory[which] + half * BYTES / 2;
		packed->elements[half] = (struct ibv_sge){ (uintptr_t)from, BYTES / 2, mrs[which]->lkey };
		packed->parts[half] = (struct ibv_data_buf){ from, BYTES / 2 };
	}
}

static void arrived(struct ibv_cq *cq, char byte)
{
	for (int each = 0; each < 2; each++)
		CHECK(next_of(cq).status == IBV_WC_SUCCESS);
	for (int at = 0; at < BYTES; at++)
		CHECK(memory[1][at] == (char)(byte + at));
}

static void next_bytes(char byte)
{
	for (int at = 0; at < BYTES; at++)
		memory[0][at] = (char)(byte + at);
}

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(pd && cq);
	for (int i = 0; i < 2; i++)
		CHECK((mrs[i] = ibv_reg_mr(pd, memory[i], BYTES, IBV_ACCESS_LOCAL_WRITE)));
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { 8, 8, 2, 2, BYTES },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp *qps[2];
	for (int i = 0; i < 2; i++) {
		CHECK((qps[i] = ibv_create_qp_ex(context, &init)));
		init_qp(qps[i]);
	}
	connect_qp(qps[0], qps[1]->qp_num);
	connect_qp(qps[1], qps[0]->qp_num);
	struct packed packed[2];
	fill(&packed[0], 0);
	fill(&packed[1], 1);
	/* The pointers are taken through void, since they are not aligned. */
	void *from = &packed[0].elements, *to = &packed[1].elements, *parts = &packed[0].parts;
	struct ibv_recv_wr recv = { .sg_list = to, .num_sge = 2 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = from, .num_sge = 2, .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qps[0]);
	for (int way = 0; way < 4; way++) {
		next_bytes((char)(way * 50));
		CHECK(!ibv_post_recv(qps[1], &recv, &bad_recv));
		send.send_flags = IBV_SEND_SIGNALED | (way == 1 ? IBV_SEND_INLINE : 0);
		if (way < 2) {
			CHECK(!ibv_post_send(qps[0], &send, &bad_send));
		} else {
			ibv_wr_start(ex);
			ex->wr_flags = send.send_flags;
			ibv_wr_send(ex);
			if (way == 2)
				ibv_wr_set_sge_list(ex, 2, from);
			else
				ibv_wr_set_inline_data_list(ex, 2, parts);
			CHECK(!ibv_wr_complete(ex));
		}
		arrived(cq, (char)(way * 50));
	}
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_qp(qps[i]) && !ibv_dereg_mr(mrs[i]));
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
