/*
 * Tests messages without a posted receive: their requests complete when a receive is posted. With a limited
 * rnr_retry the requests fail in time, both with out-of-band connections and with the connection manager.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <string.h>
#include <time.h>

#include "common.h"

/* TIMER is the code for 20.48 ms. */
enum { BYTES = 4096, DEPTH = 16, TIMER = 22, TIMER_MS = 20 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t *memory;

static double now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

/* Waits at most ten seconds for the next completion. */
static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	double end = now_ms() + 10e3;
	int found;
	while (!(found = ibv_poll_cq(cq, 1, &wc)))
		CHECK(now_ms() < end);
	CHECK(found == 1);
	return wc;
}

static void expect(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = completion(cq);
	if (wc.status != status || wc.wr_id != wr_id)
		fprintf(stderr, "request %d: %s\n", (int)wc.wr_id, ibv_wc_status_str(wc.status));
	CHECK(wc.wr_id == wr_id && wc.status == status);
}

/* Checks that no request completes within 100 ms. */
static void expect_nothing(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	for (double end = now_ms() + 100; now_ms() < end;)
		CHECK(!ibv_poll_cq(cq, 1, &wc));
}

static void post_recv(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)memory + 2048, 64, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(!ibv_post_recv(qp, &wr, &bad));
}

static void post_send(struct ibv_qp *qp, uint64_t wr_id, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.imm_data = htonl(5);
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 1024;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

static const enum ibv_wr_opcode messages[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM };

/* Tests two queue pairs of this process, or a queue pair that is connected to itself. */
static void connected_by_program(int to_itself, uint8_t rnr_retry)
{
	struct ibv_cq *send_cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
	struct ibv_cq *recv_cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
	CHECK(send_cq && recv_cq);
	struct ibv_qp *to = make_qp(pd, recv_cq, DEPTH), *from = to_itself ? to : make_qp(pd, send_cq, DEPTH);
	struct ibv_cq *cq = to_itself ? recv_cq : send_cq;
	to_rtr(from, to->qp_num, TIMER);
	if (!to_itself)
		to_rtr(to, from->qp_num, TIMER);
	to_rts(from, 14, rnr_retry);
	if (!to_itself)
		to_rts(to, 14, rnr_retry);
	/* If a receive is posted, the number of retries does not matter. */
	post_recv(to, 1);
	post_send(from, 1, IBV_WR_SEND);
	completion(recv_cq);
	completion(cq);
	if (rnr_retry == 7) {
		for (int i = 0; i < 3; i++) {
			post_send(from, 2, messages[i]);
			post_send(from, 3, IBV_WR_RDMA_WRITE);
			expect_nothing(cq);
			post_recv(to, 4);
			if (!to_itself) {
				expect(recv_cq, 4, IBV_WC_SUCCESS);
				expect(cq, 2, IBV_WC_SUCCESS);
				expect(cq, 3, IBV_WC_SUCCESS);
			} else {
				for (int n = 0; n < 3; n++)
					CHECK(completion(cq).status == IBV_WC_SUCCESS);
			}
		}
	} else {
		double begun = now_ms();
		post_send(from, 2, messages[rnr_retry % 3]);
		post_send(from, 3, IBV_WR_SEND);
		expect(cq, 2, IBV_WC_RNR_RETRY_EXC_ERR);
		double took = now_ms() - begun;
		CHECK(took >= rnr_retry * TIMER_MS && took < rnr_retry * TIMER_MS + 2000);
		expect(cq, 3, IBV_WC_WR_FLUSH_ERR);
		CHECK(state_of(from) == IBV_QPS_ERR);
	}
	CHECK(!ibv_destroy_qp(from));
	CHECK(to_itself || !ibv_destroy_qp(to));
	CHECK(!ibv_destroy_cq(send_cq) && !ibv_destroy_cq(recv_cq));
}

static struct rdma_cm_event *next_event(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(channel, &event));
	CHECK(event->event == type);
	return event;
}

struct end {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
};

static void make_end(struct end *end)
{
	struct ibv_qp_init_attr init = { .cap = { DEPTH, DEPTH, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	end->cq = ibv_create_cq(end->id->verbs, 2 * DEPTH, NULL, NULL, 0);
	CHECK(end->cq);
	init.send_cq = init.recv_cq = end->cq;
	CHECK(!rdma_create_qp(end->id, NULL, &init));
}

static void *serve(void *of)
{
	struct end *server = of;
	struct rdma_cm_event *event = next_event(server->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	server->id = event->id;
	rdma_ack_cm_event(event);
	make_end(server);
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .rnr_retry_count = 7 };
	CHECK(!rdma_accept(server->id, &param));
	rdma_ack_cm_event(next_event(server->channel, RDMA_CM_EVENT_ESTABLISHED));
	return NULL;
}

/*
 * Each end sets the number of retries of the other end. With an `rnr_retry` of 1, the client allows the server one
 * retry, after 655 ms. 0 means no limit, since programs leave the field at 0 and send before the other end has posted
 * a receive.
 */
static void connected_by_manager(uint8_t rnr_retry)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct end server = { .channel = rdma_create_event_channel() };
	struct end client = { .channel = rdma_create_event_channel() };
	struct rdma_cm_id *listener;
	CHECK(server.channel && client.channel);
	CHECK(!rdma_create_id(server.channel, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&address) && !rdma_listen(listener, 1));
	address.sin_port = rdma_get_src_port(listener);
	pthread_t thread;
	CHECK(!pthread_create(&thread, NULL, serve, &server));
	CHECK(!rdma_create_id(client.channel, &client.id, NULL, RDMA_PS_TCP));
	CHECK(!rdma_resolve_addr(client.id, NULL, (struct sockaddr *)&address, 2000));
	rdma_ack_cm_event(next_event(client.channel, RDMA_CM_EVENT_ADDR_RESOLVED));
	CHECK(!rdma_resolve_route(client.id, 2000));
	rdma_ack_cm_event(next_event(client.channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
	make_end(&client);
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .rnr_retry_count = rnr_retry };
	CHECK(!rdma_connect(client.id, &param));
	rdma_ack_cm_event(next_event(client.channel, RDMA_CM_EVENT_ESTABLISHED));
	CHECK(!pthread_join(thread, NULL));

	struct ibv_mr *of_server = mr, *of_client = ibv_reg_mr(client.id->pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *server_mr = ibv_reg_mr(server.id->pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
	CHECK(of_client && server_mr);
	mr = of_client;
	post_send(client.id->qp, 1, IBV_WR_SEND);
	expect_nothing(client.cq);
	mr = server_mr;
	post_recv(server.id->qp, 2);
	expect(server.cq, 2, IBV_WC_SUCCESS);
	expect(client.cq, 1, IBV_WC_SUCCESS);
	double begun = now_ms();
	post_send(server.id->qp, 3, IBV_WR_SEND);
	if (rnr_retry) {
		expect(server.cq, 3, IBV_WC_RNR_RETRY_EXC_ERR);
		CHECK(now_ms() - begun >= 655);
	} else {
		for (int i = 0; i < 10; i++)
			expect_nothing(server.cq);
		mr = of_client;
		post_recv(client.id->qp, 4);
		expect(client.cq, 4, IBV_WC_SUCCESS);
		expect(server.cq, 3, IBV_WC_SUCCESS);
		CHECK(!rdma_disconnect(server.id));
	}
	rdma_ack_cm_event(next_event(client.channel, RDMA_CM_EVENT_DISCONNECTED));
	mr = of_server;

	CHECK(!ibv_dereg_mr(of_client) && !ibv_dereg_mr(server_mr));
	struct end *ends[] = { &client, &server };
	for (int i = 0; i < 2; i++) {
		rdma_destroy_qp(ends[i]->id);
		CHECK(!ibv_destroy_cq(ends[i]->cq));
	}
	CHECK(!rdma_destroy_id(client.id));
	rdma_destroy_event_channel(client.channel);
	/* The program need not read the disconnect event. */
	CHECK(!rdma_destroy_id(server.id) && !rdma_destroy_id(listener));
	rdma_destroy_event_channel(server.channel);
}

int main(void)
{
	context = open_device();
	pd = ibv_alloc_pd(context);
	memory = calloc(1, BYTES);
	mr = ibv_reg_mr(pd, memory, BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(pd && mr);
	for (int to_itself = 0; to_itself < 2; to_itself++)
		for (uint8_t rnr_retry = 0; rnr_retry < 8; rnr_retry++)
			connected_by_program(to_itself, rnr_retry);
	for (uint8_t rnr_retry = 0; rnr_retry < 2; rnr_retry++)
		connected_by_manager(rnr_retry);
	CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
