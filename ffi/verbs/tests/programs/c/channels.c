/*
 * Tests completion channels, event channels and the asynchronous events of a context. Each descriptor is readable
 * exactly while an event waits, however the event is removed. Destroying an object waits for events that were read
 * and not acknowledged, and no event of the object is read later.
 */
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "common.h"

static struct ibv_context *context;
static struct ibv_pd *pd;

static int is_readable(int fd, int ms)
{
	struct pollfd waits = { fd, POLLIN, 0 };
	int found = poll(&waits, 1, ms);
	CHECK(found >= 0);
	return found;
}

static void set_nonblocking(int fd, int on)
{
	int flags = fcntl(fd, F_GETFL);
	CHECK(flags >= 0 && !fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK));
}

static void nap(void)
{
	usleep(200000);
}

/* ---- the kinds of objects: how an object is made, how its event is caused, and how the event is read ---- */

struct kind {
	const char *name;
	void *(*open)(void);
	int (*fd)(void *channel);
	void *(*make)(void *channel);
	/* Causes one more event. The event is in the channel when the function returns. */
	void (*happen)(void *object);
	/* Reads an event. Returns its object, or NULL with an error number. */
	void *(*read)(void *channel, void **event);
	void (*ack)(void *object, void *event);
	void (*destroy)(void *object);
	void (*close)(void *channel);
};

static void *open_comp(void)
{
	return ibv_create_comp_channel(context);
}

static int fd_comp(void *channel)
{
	return ((struct ibv_comp_channel *)channel)->fd;
}

static void *make_comp(void *channel)
{
	return ibv_create_cq(context, 64, NULL, channel, 0);
}

/* Adds the completion of a flushed receive to a queue. */
static struct ibv_qp *flush_one(struct ibv_cq *cq)
{
	struct ibv_qp *qp = make_qp(pd, cq, 1);
	struct ibv_recv_wr wr = { 0 }, *bad;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK(!ibv_post_recv(qp, &wr, &bad) && !ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	return qp;
}

static void happen_comp(void *object)
{
	struct ibv_cq *cq = object;
	CHECK(!ibv_req_notify_cq(cq, 0) && !ibv_destroy_qp(flush_one(cq)));
}

static void *read_comp(void *channel, void **event)
{
	struct ibv_cq *cq;
	return ibv_get_cq_event(channel, &cq, event) ? NULL : cq;
}

static void ack_comp(void *object, void *event)
{
	(void)event;
	ibv_ack_cq_events(object, 1);
}

static void destroy_comp(void *object)
{
	CHECK(!ibv_destroy_cq(object));
}

static void close_comp(void *channel)
{
	CHECK(!ibv_destroy_comp_channel(channel));
}

/* UCX arms a queue and waits without a further poll. As with NICs of Mellanox, a completion that arrived after the last
 * poll causes the event. A program that arms the queue before it polls, as the manual says, gets one event only. */
static void missed(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, channel, 0), *found;
	struct ibv_wc wc;
	void *its;
	CHECK(channel && cq && !ibv_req_notify_cq(cq, 0));
	struct ibv_qp *qps[3] = { flush_one(cq) };
	for (int round = 1; round <= 2; round++) {
		CHECK(is_readable(channel->fd, 10000) && !ibv_get_cq_event(channel, &found, &its) && found == cq);
		CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && !ibv_poll_cq(cq, 1, &wc));
		qps[round] = flush_one(cq);
		CHECK(!is_readable(channel->fd, 0) && !ibv_req_notify_cq(cq, round == 2));
	}
	CHECK(is_readable(channel->fd, 10000) && !ibv_get_cq_event(channel, &found, &its));
	CHECK(!ibv_req_notify_cq(cq, 0) && !is_readable(channel->fd, 0) && ibv_poll_cq(cq, 1, &wc) == 1);
	ibv_ack_cq_events(cq, 3);
	for (int i = 0; i < 3; i++)
		CHECK(!ibv_destroy_qp(qps[i]));
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
}

static void *open_cm(void)
{
	return rdma_create_event_channel();
}

static int fd_cm(void *channel)
{
	return ((struct rdma_event_channel *)channel)->fd;
}

static void *make_cm(void *channel)
{
	struct rdma_cm_id *id;
	CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	return id;
}

static void happen_cm(void *object)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(7999) };
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(!rdma_resolve_addr(object, NULL, (struct sockaddr *)&to, 1000));
}

static void *read_cm(void *channel, void **event)
{
	struct rdma_cm_event *found;
	if (rdma_get_cm_event(channel, &found))
		return NULL;
	*event = found;
	return found->id;
}

static void ack_cm(void *object, void *event)
{
	(void)object;
	CHECK(!rdma_ack_cm_event(event));
}

static void destroy_cm(void *object)
{
	CHECK(!rdma_destroy_id(object));
}

static void close_cm(void *channel)
{
	rdma_destroy_event_channel(channel);
}

/* The channel of asynchronous events is the context. */
static void *open_async(void)
{
	return open_device();
}

static int fd_async(void *channel)
{
	return ((struct ibv_context *)channel)->async_fd;
}

static struct ibv_pd *pd_of(void *channel)
{
	static struct ibv_pd *domain;
	if (!domain || domain->context != channel)
		CHECK(domain = ibv_alloc_pd(channel));
	return domain;
}

static void *make_srq(void *channel)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	return ibv_create_srq(pd_of(channel), &init);
}

static void happen_srq(void *object)
{
	struct ibv_srq_attr attr = { .srq_limit = 1 };
	CHECK(!ibv_modify_srq(object, &attr, IBV_SRQ_LIMIT));
}

static void *read_async(void *channel, void **event)
{
	struct ibv_async_event *found = malloc(sizeof(*found));
	CHECK(found);
	if (ibv_get_async_event(channel, found)) {
		free(found);
		return NULL;
	}
	*event = found;
	return found->element.srq;
}

static void ack_async(void *object, void *event)
{
	(void)object;
	ibv_ack_async_event(event);
	free(event);
}

static void destroy_srq(void *object)
{
	CHECK(!ibv_destroy_srq(object));
}

static void *make_qp_with_srq(void *channel)
{
	struct ibv_pd *domain = pd_of(channel);
	static struct ibv_srq *srq;
	static struct ibv_cq *cq;
	if (!srq || srq->context != channel) {
		CHECK(srq = make_srq(channel));
		CHECK(cq = ibv_create_cq(channel, 64, NULL, NULL, 0));
	}
	struct ibv_qp_init_attr init = qp_init(cq, srq, 1);
	struct ibv_qp *qp = ibv_create_qp(domain, &init);
	CHECK(qp);
	return qp;
}

/* Moves the queue pair to ERR. This change causes the event that the queue pair uses no more requests of its
 * shared receive queue. The event occurs once after each reset. */
static void happen_qp(void *object)
{
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET }, error = { .qp_state = IBV_QPS_ERR };
	CHECK(!ibv_modify_qp(object, &reset, IBV_QP_STATE));
	init_qp(object);
	CHECK(!ibv_modify_qp(object, &error, IBV_QP_STATE));
}

static void destroy_qp(void *object)
{
	CHECK(!ibv_destroy_qp(object));
}

/* An overflow ends the queue, so each queue has one event. */
static void *make_small_cq(void *channel)
{
	return ibv_create_cq(channel, 1, NULL, NULL, 0);
}

static void happen_small_cq(void *object)
{
	struct ibv_cq *cq = object;
	struct ibv_qp *qp = make_qp(pd_of(cq->context), cq, 2);
	struct ibv_recv_wr wr = { 0 }, *bad;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	CHECK(!ibv_post_recv(qp, &wr, &bad) && !ibv_post_recv(qp, &wr, &bad));
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE) && !ibv_destroy_qp(qp));
}

static void close_async(void *channel)
{
	CHECK(!ibv_close_device(channel));
}

static const struct kind kinds[] = {
	{ "completions", open_comp, fd_comp, make_comp, happen_comp, read_comp, ack_comp, destroy_comp, close_comp },
	{ "identifiers", open_cm, fd_cm, make_cm, happen_cm, read_cm, ack_cm, destroy_cm, close_cm },
	{ "shared queues", open_async, fd_async, make_srq, happen_srq, read_async, ack_async, destroy_srq, close_async },
	{ "queue pairs", open_async, fd_async, make_qp_with_srq, happen_qp, read_async, ack_async, destroy_qp, close_async },
	{ "overflows", open_async, fd_async, make_small_cq, happen_small_cq, read_async, ack_async, destroy_comp, close_async },
};

/* Reads the event of `object`, which must be in the channel. */
static void *read_one(const struct kind *kind, void *channel, void *object)
{
	void *event;
	CHECK(is_readable(kind->fd(channel), 60000));
	CHECK(kind->read(channel, &event) == object);
	return event;
}

static void nothing_waits(const struct kind *kind, void *channel)
{
	void *event;
	CHECK(!is_readable(kind->fd(channel), 50));
	set_nonblocking(kind->fd(channel), 1);
	errno = 0;
	CHECK(!kind->read(channel, &event) && errno == EAGAIN);
	CHECK(!is_readable(kind->fd(channel), 0));
}

/* When an object is destroyed, its events are removed, whether they are before or after events of other objects. */
static void events_go_with_their_object(const struct kind *kind, int nonblocking)
{
	void *channel = kind->open(), *event;
	CHECK(channel);
	for (int order = 0; order < 2; order++) {
		void *goes = kind->make(channel), *stays = kind->make(channel);
		CHECK(goes && stays);
		set_nonblocking(kind->fd(channel), nonblocking);
		CHECK(!is_readable(kind->fd(channel), 0));
		/* The event is reported at once, even while the engine sleeps. */
		nap();
		kind->happen(order ? goes : stays);
		CHECK(is_readable(kind->fd(channel), 0));
		kind->happen(order ? stays : goes);
		kind->destroy(goes);
		event = read_one(kind, channel, stays);
		kind->ack(stays, event);
		nothing_waits(kind, channel);
		kind->destroy(stays);

		goes = kind->make(channel);
		kind->happen(goes);
		CHECK(is_readable(kind->fd(channel), 0));
		kind->destroy(goes);
		nothing_waits(kind, channel);
	}
	kind->close(channel);
}

struct destroyer {
	const struct kind *kind;
	void *object;
	atomic_int begun, done;
};

static void *destroy_in_thread(void *of)
{
	struct destroyer *destroyer = of;
	destroyer->begun = 1;
	destroyer->kind->destroy(destroyer->object);
	destroyer->done = 1;
	return NULL;
}

/* The destruction of an object waits until its events that were read are acknowledged. */
static void destroying_waits(const struct kind *kind)
{
	void *channel = kind->open();
	CHECK(channel);
	void *object = kind->make(channel);
	kind->happen(object);
	void *event = read_one(kind, channel, object);
	struct destroyer destroyer = { .kind = kind, .object = object };
	pthread_t thread;
	CHECK(!pthread_create(&thread, NULL, destroy_in_thread, &destroyer));
	while (!destroyer.begun)
		sched_yield();
	nap();
	CHECK(!destroyer.done);
	kind->ack(object, event);
	CHECK(!pthread_join(thread, NULL) && destroyer.done);
	nothing_waits(kind, channel);
	kind->close(channel);
}

/* Several events of a completion queue are acknowledged by one call, or by several. */
static void events_are_counted(void)
{
	void *channel = open_comp(), *user;
	struct ibv_cq *cq = make_comp(channel), *of;
	for (int event = 0; event < 5; event++) {
		happen_comp(cq);
		CHECK(!ibv_get_cq_event(channel, &of, &user) && of == cq);
	}
	struct destroyer destroyer = { .kind = &kinds[0], .object = cq };
	pthread_t thread;
	CHECK(!pthread_create(&thread, NULL, destroy_in_thread, &destroyer));
	for (int left = 5; left > 1; left -= 2) {
		nap();
		CHECK(!destroyer.done);
		ibv_ack_cq_events(cq, 2);
	}
	ibv_ack_cq_events(cq, 0);
	nap();
	CHECK(!destroyer.done);
	ibv_ack_cq_events(cq, 1);
	CHECK(!pthread_join(thread, NULL) && destroyer.done);
	close_comp(channel);
}

/* ---- threads that read while others destroy ---- */

enum { GETTERS = 3, ROUNDS = 400, OBJECTS = 16 };

struct race {
	const struct kind *kind;
	void *channel;
	/* The objects that are not destroyed. */
	void *_Atomic living[OBJECTS];
	atomic_int stop, events;
};

static int lives(struct race *race, void *object)
{
	for (int at = 0; at < OBJECTS; at++)
		if (race->living[at] == object)
			return 1;
	return 0;
}

static void *get(void *of)
{
	struct race *race = of;
	while (!race->stop) {
		void *event, *object = race->kind->read(race->channel, &event);
		if (!object) {
			CHECK(errno == EAGAIN);
			sched_yield();
			continue;
		}
		race->events++;
		CHECK(lives(race, object));
		sched_yield();
		CHECK(lives(race, object));
		race->kind->ack(object, event);
	}
	return NULL;
}

static void readers_race_with_the_end(const struct kind *kind, int nonblocking)
{
	struct race race = { .kind = kind, .channel = kind->open() };
	CHECK(race.channel);
	set_nonblocking(kind->fd(race.channel), nonblocking);
	pthread_t threads[GETTERS];
	for (int at = 0; at < GETTERS; at++)
		CHECK(!pthread_create(&threads[at], NULL, get, &race));
	for (int round = 0; round < ROUNDS; round++) {
		int at = round % OBJECTS;
		void *object = kind->make(race.channel);
		CHECK(object);
		race.living[at] = object;
		kind->happen(object);
		if (round & 1)
			sched_yield();
		kind->destroy(object);
		race.living[at] = NULL;
	}
	CHECK(!is_readable(kind->fd(race.channel), 0));
	race.stop = 1;
	/* These last events end the wait of the threads that still wait. */
	for (int at = 0; at < GETTERS && !nonblocking; at++) {
		void *object = race.living[at] = kind->make(race.channel);
		CHECK(object);
		kind->happen(object);
	}
	for (int at = 0; at < GETTERS; at++)
		CHECK(!pthread_join(threads[at], NULL));
	for (int at = 0; at < GETTERS && !nonblocking; at++)
		kind->destroy(race.living[at]);
	nothing_waits(kind, race.channel);
	fprintf(stderr, "%s: %d of %d events were read\n", kind->name, race.events, ROUNDS);
	kind->close(race.channel);
}

int main(void)
{
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)));
	events_are_counted();
	missed();
	for (size_t at = 0; at < sizeof(kinds) / sizeof(*kinds); at++) {
		fprintf(stderr, "%s\n", kinds[at].name);
		events_go_with_their_object(&kinds[at], 0);
		events_go_with_their_object(&kinds[at], 1);
		destroying_waits(&kinds[at]);
		readers_race_with_the_end(&kinds[at], 0);
		readers_race_with_the_end(&kinds[at], 1);
	}
	puts("no event is left behind");
	return 0;
}
