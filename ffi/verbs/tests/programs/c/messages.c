/*
 * Tests that the fields of requests take effect, for example immediates with the bytes and lengths of both
 * interfaces, invalidated keys, solicited events, 64-bit atomics, and the limit of a shared receive queue.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <string.h>
#include <time.h>

#include "common.h"

enum { DEPTH = 8 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *events;
static struct ibv_cq *cq;
static struct ibv_cq_ex *far_cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp, *far;
/* The shared receive queue of the far end, or NULL. */
static struct ibv_srq *far_srq;
/* Whether the completions of the far end are polled by ibv_poll_cq, and not by the extended interface. */
static int polls_plainly;
static uint64_t memory[512];

static uint8_t *at(size_t offset)
{
	return (uint8_t *)memory + offset;
}

static void make_pair(int sig_all)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = sig_all,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
				  IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
				  IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_LOCAL_INV,
	};
	CHECK((qp = ibv_create_qp_ex(context, &init)));
	init_qp(qp);
	struct ibv_qp_init_attr of_far = qp_init(ibv_cq_ex_to_cq(far_cq), far_srq, DEPTH);
	CHECK((far = ibv_create_qp(pd, &of_far)));
	init_qp(far);
	connect_qp(qp, far->qp_num);
	connect_qp(far, qp->qp_num);
}

static void destroy_pair(void)
{
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(far));
}

static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	time_t limit = time(NULL) + 30;
	while (!ibv_poll_cq(cq, 1, &wc))
		CHECK(time(NULL) < limit);
	return wc;
}

static void succeeds(uint64_t wr_id, enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = completion();
	if (wc.status)
		fprintf(stderr, "request %d: %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status));
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == wr_id && wc.opcode == opcode && wc.qp_num == qp->qp_num);
}

static void post_far_recv(uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)at(2048), 256, mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };
	CHECK(!(far_srq ? ibv_post_srq_recv(far_srq, &wr, &bad) : ibv_post_recv(far, &wr, &bad)));
}

/* Checks the far end's next completion, field by field, by one of the two interfaces. */
static void arrives(uint64_t wr_id, enum ibv_wc_opcode opcode, uint32_t length, unsigned flags, uint32_t data)
{
	struct ibv_poll_cq_attr attr = { 0 };
	time_t limit = time(NULL) + 30;
	if (polls_plainly) {
		struct ibv_wc wc;
		while (!ibv_poll_cq(ibv_cq_ex_to_cq(far_cq), 1, &wc))
			CHECK(time(NULL) < limit);
		CHECK(wc.wr_id == wr_id && wc.status == IBV_WC_SUCCESS && wc.opcode == opcode);
		CHECK(wc.byte_len == length && wc.qp_num == far->qp_num && wc.wc_flags == flags);
		CHECK(!(flags & IBV_WC_WITH_IMM) || wc.imm_data == data);
		return;
	}
	while (ibv_start_poll(far_cq, &attr) == ENOENT)
		CHECK(time(NULL) < limit);
	CHECK(far_cq->wr_id == wr_id && far_cq->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(far_cq) == opcode);
	CHECK(ibv_wc_read_byte_len(far_cq) == length && ibv_wc_read_qp_num(far_cq) == far->qp_num);
	CHECK(ibv_wc_read_wc_flags(far_cq) == flags);
	if (flags & IBV_WC_WITH_IMM)
		CHECK(ibv_wc_read_imm_data(far_cq) == data);
	CHECK(ibv_next_poll(far_cq) == ENOENT);
	ibv_end_poll(far_cq);
	attr.comp_mask = 1;
	CHECK(ibv_start_poll(far_cq, &attr) == EINVAL);
}

/* Tests the lengths of Writes with an immediate, whose bytes come from several elements or are inline. */
static void immediates(void)
{
	struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(qp);
	for (int form = 0; form < 8; form++) {
		int is_ex = form & 1, is_inline = form & 2, is_send = form & 4;
		uint32_t data = htonl(0x01020304 + form), length = 40 + form;
		struct ibv_sge sges[2] = { { (uintptr_t)at(0), 8, mr->lkey }, { (uintptr_t)at(100), length - 8, mr->lkey } };
		post_far_recv(50 + form);
		if (is_ex) {
			ibv_wr_start(qx);
			qx->wr_id = form;
			qx->wr_flags = IBV_SEND_SIGNALED;
			if (is_send)
				ibv_wr_send_imm(qx, data);
			else
				ibv_wr_rdma_write_imm(qx, mr->rkey, (uintptr_t)at(1024), data);
			if (is_inline)
				ibv_wr_set_inline_data(qx, at(0), length);
			else
				ibv_wr_set_sge_list(qx, 2, sges);
			CHECK(!ibv_wr_complete(qx));
		} else {
			struct ibv_send_wr *bad, wr = { .wr_id = form, .sg_list = sges, .num_sge = 2, .imm_data = data };
			wr.opcode = is_send ? IBV_WR_SEND_WITH_IMM : IBV_WR_RDMA_WRITE_WITH_IMM;
			wr.send_flags = IBV_SEND_SIGNALED | (is_inline ? IBV_SEND_INLINE : 0);
			wr.wr.rdma.remote_addr = (uintptr_t)at(1024);
			wr.wr.rdma.rkey = mr->rkey;
			CHECK(!ibv_post_send(qp, &wr, &bad));
		}
		succeeds(form, is_send ? IBV_WC_SEND : IBV_WC_RDMA_WRITE);
		arrives(50 + form, is_send ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM, length, IBV_WC_WITH_IMM, data);
	}
}

/* Atomics use all 64 bits, and return the old value. */
static void atomics(void)
{
	struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(qp);
	struct ibv_sge sge = { (uintptr_t)at(8), 8, mr->lkey };
	uint64_t *word = &memory[128], *old = &memory[1];
	/* The values differ in bits of both halves, and the sum carries from the low half to the high half. */
	const uint64_t first = 0x8000000180000001, second = 0x7ffffffe7ffffffe, more = 0x4000000080000001;
	for (int is_ex = 0; is_ex < 2; is_ex++) {
		for (int step = 0; step < 4; step++) {
			uint64_t compare = step == 1 ? first ^ 1ull << 40 : first;
			*word = step == 2 ? first ^ 1ull << 50 : first;
			uint64_t before = *word, after = step == 3 ? before + more : step ? before : second;
			*old = 0;
			if (is_ex) {
				ibv_wr_start(qx);
				qx->wr_id = step;
				qx->wr_flags = IBV_SEND_SIGNALED;
				if (step == 3)
					ibv_wr_atomic_fetch_add(qx, mr->rkey, (uintptr_t)word, more);
				else
					ibv_wr_atomic_cmp_swp(qx, mr->rkey, (uintptr_t)word, compare, second);
				ibv_wr_set_sge(qx, mr->lkey, sge.addr, 8);
				CHECK(!ibv_wr_complete(qx));
			} else {
				struct ibv_send_wr *bad, wr = { .wr_id = step, .sg_list = &sge, .num_sge = 1 };
				wr.opcode = step == 3 ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
				wr.send_flags = IBV_SEND_SIGNALED;
				wr.wr.atomic.remote_addr = (uintptr_t)word;
				wr.wr.atomic.rkey = mr->rkey;
				wr.wr.atomic.compare_add = step == 3 ? more : compare;
				wr.wr.atomic.swap = second;
				CHECK(!ibv_post_send(qp, &wr, &bad));
			}
			succeeds(step, step == 3 ? IBV_WC_FETCH_ADD : IBV_WC_COMP_SWAP);
			CHECK(*old == before && *word == after);
		}
	}
}

/* The completion of a Send with Invalidate reports the key, and a key that was invalidated locally is invalid. */
static void invalidations(void)
{
	struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(qp);
	for (int is_ex = 0; is_ex < 2; is_ex++) {
		struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
		CHECK(mw);
		struct ibv_send_wr *bad, wr = { .wr_id = 1, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };
		wr.bind_mw.mw = mw;
		wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
		wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ mr, (uintptr_t)at(1024), 64, IBV_ACCESS_REMOTE_WRITE };
		/* The window is bound at the far end, which invalidates the key when the Send arrives. */
		CHECK(!ibv_post_send(far, &wr, &bad));
		struct ibv_poll_cq_attr attr = { 0 };
		time_t limit = time(NULL) + 30;
		while (ibv_start_poll(far_cq, &attr) == ENOENT)
			CHECK(time(NULL) < limit);
		CHECK(far_cq->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(far_cq) == IBV_WC_BIND_MW);
		ibv_end_poll(far_cq);
		post_far_recv(60);
		if (is_ex) {
			ibv_wr_start(qx);
			qx->wr_id = 2;
			qx->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_send_inv(qx, mw->rkey);
			CHECK(!ibv_wr_complete(qx));
		} else {
			struct ibv_send_wr inv = { .wr_id = 2, .opcode = IBV_WR_SEND_WITH_INV, .send_flags = IBV_SEND_SIGNALED };
			inv.invalidate_rkey = mw->rkey;
			CHECK(!ibv_post_send(qp, &inv, &bad));
		}
		succeeds(2, IBV_WC_SEND);
		arrives(60, IBV_WC_RECV, 0, IBV_WC_WITH_INV, 0);
		/* The window is free: it can be bound again. */
		wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
		CHECK(!ibv_post_send(far, &wr, &bad));
		while (ibv_start_poll(far_cq, &attr) == ENOENT)
			CHECK(time(NULL) < limit);
		CHECK(far_cq->status == IBV_WC_SUCCESS);
		ibv_end_poll(far_cq);
		/*
		 * The far end invalidates the window locally, since only the queue pair that has bound the
		 * window can do this.
		 */
		struct ibv_send_wr local = { .wr_id = 3, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED };
		local.invalidate_rkey = mw->rkey;
		CHECK(!ibv_post_send(far, &local, &bad));
		while (ibv_start_poll(far_cq, &attr) == ENOENT)
			CHECK(time(NULL) < limit);
		CHECK(far_cq->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(far_cq) == IBV_WC_LOCAL_INV);
		ibv_end_poll(far_cq);
		CHECK(!ibv_dealloc_mw(mw));
	}
}

/* A queue that is armed for solicited completions reports a solicited message, but no unsolicited message. */
static void solicited(void)
{
	struct ibv_pd *own = ibv_alloc_pd(context);
	struct ibv_cq *armed = ibv_create_cq(context, 8, NULL, events, 0);
	CHECK(own && armed);
	struct ibv_qp *to = make_qp(pd, armed, DEPTH), *from = make_qp(pd, cq, DEPTH);
	connect_qp(to, from->qp_num);
	connect_qp(from, to->qp_num);
	struct pollfd fd = { .fd = events->fd, .events = POLLIN };
	struct ibv_recv_wr *bad_recv, recv = { .wr_id = 1 };
	struct ibv_send_wr *bad, wr = { .wr_id = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_wc wc;
	CHECK(!ibv_req_notify_cq(armed, 1) && !ibv_post_recv(to, &recv, &bad_recv) && !ibv_post_recv(to, &recv, &bad_recv));
	CHECK(!ibv_post_send(from, &wr, &bad) && completion().status == IBV_WC_SUCCESS);
	CHECK(poll(&fd, 1, 100) == 0);
	wr.send_flags |= IBV_SEND_SOLICITED;
	CHECK(!ibv_post_send(from, &wr, &bad) && completion().status == IBV_WC_SUCCESS);
	CHECK(poll(&fd, 1, 30000) == 1);
	struct ibv_cq *told;
	void *unused;
	CHECK(!ibv_get_cq_event(events, &told, &unused) && told == armed);
	ibv_ack_cq_events(armed, 1);
	CHECK(ibv_poll_cq(armed, 1, &wc) == 1 && ibv_poll_cq(armed, 1, &wc) == 1);
	CHECK(!ibv_destroy_qp(to) && !ibv_destroy_qp(from) && !ibv_destroy_cq(armed) && !ibv_dealloc_pd(own));
}

/* Unsignaled requests that succeed get no completion, unless the queue pair has sq_sig_all. */
static void signals(void)
{
	for (int sig_all = 0; sig_all < 2; sig_all++) {
		make_pair(sig_all);
		struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(qp);
		for (int flags = 0; flags < 2; flags++) {
			ibv_wr_start(qx);
			qx->wr_id = flags;
			qx->wr_flags = flags ? IBV_SEND_SIGNALED : 0;
			ibv_wr_rdma_write(qx, mr->rkey, (uintptr_t)at(1024));
			ibv_wr_set_sge(qx, mr->lkey, (uintptr_t)at(0), 8);
			CHECK(!ibv_wr_complete(qx));
		}
		if (sig_all)
			succeeds(0, IBV_WC_RDMA_WRITE);
		succeeds(1, IBV_WC_RDMA_WRITE);
		struct ibv_wc wc;
		CHECK(!ibv_poll_cq(cq, 1, &wc));
		destroy_pair();
	}
}

/* A request that the access flags of the peer's queue pair forbid fails, and the extended poll interface reports
 * the flushed receive of the peer. */
static void rights(void)
{
	make_pair(0);
	struct ibv_qp_attr attr = { .qp_access_flags = IBV_ACCESS_REMOTE_READ };
	CHECK(!ibv_modify_qp(far, &attr, IBV_QP_ACCESS_FLAGS));
	struct ibv_sge sge = { (uintptr_t)at(0), 8, mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	wr.wr.rdma.remote_addr = (uintptr_t)at(1024);
	wr.wr.rdma.rkey = mr->rkey;
	post_far_recv(70);
	CHECK(!ibv_post_send(qp, &wr, &bad) && completion().status == IBV_WC_REM_ACCESS_ERR);
	struct ibv_poll_cq_attr poll_attr = { 0 };
	time_t limit = time(NULL) + 30;
	while (ibv_start_poll(far_cq, &poll_attr) == ENOENT)
		CHECK(time(NULL) < limit);
	CHECK(far_cq->wr_id == 70 && far_cq->status == IBV_WC_WR_FLUSH_ERR);
	ibv_end_poll(far_cq);
	destroy_pair();
}

/* Tests the limit of a shared receive queue: the query, the event, and refused changes. */
static void shared_limit(void)
{
	struct ibv_srq_init_attr of_srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &of_srq);
	CHECK(srq && of_srq.attr.max_sge == 8);
	struct ibv_srq_attr attr = { .srq_limit = 2, .max_wr = 4 };
	struct ibv_recv_wr *bad, wr = { .wr_id = 1 };
	for (int i = 0; i < 3; i++)
		CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
	CHECK(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	memset(&attr, 0xee, sizeof(attr));
	CHECK(!ibv_query_srq(srq, &attr) && attr.srq_limit == 2 && attr.max_wr == 4 && attr.max_sge == 8);
	/* Changing only the size keeps the limit. */
	attr.srq_limit = 1;
	attr.max_wr = 4;
	CHECK(!ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) && !ibv_query_srq(srq, &attr) && attr.srq_limit == 2);
	attr.max_wr = 5;
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == EOPNOTSUPP);
	attr.max_wr = 2;
	CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == EINVAL);
	struct ibv_qp_init_attr init = qp_init(cq, srq, 2);
	struct ibv_qp *to = ibv_create_qp(pd, &init), *from = make_qp(pd, cq, 2);
	CHECK(to && ibv_destroy_srq(srq) == EBUSY);
	init_qp(to);
	connect_qp(to, from->qp_num);
	connect_qp(from, to->qp_num);
	struct pollfd fd = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_send_wr *bad_send, send = { .wr_id = 2, .opcode = IBV_WR_SEND };
	CHECK(!ibv_post_send(from, &send, &bad_send) && completion().wr_id == 1);
	/* Two requests are left. This number is not below the limit. */
	CHECK(poll(&fd, 1, 100) == 0);
	CHECK(!ibv_post_send(from, &send, &bad_send) && completion().wr_id == 1);
	struct ibv_async_event event;
	CHECK(poll(&fd, 1, 30000) == 1 && !ibv_get_async_event(context, &event));
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	ibv_ack_async_event(&event);
	CHECK(!ibv_destroy_qp(to) && !ibv_destroy_qp(from) && !ibv_destroy_srq(srq));
}

int main(void)
{
	context = open_device();
	struct ibv_cq_init_attr_ex of_far = {
		.cqe = 64,
		.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM,
	};
	CHECK((pd = ibv_alloc_pd(context)) && (events = ibv_create_comp_channel(context)));
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)) && (far_cq = ibv_create_cq_ex(context, &of_far)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory),
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				       IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND)));
	make_pair(0);
	immediates();
	atomics();
	invalidations();
	polls_plainly = 1;
	immediates();
	destroy_pair();
	/* An immediate takes a receive of a shared queue, and its completion has the same fields. */
	struct ibv_srq_init_attr of_srq = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	CHECK((far_srq = ibv_create_srq(pd, &of_srq)));
	make_pair(0);
	immediates();
	polls_plainly = 0;
	immediates();
	destroy_pair();
	CHECK(!ibv_destroy_srq(far_srq));
	far_srq = NULL;
	solicited();
	signals();
	shared_limit();
	rights();
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_destroy_cq(ibv_cq_ex_to_cq(far_cq)));
	CHECK(!ibv_destroy_comp_channel(events) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
