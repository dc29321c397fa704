/*
 * Tests by the kernel's rules which identifiers may be bound to one port, in one process and in two, and which may
 * listen there. Also tests that clients of each family reach the wildcard of their family, if each wildcard covers
 * one family.
 *
 * `binds [HOST]`: with an argument, each bound port is a UDP port of the kernel. The kernel does not show
 * other processes all options of a bind. In this case two processes may share ports that one process could
 * not share, and each conflict with a specific address is EADDRINUSE.
 */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "cm.h"

enum { PORT = 7471 };

static struct rdma_event_channel *channel;

/* Binds an identifier by a text: "ADDRESS" followed by options. Returns -1 with `errno` if the bind is refused. */
static int bind_to(const char *text, struct rdma_cm_id **id)
{
	char host[64];
	int on = 1, off = 0;
	CHECK(sscanf(text, "%63s", host) == 1);
	CHECK(!rdma_create_id(channel, id, NULL, RDMA_PS_TCP));
	if (strstr(text, " only"))
		CHECK(!rdma_set_option(*id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)));
	if (strstr(text, " both"))
		CHECK(!rdma_set_option(*id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &off, sizeof(off)));
	if (strstr(text, " reuse"))
		CHECK(!rdma_set_option(*id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)));
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} address = { 0 };
	if (strchr(host, ':')) {
		address.v6 = (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = htons(PORT) };
		CHECK(inet_pton(AF_INET6, host, &address.v6.sin6_addr) == 1);
	} else {
		address.v4 = address_of(host, PORT);
	}
	int result = rdma_bind_addr(*id, &address.any);
	if (result && strstr(text, " listens"))
		return result;
	if (!result && strstr(text, " listens"))
		CHECK(!rdma_listen(*id, 1));
	return result;
}

static const struct row {
	const char *first, *second;
	int error;
} rows[] = {
	{ "0.0.0.0", "0.0.0.0", EADDRNOTAVAIL },
	{ "0.0.0.0 listens", "0.0.0.0", EADDRNOTAVAIL },
	{ "0.0.0.0", "127.0.0.1", EADDRNOTAVAIL },
	{ "127.0.0.1", "0.0.0.0", EADDRNOTAVAIL },
	{ "127.0.0.1", "127.0.0.1", EADDRINUSE },
	{ "127.0.0.1 listens", "127.0.0.1", EADDRINUSE },
	{ "127.0.0.1", "127.0.0.2", 0 },
	{ "127.0.0.1", "::1", 0 },
	{ "0.0.0.0", "::", EADDRNOTAVAIL },
	{ "::", "0.0.0.0", EADDRNOTAVAIL },
	{ "0.0.0.0 only", ":: only", 0 },
	{ "0.0.0.0 listens", ":: only listens", 0 },
	{ ":: only listens", "0.0.0.0 listens", 0 },
	{ "0.0.0.0 both", ":: only", EADDRNOTAVAIL },
	{ "0.0.0.0", "::1", EADDRNOTAVAIL },
	{ "0.0.0.0", "::1 only", 0 },
	{ "127.0.0.1 reuse", "127.0.0.1", EADDRINUSE },
	{ "127.0.0.1", "127.0.0.1 reuse", EADDRINUSE },
	{ "127.0.0.1 reuse", "127.0.0.1 reuse", 0 },
	{ "0.0.0.0 reuse", "127.0.0.1 reuse", 0 },
	{ "127.0.0.1 reuse listens", "127.0.0.1 reuse", EADDRINUSE },
	{ "0.0.0.0 reuse listens", "127.0.0.1 reuse", EADDRNOTAVAIL },
};

static void check_second(const struct row *row, int wanted, const char *where)
{
	struct rdma_cm_id *id;
	int result = bind_to(row->second, &id);
	int error = result ? errno : 0;
	if (error != wanted)
		fprintf(stderr, "'%s' behind '%s' in %s: %s\n", row->second, row->first, where, strerror(error));
	CHECK(error == wanted);
	CHECK(!rdma_destroy_id(id));
}

/* The first process holds its address until the second process has tried to bind the second address. */
static void in_two_processes(const struct row *row, int wanted)
{
	int ready[2], go[2], gone[2];
	char byte;
	CHECK(!pipe(ready) && !pipe(go) && !pipe(gone));
	pid_t first = fork();
	CHECK(first >= 0);
	if (!first) {
		struct rdma_cm_id *id;
		CHECK((channel = rdma_create_event_channel()) && !bind_to(row->first, &id));
		CHECK(write(ready[1], "", 1) == 1);
		CHECK(read(go[0], &byte, 1) == 1);
		/* No call releases the address. The end of the process releases the address. */
		_exit(0);
	}
	/* The end of the first process closes the pipe. */
	close(gone[1]);
	pid_t second = fork();
	CHECK(second >= 0);
	if (!second) {
		CHECK((channel = rdma_create_event_channel()));
		CHECK(read(ready[0], &byte, 1) == 1);
		check_second(row, wanted, "another process");
		/* As soon as the first process has ended, the address is free. */
		CHECK(write(go[1], "", 1) == 1);
		CHECK(read(gone[0], &byte, 1) == 0);
		const struct row again = { "nobody", row->second, 0 };
		check_second(&again, 0, "the process that is left");
		_exit(0);
	}
	int status;
	CHECK(waitpid(second, &status, 0) == second && !status);
	CHECK(waitpid(first, &status, 0) == first && !status);
	close(ready[0]), close(ready[1]), close(go[0]), close(go[1]), close(gone[0]);
}

static void in_one_process(const struct row *row)
{
	struct rdma_cm_id *first;
	CHECK(!bind_to(row->first, &first));
	check_second(row, row->error, "this process");
	CHECK(!rdma_destroy_id(first));
}

/* Checks which calls are refused, and with which error. */
static void calls(void)
{
	struct rdma_cm_id *one, *other;
	struct sockaddr_in address = address_of("127.0.0.1", PORT);
	int on = 1, off = 0;
	CHECK(!bind_to("127.0.0.1", &one));
	CHECK(rdma_bind_addr(one, (struct sockaddr *)&address) && errno == EINVAL);
	/* A bound identifier may begin to share its address, but not stop sharing it. */
	CHECK(rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &off, sizeof(off)) && errno == EINVAL);
	CHECK(!rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)));
	CHECK(!rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)));
	CHECK(rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, 1) && errno == EINVAL);
	CHECK(!bind_to("127.0.0.1 reuse", &other));
	/* An identifier can listen only if no other identifier is bound to its address. */
	CHECK(rdma_listen(one, 1) && errno == EADDRINUSE);
	CHECK(rdma_listen(other, 1) && errno == EADDRINUSE);
	CHECK(!rdma_destroy_id(one));
	CHECK(!rdma_listen(other, 1));
	CHECK(rdma_listen(other, 1) && errno == EINVAL);
	CHECK(rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &on, sizeof(on)) && errno == EINVAL);
	CHECK(rdma_set_option(other, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)) && errno == EINVAL);
	CHECK(rdma_resolve_addr(other, NULL, (struct sockaddr *)&address, 10) && errno == EINVAL);
	/* The listener alone now has the address that it shared before. */
	struct rdma_event_channel *clients = rdma_create_event_channel();
	struct rdma_cm_id *client = resolve(clients, "127.0.0.1", PORT);
	struct rdma_conn_param param = { 0 };
	give_qp(client, 4);
	CHECK(!rdma_connect(client, &param));
	destroy(next_request(channel));
	pass_event(clients, RDMA_CM_EVENT_REJECTED);
	CHECK(rdma_set_option(client, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)) && errno == EINVAL);
	destroy(client);
	rdma_destroy_event_channel(clients);
	CHECK(bind_to("127.0.0.1 reuse", &one) && errno == EADDRINUSE);
	CHECK(!rdma_destroy_id(one) && !rdma_destroy_id(other));
	/* This host does not have the address. */
	CHECK(!rdma_create_id(channel, &one, NULL, RDMA_PS_TCP));
	address = address_of("192.0.2.1", PORT);
	CHECK(rdma_bind_addr(one, (struct sockaddr *)&address) && errno == EADDRNOTAVAIL);
	/* Without a port, each identifier gets a different port, even if the identifier listens without an address. */
	address = address_of("127.0.0.1", 0);
	CHECK(!rdma_bind_addr(one, (struct sockaddr *)&address));
	CHECK(!rdma_create_id(channel, &other, NULL, RDMA_PS_TCP));
	CHECK(!rdma_bind_addr(other, (struct sockaddr *)&address));
	CHECK(rdma_get_src_port(one) && rdma_get_src_port(one) != rdma_get_src_port(other));
	CHECK(!rdma_destroy_id(other) && !rdma_create_id(channel, &other, NULL, RDMA_PS_TCP));
	CHECK(!rdma_listen(other, 1));
	CHECK(rdma_get_src_port(other) && rdma_get_src_port(one) != rdma_get_src_port(other));
	CHECK(!rdma_destroy_id(one) && !rdma_destroy_id(other));
}

/* Tests wildcards that are restricted to one family after they are bound: the wildcard of IPv6 no longer includes
 * IPv4. */
static void wildcards_that_take_less(void)
{
	struct rdma_cm_id *one, *other;
	struct sockaddr_in address;
	int on = 1;
	CHECK(!bind_to("::", &one));
	CHECK(!rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)));
	CHECK(!bind_to("0.0.0.0", &other));
	CHECK(!rdma_destroy_id(one) && !rdma_destroy_id(other));
	/* A wildcard with a peer claims only one address. */
	CHECK(!bind_to("0.0.0.0", &one));
	address = address_of("127.0.0.1", PORT + 1);
	CHECK(!rdma_resolve_addr(one, NULL, (struct sockaddr *)&address, 2000));
	pass_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_set_option(one, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &on, sizeof(on)) && errno == EINVAL);
	CHECK(!bind_to("127.0.0.2", &other) && !rdma_destroy_id(other));
	CHECK(bind_to("127.0.0.1", &other) && errno == EADDRINUSE);
	CHECK(!rdma_destroy_id(one) && !rdma_destroy_id(other));
}

/* A client of each family reaches the wildcard of its family. */
static void wildcards_of_both_families(void)
{
	struct rdma_cm_id *of[2], *client;
	struct rdma_event_channel *clients = rdma_create_event_channel();
	CHECK(clients && !bind_to("0.0.0.0 only listens", &of[0]) && !bind_to(":: only listens", &of[1]));
	for (int is_v6 = 0; is_v6 < 2; is_v6++) {
		struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(PORT), .sin6_addr = in6addr_loopback };
		struct sockaddr_in v4 = address_of("127.0.0.1", PORT);
		struct sockaddr *to = is_v6 ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4;
		CHECK(!rdma_create_id(clients, &client, NULL, RDMA_PS_TCP));
		CHECK(!rdma_resolve_addr(client, NULL, to, 2000));
		pass_event(clients, RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(!rdma_resolve_route(client, 2000));
		pass_event(clients, RDMA_CM_EVENT_ROUTE_RESOLVED);
		give_qp(client, 4);
		struct rdma_conn_param param = { 0 };
		CHECK(!rdma_connect(client, &param));
		struct rdma_cm_event *event = next_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
		CHECK(event->listen_id == of[is_v6]);
		/* The local address is the address to which the client has connected. */
		struct sockaddr *at = rdma_get_local_addr(event->id);
		CHECK(at->sa_family == to->sa_family);
		CHECK(is_v6 ? !memcmp(&((struct sockaddr_in6 *)at)->sin6_addr, &in6addr_loopback, 16) :
			      ((struct sockaddr_in *)at)->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
		struct rdma_cm_id *server = event->id;
		rdma_ack_cm_event(event);
		CHECK(!rdma_reject(server, NULL, 0));
		pass_event(clients, RDMA_CM_EVENT_REJECTED);
		destroy(server);
		destroy(client);
	}
	CHECK(!rdma_destroy_id(of[0]) && !rdma_destroy_id(of[1]));
	rdma_destroy_event_channel(clients);
}

/*
 * The expected result if the second identifier is in another process and each bound port is a UDP port. -1
 * means that the row is not tested, since the result differs from the kernel's rules.
 */
static int of_udp(const struct row *row)
{
	int is_any = !strncmp(row->second, "0.0.0.0", 7) || !strncmp(row->second, "::", 3) || row->second[2] == ' ';
	if (strstr(row->first, "reuse") || strstr(row->second, "reuse") || strstr(row->first, "both") ||
	    !strcmp(row->second, "::1"))
		return -1;
	return row->error && !is_any ? EADDRINUSE : row->error;
}

int main(int argc, char **argv)
{
	const unsigned count = sizeof(rows) / sizeof(rows[0]);
	(void)argv;
	for (unsigned i = 0; i < count; i++) {
		int wanted = argc > 1 ? of_udp(&rows[i]) : rows[i].error;
		if (wanted >= 0)
			in_two_processes(&rows[i], wanted);
	}
	CHECK((channel = rdma_create_event_channel()));
	for (unsigned i = 0; i < count; i++)
		in_one_process(&rows[i]);
	calls();
	if (argc == 1)
		wildcards_that_take_less();
	wildcards_of_both_families();
	CHECK(is_silent(channel));
	rdma_destroy_event_channel(channel);
	puts("ports are shared as the kernel shares them");
	return 0;
}
