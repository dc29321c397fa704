/*
 * Calls each call of libc that the library exports with paths of other files. Results and errors have to be those of
 * the system calls, a call that succeeds leaves errno as it is, and no call allocates memory by itself. A thread that
 * is forked while another thread allocates has no lock of the library to wait for.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include "common.h"

extern void *__libc_malloc(size_t);
static volatile int allocations;
/* Unset while a thread of the library may allocate. */
static int counts_allocations = 1;

void *malloc(size_t size)
{
	allocations++;
	return __libc_malloc(size);
}

/* Paths of other files: those that exist, and those that do not. Some of them resemble paths of the device. */
static const char *const existing[] = {
	"/", "/sys", "/sys/class", "/sys/class/", "/sys/class/net", "/sys/class/net/lo", "/sys/devices/virtual/net/lo",
	"/dev", "/dev/null", "/dev/shm", "/etc/passwd", "//etc//passwd", "/./etc/passwd", "/proc/self/status",
	".", "..", "sys/class/infiniband/file", "./sys/class/infiniband/file", "dev/infiniband",
};
static const char *const missing[] = {
	"", "/none", "/s", "/d", "/sys/none", "/sys/class/infiniband_none", "/sys/class/infinibandx/uwarp0",
	"/sys/devices/virtual/uwarp0", "/dev/infinibandx", "/dev/none", "none", "sys/class/infiniband/none",
	"/etc/passwd/x", "/tmp/sys/class/infiniband/uwarp0",
};

static int same(long result, long wanted, int error)
{
	return wanted < 0 ? result == -1 && errno == error : result == wanted && errno == 4711;
}

/* Compares a call with the result of the system call. */
#define COMPARE(call, wanted)                                                                     \
	do {                                                                                      \
		const long raw = (wanted);                                                        \
		const int error = errno;                                                          \
		errno = 4711;                                                                     \
		const int before = allocations;                                                   \
		const long result = (call);                                                       \
		if (!same(result, raw, error) || (counts_allocations && allocations != before)) {                         \
			fprintf(stderr, "%d: %s: %s is %ld (errno %d), not %ld (errno %d)\n",     \
				__LINE__, path, #call, result, errno, raw, error);                \
			_exit(1);                                                                 \
		}                                                                                 \
	} while (0)

static long opened(int fd)
{
	if (fd < 0)
		return fd;
	struct stat status;
	const int error = errno;
	CHECK(!fstat(fd, &status) && !close(fd));
	errno = error;
	return (long)status.st_ino;
}

static void compare(const char *path)
{
	COMPARE(opened(open(path, O_RDONLY | O_NONBLOCK)), opened(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_NONBLOCK)));
	COMPARE(opened(open64(path, O_PATH)), opened(syscall(SYS_openat, AT_FDCWD, path, O_PATH)));
	COMPARE(opened(openat(AT_FDCWD, path, O_RDONLY | O_NONBLOCK)),
		opened(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_NONBLOCK)));
	COMPARE(opened(openat64(-1, path, O_PATH)), opened(syscall(SYS_openat, -1, path, O_PATH)));
	COMPARE(access(path, R_OK), syscall(SYS_access, path, R_OK));
	COMPARE(access(path, W_OK), syscall(SYS_access, path, W_OK));
	COMPARE(faccessat(AT_FDCWD, path, F_OK, 0), syscall(SYS_faccessat, AT_FDCWD, path, F_OK));
	COMPARE(faccessat(-1, path, F_OK, 0), syscall(SYS_faccessat, -1, path, F_OK));
	char one[PATH_MAX], two[PATH_MAX];
	COMPARE(readlink(path, one, sizeof(one)), syscall(SYS_readlink, path, two, sizeof(two)));
	COMPARE(readlinkat(-1, path, one, sizeof(one)), syscall(SYS_readlinkat, -1, path, two, sizeof(two)));
	struct stat first, second;
	const long stat_raw = syscall(SYS_newfstatat, AT_FDCWD, path, &second, 0);
	COMPARE(stat(path, &first), (errno = stat_raw ? errno : 0, stat_raw));
	CHECK(stat_raw || (first.st_ino == second.st_ino && first.st_dev == second.st_dev && first.st_rdev == second.st_rdev &&
			   first.st_mode == second.st_mode && first.st_size == second.st_size));
	COMPARE(lstat(path, &first), syscall(SYS_newfstatat, AT_FDCWD, path, &second, AT_SYMLINK_NOFOLLOW));
	COMPARE(fstatat(-1, path, &first, 0), syscall(SYS_newfstatat, -1, path, &second, 0));
	struct statx more;
	COMPARE(statx(-1, path, 0, STATX_BASIC_STATS, &more), syscall(SYS_statx, -1, path, 0, STATX_BASIC_STATS, &more));
	COMPARE(getxattr(path, "user.none", one, sizeof(one)), syscall(SYS_getxattr, path, "user.none", two, sizeof(two)));
	COMPARE(llistxattr(path, one, sizeof(one)), syscall(SYS_llistxattr, path, two, sizeof(two)));
	errno = 4711;
	DIR *folder = opendir(path);
	CHECK(!folder == (stat_raw || !S_ISDIR(second.st_mode)));
	if (folder) {
		CHECK(errno == 4711 && !closedir(folder));
	}
	char *resolved = realpath(path, one);
	CHECK(!resolved == (stat_raw != 0));
	if (resolved) {
		CHECK(!stat(one, &first) && first.st_ino == second.st_ino);
		char *again = canonicalize_file_name(path);
		CHECK(again && !strcmp(again, one));
		free(again);
	}
	FILE *file = fopen(path, "r");
	CHECK(!file == (syscall(SYS_access, path, R_OK) != 0));
	if (file)
		CHECK(!fclose(file));
}

static void compare_all(void)
{
	struct stat status;
	for (unsigned i = 0; i < sizeof(existing) / sizeof(*existing); i++) {
		if (syscall(SYS_newfstatat, AT_FDCWD, existing[i], &status, 0))
			fprintf(stderr, "there is no %s\n", existing[i]);
		compare(existing[i]);
	}
	for (unsigned i = 0; i < sizeof(missing) / sizeof(*missing); i++) {
		CHECK(syscall(SYS_newfstatat, AT_FDCWD, missing[i], &status, 0) == -1);
		compare(missing[i]);
	}
	/* The kernel's answer to NULL. */
	const char *volatile nothing = NULL;
	CHECK(open(nothing, O_RDONLY) == -1 && errno == EFAULT);
	CHECK(access(nothing, F_OK) == -1 && errno == EFAULT);
	CHECK(!realpath(nothing, NULL) && errno == EINVAL);
}

/* The entries of a folder. */
static int count_of(const char *path)
{
	DIR *folder = opendir(path);
	CHECK(folder);
	int count = 0;
	while (readdir(folder))
		count++;
	CHECK(!closedir(folder));
	return count;
}

static volatile int signals;

static void on_signal(int signal)
{
	(void)signal;
	signals++;
	struct stat status;
	const int error = errno;
	CHECK(!stat("/dev/null", &status) && S_ISCHR(status.st_mode));
	const int fd = open("/dev/null", O_RDONLY);
	CHECK(fd >= 0 && !close(fd));
	errno = error;
}

int main(void)
{
	CHECK(!mkdir("sys", 0700) && !mkdir("sys/class", 0700) && !mkdir("sys/class/infiniband", 0700));
	CHECK(!mkdir("dev", 0700) && !mkdir("dev/infiniband", 0700));
	const int fd = open("sys/class/infiniband/file", O_CREAT | O_EXCL | O_WRONLY, 0640);
	struct stat status;
	CHECK(fd >= 0 && !fstat(fd, &status) && (status.st_mode & 0777) == 0640 && !close(fd));
	compare_all();
	char path[PATH_MAX];
	CHECK(realpath("/sys/class/net/lo", path) && !strcmp(path, "/sys/devices/virtual/net/lo"));
	CHECK(count_of("/sys/class/net") > 2 && count_of("sys/class/infiniband") == 3);
	/* A file can be made and written, with its mode. */
	CHECK(!unlink("sys/class/infiniband/file"));
	FILE *file = fopen("sys/class/infiniband/file", "w");
	CHECK(file && fputs("text", file) >= 0 && !fclose(file));

	/* Calls in a handler, which interrupts such calls and allocations. */
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	CHECK(!sigaction(SIGALRM, &action, NULL));
	const struct itimerval often = { { 0, 200 }, { 0, 200 } }, never = { { 0, 0 }, { 0, 0 } };
	CHECK(!setitimer(ITIMER_REAL, &often, NULL));
	while (signals < 100) {
		free(malloc(100));
		CHECK(!stat("/sys/class/net", &status) && !stat("/sys/class/infiniband/uwarp0", &status));
	}
	CHECK(!setitimer(ITIMER_REAL, &never, NULL));
	pid_t child = fork();
	if (!child) {
		compare_all();
		_exit(0);
	}
	int result;
	CHECK(child > 0 && waitpid(child, &result, 0) == child && result == 0);
	counts_allocations = 0;
	struct ibv_context *context = open_device();
	compare_all();
	child = fork();
	if (!child) {
		compare_all();
		_exit(0);
	}
	CHECK(child > 0 && waitpid(child, &result, 0) == child && result == 0);
	CHECK(!ibv_close_device(context));
	return 0;
}
