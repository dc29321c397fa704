/*
 * A thread that waits finds most of its events itself, and the library does not count these events in the channel's
 * descriptor at once. The program sees no difference: each call that waits reports the channel until its events are
 * taken, with the flags and the data of the registration, and the descriptor becomes readable for all who wait for it
 * without the library.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "common.h"

enum { ROUNDS = 100, CHANNELS = 3, MINUTE = 60000 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static char bytes[64];

/* A channel, and a queue whose events it gets when the queue pairs exchange a message. */
static struct end {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *from, *to;
	int fd;
} ends[CHANNELS];

static struct ibv_cq *silent;

static void open_end(struct end *end)
{
	CHECK((end->channel = ibv_create_comp_channel(context)));
	CHECK((end->cq = ibv_create_cq(context, 64, end, end->channel, 0)));
	end->fd = end->channel->fd;
	end->from = make_qp(pd, silent, 8);
	end->to = make_qp(pd, end->cq, 8);
	to_rtr(end->from, end->to->qp_num, 12);
	to_rtr(end->to, end->from->qp_num, 12);
	to_rts(end->from, 14, 7);
	to_rts(end->to, 14, 7);
	CHECK(!fcntl(end->fd, F_SETFL, fcntl(end->fd, F_GETFL) | O_NONBLOCK));
}

/* Causes an event at the next polls of the engine. */
static void cause(struct end *end)
{
	struct ibv_sge sge = { (uintptr_t)bytes, sizeof(bytes), mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;
	static unsigned sent;
	send.send_flags = ++sent % 4 ? 0 : IBV_SEND_SIGNALED;
	struct ibv_wc wc;
	while (ibv_poll_cq(silent, 1, &wc))
		CHECK(wc.status == IBV_WC_SUCCESS);
	CHECK(!ibv_req_notify_cq(end->cq, 0));
	CHECK(!ibv_post_recv(end->to, &recv, &bad_recv) && !ibv_post_send(end->from, &send, &bad_send));
}

/* Takes the event and its completion. */
static void take(struct end *end)
{
	struct ibv_cq *cq;
	void *of;
	CHECK(!ibv_get_cq_event(end->channel, &cq, &of) && cq == end->cq && of == end);
	ibv_ack_cq_events(cq, 1);
	CHECK(next_of(cq).status == IBV_WC_SUCCESS);
}

static void nothing_to_take(struct end *end)
{
	struct ibv_cq *cq;
	void *of;
	CHECK(ibv_get_cq_event(end->channel, &cq, &of) == -1 && errno == EAGAIN);
}

/* Whether the kernel knows that the descriptor is readable. */
static int kernel_finds(int fd, int ms)
{
	struct pollfd wait = { fd, POLLIN, 0 };
	struct timespec time = { ms / 1000, ms % 1000 * 1000000L };
	long found = syscall(SYS_ppoll, &wait, 1, &time, NULL, 8);
	CHECK(found == 0 || (found == 1 && wait.revents == POLLIN));
	return found == 1;
}

/* ---- the calls ---- */

static int epfd;

static int change(int of, int operation, struct end *end, uint32_t events, uint64_t data)
{
	struct epoll_event event = { .events = events, .data.u64 = data };
	return epoll_ctl(of, operation, end->fd, &event);
}

static int by_epoll(struct end *end, int ms)
{
	struct epoll_event events[4];
	int found = epoll_wait(epfd, events, 4, ms);
	CHECK(found == 0 || (found == 1 && events[0].events == EPOLLIN && events[0].data.u64 == (uint64_t)end->fd << 32));
	return found;
}

static int by_poll(struct end *end, int ms)
{
	struct pollfd fds[] = { { -1, POLLIN, 1 }, { end->fd, POLLIN | POLLPRI, 7 }, { end->fd, POLLPRI, 7 } };
	int found = poll(fds, 3, ms);
	CHECK(found == (fds[1].revents == POLLIN) && !fds[0].revents && !fds[2].revents);
	return found;
}

static int by_select(struct end *end, int ms)
{
	struct timeval time = { ms / 1000, ms % 1000 * 1000 };
	fd_set read, except;
	FD_ZERO(&read);
	FD_SET(end->fd, &read);
	except = read;
	int found = select(end->fd + 1, &read, NULL, &except, &time);
	CHECK(found == FD_ISSET(end->fd, &read) && !FD_ISSET(end->fd, &except));
	return found;
}

static int (*const calls[])(struct end *, int) = { by_epoll, by_poll, by_select };

enum { CALLS = sizeof(calls) / sizeof(calls[0]) };

/* ---- one thread ---- */

/* Each call reports the event until it is taken. Few events are counted in the descriptor. */
static void reported_until_taken(void)
{
	struct end *end = &ends[0];
	for (int call = 0; call < CALLS; call++) {
		int counted = 0;
		for (int round = 0; round < ROUNDS; round++) {
			cause(end);
			CHECK(calls[call](end, MINUTE) == 1);
			counted += kernel_finds(end->fd, 0);
			for (int other = 0; other < CALLS; other++)
				CHECK(calls[other](end, other % 2 ? 0 : MINUTE) == 1);
			take(end);
			for (int other = 0; other < CALLS; other++)
				CHECK(calls[other](end, 0) == 0);
			CHECK(!kernel_finds(end->fd, 0));
			nothing_to_take(end);
		}
		if (counted > ROUNDS / 2)
			fprintf(stderr, "call %d: %d of %d events were counted\n", call, counted, ROUNDS);
		CHECK(counted <= ROUNDS / 2);
	}
}

/* A call that waits without the channel, and a call that the library leaves to libc. */
static void others_find_it(void)
{
	struct end *end = &ends[0];
	int outer = epoll_create1(0), copy = dup(end->fd), copy_of_set = dup(epfd);
	struct epoll_event event = { .events = EPOLLIN, .data.fd = 7 };
	CHECK(outer >= 0 && copy >= 0 && copy_of_set >= 0 && !epoll_ctl(outer, EPOLL_CTL_ADD, epfd, &event));
	for (int way = 0; way < 5; way++) {
		struct pollfd fds = { way == 1 ? copy : epfd, POLLIN, 0 };
		cause(end);
		CHECK(by_epoll(end, MINUTE) == 1);
		if (way == 0)
			CHECK(epoll_wait(outer, &event, 1, 0) == 1 && event.data.fd == 7);
		else if (way < 3)
			CHECK(poll(&fds, 1, 0) == 1 && fds.revents == POLLIN);
		else if (way == 3)
			CHECK(epoll_wait(copy_of_set, &event, 1, 0) == 1);
		else
			/* This wait serves, for another channel. */
			CHECK(by_poll(&ends[1], 0) == 0 && kernel_finds(copy, 0));
		CHECK(by_epoll(end, 0) == 1);
		take(end);
		CHECK(by_epoll(end, 0) == 0 && !kernel_finds(copy, 0));
	}
	close(outer), close(copy), close(copy_of_set);
}

static void registrations(void)
{
	struct end *end = &ends[0];
	struct epoll_event events[4];
	uint64_t data = (uint64_t)end->fd << 32;
	/* Data that change between the event and the call. */
	cause(end);
	CHECK(by_epoll(end, MINUTE) == 1 && !change(epfd, EPOLL_CTL_MOD, end, EPOLLIN, 99));
	CHECK(epoll_wait(epfd, events, 4, 0) == 1 && events[0].data.u64 == 99);
	/* A registration that the program removes before it takes the event. */
	take(end);
	CHECK(!change(epfd, EPOLL_CTL_MOD, end, EPOLLIN, data));
	cause(end);
	CHECK(by_epoll(end, MINUTE) == 1 && !change(epfd, EPOLL_CTL_DEL, end, 0, 0));
	CHECK(epoll_wait(epfd, events, 4, 0) == 0 && by_poll(end, 0) == 1);
	CHECK(!change(epfd, EPOLL_CTL_ADD, end, EPOLLIN, data) && by_epoll(end, 0) == 1);
	/* Flags that are ready in any case. */
	CHECK(!change(epfd, EPOLL_CTL_MOD, end, EPOLLIN | EPOLLOUT, 98));
	CHECK(epoll_wait(epfd, events, 4, 0) == 1 && events[0].events == (EPOLLIN | EPOLLOUT) && events[0].data.u64 == 98);
	/* No registration. */
	CHECK(!change(epfd, EPOLL_CTL_DEL, end, 0, 0) && epoll_wait(epfd, events, 4, 5) == 0);
	take(end);
	cause(end);
	CHECK(epoll_wait(epfd, events, 4, 20) == 0 && by_poll(end, MINUTE) == 1 && epoll_wait(epfd, events, 4, 0) == 0);
	/* An edge is reported once. */
	CHECK(!change(epfd, EPOLL_CTL_ADD, end, EPOLLIN | EPOLLET, 97));
	take(end);
	for (int round = 0; round < 3; round++) {
		cause(end);
		CHECK(epoll_wait(epfd, events, 4, MINUTE) == 1 && events[0].events == EPOLLIN && events[0].data.u64 == 97);
		CHECK(epoll_wait(epfd, events, 4, 5) == 0 && by_poll(end, 0) == 1);
		take(end);
	}
	/* EPOLLONESHOT reports an event and then none until the registration changes. */
	CHECK(!change(epfd, EPOLL_CTL_MOD, end, EPOLLIN | EPOLLONESHOT, 96));
	cause(end);
	CHECK(epoll_wait(epfd, events, 4, MINUTE) == 1 && epoll_wait(epfd, events, 4, 5) == 0);
	take(end);
	cause(end);
	CHECK(epoll_wait(epfd, events, 4, 5) == 0 && !change(epfd, EPOLL_CTL_MOD, end, EPOLLIN, data));
	CHECK(by_epoll(end, MINUTE) == 1);
	take(end);
}

/* Of several channels, none is left out if the program takes few events at a time. */
static void few_at_a_time(void)
{
	struct epoll_event event;
	struct end *late = &ends[2];
	int data = 1000;
	for (struct end *end = ends + 1; end < ends + CHANNELS; end++)
		CHECK(!change(epfd, EPOLL_CTL_ADD, end, EPOLLIN, data++));
	for (int round = 0; round < 20; round++) {
		int found[CHANNELS] = { 0 };
		cause(&ends[1]);
		cause(late);
		for (time_t limit = time(NULL) + 60; !found[2];) {
			CHECK(time(NULL) < limit && epoll_wait(epfd, &event, 1, MINUTE) == 1);
			CHECK(event.data.u64 == 1000 || event.data.u64 == 1001);
			struct end *end = &ends[event.data.u64 - 999];
			found[end - ends] = 1;
			if (end != late) {
				/* This channel has an event all the time. */
				take(end);
				cause(end);
			}
		}
		take(late);
		CHECK(epoll_wait(epfd, &event, 1, MINUTE) == 1 && event.data.u64 == 1000);
		take(&ends[1]);
		CHECK(epoll_wait(epfd, &event, 1, 0) == 0);
	}
	for (struct end *end = ends + 1; end < ends + CHANNELS; end++)
		CHECK(!change(epfd, EPOLL_CTL_DEL, end, 0, 0));
}

/* Two queues of one channel, of which one is destroyed with its event. */
static void several_queues(void)
{
	struct end *end = &ends[0], second = ends[0];
	for (int destroyed = 0; destroyed < 2; destroyed++) {
		CHECK((second.cq = ibv_create_cq(context, 64, &second, end->channel, 0)));
		second.to = make_qp(pd, second.cq, 8);
		second.from = make_qp(pd, silent, 8);
		to_rtr(second.from, second.to->qp_num, 12);
		to_rtr(second.to, second.from->qp_num, 12);
		to_rts(second.from, 14, 7);
		to_rts(second.to, 14, 7);
		cause(&second);
		CHECK(by_epoll(end, MINUTE) == 1);
		cause(end);
		struct ibv_wc wc;
		for (time_t limit = time(NULL) + 60; !ibv_poll_cq(end->cq, 1, &wc);)
			CHECK(time(NULL) < limit);
		CHECK(by_epoll(end, 0) == 1);
		struct ibv_cq *cq;
		void *of;
		if (!destroyed) {
			CHECK(!ibv_get_cq_event(end->channel, &cq, &of) && cq == second.cq && by_epoll(end, 0) == 1);
			ibv_ack_cq_events(cq, 1);
		}
		CHECK(!ibv_destroy_qp(second.to) && !ibv_destroy_qp(second.from) && !ibv_destroy_cq(second.cq));
		CHECK(by_epoll(end, 0) == 1);
		CHECK(!ibv_get_cq_event(end->channel, &cq, &of) && cq == end->cq);
		ibv_ack_cq_events(cq, 1);
		CHECK(by_epoll(end, 0) == 0 && !kernel_finds(end->fd, 0));
	}
}

/* An instance with the number of an earlier one, and a channel with the number of an earlier one. */
static void numbers_again(void)
{
	struct end *end = &ends[0];
	struct epoll_event event;
	int before = epfd;
	cause(end);
	CHECK(by_epoll(end, MINUTE) == 1 && !close(epfd) && (epfd = epoll_create1(0)) == before);
	CHECK(!change(epfd, EPOLL_CTL_ADD, &ends[1], EPOLLIN, 5) && epoll_wait(epfd, &event, 1, 0) == 0);
	CHECK(by_poll(end, 0) == 1);
	take(end);
	cause(&ends[1]);
	CHECK(epoll_wait(epfd, &event, 1, MINUTE) == 1 && event.data.u64 == 5);
	take(&ends[1]);
	CHECK(!change(epfd, EPOLL_CTL_DEL, &ends[1], 0, 0));
	CHECK(!change(epfd, EPOLL_CTL_ADD, end, EPOLLIN, (uint64_t)end->fd << 32));
	CHECK(!close(dup(epfd)));
	/* A forked child leaves the events to its parent. */
	cause(end);
	CHECK(by_epoll(end, MINUTE) == 1);
	int pipes[2], status;
	CHECK(!pipe(pipes));
	pid_t child = fork();
	if (!child) {
		struct pollfd wait = { pipes[0], POLLIN, 0 };
		_exit(poll(&wait, 1, 1) != 0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	take(end);
	CHECK(by_epoll(end, 0) == 0 && !kernel_finds(end->fd, 0));
	close(pipes[0]), close(pipes[1]);
}

/* ---- several threads ---- */

static atomic_int is_found;

/* Waits by a system call, which the library does not see. */
static void *wait_in_kernel(void *fd)
{
	CHECK(kernel_finds(*(int *)fd, MINUTE));
	atomic_store(&is_found, 1);
	return NULL;
}

static void *wait_by_poll(void *end)
{
	CHECK(by_poll(end, MINUTE) == 1);
	atomic_store(&is_found, 1);
	return NULL;
}

/* Another thread waits for the event that the main thread has found and does not take. */
static void threads(void)
{
	struct end *end = &ends[0];
	struct ibv_wc wc;
	int copy = dup(end->fd);
	for (int round = 0; round < 30; round++) {
		pthread_t thread;
		atomic_store(&is_found, 0);
		int is_raw = round % 3 != 2;
		CHECK(!pthread_create(&thread, NULL, is_raw ? wait_in_kernel : wait_by_poll, is_raw ? (void *)&copy : end));
		if (round % 2)
			usleep(2000);
		cause(end);
		CHECK(by_epoll(end, MINUTE) == 1);
		/* The main thread computes, polls, or sleeps. */
		for (time_t limit = time(NULL) + 60; round % 3 && !atomic_load(&is_found);) {
			CHECK(time(NULL) < limit);
			if (round % 3 == 1)
				CHECK(!ibv_poll_cq(silent, 1, &wc) || wc.status == IBV_WC_SUCCESS);
		}
		CHECK(!pthread_join(thread, NULL));
		take(end);
		CHECK(by_epoll(end, 0) == 0 && !kernel_finds(copy, 0));
	}
	close(copy);
}

int main(void)
{
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)) && (silent = ibv_create_cq(context, 64, NULL, NULL, 0)));
	CHECK((mr = ibv_reg_mr(pd, bytes, sizeof(bytes), IBV_ACCESS_LOCAL_WRITE)));
	for (struct end *end = ends; end < ends + CHANNELS; end++)
		open_end(end);
	CHECK((epfd = epoll_create1(0)) >= 0);
	CHECK(!change(epfd, EPOLL_CTL_ADD, &ends[0], EPOLLIN, (uint64_t)ends[0].fd << 32));
	reported_until_taken();
	others_find_it();
	registrations();
	few_at_a_time();
	several_queues();
	threads();
	numbers_again();
	for (struct end *end = ends; end < ends + CHANNELS; end++) {
		cause(end);
		CHECK(by_poll(end, MINUTE) == 1);
		CHECK(!ibv_destroy_qp(end->to) && !ibv_destroy_qp(end->from));
		CHECK(!ibv_destroy_cq(end->cq) && !ibv_destroy_comp_channel(end->channel));
		CHECK(poll(NULL, 0, 0) == 0);
	}
	return 0;
}
