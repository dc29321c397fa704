/*
 * Tests on-demand paging: regions with bytes that are not mapped, the region of the whole address space, and
 * ibv_advise_mr. A request that uses a byte that is not mapped fails, and the process survives.
 */
#include <string.h>
#include <sys/mman.h>

#include "common.h"

enum { PAGE = 4096, PAGES = 8, BYTES = PAGES * PAGE };
enum { REMOTE = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
enum { ALL = IBV_ACCESS_LOCAL_WRITE | REMOTE | IBV_ACCESS_ON_DEMAND };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
/* Eight pages, of which only the first and the last are mapped at first. */
static char *pages;

static void supported(void)
{
	struct ibv_device_attr_ex attr;
	uint32_t rc = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ |
		      IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV;
	CHECK(!ibv_query_device_ex(context, NULL, &attr));
	CHECK(attr.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT));
	CHECK(attr.odp_caps.per_transport_caps.rc_odp_caps == rc);
	const uint32_t datagrams = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
	CHECK(attr.odp_caps.per_transport_caps.ud_odp_caps == datagrams);
	CHECK(attr.odp_caps.per_transport_caps.uc_odp_caps == (datagrams | IBV_ODP_SUPPORT_WRITE));
}

/* Does a request of `length` bytes at `local` and, for a Write or a Read, at `remote`. A Send is received at `remote`.
 * Returns the status of the request. */
static enum ibv_wc_status request(enum ibv_wr_opcode opcode, void *local, uint32_t lkey, void *remote, uint32_t rkey,
				  uint32_t length)
{
	struct ibv_qp *qps[2] = { make_qp(pd, cq, 4), make_qp(pd, cq, 4) };
	struct ibv_sge sge = { (uintptr_t)local, length, lkey }, at = { (uintptr_t)remote, length, rkey };
	struct ibv_recv_wr *bad_recv, recv = { .wr_id = 2, .sg_list = &at, .num_sge = 1 };
	struct ibv_send_wr *bad_send, send = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = opcode };
	enum ibv_wc_status status = IBV_WC_GENERAL_ERR;
	connect_qp(qps[0], qps[1]->qp_num);
	connect_qp(qps[1], qps[0]->qp_num);
	send.send_flags = IBV_SEND_SIGNALED;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		send.wr.atomic.remote_addr = (uintptr_t)remote;
		send.wr.atomic.rkey = rkey;
		send.wr.atomic.compare_add = 1;
	} else {
		send.wr.rdma.remote_addr = (uintptr_t)remote;
		send.wr.rdma.rkey = rkey;
	}
	if (opcode == IBV_WR_SEND)
		CHECK(!ibv_post_recv(qps[1], &recv, &bad_recv));
	CHECK(!ibv_post_send(qps[0], &send, &bad_send));
	for (int i = 0; i < (opcode == IBV_WR_SEND ? 2 : 1); i++) {
		struct ibv_wc wc = next_of(cq);
		if (wc.wr_id == 1)
			status = wc.status;
		else
			CHECK(wc.status == IBV_WC_SUCCESS || status != IBV_WC_SUCCESS || i == 0);
	}
	CHECK(!ibv_destroy_qp(qps[0]) && !ibv_destroy_qp(qps[1]));
	return status;
}

/* Tests that a region is used where it is mapped, and that other bytes of the region are refused. */
static void use(struct ibv_mr *mr)
{
	char *first = pages, *hole = pages + 2 * PAGE, *last = pages + BYTES - PAGE;
	memset(first, 'a', PAGE);
	memset(last, 'b', PAGE);
	CHECK(request(IBV_WR_SEND, first, mr->lkey, last, mr->lkey, 100) == IBV_WC_SUCCESS);
	CHECK(last[99] == 'a' && last[100] == 'b');
	CHECK(request(IBV_WR_RDMA_WRITE, last, mr->lkey, first + 8, mr->rkey, 200) == IBV_WC_SUCCESS);
	CHECK(first[8 + 99] == 'a' && first[8 + 100] == 'b' && first[8 + 199] == 'b' && first[8 + 200] == 'a');
	CHECK(request(IBV_WR_RDMA_READ, first, mr->lkey, last, mr->rkey, PAGE) == IBV_WC_SUCCESS);
	CHECK(!memcmp(first, last, PAGE));
	CHECK(request(IBV_WR_ATOMIC_FETCH_AND_ADD, first, mr->lkey, last, mr->rkey, 8) == IBV_WC_SUCCESS);
	CHECK(last[0] == 'b' || last[0] == 'a' + 1);
	/* The hole is local, or remote, or the last byte of a request. */
	CHECK(request(IBV_WR_RDMA_WRITE, hole, mr->lkey, last, mr->rkey, 8) == IBV_WC_LOC_PROT_ERR);
	CHECK(request(IBV_WR_RDMA_READ, hole, mr->lkey, last, mr->rkey, 8) == IBV_WC_LOC_PROT_ERR);
	CHECK(request(IBV_WR_RDMA_WRITE, last, mr->lkey, hole, mr->rkey, 8) == IBV_WC_REM_ACCESS_ERR);
	CHECK(request(IBV_WR_RDMA_READ, last, mr->lkey, hole, mr->rkey, 8) == IBV_WC_REM_ACCESS_ERR);
	CHECK(request(IBV_WR_ATOMIC_FETCH_AND_ADD, last, mr->lkey, hole, mr->rkey, 8) == IBV_WC_REM_ACCESS_ERR);
	CHECK(request(IBV_WR_RDMA_WRITE, last, mr->lkey, first + PAGE - 8, mr->rkey, 9) == IBV_WC_REM_ACCESS_ERR);
	/* The hole is used as soon as it is mapped, and is not used any more when it may not be written. */
	CHECK(mmap(hole, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == hole);
	CHECK(request(IBV_WR_RDMA_WRITE, first, mr->lkey, hole, mr->rkey, PAGE) == IBV_WC_SUCCESS);
	CHECK(!memcmp(hole, first, PAGE) && !mprotect(hole, PAGE, PROT_READ));
	CHECK(request(IBV_WR_RDMA_WRITE, last, mr->lkey, hole, mr->rkey, 8) == IBV_WC_REM_ACCESS_ERR);
	CHECK(request(IBV_WR_RDMA_READ, last, mr->lkey, hole, mr->rkey, PAGE) == IBV_WC_SUCCESS);
	CHECK(mmap(hole, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == hole);
}

static int advise(struct ibv_pd *of, int advice, uint32_t flags, void *addr, uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = { (uintptr_t)addr, length, lkey };
	return ibv_advise_mr(of, (enum ibv_advise_mr_advice)advice, flags, &sge, 1);
}

/* Checks that ibv_advise_mr checks the key, the domain, the range and the right to write, and that it maps pages. */
static void advised(struct ibv_mr *mr, struct ibv_mr *readable, struct ibv_mr *pinned)
{
	const int read = IBV_ADVISE_MR_ADVICE_PREFETCH, write = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	const uint32_t flush = IBV_ADVISE_MR_FLAG_FLUSH;
	struct ibv_pd *other = ibv_alloc_pd(context);
	char *last = pages + BYTES - PAGE;
	unsigned char is_there;
	CHECK(other && mr && readable && pinned);
	for (uint32_t flags = 0; flags <= flush; flags++) {
		for (int advice = read; advice <= IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT; advice++) {
			CHECK(!advise(pd, advice, flags, last, PAGE, mr->lkey));
			CHECK(advise(pd, advice, flags, last, PAGE + 1, readable->lkey) ==
			      (advice == write ? EPERM : EFAULT));
			CHECK(advise(other, advice, flags, last, PAGE, mr->lkey) == EPERM);
			CHECK(advise(pd, advice, flags, last, PAGE, mr->lkey + 256) == ENOENT);
			CHECK(advise(pd, advice, flags, pinned->addr, 8, pinned->lkey) == ENOENT);
		}
		CHECK(!advise(pd, read, flags, last, PAGE, readable->lkey));
		CHECK(advise(pd, write, flags, last, PAGE, readable->lkey) == EPERM);
	}
	CHECK(advise(pd, read, 2, last, PAGE, mr->lkey) == EINVAL);
	CHECK(advise(pd, 3, 0, last, PAGE, mr->lkey) == EOPNOTSUPP);
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 0) == EINVAL);
	/* Only a call that waits for the pages notices that there are none. */
	CHECK(advise(pd, read, flush, pages + 2 * PAGE, 8, mr->lkey) == EFAULT);
	CHECK(!advise(pd, read, 0, pages + 2 * PAGE, 8, mr->lkey));
	CHECK(!madvise(last, PAGE, MADV_DONTNEED) && !mincore(last, PAGE, &is_there) && !is_there);
	CHECK(!advise(pd, write, 0, last, PAGE, mr->lkey) && !mincore(last, PAGE, &is_there) && !is_there);
	int result = advise(pd, write, flush, last + 1, PAGE - 1, mr->lkey);
	CHECK(!result && !mincore(last, PAGE, &is_there) && is_there);
	CHECK(!ibv_dealloc_pd(other));
}

int main(void)
{
	context = open_device();
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	pages = mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pd && cq && pages != MAP_FAILED);
	CHECK(!mprotect(pages, PAGE, PROT_READ | PROT_WRITE) && !mprotect(pages + BYTES - PAGE, PAGE, PROT_READ | PROT_WRITE));
	supported();
	/* Without the flag, all bytes have to be mapped. */
	CHECK(!ibv_reg_mr(pd, pages, BYTES, ALL & ~IBV_ACCESS_ON_DEMAND));
	struct ibv_mr *mr = ibv_reg_mr(pd, pages, BYTES, ALL);
	struct ibv_mr *readable = ibv_reg_mr(pd, pages, BYTES, IBV_ACCESS_ON_DEMAND | IBV_ACCESS_REMOTE_READ);
	struct ibv_mr *pinned = ibv_reg_mr(pd, pages, PAGE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && readable && pinned && mr->addr == pages && mr->length == BYTES);
	use(mr);
	advised(mr, readable, pinned);
	/* The rights of a region are those of its flags. */
	char *last = pages + BYTES - PAGE;
	CHECK(request(IBV_WR_RDMA_WRITE, last, mr->lkey, pages, readable->rkey, 8) == IBV_WC_REM_ACCESS_ERR);
	CHECK(request(IBV_WR_RDMA_READ, last, mr->lkey, pages, readable->rkey, 8) == IBV_WC_SUCCESS);
	/* A region can become one for on-demand paging, and the other way round if all bytes are mapped. */
	CHECK(!ibv_rereg_mr(pinned, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_ON_DEMAND | IBV_ACCESS_LOCAL_WRITE));
	CHECK(!advise(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, pages, PAGE, pinned->lkey));
	CHECK(!ibv_rereg_mr(pinned, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
	CHECK(advise(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, pages, PAGE, pinned->lkey) == ENOENT);
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE) == IBV_REREG_MR_ERR_CMD);
	CHECK(!advise(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, pages, PAGE, mr->lkey));
	uint32_t lkey = mr->lkey;
	CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(readable));
	CHECK(advise(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, pages, PAGE, lkey) == ENOENT);
	/* The whole address space. Its addresses are those of the process. */
	errno = 0;
	CHECK(!ibv_reg_mr_iova(pd, NULL, SIZE_MAX, PAGE, ALL) && errno == EINVAL);
	CHECK((mr = ibv_reg_mr(pd, NULL, SIZE_MAX, ALL)) && !mr->addr && mr->length == SIZE_MAX);
	CHECK((readable = ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND)));
	use(mr);
	CHECK(!advise(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, pages, PAGE, mr->lkey));
	CHECK(advise(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, pages, PAGE, readable->lkey) == EPERM);
	/* Addresses that no process maps: 0, the last ones of a process, and those that are not canonical. */
	void *nowhere[] = { NULL, (void *)((1ull << 47) - 8), (void *)(1ull << 47), (void *)0x8000000000000000ull,
			    (void *)0xffffffffffffff00ull };
	for (unsigned i = 0; i < sizeof(nowhere) / sizeof(nowhere[0]); i++) {
		CHECK(request(IBV_WR_RDMA_WRITE, last, mr->lkey, nowhere[i], mr->rkey, 8) == IBV_WC_REM_ACCESS_ERR);
		CHECK(request(IBV_WR_RDMA_READ, last, mr->lkey, nowhere[i], mr->rkey, 8) == IBV_WC_REM_ACCESS_ERR);
		CHECK(request(IBV_WR_RDMA_WRITE, nowhere[i], mr->lkey, last, mr->rkey, 8) == IBV_WC_LOC_PROT_ERR);
	}
	errno = 0;
	CHECK(!ibv_reg_mr(pd, (void *)PAGE, SIZE_MAX - PAGE, ALL) && errno == EFAULT);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(readable) && !ibv_dereg_mr(pinned));
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
