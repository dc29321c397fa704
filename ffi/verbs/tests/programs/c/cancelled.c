/*
 * A thread that waits for an event can be cancelled, as in the kernel's calls, and loses no event. Programs such as
 * libiscsi cancel the thread, and then free what it uses.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>

#include "common.h"

enum { CM, CQ, ASYNC, KINDS, ROUNDS = 200 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *comp_channel;
static struct ibv_cq *cq;
static struct rdma_event_channel *cm_channel;
static struct rdma_cm_id *id;
static struct ibv_srq *srq;

/* A thread that gets one event. */
struct getter {
	int kind;
	int state;
	pthread_t thread;
	_Atomic pid_t number;
	_Atomic int cleaned, got;
	sem_t go;
};

static void get(int kind)
{
	struct rdma_cm_event *cm_event;
	struct ibv_async_event event;
	struct ibv_cq *of;
	void *user;
	switch (kind) {
	case CM:
		CHECK(!rdma_get_cm_event(cm_channel, &cm_event));
		CHECK(cm_event->event == RDMA_CM_EVENT_ADDR_RESOLVED && cm_event->id == id);
		CHECK(!rdma_ack_cm_event(cm_event));
		break;
	case CQ:
		CHECK(!ibv_get_cq_event(comp_channel, &of, &user) && of == cq);
		ibv_ack_cq_events(cq, 1);
		break;
	default:
		CHECK(!ibv_get_async_event(context, &event) && event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED);
		ibv_ack_async_event(&event);
	}
}

static void clean(void *getter)
{
	((struct getter *)getter)->cleaned = 1;
}

static void *run(void *argument)
{
	struct getter *getter = argument;
	CHECK(!pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL));
	pthread_cleanup_push(clean, getter);
	getter->number = (pid_t)syscall(SYS_gettid);
	while (sem_wait(&getter->go))
		;
	CHECK(!pthread_setcancelstate(getter->state, NULL));
	get(getter->kind);
	getter->got = 1;
	pthread_cleanup_pop(0);
	return NULL;
}

/* Starts a thread. It looks for an event only after `let_go`. */
static void start(struct getter *getter, int kind, int state)
{
	memset(getter, 0, sizeof(*getter));
	getter->kind = kind;
	getter->state = state;
	CHECK(!sem_init(&getter->go, 0, 0));
	CHECK(!pthread_create(&getter->thread, NULL, run, getter));
}

/* Lets the thread look for an event, and waits until it sleeps in the kernel. */
static void let_go(struct getter *getter)
{
	CHECK(!sem_post(&getter->go));
	char path[64], line[512];
	for (time_t end = time(NULL) + 60;;) {
		CHECK(time(NULL) < end);
		int token = -1;
		CHECK(!sem_getvalue(&getter->go, &token));
		snprintf(path, sizeof(path), "/proc/self/task/%d/stat", getter->number);
		FILE *file = fopen(path, "r");
		char *state = file && fgets(line, sizeof(line), file) ? strrchr(line, ')') : NULL;
		if (file)
			fclose(file);
		if (token == 0 && state && state[2] == 'S')
			return;
		usleep(100);
	}
}

static void *join(struct getter *getter)
{
	struct timespec limit = { .tv_sec = time(NULL) + 60 };
	void *result;
	CHECK(!pthread_timedjoin_np(getter->thread, &result, &limit));
	return result;
}

/* Causes one event. */
static void cause(int kind)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr wr = { 0 }, *bad;
	if (kind == CM) {
		struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
		CHECK(!rdma_destroy_id(id) && !rdma_create_id(cm_channel, &id, NULL, RDMA_PS_TCP));
		CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 1000));
		return;
	}
	struct ibv_qp_init_attr init = qp_init(cq, kind == ASYNC ? srq : NULL, 4);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	init_qp(qp);
	CHECK(!ibv_req_notify_cq(cq, 0));
	if (kind == CQ)
		CHECK(!ibv_post_recv(qp, &wr, &bad));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	if (kind == CQ)
		CHECK(next_of(cq).status == IBV_WC_WR_FLUSH_ERR);
	else
		get(ASYNC);
	CHECK(!ibv_destroy_qp(qp));
}

static int descriptors(void)
{
	int count = 0;
	DIR *folder = opendir("/proc/self/fd");
	CHECK(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

/* The thread is cancelled while it waits, just when it begins to wait, and before it looks. */
static void is_cancelled(int kind)
{
	for (int round = 0; round < ROUNDS; round++) {
		struct getter getter;
		start(&getter, kind, PTHREAD_CANCEL_ENABLE);
		if (round % 3 == 0)
			let_go(&getter);
		else if (round % 3 == 1)
			CHECK(!sem_post(&getter.go));
		CHECK(!pthread_cancel(getter.thread));
		if (round % 3 == 2)
			CHECK(!sem_post(&getter.go));
		CHECK(join(&getter) == PTHREAD_CANCELED && getter.cleaned && !getter.got);
	}
}

/* A cancelled thread leaves the event to the other thread that waits. */
static void loses_nothing(int kind)
{
	struct getter gone, other;
	start(&gone, kind, PTHREAD_CANCEL_ENABLE);
	let_go(&gone);
	start(&other, kind, PTHREAD_CANCEL_DISABLE);
	let_go(&other);
	CHECK(!pthread_cancel(gone.thread) && join(&gone) == PTHREAD_CANCELED);
	/* This thread has disabled the cancellation. */
	CHECK(!pthread_cancel(other.thread));
	usleep(20000);
	CHECK(!other.got);
	if (kind == ASYNC) {
		/* The event is taken either by the other thread or by this one. */
		struct ibv_qp_init_attr init = qp_init(cq, srq, 4);
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
		struct ibv_qp *qp = ibv_create_qp(pd, &init);
		CHECK(qp);
		init_qp(qp);
		CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
		CHECK(!join(&other) && other.got && !other.cleaned);
		CHECK(!ibv_destroy_qp(qp));
	} else {
		cause(kind);
		CHECK(!join(&other) && other.got && !other.cleaned);
	}
	/* A thread that is cancelled before it looks leaves an event that is there. */
	cause(kind);
	if (kind != ASYNC) {
		struct pollfd fd = { kind == CM ? cm_channel->fd : comp_channel->fd, POLLIN, 0 };
		CHECK(poll(&fd, 1, 60000) == 1);
		start(&gone, kind, PTHREAD_CANCEL_ENABLE);
		CHECK(!pthread_cancel(gone.thread) && !sem_post(&gone.go));
		CHECK(join(&gone) == PTHREAD_CANCELED && !gone.got);
		get(kind);
	}
}

/* The thread waits for events of a channel that is destroyed, and can still be cancelled. */
static void outlives_its_channel(int kind)
{
	struct getter getters[2];
	start(&getters[0], kind, PTHREAD_CANCEL_ENABLE);
	let_go(&getters[0]);
	if (kind == CM) {
		CHECK(!rdma_destroy_id(id));
		rdma_destroy_event_channel(cm_channel);
	} else {
		CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(comp_channel));
	}
	start(&getters[1], kind, PTHREAD_CANCEL_ENABLE);
	let_go(&getters[1]);
	for (int each = 0; each < 2; each++)
		CHECK(!pthread_cancel(getters[each].thread) && join(&getters[each]) == PTHREAD_CANCELED);
}

int main(void)
{
	context = open_device();
	pd = ibv_alloc_pd(context);
	comp_channel = ibv_create_comp_channel(context);
	cq = ibv_create_cq(context, 16, NULL, comp_channel, 0);
	cm_channel = rdma_create_event_channel();
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	srq = ibv_create_srq(pd, &init);
	CHECK(pd && cq && cm_channel && srq && !rdma_create_id(cm_channel, &id, NULL, RDMA_PS_TCP));
	for (int kind = CM; kind < KINDS; kind++) {
		is_cancelled(kind);
		int before = descriptors();
		is_cancelled(kind);
		CHECK(descriptors() == before);
		loses_nothing(kind);
	}
	for (int kind = CM; kind < ASYNC; kind++)
		outlives_its_channel(kind);
	CHECK(!ibv_destroy_srq(srq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
