/*
 * Tests programs whose handler of a signal calls exit while the program polls: the handler runs in a thread that may be in
 * the library, and the process has to end all the same. Then tests programs that exit while another thread polls: the
 * thread gets no completion of the receives that are still posted.
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

/* Exits with a posted receive on a queue pair of type UD, whose completions another thread polls. Our handler of exit runs
 * after the library's, and waits, so that the thread polls after the library has ended its engine. */
static void exit_beside_a_thread(int run)
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
	CHECK(!pthread_create(&thread, NULL, poll_for_ever, cq));
	usleep(1000 * (run % 5));
	exit(7);
}

static void wait_a_little(void)
{
	usleep(20000);
}

int main(void)
{
	/* Handlers run in the opposite order, so this one runs after that of the library. */
	CHECK(!atexit(wait_a_little));
	for (int run = 0; run < 2 * RUNS; run++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child && run < RUNS)
			poll_until_the_end(run);
		if (!child)
			exit_beside_a_thread(run);
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
