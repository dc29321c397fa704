/*
 * Tests completion timestamps and the device's clock: the timestamp of a completion lies between the times before its
 * request was posted and after it was polled, and the timestamps of a queue do not decrease.
 */
#include <string.h>

#include "common.h"

enum { DEPTH = 16 };

static struct ibv_context *context;

/* The device's clock, as the library tells. */
static uint64_t raw_ns(void)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	CHECK(!ibv_query_rt_values_ex(context, &values) && values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	CHECK(!values.raw_clock.tv_sec && values.raw_clock.tv_nsec > 0);
	return values.raw_clock.tv_nsec;
}

static uint64_t system_ns(clockid_t clock)
{
	struct timespec now;
	CHECK(!clock_gettime(clock, &now));
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void clocks(void)
{
	struct ibv_device_attr_ex attr;
	CHECK(!ibv_query_device_ex(context, NULL, &attr));
	CHECK(attr.hca_core_clock == 1000000 && attr.completion_timestamp_mask == UINT64_MAX);
	/* The clock is the system's, in nanoseconds. */
	uint64_t before = system_ns(CLOCK_MONOTONIC), first = raw_ns(), after = system_ns(CLOCK_MONOTONIC);
	usleep(20000);
	uint64_t took = raw_ns() - first, most = system_ns(CLOCK_MONOTONIC) - before;
	CHECK(took >= 20000000 && took <= most && first >= before && first <= after);
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK << 1 };
	CHECK(ibv_query_rt_values_ex(context, &values) == EINVAL);
	values.comp_mask = 0;
	CHECK(!ibv_query_rt_values_ex(context, &values) && !values.comp_mask);
}

/* Tests the timestamps of a queue that was made with these flags. */
static void completions(struct ibv_pd *pd, uint64_t flags)
{
	struct ibv_cq_init_attr_ex of_ex = { .cqe = 2 * DEPTH, .wc_flags = flags };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &of_ex);
	CHECK(cq);
	struct ibv_qp *qps[2];
	for (int end = 0; end < 2; end++)
		qps[end] = make_qp(pd, ibv_cq_ex_to_cq(cq), DEPTH);
	for (int end = 0; end < 2; end++)
		connect_qp(qps[end], qps[1 - end]->qp_num);
	uint64_t last = raw_ns(), last_wall = system_ns(CLOCK_REALTIME);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < DEPTH; i++) {
			struct ibv_recv_wr *bad_recv, recv = { .wr_id = i };
			struct ibv_send_wr *bad_send, send = { .wr_id = i, .opcode = IBV_WR_SEND };
			send.send_flags = IBV_SEND_SIGNALED;
			CHECK(!ibv_post_recv(qps[1], &recv, &bad_recv) && !ibv_post_send(qps[0], &send, &bad_send));
		}
		struct ibv_poll_cq_attr poll = { .comp_mask = 0 };
		for (int polled = 0; polled < 2 * DEPTH;) {
			int error = ibv_start_poll(cq, &poll);
			if (error == ENOENT)
				continue;
			CHECK(!error);
			do {
				uint64_t ts = ibv_wc_read_completion_ts(cq), wall = ibv_wc_read_completion_wallclock_ns(cq);
				CHECK(cq->status == IBV_WC_SUCCESS);
				if (flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) {
					CHECK(ts >= last && ts <= raw_ns());
					last = ts;
				}
				if (flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) {
					CHECK(wall >= last_wall && wall <= system_ns(CLOCK_REALTIME));
					last_wall = wall;
				}
				/* A second read gives the same time. */
				CHECK(ts == ibv_wc_read_completion_ts(cq));
				polled++;
			} while (!(error = ibv_next_poll(cq)));
			CHECK(error == ENOENT);
			ibv_end_poll(cq);
		}
		/* Later completions have later timestamps. */
		uint64_t between = raw_ns();
		CHECK(between >= last);
		last = between;
	}
	CHECK(!ibv_destroy_qp(qps[0]) && !ibv_destroy_qp(qps[1]) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
}

int main(void)
{
	context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(pd);
	clocks();
	completions(pd, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP);
	completions(pd, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
	completions(pd, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
