/*
 * A server and a client of UCP that connect by the addresses of sockets: the client's address is that of the listener.
 * The client sends messages of several lengths and patterns, and the server sends each of them back. Both compare the
 * bytes.
 *
 *   ucp_sockets [HOST]
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>

#define CHECK(what) ((what) ? (void)0 : failed(#what, __LINE__))

enum { PORT = 13337, TAG = 7, ROUNDS = 3, LONGEST = 1 << 20 };

static const size_t lengths[] = { 0, 1, 64, 5000, 70000, LONGEST };
static ucp_worker_h worker;
static ucp_ep_h peer;
static uint8_t out[LONGEST], into[LONGEST];
static int is_lost;

static void failed(const char *what, int line)
{
	fprintf(stderr, "ucp_sockets: line %d: %s\n", line, what);
	exit(1);
}

/* Lets the worker progress until the request is complete, and returns its status. */
static ucs_status_t wait_for(void *request)
{
	if (!request || UCS_PTR_IS_ERR(request))
		return UCS_PTR_STATUS(request);
	for (time_t end = time(NULL) + 60; ucp_request_check_status(request) == UCS_INPROGRESS;) {
		ucp_worker_progress(worker);
		CHECK(time(NULL) < end);
	}
	ucs_status_t status = ucp_request_check_status(request);
	ucp_request_free(request);
	return status;
}

static void send_bytes(size_t length)
{
	ucp_request_param_t param = { 0 };
	CHECK(wait_for(ucp_tag_send_nbx(peer, out, length, TAG, &param)) == UCS_OK);
}

static void receive(size_t length)
{
	ucp_request_param_t param = { 0 };
	memset(into, 0, length);
	CHECK(wait_for(ucp_tag_recv_nbx(worker, into, length, TAG, -1, &param)) == UCS_OK);
	CHECK(!memcmp(into, out, length));
}

static void make_pattern(size_t length, int round)
{
	for (size_t at = 0; at < length; at++)
		out[at] = at * 7 + at / 251 + round;
}

static void lost(void *unused, ucp_ep_h ep, ucs_status_t status)
{
	(void)unused, (void)ep, (void)status;
	is_lost = 1;
}

static void asked(ucp_conn_request_h request, void *listener)
{
	(void)listener;
	ucp_ep_params_t params = {
		.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLER |
			      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
		.conn_request = request,
		.err_mode = UCP_ERR_HANDLING_MODE_PEER,
		.err_handler.cb = lost,
	};
	CHECK(ucp_ep_create(worker, &params, &peer) == UCS_OK);
}

int main(int argc, char **argv)
{
	ucp_context_h context;
	ucp_config_t *config;
	ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG };
	CHECK(ucp_config_read(NULL, NULL, &config) == UCS_OK);
	CHECK(ucp_init(&params, config, &context) == UCS_OK);
	ucp_config_release(config);
	ucp_worker_params_t of_worker = { .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
					  .thread_mode = UCS_THREAD_MODE_SINGLE };
	CHECK(ucp_worker_create(context, &of_worker, &worker) == UCS_OK);
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	CHECK(inet_pton(AF_INET, argc > 1 ? argv[1] : "0.0.0.0", &address.sin_addr) == 1);
	ucs_sock_addr_t at = { (struct sockaddr *)&address, sizeof(address) };
	ucp_listener_h listener = NULL;
	if (argc == 1) {
		ucp_listener_params_t of_listener = {
			.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
			.sockaddr = at,
			.conn_handler.cb = asked,
		};
		CHECK(ucp_listener_create(worker, &of_listener, &listener) == UCS_OK);
		for (time_t end = time(NULL) + 60; !peer; CHECK(time(NULL) < end))
			ucp_worker_progress(worker);
	} else {
		ucp_ep_params_t of_peer = {
			.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
				      UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
			.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
			.sockaddr = at,
			.err_mode = UCP_ERR_HANDLING_MODE_PEER,
			.err_handler.cb = lost,
		};
		CHECK(ucp_ep_create(worker, &of_peer, &peer) == UCS_OK);
	}
	int count = 0;
	for (int round = 0; round < ROUNDS; round++) {
		for (size_t index = 0; index < sizeof(lengths) / sizeof(*lengths); index++, count++) {
			make_pattern(lengths[index], round);
			if (argc > 1)
				send_bytes(lengths[index]);
			receive(lengths[index]);
			if (argc == 1)
				send_bytes(lengths[index]);
		}
	}
	/* The client closes first, and the server learns that the client has gone. */
	if (argc == 1) {
		for (time_t end = time(NULL) + 60; !is_lost; CHECK(time(NULL) < end))
			ucp_worker_progress(worker);
	}
	ucp_request_param_t close = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
				      .flags = argc == 1 ? UCP_EP_CLOSE_FLAG_FORCE : 0 };
	CHECK(wait_for(ucp_ep_close_nbx(peer, &close)) == UCS_OK);
	if (listener)
		ucp_listener_destroy(listener);
	ucp_worker_destroy(worker);
	ucp_cleanup(context);
	printf("ucp_sockets: %d messages are right\n", count);
	return 0;
}
