/*
 * This program is linked with -libverbs -lrdmacm. A server returns what its client sends.
 *
 * `hello` is the server, which serves one client. `hello ADDRESS ROUNDS SECONDS` is the client. The client sends once
 * every 20 ms, prints the minimum and the median round trip, and then keeps the connection for SECONDS seconds.
 */
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BYTES 64
#define CHECK(call) do { if (call) { perror(#call); return 1; } } while (0)

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e6 + time.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP, .ai_flags = RAI_PASSIVE }, *info;
	struct ibv_qp_init_attr attr = { .cap = { 1, 2, 1, 1, BYTES }, .sq_sig_all = 1 };
	struct rdma_cm_id *listener = NULL, *id;
	char bytes[BYTES] = "hello", answer[BYTES] = "";
	double times[1000], begun;
	struct ibv_mr *mr;
	struct ibv_wc wc;
	int is_client = argc == 4, rounds = is_client ? atoi(argv[2]) : 0, round;

	if (is_client)
		hints.ai_flags = 0;
	CHECK(rounds > 1000);
	CHECK(rdma_getaddrinfo(is_client ? argv[1] : NULL, "7777", &hints, &info));
	CHECK(rdma_create_ep(is_client ? &id : &listener, info, NULL, &attr));
	rdma_freeaddrinfo(info);
	if (!is_client) {
		CHECK(rdma_listen(listener, 0));
		CHECK(rdma_get_request(listener, &id));
	}
	mr = rdma_reg_msgs(id, answer, BYTES);
	CHECK(!mr);
	CHECK(rdma_post_recv(id, NULL, answer, BYTES, mr));
	if (is_client)
		CHECK(rdma_connect(id, NULL));
	else
		CHECK(rdma_accept(id, NULL));
	for (round = 0; !is_client || round < rounds; round++) {
		if (is_client) {
			usleep(20000);
			begun = now();
			CHECK(rdma_post_send(id, NULL, bytes, BYTES, NULL, IBV_SEND_INLINE));
		}
		/* The server's receive is flushed when the client disconnects. */
		CHECK(rdma_get_recv_comp(id, &wc) != 1);
		if (wc.status)
			break;
		if (is_client)
			times[round] = now() - begun;
		CHECK(strcmp(answer, "hello"));
		CHECK(rdma_post_recv(id, NULL, answer, BYTES, mr));
		if (!is_client)
			CHECK(rdma_post_send(id, NULL, answer, BYTES, NULL, IBV_SEND_INLINE));
		CHECK(rdma_get_send_comp(id, &wc) != 1 || wc.status);
	}
	CHECK(round < rounds);
	printf("%s from %s\n", answer, ibv_get_device_name(id->verbs->device));
	if (is_client) {
		qsort(times, rounds, sizeof *times, compare);
		printf("us: %.1f shortest, %.1f usual\n", times[0], times[rounds / 2]);
		fflush(stdout);
		sleep(atoi(argv[3]));
	}
	rdma_disconnect(id);
	rdma_dereg_mr(mr);
	rdma_destroy_ep(id);
	if (listener)
		rdma_destroy_ep(listener);
	return 0;
}
