/*
 * Tests polls at the end of a drain. Many programs take completions one by one until a poll finds none, and only
 * then handle the completions. So after a program has taken as many completions as it asked for, the next two polls
 * of the empty queue do not receive, if they come soon. All other polls receive. No thread of the library polls.
 */
#include "common.h"

enum { ROUNDS = 100000 };

static struct ibv_cq *sends, *receives;
static struct ibv_qp *qps[4];

static struct ibv_qp *make(struct ibv_pd *pd)
{
	struct ibv_qp_init_attr init = qp_init(sends, NULL, 8);
	init.recv_cq = receives;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	init_qp(qp);
	return qp;
}

/* Sends a message without bytes from the first to the second queue pair of a pair. */
static void send_on(int pair)
{
	struct ibv_recv_wr receive = { .wr_id = pair }, *bad_receive;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	CHECK(!ibv_post_recv(qps[2 * pair + 1], &receive, &bad_receive));
	CHECK(!ibv_post_send(qps[2 * pair], &send, &bad_send));
}

/* Polls for one received message, and returns their number. */
static int polled(void)
{
	struct ibv_wc wc;
	int found = ibv_poll_cq(receives, 1, &wc);
	CHECK(found == 0 || (found == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == 1));
	return found;
}

/* Takes the message of the first pair with polls for `limit` messages. Then sends a message on the second pair,
 * which has arrived at this process when this function returns, but is not received yet. */
static void take_first(int limit)
{
	struct ibv_wc wc[2];
	int found;
	send_on(0);
	while (!(found = ibv_poll_cq(receives, limit, wc)))
		;
	CHECK(found == 1 && wc[0].status == IBV_WC_SUCCESS && wc[0].wr_id == 0);
	send_on(1);
}

/* Waits until both messages are acknowledged. */
static void end_round(void)
{
	CHECK(next_of(sends).status == IBV_WC_SUCCESS);
	CHECK(next_of(sends).status == IBV_WC_SUCCESS);
}

int main(void)
{
	CHECK(!setenv("UWARP_THREAD", "caller", 1));
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	sends = ibv_create_cq(context, 64, NULL, NULL, 0);
	receives = ibv_create_cq(context, 64, NULL, NULL, 0);
	CHECK(pd && sends && receives);
	for (int at = 0; at < 4; at++)
		qps[at] = make(pd);
	for (int at = 0; at < 4; at++)
		connect_qp(qps[at], qps[at ^ 1]->qp_num);

	/* The thread may lose its processor between two polls. Then the first or the second poll receives. */
	int round = 0;
	for (int skipped = 0; skipped < 2; round++) {
		CHECK(round < ROUNDS);
		take_first(1);
		for (skipped = 0; !polled(); skipped++)
			CHECK(skipped < 2);
		end_round();
	}
	/* The program knows that the queue is empty, since it has asked for more completions than it got. */
	for (round = 0; round < 100; round++) {
		take_first(2);
		CHECK(polled());
		end_round();
	}
	/* The same, while the queue was already at the end of a drain. */
	for (round = 0; round < 100; round++) {
		struct ibv_wc wc[2];
		take_first(1);
		end_round();
		CHECK(ibv_poll_cq(receives, 2, wc) == 1);
		send_on(1);
		CHECK(polled());
		CHECK(next_of(sends).status == IBV_WC_SUCCESS);
	}
	/* The poll comes too late to be the end of a drain. */
	for (round = 0; round < 100; round++) {
		take_first(1);
		usleep(100);
		CHECK(polled());
		end_round();
	}
	return 0;
}
