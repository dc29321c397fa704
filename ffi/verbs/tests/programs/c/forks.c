/*
 * This program forks before it uses the library, so both processes can use the library. After a later fork, calls of
 * the child that open the device, make an object or post a request fail with EIO, and the parent continues.
 */
#include <rdma/rdma_cma.h>
#include <sys/wait.h>

#include "common.h"

struct opened {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	struct rdma_event_channel *channel;
};

static char memory[4096];

static void open_all(struct opened *all)
{
	all->context = open_device();
	CHECK((all->pd = ibv_alloc_pd(all->context)));
	CHECK((all->cq = ibv_create_cq(all->context, 16, NULL, NULL, 0)));
	CHECK((all->mr = ibv_reg_mr(all->pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE)));
	struct ibv_qp_init_attr init = qp_init(all->cq, NULL, 4);
	CHECK((all->qp = ibv_create_qp(all->pd, &init)));
	CHECK((all->channel = rdma_create_event_channel()));
}

static void close_all(struct opened *all)
{
	rdma_destroy_event_channel(all->channel);
	CHECK(!ibv_destroy_qp(all->qp) && !ibv_dereg_mr(all->mr) && !ibv_destroy_cq(all->cq));
	CHECK(!ibv_dealloc_pd(all->pd) && !ibv_close_device(all->context));
}

/* Checks that calls with the parent's objects fail in a child. */
static void refused(struct opened *all)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, all->mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;
	CHECK(ibv_post_recv(all->qp, &recv, &bad_recv) == EIO && bad_recv == &recv);
	CHECK(ibv_post_send(all->qp, &send, &bad_send) == EIO && bad_send == &send);
	errno = 0;
	CHECK(!ibv_alloc_pd(all->context) && errno == EIO);
	errno = 0;
	CHECK(!ibv_create_cq(all->context, 4, NULL, NULL, 0) && errno == EIO);
	errno = 0;
	CHECK(!ibv_reg_mr(all->pd, memory, sizeof(memory), 0) && errno == EIO);
	errno = 0;
	CHECK(!rdma_create_event_channel() && errno == EIO);
	struct ibv_device **devices = ibv_get_device_list(NULL);
	CHECK(devices && devices[0]);
	errno = 0;
	CHECK(!ibv_open_device(devices[0]) && errno == EIO);
}

static void wait_for(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
	CHECK(!ibv_fork_init());
	struct opened all;
	pid_t child = fork();
	CHECK(child >= 0);
	open_all(&all);
	if (child == 0) {
		close_all(&all);
		_exit(0);
	}
	wait_for(child);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		refused(&all);
		_exit(0);
	}
	wait_for(child);
	close_all(&all);
	open_all(&all);
	close_all(&all);
	return 0;
}
