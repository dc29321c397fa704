/* Processing elements (PEs) of OpenSHMEM. Every PE puts bytes into the memory of the next PE and gets them back, adds to
 * numbers of other PEs, changes a number of PE 0 under a lock, and takes part in a sum. */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY (1 << 20)
#define ADDITIONS 500
#define TURNS 50
#define SUMS 8

static long psync[SHMEM_REDUCE_SYNC_SIZE], work[SHMEM_REDUCE_MIN_WRKDATA_SIZE + SUMS];
static long own[SUMS], sums[SUMS];
static int me, pes;

static unsigned char byte_of(size_t at, int from, int to)
{
	return at * 7 + at / 251 + from * 31 + to * 17;
}

static long wrong_in(const unsigned char *bytes, size_t length, int from, int to)
{
	long wrong = 0;

	for (size_t at = 0; at < length; at++)
		wrong += bytes[at] != byte_of(at, from, to);
	return wrong;
}

static long put_and_get(void)
{
	static const size_t lengths[] = {1, 8, 100, 5000, 70000, MEMORY};
	unsigned char *memory = shmem_malloc(MEMORY), *bytes = malloc(MEMORY);
	int next = (me + 1) % pes, before = (me + pes - 1) % pes;
	long wrong = 0;

	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		size_t length = lengths[i];

		memset(memory, 0, length);
		for (size_t at = 0; at < length; at++)
			bytes[at] = byte_of(at, me, next);
		shmem_barrier_all();
		shmem_putmem(memory, bytes, length, next);
		shmem_barrier_all();
		wrong += wrong_in(memory, length, before, me);
		memset(bytes, 0, length);
		shmem_getmem(bytes, memory, length, next);
		wrong += wrong_in(bytes, length, me, next);
		shmem_barrier_all();
	}
	free(bytes);
	shmem_free(memory);
	return wrong;
}

static long atomics(void)
{
	/* A sum, a count of the PE before, a lock, and a number that the lock protects. */
	long *words = shmem_calloc(4, sizeof(long)), wrong = 0;

	/* Open MPI 4.1.4 sets the memory to zero only after the barrier in shmem_calloc. */
	shmem_barrier_all();
	for (int i = 0; i < ADDITIONS; i++) {
		shmem_long_atomic_fetch_add(&words[0], me + 1, 0);
		shmem_long_atomic_inc(&words[1], (me + 1) % pes);
	}
	for (int i = 0; i < TURNS; i++) {
		while (shmem_long_atomic_compare_swap(&words[2], 0, me + 1, 0) != 0)
			;
		shmem_long_p(&words[3], shmem_long_g(&words[3], 0) + 1, 0);
		shmem_quiet();
		shmem_long_atomic_set(&words[2], 0, 0);
	}
	shmem_barrier_all();
	if (me == 0) {
		wrong += words[0] != (long)ADDITIONS * pes * (pes + 1) / 2;
		wrong += words[3] != (long)TURNS * pes;
	}
	wrong += words[1] != ADDITIONS;
	shmem_barrier_all();
	shmem_free(words);
	return wrong;
}

static long sum(void)
{
	long wrong = 0;

	for (int i = 0; i < SUMS; i++)
		own[i] = me * 10 + i;
	for (int i = 0; i < SHMEM_REDUCE_SYNC_SIZE; i++)
		psync[i] = SHMEM_SYNC_VALUE;
	shmem_barrier_all();
	shmem_long_sum_to_all(sums, own, SUMS, 0, 0, pes, work, psync);
	for (int i = 0; i < SUMS; i++)
		wrong += sums[i] != 10L * pes * (pes - 1) / 2 + (long)i * pes;
	return wrong;
}

int main(void)
{
	long wrong;

	shmem_init();
	me = shmem_my_pe();
	pes = shmem_n_pes();
	wrong = put_and_get() + atomics() + sum();
	printf("PE %d of %d: %ld wrong\n", me, pes, wrong);
	fflush(stdout);
	shmem_finalize();
	return wrong != 0;
}
