/*
 * Tests the table of GIDs: its types, that all queries agree, entries of other sizes, and that each pair of GIDs
 * connects two processes. The first argument is the IPv4 address that GIDs 2 and 3 contain. The second argument, 0
 * or 1, is the end of this process. Without a second argument, the program forks before it uses verbs.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "common.h"

enum { MOST_GIDS = 6 };

/* The number of GIDs: on a wire in memory, the device has GIDs of two IPv4 addresses. */
static int gid_count = 4;

/* Private functions of libibverbs, which ibv_devinfo calls. */
int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index, int *type);

static int is_mapped(const union ibv_gid *gid)
{
	static const uint8_t prefix[12] = { [10] = 0xff, 0xff };
	return !memcmp(gid->raw, prefix, sizeof(prefix));
}

static void table(struct ibv_context *context, const char *address)
{
	struct ibv_gid_entry entries[MOST_GIDS + 1], entry;
	struct ibv_port_attr port;
	char name[IF_NAMESIZE];
	CHECK(!ibv_query_port(context, 1, &port) && port.gid_tbl_len == gid_count);
	CHECK(ibv_query_gid_table(context, entries, gid_count + 1, 0) == gid_count);
	for (int i = 0; i < gid_count; i++) {
		union ibv_gid gid;
		int type;
		CHECK(!ibv_query_gid(context, 1, i, &gid) && !ibv_query_gid_ex(context, 1, i, &entry, 0));
		CHECK(!memcmp(&gid, &entry.gid, sizeof(gid)) && !memcmp(&gid, &entries[i].gid, sizeof(gid)));
		CHECK(entry.gid_index == (uint32_t)i && entries[i].gid_index == (uint32_t)i && entry.port_num == 1);
		CHECK(entry.gid_type == (i % 2 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1));
		CHECK(entries[i].gid_type == entry.gid_type && if_indextoname(entry.ndev_ifindex, name));
		/* In sysfs, RoCE v1 is 0 and RoCE v2 is 1. */
		CHECK(!ibv_query_gid_type(context, 1, i, &type) && type == i % 2);
		CHECK(is_mapped(&gid) == (i >= 2));
		CHECK(!memcmp(&gid, &entries[i & ~1].gid, sizeof(gid)));
	}
	if (address) {
		struct in_addr wanted;
		CHECK(inet_pton(AF_INET, address, &wanted) == 1);
		CHECK(!memcmp(entries[2].gid.raw + 12, &wanted, sizeof(wanted)));
	}
	if (gid_count == MOST_GIDS) {
		/* GID 3 is an address of the interface that the device reports. GID 5 is the address on the wire. */
		CHECK(entries[3].gid.raw[12] == 127 && entries[5].gid.raw[12] == 100);
		CHECK(!memcmp(entries[3].gid.raw + 13, entries[5].gid.raw + 13, 3));
	}
	int type;
	CHECK(ibv_query_gid(context, 1, gid_count, &entry.gid) && ibv_query_gid(context, 1, -1, &entry.gid));
	CHECK(ibv_query_gid_ex(context, 1, gid_count, &entry, 0) == EINVAL);
	CHECK(ibv_query_gid_table(context, entries, gid_count - 1, 0) == -EINVAL);
	CHECK(ibv_query_gid_table(context, entries, gid_count, 0) == gid_count);
	/* No flags are defined. */
	CHECK(ibv_query_gid_ex(context, 1, 0, &entry, 1) == EINVAL);
	CHECK(ibv_query_gid_table(context, entries, gid_count + 1, 1) == -EINVAL);
	CHECK(ibv_query_gid_type(context, 1, gid_count, &type) && ibv_query_gid_type(context, 2, 0, &type));
	CHECK(ibv_query_gid(context, 2, 0, &entry.gid) && ibv_query_gid_ex(context, 2, 0, &entry, 0) == EINVAL);
}

/* Programs that were compiled with a later or an earlier libibverbs have longer or shorter entries. */
static void other_entries(struct ibv_context *context)
{
	enum { SHORT = offsetof(struct ibv_gid_entry, ndev_ifindex) };
	struct {
		struct ibv_gid_entry entry;
		uint64_t later;
	} wide[MOST_GIDS];
	uint8_t narrow[MOST_GIDS][SHORT], after;
	struct ibv_gid_entry entry;
	memset(wide, 0xa5, sizeof(wide));
	CHECK(_ibv_query_gid_table(context, &wide[0].entry, gid_count, 0, sizeof(wide[0])) == gid_count);
	CHECK(_ibv_query_gid_table(context, (void *)narrow, gid_count, 0, SHORT) == gid_count);
	for (int i = 0; i < gid_count; i++) {
		CHECK(!ibv_query_gid_ex(context, 1, i, &entry, 0));
		CHECK(!memcmp(&entry, &wide[i].entry, SHORT) && wide[i].entry.ndev_ifindex == entry.ndev_ifindex);
		CHECK(!memcmp(&entry, narrow[i], SHORT));
	}
	memset(&entry, 0xa5, sizeof(entry));
	CHECK(!_ibv_query_gid_ex(context, 1, 0, &entry, 0, SHORT) && !memcmp(&entry, narrow[0], SHORT));
	after = ((uint8_t *)&entry)[SHORT];
	CHECK(after == 0xa5);
}

struct name {
	union ibv_gid gids[MOST_GIDS];
	uint32_t number;
};

/* Connects a queue pair of this process, which names itself by `ours`, to a queue pair of the other process, which is
 * named by `theirs`. Each end sends a byte. */
static void connects(struct ibv_pd *pd, struct ibv_cq *cq, int in, int out, int ours, int theirs)
{
	char byte = 'a', got = 0;
	struct ibv_mr *send_mr = ibv_reg_mr(pd, &byte, 1, 0), *recv_mr = ibv_reg_mr(pd, &got, 1, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp *qp = make_qp(pd, cq, 1);
	struct name mine = { .number = qp->qp_num }, peer;
	CHECK(send_mr && recv_mr);
	for (int i = 0; i < gid_count; i++)
		CHECK(!ibv_query_gid(qp->context, 1, i, &mine.gids[i]));
	CHECK(write(out, &mine, sizeof(mine)) == sizeof(mine) && read(in, &peer, sizeof(peer)) == sizeof(peer));
	/* The first GIDs of two processes differ, even on one host, and on a wire in memory also the last GIDs. */
	CHECK(memcmp(&mine.gids[0], &peer.gids[0], sizeof(mine.gids[0])));
	CHECK(gid_count < MOST_GIDS || memcmp(&mine.gids[5], &peer.gids[5], sizeof(mine.gids[5])));
	struct ibv_sge at = { (uintptr_t)&got, 1, recv_mr->lkey }, from = { (uintptr_t)&byte, 1, send_mr->lkey };
	struct ibv_recv_wr *bad_recv, recv = { .wr_id = 2, .sg_list = &at, .num_sge = 1 };
	struct ibv_send_wr *bad_send, send = { .wr_id = 1, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND };
	send.send_flags = IBV_SEND_SIGNALED;
	CHECK(!ibv_post_recv(qp, &recv, &bad_recv));
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer.number,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = peer.gids[theirs], .sgid_index = ours } },
	};
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	if (ours == gid_count) {
		CHECK(ibv_modify_qp(qp, &attr, mask) == EINVAL && state_of(qp) == IBV_QPS_INIT);
	} else {
		CHECK(!ibv_modify_qp(qp, &attr, mask));
		to_rts(qp, 14, 7);
		CHECK(!ibv_post_send(qp, &send, &bad_send));
		struct ibv_wc wcs[2] = { next_of(cq), next_of(cq) };
		CHECK(wcs[0].status == IBV_WC_SUCCESS && wcs[1].status == IBV_WC_SUCCESS && got == 'a');
		struct ibv_qp_init_attr init;
		CHECK(!ibv_query_qp(qp, &attr, IBV_QP_AV, &init) && attr.ah_attr.grh.sgid_index == ours);
	}
	/* A queue pair is destroyed when the peer has everything. */
	CHECK(write(out, "", 1) == 1 && read(in, &got, 1) == 1);
	CHECK(!ibv_destroy_qp(qp) && !ibv_dereg_mr(send_mr) && !ibv_dereg_mr(recv_mr));
}

/* Connects two queue pairs of this process, and a queue pair to itself, by each GID. */
static void within(struct ibv_pd *pd, struct ibv_cq *cq)
{
	for (int i = 0; i < gid_count; i++) {
		for (int count = 1; count <= 2; count++) {
			struct ibv_send_wr *bad_send, send = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
			struct ibv_recv_wr *bad_recv, recv = { .wr_id = 2 };
			struct ibv_qp *qps[2] = { make_qp(pd, cq, 1), count == 2 ? make_qp(pd, cq, 1) : NULL };
			union ibv_gid gid;
			CHECK(!ibv_query_gid(pd->context, 1, i, &gid));
			for (int at = 0; at < count; at++) {
				to_rtr_of(qps[at], gid, qps[count - 1 - at]->qp_num, 12);
				to_rts(qps[at], 14, 7);
			}
			CHECK(!ibv_post_recv(qps[count - 1], &recv, &bad_recv) && !ibv_post_send(qps[0], &send, &bad_send));
			CHECK(next_of(cq).status == IBV_WC_SUCCESS && next_of(cq).status == IBV_WC_SUCCESS);
			for (int at = 0; at < count; at++)
				CHECK(!ibv_destroy_qp(qps[at]));
		}
	}
}

/* Opens a FIFO of the current folder, which both ends make. */
static int fifo(char end)
{
	char name[] = { 't', 'o', '_', end, 0 };
	CHECK(!mkfifo(name, 0600) || errno == EEXIST);
	int fd = open(name, O_RDWR);
	CHECK(fd >= 0);
	return fd;
}

int main(int argc, char **argv)
{
	int in, out, end, status;
	pid_t child = 0;
	if (argc == 1 && !getenv("UWARP_NET"))
		gid_count = MOST_GIDS;
	if (argc > 2) {
		end = argv[2][0] == '1';
		in = fifo('0' + end);
		out = fifo('1' - end);
	} else {
		int to_child[2], to_parent[2];
		CHECK(!pipe(to_child) && !pipe(to_parent) && (child = fork()) >= 0);
		end = !child;
		out = child ? to_child[1] : to_parent[1];
		in = child ? to_parent[0] : to_child[0];
	}
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, NULL, 0);
	CHECK(pd && cq);
	table(context, argc > 1 ? argv[1] : NULL);
	other_entries(context);
	within(pd, cq);
	/* One end has GID `i`, and the other end has GID `j`. */
	for (int i = 0; i < gid_count; i++)
		for (int j = 0; j < gid_count; j++)
			connects(pd, cq, in, out, end ? j : i, end ? i : j);
	connects(pd, cq, in, out, gid_count, 0);
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
	CHECK(!child || (waitpid(child, &status, 0) == child && !status));
	return 0;
}
