/*
 * Tests which registrations are refused with which error, and the cost of registration in a process with many
 * mappings and in a process without /proc.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "common.h"

#ifndef IBV_ACCESS_FLUSH_GLOBAL
#define IBV_ACCESS_FLUSH_GLOBAL (1 << 8)
#endif

enum { PAGE = 4096, MAPPINGS = 15000 };

static struct ibv_context *context;
static struct ibv_pd *pd;

static uint8_t *map(size_t pages, int rights)
{
	void *at = mmap(NULL, pages * PAGE, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	return at;
}

/* Maps `pages` pages of a file with `bytes` bytes. */
static uint8_t *map_file(size_t pages, off_t bytes, int flags)
{
	int file = memfd_create("file", MFD_CLOEXEC);
	CHECK(file >= 0 && !ftruncate(file, bytes));
	void *at = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, flags, file, 0);
	CHECK(at != MAP_FAILED && !close(file));
	return at;
}

/* Checks that each of the calls registers the memory if `error` is 0, and otherwise refuses the registration with
 * `error`. */
static void expect(void *at, size_t length, unsigned access, int error)
{
	for (int call = 0; call < 3; call++) {
		struct ibv_mr *mr;
		errno = 0;
		switch (call) {
		case 0:
			mr = ibv_reg_mr(pd, at, length, access);
			break;
		case 1:
			mr = ibv_reg_mr_iova(pd, at, length, 0x10000, access);
			break;
		default:
			mr = ibv_reg_mr_iova2(pd, at, length, (uintptr_t)at, access);
		}
		if (!mr != !!error || (error && errno != error))
			fprintf(stderr, "%zu bytes at %p, access %#x: %s, errno %d\n", length, at, access, mr ? "ok" : "refused",
				errno);
		CHECK(mr ? !error : errno == error);
		CHECK(!mr || (mr->addr == at && mr->length == length && !ibv_dereg_mr(mr)));
	}
}

static void refused(void)
{
	int write = IBV_ACCESS_LOCAL_WRITE, read = IBV_ACCESS_REMOTE_READ;
	uint8_t *pages = map(4, PROT_READ | PROT_WRITE);
	expect(pages, 4 * PAGE, write | read, 0);
	expect((void *)0x1000, PAGE, write, EFAULT);
	expect(NULL, PAGE, 0, EFAULT);
	/* If the list of mappings is available, this many pages are not checked one by one. */
	uint8_t *large = map(512, PROT_READ | PROT_WRITE);
	expect(large, 512 * PAGE, write, 0);
	CHECK(!munmap(large + 300 * PAGE, PAGE));
	expect(large, 512 * PAGE, write, EFAULT);
	CHECK(!munmap(large, 300 * PAGE) && !munmap(large + 301 * PAGE, 211 * PAGE));
	/* These calls test a read-only page, a page without rights, and a hole, alone and in the middle of good
	 * pages. */
	CHECK(!mprotect(pages + PAGE, PAGE, PROT_READ));
	expect(pages + PAGE, PAGE, read, 0);
	expect(pages + PAGE, 1, write, EFAULT);
	expect(pages, 3 * PAGE, read, 0);
	expect(pages, 3 * PAGE, write, EFAULT);
	CHECK(!mprotect(pages + PAGE, PAGE, PROT_NONE));
	expect(pages + PAGE, 1, 0, EFAULT);
	expect(pages, 3 * PAGE, 0, EFAULT);
	CHECK(!munmap(pages + PAGE, PAGE));
	expect(pages, PAGE, write, 0);
	expect(pages, PAGE + 1, write, EFAULT);
	expect(pages + 2 * PAGE, 2 * PAGE, write, 0);
	/* The last page of a mapped file can be registered as a whole, and the page behind the file cannot. */
	for (int private = 0; private < 2; private++) {
		uint8_t *file = map_file(3, PAGE + 1, private ? MAP_PRIVATE : MAP_SHARED);
		expect(file, 2 * PAGE, write, 0);
		expect(file, 2 * PAGE + 1, write, EFAULT);
		expect(file + 2 * PAGE, PAGE, 0, EFAULT);
		CHECK(!munmap(file, 3 * PAGE));
	}
	/* These calls test access flags. */
	expect(pages, PAGE, write | IBV_ACCESS_HUGETLB, 0);
	for (unsigned flag = IBV_ACCESS_OPTIONAL_FIRST; flag & IBV_ACCESS_OPTIONAL_RANGE; flag <<= 1)
		expect(pages, PAGE, write | flag, 0);
	expect(pages, PAGE, IBV_ACCESS_REMOTE_WRITE, EINVAL);
	expect(pages, PAGE, IBV_ACCESS_REMOTE_ATOMIC, EINVAL);
	expect(pages, PAGE, write | IBV_ACCESS_ON_DEMAND, 0);
	expect(pages, PAGE, write | IBV_ACCESS_FLUSH_GLOBAL, EINVAL);
	/* ibv_rereg_mr refuses the same memory, and leaves the region unchanged. */
	struct ibv_mr *mr = ibv_reg_mr(pd, pages, PAGE, write);
	CHECK(mr);
	uint32_t rkey = mr->rkey;
	errno = 0;
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, pages, 2 * PAGE, 0) == IBV_REREG_MR_ERR_CMD);
	CHECK(errno == EFAULT && mr->rkey == rkey && mr->length == PAGE && !ibv_dereg_mr(mr));
	CHECK(!munmap(pages, PAGE) && !munmap(pages + 2 * PAGE, 2 * PAGE));
}

/* Returns the number after this name in a file in /proc. */
static long number(const char *file, const char *name)
{
	char text[4096] = { 0 };
	int fd = open(file, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && read(fd, text, sizeof(text) - 1) > 0 && !close(fd));
	char *at = strstr(text, name);
	CHECK(at);
	return atol(at + strlen(name));
}

/* With many mappings, their list (over a megabyte) is not read for each registration. */
static void many_mappings(void)
{
	uint8_t *pages = map(2 * MAPPINGS, PROT_READ | PROT_WRITE);
	for (int i = 0; i < MAPPINGS; i++)
		CHECK(!mprotect(pages + 2 * PAGE * (size_t)i, PAGE, PROT_READ));
	uint8_t *buffer = pages + 2 * PAGE * (MAPPINGS / 2) + PAGE;
	expect(buffer, PAGE, IBV_ACCESS_LOCAL_WRITE, 0);
	long before = number("/proc/self/io", "rchar:");
	for (int i = 0; i < 50; i++)
		expect(buffer, PAGE, IBV_ACCESS_LOCAL_WRITE, 0);
	long bytes = number("/proc/self/io", "rchar:") - before;
	if (bytes > 100000)
		fprintf(stderr, "150 registrations read %ld bytes\n", bytes);
	CHECK(bytes <= 100000);
	expect(buffer - PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE, EFAULT);
	CHECK(!munmap(pages, 2 * (size_t)MAPPINGS * PAGE));
}

/* Repeated registration and deregistration leaves little memory behind. */
static void one_after_the_other(void)
{
	static uint8_t buffer[65536];
	for (int i = 0; i < 100; i++)
		expect(buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE, 0);
	long before = number("/proc/self/status", "VmRSS:");
	for (int i = 0; i < 4000; i++)
		expect(buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE, 0);
	long more = number("/proc/self/status", "VmRSS:") - before;
	if (more > 8192)
		fprintf(stderr, "12,000 registrations took %ld KiB\n", more);
	CHECK(more <= 8192);
}

/*
 * Tests many regions at the same time. Each registration may fault in at most two pages, since page faults
 * would take most of its time.
 */
static void many_that_stay(void)
{
	enum { REGIONS = 1000 };
	static uint8_t buffer[PAGE];
	static struct ibv_mr *regions[REGIONS];
	struct rusage before, after;
	CHECK(!getrusage(RUSAGE_THREAD, &before));
	for (int i = 0; i < REGIONS; i++)
		CHECK((regions[i] = ibv_reg_mr(pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE)));
	CHECK(!getrusage(RUSAGE_THREAD, &after));
	long faults = after.ru_minflt - before.ru_minflt;
	if (faults > 2 * REGIONS)
		fprintf(stderr, "%d registrations brought in %ld pages\n", REGIONS, faults);
	CHECK(faults <= 2 * REGIONS);
	for (int i = 0; i < REGIONS; i++)
		CHECK(!ibv_dereg_mr(regions[i]));
}

static void write_file(const char *name, const char *text)
{
	int fd = open(name, O_WRONLY | O_CLOEXEC);
	CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && !close(fd));
}

static void open_and_refuse(void)
{
	context = open_device();
	CHECK((pd = ibv_alloc_pd(context)));
	refused();
}

/* Tests registration in a process whose /proc is empty. */
static void without_proc(void)
{
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		char map[64];
		snprintf(map, sizeof(map), "%d %d 1", (int)getuid(), (int)getuid());
		if (unshare(CLONE_NEWUSER | CLONE_NEWNS)) {
			fprintf(stderr, "skipped: without /proc (no user namespaces)\n");
			_exit(0);
		}
		write_file("/proc/self/uid_map", map);
		CHECK(!mount("none", "/proc", "tmpfs", 0, NULL) && access("/proc/self/maps", F_OK));
		open_and_refuse();
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
}

int main(void)
{
	without_proc();
	open_and_refuse();
	many_mappings();
	many_that_stay();
	one_after_the_other();
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
