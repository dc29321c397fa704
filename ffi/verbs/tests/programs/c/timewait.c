/*
 * Tests RDMA_CM_EVENT_TIMEWAIT_EXIT, which follows RDMA_CM_EVENT_DISCONNECTED after about a second. An identifier that
 * is destroyed in between, or that was never connected, gets no such event.
 */
#include "cm.h"

static const char *const host = "127.0.0.1";
enum { PORT = 7471, WAIT_MS = 1000 };

static long now_ms(void)
{
	struct timespec now;
	CHECK(!clock_gettime(CLOCK_MONOTONIC, &now));
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Connects an identifier to the listener. Returns the identifier, and the one of the listener's side in `accepted`. */
static struct rdma_cm_id *connected(struct rdma_event_channel *channel, struct rdma_cm_id **accepted)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
	struct rdma_cm_id *id = resolve(channel, host, PORT);
	give_qp(id, 4);
	CHECK(!rdma_connect(id, &param));
	*accepted = next_request(channel);
	give_qp(*accepted, 4);
	CHECK(!rdma_accept(*accepted, &param));
	pass_event(channel, RDMA_CM_EVENT_ESTABLISHED);
	pass_event(channel, RDMA_CM_EVENT_ESTABLISHED);
	return id;
}

/* Waits for the end of the time-wait of an identifier that was disconnected at `since`. */
static void exits(struct rdma_event_channel *channel, struct rdma_cm_id *a, struct rdma_cm_id *b, long since)
{
	struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	CHECK((event->id == a || event->id == b) && !event->status && !event->listen_id);
	rdma_ack_cm_event(event);
	CHECK(now_ms() - since >= WAIT_MS - 1);
}

int main(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel(), *other = rdma_create_event_channel();
	CHECK(channel && other);
	struct rdma_cm_id *listener = listen_at(channel, host, PORT), *ids[2];
	long since;

	/* Both ends get the event, once, and after DISCONNECTED. */
	ids[0] = connected(channel, &ids[1]);
	since = now_ms();
	CHECK(!rdma_disconnect(ids[0]));
	pass_event(channel, RDMA_CM_EVENT_DISCONNECTED);
	pass_event(channel, RDMA_CM_EVENT_DISCONNECTED);
	exits(channel, ids[0], ids[1], since);
	exits(channel, ids[0], ids[1], since);
	CHECK(is_silent(channel));
	destroy(ids[0]);
	destroy(ids[1]);

	/* An identifier that is destroyed before the event was read gets none, and one that has moved gets it at its new
	 * channel. */
	ids[0] = connected(channel, &ids[1]);
	since = now_ms();
	CHECK(!rdma_disconnect(ids[1]));
	pass_event(channel, RDMA_CM_EVENT_DISCONNECTED);
	pass_event(channel, RDMA_CM_EVENT_DISCONNECTED);
	destroy(ids[1]);
	CHECK(!rdma_migrate_id(ids[0], other));
	exits(other, ids[0], ids[0], since);
	CHECK(is_silent(channel) && is_silent(other));
	destroy(ids[0]);
	ids[0] = connected(channel, &ids[1]);
	CHECK(!rdma_disconnect(ids[0]));
	usleep((WAIT_MS + 500) * 1000);
	/* The events wait, and vanish with their identifiers. */
	destroy(ids[0]);
	destroy(ids[1]);
	CHECK(is_silent(channel));

	/* A request that was rejected never was a connection. */
	ids[0] = resolve(channel, host, PORT);
	give_qp(ids[0], 4);
	CHECK(!rdma_connect(ids[0], NULL));
	ids[1] = next_request(channel);
	CHECK(!rdma_reject(ids[1], NULL, 0));
	pass_event(channel, RDMA_CM_EVENT_REJECTED);
	usleep((WAIT_MS + 500) * 1000);
	CHECK(is_silent(channel));
	destroy(ids[0]);
	destroy(ids[1]);

	destroy(listener);
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(other);
	return 0;
}
