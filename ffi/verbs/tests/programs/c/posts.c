/*
 * Tests refused posts: the error, the request of the list that is returned as bad, and that exactly the requests
 * before the bad request are posted. A program continues with the bad request.
 */
#include <string.h>
#include <time.h>

#include "common.h"

enum { LIST = 8 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t memory[4096];
static struct ibv_sge sges[LIST];
static struct ibv_send_wr sends[LIST], *bad_send;
static struct ibv_recv_wr recvs[LIST], *bad_recv;

/* Makes a list of `count` Writes and a list of receives, whose requests have the wr_ids from `first` on. */
static void make_lists(int count, uint64_t first)
{
	memset(sends, 0, sizeof(sends));
	memset(recvs, 0, sizeof(recvs));
	for (int i = 0; i < count; i++) {
		sges[i] = (struct ibv_sge){ (uintptr_t)memory, 8, mr->lkey };
		sends[i] = (struct ibv_send_wr){ .wr_id = first + i, .sg_list = &sges[i], .num_sge = 1 };
		sends[i].opcode = IBV_WR_RDMA_WRITE;
		sends[i].send_flags = IBV_SEND_SIGNALED;
		sends[i].wr.rdma.remote_addr = (uintptr_t)memory + 2048;
		sends[i].wr.rdma.rkey = mr->rkey;
		sends[i].next = i + 1 < count ? &sends[i + 1] : NULL;
		recvs[i] = (struct ibv_recv_wr){ .wr_id = first + i, .sg_list = &sges[i], .num_sge = 1 };
		recvs[i].next = i + 1 < count ? &recvs[i + 1] : NULL;
	}
	bad_send = NULL;
	bad_recv = NULL;
}

static struct ibv_qp *make(struct ibv_srq *srq, struct ibv_qp_cap cap, struct ibv_qp_cap *granted)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .cap = cap, .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	if (granted)
		*granted = init.cap;
	return qp;
}

static struct ibv_qp *connected(struct ibv_srq *srq, uint32_t sends, uint32_t recvs)
{
	struct ibv_qp_cap granted;
	struct ibv_qp *qp = make(srq, (struct ibv_qp_cap){ sends, recvs, 1, 1, 0 }, &granted);
	CHECK(granted.max_send_wr == sends && granted.max_recv_wr == (srq ? 0 : recvs));
	init_qp(qp);
	connect_qp(qp, qp->qp_num);
	return qp;
}

/* Checks that the next completions belong to these requests, and that there are no other completions. */
static void expect(uint64_t first, int count, enum ibv_wc_status status)
{
	struct ibv_wc wc;
	time_t limit = time(NULL) + 30;
	for (int i = 0; i < count; i++) {
		while (!ibv_poll_cq(cq, 1, &wc))
			CHECK(time(NULL) < limit);
		CHECK(wc.wr_id == first + i && wc.status == status);
	}
	for (int i = 0; i < 1000; i++)
		CHECK(!ibv_poll_cq(cq, 1, &wc));
}

/* Tests full queues of different depths. A program that continues with the bad request posts each request once. */
static void full_queues(uint32_t send_depth, uint32_t recv_depth)
{
	struct ibv_qp *qp = connected(NULL, send_depth, recv_depth);
	make_lists(LIST, 10);
	CHECK(ibv_post_send(qp, sends, &bad_send) == ENOMEM && bad_send == &sends[send_depth]);
	expect(10, send_depth, IBV_WC_SUCCESS);
	CHECK(ibv_post_send(qp, bad_send, &bad_send) == (send_depth * 2 < LIST ? ENOMEM : 0));
	expect(10 + send_depth, send_depth * 2 < LIST ? send_depth : LIST - send_depth, IBV_WC_SUCCESS);

	make_lists(LIST, 50);
	CHECK(ibv_post_recv(qp, recvs, &bad_recv) == ENOMEM && bad_recv == &recvs[recv_depth]);
	CHECK(ibv_post_recv(qp, bad_recv, &bad_recv) == ENOMEM && bad_recv == &recvs[recv_depth]);
	/* Each receive was posted once. */
	for (uint32_t i = 0; i < recv_depth; i++) {
		struct ibv_send_wr wr = { .wr_id = 90, .opcode = IBV_WR_SEND };
		CHECK(!ibv_post_send(qp, &wr, &bad_send));
		expect(50 + i, 1, IBV_WC_SUCCESS);
	}
	CHECK(!ibv_post_recv(qp, &recvs[LIST - recv_depth], &bad_recv));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	expect(50 + LIST - recv_depth, recv_depth, IBV_WC_WR_FLUSH_ERR);
	CHECK(!ibv_destroy_qp(qp));
}

static void shared_queue(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 3, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	CHECK(srq && init.attr.max_wr == 3);
	struct ibv_qp *qp = connected(srq, 4, 7);
	make_lists(LIST, 20);
	/* The queue pair has no own receive queue. */
	CHECK(ibv_post_recv(qp, recvs, &bad_recv) == EINVAL && bad_recv == &recvs[0]);
	bad_recv = NULL;
	CHECK(ibv_post_srq_recv(srq, recvs, &bad_recv) == ENOMEM && bad_recv == &recvs[3]);
	CHECK(ibv_post_srq_recv(srq, bad_recv, &bad_recv) == ENOMEM && bad_recv == &recvs[3]);
	for (int i = 0; i < 3; i++) {
		struct ibv_send_wr wr = { .wr_id = 90, .opcode = IBV_WR_SEND };
		CHECK(!ibv_post_send(qp, &wr, &bad_send));
		expect(20 + i, 1, IBV_WC_SUCCESS);
	}
	/* If a request in the middle of a list is invalid, the requests before it are posted. */
	make_lists(3, 30);
	recvs[1].num_sge = 9;
	CHECK(ibv_post_srq_recv(srq, recvs, &bad_recv) == EINVAL && bad_recv == &recvs[1]);
	recvs[1].num_sge = 1;
	CHECK(!ibv_post_srq_recv(srq, bad_recv, &bad_recv));
	for (int i = 0; i < 3; i++) {
		struct ibv_send_wr wr = { .wr_id = 90, .opcode = IBV_WR_SEND };
		CHECK(!ibv_post_send(qp, &wr, &bad_send));
		expect(30 + i, 1, IBV_WC_SUCCESS);
	}
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_srq(srq));
}

/* Tests invalid requests in the middle of a list, each with its error. */
static void wrong_requests(void)
{
	struct ibv_qp *qp = connected(NULL, LIST, LIST);
	struct ibv_sge long_ones[2] = { { (uintptr_t)memory, UINT32_MAX, mr->lkey }, { (uintptr_t)memory, 1, mr->lkey } };
	struct ibv_sge halves[2] = { { (uintptr_t)memory, 4, mr->lkey }, { (uintptr_t)memory, 4, mr->lkey } };
	for (int wrong = 0; wrong < 6; wrong++) {
		make_lists(4, 40);
		int error = EINVAL;
		switch (wrong) {
		case 0:
			sends[2].num_sge = 9;
			break;
		case 1:
			sends[2].num_sge = -1;
			break;
		case 2:
			sends[2].opcode = IBV_WR_TSO;
			error = EOPNOTSUPP;
			break;
		case 3:
			sends[2].send_flags |= IBV_SEND_INLINE;
			sges[2].length = 2048;
			break;
		case 4:
			sends[2].sg_list = long_ones;
			sends[2].num_sge = 2;
			break;
		case 5:
			/* The result of an atomic needs exactly one element. */
			sends[2].opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
			sends[2].sg_list = halves;
			sends[2].num_sge = 2;
			sends[2].wr.atomic.remote_addr = (uintptr_t)memory + 2048;
			sends[2].wr.atomic.rkey = mr->rkey;
			break;
		}
		int got = ibv_post_send(qp, sends, &bad_send);
		if (got != error || bad_send != &sends[2])
			fprintf(stderr, "wrong request %d: %d, %d\n", wrong, got, bad_send ? (int)(bad_send - sends) : -1);
		CHECK(got == error && bad_send == &sends[2]);
		expect(40, 2, IBV_WC_SUCCESS);
	}
	/* Only sent bytes can be inline: Reads and atomics ignore the flag. */
	const enum ibv_wr_opcode fetching[] = { IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP };
	for (int i = 0; i < 3; i++) {
		make_lists(1, 40);
		sends[0].opcode = fetching[i];
		sends[0].send_flags |= IBV_SEND_INLINE;
		if (i) {
			sends[0].wr.atomic.remote_addr = (uintptr_t)memory + 2048;
			sends[0].wr.atomic.rkey = mr->rkey;
		}
		memset(memory, 0x55, 8);
		memset(memory + 2048, i + 1, 8);
		CHECK(!ibv_post_send(qp, sends, &bad_send));
		expect(40, 1, IBV_WC_SUCCESS);
		CHECK(memory[0] == i + 1 && memory[7] == i + 1);
	}
	/* A request may have the device's maximum number of elements. */
	struct ibv_sge most[LIST] = { { 0 } };
	make_lists(1, 61);
	recvs[0].sg_list = most;
	recvs[0].num_sge = LIST;
	CHECK(!ibv_post_recv(qp, recvs, &bad_recv));
	struct ibv_send_wr to_it = { .wr_id = 90, .opcode = IBV_WR_SEND };
	CHECK(!ibv_post_send(qp, &to_it, &bad_send));
	expect(61, 1, IBV_WC_SUCCESS);
	make_lists(4, 40);
	recvs[3].num_sge = 9;
	CHECK(ibv_post_recv(qp, recvs, &bad_recv) == EINVAL && bad_recv == &recvs[3]);
	make_lists(1, 60);
	recvs[0].num_sge = -1;
	CHECK(ibv_post_recv(qp, recvs, &bad_recv) == EINVAL && bad_recv == &recvs[0]);
	/* An empty list is accepted. */
	CHECK(!ibv_post_send(qp, NULL, &bad_send) && !ibv_post_recv(qp, NULL, &bad_recv));
	CHECK(!ibv_destroy_qp(qp));
	expect(0, 0, IBV_WC_SUCCESS);
}

/* Tests posts before a connection: the first request is returned as bad. In RTR sends wait for the connection, as
 * servers of perftest need. */
static void states(void)
{
	struct ibv_qp *qp = make(NULL, (struct ibv_qp_cap){ 4, 4, 1, 1, 0 }, NULL);
	make_lists(2, 70);
	CHECK(ibv_post_send(qp, sends, &bad_send) == EINVAL && bad_send == &sends[0]);
	CHECK(ibv_post_recv(qp, recvs, &bad_recv) == EINVAL && bad_recv == &recvs[0]);
	init_qp(qp);
	bad_send = NULL;
	CHECK(ibv_post_send(qp, sends, &bad_send) == EINVAL && bad_send == &sends[0]);
	CHECK(!ibv_post_recv(qp, recvs, &bad_recv));
	/* A queue pair in ERR accepts all requests, and flushes them. */
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	expect(70, 2, IBV_WC_WR_FLUSH_ERR);
	CHECK(!ibv_post_send(qp, sends, &bad_send));
	expect(70, 2, IBV_WC_WR_FLUSH_ERR);
	CHECK(!ibv_destroy_qp(qp));
	qp = make(NULL, (struct ibv_qp_cap){ 4, 4, 1, 1, 0 }, NULL);
	init_qp(qp);
	to_rtr(qp, qp->qp_num, 12);
	CHECK(!ibv_post_send(qp, sends, &bad_send));
	to_rts(qp, 14, 7);
	expect(70, 2, IBV_WC_SUCCESS);
	CHECK(!ibv_destroy_qp(qp));
}

/* Tests inline requests of the granted number of bytes, and of one byte more, which are refused. */
static void inline_bytes(void)
{
	struct ibv_qp_cap granted, asked = { LIST, 1, 2, 1, 100 };
	struct ibv_qp *qp = make(NULL, asked, &granted);
	CHECK(granted.max_inline_data == 128);
	init_qp(qp);
	connect_qp(qp, qp->qp_num);
	for (int parts = 1; parts <= 2; parts++) {
		for (uint32_t more = 0; more < 2; more++) {
			struct ibv_sge list[2] = { { (uintptr_t)memory, granted.max_inline_data + more, 0 }, { 0, 0, 0 } };
			if (parts == 2) {
				list[0].length -= 50;
				list[1] = (struct ibv_sge){ (uintptr_t)memory + 500, 50, 0 };
			}
			for (int i = 0; i < 600; i++)
				memory[i] = i * 7 + parts;
			memset(memory + 2048, 0, 1024);
			make_lists(1, 80);
			sends[0].send_flags |= IBV_SEND_INLINE;
			sends[0].sg_list = list;
			sends[0].num_sge = parts;
			CHECK(ibv_post_send(qp, sends, &bad_send) == (more ? EINVAL : 0));
			CHECK(!more || bad_send == &sends[0]);
			/* The bytes were copied, so the program may change them. */
			uint8_t expected[129] = { 0 };
			memcpy(expected, memory, list[0].length);
			memcpy(expected + list[0].length, memory + 500, list[1].length);
			memset(memory, 0xff, 600);
			expect(80, more ? 0 : 1, IBV_WC_SUCCESS);
			CHECK(more || (!memcmp(memory + 2048, expected, 128) && !memory[2048 + 128]));
		}
	}
	CHECK(!ibv_destroy_qp(qp));

	/* The extended interface accepts the bytes in one piece and in several pieces. */
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = asked,
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
	};
	CHECK((qp = ibv_create_qp_ex(context, &init)) && init.cap.max_inline_data == 128);
	struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(qp);
	/* Before the queue pair is connected, a list is refused. */
	for (int in_init = 0; in_init < 2; in_init++) {
		if (in_init)
			init_qp(qp);
		ibv_wr_start(qx);
		ibv_wr_rdma_write(qx, mr->rkey, (uintptr_t)memory + 2048);
		CHECK(ibv_wr_complete(qx) == EINVAL);
	}
	/* In RTR the list waits for the connection. */
	to_rtr(qp, qp->qp_num, 12);
	ibv_wr_start(qx);
	qx->wr_id = 82;
	qx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qx, mr->rkey, (uintptr_t)memory + 2048);
	CHECK(!ibv_wr_complete(qx));
	to_rts(qp, 14, 7);
	expect(82, 1, IBV_WC_SUCCESS);
	for (int parts = 1; parts <= 2; parts++) {
		for (uint32_t more = 0; more < 2; more++) {
			struct ibv_data_buf list[2] = { { memory, 28 + more }, { memory + 28 + more, 100 } };
			ibv_wr_start(qx);
			qx->wr_id = 81;
			qx->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_rdma_write(qx, mr->rkey, (uintptr_t)memory + 2048);
			if (parts == 1)
				ibv_wr_set_inline_data(qx, memory, 128 + more);
			else
				ibv_wr_set_inline_data_list(qx, 2, list);
			CHECK(ibv_wr_complete(qx) == (more ? EINVAL : 0));
			expect(81, more ? 0 : 1, IBV_WC_SUCCESS);
		}
	}
	CHECK(!ibv_destroy_qp(qp));
}

/* Sizes beyond the device's limits are refused when a queue is made. */
static void limits(void)
{
	struct ibv_device_attr attr;
	CHECK(!ibv_query_device(context, &attr));
	struct ibv_qp_cap most = { attr.max_qp_wr, attr.max_qp_wr, attr.max_sge, attr.max_sge, 512 };
	CHECK(!ibv_destroy_qp(make(NULL, most, NULL)));
	/* The limits that hold are returned, and a request beyond them is refused. */
	struct ibv_qp_init_attr one = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 1, 1, 1, 1, 0 } };
	struct ibv_qp *small = ibv_create_qp(pd, &one);
	CHECK(small && one.cap.max_send_sge == (uint32_t)attr.max_sge && one.cap.max_recv_sge == (uint32_t)attr.max_sge);
	struct ibv_sge elements[64] = { { 0 } };
	struct ibv_recv_wr *bad, beyond = { .sg_list = elements, .num_sge = attr.max_sge + 1 };
	CHECK(attr.max_sge < 64 && ibv_post_recv(small, &beyond, &bad) == EINVAL && !ibv_destroy_qp(small));
	for (int wrong = 0; wrong < 5; wrong++) {
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .cap = most, .qp_type = IBV_QPT_RC };
		uint32_t *fields[5] = { &init.cap.max_send_wr, &init.cap.max_recv_wr, &init.cap.max_send_sge,
					&init.cap.max_recv_sge, &init.cap.max_inline_data };
		*fields[wrong] += 1;
		errno = 0;
		CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	}
	struct ibv_srq_init_attr init = { .attr = { .max_wr = attr.max_srq_wr + 1, .max_sge = 1 } };
	errno = 0;
	CHECK(!ibv_create_srq(pd, &init) && errno == EINVAL);
	init.attr = (struct ibv_srq_attr){ .max_wr = 1, .max_sge = attr.max_srq_sge + 1 };
	errno = 0;
	CHECK(!ibv_create_srq(pd, &init) && errno == EINVAL);
	init.attr = (struct ibv_srq_attr){ .max_wr = 0, .max_sge = 1 };
	errno = 0;
	CHECK(!ibv_create_srq(pd, &init) && errno == EINVAL);
}

int main(void)
{
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory),
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				       IBV_ACCESS_REMOTE_ATOMIC)));
	full_queues(5, 2);
	full_queues(2, 5);
	shared_queue();
	wrong_requests();
	states();
	inline_bytes();
	limits();
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
