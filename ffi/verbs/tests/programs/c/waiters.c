/*
 * Two processes send messages to each other, and wait for them in each call of libc and of the library that waits for
 * descriptors. A thread that waits serves the engine itself: messages do not wake the library's thread. No event is
 * spurious, none is lost, and signals, time limits and cancellation are as without the library.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "common.h"

enum { ROUNDS = 2000, DEPTH = 16 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static uint64_t words[2 * DEPTH];
/* The Sends that have not completed. */
static int open_sends;
/* To the other process. */
static int other;

static void post_recv(void)
{
	struct ibv_sge sge = { (uintptr_t)words, sizeof(words[0]), mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static void post_send(uint64_t number)
{
	words[DEPTH] = number;
	struct ibv_sge sge = { (uintptr_t)&words[DEPTH], sizeof(words[0]), mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	open_sends++;
}

/* Takes the next completion, if any. */
static int poll_one(int *is_recv)
{
	struct ibv_wc wc;
	if (!ibv_poll_cq(cq, 1, &wc))
		return 0;
	CHECK(wc.status == IBV_WC_SUCCESS);
	*is_recv = wc.opcode == IBV_WC_RECV;
	open_sends -= wc.opcode == IBV_WC_SEND;
	return 1;
}

static void to_other(const void *from, size_t length)
{
	CHECK(write(other, from, length) == (ssize_t)length);
}

static void from_other(void *to, size_t length)
{
	CHECK(read(other, to, length) == (ssize_t)length);
}

/* Waits until the other process has come to the same place. */
static void meet(void)
{
	char mark = 'm';
	to_other(&mark, 1);
	from_other(&mark, 1);
	CHECK(mark == 'm');
}

static struct peer {
	union ibv_gid gid;
	uint32_t qp_num, rkey;
	uintptr_t words;
} peer;

static void open_all(void)
{
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)) && (channel = ibv_create_comp_channel(context)));
	CHECK((cq = ibv_create_cq(context, 4 * DEPTH, NULL, channel, 0)));
	CHECK((mr = ibv_reg_mr(pd, words, sizeof(words), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ)));
	qp = make_qp(pd, cq, DEPTH);
	struct peer own = { .qp_num = qp->qp_num, .rkey = mr->rkey, .words = (uintptr_t)words };
	CHECK(!ibv_query_gid(context, 1, 0, &own.gid));
	to_other(&own, sizeof(own));
	from_other(&peer, sizeof(peer));
	to_rtr_of(qp, peer.gid, peer.qp_num, 12);
	to_rts(qp, 14, 7);
	CHECK(!fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK));
	CHECK(!ibv_req_notify_cq(cq, 0));
}

/* ---- the calls that wait ---- */

static int epfd;
/* A pipe, of which the read end is in each set. */
static int ends[2];

struct result {
	/* The result of the call, and which descriptors it has found ready. */
	int found, of_channel, of_pipe;
};

static struct timespec *time_of(int ms, struct timespec *time)
{
	*time = (struct timespec){ ms / 1000, ms % 1000 * 1000000L };
	return ms < 0 ? NULL : time;
}

static struct result of_epoll(int found, struct epoll_event *events)
{
	struct result result = { .found = found };
	for (int at = 0; at < found; at++) {
		CHECK(events[at].events == EPOLLIN);
		CHECK(events[at].data.fd == channel->fd || events[at].data.fd == ends[0]);
		*(events[at].data.fd == ends[0] ? &result.of_pipe : &result.of_channel) = 1;
	}
	return result;
}

static struct result by_epoll_wait(int ms, const sigset_t *mask)
{
	struct epoll_event events[4];
	(void)mask;
	return of_epoll(epoll_wait(epfd, events, 4, ms), events);
}

static struct result by_epoll_pwait(int ms, const sigset_t *mask)
{
	struct epoll_event events[4];
	return of_epoll(epoll_pwait(epfd, events, 4, ms, mask), events);
}

static struct result by_epoll_pwait2(int ms, const sigset_t *mask)
{
	struct epoll_event events[4];
	struct timespec time;
	return of_epoll(epoll_pwait2(epfd, events, 4, time_of(ms, &time), mask), events);
}

static struct result of_poll(int found, struct pollfd *fds)
{
	CHECK(found < 1 || fds[1].revents == 0);
	return (struct result){ found, found > 0 && fds[0].revents == POLLIN, found > 0 && fds[2].revents == POLLIN };
}

#define FDS { { channel->fd, POLLIN, 0 }, { -1, POLLIN, 0 }, { ends[0], POLLIN, 0 } }

static struct result by_poll(int ms, const sigset_t *mask)
{
	struct pollfd fds[] = FDS;
	(void)mask;
	return of_poll(poll(fds, 3, ms), fds);
}

static struct result by_ppoll(int ms, const sigset_t *mask)
{
	struct pollfd fds[] = FDS;
	struct timespec time;
	return of_poll(ppoll(fds, 3, time_of(ms, &time), mask), fds);
}

static fd_set to_select(void)
{
	fd_set set;
	FD_ZERO(&set);
	FD_SET(channel->fd, &set);
	FD_SET(ends[0], &set);
	return set;
}

static int above(void)
{
	return 1 + (channel->fd > ends[0] ? channel->fd : ends[0]);
}

static struct result of_select(int found, fd_set *set)
{
	if (found < 0)
		return (struct result){ .found = found };
	struct result result = { found, FD_ISSET(channel->fd, set) != 0, FD_ISSET(ends[0], set) != 0 };
	for (int fd = 0; fd < FD_SETSIZE; fd++)
		CHECK(!FD_ISSET(fd, set) || fd == channel->fd || fd == ends[0]);
	return result;
}

static struct result by_select(int ms, const sigset_t *mask)
{
	fd_set set = to_select(), none = set;
	FD_ZERO(&none);
	struct timeval time = { ms / 1000, ms % 1000 * 1000 };
	(void)mask;
	struct result result = of_select(select(above(), &set, &none, NULL, ms < 0 ? NULL : &time), &set);
	/* Linux writes the time that is left. */
	CHECK(ms <= 0 || result.found || time.tv_sec + time.tv_usec == 0);
	return result;
}

static struct result by_pselect(int ms, const sigset_t *mask)
{
	fd_set set = to_select();
	struct timespec time;
	return of_select(pselect(above(), &set, NULL, NULL, time_of(ms, &time), mask), &set);
}

struct call {
	const char *name;
	struct result (*wait)(int ms, const sigset_t *mask);
	int has_mask;
};

static const struct call calls[] = {
	{ "epoll_wait", by_epoll_wait, 0 },   { "epoll_pwait", by_epoll_pwait, 1 },
	{ "epoll_pwait2", by_epoll_pwait2, 1 }, { "poll", by_poll, 0 },
	{ "ppoll", by_ppoll, 1 },	      { "select", by_select, 0 },
	{ "pselect", by_pselect, 1 },
};

enum { CALLS = sizeof(calls) / sizeof(calls[0]) };

static void add(int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };
	CHECK(!epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &event));
}

static void open_sets(void)
{
	/* An instance with a channel, whose number the next instance gets. */
	CHECK((epfd = epoll_create1(0)) >= 0);
	add(channel->fd);
	close(epfd);
	CHECK((epfd = epoll_create1(EPOLL_CLOEXEC)) >= 0 && !pipe(ends));
	struct epoll_event events[4];
	CHECK(!epoll_wait(epfd, events, 4, 1));
	add(channel->fd);
	add(ends[0]);
}

/* Takes the event that is there. */
static void take_event(int acknowledge)
{
	struct ibv_cq *of;
	void *user;
	CHECK(!ibv_get_cq_event(channel, &of, &user) && of == cq);
	if (acknowledge)
		ibv_ack_cq_events(cq, 1);
}

/* Waits for the next message by this call, which is NULL for ibv_get_cq_event. */
static uint64_t receive(const struct call *call)
{
	for (;;) {
		int is_recv;
		while (poll_one(&is_recv)) {
			if (is_recv)
				return words[0];
		}
		CHECK(!ibv_req_notify_cq(cq, 0));
		while (poll_one(&is_recv)) {
			if (is_recv)
				return words[0];
		}
		if (call) {
			struct result result = call->wait(60000, NULL);
			if (result.found != 1)
				fprintf(stderr, "%s: %d\n", call->name, result.found);
			CHECK(result.found == 1 && result.of_channel && !result.of_pipe);
		}
		take_event(1);
	}
}

/* Takes the completions of all Sends, and the events that are left. */
static void settle(void)
{
	struct ibv_cq *of;
	void *user;
	int is_recv;
	for (time_t end = time(NULL) + 60; open_sends;) {
		CHECK(!poll_one(&is_recv) || !is_recv);
		CHECK(time(NULL) < end);
	}
	while (!ibv_get_cq_event(channel, &of, &user))
		ibv_ack_cq_events(cq, 1);
	CHECK(errno == EAGAIN);
}

/* The number of times that the library's thread has gone to sleep. */
static long sleeps_of_thread(void)
{
	DIR *threads = opendir("/proc/self/task");
	long count = -1;
	CHECK(threads);
	for (struct dirent *thread; (thread = readdir(threads));) {
		char path[300], line[200];
		snprintf(path, sizeof(path), "/proc/self/task/%s/status", thread->d_name);
		FILE *status = thread->d_name[0] == '.' ? NULL : fopen(path, "r");
		int is_engine = 0;
		while (status && fgets(line, sizeof(line), status)) {
			if (!strncmp(line, "Name:\tiwarp-engine", 18))
				is_engine = 1;
			if (is_engine && !strncmp(line, "voluntary_ctxt_switches:", 24))
				count = atol(line + 24);
		}
		if (status)
			fclose(status);
	}
	closedir(threads);
	CHECK(count >= 0);
	return count;
}

static uint64_t now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000ull + now.tv_nsec / 1000;
}

static void set_blocking(int on)
{
	int flags = fcntl(channel->fd, F_GETFL);
	CHECK(!fcntl(channel->fd, F_SETFL, on ? flags & ~O_NONBLOCK : flags | O_NONBLOCK));
}

static void exchange(const struct call *call, int begins)
{
	meet();
	post_recv();
	meet();
	long before = sleeps_of_thread();
	uint64_t begun = now_us();
	for (uint64_t round = 0; round < ROUNDS; round++) {
		if (begins)
			post_send(round);
		CHECK(receive(call) == round);
		post_recv();
		if (!begins)
			post_send(round);
	}
	meet();
	long sleeps = sleeps_of_thread() - before;
	uint64_t ms = (now_us() - begun) / 1000;
	/* The thread's alarm rings at most once per millisecond. */
	if (sleeps > ROUNDS / 4 + 3 * (long)ms)
		fprintf(stderr, "%s: the library's thread was woken %ld times for %d messages in %d ms\n",
			call ? call->name : "ibv_get_cq_event", sleeps, ROUNDS, (int)ms);
	CHECK(sleeps <= ROUNDS / 4 + 3 * (long)ms);
	/* The receive that is left gets a last message. */
	post_send(ROUNDS);
	CHECK(receive(call) == ROUNDS);
	set_blocking(0);
	settle();
	meet();
}

/* ---- time limits, other descriptors, signals ---- */

static void silence(const struct call *call)
{
	for (int ms = 0; ms <= 60; ms += 20) {
		uint64_t begun = now_us();
		struct result result = call->wait(ms, NULL);
		CHECK(result.found == 0);
		uint64_t waited = now_us() - begun;
		CHECK(waited >= ms * 1000ull && waited < 10000000);
	}
}

static void *write_later(void *nothing)
{
	usleep(30000);
	CHECK(write(ends[1], "x", 1) == 1);
	return nothing;
}

static void other_descriptor(const struct call *call)
{
	pthread_t writer;
	char byte;
	CHECK(!pthread_create(&writer, NULL, write_later, NULL));
	struct result result = call->wait(-1, NULL);
	CHECK(result.found == 1 && result.of_pipe && !result.of_channel);
	CHECK(!pthread_join(writer, NULL) && read(ends[0], &byte, 1) == 1);
}

static volatile sig_atomic_t caught;

static void on_signal(int number)
{
	(void)number;
	caught++;
}

static void handle(int number, int flags)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = flags };
	CHECK(!sigaction(number, &action, NULL));
}

static pthread_t main_thread;

/* The signal that signal_later sends. */
static int number_later = SIGUSR1;

static void *signal_later(void *nothing)
{
	usleep(30000);
	CHECK(!pthread_kill(main_thread, number_later));
	return nothing;
}

static void signals(const struct call *call)
{
	pthread_t sender;
	sigset_t blocked, none;
	/* A handler ends each of these calls, whether it has SA_RESTART or not. */
	for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
		handle(SIGUSR1, flags);
		caught = 0;
		CHECK(!pthread_create(&sender, NULL, signal_later, NULL));
		errno = 0;
		CHECK(call->wait(60000, NULL).found == -1 && errno == EINTR && caught == 1);
		CHECK(!pthread_join(sender, NULL));
	}
	/* A signal that is blocked and pending does not end the call, unless the call's mask has not blocked it. */
	sigemptyset(&none);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	caught = 0;
	CHECK(!pthread_sigmask(SIG_BLOCK, &blocked, NULL) && !pthread_kill(pthread_self(), SIGUSR1));
	CHECK(call->wait(20, NULL).found == 0 && !caught);
	if (call->has_mask)
		CHECK(call->wait(60000, &none).found == -1 && errno == EINTR && caught == 1);
	CHECK(!pthread_sigmask(SIG_UNBLOCK, &blocked, NULL) && caught == 1);
	signal(SIGUSR1, SIG_DFL);
}

static void *send_later(void *nothing)
{
	usleep(100000);
	char mark = 's';
	to_other(&mark, 1);
	return nothing;
}

/* Whether the message that has caused an event has this number. */
static int receive_blocking(uint64_t number)
{
	int is_recv = 0;
	while (!is_recv)
		CHECK(poll_one(&is_recv));
	return words[0] == number;
}

/* A handler with SA_RESTART does not end the wait for a channel, and another handler does. */
static void signals_of_channel(int waits)
{
	struct ibv_cq *of;
	void *user;
	char mark;
	if (!waits) {
		for (uint64_t number = 7; number <= 8; number++) {
			from_other(&mark, 1);
			post_send(number);
		}
		meet();
		return;
	}
	pthread_t sender, signaller;
	set_blocking(1);
	post_recv();
	CHECK(!ibv_req_notify_cq(cq, 0));
	handle(SIGUSR1, 0);
	caught = 0;
	CHECK(!pthread_create(&signaller, NULL, signal_later, NULL));
	CHECK(ibv_get_cq_event(channel, &of, &user) == -1 && errno == EINTR && caught == 1);
	CHECK(!pthread_join(signaller, NULL));
	handle(SIGUSR1, SA_RESTART);
	CHECK(!pthread_create(&signaller, NULL, signal_later, NULL));
	CHECK(!pthread_create(&sender, NULL, send_later, NULL));
	CHECK(!ibv_get_cq_event(channel, &of, &user) && of == cq && caught == 2);
	ibv_ack_cq_events(cq, 1);
	CHECK(!pthread_join(signaller, NULL) && !pthread_join(sender, NULL));
	CHECK(receive_blocking(7));
	/* Handlers of both kinds. The library knows both after a signal has ended a wait. */
	handle(SIGUSR2, 0);
	post_recv();
	CHECK(!ibv_req_notify_cq(cq, 0));
	number_later = SIGUSR2;
	CHECK(!pthread_create(&signaller, NULL, signal_later, NULL));
	CHECK(ibv_get_cq_event(channel, &of, &user) == -1 && errno == EINTR && caught == 3);
	CHECK(!pthread_join(signaller, NULL));
	number_later = SIGUSR1;
	CHECK(!pthread_create(&signaller, NULL, signal_later, NULL));
	CHECK(!pthread_create(&sender, NULL, send_later, NULL));
	CHECK(!ibv_get_cq_event(channel, &of, &user) && of == cq && caught == 4);
	ibv_ack_cq_events(cq, 1);
	CHECK(!pthread_join(signaller, NULL) && !pthread_join(sender, NULL));
	CHECK(receive_blocking(8));
	signal(SIGUSR1, SIG_DFL);
	signal(SIGUSR2, SIG_DFL);
	set_blocking(0);
	meet();
}

/* ---- threads ---- */

static void *wait_for_ever(void *call)
{
	((const struct call *)call)->wait(-1, NULL);
	return NULL;
}

/* Waits when the thread is cancelled already. */
static void *wait_after(void *call)
{
	int before;
	CHECK(!pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before));
	usleep(100000);
	CHECK(!pthread_setcancelstate(before, NULL));
	((const struct call *)call)->wait(0, NULL);
	return NULL;
}

static void *get_for_ever(void *nothing)
{
	take_event(1);
	return nothing;
}

static void cancel(void *(*run)(void *), const void *argument)
{
	pthread_t thread;
	void *result;
	CHECK(!pthread_create(&thread, NULL, run, (void *)argument));
	usleep(30000);
	CHECK(!pthread_cancel(thread) && !pthread_join(thread, &result) && result == PTHREAD_CANCELED);
}

/*
 * A thread that is cancelled while it waits serves no more. The library's thread takes over, although the program makes
 * no call of the library.
 */
static void after_cancel(const struct call *call, int begins)
{
	char mark = 'c';
	set_blocking(0);
	if (begins) {
		from_other(&mark, 1);
		post_send(9);
		settle();
		meet();
		return;
	}
	post_recv();
	CHECK(!ibv_req_notify_cq(cq, 0));
	set_blocking(!call);
	cancel(call ? wait_for_ever : get_for_ever, call);
	set_blocking(0);
	to_other(&mark, 1);
	struct pollfd wait = { channel->fd, POLLIN, 0 };
	struct timespec limit = { 60, 0 };
	CHECK(syscall(SYS_ppoll, &wait, 1, &limit, NULL, 8) == 1);
	CHECK(receive(call) == 9);
	settle();
	meet();
}

static void *wait_long(void *call)
{
	CHECK(((const struct call *)call)->wait(300, NULL).found >= 0);
	return NULL;
}

/* One end computes for a while, after it has waited. The other end reads its memory meanwhile. */
static void computes(const struct call *call, int begins)
{
	CHECK(!call->wait(5, NULL).found);
	meet();
	if (begins) {
		uint64_t until = now_us() + 1000000;
		while (now_us() < until)
			;
		meet();
		return;
	}
	uint64_t begun = now_us();
	struct ibv_sge sge = { (uintptr_t)&words[DEPTH + 1], sizeof(words[0]), mr->lkey };
	struct ibv_send_wr *bad, wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ };
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = peer.words;
	wr.wr.rdma.rkey = peer.rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	struct ibv_wc wc = next_of(cq);
	CHECK(wc.opcode == IBV_WC_RDMA_READ && wc.status == IBV_WC_SUCCESS);
	uint64_t ms = (now_us() - begun) / 1000;
	if (ms > 500)
		fprintf(stderr, "%s: a Read took %d ms\n", call->name, (int)ms);
	CHECK(ms <= 500);
	meet();
}

int main(void)
{
	int pair[2];
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	pid_t child = fork();
	CHECK(child >= 0);
	int begins = child != 0;
	other = pair[begins];
	close(pair[!begins]);
	main_thread = pthread_self();
	open_all();
	open_sets();
	for (const struct call *call = calls; call < calls + CALLS; call++) {
		exchange(call, begins);
		silence(call);
		other_descriptor(call);
		signals(call);
		cancel(wait_for_ever, call);
		cancel(wait_after, call);
		after_cancel(call, begins);
		exchange(call, begins);
		computes(call, begins);
		/* A thread waits for the same descriptors, and another thread waits after it. */
		pthread_t thread;
		CHECK(!pthread_create(&thread, NULL, wait_long, (void *)call));
		usleep(1000);
		exchange(call, begins);
		CHECK(!pthread_join(thread, NULL));
	}
	set_blocking(1);
	exchange(NULL, begins);
	set_blocking(1);
	cancel(get_for_ever, NULL);
	after_cancel(NULL, begins);
	set_blocking(1);
	exchange(NULL, begins);
	meet();
	signals_of_channel(begins);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
	/* The number of the channel's descriptor is free, and no call serves for it. */
	CHECK(!calls[0].wait(5, NULL).found);
	int status;
	CHECK(!begins || (waitpid(child, &status, 0) == child && status == 0));
	return 0;
}
