/*
 * Tests the events that programs get for peers that behave oddly, by rows of the table in `src/rdmacm/dispatch.rs`.
 *
 * `odd_peers raw HOST PORT` is the peer: it speaks MPA on kernel sockets, and plays the rows whose numbers the other
 * program sends on a separate socket. `odd_peers events OWN HOST PORT` uses the library at the address OWN, and
 * checks the events. One listener serves all rows: no peer may end it.
 */
#include <fcntl.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "cm.h"

enum { LISTENER = 7471, RAW_LISTENER = 7472, DEPTH = 8 };

/* ---- the peer ---- */

/* Frames of MPA revision 2 with IRD and ORD of 1. A frame has a Write as the RTR, unless its name says otherwise. */
static const uint8_t request[] = "MPA ID Req Frame\x50\x02\0\x04\x80\x01\x80\x01";
static const uint8_t request_without_rtr[] = "MPA ID Req Frame\x50\x02\0\x04\0\x01\0\x01";
static const uint8_t reply[] = "MPA ID Rep Frame\x50\x02\0\x04\x80\x01\x80\x01";
static const uint8_t reply_rejected[] = "MPA ID Rep Frame\x70\x02\0\x08\x80\x01\x80\x01why?";
static const uint8_t reply_wrong[] = "MPA ID Req Frame\x50\x02\0\x04\x80\x01\x80\x01";
/* A Reply that selects no RTR type. */
static const uint8_t reply_without_rtr[] = "MPA ID Rep Frame\x50\x02\0\x04\0\x01\0\x01";

static uint32_t crc32c(const uint8_t *bytes, size_t count)
{
	uint32_t crc = ~0u;
	for (size_t i = 0; i < count; i++) {
		crc ^= bytes[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

/* Sends a ULPDU as an FPDU. */
static void send_fpdu(int fd, const uint8_t *ulpdu, uint16_t length, int is_good)
{
	uint8_t fpdu[128] = { length >> 8, length };
	size_t end = (2 + length + 3) & ~3u;
	memcpy(fpdu + 2, ulpdu, length);
	uint32_t crc = crc32c(fpdu, end) ^ !is_good;
	memcpy(fpdu + end, &crc, 4);
	CHECK(write(fd, fpdu, end + 4) == (ssize_t)(end + 4));
}

/* The RTR is a Write without bytes. */
static const uint8_t rtr[14] = { 0xc1, 0x40, 0, 0, 0, 1 };
/* This Terminate reports a local catastrophic error of RDMAP. */
static const uint8_t terminate[22] = { 0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1 };

static void read_whole(int fd, void *to, size_t count)
{
	for (size_t at = 0; at < count;) {
		ssize_t got = read(fd, (char *)to + at, count - at);
		CHECK(got > 0);
		at += got;
	}
}

/* Reads a startup frame and ignores its contents. */
static void read_frame(int fd)
{
	uint8_t head[20], rest[512];
	read_whole(fd, head, sizeof(head));
	read_whole(fd, rest, head[18] << 8 | head[19]);
}

/* Waits until the other end has closed or reset the connection. */
static void wait_for_end(int fd)
{
	char bytes[256];
	while (read(fd, bytes, sizeof(bytes)) > 0)
		;
}

static void reset(int fd)
{
	struct linger linger = { 1, 0 };
	CHECK(!setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	close(fd);
}

static int tcp_socket(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
	CHECK(fd >= 0);
	CHECK(!setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
	return fd;
}

static int connect_to(const char *host, uint16_t port)
{
	struct sockaddr_in address = address_of(host, port);
	for (time_t end = time(NULL) + 60;;) {
		int fd = tcp_socket();
		if (!connect(fd, (struct sockaddr *)&address, sizeof(address)))
			return fd;
		CHECK(time(NULL) < end);
		close(fd);
		usleep(20000);
	}
}

static int listen_on(uint16_t port)
{
	struct sockaddr_in address = address_of("0.0.0.0", port);
	int fd = tcp_socket(), on = 1;
	CHECK(!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
	CHECK(!bind(fd, (struct sockaddr *)&address, sizeof(address)) && !listen(fd, 16));
	return fd;
}

enum how { FIN, RST };

static void close_by(int fd, enum how how)
{
	if (how == RST)
		reset(fd);
	else
		close(fd);
}

/* The rows in which the peer connects. */
enum passive {
	SAYS_NOTHING,
	WRONG_REQUEST,
	GONE_BEFORE_ACCEPT,
	RESET_BEFORE_ACCEPT,
	GONE_BEFORE_REJECT,
	REJECTED,
	GONE_BEFORE_RTR,
	RESET_BEFORE_RTR,
	BAD_RTR,
	TERMINATE_FOR_RTR,
	WITHOUT_RTR,
	WITHOUT_RTR_RESETS,
	CLOSES,
	RESETS,
	TERMINATES,
	BAD_FPDU,
	LAST_PASSIVE,
};

static void play_passive(int row, const char *host, int control)
{
	int fd = connect_to(host, LISTENER);
	switch ((enum passive)row) {
	case SAYS_NOTHING:
		break;
	case WRONG_REQUEST:
		CHECK(write(fd, reply, 24) == 24);
		wait_for_end(fd);
		break;
	case GONE_BEFORE_ACCEPT:
	case GONE_BEFORE_REJECT:
		CHECK(write(fd, request, 24) == 24);
		CHECK(!shutdown(fd, SHUT_WR));
		wait_for_end(fd);
		break;
	case RESET_BEFORE_ACCEPT:
		/* The end of a second connection shows that the reset of the first connection has arrived. */
		CHECK(write(fd, request, 24) == 24);
		reset(fd);
		fd = connect_to(host, LISTENER);
		CHECK(write(fd, reply, 24) == 24);
		wait_for_end(fd);
		break;
	case REJECTED:
		CHECK(write(fd, request, 24) == 24);
		wait_for_end(fd);
		break;
	case GONE_BEFORE_RTR:
	case RESET_BEFORE_RTR:
		CHECK(write(fd, request, 24) == 24);
		read_frame(fd);
		close_by(fd, row == RESET_BEFORE_RTR ? RST : FIN);
		return;
	case BAD_RTR:
	case TERMINATE_FOR_RTR:
		CHECK(write(fd, request, 24) == 24);
		read_frame(fd);
		if (row == BAD_RTR)
			send_fpdu(fd, rtr, sizeof(rtr), 0);
		else
			send_fpdu(fd, terminate, sizeof(terminate), 1);
		wait_for_end(fd);
		break;
	case WITHOUT_RTR:
	case WITHOUT_RTR_RESETS:
		CHECK(write(fd, request_without_rtr, 24) == 24);
		read_frame(fd);
		read_whole(control, &(char){ 0 }, 1);
		close_by(fd, row == WITHOUT_RTR_RESETS ? RST : FIN);
		return;
	case CLOSES:
	case RESETS:
	case TERMINATES:
	case BAD_FPDU:
		CHECK(write(fd, request, 24) == 24);
		read_frame(fd);
		send_fpdu(fd, rtr, sizeof(rtr), 1);
		read_whole(control, &(char){ 0 }, 1);
		if (row == TERMINATES)
			send_fpdu(fd, terminate, sizeof(terminate), 1);
		if (row == BAD_FPDU)
			send_fpdu(fd, rtr, sizeof(rtr), 0);
		if (row == TERMINATES || row == BAD_FPDU)
			wait_for_end(fd);
		close_by(fd, row == RESETS ? RST : FIN);
		return;
	case LAST_PASSIVE:
		CHECK(0);
	}
	close(fd);
}

/* The rows in which the other program connects. */
enum active {
	DOES_NOT_LISTEN = LAST_PASSIVE,
	CLOSES_BEFORE_REPLY,
	RESETS_BEFORE_REPLY,
	REJECTS,
	WRONG_REPLY,
	REPLY_WITHOUT_RTR,
	ACCEPTS_AND_CLOSES,
	ACCEPTS_AND_RESETS,
	CANNOT_BE_REACHED,
	LAST_ACTIVE,
};

static void play_active(int row, int listener, int control)
{
	int fd = accept(listener, NULL, NULL);
	CHECK(fd >= 0);
	read_frame(fd);
	switch ((enum active)row) {
	case CLOSES_BEFORE_REPLY:
		break;
	case RESETS_BEFORE_REPLY:
		return reset(fd);
	case REJECTS:
		CHECK(write(fd, reply_rejected, 28) == 28);
		break;
	case WRONG_REPLY:
		CHECK(write(fd, reply_wrong, 24) == 24);
		wait_for_end(fd);
		break;
	case REPLY_WITHOUT_RTR:
		CHECK(write(fd, reply_without_rtr, 24) == 24);
		wait_for_end(fd);
		break;
	case ACCEPTS_AND_CLOSES:
	case ACCEPTS_AND_RESETS:
		CHECK(write(fd, reply, 24) == 24);
		/* The peer reads the RTR, since a socket that is closed with unread bytes resets its connection. */
		read_whole(fd, (uint8_t[20]){ 0 }, 20);
		read_whole(control, &(char){ 0 }, 1);
		return close_by(fd, row == ACCEPTS_AND_RESETS ? RST : FIN);
	case DOES_NOT_LISTEN:
	case CANNOT_BE_REACHED:
	case LAST_ACTIVE:
		CHECK(0);
	}
	close(fd);
}

/* Plays the rows whose numbers arrive, and reports the end of each row. */
static void raw(const char *host, uint16_t port)
{
	int listener = listen_on(port), control = accept(listener, NULL, NULL);
	int raw_listener = listen_on(RAW_LISTENER);
	char row;
	CHECK(control >= 0);
	while (read(control, &row, 1) == 1) {
		if (row < LAST_PASSIVE)
			play_passive(row, host, control);
		else
			play_active(row, raw_listener, control);
		CHECK(write(control, "", 1) == 1);
	}
}

/* ---- the program that uses the library ---- */

static int control;
static struct rdma_event_channel *channel;
static const struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };

static void begin(char row)
{
	CHECK(write(control, &row, 1) == 1);
}

static void go_on(void)
{
	CHECK(write(control, "", 1) == 1);
}

static void wait_for_peer(void)
{
	char done;
	read_whole(control, &done, 1);
}

static void expect_event(int row, enum rdma_cm_event_type type, int status)
{
	struct rdma_cm_event *event = any_event(channel);
	if (event->event != type || event->status != status)
		fprintf(stderr, "row %d: %s %d, for %s %d\n", row, rdma_event_str(event->event), event->status,
			rdma_event_str(type), status);
	CHECK(event->event == type && event->status == status);
	rdma_ack_cm_event(event);
}

/* Accepts the next request with a queue pair that has a receive. The receive is flushed at the end. */
static struct rdma_cm_id *accepted(int result)
{
	struct rdma_cm_id *id = next_request(channel);
	struct rdma_conn_param of_end = param;
	give_qp(id, DEPTH);
	CHECK(!post_empty_recv(id->qp, 1));
	int accepted = rdma_accept(id, &of_end);
	CHECK(accepted == result);
	if (!result)
		CHECK(id->qp->state == IBV_QPS_RTS || state_of(id->qp) == IBV_QPS_ERR);
	return id;
}

static void flushed(struct rdma_cm_id *id)
{
	expect(id->recv_cq, 1, IBV_WC_WR_FLUSH_ERR);
	CHECK(id->qp->state == IBV_QPS_ERR && state_of(id->qp) == IBV_QPS_ERR);
	CHECK(!post_empty_send(id->qp, 2));
	expect(id->send_cq, 2, IBV_WC_WR_FLUSH_ERR);
	destroy(id);
}

static void check_passive(int row)
{
	struct rdma_cm_id *id;
	begin(row);
	switch ((enum passive)row) {
	case SAYS_NOTHING:
	case WRONG_REQUEST:
		wait_for_peer();
		CHECK(is_silent(channel));
		return;
	case GONE_BEFORE_ACCEPT:
	case RESET_BEFORE_ACCEPT:
		wait_for_peer();
		id = accepted(-1);
		CHECK(errno == ECONNRESET);
		CHECK(rdma_accept(id, NULL) && errno == ECONNRESET);
		CHECK(is_silent(channel));
		flushed(id);
		return;
	case GONE_BEFORE_REJECT:
		wait_for_peer();
		id = next_request(channel);
		CHECK(rdma_reject(id, NULL, 0) && errno == ECONNRESET);
		CHECK(is_silent(channel));
		destroy(id);
		return;
	case REJECTED:
		id = next_request(channel);
		CHECK(!rdma_reject(id, NULL, 0));
		CHECK(rdma_reject(id, NULL, 0) && errno == EINVAL);
		wait_for_peer();
		CHECK(is_silent(channel));
		destroy(id);
		return;
	case GONE_BEFORE_RTR:
	case RESET_BEFORE_RTR:
	case BAD_RTR:
	case TERMINATE_FOR_RTR:
		id = accepted(0);
		expect_event(row, RDMA_CM_EVENT_ESTABLISHED, 0);
		expect_event(row, RDMA_CM_EVENT_DISCONNECTED, -ECONNRESET);
		wait_for_peer();
		flushed(id);
		return;
	case WITHOUT_RTR:
	case CLOSES:
	case WITHOUT_RTR_RESETS:
	case RESETS:
	case TERMINATES:
	case BAD_FPDU:
		id = accepted(0);
		expect_event(row, RDMA_CM_EVENT_ESTABLISHED, 0);
		CHECK(is_silent(channel));
		go_on();
		expect_event(row, RDMA_CM_EVENT_DISCONNECTED, row == CLOSES ? 0 : -ECONNRESET);
		wait_for_peer();
		flushed(id);
		return;
	case LAST_PASSIVE:
		CHECK(0);
	}
}

static void check_active(int row, const char *host)
{
	struct rdma_conn_param of_end = param;
	const char *at = row == CANNOT_BE_REACHED ? "10.77.0.99" : host;
	struct rdma_cm_id *id = resolve(channel, at, row == DOES_NOT_LISTEN ? RAW_LISTENER + 1 : RAW_LISTENER);
	int plays = row != DOES_NOT_LISTEN && row != CANNOT_BE_REACHED;
	give_qp(id, DEPTH);
	CHECK(!post_empty_recv(id->qp, 1));
	if (plays)
		begin(row);
	CHECK(!rdma_connect(id, &of_end));
	switch ((enum active)row) {
	case DOES_NOT_LISTEN:
		expect_event(row, RDMA_CM_EVENT_REJECTED, -ECONNREFUSED);
		break;
	case CLOSES_BEFORE_REPLY:
	case RESETS_BEFORE_REPLY:
		expect_event(row, RDMA_CM_EVENT_REJECTED, -ECONNRESET);
		break;
	case REJECTS: {
		struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_REJECTED);
		CHECK(event->status == -ECONNREFUSED && event->param.conn.private_data_len == 4);
		CHECK(!memcmp(event->param.conn.private_data, "why?", 4));
		rdma_ack_cm_event(event);
		break;
	}
	case WRONG_REPLY:
	case REPLY_WITHOUT_RTR:
		expect_event(row, RDMA_CM_EVENT_CONNECT_ERROR, -ECONNRESET);
		break;
	case ACCEPTS_AND_CLOSES:
	case ACCEPTS_AND_RESETS:
		expect_event(row, RDMA_CM_EVENT_ESTABLISHED, 0);
		CHECK(id->qp->state == IBV_QPS_RTS);
		go_on();
		expect_event(row, RDMA_CM_EVENT_DISCONNECTED, row == ACCEPTS_AND_CLOSES ? 0 : -ECONNRESET);
		break;
	case CANNOT_BE_REACHED:
		expect_event(row, RDMA_CM_EVENT_UNREACHABLE, -EHOSTUNREACH);
		break;
	case LAST_ACTIVE:
		CHECK(0);
	}
	if (plays)
		wait_for_peer();
	CHECK(is_silent(channel));
	flushed(id);
}

int main(int argc, char **argv)
{
	CHECK(argc >= 4);
	if (!strcmp(argv[1], "raw")) {
		raw(argv[2], atoi(argv[3]));
		return 0;
	}
	CHECK(argc == 5 && (channel = rdma_create_event_channel()));
	struct rdma_cm_id *listener = listen_at(channel, argv[2], LISTENER);
	/* No peer on this wire can reach the second listener, which listens at the IPv6 wildcard. */
	struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(LISTENER) };
	struct rdma_cm_id *of_ipv6;
	int on = 1;
	CHECK(!rdma_create_id(channel, &of_ipv6, NULL, RDMA_PS_TCP));
	CHECK(!rdma_set_option(of_ipv6, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)));
	CHECK(!rdma_bind_addr(of_ipv6, (struct sockaddr *)&any) && !rdma_listen(of_ipv6, 1));
	control = connect_to(argv[3], atoi(argv[4]));
	for (int row = 0; row < LAST_PASSIVE; row++) {
		fprintf(stderr, "row %d\n", row);
		check_passive(row);
	}
	for (int row = LAST_PASSIVE; row < LAST_ACTIVE; row++) {
		fprintf(stderr, "row %d\n", row);
		check_active(row, argv[3]);
	}
	close(control);
	destroy(of_ipv6);
	destroy(listener);
	rdma_destroy_event_channel(channel);
	puts("all rows are as they should be");
	return 0;
}
