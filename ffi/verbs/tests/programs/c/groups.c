/*
 * Tests multicast groups of the connection manager: the fields of events, joins that are refused, members that only
 * send, leaving, and messages that reach the members in other processes of the wire.
 *
 * Without arguments the members are a process and its children. `groups receiver ADDRESS` and `groups sender ADDRESS` are
 * two ends: the sender repeats its message until it has an answer.
 */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "cm.h"

enum { DEPTH = 64, QKEY = 0x01234567, GRH = 40, ROOM = 256, CHILDREN = 3 };
#define GROUP "239.1.2.3"
#define OTHER "239.1.2.4"

#define REFUSED(call, error) CHECK((errno = 0, (call)) != 0 && errno == (error))

static struct rdma_event_channel *channel;
static struct ibv_mr *mr;
static uint8_t memory[DEPTH * ROOM];

/* Makes an identifier with the device and a queue pair, whose receives are posted. */
static struct rdma_cm_id *member(const char *host)
{
	struct sockaddr_in address = address_of(host, 0);
	struct rdma_cm_id *id;
	CHECK((channel = rdma_create_event_channel()) && !rdma_create_id(channel, &id, NULL, RDMA_PS_UDP));
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&address));
	if (!id->verbs) {
		/* The loopback address does not name a device on every wire. */
		struct sockaddr_in group = address_of(GROUP, 0);
		CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&group, 2000));
		pass_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	}
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 2 * DEPTH, NULL, NULL, 0);
	struct ibv_qp_init_attr init = qp_init(cq, NULL, DEPTH);
	init.qp_type = IBV_QPT_UD;
	CHECK(cq && !rdma_create_qp(id, NULL, &init));
	CHECK((mr = ibv_reg_mr(id->pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)));
	for (size_t at = 0; at < DEPTH / 2; at++) {
		struct ibv_sge sge = { (uintptr_t)(memory + at * ROOM), ROOM, mr->lkey };
		struct ibv_recv_wr *bad, wr = { .wr_id = at * ROOM, .sg_list = &sge, .num_sge = 1 };
		CHECK(!ibv_post_recv(id->qp, &wr, &bad));
	}
	return id;
}

static void leave_wire(struct rdma_cm_id *id)
{
	struct ibv_cq *cq = id->recv_cq;
	rdma_destroy_qp(id);
	CHECK(!ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
}

/* Joins a group, and returns a handle for the group. */
static struct ibv_ah *join(struct rdma_cm_id *id, const char *group, void *context)
{
	struct sockaddr_in address = address_of(group, 0);
	CHECK(!rdma_join_multicast(id, (struct sockaddr *)&address, context));
	struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	struct rdma_ud_param *ud = &event->param.ud;
	uint8_t gid[16] = { [10] = 0xff, 0xff };
	memcpy(gid + 12, &address.sin_addr, 4);
	CHECK(event->id == id && !event->status && ud->private_data == context && ud->qp_num == 0xffffff && ud->qkey == QKEY);
	CHECK(ud->ah_attr.is_global && ud->ah_attr.port_num == 1 && ud->ah_attr.grh.hop_limit > 1);
	CHECK(!memcmp(ud->ah_attr.grh.dgid.raw, gid, sizeof gid));
	struct ibv_ah *ah = ibv_create_ah(id->pd, &ud->ah_attr);
	CHECK(ah);
	rdma_ack_cm_event(event);
	return ah;
}

static void leave(struct rdma_cm_id *id, const char *group)
{
	struct sockaddr_in address = address_of(group, 0);
	CHECK(!rdma_leave_multicast(id, (struct sockaddr *)&address));
}

static void send_to(struct rdma_cm_id *id, struct ibv_ah *ah, uint32_t number, const char *text)
{
	struct ibv_sge sge = { (uintptr_t)text, strlen(text) + 1, 0 };
	struct ibv_send_wr *bad, wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_INLINE,
		.wr.ud = { ah, number, QKEY },
	};
	CHECK(!ibv_post_send(id->qp, &wr, &bad));
}

/* Waits for the next message, which has to be this one. */
static struct ibv_wc receives(struct rdma_cm_id *id, const char *text)
{
	struct ibv_wc wc = next_of(id->recv_cq);
	if (wc.status != IBV_WC_SUCCESS || strcmp((char *)memory + wc.wr_id + GRH, text))
		fprintf(stderr, "status %d, %s for %s\n", wc.status, (char *)memory + wc.wr_id + GRH, text);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == GRH + strlen(text) + 1);
	CHECK(!strcmp((char *)memory + wc.wr_id + GRH, text));
	return wc;
}

static void refusals(void)
{
	struct sockaddr_in group = address_of(GROUP, 0), unicast = address_of("127.0.0.1", 0), none = address_of("0.0.0.0", 0);
	struct sockaddr *to = (struct sockaddr *)&group;
	struct rdma_cm_join_mc_attr_ex attr = {
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
		.addr = to,
	};
	struct rdma_cm_id *id, *of_tcp;
	CHECK((channel = rdma_create_event_channel()) && !rdma_create_id(channel, &id, NULL, RDMA_PS_UDP));
	REFUSED(rdma_join_multicast(id, to, NULL), EINVAL);
	CHECK(!rdma_bind_addr(id, (struct sockaddr *)&unicast) && id->verbs);
	REFUSED(rdma_join_multicast(id, (struct sockaddr *)&unicast, NULL), EINVAL);
	REFUSED(rdma_join_multicast(id, (struct sockaddr *)&none, NULL), EINVAL);
	REFUSED(rdma_leave_multicast(id, to), EADDRNOTAVAIL);
	struct rdma_cm_join_mc_attr_ex wrong = attr;
	wrong.comp_mask |= RDMA_CM_JOIN_MC_ATTR_RESERVED;
	REFUSED(rdma_join_multicast_ex(id, &wrong, NULL), EOPNOTSUPP);
	wrong.comp_mask = RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	REFUSED(rdma_join_multicast_ex(id, &wrong, NULL), EINVAL);
	wrong = attr, wrong.join_flags = RDMA_MC_JOIN_FLAG_RESERVED;
	REFUSED(rdma_join_multicast_ex(id, &wrong, NULL), EINVAL);
	/* A local wire has IPv4 addresses. */
	struct sockaddr_in6 of_ipv6 = { .sin6_family = AF_INET6 };
	CHECK(inet_pton(AF_INET6, "ff0e::1", &of_ipv6.sin6_addr) == 1);
	REFUSED(rdma_join_multicast(id, (struct sockaddr *)&of_ipv6, NULL), EOPNOTSUPP);
	CHECK(is_silent(channel));

	CHECK(!rdma_create_id(channel, &of_tcp, NULL, RDMA_PS_TCP) && !rdma_bind_addr(of_tcp, (struct sockaddr *)&unicast));
	REFUSED(rdma_join_multicast(of_tcp, to, NULL), EINVAL);
	CHECK(!rdma_destroy_id(of_tcp));

	/* An event that the program has not read goes with its join, or with its identifier. */
	CHECK(!rdma_join_multicast(id, to, NULL) && !rdma_leave_multicast(id, to) && is_silent(channel));
	REFUSED(rdma_leave_multicast(id, to), EADDRNOTAVAIL);
	CHECK(!rdma_join_multicast_ex(id, &attr, (void *)5));
	struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	CHECK(event->param.ud.private_data == (void *)5);
	rdma_ack_cm_event(event);
	CHECK(!rdma_join_multicast(id, (struct sockaddr *)&group, NULL) && !rdma_destroy_id(id));
	CHECK(is_silent(channel));
	rdma_destroy_event_channel(channel);
}

/* A synchronous identifier waits for the event of its join. */
static void synchronous(void)
{
	struct sockaddr_in group = address_of(GROUP, 0), own = address_of("127.0.0.1", 0);
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_UDP) && !rdma_bind_addr(id, (struct sockaddr *)&own));
	CHECK(!rdma_join_multicast(id, (struct sockaddr *)&group, NULL));
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_MULTICAST_JOIN && id->event->param.ud.qp_num == 0xffffff);
	CHECK(!rdma_leave_multicast(id, (struct sockaddr *)&group) && !rdma_destroy_id(id));
}

/* A member in a child. The parent says by a pipe what happens, and the child answers when it is done. */
static void child(int commands, int done)
{
	struct rdma_cm_id *id = member("127.0.0.1");
	struct ibv_ah *ah = NULL;
	char command;
	while (read(commands, &command, 1) == 1 && command != 'q') {
		switch (command) {
		case 'j':
			ah = join(id, GROUP, &ah);
			break;
		case 'r':
			receives(id, "to all");
			break;
		case 's':
			send_to(id, ah, 0xffffff, "to all");
			receives(id, "to all");
			break;
		case 'n':
			nothing_in(id->recv_cq);
			break;
		case 'l':
			leave(id, GROUP);
			break;
		}
		CHECK(write(done, &command, 1) == 1);
	}
	if (ah)
		CHECK(!ibv_destroy_ah(ah));
	leave_wire(id);
	_exit(0);
}

struct process {
	pid_t pid;
	int commands, done;
};

static struct process start(void)
{
	int commands[2], done[2];
	CHECK(!pipe(commands) && !pipe(done));
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		close(commands[1]);
		child(commands[0], done[1]);
	}
	close(commands[0]), close(done[1]);
	return (struct process){ pid, commands[1], done[0] };
}

static void tell(struct process *process, char command)
{
	char answer;
	CHECK(write(process->commands, &command, 1) == 1);
	CHECK(read(process->done, &answer, 1) == 1 && answer == command);
}

static void end(struct process *process)
{
	int status;
	/* A process that was made later also has the pipe, so closing it does not end the member. */
	CHECK(write(process->commands, "q", 1) == 1);
	CHECK(waitpid(process->pid, &status, 0) == process->pid && !status);
}

static void processes(void)
{
	struct process all[CHILDREN];
	/* The last child is made later, when the others have already sent. */
	for (int at = 0; at < CHILDREN; at++)
		all[at] = start();
	tell(&all[0], 'j'), tell(&all[1], 'j');
	/* The message reaches the members, once each, and not who has not joined. The sender is a member. */
	tell(&all[0], 's'), tell(&all[1], 'r'), tell(&all[0], 'n');
	tell(&all[2], 'n');
	tell(&all[2], 'j');
	tell(&all[0], 's'), tell(&all[1], 'r'), tell(&all[2], 'r');
	tell(&all[2], 's'), tell(&all[0], 'r'), tell(&all[1], 'r'), tell(&all[2], 'n');
	/* Who has left gets nothing more, and may join again. */
	tell(&all[1], 'l');
	tell(&all[0], 's'), tell(&all[2], 'r'), tell(&all[1], 'n');
	tell(&all[1], 'j');
	tell(&all[0], 's'), tell(&all[2], 'r'), tell(&all[1], 'r');
	/* A member that has ended is no obstacle. */
	end(&all[1]);
	tell(&all[0], 's'), tell(&all[2], 'r');
	tell(&all[2], 's'), tell(&all[0], 'r');
	/* A killed member leaves its socket behind. */
	CHECK(!kill(all[2].pid, SIGKILL) && waitpid(all[2].pid, NULL, 0) == all[2].pid);
	struct process late = start();
	tell(&late, 'j'), tell(&all[0], 's'), tell(&late, 'r');
	end(&all[0]), end(&late);
}

/* Two identifiers of one process. A message is for the members of its group, of which the sender need not be one. */
static void one_process(void)
{
	struct rdma_cm_id *receiver = member("127.0.0.1"), *sender;
	struct rdma_event_channel *of_receiver = channel;
	struct ibv_mr *of_memory = mr;
	struct ibv_ah *group = join(receiver, GROUP, NULL), *other = join(receiver, OTHER, NULL), *own;
	sender = member("127.0.0.1");
	/* A member that only sends gets nothing, even from others. */
	struct sockaddr_in address = address_of(GROUP, 0), third = address_of("239.1.2.5", 0);
	struct rdma_cm_join_mc_attr_ex attr = {
		.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER,
		.addr = (struct sockaddr *)&address,
	};
	CHECK(!rdma_join_multicast_ex(sender, &attr, NULL));
	pass_event(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
	own = join(sender, "239.1.2.5", NULL);
	/* A member receives its own messages. */
	send_to(sender, own, 0xffffff, "to oneself");
	receives(sender, "to oneself");
	send_to(sender, group, 0xffffff, "to the group");
	struct ibv_wc wc = receives(receiver, "to the group");
	CHECK(wc.src_qp == sender->qp->qp_num);
	send_to(sender, other, 0xffffff, "to the other");
	receives(receiver, "to the other");
	send_to(receiver, group, 0xffffff, "from the receiver");
	receives(receiver, "from the receiver");
	nothing_in(sender->recv_cq);
	nothing_in(receiver->recv_cq);
	CHECK(!rdma_leave_multicast(sender, (struct sockaddr *)&third) && !rdma_leave_multicast(sender, (struct sockaddr *)&address));
	CHECK(!ibv_destroy_ah(group) && !ibv_destroy_ah(other) && !ibv_destroy_ah(own));
	leave_wire(sender);
	channel = of_receiver, mr = of_memory;
	leave_wire(receiver);
}

/* Answers each question to the group, until the other end has said that it has both answers. */
static void receive_one(const char *host)
{
	struct rdma_cm_id *id = member(host);
	struct ibv_ah *group = join(id, GROUP, NULL);
	printf("ready\n");
	fflush(stdout);
	struct ibv_ah *back = NULL;
	for (;;) {
		struct ibv_wc wc = next_of(id->recv_cq);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len > GRH);
		const char *text = (char *)memory + wc.wr_id + GRH;
		if (!strcmp(text, "goodbye"))
			break;
		/* This end also receives its own answers. */
		int is_own = !strcmp(text, "answer to all");
		CHECK(is_own ? wc.src_qp == id->qp->qp_num : !strcmp(text, "question"));
		if (!back && !is_own)
			back = ibv_create_ah_from_wc(id->pd, &wc, (struct ibv_grh *)(memory + wc.wr_id), id->port_num);
		CHECK(back);
		struct ibv_sge sge = { (uintptr_t)(memory + wc.wr_id), ROOM, mr->lkey };
		struct ibv_recv_wr *bad, wr = { .wr_id = wc.wr_id, .sg_list = &sge, .num_sge = 1 };
		CHECK(!ibv_post_recv(id->qp, &wr, &bad));
		if (is_own)
			continue;
		send_to(id, back, wc.src_qp, "answer");
		send_to(id, group, 0xffffff, "answer to all");
	}
	CHECK(back && !ibv_destroy_ah(back) && !ibv_destroy_ah(group));
	leave_wire(id);
}

static void send_one(const char *host)
{
	struct rdma_cm_id *id = member(host);
	struct ibv_ah *group = join(id, GROUP, NULL);
	struct ibv_wc wc;
	int has_answer = 0, has_answer_to_all = 0;
	/* The answers have different ways: the one to this end may wait for the resolution of its address. Any message may
	 * be lost on a busy host. */
	for (time_t end = time(NULL) + 60; !has_answer || !has_answer_to_all;) {
		CHECK(time(NULL) < end);
		send_to(id, group, 0xffffff, "question");
		usleep(10000);
		while (ibv_poll_cq(id->recv_cq, 1, &wc) == 1) {
			CHECK(wc.status == IBV_WC_SUCCESS);
			const char *text = (char *)memory + wc.wr_id + GRH;
			int is_to_all = !strcmp(text, "answer to all"), is_answer = !strcmp(text, "answer");
			/* This end also receives its own questions. */
			CHECK(is_to_all || is_answer || (!strcmp(text, "question") && wc.src_qp == id->qp->qp_num));
			has_answer_to_all |= is_to_all, has_answer |= is_answer;
			struct ibv_sge sge = { (uintptr_t)(memory + wc.wr_id), ROOM, mr->lkey };
			struct ibv_recv_wr *bad, wr = { .wr_id = wc.wr_id, .sg_list = &sge, .num_sge = 1 };
			CHECK(!ibv_post_recv(id->qp, &wr, &bad));
		}
	}
	for (int times = 0; times < 50; times++) {
		send_to(id, group, 0xffffff, "goodbye");
		usleep(10000);
	}
	CHECK(!ibv_destroy_ah(group));
	leave_wire(id);
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "receiver")) {
		receive_one(argv[2]);
	} else if (argc > 2) {
		send_one(argv[2]);
	} else {
		/* The children are made before this process uses the library. */
		processes();
		refusals();
		synchronous();
		one_process();
	}
	return 0;
}
