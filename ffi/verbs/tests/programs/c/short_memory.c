/*
 * Tests a program that runs out of memory (`ulimit -v`) while it makes objects: the call fails with ENOMEM, the
 * process continues, and everything works when memory is available again.
 */
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <string.h>
#include <sys/resource.h>

#include "common.h"

/*
 * The number of additional bytes that the process may allocate, and the maximum number of objects that fit
 * into these bytes.
 */
enum { ROOM = 16 << 20, MOST = 400000 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct rdma_event_channel *channel;
static uint8_t buffer[64];
static void *objects[MOST];

/* Returns the size of the address space of this process in bytes. */
static rlim_t size(void)
{
	char text[64] = { 0 };
	int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && read(fd, text, sizeof(text) - 1) > 0 && !close(fd));
	return strtoul(text, NULL, 10) * (rlim_t)sysconf(_SC_PAGESIZE);
}

static void limit_to(rlim_t bytes)
{
	struct rlimit limit;
	CHECK(!getrlimit(RLIMIT_AS, &limit));
	limit.rlim_cur = bytes;
	CHECK(!setrlimit(RLIMIT_AS, &limit));
}

static void *make_pd(void)
{
	return ibv_alloc_pd(context);
}

static void *make_cq(void)
{
	return ibv_create_cq(context, 2000, NULL, NULL, 0);
}

static void *make_srq(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 2000, .max_sge = 1 } };
	return ibv_create_srq(pd, &init);
}

static void *make_pair(void)
{
	struct ibv_qp_init_attr init = qp_init(cq, NULL, 500);
	return ibv_create_qp(pd, &init);
}

static void *make_mr(void)
{
	return ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
}

static void *make_mw(void)
{
	return ibv_alloc_mw(pd, IBV_MW_TYPE_2);
}

static void *make_id(void)
{
	struct rdma_cm_id *id;
	return rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ? NULL : id;
}

static int end_pd(void *object)
{
	return ibv_dealloc_pd(object);
}

static int end_cq(void *object)
{
	return ibv_destroy_cq(object);
}

static int end_srq(void *object)
{
	return ibv_destroy_srq(object);
}

static int end_pair(void *object)
{
	return ibv_destroy_qp(object);
}

static int end_mr(void *object)
{
	return ibv_dereg_mr(object);
}

static int end_mw(void *object)
{
	return ibv_dealloc_mw(object);
}

static int end_id(void *object)
{
	return rdma_destroy_id(object);
}

static void exhaust(const char *name, void *(*make)(void), int (*end)(void *))
{
	int count = 0;
	limit_to(size() + ROOM);
	do
		errno = 0;
	while (count < MOST && (objects[count] = make()) && ++count);
	int error = errno;
	limit_to(RLIM_INFINITY);
	if (count == MOST || error != ENOMEM)
		fprintf(stderr, "%s: errno %d after %d\n", name, error, count);
	CHECK(count < MOST && error == ENOMEM);
	/* One object is destroyed first, since the process may also have reached the maximum number of objects. */
	CHECK(!count || !end(objects[--count]));
	void *another = make();
	CHECK(another && !end(another));
	while (count)
		CHECK(!end(objects[--count]));
}

/* If a queue cannot grow, it is unchanged. */
static void resize(void)
{
	struct ibv_cq *other = ibv_create_cq(context, 64, NULL, NULL, 0);
	CHECK(other);
	limit_to(size() + ROOM);
	CHECK(ibv_resize_cq(other, 1000000) == ENOMEM && other->cqe == 64);
	limit_to(RLIM_INFINITY);
	CHECK(!ibv_resize_cq(other, 1000000) && other->cqe == 1000000 && !ibv_destroy_cq(other));
}

/* Checks that a message still arrives at another queue pair. */
static void works(void)
{
	struct ibv_qp *ends[2] = { make_qp(pd, cq, 4), make_qp(pd, cq, 4) };
	connect_qp(ends[0], ends[1]->qp_num);
	connect_qp(ends[1], ends[0]->qp_num);
	struct ibv_recv_wr *bad_recv, recv = { .wr_id = 1 };
	struct ibv_send_wr *bad_send;
	struct ibv_send_wr send = { .wr_id = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	CHECK(!ibv_post_recv(ends[0], &recv, &bad_recv) && !ibv_post_send(ends[1], &send, &bad_send));
	for (int i = 0; i < 2; i++)
		CHECK(next_of(cq).status == IBV_WC_SUCCESS);
	CHECK(!ibv_destroy_qp(ends[0]) && !ibv_destroy_qp(ends[1]));
}

int main(void)
{
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	CHECK((channel = rdma_create_event_channel()));
	works();
	exhaust("domains", make_pd, end_pd);
	exhaust("completion queues", make_cq, end_cq);
	exhaust("shared receive queues", make_srq, end_srq);
	exhaust("queue pairs", make_pair, end_pair);
	exhaust("regions", make_mr, end_mr);
	exhaust("windows", make_mw, end_mw);
	exhaust("identifiers", make_id, end_id);
	resize();
	works();
	rdma_destroy_event_channel(channel);
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
