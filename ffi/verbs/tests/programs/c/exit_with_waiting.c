/*
 * When a process ends, its connections are closed, but a thread that waits for an event is not woken by the closing, as
 * with the kernel's channels: the thread may use memory that the program has freed. A handler of exit that disconnects and
 * joins the thread still gets its events.
 */
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>

#include "cm.h"

enum { RUNS = 10, WOKEN = 9, JOINED = 5 };

static struct rdma_event_channel *channels[2];
static struct rdma_cm_id *ids[2];
static pthread_t threads[2];
static int joins;

/* Waits for the end of a connection. */
static void *wait_for_end(void *channel)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(channel, &event) && event->event == RDMA_CM_EVENT_DISCONNECTED);
	if (!joins)
		_exit(WOKEN);
	CHECK(!rdma_ack_cm_event(event));
	return NULL;
}

/* Runs after the library's own handler, since it is registered first. */
static void last(void)
{
	if (!joins)
		return;
	/* The connection may have ended already. */
	rdma_disconnect(ids[0]);
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(threads[i], NULL));
	_exit(JOINED);
}

/* Ends while one thread waits at each end of a connection. */
static void run(void)
{
	CHECK(!atexit(last));
	struct rdma_conn_param param = { .rnr_retry_count = 7 };
	for (int i = 0; i < 2; i++)
		CHECK((channels[i] = rdma_create_event_channel()));
	struct rdma_cm_id *listener = listen_at(channels[1], "127.0.0.1", 7471);
	ids[0] = resolve(channels[0], "127.0.0.1", 7471);
	give_qp(ids[0], 8);
	CHECK(!rdma_connect(ids[0], &param));
	ids[1] = next_request(channels[1]);
	give_qp(ids[1], 8);
	CHECK(listener && !rdma_accept(ids[1], &param));
	for (int i = 0; i < 2; i++) {
		pass_event(channels[i], RDMA_CM_EVENT_ESTABLISHED);
		CHECK(!pthread_create(&threads[i], NULL, wait_for_end, channels[i]));
	}
	usleep(20000);
	exit(0);
}

int main(void)
{
	for (int i = 0; i < RUNS; i++) {
		joins = i % 2;
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			alarm(60);
			run();
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
		CHECK(WEXITSTATUS(status) == (joins ? JOINED : 0));
	}
	return 0;
}
