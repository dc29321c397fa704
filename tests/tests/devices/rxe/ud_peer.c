/*
 * Queue pairs of type UD on two hosts, message by message. The same program runs over rxe in the virtual machine and over
 * libuwarp.so on the host.
 *
 *   ud_peer listen|connect ADDRESS GID_INDEX SCENE...
 *   ud_peer sink ADDRESS GID_INDEX [GROUP]
 *
 * The scenes are `messages`, `answers`, `errors` and the address of a multicast group. Each scene is played twice: first the side
 * that connects sends. Between the steps of a scene, the sides wait for each other by the kernel's TCP at ADDRESS. A sink has no
 * peer, and prints what it receives. With HOLD in the environment, the program waits for SIGTERM at its end, as a sink always does.
 * JOIN is the interface of the kernel's memberships. LETS_IN is the sink's interface with the Ethernet address of its group.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TCP_PORT = 18600, QKEY = 0x1ee7a330, GRH = 40, ROOM = 4096 + GRH + 8, DEPTH = 64, IMMEDIATE = 0x01020304 };
enum { PATIENCE_S = 20, UNKNOWN_QPN = 0xabcdef, MULTICAST_QPN = 0xffffff };

#define CHECK(what) \
	do { \
		if (!(what)) \
			fail(__LINE__, #what); \
	} while (0)

struct hello {
	uint32_t qp, marker;
	uint32_t mtu;
	union ibv_gid gid;
};

struct end {
	struct ibv_qp *qp;
	struct ibv_cq *sends, *receives;
};

static const char *scene = "start";
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t memory[(DEPTH + 1) * ROOM];
static struct end plain, marker;
static struct hello ours, theirs;
static int tcp = -1, gid_index;
static struct ibv_ah *peer;

static void fail(int line, const char *what)
{
	fprintf(stderr, "ud_peer: %s: line %d: %s (errno %d: %s)\n", scene, line, what, errno, strerror(errno));
	exit(1);
}

/* Waits until the other side has come to the same step. */
static void step(void)
{
	char byte = 's';
	CHECK(write(tcp, &byte, 1) == 1 && read(tcp, &byte, 1) == 1 && byte == 's');
}

static uint8_t *slot(uint64_t number)
{
	return memory + number * ROOM;
}

static struct end make(void)
{
	struct end end = {
		.sends = ibv_create_cq(context, DEPTH, NULL, NULL, 0),
		.receives = ibv_create_cq(context, DEPTH, NULL, NULL, 0),
	};
	CHECK(end.sends && end.receives);
	struct ibv_qp_init_attr init = {
		.send_cq = end.sends,
		.recv_cq = end.receives,
		.qp_type = IBV_QPT_UD,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 64 },
	};
	end.qp = ibv_create_qp(pd, &init);
	CHECK(end.qp);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	CHECK(!ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(end.qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	CHECK(!ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	return end;
}

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	pd = ibv_alloc_pd(context);
	CHECK(pd);
	mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct ibv_port_attr port;
	CHECK(!ibv_query_port(context, 1, &port) && port.state == IBV_PORT_ACTIVE);
	ours.mtu = 128u << port.active_mtu;
	CHECK(!ibv_query_gid(context, 1, gid_index, &ours.gid));
	plain = make();
	marker = make();
	ours.qp = plain.qp->qp_num;
	ours.marker = marker.qp->qp_num;
}

static struct ibv_ah *handle(const union ibv_gid *gid)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .sgid_index = gid_index, .hop_limit = 64 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	return ah;
}

static void receive_into(struct end *end, uint64_t number)
{
	memset(slot(number), 0xee, ROOM);
	struct ibv_sge sge = { (uintptr_t)slot(number), ROOM, mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = number, .sg_list = &sge, .num_sge = 1 };
	CHECK(!ibv_post_recv(end->qp, &wr, &bad));
}

/* Returns the next completion of a queue. */
static struct ibv_wc next_of(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + PATIENCE_S;
	int found;
	while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
		CHECK(time(NULL) < end);
	CHECK(found == 1);
	return wc;
}

static struct ibv_wc received(struct end *end)
{
	struct ibv_wc wc = next_of(end->receives);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
	return wc;
}

static uint8_t byte_of(unsigned number, unsigned at)
{
	return number * 31 + at * 7 + at / 251;
}

/* Sends message `number`, whose contents the receiver knows, and waits for the completion. */
static void send_as(struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, unsigned number, unsigned length, int with_immediate)
{
	uint8_t *from = slot(DEPTH);
	for (unsigned at = 0; at < length; at++)
		from[at] = byte_of(number, at);
	struct ibv_sge sge[2] = { { (uintptr_t)from, length / 3, mr->lkey },
				  { (uintptr_t)from + length / 3, length - length / 3, mr->lkey } };
	struct ibv_send_wr *bad, wr = {
		.wr_id = number,
		.sg_list = sge,
		.num_sge = 2,
		.opcode = with_immediate ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND,
		.imm_data = htonl(IMMEDIATE + number),
		.send_flags = IBV_SEND_SIGNALED | (length <= 64 && number % 2 ? IBV_SEND_INLINE : 0),
		.wr.ud = { ah, qpn, qkey },
	};
	CHECK(!ibv_post_send(plain.qp, &wr, &bad));
	struct ibv_wc wc = next_of(plain.sends);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND && wc.wr_id == number);
}

static void mark(void)
{
	send_as(peer, theirs.marker, QKEY, 0, 0, 0);
}

/* Checks the GRH: with IPv4 the last 20 bytes are the IP header, with IPv6 the 40 bytes are the header. */
static void check_grh(const uint8_t *grh, const union ibv_gid *to, unsigned length, int with_immediate)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };
	/* UDP, BTH, DETH, ICRC */
	unsigned udp = 8 + 12 + 8 + (with_immediate ? 4 : 0) + ((length + 3) & ~3u) + 4;
	if (!memcmp(theirs.gid.raw, mapped, sizeof mapped)) {
		CHECK(grh[20] == 0x45 && grh[29] == IPPROTO_UDP && (grh[22] << 8 | grh[23]) == (int)(20 + udp));
		CHECK(!memcmp(grh + 32, theirs.gid.raw + 12, 4) && !memcmp(grh + 36, to->raw + 12, 4));
	} else {
		CHECK(grh[0] >> 4 == 6 && grh[6] == IPPROTO_UDP && (grh[4] << 8 | grh[5]) == (int)udp);
		CHECK(!memcmp(grh + 8, theirs.gid.raw, 16) && !memcmp(grh + 24, to->raw, 16));
	}
}

/* Checks message `number`, which was sent to `to`. */
static void check(struct ibv_wc *wc, const union ibv_gid *to, unsigned number, unsigned length, int with_immediate)
{
	const uint8_t *at = slot(wc->wr_id);
	CHECK(wc->byte_len == GRH + length && wc->src_qp == theirs.qp && wc->wc_flags & IBV_WC_GRH);
	CHECK(!(wc->wc_flags & IBV_WC_WITH_IMM) == !with_immediate);
	CHECK(!with_immediate || wc->imm_data == htonl(IMMEDIATE + number));
	check_grh(at, to, length, with_immediate);
	for (unsigned offset = 0; offset < length; offset++)
		CHECK(at[GRH + offset] == byte_of(number, offset));
	CHECK(at[GRH + length] == 0xee);
}

/* Messages of the lengths at which the padding and the packet's size change, with and without immediate data. */
static void messages(int sends)
{
	unsigned mtu = ours.mtu < theirs.mtu ? ours.mtu : theirs.mtu;
	unsigned lengths[] = { 0, 1, 2, 3, 4, 5, 64, 65, mtu - 1, mtu };
	unsigned count = 2 * sizeof lengths / sizeof *lengths;
	for (unsigned number = 0; !sends && number < count; number++)
		receive_into(&plain, number);
	step();
	for (unsigned number = 0; number < count; number++) {
		unsigned length = lengths[number / 2];
		if (sends) {
			send_as(peer, theirs.qp, QKEY, number, length, number % 2);
		} else {
			struct ibv_wc wc = received(&plain);
			CHECK(wc.wr_id == number);
			check(&wc, &ours.gid, number, length, number % 2);
		}
	}
	printf("messages of up to %u bytes\n", mtu);
}

/* Answers to the sender of a message, whose address handle is made from the completion. */
static void answers(int sends)
{
	for (unsigned number = 0; number < 8; number++) {
		receive_into(&plain, number);
		step();
		if (sends)
			send_as(peer, theirs.qp, QKEY, number, 9, 0);
		struct ibv_wc wc = received(&plain);
		check(&wc, &ours.gid, sends ? number + 100 : number, sends ? 17 : 9, sends);
		if (sends)
			continue;
		struct ibv_ah *back = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)slot(wc.wr_id), 1);
		CHECK(back);
		send_as(back, wc.src_qp, QKEY, number + 100, 17, 1);
		CHECK(!ibv_destroy_ah(back));
	}
}

/* Messages that the receiver drops, and then a message that arrives. */
static void errors(int sends)
{
	if (!sends) {
		receive_into(&plain, 1);
		receive_into(&marker, 2);
	}
	step();
	if (sends) {
		send_as(peer, theirs.qp, QKEY + 1, 10, 5, 0);
		send_as(peer, UNKNOWN_QPN, QKEY, 11, 5, 0);
		send_as(peer, theirs.qp, QKEY, 12, 5, 0);
		/* No receive is posted for this message. */
		send_as(peer, theirs.qp, QKEY, 13, 5, 0);
		mark();
	} else {
		struct ibv_wc wc = received(&plain);
		check(&wc, &ours.gid, 12, 5, 0);
		received(&marker);
		receive_into(&plain, 3);
	}
	step();
	if (sends) {
		send_as(peer, theirs.qp, QKEY, 14, 5, 1);
	} else {
		struct ibv_wc wc = received(&plain);
		CHECK(wc.wr_id == 3);
		check(&wc, &ours.gid, 14, 5, 1);
	}
}

static union ibv_gid gid_of(const char *address)
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };
	if (inet_pton(AF_INET, address, gid.raw + 12) != 1)
		CHECK(inet_pton(AF_INET6, address, gid.raw) == 1);
	return gid;
}

/*
 * Joins a group in the kernel, as rdma_join_multicast does. The kernel does not pass a group's packets to rxe without this.
 * ibv_attach_mcast of Linux 6.1 only adds the Ethernet address of an IPv6 group.
 */
static void join_in_kernel(const char *address)
{
	const char *interface = getenv("JOIN");
	if (!interface)
		return;
	int index = if_nametoindex(interface);
	struct ip_mreqn v4 = { .imr_ifindex = index };
	struct ipv6_mreq v6 = { .ipv6mr_interface = index };
	if (inet_pton(AF_INET, address, &v4.imr_multiaddr) == 1) {
		CHECK(!setsockopt(socket(AF_INET, SOCK_DGRAM, 0), IPPROTO_IP, IP_ADD_MEMBERSHIP, &v4, sizeof v4));
	} else {
		CHECK(inet_pton(AF_INET6, address, &v6.ipv6mr_multiaddr) == 1);
		CHECK(!setsockopt(socket(AF_INET6, SOCK_DGRAM, 0), IPPROTO_IPV6, IPV6_JOIN_GROUP, &v6, sizeof v6));
	}
}

/* Messages to a group, of which only the receiver is a member. */
static void group(const char *address, int sends)
{
	union ibv_gid gid = gid_of(address);
	struct ibv_ah *to = handle(&gid);
	unsigned lengths[] = { 0, 3, 512 };
	for (unsigned number = 0; !sends && number < 3; number++)
		receive_into(&plain, number);
	if (!sends) {
		join_in_kernel(address);
		CHECK(!ibv_attach_mcast(plain.qp, &gid, 0));
	}
	step();
	for (unsigned number = 0; number < 3; number++) {
		if (sends) {
			send_as(to, MULTICAST_QPN, QKEY, number, lengths[number], number % 2);
		} else {
			struct ibv_wc wc = received(&plain);
			check(&wc, &gid, number, lengths[number], number % 2);
		}
	}
	if (!sends) {
		CHECK(!ibv_detach_mcast(plain.qp, &gid, 0));
		receive_into(&plain, 4);
		receive_into(&marker, 5);
	}
	step();
	if (sends) {
		send_as(to, MULTICAST_QPN, QKEY, 20, 8, 0);
		mark();
		send_as(peer, theirs.qp, QKEY, 21, 8, 0);
	} else {
		received(&marker);
		struct ibv_wc wc = received(&plain);
		check(&wc, &ours.gid, 21, 8, 0);
	}
	CHECK(!ibv_destroy_ah(to));
}

static void play(const char *name, int sends)
{
	scene = name;
	if (!strcmp(name, "messages"))
		messages(sends);
	else if (!strcmp(name, "answers"))
		answers(sends);
	else if (!strcmp(name, "errors"))
		errors(sends);
	else
		group(name, sends);
	struct ibv_wc wc;
	step();
	CHECK(!ibv_poll_cq(plain.receives, 1, &wc));
	printf("ok %s, which this side %s\n", name, sends ? "sends" : "receives");
}

static void connect_tcp(int listens, const char *address)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(TCP_PORT) };
	int on = 1, made = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(made >= 0 && inet_pton(AF_INET, address, &at.sin_addr) == 1);
	if (listens) {
		CHECK(!setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
		CHECK(!bind(made, (struct sockaddr *)&at, sizeof at) && !listen(made, 1));
		printf("listening\n");
		tcp = accept(made, NULL, NULL);
		CHECK(tcp >= 0);
	} else {
		CHECK(!connect(made, (struct sockaddr *)&at, sizeof at));
		tcp = made;
	}
	struct timeval patience = { .tv_sec = PATIENCE_S };
	CHECK(!setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
	CHECK(!setsockopt(tcp, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience));
	CHECK(write(tcp, &ours, sizeof ours) == sizeof ours);
	CHECK(recv(tcp, &theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs);
}

static void hold(void)
{
	sigset_t set;
	int number;
	CHECK(!sigemptyset(&set) && !sigaddset(&set, SIGTERM) && !sigwait(&set, &number));
}

/* Checks that an interface receives an Ethernet address. Both are words of a line of /proc/net/dev_mcast. */
static void check_lets_in(const char *expected)
{
	char line[200], interface[16], address[41], both[64];
	int found = 0;
	FILE *file = fopen("/proc/net/dev_mcast", "r");
	CHECK(file);
	while (!found && fgets(line, sizeof line, file)) {
		CHECK(sscanf(line, "%*d %15s %*d %*d %40s", interface, address) == 2);
		snprintf(both, sizeof both, "%s %s", interface, address);
		found = !strcmp(both, expected);
	}
	CHECK(found && !fclose(file));
}

/* Prints each message that the queue pair receives, until SIGTERM. */
static void sink(const char *address)
{
	scene = "sink";
	for (unsigned number = 0; number < DEPTH; number++)
		receive_into(&plain, number);
	if (address) {
		union ibv_gid gid = gid_of(address);
		CHECK(!ibv_attach_mcast(plain.qp, &gid, 0));
		check_lets_in(getenv("LETS_IN"));
	}
	printf("queue pair %u at ", ours.qp);
	for (int at = 0; at < 16; at++)
		printf("%02x", ours.gid.raw[at]);
	printf("\nready\n");
	sigset_t set;
	struct timespec now = { 0, 0 };
	CHECK(!sigemptyset(&set) && !sigaddset(&set, SIGTERM));
	while (sigtimedwait(&set, NULL, &now) != SIGTERM) {
		struct ibv_wc wc;
		if (ibv_poll_cq(plain.receives, 1, &wc) == 1) {
			CHECK(wc.status == IBV_WC_SUCCESS);
			printf("message of %u bytes\n", wc.byte_len - GRH);
		} else {
			usleep(1000);
		}
	}
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(argc >= 4);
	sigset_t set;
	CHECK(!sigemptyset(&set) && !sigaddset(&set, SIGTERM) && !sigprocmask(SIG_BLOCK, &set, NULL));
	gid_index = atoi(argv[3]);
	open_device();
	if (!strcmp(argv[1], "sink")) {
		sink(argv[4]);
		return 0;
	}
	int connects = !strcmp(argv[1], "connect");
	connect_tcp(!connects, argv[2]);
	peer = handle(&theirs.gid);
	for (int at = 4; at < argc; at++) {
		play(argv[at], connects);
		play(argv[at], !connects);
	}
	printf("done\n");
	if (getenv("HOLD"))
		hold();
	return 0;
}
