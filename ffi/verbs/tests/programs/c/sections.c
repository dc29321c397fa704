/*
 * Tests critical sections: between ibv_wr_start and ibv_wr_complete, and between ibv_start_poll and ibv_end_poll,
 * other threads wait, unless the program has promised to use one thread. ibv_wr_complete posts all requests of a
 * list or no request.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "common.h"

/* The queues are short, so that lists often find no room. */
enum { DEPTH = 5, BATCHES = 2000, IN_BATCH = 3, WRITERS = 2, REQUESTS = (WRITERS * IN_BATCH + 1) * BATCHES };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t memory[4096];

/* The program does not poll this completion queue of the far ends. */
static struct ibv_cq *far_cq;
static struct ibv_qp *far;

/* A queue pair in INIT. */
static struct ibv_qp *make_alone(struct ibv_pd *domain, struct ibv_cq *cq, uint32_t depth)
{
	struct ibv_qp_init_attr plain = qp_init(cq, NULL, depth);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = plain.cap,
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = domain,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_BIND_MW,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	CHECK(qp);
	init_qp(qp);
	return qp;
}

/* Makes a queue pair like make_alone, and connects it to its far end. */
static struct ibv_qp *make(struct ibv_pd *domain, struct ibv_cq *cq, uint32_t depth)
{
	struct ibv_qp *qp = make_alone(domain, cq, depth);
	far = make_qp(pd, far_cq, 1);
	connect_qp(qp, far->qp_num);
	connect_qp(far, qp->qp_num);
	return qp;
}

static void destroy(struct ibv_qp *qp)
{
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(far));
}

static struct ibv_cq_ex *make_cq(uint32_t flags, struct ibv_pd *parent)
{
	struct ibv_cq_init_attr_ex init = {
		.cqe = 2 * DEPTH,
		.wc_flags = IBV_WC_EX_WITH_BYTE_LEN,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS | (parent ? IBV_CQ_INIT_ATTR_MASK_PD : 0),
		.flags = flags,
		.parent_domain = parent,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &init);
	CHECK(cq);
	return cq;
}

static void add_write(struct ibv_qp_ex *qp, uint64_t wr_id)
{
	qp->wr_id = wr_id;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)memory + 2048);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 8);
}

/* Binds a window to no memory. */
static void add_bind(struct ibv_qp_ex *qp, struct ibv_mw *mw, int access)
{
	struct ibv_mw_bind_info nothing = { .mw_access_flags = access };
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_bind_mw(qp, mw, ibv_inc_rkey(mw->rkey), &nothing);
}

static int post_write(struct ibv_qp *qp, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr *bad, wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.send_flags = IBV_SEND_SIGNALED;
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 2048;
	wr.wr.rdma.rkey = mr->rkey;
	return ibv_post_send(qp, &wr, &bad);
}

static void wait_ms(int ms)
{
	struct timespec pause = { .tv_nsec = ms * 1000000L };
	nanosleep(&pause, NULL);
}

static void expect(struct ibv_cq *cq, uint64_t wr_id)
{
	struct ibv_wc wc;
	time_t limit = time(NULL) + 30;
	while (!ibv_poll_cq(cq, 1, &wc))
		CHECK(time(NULL) < limit);
	CHECK(wc.wr_id == wr_id && wc.status == IBV_WC_SUCCESS);
}

static void expect_nothing(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	for (int i = 0; i < 1000; i++)
		CHECK(!ibv_poll_cq(cq, 1, &wc));
}

/* The call that another thread makes at the same time. */
struct other {
	enum { START, POST, BIND, POLL } call;
	struct ibv_qp *qp;
	struct ibv_cq_ex *cq;
	struct ibv_mw *mw;
	atomic_int done;
};

static void *act(void *argument)
{
	struct other *other = argument;
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_mw_bind bind = { .wr_id = 2, .send_flags = IBV_SEND_SIGNALED };
	switch (other->call) {
	case START:
		ibv_wr_start(ibv_qp_to_qp_ex(other->qp));
		other->done = 1;
		ibv_wr_abort(ibv_qp_to_qp_ex(other->qp));
		break;
	case POST:
		CHECK(!post_write(other->qp, 2));
		other->done = 1;
		break;
	case BIND:
		CHECK(!ibv_bind_mw(other->qp, other->mw, &bind));
		other->done = 1;
		break;
	case POLL:
		CHECK(ibv_start_poll(other->cq, &attr) == ENOENT);
		other->done = 1;
		break;
	}
	return NULL;
}

static void begin(struct other *other, pthread_t *thread)
{
	other->done = 0;
	CHECK(!pthread_create(thread, NULL, act, other));
	wait_ms(100);
}

static void others_wait(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp *qp = make(pd, cq, DEPTH);
	struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(qp);
	struct other other = { .qp = qp, .mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1) };
	CHECK(other.mw);
	pthread_t thread;
	for (other.call = START; other.call <= BIND; other.call++) {
		for (int aborts = 0; aborts < 2; aborts++) {
			ibv_wr_start(qx);
			add_write(qx, 1);
			begin(&other, &thread);
			CHECK(!other.done);
			if (aborts)
				ibv_wr_abort(qx);
			else
				CHECK(!ibv_wr_complete(qx));
			CHECK(!pthread_join(thread, NULL));
			if (!aborts)
				expect(cq, 1);
			if (other.call != START)
				expect(cq, 2);
			expect_nothing(cq);
		}
	}
	/* Two waiting threads both continue, although the first thread does not enter a section. */
	struct other posts = { .call = POST, .qp = qp }, starts = { .call = START, .qp = qp };
	pthread_t threads[2];
	ibv_wr_start(qx);
	begin(&posts, &threads[0]);
	begin(&starts, &threads[1]);
	CHECK(!posts.done && !starts.done);
	ibv_wr_abort(qx);
	CHECK(!pthread_join(threads[0], NULL) && !pthread_join(threads[1], NULL));
	expect(cq, 2);
	/* The error of one list does not affect the next list. */
	ibv_wr_start(qx);
	ibv_wr_set_sge(qx, mr->lkey, (uintptr_t)memory, 8);
	ibv_wr_abort(qx);
	ibv_wr_start(qx);
	add_write(qx, 3);
	CHECK(!ibv_wr_complete(qx));
	expect(cq, 3);
	/* A list with an invalid call is refused as a whole. */
	ibv_wr_start(qx);
	ibv_wr_set_sge(qx, mr->lkey, (uintptr_t)memory, 8);
	add_write(qx, 3);
	CHECK(ibv_wr_complete(qx) == EINVAL);
	/* The inline flag belongs to the other interface, and is ignored in this interface. */
	ibv_wr_start(qx);
	qx->wr_id = 3;
	qx->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	ibv_wr_rdma_write(qx, mr->rkey, (uintptr_t)memory + 2048);
	ibv_wr_set_sge(qx, mr->lkey, (uintptr_t)memory, 1000);
	CHECK(!ibv_wr_complete(qx));
	expect(cq, 3);
	expect_nothing(cq);
	/* A refused list also ends its section. */
	ibv_wr_start(qx);
	qx->wr_id = 3;
	ibv_wr_rdma_write(qx, mr->rkey, (uintptr_t)memory);
	ibv_wr_set_inline_data(qx, memory, sizeof(memory));
	CHECK(ibv_wr_complete(qx) == EINVAL);
	ibv_wr_start(qx);
	add_write(qx, 4);
	CHECK(!ibv_wr_complete(qx));
	expect(cq, 4);
	expect_nothing(cq);
	destroy(qp);
	CHECK(!ibv_dealloc_mw(other.mw) && !ibv_destroy_cq(cq));
}

/* If a request of a list cannot be posted, no request of the list is posted. */
static void whole_or_not_at_all(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp *qp = make(pd, cq, 4);
	struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(qp);
	ibv_wr_start(qx);
	for (int i = 0; i < 5; i++)
		add_write(qx, i);
	CHECK(ibv_wr_complete(qx) == ENOMEM);
	expect_nothing(cq);
	/* The second request is longer than any message may be. */
	struct ibv_sge sges[2] = { { (uintptr_t)memory, UINT32_MAX, mr->lkey }, { (uintptr_t)memory, UINT32_MAX, mr->lkey } };
	ibv_wr_start(qx);
	add_write(qx, 1);
	qx->wr_id = 2;
	ibv_wr_rdma_write(qx, mr->rkey, (uintptr_t)memory + 2048);
	ibv_wr_set_sge_list(qx, 2, sges);
	CHECK(ibv_wr_complete(qx) == EINVAL);
	expect_nothing(cq);
	/* All four entries of the send queue are free. */
	ibv_wr_start(qx);
	for (int i = 0; i < 4; i++)
		add_write(qx, i);
	CHECK(!ibv_wr_complete(qx));
	/* An entry is free only after its completion is polled. */
	ibv_wr_start(qx);
	add_write(qx, 4);
	CHECK(ibv_wr_complete(qx) == ENOMEM);
	for (int i = 0; i < 4; i++)
		expect(cq, i);
	expect_nothing(cq);
	/* Binds use entries like other requests. */
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	CHECK(mw);
	ibv_wr_start(qx);
	for (int i = 0; i < 5; i++) {
		if (i % 2)
			add_bind(qx, mw, 0);
		else
			add_write(qx, i);
	}
	CHECK(ibv_wr_complete(qx) == ENOMEM);
	expect_nothing(cq);
	destroy(qp);
	/*
	 * A queue pair that is connected to itself also refuses a list of binds for which it has too few
	 * entries.
	 */
	qp = make_alone(pd, cq, 4);
	connect_qp(qp, qp->qp_num);
	qx = ibv_qp_to_qp_ex(qp);
	ibv_wr_start(qx);
	for (int i = 0; i < 5; i++)
		add_bind(qx, mw, 0);
	CHECK(ibv_wr_complete(qx) == ENOMEM);
	expect_nothing(cq);
	CHECK(!ibv_destroy_qp(qp) && !ibv_dealloc_mw(mw) && !ibv_destroy_cq(cq));
}

/* The error of a list is the error of its first invalid call. */
static void first_error(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, DEPTH, NULL, NULL, 0);
	struct ibv_mw *mws[2] = { ibv_alloc_mw(pd, IBV_MW_TYPE_1), ibv_alloc_mw(pd, IBV_MW_TYPE_2) };
	CHECK(cq && mws[0] && mws[1]);
	struct ibv_qp *qp = make(pd, cq, 4);
	struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(qp);
	for (int second = 0; second < 2; second++) {
		/* A type 1 window is bound by its own call; on-demand paging is not supported. */
		int flags[2] = { 0, IBV_ACCESS_ON_DEMAND };
		ibv_wr_start(qx);
		add_bind(qx, mws[second], flags[second]);
		add_bind(qx, mws[!second], flags[!second]);
		CHECK(ibv_wr_complete(qx) == (second ? EOPNOTSUPP : EINVAL));
	}
	expect_nothing(cq);
	destroy(qp);
	CHECK(!ibv_dealloc_mw(mws[0]) && !ibv_dealloc_mw(mws[1]) && !ibv_destroy_cq(cq));
}

/*
 * One thread posts long lists, and another thread posts short lists. Each thread uses one of the two interfaces.
 * Posting a list excludes other threads until its last request is posted, so no list is interleaved with another.
 */
enum { LONG = 3000, SHORT = 2, SHORTS = 1000, ROUNDS = 30 };

struct lists {
	struct ibv_qp *qp;
	int is_ex;
	pthread_barrier_t begin;
	atomic_int done;
};

/* Posts a list. The wr_id of each request has the number of the list and the place in the list. */
static void post_list(struct ibv_qp *qp, int is_ex, uint64_t number, int count)
{
	static struct ibv_send_wr of_long[LONG], of_short[SHORT];
	struct ibv_send_wr *wrs = count == LONG ? of_long : of_short, *bad;
	struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(qp);
	if (is_ex)
		ibv_wr_start(qx);
	for (int i = 0; i < count; i++) {
		if (is_ex) {
			qx->wr_id = number << 32 | i;
			qx->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_rdma_write(qx, mr->rkey, (uintptr_t)memory);
		} else {
			wrs[i] = (struct ibv_send_wr){ .wr_id = number << 32 | i, .opcode = IBV_WR_RDMA_WRITE };
			wrs[i].send_flags = IBV_SEND_SIGNALED;
			wrs[i].wr.rdma.remote_addr = (uintptr_t)memory;
			wrs[i].wr.rdma.rkey = mr->rkey;
			wrs[i].next = i + 1 < count ? &wrs[i + 1] : NULL;
		}
	}
	CHECK(!(is_ex ? ibv_wr_complete(qx) : ibv_post_send(qp, wrs, &bad)));
}

static void *post_long(void *argument)
{
	struct lists *lists = argument;
	pthread_barrier_wait(&lists->begin);
	post_list(lists->qp, lists->is_ex, 0, LONG);
	lists->done = 1;
	return NULL;
}

static void lists_are_whole(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, LONG + SHORTS * SHORT, NULL, NULL, 0);
	CHECK(cq);
	struct lists lists = { .qp = make(pd, cq, LONG + SHORTS * SHORT) };
	for (int round = 0; round < ROUNDS; round++) {
		pthread_t thread;
		lists.is_ex = round % 2;
		lists.done = 0;
		CHECK(!pthread_barrier_init(&lists.begin, NULL, 2));
		CHECK(!pthread_create(&thread, NULL, post_long, &lists));
		pthread_barrier_wait(&lists.begin);
		int shorts = 0;
		while (!lists.done && shorts < SHORTS)
			post_list(lists.qp, !lists.is_ex, ++shorts, SHORT);
		CHECK(!pthread_join(thread, NULL) && !pthread_barrier_destroy(&lists.begin));
		uint64_t next = 0;
		int lefts = shorts + 1;
		time_t limit = time(NULL) + 60;
		for (int left = LONG + shorts * SHORT; left > 0; left--) {
			struct ibv_wc wc;
			while (!ibv_poll_cq(cq, 1, &wc))
				CHECK(time(NULL) < limit);
			uint32_t place = wc.wr_id, count = wc.wr_id >> 32 ? SHORT : LONG;
			CHECK(wc.status == IBV_WC_SUCCESS && (place ? wc.wr_id == next : lefts-- > 0));
			/* The first request of a list follows the last one of another list. */
			CHECK(place || !next);
			next = place + 1 < count ? wc.wr_id + 1 : 0;
		}
	}
	destroy(lists.qp);
	CHECK(!ibv_destroy_cq(cq));
}

/* A poll excludes other threads until it ends. A poll that finds no completion excludes no thread. */
static void polls(void)
{
	struct ibv_cq_ex *cq = make_cq(0, NULL);
	struct ibv_qp *qp = make(pd, ibv_cq_ex_to_cq(cq), DEPTH);
	struct ibv_poll_cq_attr attr = { 0 };
	struct other other = { .call = POLL, .cq = cq };
	pthread_t thread;
	CHECK(ibv_start_poll(cq, &attr) == ENOENT && ibv_start_poll(cq, &attr) == ENOENT);
	CHECK(!post_write(qp, 7));
	time_t limit = time(NULL) + 30;
	while (ibv_start_poll(cq, &attr) == ENOENT)
		CHECK(time(NULL) < limit);
	begin(&other, &thread);
	CHECK(!other.done);
	CHECK(cq->wr_id == 7 && cq->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(cq) == IBV_WC_RDMA_WRITE);
	CHECK(ibv_next_poll(cq) == ENOENT);
	wait_ms(20);
	CHECK(!other.done);
	ibv_end_poll(cq);
	CHECK(!pthread_join(thread, NULL));
	destroy(qp);
	CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
}

/* A program that has promised to use one thread does not wait, not even for a section that is never left. */
static void one_thread(void)
{
	struct ibv_td_init_attr no_attr = { 0 };
	struct ibv_td *td = ibv_alloc_td(context, &no_attr);
	CHECK(td);
	struct ibv_parent_domain_init_attr of_parent = { .pd = pd, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &of_parent);
	CHECK(parent);
	struct ibv_cq_ex *cqs[2] = { make_cq(IBV_CREATE_CQ_ATTR_SINGLE_THREADED, NULL), make_cq(0, parent) };
	for (int i = 0; i < 2; i++) {
		struct ibv_qp *qp = make(parent, ibv_cq_ex_to_cq(cqs[i]), DEPTH);
		struct ibv_qp_ex *qx = ibv_qp_to_qp_ex(qp);
		struct ibv_poll_cq_attr attr = { 0 };
		for (int round = 0; round < 2; round++) {
			ibv_wr_start(qx);
			add_write(qx, round);
		}
		CHECK(!post_write(qp, 5) && !ibv_wr_complete(qx));
		for (int got = 0; got < 2; got++) {
			time_t limit = time(NULL) + 30;
			while (ibv_start_poll(cqs[i], &attr) == ENOENT)
				CHECK(time(NULL) < limit);
			CHECK(cqs[i]->wr_id == (got ? 1 : 5));
		}
		destroy(qp);
		CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(cqs[i])));
	}
	CHECK(!ibv_dealloc_pd(parent) && !ibv_dealloc_td(td));
}

/* Tests sections, posts and polls of several threads at the same time: each request completes once. */
static struct ibv_cq_ex *shared_cq;
static struct ibv_qp *shared_qp;
static atomic_int seen[REQUESTS], found;

static void *write_batches(void *first)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(shared_qp);
	int id = (int)(intptr_t)first, result;
	for (int i = 0; i < BATCHES; i++, id += IN_BATCH) {
		do {
			ibv_wr_start(qp);
			for (int k = 0; k < IN_BATCH; k++)
				add_write(qp, id + k);
			result = ibv_wr_complete(qp);
			CHECK(!result || result == ENOMEM);
		} while (result);
	}
	return NULL;
}

static void *read_singles(void *first)
{
	int id = (int)(intptr_t)first, result;
	for (int i = 0; i < BATCHES; i++, id++) {
		struct ibv_sge sge = { (uintptr_t)memory, 16, mr->lkey };
		struct ibv_send_wr *bad, wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };
		wr.opcode = IBV_WR_RDMA_READ;
		wr.send_flags = IBV_SEND_SIGNALED;
		wr.wr.rdma.remote_addr = (uintptr_t)memory + 2048;
		wr.wr.rdma.rkey = mr->rkey;
		while ((result = ibv_post_send(shared_qp, &wr, &bad)))
			CHECK(result == ENOMEM);
	}
	return NULL;
}

static void *poll_all(void *unused)
{
	struct ibv_poll_cq_attr attr = { 0 };
	time_t limit = time(NULL) + 50;
	(void)unused;
	while (found < REQUESTS) {
		CHECK(time(NULL) < limit);
		if (ibv_start_poll(shared_cq, &attr))
			continue;
		do {
			uint64_t id = shared_cq->wr_id;
			int is_read = id >= WRITERS * IN_BATCH * BATCHES;
			CHECK(id < REQUESTS && shared_cq->status == IBV_WC_SUCCESS);
			CHECK(ibv_wc_read_opcode(shared_cq) == (is_read ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE));
			CHECK(!is_read || ibv_wc_read_byte_len(shared_cq) == 16);
			CHECK(shared_cq->wr_id == id && seen[id]++ == 0);
			found++;
		} while (!ibv_next_poll(shared_cq));
		ibv_end_poll(shared_cq);
	}
	return NULL;
}

static void many_threads(void)
{
	shared_cq = make_cq(0, NULL);
	shared_qp = make(pd, ibv_cq_ex_to_cq(shared_cq), DEPTH);
	pthread_t threads[WRITERS + 3];
	int count = 0;
	for (; count < WRITERS; count++)
		CHECK(!pthread_create(&threads[count], NULL, write_batches, (void *)(intptr_t)(count * IN_BATCH * BATCHES)));
	CHECK(!pthread_create(&threads[count++], NULL, read_singles, (void *)(intptr_t)(WRITERS * IN_BATCH * BATCHES)));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&threads[count++], NULL, poll_all, NULL));
	while (count > 0)
		CHECK(!pthread_join(threads[--count], NULL));
	destroy(shared_qp);
	CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(shared_cq)));
}

int main(void)
{
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)) && (far_cq = ibv_create_cq(context, 1, NULL, NULL, 0)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory),
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)));
	others_wait();
	whole_or_not_at_all();
	first_error();
	lists_are_whole();
	polls();
	one_thread();
	many_threads();
	CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(far_cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
