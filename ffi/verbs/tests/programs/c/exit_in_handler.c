/*
 * Tests programs whose handler of a signal calls exit while the program polls: the handler runs in a thread that may be in
 * the library, and the process has to end all the same.
 */
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

int main(void)
{
	for (int run = 0; run < RUNS; run++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child)
			poll_until_the_end(run);
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
