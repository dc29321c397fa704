/*
 * This program has its own SIGSEGV handler. The program sets the handler before the library is used, or after the
 * first registration. The handler may pass unexpected faults on to the previous handler, and gets the program's own
 * faults. If the program unmaps registered memory, requests for this memory usually fail, and the process
 * continues.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "common.h"

enum { BYTES = 1 << 16 };

static sigjmp_buf back;
static volatile sig_atomic_t faults, expected;

static void on_fault(int signal)
{
	(void)signal;
	/* An unexpected fault is a fault of the library. */
	if (!expected)
		_exit(3);
	faults++;
	siglongjmp(back, 1);
}

static void set_handler(void)
{
	struct sigaction action = { .sa_handler = on_fault };
	CHECK(!sigaction(SIGSEGV, &action, NULL) && !sigaction(SIGBUS, &action, NULL));
}

static struct sigaction found;

static void on_fault_or_pass_on(int signal, siginfo_t *info, void *context)
{
	if (expected)
		on_fault(signal);
	if (!(found.sa_flags & SA_SIGINFO))
		_exit(4);
	found.sa_sigaction(signal, info, context);
}

static void set_handler_that_passes_on(void)
{
	struct sigaction action = { .sa_sigaction = on_fault_or_pass_on, .sa_flags = SA_SIGINFO };
	CHECK(!sigaction(SIGSEGV, &action, &found));
}

/* Causes a fault of the program itself. */
static void fault(void)
{
	int before = faults;
	expected = 1;
	if (!sigsetjmp(back, 1))
		*(volatile char *)8 = 1;
	expected = 0;
	CHECK(faults == before + 1);
}

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

/* Writes from the region `from`, or reads into it. Returns the status of the completion. */
static enum ibv_wc_status request(struct ibv_qp *qp, enum ibv_wr_opcode opcode, struct ibv_mr *from,
				  struct ibv_mr *remote)
{
	struct ibv_sge sge = { (uintptr_t)from->addr, 4096, from->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = (uintptr_t)remote->addr;
	wr.wr.rdma.rkey = remote->rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	struct ibv_wc wc;
	time_t end = time(NULL) + 10;
	while (!ibv_poll_cq(cq, 1, &wc))
		CHECK(time(NULL) < end);
	return wc.status;
}

static struct ibv_mr *make_memory(void)
{
	void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, BYTES,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(mr);
	return mr;
}

/* Posts a request that succeeds, and then a request whose memory is unmapped, at this end or at the peer. */
static void unmap_while_registered(enum ibv_wr_opcode opcode, int at_peer)
{
	struct ibv_qp *a = make_qp(pd, cq, 8), *b = make_qp(pd, cq, 8);
	connect_qp(a, b->qp_num);
	connect_qp(b, a->qp_num);
	struct ibv_mr *here = make_memory(), *there = make_memory();
	CHECK(request(a, opcode, here, there) == IBV_WC_SUCCESS);
	CHECK(!munmap(at_peer ? there->addr : here->addr, BYTES));
	enum ibv_wc_status status = request(a, opcode, here, there);
	/* The status of a Write to unmapped memory of the peer is not checked. */
	if (opcode == IBV_WR_RDMA_READ || !at_peer)
		CHECK(status != IBV_WC_SUCCESS);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
	CHECK(!ibv_dereg_mr(here) && !ibv_dereg_mr(there));
	CHECK(!munmap(at_peer ? here->addr : there->addr, BYTES));
	struct ibv_wc wc;
	while (ibv_poll_cq(cq, 1, &wc))
		;
}

enum when { BEFORE, AFTER, AFTER_AND_PASSES_ON, AGAIN, CASES };

/* Runs one case. The process must not have run another case before. */
static void run(enum when when)
{
	if (when == BEFORE) {
		set_handler();
		fault();
	}
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	struct ibv_mr *first = make_memory();
	if (when == AFTER)
		set_handler();
	if (when >= AFTER_AND_PASSES_ON)
		set_handler_that_passes_on();
	for (int at_peer = 0; at_peer < 2; at_peer++) {
		unmap_while_registered(IBV_WR_RDMA_WRITE, at_peer);
		fault();
		/* Now the previous handler is the library's. */
		if (when == AGAIN)
			set_handler_that_passes_on();
		unmap_while_registered(IBV_WR_RDMA_READ, at_peer);
		fault();
		fault();
	}
	CHECK(!munmap(first->addr, BYTES) && !ibv_dereg_mr(first));
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	if (when < AFTER_AND_PASSES_ON)
		return;
	/* No handler handles this fault, so the fault ends the process. */
	*(volatile char *)8 = 1;
	_exit(5);
}

int main(void)
{
	for (enum when when = BEFORE; when < CASES; when++) {
		pid_t child = fork();
		if (!child) {
			run(when);
			_exit(0);
		}
		int status;
		CHECK(child > 0 && waitpid(child, &status, 0) == child);
		int is_fault = WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
		if (when < AFTER_AND_PASSES_ON ? status != 0 : !is_fault) {
			fprintf(stderr, "case %d ended with status %x\n", when, status);
			return 1;
		}
	}
	return 0;
}
