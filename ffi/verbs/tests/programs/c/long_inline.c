/*
 * Tests inline data that are longer than 128 bytes, as DAPL asks for (200 bytes): the library copies the bytes when
 * the request is posted, in both interfaces, also if the send queue is full and if a queue pair was reset.
 */
#include <string.h>

#include "common.h"

/* A send queue is filled several times, so that each slot for inline data is used again. */
enum { DEPTH = 5, ROUNDS = 7, MOST = 512, USUAL = 128 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t source[MOST + 1], target[DEPTH + 1][MOST];

/* Makes a queue pair that allows `asked` bytes of inline data. Returns NULL if the library refuses. */
static struct ibv_qp *make(uint32_t asked, struct ibv_qp_cap *granted)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { DEPTH, DEPTH, 2, 1, asked },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	if (qp) {
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr of_query;
		CHECK(!ibv_query_qp(qp, &attr, IBV_QP_CAP, &of_query));
		CHECK(of_query.cap.max_inline_data == init.cap.max_inline_data);
		*granted = init.cap;
	}
	return qp;
}

static uint8_t byte_of(uint32_t round, uint32_t place, uint32_t at)
{
	return (uint8_t)(round * 31 + place * 7 + at * 3 + 1);
}

static void fill(uint32_t round, uint32_t place, uint32_t length)
{
	for (uint32_t at = 0; at < length; at++)
		source[at] = byte_of(round, place, at);
}

/* Posts a Write of two elements, or a list of two parts, to a row of `target`. The memory has no valid key. */
static int post(struct ibv_qp *qp, int by_calls, uint32_t row, uint32_t length)
{
	uint32_t first = length / 3;
	int error;
	if (by_calls) {
		struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
		struct ibv_data_buf parts[2] = { { source, first }, { source + first, length - first } };
		ibv_wr_start(ex);
		ex->wr_id = row;
		ex->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)target[row]);
		if (row % 2)
			ibv_wr_set_inline_data(ex, source, length);
		else
			ibv_wr_set_inline_data_list(ex, 2, parts);
		error = ibv_wr_complete(ex);
	} else {
		struct ibv_sge sges[2] = { { (uintptr_t)source, first, 1 }, { (uintptr_t)source + first, length - first, 1 } };
		struct ibv_send_wr *bad, wr = { .wr_id = row, .sg_list = sges, .num_sge = 2 };
		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
		wr.wr.rdma.remote_addr = (uintptr_t)target[row];
		wr.wr.rdma.rkey = mr->rkey;
		error = ibv_post_send(qp, &wr, &bad);
	}
	/* The program may use its memory at once. */
	memset(source, 0xee, sizeof(source));
	return error;
}

/* Fills the send queue, and tries one more request, whose bytes must not arrive. */
static void full_queue(struct ibv_qp *qp, int by_calls, uint32_t round, uint32_t length)
{
	memset(target, 0, sizeof(target));
	for (uint32_t row = 0; row <= DEPTH; row++) {
		fill(round, row, length);
		CHECK(post(qp, by_calls, row, length) == (row < DEPTH ? 0 : ENOMEM));
	}
	for (uint32_t row = 0; row < DEPTH; row++) {
		struct ibv_wc wc = next_of(cq);
		CHECK(wc.wr_id == row && wc.status == IBV_WC_SUCCESS);
	}
	for (uint32_t row = 0; row <= DEPTH; row++)
		for (uint32_t at = 0; at < MOST; at++)
			CHECK(target[row][at] == (row < DEPTH && at < length ? byte_of(round, row, at) : 0));
}

/* The bytes of a Send that waits for its receive stay those of the time of the post. */
static void waiting_sends(struct ibv_qp *qp, uint32_t length)
{
	memset(target, 0, sizeof(target));
	for (uint32_t row = 0; row < DEPTH; row++) {
		struct ibv_sge sge = { (uintptr_t)source, length, 1 };
		struct ibv_send_wr *bad, wr = { .wr_id = row, .sg_list = &sge, .num_sge = 1 };
		fill(99, row, length);
		wr.opcode = IBV_WR_SEND;
		wr.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED;
		CHECK(!ibv_post_send(qp, &wr, &bad));
		memset(source, 0xee, sizeof(source));
	}
	nothing_in(cq);
	for (uint32_t row = 0; row < DEPTH; row++) {
		struct ibv_sge sge = { (uintptr_t)target[row], MOST, mr->lkey };
		struct ibv_recv_wr *bad, wr = { .wr_id = 100 + row, .sg_list = &sge, .num_sge = 1 };
		CHECK(!ibv_post_recv(qp, &wr, &bad));
	}
	for (uint32_t sent = 0, received = 0; sent < DEPTH || received < DEPTH;) {
		struct ibv_wc wc = next_of(cq);
		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_SEND) {
			CHECK(wc.wr_id == sent++);
			continue;
		}
		CHECK(wc.wr_id == 100 + received && wc.byte_len == length);
		for (uint32_t at = 0; at < length; at++)
			CHECK(target[received][at] == byte_of(99, received, at));
		received++;
	}
}

int main(void)
{
	context = open_device();
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0);
	CHECK(pd && cq);
	mr = ibv_reg_mr(pd, target, sizeof(target), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);

	struct ibv_qp_cap granted;
	CHECK(!make(MOST + 1, &granted) && errno == EINVAL);
	for (uint32_t asked = 0; asked <= MOST; asked += USUAL / 2) {
		struct ibv_qp *qp = make(asked, &granted);
		CHECK(qp && granted.max_inline_data == (asked > USUAL ? asked : USUAL));
		for (int life = 0; life < 2; life++) {
			init_qp(qp);
			connect_qp(qp, qp->qp_num);
			for (uint32_t round = 0; round < ROUNDS; round++)
				full_queue(qp, round % 2, round, granted.max_inline_data - round);
			waiting_sends(qp, granted.max_inline_data);
			CHECK(post(qp, 0, 0, granted.max_inline_data + 1) == EINVAL);
			CHECK(post(qp, 1, 0, granted.max_inline_data + 1) == EINVAL);
			struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
			CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
		}
		CHECK(!ibv_destroy_qp(qp));
	}
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
