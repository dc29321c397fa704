/*
 * Counts the system calls by which threads of the library change the mappings of the process. Libraries such as
 * libfabric and UCX rewrite the first instructions of libc's munmap, madvise and brk while the program runs. A
 * thread that is in such a function at this moment returns into the middle of another instruction, and the program
 * does not know the threads of the library.
 *
 * So a thread of the library takes its memory before the call returns that has started the thread. Afterwards,
 * while the library waits and while messages are sent, the thread makes no such call. When connections are made and
 * end, the thread does not call munmap and madvise, even if the queues are deep. The tables of the engine grow with
 * the number of connections, so the allocator may call brk and mprotect. On a `local` wire, the thread maps and
 * unmaps the memory that it shares with a peer, but by instructions of the library.
 *
 * A filter of seccomp reports each memory call of the process to an observer, which is a child. The observer delays
 * the calls of all threads except the first thread, or of one thread. So if a thread is not ready when the program
 * goes on, its calls are seen.
 *
 * `memory_calls [HOST]`: both ends are at this address.
 */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "cm.h"

enum { PORT = 7471, DEPTH = 4096, SIZES = 19, BYTES = 1 << (SIZES - 1), PENDING = 64 };
/* The connections in each direction, and the rounds of messages before and during the phase SENDING. */
enum { CONNECTIONS = 8, FEW = 4 * SIZES, MANY = 16 * SIZES };
/* The time for which the call of another thread waits, and the time after which no call waits, in milliseconds. */
enum { DELAY = 30, QUIET = 8 * DELAY };
/* The greatest number of threads of the library, and the delay of the calls of a slow thread. */
enum { THREADS = 3, SLOW_DELAY = 150 };

enum phase { STARTING, STARTED, CONNECTING, SENDING, ENDING, PHASES };
static const char *const phases[PHASES] = { "starting", "started", "connecting", "sending", "ending" };

/* The code that makes a call: libc's functions, or others. */
enum code { OF_LIBC, OF_OTHERS, CODES };
static const char *const codes[CODES] = { "libc's", "the library's own" };

enum call { MMAP, MUNMAP, MREMAP, MADVISE, BRK, MPROTECT, CALLS };
static const struct {
	int number;
	const char *name;
} calls[CALLS] = {
	[MMAP] = { SYS_mmap, "mmap" },	       [MUNMAP] = { SYS_munmap, "munmap" },
	[MREMAP] = { SYS_mremap, "mremap" },   [MADVISE] = { SYS_madvise, "madvise" },
	[BRK] = { SYS_brk, "brk" },	       [MPROTECT] = { SYS_mprotect, "mprotect" },
};

/* The memory that the program and its observer share. */
static struct shared {
	_Atomic enum phase phase;
	_Atomic int counts[PHASES][CODES][CALLS];
} *shared;

/* The addresses of libc's functions. */
static uint64_t libc_begin, libc_end;

static void find_libc(void)
{
	char line[512], rights[8], path[256];
	FILE *maps = fopen("/proc/self/maps", "r");
	uint64_t begin, end;
	CHECK(maps);
	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %255s", &begin, &end, rights, path) == 4 && rights[2] == 'x' &&
		    strstr(path, "/libc.so")) {
			libc_begin = begin;
			libc_end = end;
		}
	CHECK(libc_begin && !fclose(maps));
}

/* ---- the observer ---- */

/* The only thread whose calls are delayed, by the order of the threads' first calls; or -1: all threads. */
static int slow_thread = -1;

/* The time for which a call of this thread waits. */
static long delay_of(pid_t thread)
{
	static pid_t threads[THREADS];
	int i = 0;
	while (i < THREADS && threads[i] && threads[i] != thread)
		i++;
	CHECK(i < THREADS);
	threads[i] = thread;
	return slow_thread < 0 ? DELAY : i == slow_thread ? SLOW_DELAY : 0;
}

static long now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void answer(int listener, uint64_t id)
{
	struct seccomp_notif_resp response = { .id = id, .flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE };
	/* An error means that the thread has ended. */
	ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
}

static void count(const struct seccomp_notif *call)
{
	enum phase phase = shared->phase;
	uint64_t at = call->data.instruction_pointer;
	enum code code = at >= libc_begin && at < libc_end ? OF_LIBC : OF_OTHERS;
	char path[64], name[32] = "";
	snprintf(path, sizeof(path), "/proc/%d/comm", call->pid);
	FILE *file = fopen(path, "r");
	if (file) {
		CHECK(!fgets(name, sizeof(name), file) || !fclose(file));
		name[strcspn(name, "\n")] = 0;
	}
	for (int i = 0; i < CALLS; i++)
		if (calls[i].number == call->data.nr) {
			shared->counts[phase][code][i]++;
			fprintf(stderr, "%s: %s calls %s %s at %#lx\n", phases[phase], name, codes[code], calls[i].name, at);
		}
}

/* Lets all calls continue: those of `first` at once, and those of other threads after their delay. */
static void observe(int listener, pid_t first)
{
	struct {
		struct seccomp_notif call;
		long due;
	} pending[PENDING];
	int waiting = 0;
	for (;;) {
		long pause = 1000;
		for (int i = 0; i < waiting; i++)
			pause = pending[i].due - now_ms() < pause ? pending[i].due - now_ms() : pause;
		struct pollfd fd = { listener, POLLIN, 0 };
		int found = pause > 0 ? poll(&fd, 1, pause) : 0;
		/* All threads of the program have ended. */
		if (found > 0 && (fd.revents & POLLHUP))
			_exit(0);
		if (found > 0) {
			struct seccomp_notif call = { 0 };
			if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call))
				continue;
			if ((pid_t)call.pid == first) {
				answer(listener, call.id);
				continue;
			}
			CHECK(waiting < PENDING);
			pending[waiting].call = call;
			pending[waiting++].due = now_ms() + delay_of(call.pid);
		}
		for (int i = 0; i < waiting; i++)
			if (pending[i].due <= now_ms()) {
				count(&pending[i].call);
				answer(listener, pending[i].call.id);
				pending[i--] = pending[--waiting];
			}
	}
}

/* Sends or receives a descriptor. */
static void pass(int socket, int *fd, int sends)
{
	char byte = 0;
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} space = { 0 };
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &space };
	message.msg_controllen = sizeof(space);
	if (sends) {
		struct cmsghdr *header = CMSG_FIRSTHDR(&message);
		*header = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
		header->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(header), fd, sizeof(int));
		CHECK(sendmsg(socket, &message, 0) == 1);
	} else {
		CHECK(recvmsg(socket, &message, 0) == 1 && CMSG_FIRSTHDR(&message));
		memcpy(fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
	}
}

/* Starts the observer. Returns 0 if the system has no such filters. */
static int be_observed(void)
{
	find_libc();
	struct sock_filter filter[CALLS + 3] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	};
	for (int i = 0; i < CALLS; i++)
		filter[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].number, CALLS - i, 0);
	filter[1 + CALLS] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	filter[2 + CALLS] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF);
	struct sock_fprog program = { CALLS + 3, filter };
	int sockets[2];
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	pid_t first = getpid(), child = fork();
	CHECK(child >= 0);
	if (!child) {
		int listener;
		CHECK(!close(sockets[0]));
		pass(sockets[1], &listener, 0);
		observe(listener, first);
	}
	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	int listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
	if (listener < 0) {
		printf("skipped: the system refuses a filter (errno %d)\n", errno);
		kill(child, SIGKILL);
		return 0;
	}
	pass(sockets[0], &listener, 1);
	CHECK(!close(listener) && !close(sockets[0]) && !close(sockets[1]));
	return 1;
}

/* Enters a phase when no call of the phase before waits. */
static void enter(enum phase phase)
{
	usleep(QUIET * 1000);
	shared->phase = phase;
}

/* ---- the two ends ---- */

/* One end of a connection. The ends wait for events, so the library's thread moves the messages. */
struct end {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct rdma_cm_id *id;
	char *memory;
};

static void give_objects(struct end *end, struct rdma_cm_id *id)
{
	end->id = id;
	CHECK((end->channel = ibv_create_comp_channel(id->verbs)));
	CHECK((end->cq = ibv_create_cq(id->verbs, 2 * DEPTH, NULL, end->channel, 0)));
	struct ibv_qp_init_attr init = qp_init(end->cq, NULL, DEPTH);
	CHECK(!rdma_create_qp(id, NULL, &init));
	CHECK((end->memory = calloc(2, BYTES)));
	CHECK((end->mr = ibv_reg_mr(id->qp->pd, end->memory, 2 * BYTES,
				    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
					    IBV_ACCESS_REMOTE_ATOMIC)));
}

/* Waits for an event of the channel until a request has completed. */
static struct ibv_wc completion(struct end *end)
{
	struct ibv_wc wc;
	struct ibv_cq *of;
	void *user;
	for (;;) {
		CHECK(!ibv_req_notify_cq(end->cq, 0));
		if (ibv_poll_cq(end->cq, 1, &wc) == 1)
			return wc;
		CHECK(!ibv_get_cq_event(end->channel, &of, &user));
		ibv_ack_cq_events(of, 1);
	}
}

static void post_recv(struct end *end)
{
	struct ibv_sge sge = { (uintptr_t)end->memory + BYTES, BYTES, end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(!ibv_post_recv(end->id->qp, &wr, &bad));
}

struct remote {
	uint64_t address;
	uint32_t key;
};

static void post(struct end *end, enum ibv_wr_opcode opcode, uint32_t bytes, const struct remote *remote)
{
	struct ibv_sge sge = { (uintptr_t)end->memory, bytes, end->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;
	wr.send_flags = IBV_SEND_SIGNALED;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = remote->address;
		wr.wr.atomic.rkey = remote->key;
		wr.wr.atomic.compare_add = 1;
	} else if (remote) {
		wr.wr.rdma.remote_addr = remote->address;
		wr.wr.rdma.rkey = remote->key;
	}
	CHECK(!ibv_post_send(end->id->qp, &wr, &bad));
}

/* Exchanges messages of all kinds and sizes with the peer. */
static void exchange(struct end *end, int rounds)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
						      IBV_WR_ATOMIC_FETCH_AND_ADD };
	struct remote *ours = (void *)end->memory, *remote = (void *)(end->memory + BYTES);
	*ours = (struct remote){ (uintptr_t)end->memory + BYTES, end->mr->rkey };
	post(end, IBV_WR_SEND, sizeof(*ours), NULL);
	int received = 0, sent = 0;
	while (!received || !sent) {
		struct ibv_wc wc = completion(end);
		CHECK(wc.status == IBV_WC_SUCCESS);
		received += wc.wr_id == 1;
		sent += wc.wr_id == 2;
	}
	struct remote peer = *remote;
	post_recv(end);
	for (int round = 0; round < rounds; round++) {
		enum ibv_wr_opcode opcode = opcodes[round % 4];
		uint32_t bytes = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : 1 << round % SIZES;
		post(end, opcode, bytes, &peer);
		post(end, IBV_WR_SEND, 8, NULL);
		int awaited = opcode == IBV_WR_SEND ? 4 : 3;
		while (awaited--) {
			struct ibv_wc wc = completion(end);
			if (wc.status != IBV_WC_SUCCESS)
				fprintf(stderr, "round %d: %s\n", round, ibv_wc_status_str(wc.status));
			CHECK(wc.status == IBV_WC_SUCCESS);
			if (wc.wr_id == 1)
				post_recv(end);
		}
	}
}

static void end(struct end *end)
{
	rdma_destroy_qp(end->id);
	CHECK(!ibv_dereg_mr(end->mr) && !ibv_destroy_cq(end->cq) && !ibv_destroy_comp_channel(end->channel));
	CHECK(!rdma_destroy_id(end->id));
	free(end->memory);
}

static const struct rdma_conn_param param = { .responder_resources = 4, .initiator_depth = 4 };

static void accept_one(struct rdma_event_channel *events, struct end *end)
{
	give_objects(end, next_request(events));
	post_recv(end);
	post_recv(end);
	struct rdma_conn_param of_end = param;
	CHECK(!rdma_accept(end->id, &of_end));
	pass_event(events, RDMA_CM_EVENT_ESTABLISHED);
}

static void connect_one(struct rdma_event_channel *events, struct end *end, const char *host, uint16_t port)
{
	give_objects(end, resolve(events, host, port));
	post_recv(end);
	post_recv(end);
	struct rdma_conn_param of_end = param;
	CHECK(!rdma_connect(end->id, &of_end));
	pass_event(events, RDMA_CM_EVENT_ESTABLISHED);
}

/* The ends of this process: `active[i]` is connected to the peer's `passive[i]`. */
static struct end active[CONNECTIONS], passive[CONNECTIONS];

static void exchange_all(int rounds)
{
	for (int i = 0; i < CONNECTIONS; i++) {
		exchange(&active[i], rounds);
		exchange(&passive[i], rounds);
	}
}

/* The peer: for each connection of this process, it accepts one and makes one. */
static void be_peer(const char *host, int ready)
{
	struct rdma_event_channel *events = rdma_create_event_channel();
	CHECK(events);
	struct rdma_cm_id *listener = listen_at(events, host, PORT);
	CHECK(write(ready, "", 1) == 1);
	for (int i = 0; i < CONNECTIONS; i++) {
		accept_one(events, &active[i]);
		connect_one(events, &passive[i], host, PORT + 1);
	}
	exchange_all(FEW);
	exchange_all(MANY);
	for (int i = 0; i < 2 * CONNECTIONS; i++)
		pass_event(events, RDMA_CM_EVENT_DISCONNECTED);
	for (int i = 0; i < CONNECTIONS; i++) {
		end(&active[i]);
		end(&passive[i]);
	}
	destroy(listener);
	rdma_destroy_event_channel(events);
	exit(0);
}

/* Prints the calls of a phase. Returns whether the calls are among the allowed calls, which are a set of bits. */
static int are_allowed(enum phase phase, enum code code, unsigned allowed)
{
	int are = 1;
	for (int i = 0; i < CALLS; i++)
		if (shared->counts[phase][code][i]) {
			fprintf(stderr, "%s: %s %s: %d\n", phases[phase], codes[code], calls[i].name,
				shared->counts[phase][code][i]);
			are &= allowed >> i & 1;
		}
	return are;
}

/* Starts the library while one of its threads is slow. */
static void start_slowly(int thread)
{
	slow_thread = thread;
	if (!be_observed())
		exit(0);
	struct ibv_context *context = open_device();
	shared->phase = STARTED;
	usleep((4 * SLOW_DELAY + QUIET) * 1000);
	CHECK(are_allowed(STARTED, OF_LIBC, 0) && are_allowed(STARTED, OF_OTHERS, 0));
	CHECK(!ibv_close_device(context));
	exit(0);
}

int main(int argc, char **argv)
{
	const char *host = argc > 1 ? argv[1] : "127.0.0.1";
	int ready[2], status;
	char byte;
	for (int thread = 0; thread < THREADS; thread++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child)
			start_slowly(thread);
		CHECK(waitpid(child, &status, 0) == child && !status);
	}
	CHECK(!pipe(ready));
	pid_t peer = fork();
	CHECK(peer >= 0);
	if (!peer)
		be_peer(host, ready[1]);
	CHECK(read(ready[0], &byte, 1) == 1);
	if (!be_observed()) {
		kill(peer, SIGKILL);
		return 0;
	}
	struct ibv_context *context = open_device();
	shared->phase = STARTED;
	enter(CONNECTING);
	struct rdma_event_channel *events = rdma_create_event_channel();
	CHECK(events);
	struct rdma_cm_id *listener = listen_at(events, host, PORT + 1);
	for (int i = 0; i < CONNECTIONS; i++) {
		connect_one(events, &active[i], host, PORT);
		accept_one(events, &passive[i]);
	}
	exchange_all(FEW);
	enter(SENDING);
	exchange_all(MANY);
	enter(ENDING);
	/* Half of the queue pairs are destroyed while they are connected. */
	for (int i = 0; i < CONNECTIONS; i += 2)
		CHECK(!rdma_disconnect(active[i].id) && !rdma_disconnect(passive[i].id));
	for (int i = 0; i < CONNECTIONS; i++)
		pass_event(events, RDMA_CM_EVENT_DISCONNECTED);
	for (int i = 0; i < CONNECTIONS; i++) {
		end(&active[i]);
		end(&passive[i]);
	}
	CHECK(waitpid(peer, &status, 0) == peer && !status);
	destroy(listener);
	rdma_destroy_event_channel(events);
	CHECK(!ibv_close_device(context));
	usleep(QUIET * 1000);
	/* The heap of a thread grows by mprotect, and the heap of the first thread grows by brk. */
	const unsigned grows = 1 << MPROTECT | 1 << BRK, shares = 1 << MMAP | 1 << MADVISE | 1 << MUNMAP;
	int are = are_allowed(STARTED, OF_LIBC, 0) & are_allowed(STARTED, OF_OTHERS, 0);
	are &= are_allowed(CONNECTING, OF_LIBC, grows) & are_allowed(CONNECTING, OF_OTHERS, shares);
	are &= are_allowed(SENDING, OF_LIBC, 0) & are_allowed(SENDING, OF_OTHERS, 0);
	are &= are_allowed(ENDING, OF_LIBC, grows) & are_allowed(ENDING, OF_OTHERS, shares);
	CHECK(are);
	puts("the library's threads take no memory after their start");
	return 0;
}
