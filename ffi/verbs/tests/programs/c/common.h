/* Checks, and functions for connections, for the programs of this folder. */
#ifndef COMMON_H
#define COMMON_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Ends the process (or the child process) at once if the condition is false. */
#define CHECK(condition)                                                                                  \
	do {                                                                                              \
		if (!(condition)) {                                                                       \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
			_exit(1);                                                                         \
		}                                                                                         \
	} while (0)

/* Opens the only device. */
static inline struct ibv_context *open_device(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count == 1);
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

/* The attributes of a queue pair whose queues have `depth` requests. `srq` is NULL or the shared receive queue of
 * the queue pair. */
static inline struct ibv_qp_init_attr qp_init(struct ibv_cq *cq, struct ibv_srq *srq, uint32_t depth)
{
	return (struct ibv_qp_init_attr){
		.send_cq = cq,
		.recv_cq = cq,
		.srq = srq,
		.cap = { .max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
}

/* Moves a queue pair to INIT, with all rights of remote access. */
static inline void init_qp(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

/* Makes a queue pair, and moves it to INIT. */
static inline struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq, uint32_t depth)
{
	struct ibv_qp_init_attr init = qp_init(cq, NULL, depth);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	init_qp(qp);
	return qp;
}

/* The state that the library reports. */
static inline enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	return attr.qp_state;
}

/* Waits at most a minute for the next completion. */
static inline struct ibv_wc next_of(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	for (time_t end = time(NULL) + 60; !ibv_poll_cq(cq, 1, &wc);)
		CHECK(time(NULL) < end);
	return wc;
}

/* Checks that no request completes while the queue is polled many times. */
static inline void nothing_in(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	for (int turn = 0; turn < 200; turn++)
		CHECK(!ibv_poll_cq(cq, 1, &wc));
}

/* Starts to connect a queue pair to queue pair `peer` at `gid`. A message of the peer for which this end has no
 * receive is retried after the time with the code `min_rnr_timer`. */
static inline void to_rtr_of(struct ibv_qp *qp, union ibv_gid gid, uint32_t peer, uint8_t min_rnr_timer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 8,
		.min_rnr_timer = min_rnr_timer,
		.ah_attr = { .grh = { .dgid = gid }, .is_global = 1, .port_num = 1 },
	};
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
}

/* Does the same as to_rtr_of with a queue pair of this process. */
static inline void to_rtr(struct ibv_qp *qp, uint32_t peer, uint8_t min_rnr_timer)
{
	union ibv_gid gid;
	CHECK(!ibv_query_gid(qp->context, 1, 0, &gid));
	to_rtr_of(qp, gid, peer, min_rnr_timer);
}

/*
 * Moves a queue pair from RTR to RTS. A message for which the peer has no receive is retried `rnr_retry`
 * times, or without limit if `rnr_retry` is 7.
 */
static inline void to_rts(struct ibv_qp *qp, uint8_t timeout, uint8_t rnr_retry)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = timeout,
		.retry_cnt = 7,
		.rnr_retry = rnr_retry,
		.max_rd_atomic = 8,
	};
	CHECK(!ibv_modify_qp(qp, &attr,
			     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				     IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Connects a queue pair to queue pair `peer` of this process, and moves it to RTS. */
static inline void connect_qp(struct ibv_qp *qp, uint32_t peer)
{
	to_rtr(qp, peer, 12);
	to_rts(qp, 14, 7);
}

#endif
