/*
 * Tests the numbers of Reads in the events of each end of a connection (rdma_get_cm_event(3)). An end's
 * responder_resources is the number of Reads that the other end may have outstanding. An end's
 * initiator_depth is the number of Reads that this end may have outstanding.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>

#include "common.h"

static struct rdma_event_channel *channels[2];

/* Waits for the next event of an end, which has to be of this type. */
static struct rdma_cm_event *next(int end, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;
	CHECK(!rdma_get_cm_event(channels[end], &event));
	if (event->event != kind)
		fprintf(stderr, "end %d: %s %d\n", end, rdma_event_str(event->event), event->status);
	CHECK(event->event == kind);
	return event;
}

static void take(int end, enum rdma_cm_event_type kind)
{
	CHECK(!rdma_ack_cm_event(next(end, kind)));
}

static void take_depths(int end, enum rdma_cm_event_type kind, int responder_resources, int initiator_depth,
			struct rdma_cm_id **id)
{
	struct rdma_cm_event *event = next(end, kind);
	struct rdma_conn_param *conn = &event->param.conn;
	if (conn->responder_resources != responder_resources || conn->initiator_depth != initiator_depth)
		fprintf(stderr, "end %d: %s: %d %d\n", end, rdma_event_str(kind), conn->responder_resources,
			conn->initiator_depth);
	CHECK(conn->responder_resources == responder_resources && conn->initiator_depth == initiator_depth);
	if (id)
		*id = event->id;
	CHECK(!rdma_ack_cm_event(event));
}

static void make_qp_of(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	init.cap = (struct ibv_qp_cap){ .max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1 };
	CHECK(!rdma_create_qp(id, NULL, &init));
}

static void check_qp(struct rdma_cm_id *id, int served, int outstanding)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(id->qp, &attr, IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MAX_QP_RD_ATOMIC, &init));
	CHECK(attr.max_dest_rd_atomic == served && attr.max_rd_atomic == outstanding);
}

/*
 * The fields are the client's parameters, the request's values, the server's parameters (or NULL), the values of
 * both events, and the limits of the client's queue pair. The limits of the server's queue pair are the values of
 * its event.
 */
static const struct {
	uint8_t asked[2], request[2], granted[2], of_client[2], of_server[2], qp_of_client[2];
	int has_granted;
} rows[] = {
	/* The client serves 3 and has up to 5 outstanding; the server serves 4 and has up to 2 outstanding. */
	{ { 3, 5 }, { 5, 3 }, { 4, 2 }, { 2, 4 }, { 4, 2 }, { 3, 4 }, 1 },
	/* If a program sets no values, the values that the peer requests are used. */
	{ { 3, 5 }, { 5, 3 }, { 0, 0 }, { 3, 5 }, { 5, 3 }, { 3, 5 }, 0 },
	/* Some programs set 0 and still use Reads. */
	{ { 0, 0 }, { 1, 1 }, { 0, 0 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, 1 },
};

int main(void)
{
	struct rdma_cm_id *listener, *client, *server;
	for (int end = 0; end < 2; end++)
		CHECK((channels[end] = rdma_create_event_channel()));
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	CHECK(!rdma_create_id(channels[1], &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&address) && !rdma_listen(listener, 1));
	address.sin_port = rdma_get_src_port(listener);
	for (size_t row = 0; row < sizeof(rows) / sizeof(*rows); row++) {
		CHECK(!rdma_create_id(channels[0], &client, NULL, RDMA_PS_TCP));
		CHECK(!rdma_resolve_addr(client, NULL, (struct sockaddr *)&address, 5000));
		take(0, RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(!rdma_resolve_route(client, 5000));
		take(0, RDMA_CM_EVENT_ROUTE_RESOLVED);
		make_qp_of(client);
		struct rdma_conn_param asked = {
			.responder_resources = rows[row].asked[0],
			.initiator_depth = rows[row].asked[1],
		};
		CHECK(!rdma_connect(client, &asked));
		take_depths(1, RDMA_CM_EVENT_CONNECT_REQUEST, rows[row].request[0], rows[row].request[1], &server);
		make_qp_of(server);
		struct rdma_conn_param granted = {
			.responder_resources = rows[row].granted[0],
			.initiator_depth = rows[row].granted[1],
		};
		CHECK(!rdma_accept(server, rows[row].has_granted ? &granted : NULL));
		take_depths(0, RDMA_CM_EVENT_ESTABLISHED, rows[row].of_client[0], rows[row].of_client[1], NULL);
		take_depths(1, RDMA_CM_EVENT_ESTABLISHED, rows[row].of_server[0], rows[row].of_server[1], NULL);
		check_qp(client, rows[row].qp_of_client[0], rows[row].qp_of_client[1]);
		check_qp(server, rows[row].of_server[0], rows[row].of_server[1]);
		CHECK(!rdma_disconnect(client));
		take(0, RDMA_CM_EVENT_DISCONNECTED);
		take(1, RDMA_CM_EVENT_DISCONNECTED);
		rdma_destroy_qp(client);
		rdma_destroy_qp(server);
		CHECK(!rdma_destroy_id(client) && !rdma_destroy_id(server));
	}
	CHECK(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(channels[0]);
	rdma_destroy_event_channel(channels[1]);
	return 0;
}
