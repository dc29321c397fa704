/*
 * Tests which changes of state ibv_modify_qp allows, and with which attributes. The program connects some
 * queue pairs itself, and the other queue pairs belong to identifiers. Also tests that attributes are kept.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <string.h>

#include "common.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;

enum {
	TO_INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
		 IBV_QP_MIN_RNR_TIMER,
	TO_RTS = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
};

static struct ibv_qp_attr attr_of(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {
		.qp_state = state,
		.cur_qp_state = IBV_QPS_RESET,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
		.path_mtu = IBV_MTU_2048,
		.dest_qp_num = qp->qp_num,
		.rq_psn = 17,
		.max_dest_rd_atomic = 3,
		.min_rnr_timer = 9,
		.timeout = 13,
		.retry_cnt = 6,
		.rnr_retry = 5,
		.sq_psn = 23,
		.max_rd_atomic = 2,
		.ah_attr = { .is_global = 1, .port_num = 1, .sl = 4 },
	};
	CHECK(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
	return attr;
}

static int modify(struct ibv_qp *qp, enum ibv_qp_state state, int mask)
{
	struct ibv_qp_attr attr = attr_of(qp, state);
	return ibv_modify_qp(qp, &attr, mask);
}

static struct ibv_qp *make(void)
{
	struct ibv_qp_init_attr init = qp_init(cq, NULL, 1);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	return qp;
}

/* Makes a queue pair for an out-of-band connection, and moves the queue pair to this state. */
static struct ibv_qp *in(enum ibv_qp_state state)
{
	struct ibv_qp *qp = make();
	if (state == IBV_QPS_ERR)
		CHECK(!modify(qp, state, IBV_QP_STATE));
	if (state >= IBV_QPS_INIT && state <= IBV_QPS_SQD)
		CHECK(!modify(qp, IBV_QPS_INIT, TO_INIT));
	if (state >= IBV_QPS_RTR && state <= IBV_QPS_SQD)
		CHECK(!modify(qp, IBV_QPS_RTR, TO_RTR));
	if (state >= IBV_QPS_RTS && state <= IBV_QPS_SQD)
		CHECK(!modify(qp, IBV_QPS_RTS, TO_RTS));
	if (state == IBV_QPS_SQD)
		CHECK(!modify(qp, IBV_QPS_SQD, IBV_QP_STATE));
	CHECK(state_of(qp) == state && qp->state == state);
	return qp;
}

/* The attributes of a change: `must` are required, `may` are optional. */
static const struct {
	enum ibv_qp_state from, to;
	int must, may;
} changes[] = {
	{ IBV_QPS_RESET, IBV_QPS_INIT, TO_INIT, 0 },
	{ IBV_QPS_INIT, IBV_QPS_INIT, IBV_QP_STATE, TO_INIT },
	{ IBV_QPS_INIT, IBV_QPS_RTR, TO_RTR, IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_ALT_PATH },
	{ IBV_QPS_RTR, IBV_QPS_RTS, TO_RTS,
	  IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE },
	{ IBV_QPS_RTS, IBV_QPS_RTS, IBV_QP_STATE,
	  IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE },
	{ IBV_QPS_RTS, IBV_QPS_SQD, IBV_QP_STATE, IBV_QP_EN_SQD_ASYNC_NOTIFY },
	{ IBV_QPS_SQD, IBV_QPS_RTS, IBV_QP_STATE,
	  IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE },
	{ IBV_QPS_RTS, IBV_QPS_ERR, IBV_QP_STATE, 0 },
	{ IBV_QPS_RTS, IBV_QPS_RESET, IBV_QP_STATE, 0 },
	{ IBV_QPS_SQD, IBV_QPS_SQD, IBV_QP_STATE, IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_MIN_RNR_TIMER },
};

static void table(void)
{
	for (size_t i = 0; i < sizeof(changes) / sizeof(*changes); i++) {
		struct ibv_qp *qp = in(changes[i].from);
		/*
		 * A change fails if a required attribute is missing from the mask, or if the mask also has an
		 * attribute that is not allowed.
		 */
		for (int bit = 1; bit <= IBV_QP_PATH_MIG_STATE; bit <<= 1) {
			int mask = changes[i].must & ~bit;
			if (!(changes[i].must & bit) || bit == IBV_QP_STATE)
				continue;
			CHECK(modify(qp, changes[i].to, mask) == EINVAL && state_of(qp) == changes[i].from);
		}
		if (changes[i].from != IBV_QPS_SQD || changes[i].to != IBV_QPS_SQD)
			CHECK(modify(qp, changes[i].to, changes[i].must | changes[i].may | IBV_QP_QKEY) == EINVAL);
		CHECK(state_of(qp) == changes[i].from);
		CHECK(!modify(qp, changes[i].to, changes[i].must | changes[i].may));
		CHECK(state_of(qp) == changes[i].to && qp->state == changes[i].to);
		CHECK(!ibv_destroy_qp(qp));
	}
	/* Programs for iWARP enter INIT with the access flags only. */
	struct ibv_qp *qp = in(IBV_QPS_RESET);
	CHECK(!modify(qp, IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS) && state_of(qp) == IBV_QPS_INIT);
	CHECK(!ibv_destroy_qp(qp));
}

/* Tests that all other changes are refused and have no effect. */
static void others(void)
{
	for (enum ibv_qp_state from = IBV_QPS_RESET; from <= IBV_QPS_ERR; from++) {
		if (from == IBV_QPS_SQE)
			continue;
		for (enum ibv_qp_state to = IBV_QPS_INIT; to <= IBV_QPS_SQE; to++) {
			int is_in_table = 0;
			for (size_t i = 0; i < sizeof(changes) / sizeof(*changes); i++)
				is_in_table |= changes[i].from == from && changes[i].to == to;
			if (is_in_table)
				continue;
			struct ibv_qp *qp = in(from);
			CHECK(modify(qp, to, IBV_QP_STATE) == EINVAL);
			CHECK(modify(qp, to, IBV_QP_STATE | TO_RTS) == EINVAL);
			CHECK(state_of(qp) == from && !ibv_destroy_qp(qp));
		}
		/* ERR and RESET can be entered from every state, without other attributes. */
		struct ibv_qp *qp = in(from);
		CHECK(modify(qp, IBV_QPS_ERR, IBV_QP_STATE | IBV_QP_TIMEOUT) == EINVAL);
		CHECK(modify(qp, IBV_QPS_RESET, IBV_QP_STATE | IBV_QP_TIMEOUT) == EINVAL);
		CHECK(modify(qp, IBV_QPS_UNKNOWN, IBV_QP_STATE) == EOPNOTSUPP && state_of(qp) == from);
		CHECK(!modify(qp, IBV_QPS_ERR, IBV_QP_STATE) && state_of(qp) == IBV_QPS_ERR);
		CHECK(!modify(qp, IBV_QPS_ERR, IBV_QP_STATE) && state_of(qp) == IBV_QPS_ERR);
		CHECK(!modify(qp, IBV_QPS_RESET, IBV_QP_STATE) && state_of(qp) == IBV_QPS_RESET);
		CHECK(!modify(qp, IBV_QPS_INIT, TO_INIT) && !ibv_destroy_qp(qp));
	}
}

/* A reset drops unpolled completions. Completions after the reset are not dropped. */
static void forgotten(void)
{
	struct ibv_qp *qp = in(IBV_QPS_INIT);
	struct ibv_recv_wr *bad, wr = { .wr_id = 8 };
	struct ibv_wc wc;
	CHECK(!ibv_post_recv(qp, &wr, &bad) && !modify(qp, IBV_QPS_ERR, IBV_QP_STATE));
	CHECK(!modify(qp, IBV_QPS_RESET, IBV_QP_STATE));
	CHECK(!modify(qp, IBV_QPS_INIT, TO_INIT));
	wr.wr_id = 9;
	CHECK(!ibv_post_recv(qp, &wr, &bad) && !modify(qp, IBV_QPS_ERR, IBV_QP_STATE));
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 9 && wc.status == IBV_WC_WR_FLUSH_ERR);
	CHECK(wc.qp_num == qp->qp_num && !ibv_poll_cq(cq, 1, &wc) && !ibv_destroy_qp(qp));
}

/* Tests values that the device does not support, and the current state that a program passes. */
static void values(void)
{
	struct ibv_qp *qp = in(IBV_QPS_RESET);
	struct ibv_qp_attr attr = attr_of(qp, IBV_QPS_INIT);
	attr.port_num = 2;
	CHECK(ibv_modify_qp(qp, &attr, TO_INIT) == EINVAL);
	/* Programs also pass access flags for memory, which do not concern the peer. */
	attr = attr_of(qp, IBV_QPS_INIT);
	attr.qp_access_flags |= IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
	CHECK(!ibv_modify_qp(qp, &attr, TO_INIT) && !modify(qp, IBV_QPS_RESET, IBV_QP_STATE));
	attr = attr_of(qp, IBV_QPS_INIT);
	attr.pkey_index = 1;
	CHECK(ibv_modify_qp(qp, &attr, TO_INIT) == EINVAL && state_of(qp) == IBV_QPS_RESET);
	CHECK(!ibv_destroy_qp(qp));
	qp = in(IBV_QPS_RTR);
	attr = attr_of(qp, IBV_QPS_RTS);
	CHECK(ibv_modify_qp(qp, &attr, TO_RTS | IBV_QP_CUR_STATE) == EINVAL && state_of(qp) == IBV_QPS_RTR);
	attr.cur_qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &attr, TO_RTS | IBV_QP_CUR_STATE) && state_of(qp) == IBV_QPS_RTS);
	/* The query returns the attributes that were set. */
	struct ibv_qp_init_attr init;
	memset(&attr, 0xee, sizeof(attr));
	CHECK(!ibv_query_qp(qp, &attr, -1, &init));
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.cur_qp_state == IBV_QPS_RTS && attr.port_num == 1);
	CHECK(attr.qp_access_flags == IBV_ACCESS_REMOTE_WRITE && attr.path_mtu == IBV_MTU_2048 && attr.rq_psn == 17);
	CHECK(attr.sq_psn == 23 && attr.timeout == 13 && attr.retry_cnt == 6 && attr.rnr_retry == 5);
	CHECK(attr.min_rnr_timer == 9 && attr.dest_qp_num == qp->qp_num && attr.ah_attr.sl == 4);
	CHECK(init.qp_type == IBV_QPT_RC && init.send_cq == cq && init.recv_cq == cq && !init.srq && !init.sq_sig_all);
	CHECK(init.cap.max_send_wr == 1 && init.cap.max_recv_wr == 1 && attr.cap.max_inline_data == 128);
	/* Attributes that are not in the mask do not change. */
	attr.timeout = 1;
	attr.min_rnr_timer = 10;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_MIN_RNR_TIMER) && !ibv_query_qp(qp, &attr, -1, &init));
	CHECK(attr.timeout == 13 && attr.min_rnr_timer == 10);
	CHECK(!ibv_destroy_qp(qp));
	struct ibv_qp_init_attr signaled = qp_init(cq, NULL, 1);
	signaled.sq_sig_all = 7;
	CHECK((qp = ibv_create_qp(pd, &signaled)) && !ibv_query_qp(qp, &attr, -1, &init) && init.sq_sig_all == 1);
	CHECK(!ibv_destroy_qp(qp));
	/* A peer needs a GID, or a LID that is not 0. */
	qp = in(IBV_QPS_INIT);
	attr = attr_of(qp, IBV_QPS_RTR);
	attr.ah_attr.is_global = 0;
	CHECK(ibv_modify_qp(qp, &attr, TO_RTR) == EINVAL && state_of(qp) == IBV_QPS_INIT && !ibv_destroy_qp(qp));
	/* Each queue needs a completion queue. */
	for (int wrong = 0; wrong < 3; wrong++) {
		struct ibv_qp_init_attr lacks = qp_init(cq, NULL, 1);
		if (wrong == 0)
			lacks.send_cq = NULL;
		if (wrong == 1)
			lacks.recv_cq = NULL;
		if (wrong == 2)
			lacks.send_cq = lacks.recv_cq = NULL;
		errno = 0;
		CHECK(!ibv_create_qp(pd, &lacks) && errno == EINVAL);
	}
	/* Other transports are not supported. */
	enum ibv_qp_type types[] = { IBV_QPT_RAW_PACKET, IBV_QPT_XRC_SEND };
	for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
		struct ibv_qp_init_attr other = qp_init(cq, NULL, 1);
		other.qp_type = types[i];
		errno = 0;
		CHECK(!ibv_create_qp(pd, &other) && errno == EOPNOTSUPP);
	}
}

/* A queue pair that enters ERR, or is destroyed, has sent what was posted, as a hardware device has after an instant. */
static void last_words(void)
{
	enum { WORDS = 6 };
	for (int destroys = 0; destroys < 2; destroys++) {
		struct ibv_cq *ours = ibv_create_cq(context, WORDS, NULL, NULL, 0);
		struct ibv_qp *to = make_qp(pd, cq, WORDS), *from = make_qp(pd, ours, WORDS);
		struct ibv_recv_wr recv = { 0 }, *bad_recv;
		struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad_send;
		connect_qp(to, from->qp_num);
		connect_qp(from, to->qp_num);
		for (recv.wr_id = 0; recv.wr_id < WORDS; recv.wr_id++)
			CHECK(!ibv_post_recv(to, &recv, &bad_recv));
		/* The connection is complete when the first message has arrived. */
		CHECK(!ibv_post_send(from, &send, &bad_send) && next_of(ours).status == IBV_WC_SUCCESS);
		CHECK(next_of(cq).status == IBV_WC_SUCCESS);
		for (int i = 1; i < WORDS; i++)
			CHECK(!ibv_post_send(from, &send, &bad_send));
		if (!destroys)
			CHECK(!modify(from, IBV_QPS_ERR, IBV_QP_STATE));
		CHECK(!ibv_destroy_qp(from));
		for (uint64_t i = 1; i < WORDS; i++) {
			struct ibv_wc wc = next_of(cq);
			CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == i);
		}
		CHECK(!ibv_destroy_qp(to) && !ibv_destroy_cq(ours));
	}
}

static struct rdma_event_channel *channel;

static struct rdma_cm_id *take(enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(channel, &event));
	if (event->event != kind)
		fprintf(stderr, "%s %d\n", rdma_event_str(event->event), event->status);
	CHECK(event->event == kind);
	struct rdma_cm_id *id = event->id;
	CHECK(!rdma_ack_cm_event(event));
	return id;
}

/*
 * The state of an identifier's queue pair is that of its connection. A program may stop and resume the sends
 * of the queue pair, end its connection, and reset the queue pair.
 */
static void managed(void)
{
	struct rdma_cm_id *listener, *ids[2];
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	CHECK((channel = rdma_create_event_channel()));
	CHECK(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&address) && !rdma_listen(listener, 1));
	address.sin_port = rdma_get_src_port(listener);
	CHECK(!rdma_create_id(channel, &ids[0], NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(ids[0], NULL, (struct sockaddr *)&address, 5000));
	take(RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(ids[0], 5000));
	take(RDMA_CM_EVENT_ROUTE_RESOLVED);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	init.cap = (struct ibv_qp_cap){ .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 };
	CHECK(!rdma_create_qp(ids[0], NULL, &init) && state_of(ids[0]->qp) == IBV_QPS_INIT);
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	CHECK(!rdma_connect(ids[0], &param));
	ids[1] = take(RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(!rdma_create_qp(ids[1], NULL, &init) && !rdma_accept(ids[1], &param));
	take(RDMA_CM_EVENT_ESTABLISHED);
	take(RDMA_CM_EVENT_ESTABLISHED);
	struct ibv_qp *qp = ids[0]->qp;
	CHECK(state_of(qp) == IBV_QPS_RTS && state_of(ids[1]->qp) == IBV_QPS_RTS);
	/*
	 * Programs may repeat the connection's changes of state. The mask has only IBV_QP_STATE, since these
	 * changes need no other attribute.
	 */
	CHECK(!modify(qp, IBV_QPS_RTR, IBV_QP_STATE) && !modify(qp, IBV_QPS_RTS, IBV_QP_STATE));
	CHECK(state_of(qp) == IBV_QPS_RTS);
	CHECK(!modify(qp, IBV_QPS_SQD, IBV_QP_STATE) && state_of(qp) == IBV_QPS_SQD);
	struct ibv_send_wr *bad, wr = { .wr_id = 3, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_recv_wr *bad_recv, recv = { .wr_id = 4 };
	struct ibv_wc wc;
	CHECK(!ibv_post_recv(ids[1]->qp, &recv, &bad_recv) && !ibv_post_send(qp, &wr, &bad));
	for (int i = 0; i < 2000; i++)
		CHECK(!ibv_poll_cq(qp->send_cq, 1, &wc));
	CHECK(!modify(qp, IBV_QPS_RTS, IBV_QP_STATE) && state_of(qp) == IBV_QPS_RTS);
	while (!ibv_poll_cq(qp->send_cq, 1, &wc))
		;
	CHECK(wc.wr_id == 3 && wc.status == IBV_WC_SUCCESS);
	CHECK(!modify(qp, IBV_QPS_ERR, IBV_QP_STATE) && state_of(qp) == IBV_QPS_ERR);
	take(RDMA_CM_EVENT_DISCONNECTED);
	take(RDMA_CM_EVENT_DISCONNECTED);
	CHECK(state_of(ids[1]->qp) == IBV_QPS_ERR);
	CHECK(!modify(qp, IBV_QPS_RESET, IBV_QP_STATE) && state_of(qp) == IBV_QPS_RESET);
	CHECK(!modify(qp, IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS) && state_of(qp) == IBV_QPS_INIT);
	for (int i = 0; i < 2; i++) {
		rdma_destroy_qp(ids[i]);
		CHECK(!rdma_destroy_id(ids[i]));
	}
	CHECK(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
}

int main(void)
{
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 8, NULL, NULL, 0)));
	table();
	others();
	forgotten();
	values();
	last_words();
	managed();
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
