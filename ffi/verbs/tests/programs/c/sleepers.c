/*
 * This program waits only for descriptors, and makes no other call during the wait. It gets the events that occur
 * while the engine sleeps, such as the failure of a request whose peer is missing, and events that its own calls
 * cause.
 */
#include <dirent.h>
#include <poll.h>
#include <string.h>

#include "common.h"

enum { MANY = 1500 };

static struct ibv_context *context;
static struct ibv_pd *pd;

/* Waits until the engine, which has nothing to do, sleeps for long. */
static void let_sleep(void)
{
	usleep(500000);
}

static int is_readable(int fd, int ms)
{
	struct pollfd waits = { fd, POLLIN, 0 };
	int found = poll(&waits, 1, ms);
	CHECK(found >= 0);
	return found;
}

/*
 * For a queue pair whose peer does not connect, the engine has no work except the timeout of the request. The engine
 * sleeps when the request is posted.
 */
static void peer_is_away(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0), *of;
	CHECK(channel && cq);
	struct ibv_qp *away = make_qp(pd, cq, 4), *near = make_qp(pd, cq, 4);
	CHECK(away->qp_num < near->qp_num);
	to_rtr(near, away->qp_num, 12);
	CHECK(!ibv_req_notify_cq(cq, 0));
	let_sleep();
	to_rts(near, 14, 7);
	struct ibv_send_wr wr = { .wr_id = 5, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(!ibv_post_send(near, &wr, &bad));
	CHECK(is_readable(channel->fd, 60000));
	void *user;
	struct ibv_wc wc;
	CHECK(!ibv_get_cq_event(channel, &of, &user) && of == cq);
	ibv_ack_cq_events(cq, 1);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 5 && wc.status == IBV_WC_RETRY_EXC_ERR);
	CHECK(!ibv_destroy_qp(away) && !ibv_destroy_qp(near));
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
}

/* The number of times that threads of this process have gone to sleep. */
static long sleeps(void)
{
	DIR *threads = opendir("/proc/self/task");
	CHECK(threads);
	long all = 0;
	for (struct dirent *thread; (thread = readdir(threads));) {
		char path[300], line[200];
		snprintf(path, sizeof(path), "/proc/self/task/%s/status", thread->d_name);
		FILE *status = thread->d_name[0] == '.' ? NULL : fopen(path, "r");
		while (status && fgets(line, sizeof(line), status)) {
			if (!strncmp(line, "voluntary_ctxt_switches:", 24))
				all += atol(line + 24);
		}
		if (status)
			fclose(status);
	}
	closedir(threads);
	return all;
}

/* While there are queue pairs without peers, the engine checks them 50 times a second. When there are no such
 * queue pairs any more, the engine sleeps for long. */
static void nobody_is_watched(void)
{
	let_sleep();
	long before = sleeps();
	usleep(2000000);
	long count = sleeps() - before;
	if (count >= 50)
		fprintf(stderr, "the engine was woken %ld times in two seconds\n", count);
	CHECK(count < 50);
}

static struct ibv_srq *make_srq(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	CHECK(srq);
	return srq;
}

static struct ibv_qp *make_on(struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr init = qp_init(cq, srq, 1);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	init_qp(qp);
	return qp;
}

static void modify(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

static struct ibv_async_event next_event(void)
{
	struct ibv_async_event event;
	CHECK(is_readable(context->async_fd, 60000));
	CHECK(!ibv_get_async_event(context, &event));
	return event;
}

static void no_event(void)
{
	CHECK(!is_readable(context->async_fd, 0));
}

static void events_of_own_calls(void)
{
	struct ibv_srq *srq = make_srq();
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp *qp = make_on(cq, srq);
	struct ibv_srq_attr limit = { .srq_limit = 4 };
	let_sleep();
	CHECK(!ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
	/* The event is in the channel when the call returns. */
	CHECK(is_readable(context->async_fd, 0));
	struct ibv_async_event event = next_event();
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	ibv_ack_async_event(&event);
	let_sleep();
	modify(qp, IBV_QPS_ERR);
	CHECK(is_readable(context->async_fd, 0));
	event = next_event();
	CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == qp);
	/* RESET does not wait until the event is acknowledged. The queue pair keeps its number. */
	for (int round = 0; round < 3; round++) {
		modify(qp, IBV_QPS_RESET);
		init_qp(qp);
		no_event();
		modify(qp, IBV_QPS_ERR);
		struct ibv_async_event again = next_event();
		CHECK(again.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && again.element.qp == qp);
		ibv_ack_async_event(&again);
	}
	ibv_ack_async_event(&event);
	/* An event that waits during a reset is still delivered, as by the kernel. An event that waits when the queue
	 * pair is destroyed is dropped. */
	modify(qp, IBV_QPS_RESET);
	init_qp(qp);
	modify(qp, IBV_QPS_ERR);
	modify(qp, IBV_QPS_RESET);
	event = next_event();
	CHECK(event.element.qp == qp);
	ibv_ack_async_event(&event);
	init_qp(qp);
	modify(qp, IBV_QPS_ERR);
	CHECK(is_readable(context->async_fd, 0));
	CHECK(!ibv_destroy_qp(qp));
	no_event();
	CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_cq(cq));
}

/* A queue pair that is connected to itself tells once that it has no more receives. UCX ends if it is told twice. */
static void connected_to_itself(void)
{
	struct ibv_srq *srq = make_srq();
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *qp = make_on(cq, srq);
	connect_qp(qp, qp->qp_num);
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad_recv;
	struct ibv_send_wr send = { .wr_id = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	CHECK(!ibv_post_srq_recv(srq, &recv, &bad_recv) && !ibv_post_send(qp, &send, &bad_send));
	CHECK(next_of(cq).status == IBV_WC_SUCCESS && next_of(cq).status == IBV_WC_SUCCESS);
	modify(qp, IBV_QPS_ERR);
	struct ibv_async_event event = next_event();
	CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == qp);
	ibv_ack_async_event(&event);
	CHECK(!is_readable(context->async_fd, 300));
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(cq));
}

/* Each event is delivered once, whatever number of events waits. */
static void more_events_than_a_queue_holds(void)
{
	static struct ibv_qp *qps[MANY];
	struct ibv_srq *srq = make_srq();
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(cq);
	for (int at = 0; at < MANY; at++)
		qps[at] = make_on(cq, srq);
	for (int at = 0; at < MANY; at++)
		modify(qps[at], IBV_QPS_ERR);
	for (int at = 0; at < MANY; at++) {
		struct ibv_async_event event = next_event();
		CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == qps[at]);
		ibv_ack_async_event(&event);
	}
	no_event();
	for (int at = 0; at < MANY; at++)
		CHECK(!ibv_destroy_qp(qps[at]));
	CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_cq(cq));
}

int main(void)
{
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)));
	peer_is_away();
	nobody_is_watched();
	events_of_own_calls();
	connected_to_itself();
	more_events_than_a_queue_holds();
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	puts("sleepers are told");
	return 0;
}
