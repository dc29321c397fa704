/*
 * Measures ibv_reg_mr of 4 KiB. Arguments: the number of further mappings of the process, and the number of
 * registrations. Prints a JSON list of three median times in us: ibv_reg_mr, ibv_dereg_mr, and mlock with munlock.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, REGIONS = 64 };

#define CHECK(condition)                                                        \
	do {                                                                    \
		if (!(condition)) {                                             \
			fprintf(stderr, "%s (errno %d)\n", #condition, errno); \
			exit(1);                                                \
		}                                                               \
	} while (0)

static double now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static int by_size(const void *left, const void *right)
{
	double a = *(const double *)left, b = *(const double *)right;
	return (a > b) - (a < b);
}

static double median(double *times, size_t count)
{
	qsort(times, count, sizeof(*times), by_size);
	return times[count / 2];
}

static void *map(size_t pages)
{
	void *start = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(start != MAP_FAILED);
	return start;
}

/* The number of mappings of this process. */
static size_t mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	size_t lines = 0;
	for (int byte; (byte = getc(maps)) != EOF;)
		lines += byte == '\n';
	fclose(maps);
	return lines;
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	size_t further = strtoul(argv[1], NULL, 10), count = strtoul(argv[2], NULL, 10);
	CHECK(count > 0);
	/* This memory is mapped first, so that it is behind the further mappings in the list of mappings. */
	char *memory = map(REGIONS);
	for (size_t i = 0; i < REGIONS; i++)
		memory[i * PAGE] = 1;
	/* Neighbouring pages with different rights are separate mappings. */
	char *others = map(further + 1);
	for (size_t i = 0; i < further; i += 2)
		CHECK(!mprotect(others + i * PAGE, PAGE, PROT_READ));
	CHECK(mappings() >= further);
	struct ibv_device **devices = ibv_get_device_list(NULL);
	CHECK(devices && devices[0]);
	struct ibv_context *context = ibv_open_device(devices[0]);
	CHECK(context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	CHECK(pd);
	double *reg = calloc(count, sizeof(*reg)), *dereg = calloc(count, sizeof(*dereg));
	double *lock = calloc(count, sizeof(*lock));
	CHECK(reg && dereg && lock);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	for (size_t i = 0; i < count; i++) {
		char *page = memory + i % REGIONS * PAGE;
		double begun = now_us();
		struct ibv_mr *mr = ibv_reg_mr(pd, page, PAGE, access);
		double registered = now_us();
		CHECK(mr && !ibv_dereg_mr(mr));
		double deregistered = now_us();
		CHECK(!mlock(page, PAGE) && !munlock(page, PAGE));
		lock[i] = now_us() - deregistered;
		reg[i] = registered - begun;
		dereg[i] = deregistered - registered;
	}
	printf("[%.3f, %.3f, %.3f]\n", median(reg, count), median(dereg, count), median(lock, count));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
	return 0;
}
