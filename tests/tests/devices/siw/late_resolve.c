/* Delays each call of rdma_resolve_addr after the first call by a second (see LATE_RESOLVE in unmodified.rs). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>

struct rdma_cm_id;
struct sockaddr;

int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *source, struct sockaddr *destination, int limit)
{
	static int calls;
	int (*next)(struct rdma_cm_id *, struct sockaddr *, struct sockaddr *, int);

	*(void **)&next = dlsym(RTLD_NEXT, "rdma_resolve_addr");
	if (!next) {
		errno = ENOSYS;
		return -1;
	}
	if (calls++)
		sleep(1);
	return next(id, source, destination, limit);
}
