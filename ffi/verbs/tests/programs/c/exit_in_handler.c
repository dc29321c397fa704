/*
 * Tests programs whose handler of a signal calls exit while the program polls: the handler runs in a thread that may be in
 * the library, and the process has to end all the same. Then tests programs that exit while another thread polls: the
 * thread gets no completion of the receives that are still posted. But the thread that exits gets these completions if it
 * polls for them.
 */
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common.h"

enum { RUNS = 30 };

static void end(int signal)
{
	(void)signal;
	exit(7);
}

/* Polls until the timer ends the process. */
static void poll_until_the_end(int run)
{
	struct ibv_context *context = open_device();
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_wc wc;
	CHECK(cq && signal(SIGALRM, end) != SIG_ERR);
	struct itimerval timer = { .it_value = { .tv_usec = 2000 + 313 * run } };
	CHECK(!setitimer(ITIMER_REAL, &timer, NULL));
	for (;;)
		ibv_poll_cq(cq, 1, &wc);
}

static void *poll_for_ever(void *cq)
{
	struct ibv_wc wc;
	for (;;)
		if (ibv_poll_cq(cq, 1, &wc))
			_exit(8);
	return NULL;
}

/* If not NULL, our handler of exit polls this queue until it has a completion. */
static struct ibv_cq *polled_at_exit;

/* Exits with a posted receive on a queue pair of type UD. Either another thread polls the completions, or our handler of
 * exit. The handler runs after the library's, so that the polls follow the end of the library's engine. */
static void exit_with_a_receive(int run, int has_thread)
{
	enum { QKEY = 5, BYTES = 100 };
	static uint8_t memory[BYTES];
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr init = qp_init(cq, NULL, 4);
	init.qp_type = IBV_QPT_UD;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(mr && qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	struct ibv_sge sge = { (uintptr_t)memory, sizeof(memory), mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 };
	CHECK(!ibv_post_recv(qp, &wr, &bad));
	pthread_t thread;
	if (has_thread)
		CHECK(!pthread_create(&thread, NULL, poll_for_ever, cq));
	else
		polled_at_exit = cq;
	usleep(1000 * (run % 5));
	exit(7);
}

static void poll_or_wait(void)
{
	struct ibv_wc wc = { 0 };
	if (!polled_at_exit) {
		usleep(20000);
		return;
	}
	for (time_t limit = time(NULL) + 20; !ibv_poll_cq(polled_at_exit, 1, &wc);)
		if (time(NULL) > limit)
			_exit(9);
	if (wc.wr_id != 1 || wc.status != IBV_WC_WR_FLUSH_ERR)
		_exit(10);
}

int main(void)
{
	/* Handlers run in the opposite order, so this one runs after that of the library. */
	CHECK(!atexit(poll_or_wait));
	for (int run = 0; run < 2 * RUNS + 1; run++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child && run < RUNS)
			poll_until_the_end(run);
		if (!child)
			exit_with_a_receive(run, run < 2 * RUNS);
		int status = 0;
		pid_t ended = 0;
		for (time_t limit = time(NULL) + 30; !ended && time(NULL) < limit; usleep(1000))
			ended = waitpid(child, &status, WNOHANG);
		if (!ended)
			kill(child, SIGKILL);
		CHECK(ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
	}
	return 0;
}
