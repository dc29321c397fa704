/*
 * Tests RDMA Reads into several elements. Such a request has one completion with all bytes, or one error, regardless
 * of the number of Reads on the wire.
 */
#include <string.h>
#include <time.h>

#include "common.h"

enum { DEPTH = 8, SOURCE = 1 << 20, BYTES = 2 << 20 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq, *other_cq;
static struct ibv_mr *mr;
static struct ibv_qp *qps[2];
static uint8_t *memory;

/* Connects two queue pairs. The first queue pair has a send queue of `depth` requests. The peer serves `reads`
 * Reads at a time. */
static void connected(uint32_t depth, uint8_t reads)
{
	struct ibv_qp_init_attr init = qp_init(cq, NULL, depth);
	struct ibv_qp_init_attr_ex extended = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = init.cap,
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ,
	};
	extended.cap.max_send_sge = 8;
	CHECK((qps[0] = ibv_create_qp_ex(context, &extended)));
	init_qp(qps[0]);
	qps[1] = make_qp(pd, other_cq, DEPTH);
	to_rtr(qps[0], qps[1]->qp_num, 12);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = qps[0]->qp_num,
		.max_dest_rd_atomic = reads,
		.ah_attr = { .is_global = 1, .port_num = 1 },
	};
	CHECK(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(qps[1], &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	to_rts(qps[0], 14, 7);
	to_rts(qps[1], 14, 7);
}

static void disconnected(void)
{
	CHECK(!ibv_destroy_qp(qps[0]) && !ibv_destroy_qp(qps[1]));
}

static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	time_t limit = time(NULL) + 30;
	while (!ibv_poll_cq(cq, 1, &wc))
		CHECK(time(NULL) < limit);
	return wc;
}

static void expect_nothing(void)
{
	struct ibv_wc wc;
	for (int i = 0; i < 1000; i++)
		CHECK(!ibv_poll_cq(cq, 1, &wc));
}

/* Posts a Read of the source from `from` on into `count` elements. */
static int post(uint64_t wr_id, struct ibv_sge *sges, int count, size_t from, unsigned flags)
{
	struct ibv_send_wr *bad = NULL, wr = { .wr_id = wr_id, .sg_list = sges, .num_sge = count };
	wr.opcode = IBV_WR_RDMA_READ;
	wr.send_flags = flags;
	wr.wr.rdma.remote_addr = (uintptr_t)memory + SOURCE + from;
	wr.wr.rdma.rkey = mr->rkey;
	return ibv_post_send(qps[0], &wr, &bad);
}

static struct ibv_sge element(size_t at, uint32_t length)
{
	return (struct ibv_sge){ (uintptr_t)memory + at, length, mr->lkey };
}

/* Checks that the elements have the source's bytes from `from` on, and that no byte around the elements has
 * changed. */
static void check_bytes(const struct ibv_sge *sges, int count, size_t from)
{
	static uint8_t expected[SOURCE];
	memset(expected, 0, SOURCE);
	for (int i = 0; i < count; i++) {
		memcpy(expected + sges[i].addr - (uintptr_t)memory, memory + SOURCE + from, sges[i].length);
		from += sges[i].length;
	}
	CHECK(!memcmp(memory, expected, SOURCE));
	memset(memory, 0, SOURCE);
}

static void bytes_arrive(void)
{
	/* Some lists have empty elements at the front, in between or at the end, and some have long elements. */
	struct ibv_sge lists[5][8] = {
		{ element(100, 64), element(300, 1), element(50, 20) },
		{ element(0, 0), element(9, 8), element(20, 0), element(40, 30), element(99, 0) },
		{ element(0, 200000), element(400000, 300001), element(300000, 7) },
		{ element(5, 0), element(6, 0) },
		{ element(0, 1), element(2, 1), element(4, 1), element(6, 1), element(8, 1), element(10, 1), element(12, 1),
		  element(14, 1) },
	};
	int counts[5] = { 3, 5, 3, 2, 8 };
	/* With one Read at a time, the elements wait for each other. */
	for (uint8_t reads = 1; reads <= 8; reads += 7) {
		connected(DEPTH, reads);
		for (int list = 0; list < 5; list++) {
			for (int extended = 0; extended < 2; extended++) {
				uint32_t all = 0;
				for (int i = 0; i < counts[list]; i++)
					all += lists[list][i].length;
				if (extended) {
					struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(qps[0]);
					ibv_wr_start(qp);
					qp->wr_id = list;
					qp->wr_flags = IBV_SEND_SIGNALED;
					ibv_wr_rdma_read(qp, mr->rkey, (uintptr_t)memory + SOURCE + 77);
					ibv_wr_set_sge_list(qp, counts[list], lists[list]);
					CHECK(!ibv_wr_complete(qp));
				} else {
					CHECK(!post(list, lists[list], counts[list], 77, IBV_SEND_SIGNALED));
				}
				struct ibv_wc wc = completion();
				CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)list);
				CHECK(wc.opcode == IBV_WC_RDMA_READ && wc.byte_len == all);
				expect_nothing();
				check_bytes(lists[list], counts[list], 77);
			}
		}
		disconnected();
	}
}

/* Tests requests with more elements than the two entries of the send queue, with one Read at a time. Each request
 * uses one entry. */
static void entries_and_order(void)
{
	connected(2, 1);
	struct ibv_sge sges[8];
	for (int i = 0; i < 8; i++)
		sges[i] = element(1000 * i, 500);
	CHECK(!post(1, sges, 8, 0, 0));
	CHECK(!post(2, sges, 8, 5000, IBV_SEND_SIGNALED));
	CHECK(post(3, sges, 8, 0, IBV_SEND_SIGNALED) == ENOMEM);
	/* The first request gets no completion. */
	CHECK(completion().wr_id == 2);
	expect_nothing();
	check_bytes(sges, 8, 5000);
	/* A request with a fence waits for all elements of the Read before it. A Write with a fence after a Read
	 * sends the data of the Read. */
	for (int round = 0; round < 20; round++) {
		memset(memory + SOURCE - 8, 0, 8);
		CHECK(!post(4, sges, 8, 0, IBV_SEND_SIGNALED));
		struct ibv_sge last = element(7000, 8);
		struct ibv_send_wr *bad, wr = { .wr_id = 5, .sg_list = &last, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
		wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
		wr.wr.rdma.remote_addr = (uintptr_t)memory + SOURCE - 8;
		wr.wr.rdma.rkey = mr->rkey;
		CHECK(!ibv_post_send(qps[0], &wr, &bad));
		CHECK(completion().wr_id == 4 && completion().wr_id == 5);
		CHECK(!memcmp(memory + SOURCE - 8, memory + SOURCE + 3500, 8));
		memset(memory, 0, SOURCE);
	}
	disconnected();
}

/* Whichever element is wrong, the request fails once, and each later request is flushed once. */
static void errors(void)
{
	for (uint8_t reads = 1; reads <= 8; reads += 7) {
		for (int wrong = 0; wrong < 3; wrong++) {
			for (int peer = 0; peer < 2; peer++) {
				connected(DEPTH, reads);
				struct ibv_sge sges[3] = { element(0, 4096), element(8192, 4096), element(16384, 4096) };
				/*
				 * For an error at the peer, the bytes for element `wrong` begin at the end of
				 * the peer's memory.
				 */
				size_t from = peer ? BYTES - SOURCE - 4096 * wrong : 0;
				if (!peer)
					sges[wrong].lkey ^= 0x5a00;
				CHECK(!post(1, sges, 3, from, wrong == 1 ? 0 : IBV_SEND_SIGNALED));
				CHECK(!post(2, sges, 3, 0, 0));
				struct ibv_wc first = completion(), second = completion();
				if (first.wr_id != 1 || first.status != (peer ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_PROT_ERR))
					fprintf(stderr, "element %d, peer %d: %d %s\n", wrong, peer, (int)first.wr_id,
						ibv_wc_status_str(first.status));
				CHECK(first.wr_id == 1);
				CHECK(first.status == (peer ? IBV_WC_REM_ACCESS_ERR : IBV_WC_LOC_PROT_ERR));
				CHECK(second.wr_id == 2 && second.status == IBV_WC_WR_FLUSH_ERR);
				expect_nothing();
				CHECK(!post(3, sges, 3, 0, 0));
				struct ibv_wc late = completion();
				CHECK(late.wr_id == 3 && late.status == IBV_WC_WR_FLUSH_ERR);
				expect_nothing();
				disconnected();
				memset(memory, 0, SOURCE);
			}
		}
	}
	/* The queue pair ends during the Read. */
	connected(DEPTH, 1);
	struct ibv_sge sges[3] = { element(0, 300000), element(300000, 300000), element(600000, 300000) };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK(!post(1, sges, 3, 0, 0) && !post(2, sges, 3, 0, 0));
	CHECK(!ibv_modify_qp(qps[0], &attr, IBV_QP_STATE));
	for (uint64_t id = 1; id <= 2; id++) {
		struct ibv_wc wc = completion();
		CHECK(wc.wr_id == id && wc.status == IBV_WC_WR_FLUSH_ERR);
	}
	expect_nothing();
	disconnected();
}

int main(void)
{
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)) && (other_cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	CHECK((memory = calloc(1, BYTES)));
	for (size_t i = SOURCE; i < BYTES; i++)
		memory[i] = i * 2654435761u >> 13 | 1;
	CHECK((mr = ibv_reg_mr(pd, memory, BYTES,
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)));
	struct ibv_device_attr attr;
	CHECK(!ibv_query_device(context, &attr) && attr.max_sge_rd == attr.max_sge && attr.max_sge_rd == 8);
	bytes_arrive();
	entries_and_order();
	errors();
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_destroy_cq(other_cq));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
