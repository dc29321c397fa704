/* Ranks of MPI. Every rank sends every other rank its own bytes, of several lengths. Then every rank puts bytes into
 * the window of the next rank, gets them back, and adds to a number in the window of rank 0. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW 300000
#define ADDITIONS 100

static int rank, ranks;

static unsigned char byte_of(int at, int from, int to)
{
	return at * 7 + at / 251 + from * 31 + to * 17;
}

static void fill(unsigned char *bytes, int length, int from, int to)
{
	for (int at = 0; at < length; at++)
		bytes[at] = byte_of(at, from, to);
}

static int wrong_in(const unsigned char *bytes, int length, int from, int to)
{
	int wrong = 0;

	for (int at = 0; at < length; at++)
		wrong += bytes[at] != byte_of(at, from, to);
	return wrong;
}

static int messages(int length)
{
	unsigned char *out = malloc((size_t)length * ranks), *in = calloc(ranks, length);
	int wrong = 0;

	for (int peer = 0; peer < ranks; peer++)
		fill(out + (size_t)peer * length, length, rank, peer);
	MPI_Alltoall(out, length, MPI_BYTE, in, length, MPI_BYTE, MPI_COMM_WORLD);
	for (int peer = 0; peer < ranks; peer++)
		wrong += wrong_in(in + (size_t)peer * length, length, peer, rank);
	free(out);
	free(in);
	return wrong;
}

static int window(void)
{
	static const int lengths[] = {1, 5000, WINDOW};
	static unsigned char out[WINDOW], back[WINDOW];
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, wrong = 0;
	unsigned char *memory;
	MPI_Win win;

	MPI_Win_allocate(WINDOW, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &win);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		int length = lengths[i];

		fill(out, length, rank, next);
		memset(back, 0, length);
		MPI_Win_fence(0, win);
		MPI_Put(out, length, MPI_BYTE, next, 0, length, MPI_BYTE, win);
		MPI_Win_fence(0, win);
		wrong += wrong_in(memory, length, before, rank);
		MPI_Get(back, length, MPI_BYTE, next, 0, length, MPI_BYTE, win);
		MPI_Win_fence(0, win);
		wrong += wrong_in(back, length, rank, next);
	}
	memset(memory, 0, sizeof(long));
	MPI_Win_fence(0, win);
	for (int i = 0; i < ADDITIONS; i++) {
		long one = 1, old;

		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
		MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, 0, MPI_SUM, win);
		MPI_Win_unlock(0, win);
	}
	MPI_Win_fence(0, win);
	if (rank == 0) {
		long sum;

		memcpy(&sum, memory, sizeof(sum));
		wrong += sum != (long)ADDITIONS * ranks;
	}
	MPI_Win_free(&win);
	return wrong;
}

int main(int argc, char **argv)
{
	static const int lengths[] = {1, 64, 5000, 70000, 300000};
	int wrong = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
		wrong += messages(lengths[i]);
	wrong += window();
	printf("rank %d of %d: %d wrong\n", rank, ranks, wrong);
	fflush(stdout);
	MPI_Finalize();
	return wrong != 0;
}
