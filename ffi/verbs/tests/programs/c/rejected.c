/*
 * Tests a server that rejects a request and exits at once, without another call. Its client gets REJECTED with the
 * private data. With a hardware device, the kernel would send this answer. The client also gets REJECTED if the
 * server destroys the request, or the listener with its waiting request.
 */
#include <string.h>
#include <sys/wait.h>

#include "cm.h"

enum { DEPTH = 4, PORT = 7471, ROUNDS = 10 };

enum way { WITH_DATA, WITHOUT_DATA, DESTROYS_REQUEST, DESTROYS_LISTENER, WAYS };

static const char REASON[] = "not today";

/* Rejects the first request and exits. */
static void serve(enum way way, int listens)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(channel);
	struct rdma_cm_id *listener = listen_at(channel, "127.0.0.1", PORT), *id;
	CHECK(write(listens, "", 1) == 1);
	if (way == DESTROYS_LISTENER) {
		struct pollfd fd = { .fd = channel->fd, .events = POLLIN };
		CHECK(poll(&fd, 1, 60000) == 1);
		CHECK(!rdma_destroy_id(listener));
		_exit(0);
	}
	id = next_request(channel);
	if (way == DESTROYS_REQUEST)
		CHECK(!rdma_destroy_id(id));
	else if (way == WITH_DATA)
		CHECK(!rdma_reject(id, REASON, sizeof(REASON)));
	else
		CHECK(!rdma_reject(id, NULL, 0));
	_exit(0);
}

/* Runs both ends, each in its own process. */
static void round_of(enum way way)
{
	int ready[2], status;
	char byte;
	CHECK(!pipe(ready));
	pid_t server = fork();
	CHECK(server >= 0);
	if (!server)
		serve(way, ready[1]);
	CHECK(read(ready[0], &byte, 1) == 1);
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(channel);
	struct rdma_cm_id *id = resolve(channel, "127.0.0.1", PORT);
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	give_qp(id, DEPTH);
	CHECK(!rdma_connect(id, &param));
	struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_REJECTED);
	CHECK(event->status == -ECONNREFUSED);
	if (way == WITH_DATA)
		CHECK(event->param.conn.private_data_len >= sizeof(REASON) &&
		      !memcmp(event->param.conn.private_data, REASON, sizeof(REASON)));
	rdma_ack_cm_event(event);
	destroy(id);
	rdma_destroy_event_channel(channel);
	CHECK(waitpid(server, &status, 0) == server && status == 0);
}

int main(void)
{
	/* Each round forks its processes before they use the library. */
	for (int round = 0; round < ROUNDS; round++)
		for (int way = 0; way < WAYS; way++) {
			int status;
			/* Without the library's thread, poll() does not report a request. */
			if (way == DESTROYS_LISTENER && getenv("UWARP_THREAD"))
				continue;
			pid_t child = fork();
			CHECK(child >= 0);
			if (!child) {
				round_of(way);
				_exit(0);
			}
			CHECK(waitpid(child, &status, 0) == child);
			if (status)
				fprintf(stderr, "way %d, round %d\n", way, round);
			CHECK(status == 0);
		}
	puts("clients of servers that reject and end get the answer");
	return 0;
}
