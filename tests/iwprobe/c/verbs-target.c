/*
 * The target of iwprobe over libibverbs and librdmacm, for any RDMA device with iWARP, for example Linux's
 * siw. ../TARGET.md specifies the scenes that the target receives, what it does, and what it reports.
 *
 *   verbs-target listen ADDR PORT     serves connections one after another until it is killed
 *   verbs-target connect ADDR PORT    connects repeatedly until the probe sends `bye`
 *
 * The target has one thread, serves one connection at a time, and limits most waits. Each connection has its
 * own `struct conn`, whose objects are destroyed before the next connection begins. The target prints a line
 * for each scene and each report, for people to read.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "scene.h"
#include "text.h"

enum {
	MAX_WAITING = 16,	/* maximum number of connect requests that wait to be served */
	PAGE = 4096,
	SOURCE = 100,		/* the pattern of the bytes that the target sends and writes */
	/* All following times are in milliseconds. */
	TICK = 5,		/* maximum time between two polls of the completion queue */
	OLD = 1000,		/* time for the present connection to end after a new connect request */
	IDLE = 20000,		/* time without activity after which the target ends a connection */
	DRAIN = 300,		/* maximum wait for flushed completions after the end of a connection */
	STEP = 10000,		/* maximum wait for one event of the connection manager */
	AGAIN = 20,		/* pause before the next connection of a target that connects */
	REFUSED = 10000,	/* time of refused TCP connections after which the target exits */
};

/* A piece of memory, and its registration if it is registered. */
struct buffer {
	uint8_t *bytes;
	size_t length;
	struct ibv_mr *mr;
};

/*
 * The place and the length of a posted receive. Its wr_id is RECV_ID plus its index among the posted
 * receives.
 */
struct receive {
	uint64_t at;
	uint32_t length;
};

enum { RECV_ID = 1000, STAGE_ID = 999 };

struct conn {
	struct rdma_cm_id *id;
	struct scene scene;
	struct ibv_pd *pd, *other_pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct buffer regions[MAX_MR], receives, source, sinks, stage;
	struct receive posted[MAX_RECV * MAX_RECV_EACH];
	int posted_count, received, sent;	/* receives posted; completed receives; completed operations */
	int outstanding;			/* number of requests that have not completed */
	int next_op;				/* the first operation that was not posted */
	int unposted, flushed, events;
	uint64_t until;				/* without activity, the target ends the connection then */
	bool established, over, failed, disconnected;
	struct text completions;		/* the words of completions for the report, in order */
	bool more;
};

/* A connect request that waits to be served. */
struct request {
	struct rdma_cm_id *id;
	struct rdma_conn_param param;
	struct text text;
};

static struct rdma_event_channel *cm;
static struct request waiting[MAX_WAITING];
static int waiting_count;
static struct text last_report;

/* ---- small things --------------------------------------------------------------------------------------------- */

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void die(const char *what)
{
	fprintf(stderr, "verbs-target: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint32_t crc32c(const uint8_t *bytes, size_t length)
{
	uint32_t crc = ~0u;

	while (length--) {
		crc ^= *bytes++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

static uint8_t pattern(unsigned k, uint64_t i)
{
	return (uint8_t)(i + 7 * (i / 256) + 59 * k + 13);
}

static bool allocate(struct buffer *buffer, size_t length)
{
	void *bytes;

	if (posix_memalign(&bytes, PAGE, (length + PAGE) / PAGE * PAGE))
		return false;
	memset(bytes, 0, (length + PAGE) / PAGE * PAGE);
	buffer->bytes = bytes;
	buffer->length = length;
	return true;
}

static void fill(struct buffer *buffer, unsigned k)
{
	for (size_t i = 0; i < buffer->length; i++)
		buffer->bytes[i] = pattern(k, i);
}

static bool registered(struct buffer *buffer, struct ibv_pd *pd, int access)
{
	buffer->mr = ibv_reg_mr(pd, buffer->bytes, buffer->length ? buffer->length : 1, access);
	return buffer->mr;
}

static void release(struct buffer *buffer)
{
	if (buffer->mr)
		ibv_dereg_mr(buffer->mr);
	free(buffer->bytes);
	memset(buffer, 0, sizeof *buffer);
}

/* ---- a connection's objects ----------------------------------------------------------------------------------- */

/*
 * Makes the objects of each connection: a protection domain, a completion queue with its channel, and a queue
 * pair.
 */
static bool make_queues(struct conn *conn)
{
	struct ibv_context *verbs = conn->id->verbs;
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = MAX_OPS + 2, .max_recv_wr = MAX_RECV * MAX_RECV_EACH,
			 .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};

	conn->pd = ibv_alloc_pd(verbs);
	conn->channel = ibv_create_comp_channel(verbs);
	if (!conn->pd || !conn->channel || fcntl(conn->channel->fd, F_SETFL, O_NONBLOCK) < 0 ||
	    fcntl(verbs->async_fd, F_SETFL, O_NONBLOCK) < 0)
		return false;
	conn->cq = ibv_create_cq(verbs, MAX_OPS + 2 + MAX_RECV * MAX_RECV_EACH, NULL, conn->channel, 0);
	if (!conn->cq)
		return false;
	init.send_cq = init.recv_cq = conn->cq;
	return !rdma_create_qp(conn->id, conn->pd, &init) && allocate(&conn->source, MAX_LEN) &&
	       registered(&conn->source, conn->pd, 0) && allocate(&conn->stage, MAX_TEXT) &&
	       registered(&conn->stage, conn->pd, 0);
}

static int access_of(const struct region_words *words)
{
	return (words->read ? IBV_ACCESS_REMOTE_READ : 0) |
	       (words->write ? IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE : 0) |
	       (words->atomic ? IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_LOCAL_WRITE : 0);
}

/*
 * Registers the region of a word `mr`, and adds its word to the stage. These verbs cannot bind a region to a
 * queue pair, so the word for the scopes `q` and `o` is `stag=-`.
 */
static bool make_region(struct conn *conn, int k, struct text *stage)
{
	const struct region_words *words = &conn->scene.regions[k];
	struct buffer *buffer = &conn->regions[k];
	struct ibv_pd *pd = conn->pd;

	if (!allocate(buffer, words->length))
		return false;
	fill(buffer, (unsigned)k);
	if (words->scope == 'x') {
		if (!conn->other_pd && !(conn->other_pd = ibv_alloc_pd(conn->id->verbs)))
			return false;
		pd = conn->other_pd;
	}
	if ((words->scope == 'q' || words->scope == 'o') || !registered(buffer, pd, access_of(words)))
		return say(stage, " stag=-");
	if (!say(stage, " stag=%x:%llx:%u", buffer->mr->rkey, (unsigned long long)(uintptr_t)buffer->bytes,
		 words->length))
		return false;
	if (words->scope == 'z') {
		ibv_dereg_mr(buffer->mr);
		buffer->mr = NULL;
	}
	return true;
}

static bool post_receives(struct conn *conn)
{
	const struct scene *scene = &conn->scene;
	size_t total = 0;

	for (int w = 0; w < scene->receive_count; w++)
		total += (size_t)scene->receives[w].count * scene->receives[w].length;
	if (!allocate(&conn->receives, total) || !registered(&conn->receives, conn->pd, IBV_ACCESS_LOCAL_WRITE))
		return false;
	total = 0;
	for (int w = 0; w < scene->receive_count; w++) {
		for (int i = 0; i < scene->receives[w].count; i++) {
			struct receive *receive = &conn->posted[conn->posted_count];
			struct ibv_sge sge = { (uintptr_t)conn->receives.bytes + total,
					       scene->receives[w].length, conn->receives.mr->lkey };
			struct ibv_recv_wr *bad, wr = { .wr_id = RECV_ID + (uint64_t)conn->posted_count,
							.sg_list = &sge, .num_sge = sge.length ? 1 : 0 };

			*receive = (struct receive){ total, sge.length };
			if (ibv_post_recv(conn->id->qp, &wr, &bad)) {
				/*
				 * libsiw refuses a receive without elements, but accepts an element without
				 * bytes.
				 */
				wr.num_sge = 1;
				if (ibv_post_recv(conn->id->qp, &wr, &bad))
					return false;
			}
			conn->posted_count++;
			conn->outstanding++;
			total += sge.length;
		}
	}
	return true;
}

/* Prepares all that a scene requests, except the operations, and adds the words of the regions to `stage`. */
static bool set_up(struct conn *conn, struct text *stage)
{
	const struct scene *scene = &conn->scene;
	size_t sinks = scene->op_count ? scene->ops[scene->op_count - 1].at + scene->ops[scene->op_count - 1].length : 0;

	fill(&conn->source, SOURCE);
	for (int k = 0; k < scene->region_count; k++) {
		if (!make_region(conn, k, stage))
			return false;
	}
	return allocate(&conn->sinks, sinks) && registered(&conn->sinks, conn->pd, IBV_ACCESS_LOCAL_WRITE) &&
	       post_receives(conn) && !ibv_req_notify_cq(conn->cq, scene->solicited);
}

static void tear_down(struct conn *conn)
{
	if (conn->id && conn->id->qp)
		rdma_destroy_qp(conn->id);
	release(&conn->source);
	release(&conn->sinks);
	release(&conn->stage);
	release(&conn->receives);
	for (int k = 0; k < MAX_MR; k++)
		release(&conn->regions[k]);
	if (conn->cq)
		ibv_destroy_cq(conn->cq);
	if (conn->channel)
		ibv_destroy_comp_channel(conn->channel);
	if (conn->other_pd)
		ibv_dealloc_pd(conn->other_pd);
	if (conn->pd)
		ibv_dealloc_pd(conn->pd);
	if (conn->id)
		rdma_destroy_id(conn->id);
	memset(conn, 0, sizeof *conn);
}

/* ---- operations and completions ------------------------------------------------------------------------------- */

static bool post_op(struct conn *conn, int index)
{
	const struct op *op = &conn->scene.ops[index];
	uint32_t peer_stag = conn->scene.peer_stag;
	uint64_t peer_to = conn->scene.peer_to + op->offset;
	bool sink = strchr("rfc", op->kind);
	struct ibv_sge sge = { (uintptr_t)conn->source.bytes, op->length, conn->source.mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = (uint64_t)index, .sg_list = &sge, .num_sge = 1 };

	if (sink)
		sge = (struct ibv_sge){ (uintptr_t)conn->sinks.bytes + op->at, op->length, conn->sinks.mr->lkey };
	else if (!op->length)
		wr.num_sge = 0;
	wr.send_flags = IBV_SEND_SIGNALED | (op->fenced ? IBV_SEND_FENCE : 0) |
			(strchr("ej", op->kind) ? IBV_SEND_SOLICITED : 0);
	/* libsiw reads the STag to invalidate from here, and not from `invalidate_rkey`. */
	wr.wr.rdma.rkey = peer_stag;
	wr.wr.rdma.remote_addr = peer_to;
	switch (op->kind) {
	case 'w': wr.opcode = IBV_WR_RDMA_WRITE; break;
	case 'r': wr.opcode = IBV_WR_RDMA_READ; break;
	case 's': case 'e': wr.opcode = IBV_WR_SEND; break;
	case 'i': case 'j':
		wr.opcode = IBV_WR_SEND_WITH_INV;
		wr.invalidate_rkey = peer_stag;
		break;
	case 'm':
		wr.opcode = IBV_WR_SEND_WITH_IMM;
		wr.imm_data = htonl(0x01020304);
		break;
	default:
		wr.opcode = op->kind == 'f' ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
		wr.wr.atomic.remote_addr = peer_to;
		wr.wr.atomic.rkey = peer_stag;
		wr.wr.atomic.compare_add = op->kind == 'f';
		wr.wr.atomic.swap = 1;
	}
	return !ibv_post_send(conn->id->qp, &wr, &bad);
}

/*
 * Posts the operations before `end` that are not posted yet. After a refused operation, no later operation is
 * posted.
 */
static void post_ops(struct conn *conn, int end)
{
	for (; conn->next_op < end && !conn->unposted; conn->next_op++) {
		if (post_op(conn, conn->next_op))
			conn->outstanding++;
		else
			conn->unposted = conn->scene.op_count - conn->next_op;
	}
}

/* Sends the stage or the report as a Send. Only a target that connects calls this function. */
static bool send_text(struct conn *conn, const struct text *text)
{
	struct ibv_sge sge = { (uintptr_t)conn->stage.bytes, (uint32_t)text->length, conn->stage.mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = STAGE_ID, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					.send_flags = IBV_SEND_SIGNALED };

	memcpy(conn->stage.bytes, text->bytes, text->length);
	conn->outstanding++;
	return !ibv_post_send(conn->id->qp, &wr, &bad);
}

static void tell_receive(struct conn *conn, const struct ibv_wc *wc)
{
	const struct receive *receive = &conn->posted[wc->wr_id - RECV_ID];
	uint32_t length = wc->byte_len < receive->length ? wc->byte_len : receive->length;
	uint32_t crc = 0;
	char kind = 'R';

	if (wc->status == IBV_WC_SUCCESS)
		crc = crc32c(conn->receives.bytes + receive->at, length);
	else
		length = 0;
	if (wc->wc_flags & IBV_WC_WITH_IMM) {
		kind = 'I';
		crc = length ? crc : ntohl(wc->imm_data);
	} else if (wc->wc_flags & IBV_WC_WITH_INV) {
		kind = 'V';
	}
	conn->more |= !say(&conn->completions, " c=%c:%d:%u:%x", kind, wc->status, length, crc);
	if (kind == 'V')
		conn->more |= !say(&conn->completions, " inv=%x", wc->invalidated_rkey);
}

static void tell_op(struct conn *conn, const struct ibv_wc *wc)
{
	const struct op *op = &conn->scene.ops[wc->wr_id];
	bool filled = op->kind == 'r' && wc->status == IBV_WC_SUCCESS;

	conn->more |= !say(&conn->completions, " c=%c:%d:%u:%x", op->kind, wc->status, filled ? op->length : 0,
			   filled ? crc32c(conn->sinks.bytes + op->at, op->length) : 0);
}

/* Polls and handles all completions. Returns whether there were any. */
static bool take_completions(struct conn *conn)
{
	struct ibv_wc wc;
	bool any = false;

	while (ibv_poll_cq(conn->cq, 1, &wc) > 0) {
		bool is_receive = wc.wr_id >= RECV_ID, is_stage = wc.wr_id == STAGE_ID;

		any = true;
		conn->outstanding--;
		conn->failed |= wc.status != IBV_WC_SUCCESS && wc.status != IBV_WC_WR_FLUSH_ERR;
		if (wc.status == IBV_WC_WR_FLUSH_ERR) {
			conn->flushed += !is_stage;
			conn->over = true;
		} else if (is_stage) {
			continue;
		} else if (is_receive) {
			tell_receive(conn, &wc);
			conn->received++;
		} else {
			tell_op(conn, &wc);
			conn->sent++;
		}
	}
	return any;
}

static void take_channel_events(struct conn *conn)
{
	struct ibv_cq *cq;
	void *context;
	unsigned taken = 0;

	while (!ibv_get_cq_event(conn->channel, &cq, &context))
		taken++;
	if (!taken)
		return;
	ibv_ack_cq_events(conn->cq, taken);
	conn->events += (int)taken;
	ibv_req_notify_cq(conn->cq, conn->scene.solicited);
}

static void take_async_events(struct conn *conn)
{
	struct ibv_async_event event;

	while (!ibv_get_async_event(conn->id->verbs, &event)) {
		switch (event.event_type) {
		case IBV_EVENT_QP_FATAL:
		case IBV_EVENT_QP_REQ_ERR:
		case IBV_EVENT_QP_ACCESS_ERR:
			if (event.element.qp == conn->id->qp)
				conn->failed = conn->over = true;
			break;
		default:
			break;
		}
		ibv_ack_async_event(&event);
	}
}

/* ---- events of the connection manager ------------------------------------------------------------------------- */

/*
 * Handles one event of the connection manager, and waits at most `limit` ms for the event. Queues a connect
 * request in `waiting`. Returns the event of `of`, or -1 if there was no event of `of`.
 */
static int cm_event(int limit, const struct rdma_cm_id *of, int *status, struct text *private)
{
	struct pollfd fd = { cm->fd, POLLIN, 0 };
	struct rdma_cm_event *event;
	int kind = -1;

	if (poll(&fd, 1, limit) <= 0 || rdma_get_cm_event(cm, &event))
		return -1;
	if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		if (waiting_count == MAX_WAITING) {
			rdma_reject(event->id, NULL, 0);
			rdma_destroy_id(event->id);
		} else {
			struct request *request = &waiting[waiting_count++];

			request->id = event->id;
			request->param = event->param.conn;
			take_text(&request->text, event->param.conn.private_data, event->param.conn.private_data_len);
		}
	} else if (event->id == of) {
		kind = (int)event->event;
		*status = event->status;
		if (private)
			take_text(private, event->param.conn.private_data, event->param.conn.private_data_len);
	}
	rdma_ack_cm_event(event);
	return kind;
}

/*
 * Waits for the next event of `of`. Returns false if this is not the event `wanted`, or if no event arrives.
 */
static bool await_event(const struct rdma_cm_id *of, int wanted, int *got, int *status, struct text *private)
{
	uint64_t deadline = now_ms() + STEP, now;

	while ((now = now_ms()) < deadline) {
		*got = cm_event((int)(deadline - now), of, status, private);
		if (*got >= 0)
			return *got == wanted;
	}
	return false;
}

/* ---- the life of a connection --------------------------------------------------------------------------------- */

/*
 * Posts the operations, and handles completions and events until the connection has ended or a time limit is
 * over.
 */
static void attend(struct conn *conn)
{
	bool closing = false;
	uint64_t limit = 0;

	conn->until = now_ms() + IDLE;
	if (conn->established)
		post_ops(conn, conn->scene.then_from);
	while (!conn->disconnected && now_ms() < conn->until) {
		struct pollfd fds[] = { { cm->fd, POLLIN, 0 }, { conn->channel->fd, POLLIN, 0 },
					{ conn->id->verbs->async_fd, POLLIN, 0 } };
		int kind, status, before = waiting_count;

		poll(fds, 3, TICK);
		while ((kind = cm_event(0, conn->id, &status, NULL)) >= 0) {
			conn->until = now_ms() + IDLE;
			if (kind == RDMA_CM_EVENT_ESTABLISHED && !conn->established) {
				conn->established = true;
				post_ops(conn, conn->scene.then_from);
			} else if (kind != RDMA_CM_EVENT_ESTABLISHED) {
				conn->disconnected = true;
			}
		}
		take_channel_events(conn);
		take_async_events(conn);
		if (take_completions(conn))
			conn->until = now_ms() + IDLE;
		if (conn->received && conn->established)
			post_ops(conn, conn->scene.op_count);
		if (conn->scene.close && !closing && conn->received && conn->sent == conn->scene.op_count) {
			closing = true;
			rdma_disconnect(conn->id);
		}
		/*
		 * If another request waits, or no more completions can arrive, the connection gets little
		 * time to end.
		 */
		if (!limit && (conn->over || waiting_count > before || waiting_count))
			limit = now_ms() + OLD;
		if (limit && limit < conn->until)
			conn->until = limit;
	}
}

/* Ends a connection if it has not ended yet, and makes its report. */
static void conclude(struct conn *conn)
{
	struct text *report = &last_report;
	uint64_t deadline;
	bool was_over = conn->disconnected || conn->over || conn->failed;

	/* After the end, all outstanding requests complete as flushed. */
	if (conn->established)
		rdma_disconnect(conn->id);
	deadline = now_ms() + DRAIN;
	while (conn->outstanding > 0 && now_ms() < deadline) {
		if (!take_completions(conn))
			usleep(1000);
	}
	take_channel_events(conn);
	take_async_events(conn);
	report->length = 0;
	say(report, "iwp1 report end=%s",
	    !conn->established ? "refused" : !was_over ? "open" : conn->failed ? "error" : "close");
	if (conn->flushed)
		say(report, " flush=%d", conn->flushed);
	if (conn->unposted)
		say(report, " post=%d", conn->unposted);
	if (conn->scene.solicited)
		say(report, " event=%d", conn->events);
	conn->more |= !say(report, "%s", conn->completions.bytes);
	for (int k = 0; k < conn->scene.region_count; k++) {
		const struct buffer *region = &conn->regions[k];
		size_t from = 0, to = region->length;

		while (from < to && region->bytes[from] == pattern((unsigned)k, from))
			from++;
		while (to > from && region->bytes[to - 1] == pattern((unsigned)k, to - 1))
			to--;
		if (from < to)
			conn->more |= !say(report, " d=%d:%zu+%zu:%x", k, from, to - from,
					   crc32c(region->bytes + from, to - from));
	}
	/* If the word `more` does not fit, words at the end of the report are removed until it fits. */
	while (conn->more && !say(report, " more")) {
		char *space = strrchr(report->bytes, ' ');

		*space = 0;
		report->length = (size_t)(space - report->bytes);
	}
	printf("report: %s\n", report->bytes);
}

static int least(int a, int b)
{
	return a < b ? a : b;
}

/* Serves one connect request, from its scene to the end of its connection. */
static void serve(const struct request *request)
{
	static struct conn conn;
	struct rdma_conn_param param = { 0 };
	struct ibv_device_attr device;
	struct text answer = { .length = 0 };
	char bad[MAX_WORD];

	printf("scene: %s\n", request->text.bytes);
	memset(&conn, 0, sizeof conn);
	conn.id = request->id;
	say(&answer, "iwp1");
	if (!parse(&conn.scene, &request->text, bad)) {
		say(&answer, " bad %s", bad);
		rdma_reject(conn.id, answer.bytes, (uint8_t)answer.length);
	} else if (conn.scene.reject) {
		say(&answer, " no");
		rdma_reject(conn.id, answer.bytes, (uint8_t)answer.length);
		last_report.length = 0;
		say(&last_report, "iwp1 report end=refused");
	} else if (ibv_query_device(conn.id->verbs, &device) || !make_queues(&conn) || !set_up(&conn, &answer)) {
		fprintf(stderr, "verbs-target: setting up '%s': %s\n", request->text.bytes, strerror(errno));
		rdma_reject(conn.id, "iwp1 bad", 8);
	} else {
		if (conn.scene.report)
			answer = last_report;
		if (strncmp(request->text.bytes, "iwp1", 4))
			answer.length = 0;
		param.responder_resources = (uint8_t)least(least(request->param.responder_resources,
								 device.max_qp_rd_atom), 255);
		param.initiator_depth = (uint8_t)least(least(request->param.initiator_depth,
							     device.max_qp_init_rd_atom), 255);
		if (conn.scene.ird >= 0)
			param.responder_resources = (uint8_t)least(conn.scene.ird, 255);
		if (conn.scene.ord >= 0)
			param.initiator_depth = (uint8_t)least(conn.scene.ord, 255);
		param.private_data = answer.bytes;
		param.private_data_len = (uint8_t)answer.length;
		if (!rdma_accept(conn.id, &param))
			attend(&conn);
		if (!conn.scene.report)
			conclude(&conn);
	}
	tear_down(&conn);
}

static __attribute__((noreturn)) void listen_on(struct sockaddr *address)
{
	struct rdma_cm_id *listener;

	if (rdma_create_id(cm, &listener, NULL, RDMA_PS_TCP) || rdma_bind_addr(listener, address))
		die("bind");
	if (rdma_listen(listener, MAX_WAITING))
		die("listen");
	printf("verbs-target: listening on port %u\n", ntohs(rdma_get_src_port(listener)));
	for (;;) {
		struct request request;
		int status;

		while (!waiting_count)
			cm_event(STEP, NULL, &status, NULL);
		request = waiting[0];
		memmove(waiting, waiting + 1, (size_t)--waiting_count * sizeof waiting[0]);
		serve(&request);
	}
}

enum outcome { DONE, GOING_ON, NOBODY };

/* Makes and serves one connection of a target that connects. */
static enum outcome reach(struct sockaddr *address)
{
	static const char hello[] = "iwp1 hello";
	static struct conn conn;
	struct rdma_conn_param param = { .private_data = hello, .private_data_len = sizeof hello - 1 };
	struct ibv_device_attr device;
	struct text said = { .length = 0 }, stage = { .length = 0 };
	char bad[MAX_WORD];
	int got = -1, status = 0;
	enum outcome outcome = GOING_ON;

	memset(&conn, 0, sizeof conn);
	if (rdma_create_id(cm, &conn.id, NULL, RDMA_PS_TCP))
		die("rdma_create_id");
	if (rdma_resolve_addr(conn.id, NULL, address, STEP) ||
	    !await_event(conn.id, RDMA_CM_EVENT_ADDR_RESOLVED, &got, &status, NULL) ||
	    rdma_resolve_route(conn.id, STEP) ||
	    !await_event(conn.id, RDMA_CM_EVENT_ROUTE_RESOLVED, &got, &status, NULL) ||
	    ibv_query_device(conn.id->verbs, &device) || !make_queues(&conn)) {
		tear_down(&conn);
		return NOBODY;
	}
	param.responder_resources = (uint8_t)least(device.max_qp_rd_atom, 255);
	param.initiator_depth = (uint8_t)least(device.max_qp_init_rd_atom, 255);
	if (rdma_connect(conn.id, &param)) {
		outcome = errno == ECONNREFUSED ? NOBODY : GOING_ON;
	} else if (await_event(conn.id, RDMA_CM_EVENT_ESTABLISHED, &got, &status, &said)) {
		conn.established = true;
	}
	if (!strcmp(said.bytes, "iwp1 bye"))
		outcome = DONE;
	printf("scene: %s\n", conn.established ? said.bytes : "(not established)");
	say(&stage, "iwp1");
	if (conn.established && outcome == GOING_ON) {
		bool scene = !strncmp(said.bytes, "iwp1", 4), ready = true;

		if (!parse(&conn.scene, &said, bad)) {
			say(&stage, " bad %s", bad);
			memset(&conn.scene, 0, sizeof conn.scene);
		} else {
			ready = set_up(&conn, &stage);
		}
		if (conn.scene.report)
			stage = last_report;
		if (!ready || (scene && !send_text(&conn, &stage)))
			conn.failed = true;
		attend(&conn);
	}
	/* If nobody listens, there is no connection to report. */
	if (outcome == GOING_ON && !conn.scene.report)
		conclude(&conn);
	tear_down(&conn);
	return outcome;
}

static int connect_to(struct sockaddr *address)
{
	uint64_t refused_since = 0;

	for (;;) {
		switch (reach(address)) {
		case DONE:
			return 0;
		case GOING_ON:
			refused_since = 0;
			break;
		case NOBODY:
			if (!refused_since)
				refused_since = now_ms();
			if (now_ms() - refused_since > REFUSED) {
				fprintf(stderr, "verbs-target: nobody listens there\n");
				return 1;
			}
		}
		usleep(AGAIN * 1000);
	}
}

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST },
			*address;
	bool listens = argc == 4 && !strcmp(argv[1], "listen");

	if (!listens && (argc != 4 || strcmp(argv[1], "connect"))) {
		fprintf(stderr, "usage: verbs-target listen|connect ADDR PORT\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (getaddrinfo(argv[2], argv[3], &hints, &address)) {
		fprintf(stderr, "verbs-target: '%s' and '%s' are no address and port\n", argv[2], argv[3]);
		return 2;
	}
	cm = rdma_create_event_channel();
	if (!cm)
		die("no RDMA connection manager");
	if (listens)
		listen_on(address->ai_addr);
	return connect_to(address->ai_addr);
}
