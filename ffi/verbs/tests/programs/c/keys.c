/*
 * Tests regions and windows by their keys: where their addresses begin, to which memory a key refers after a change,
 * and which calls are refused while a window is bound.
 */
#include <string.h>
#include <time.h>

#include "common.h"

enum { PAGE = 4096, DEPTH = 8 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp, *far;
static uint8_t memory[4 * PAGE] __attribute__((aligned(PAGE)));
static const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_MW_BIND;

static void connected(void)
{
	qp = make_qp(pd, cq, DEPTH);
	far = make_qp(pd, cq, DEPTH);
	connect_qp(qp, far->qp_num);
	connect_qp(far, qp->qp_num);
}

static void disconnected(void)
{
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(far));
}

static enum ibv_wc_status status_of(uint64_t wr_id)
{
	struct ibv_wc wc;
	time_t limit = time(NULL) + 30;
	while (!ibv_poll_cq(cq, 1, &wc))
		CHECK(time(NULL) < limit);
	CHECK(wc.wr_id == wr_id);
	return wc.status;
}

/* Writes eight bytes from a local address to a remote address. Returns the status of the completion. */
static enum ibv_wc_status write_to(uint64_t from, uint32_t lkey, uint64_t to, uint32_t rkey)
{
	struct ibv_sge sge = { from, 8, lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = to;
	wr.wr.rdma.rkey = rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	return status_of(1);
}

/* Tests that the addresses of a region begin where the registration says. */
static void bases(void)
{
	struct ibv_mr *iova = ibv_reg_mr_iova(pd, memory + PAGE, PAGE, 0x7000, all);
	struct ibv_mr *zero = ibv_reg_mr(pd, memory + 2 * PAGE, PAGE, all | IBV_ACCESS_ZERO_BASED);
	CHECK(iova && zero);
	connected();
	memory[0] = 11;
	CHECK(write_to((uintptr_t)memory, mr->lkey, 0x7000 + 100, iova->rkey) == IBV_WC_SUCCESS);
	CHECK(memory[PAGE + 100] == 11);
	CHECK(write_to(0x7000 + 100, iova->lkey, 200, zero->rkey) == IBV_WC_SUCCESS && memory[2 * PAGE + 200] == 11);
	CHECK(write_to((uintptr_t)memory + PAGE, mr->lkey, (uintptr_t)memory + PAGE, iova->rkey) == IBV_WC_REM_ACCESS_ERR);
	disconnected();
	CHECK(!ibv_dereg_mr(iova) && !ibv_dereg_mr(zero));
}

/* Tests that the keys refer to the new memory, rights and domain after ibv_rereg_mr. */
static void changed(void)
{
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct ibv_mr *region = ibv_reg_mr(other, memory + PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(other && region);
	CHECK(ibv_rereg_mr(region, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	CHECK(ibv_dealloc_pd(other) == EBUSY);
	CHECK(!ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0) && region->pd == pd);
	CHECK(!ibv_dealloc_pd(other));
	CHECK(!ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory + 3 * PAGE, PAGE, 0));
	CHECK(region->addr == memory + 3 * PAGE && region->length == PAGE);
	uint32_t key = region->rkey;
	CHECK(!ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, all) && region->rkey == key);
	connected();
	memory[0] = 22;
	CHECK(write_to((uintptr_t)memory, mr->lkey, (uintptr_t)memory + 3 * PAGE, region->rkey) == IBV_WC_SUCCESS);
	CHECK(memory[3 * PAGE] == 22);
	CHECK(write_to((uintptr_t)memory + 3 * PAGE, region->lkey, (uintptr_t)memory + PAGE, mr->rkey) == IBV_WC_SUCCESS);
	CHECK(memory[PAGE] == 22);
	CHECK(!ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
	CHECK(write_to((uintptr_t)memory, mr->lkey, (uintptr_t)memory + 3 * PAGE, region->rkey) == IBV_WC_REM_ACCESS_ERR);
	disconnected();
	CHECK(!ibv_dereg_mr(region));
}

static struct ibv_mw_bind_info part(size_t at, uint64_t length)
{
	return (struct ibv_mw_bind_info){ mr, (uintptr_t)memory + at, length, IBV_ACCESS_REMOTE_WRITE };
}

/* Tests which binds of windows are refused, and which calls a bound window forbids. */
static void windows(void)
{
	struct ibv_mw *first = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *second = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	CHECK(first && second);
	errno = 0;
	CHECK(!ibv_alloc_mw(pd, 3) && errno == EINVAL);
	connected();
	/* A window cannot be bound by the call for windows of the other type. */
	struct ibv_send_wr *bad = NULL, wr = { .wr_id = 2, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };
	uint32_t key = first->rkey;
	wr.bind_mw.mw = first;
	wr.bind_mw.rkey = ibv_inc_rkey(first->rkey);
	wr.bind_mw.bind_info = part(PAGE, 64);
	CHECK(ibv_post_send(far, &wr, &bad) == EINVAL && bad == &wr && first->rkey == key);
	struct ibv_mw_bind bind = { .wr_id = 2, .send_flags = IBV_SEND_SIGNALED, .bind_info = part(PAGE, 64) };
	key = second->rkey;
	CHECK(ibv_bind_mw(far, second, &bind) == EINVAL && second->rkey == key);
	/* A window with bytes needs a region. */
	bind.bind_info.mr = NULL;
	CHECK(ibv_bind_mw(far, first, &bind) == EINVAL);
	wr.bind_mw.mw = second;
	wr.bind_mw.rkey = ibv_inc_rkey(second->rkey);
	wr.bind_mw.bind_info.mr = NULL;
	CHECK(ibv_post_send(far, &wr, &bad) == EINVAL && bad == &wr);
	/* A type 1 window gets a new key, which gives access to its bytes. */
	bind.bind_info.mr = mr;
	key = first->rkey;
	CHECK(!ibv_bind_mw(far, first, &bind) && first->rkey != key && status_of(2) == IBV_WC_SUCCESS);
	memory[0] = 33;
	CHECK(write_to((uintptr_t)memory, mr->lkey, (uintptr_t)memory + PAGE + 56, first->rkey) == IBV_WC_SUCCESS);
	CHECK(memory[PAGE + 56] == 33);
	CHECK(ibv_dereg_mr(mr) == EBUSY);
	/* The key becomes invalid with the next bind. */
	key = first->rkey;
	bind.bind_info = part(2 * PAGE, 64);
	CHECK(!ibv_bind_mw(far, first, &bind) && status_of(2) == IBV_WC_SUCCESS);
	CHECK(write_to((uintptr_t)memory, mr->lkey, (uintptr_t)memory + 2 * PAGE, first->rkey) == IBV_WC_SUCCESS);
	CHECK(write_to((uintptr_t)memory, mr->lkey, (uintptr_t)memory + PAGE, key) == IBV_WC_REM_ACCESS_ERR);
	disconnected();
	/*
	 * A queue pair that is connected to itself can bind a window, write to the window, and invalidate the
	 * window.
	 */
	qp = far = make_qp(pd, cq, DEPTH);
	connect_qp(qp, qp->qp_num);
	wr.bind_mw.bind_info = part(PAGE, 64);
	CHECK(!ibv_post_send(qp, &wr, &bad) && status_of(2) == IBV_WC_SUCCESS);
	CHECK(write_to((uintptr_t)memory, mr->lkey, (uintptr_t)memory + PAGE, second->rkey) == IBV_WC_SUCCESS);
	struct ibv_send_wr gone = { .wr_id = 3, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED };
	gone.invalidate_rkey = second->rkey;
	CHECK(!ibv_post_send(qp, &gone, &bad) && status_of(3) == IBV_WC_SUCCESS);
	CHECK(write_to((uintptr_t)memory, mr->lkey, (uintptr_t)memory + PAGE, second->rkey) == IBV_WC_REM_ACCESS_ERR);
	CHECK(!ibv_destroy_qp(qp) && !ibv_dealloc_mw(first) && !ibv_dealloc_mw(second));
}

int main(void)
{
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), all)));
	bases();
	changed();
	windows();
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
