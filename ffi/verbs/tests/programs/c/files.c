/*
 * Finds the files of the device by each call of libc that the library exports, and compares their contents with the
 * answers of verbs: before this process has opened the device, while it is open, and in a forked child.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#include "common.h"

#define CLASS "/sys/class/infiniband"
#define DEVICE CLASS "/uwarp0"
#define FILE_OF_DEVICE DEVICE "/node_type"
#define REAL "/sys/devices/virtual/uwarp/uwarp0"
#define NODE "/dev/infiniband/uverbs0"
#define NOWHERE CLASS "/none"

static const char *node_type;

/* The function with this name, which has to be the library's. */
static void *function(const char *name)
{
	void *found = dlsym(RTLD_DEFAULT, name);
	Dl_info info;
	if (!found || !dladdr(found, &info) || !strstr(info.dli_fname, "libuwarp.so")) {
		fprintf(stderr, "%s is not the library's\n", name);
		_exit(1);
	}
	return found;
}

static void has_node_type(int fd)
{
	char text[64] = "";
	CHECK(fd >= 0 && read(fd, text, sizeof(text)) == (ssize_t)strlen(node_type));
	CHECK(!strcmp(text, node_type));
	CHECK(!close(fd));
}

static void fails_with(long result, long failed, int error)
{
	CHECK(result == failed && errno == error);
}

static void open_by_each_call(void)
{
	static const char *const opens[] = { "open", "open64", "__open", "__open64", "__open_2", "__open64_2" };
	for (unsigned i = 0; i < sizeof(opens) / sizeof(*opens); i++) {
		int (*open_it)(const char *, int, ...) = function(opens[i]);
		errno = 4711;
		has_node_type(open_it(FILE_OF_DEVICE, O_RDONLY));
		CHECK(errno == 4711);
		has_node_type(open_it("/sys//class/./infiniband/uwarp0//node_type", O_RDONLY | O_CLOEXEC));
		has_node_type(open_it(DEVICE "/device/infiniband/../infiniband/uwarp0/node_type", O_RDONLY));
		has_node_type(open_it(REAL "/infiniband/uwarp0/node_type", O_RDONLY));
		fails_with(open_it(NOWHERE, O_RDONLY), -1, ENOENT);
		fails_with(open_it(FILE_OF_DEVICE "/x", O_RDONLY), -1, ENOTDIR);
		fails_with(open_it(FILE_OF_DEVICE, O_RDWR), -1, EACCES);
		fails_with(open_it(FILE_OF_DEVICE, O_RDONLY | O_TRUNC), -1, EACCES);
		fails_with(open_it(NOWHERE, O_WRONLY), -1, ENOENT);
		fails_with(open_it(DEVICE, O_WRONLY), -1, EISDIR);
		int fd = open_it(NODE, O_RDWR);
		char byte;
		CHECK(fd >= 0 && read(fd, &byte, 1) == 0 && write(fd, "x", 1) == 1 && !close(fd));
	}
	int (*creating)(const char *, int, ...) = function("open");
	fails_with(creating(NOWHERE, O_WRONLY | O_CREAT, 0600), -1, EACCES);
	static const char *const openats[] = { "openat", "openat64", "__openat_2", "__openat64_2" };
	for (unsigned i = 0; i < sizeof(openats) / sizeof(*openats); i++) {
		int (*open_it)(int, const char *, int, ...) = function(openats[i]);
		has_node_type(open_it(AT_FDCWD, FILE_OF_DEVICE, O_RDONLY));
		has_node_type(open_it(-1, FILE_OF_DEVICE, O_RDONLY));
		fails_with(open_it(AT_FDCWD, NOWHERE, O_RDONLY), -1, ENOENT);
		/* A folder of the device is a real folder, so calls relative to it work. */
		int folder = open_it(AT_FDCWD, DEVICE, O_RDONLY | O_DIRECTORY);
		CHECK(folder >= 0);
		has_node_type(open_it(folder, "node_type", O_RDONLY));
		CHECK(!close(folder));
	}
	static const char *const fopens[] = { "fopen", "fopen64" };
	for (unsigned i = 0; i < sizeof(fopens) / sizeof(*fopens); i++) {
		FILE *(*open_it)(const char *, const char *) = function(fopens[i]);
		for (const char *const *mode = (const char *const[]){ "r", "rb", "re", "rm", NULL }; *mode; mode++) {
			FILE *file = open_it(FILE_OF_DEVICE, *mode);
			char text[64];
			CHECK(file && fgets(text, sizeof(text), file) && !strcmp(text, node_type));
			CHECK(!fgets(text, sizeof(text), file) && feof(file));
			CHECK(!fseek(file, 0, SEEK_SET) && fgets(text, sizeof(text), file));
			CHECK(!fclose(file));
		}
		CHECK(!open_it(FILE_OF_DEVICE, "r+") && errno == EACCES);
		CHECK(!open_it(NOWHERE, "w") && errno == EACCES);
		CHECK(!open_it(NOWHERE, "r") && errno == ENOENT);
	}
}

/* Checks that an open folder has exactly this entry. */
static void has_only(DIR *folder, const char *name)
{
	CHECK(folder);
	int found = 0;
	for (struct dirent *entry; (entry = readdir(folder));) {
		if (entry->d_name[0] != '.') {
			CHECK(!strcmp(entry->d_name, name));
			found++;
		}
	}
	CHECK(found == 1);
	CHECK(!closedir(folder));
}

static int is_visible(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static void list_by_each_call(void)
{
	DIR *(*open_it)(const char *) = function("opendir");
	has_only(open_it(CLASS), "uwarp0");
	has_only(open_it(CLASS "/"), "uwarp0");
	has_only(open_it(DEVICE "/ports"), "1");
	CHECK(!open_it(NOWHERE) && errno == ENOENT);
	CHECK(!open_it(FILE_OF_DEVICE) && errno == ENOTDIR);
	for (const char *const *name = (const char *const[]){ "scandir", "scandir64", NULL }; *name; name++) {
		int (*scan)(const char *, struct dirent ***, int (*)(const struct dirent *), void *) = function(*name);
		struct dirent **list;
		CHECK(scan(CLASS, &list, is_visible, NULL) == 1 && !strcmp(list[0]->d_name, "uwarp0"));
		free(list[0]);
		free(list);
		fails_with(scan(NOWHERE, &list, NULL, NULL), -1, ENOENT);
	}
	for (const char *const *name = (const char *const[]){ "scandirat", "scandirat64", NULL }; *name; name++) {
		int (*scan)(int, const char *, struct dirent ***, int (*)(const struct dirent *), void *) =
			function(*name);
		struct dirent **list;
		CHECK(scan(AT_FDCWD, CLASS, &list, is_visible, NULL) == 1 && !strcmp(list[0]->d_name, "uwarp0"));
		free(list[0]);
		free(list);
	}
}

static void is_folder(mode_t mode)
{
	CHECK(S_ISDIR(mode) && (mode & 0555) == 0555);
}

static void is_node(mode_t mode, dev_t device)
{
	CHECK(S_ISCHR(mode) && (mode & 0666) == 0666 && major(device) == 231 && minor(device) == 192);
}

/* Which of these calls follow symbolic links. */
struct call {
	const char *name;
	int follows;
};

static void stat_by_each_call(void)
{
	struct stat status;
	static const struct call stats[] = { { "stat", 1 }, { "stat64", 1 }, { "lstat", 0 }, { "lstat64", 0 } };
	for (unsigned i = 0; i < 4; i++) {
		int (*call)(const char *, struct stat *) = function(stats[i].name);
		CHECK(!call(CLASS, &status));
		is_folder(status.st_mode);
		CHECK(!call(DEVICE, &status) && S_ISDIR(status.st_mode) == stats[i].follows);
		CHECK(!call(FILE_OF_DEVICE, &status) && S_ISREG(status.st_mode) && status.st_size == 4096);
		CHECK((status.st_mode & 0777) == 0444);
		CHECK(!call(NODE, &status));
		is_node(status.st_mode, status.st_rdev);
		fails_with(call(NOWHERE, &status), -1, ENOENT);
	}
	static const struct call xstats[] = {
		{ "__xstat", 1 }, { "__xstat64", 1 }, { "__lxstat", 0 }, { "__lxstat64", 0 }
	};
	for (unsigned i = 0; i < 4; i++) {
		int (*call)(int, const char *, struct stat *) = function(xstats[i].name);
		CHECK(!call(1, DEVICE, &status) && S_ISDIR(status.st_mode) == xstats[i].follows);
		CHECK(!call(1, NODE, &status));
		is_node(status.st_mode, status.st_rdev);
		fails_with(call(1, NOWHERE, &status), -1, ENOENT);
	}
	for (const char *const *name = (const char *const[]){ "fstatat", "fstatat64", NULL }; *name; name++) {
		int (*call)(int, const char *, struct stat *, int) = function(*name);
		CHECK(!call(-1, DEVICE, &status, 0) && S_ISDIR(status.st_mode));
		CHECK(!call(-1, DEVICE, &status, AT_SYMLINK_NOFOLLOW) && S_ISLNK(status.st_mode));
		CHECK(!call(-1, NODE, &status, AT_SYMLINK_NOFOLLOW));
		is_node(status.st_mode, status.st_rdev);
		fails_with(call(-1, NOWHERE, &status, 0), -1, ENOENT);
	}
	for (const char *const *name = (const char *const[]){ "__fxstatat", "__fxstatat64", NULL }; *name; name++) {
		int (*call)(int, int, const char *, struct stat *, int) = function(*name);
		CHECK(!call(1, -1, DEVICE, &status, 0) && S_ISDIR(status.st_mode));
		CHECK(!call(1, -1, NODE, &status, AT_SYMLINK_NOFOLLOW));
		is_node(status.st_mode, status.st_rdev);
	}
	int (*call)(int, const char *, int, unsigned, struct statx *) = function("statx");
	struct statx more;
	CHECK(!call(-1, DEVICE, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &more) && S_ISLNK(more.stx_mode));
	CHECK(!call(-1, FILE_OF_DEVICE, 0, STATX_BASIC_STATS, &more) && more.stx_size == 4096);
	CHECK(!call(-1, NODE, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &more));
	is_node(more.stx_mode, makedev(more.stx_rdev_major, more.stx_rdev_minor));
	CHECK(!call(-1, "/dev/infiniband/rdma_cm", 0, STATX_BASIC_STATS, &more) && more.stx_rdev_major == 10);
	fails_with(call(-1, NOWHERE, 0, STATX_BASIC_STATS, &more), -1, ENOENT);
}

static void check_access_by_each_call(void)
{
	for (const char *const *name = (const char *const[]){ "access", "eaccess", "euidaccess", NULL }; *name; name++) {
		int (*call)(const char *, int) = function(*name);
		CHECK(!call(DEVICE, F_OK) && !call(FILE_OF_DEVICE, R_OK) && !call(NODE, R_OK | W_OK));
		fails_with(call(NOWHERE, F_OK), -1, ENOENT);
	}
	/* The path leaves the folder of the device. */
	CHECK(!access(CLASS "/../net/lo", F_OK));
	fails_with(access(CLASS "/../net/none", F_OK), -1, ENOENT);
	int (*call)(int, const char *, int, int) = function("faccessat");
	CHECK(!call(-1, DEVICE, F_OK, 0) && !call(-1, NODE, R_OK | W_OK, AT_EACCESS));
	fails_with(call(-1, NOWHERE, F_OK, 0), -1, ENOENT);
}

static void read_attributes_by_each_call(void)
{
	char value[256];
	for (const char *const *name = (const char *const[]){ "getxattr", "lgetxattr", NULL }; *name; name++) {
		ssize_t (*call)(const char *, const char *, void *, size_t) = function(*name);
		CHECK(call(DEVICE, "user.uwarp", value, sizeof(value)) == -1 && errno != ENOENT);
		CHECK(call(NODE, "user.uwarp", value, sizeof(value)) == -1 && errno != ENOENT);
		fails_with(call(NOWHERE, "user.uwarp", value, sizeof(value)), -1, ENOENT);
	}
	for (const char *const *name = (const char *const[]){ "listxattr", "llistxattr", NULL }; *name; name++) {
		ssize_t (*call)(const char *, char *, size_t) = function(*name);
		CHECK(call(DEVICE, value, sizeof(value)) >= 0);
		fails_with(call(NOWHERE, value, sizeof(value)), -1, ENOENT);
	}
}

static void is_link_of_class(const char *text, ssize_t length)
{
	static const char wanted[] = "../../devices/virtual/uwarp/uwarp0/infiniband/uwarp0";
	CHECK(length == (ssize_t)strlen(wanted) && !memcmp(text, wanted, length));
}

static void resolve_by_each_call(void)
{
	char text[PATH_MAX];
	ssize_t (*link)(const char *, char *, size_t) = function("readlink");
	is_link_of_class(text, link(DEVICE, text, sizeof(text)));
	fails_with(link(FILE_OF_DEVICE, text, sizeof(text)), -1, EINVAL);
	fails_with(link(NODE, text, sizeof(text)), -1, EINVAL);
	ssize_t (*link_checked)(const char *, char *, size_t, size_t) = function("__readlink_chk");
	is_link_of_class(text, link_checked(DEVICE, text, sizeof(text), sizeof(text)));
	ssize_t (*link_at)(int, const char *, char *, size_t) = function("readlinkat");
	is_link_of_class(text, link_at(-1, DEVICE, text, sizeof(text)));
	ssize_t (*link_at_checked)(int, const char *, char *, size_t, size_t) = function("__readlinkat_chk");
	is_link_of_class(text, link_at_checked(-1, DEVICE, text, sizeof(text), sizeof(text)));

	static const char *const pairs[][2] = {
		{ DEVICE, REAL "/infiniband/uwarp0" },
		{ DEVICE "/device", REAL },
		{ DEVICE "/../..", REAL },
		{ "/sys/class/infiniband_verbs/uverbs0", REAL "/infiniband_verbs/uverbs0" },
		{ "/sys/class/infiniband_verbs/uverbs0/device", REAL },
		{ NODE, NODE },
		{ CLASS "/../net/lo", "/sys/devices/virtual/net/lo" },
	};
	char *(*resolve)(const char *, char *) = function("realpath");
	char *(*resolve_checked)(const char *, char *, size_t) = function("__realpath_chk");
	char *(*canonicalize)(const char *) = function("canonicalize_file_name");
	for (unsigned i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
		errno = 4711;
		CHECK(resolve(pairs[i][0], text) == text && !strcmp(text, pairs[i][1]) && errno == 4711);
		CHECK(resolve_checked(pairs[i][0], text, sizeof(text)) == text && !strcmp(text, pairs[i][1]));
		char *results[] = { resolve(pairs[i][0], NULL), canonicalize(pairs[i][0]) };
		for (unsigned j = 0; j < 2; j++) {
			CHECK(results[j] && !strcmp(results[j], pairs[i][1]));
			free(results[j]);
		}
		/* A resolved path is a path again. */
		struct stat status;
		CHECK(!lstat(text, &status) && !S_ISLNK(status.st_mode));
	}
	CHECK(!resolve(NOWHERE, text) && errno == ENOENT);
	CHECK(!canonicalize(FILE_OF_DEVICE "/x") && errno == ENOTDIR);

	int (*change)(const char *) = function("chdir");
	CHECK(getcwd(text, sizeof(text)) && !change(DEVICE));
	has_node_type(open("node_type", O_RDONLY));
	CHECK(!change(text));
	fails_with(change(NOWHERE), -1, ENOENT);
}

static void line_of(const char *path, char *line, int size)
{
	FILE *file = fopen(path, "r");
	if (!file)
		fprintf(stderr, "%s\n", path);
	CHECK(file && fgets(line, size, file));
	line[strcspn(line, "\n")] = 0;
	CHECK(!fclose(file));
}

static void says(const char *path, const char *wanted)
{
	char line[256];
	line_of(path, line, sizeof(line));
	if (strcmp(line, wanted))
		fprintf(stderr, "%s: '%s', not '%s'\n", path, line, wanted);
	CHECK(!strcmp(line, wanted));
}

static void write_words(char *text, const uint8_t *bytes, int count)
{
	for (int i = 0; i < count; i += 2)
		text += sprintf(text, "%s%02x%02x", i ? ":" : "", bytes[i], bytes[i + 1]);
}

/* The files of the port, which differ between processes. */
static void agrees_with_port(struct ibv_context *context)
{
	struct ibv_port_attr port;
	CHECK(!ibv_query_port(context, 1, &port));
	char path[256], text[64];
	sprintf(text, "%d: ACTIVE", port.state);
	says(DEVICE "/ports/1/state", text);
	sprintf(text, "%d: LinkUp", port.phys_state);
	says(DEVICE "/ports/1/phys_state", text);
	says(DEVICE "/ports/1/link_layer", port.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand");
	sprintf(text, "0x%x", port.lid);
	says(DEVICE "/ports/1/lid", text);
	sprintf(text, "0x%08x", port.port_cap_flags);
	says(DEVICE "/ports/1/cap_mask", text);
	CHECK(port.active_width == 2 && port.active_speed == 32);
	says(DEVICE "/ports/1/rate", "100 Gb/sec (4X EDR)");
	CHECK(port.gid_tbl_len > 0);
	for (int index = 0; index < port.gid_tbl_len; index++) {
		union ibv_gid gid;
		struct ibv_gid_entry entry;
		CHECK(!ibv_query_gid(context, 1, index, &gid) && !ibv_query_gid_ex(context, 1, index, &entry, 0));
		write_words(text, gid.raw, sizeof(gid.raw));
		sprintf(path, DEVICE "/ports/1/gids/%d", index);
		says(path, text);
		/* The size of a real file, also after the content has changed. */
		struct stat status;
		CHECK(!stat(path, &status) && status.st_size == 4096);
		sprintf(path, DEVICE "/ports/1/gid_attrs/types/%d", index);
		says(path, entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" : "IB/RoCE v1");
		CHECK(if_indextoname(entry.ndev_ifindex, text));
		sprintf(path, DEVICE "/ports/1/gid_attrs/ndevs/%d", index);
		says(path, text);
	}
	sprintf(path, DEVICE "/ports/1/gids/%d", port.gid_tbl_len);
	CHECK(access(path, F_OK) && errno == ENOENT);
	for (int index = 0; index < port.pkey_tbl_len; index++) {
		__be16 key;
		CHECK(!ibv_query_pkey(context, 1, index, &key));
		sprintf(text, "0x%04x", ntohs(key));
		sprintf(path, DEVICE "/ports/1/pkeys/%d", index);
		says(path, text);
	}
}

static void agrees_with_device(struct ibv_context *context)
{
	struct ibv_device *device = context->device;
	struct ibv_device_attr attr;
	CHECK(!ibv_query_device(context, &attr));
	char text[64];
	CHECK(!strcmp(device->ibdev_path, DEVICE) && !strcmp(device->dev_path, "/sys/class/infiniband_verbs/uverbs0"));
	sprintf(text, "%d: %s", device->node_type, device->node_type == IBV_NODE_CA ? "CA" : "RNIC");
	says(DEVICE "/node_type", text);
	write_words(text, (uint8_t *)&attr.node_guid, 8);
	says(DEVICE "/node_guid", text);
	__be64 guid = ibv_get_device_guid(device);
	CHECK(guid == attr.node_guid);
	write_words(text, (uint8_t *)&attr.sys_image_guid, 8);
	says(DEVICE "/sys_image_guid", text);
	says(DEVICE "/fw_ver", attr.fw_ver);
	sprintf(text, "0x%04x", attr.vendor_id & 0xffff);
	says(DEVICE "/device/vendor", text);
	sprintf(text, "0x%04x", attr.vendor_part_id & 0xffff);
	says(DEVICE "/device/device", text);
	says("/sys/class/infiniband_verbs/abi_version", "6");
	says("/sys/class/infiniband_verbs/uverbs0/ibdev", ibv_get_device_name(device));
	says("/sys/class/infiniband_verbs/uverbs0/dev", "231:192");
	struct stat status;
	CHECK(!stat(NODE, &status));
	is_node(status.st_mode, status.st_rdev);
	char line[256], cpus[256];
	line_of(DEVICE "/device/numa_node", line, sizeof(line));
	CHECK(!strcmp(line, "0") || !strcmp(line, "-1"));
	line_of("/sys/devices/system/cpu/online", cpus, sizeof(cpus));
	says(DEVICE "/device/local_cpulist", cpus);
	line_of(DEVICE "/device/local_cpus", line, sizeof(line));
	CHECK(strspn(line, "0123456789abcdef,") == strlen(line) && *line);
	says(DEVICE "/ports/1/counters/port_xmit_data", "0");

	/* libibverbs's function that reads such files. */
	int (*read_file)(const char *, const char *, char *, size_t) = function("ibv_read_sysfs_file");
	CHECK(read_file(device->ibdev_path, "fw_ver", text, sizeof(text)) == (int)strlen(attr.fw_ver));
	CHECK(!strcmp(text, attr.fw_ver));
	CHECK(read_file(device->ibdev_path, "none", text, sizeof(text)) == -1);
	CHECK(read_file(device->ibdev_path, "fw_ver", text, 2) == -1);
}

static void by_each_call(void)
{
	open_by_each_call();
	list_by_each_call();
	stat_by_each_call();
	check_access_by_each_call();
	read_attributes_by_each_call();
	resolve_by_each_call();
}

static void in_child(void (*run)(void))
{
	pid_t child = fork();
	if (!child) {
		run();
		_exit(0);
	}
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

/* The context has the descriptor of a character device, which takes no commands. */
static void takes_no_commands(int fd)
{
	struct stat of;
	CHECK(!fstat(fd, &of) && S_ISCHR(of.st_mode) && fcntl(fd, F_GETFD) == FD_CLOEXEC);
	CHECK(ioctl(fd, _IOWR(0x1b, 1, long), &of) == -1 && errno == ENOTTY);
}

int main(int argc, char **argv)
{
	node_type = argc > 1 ? argv[1] : "4: RNIC\n";
	/* No call of verbs has started anything. */
	in_child(by_each_call);
	by_each_call();
	char before[64], after[64];
	line_of(DEVICE "/ports/1/gids/0", before, sizeof(before));
	struct ibv_context *context = open_device();
	by_each_call();
	agrees_with_device(context);
	agrees_with_port(context);
	int commands = context->cmd_fd;
	takes_no_commands(commands);
	/* The process has chosen its part of the address, which was 0 before. */
	line_of(DEVICE "/ports/1/gids/0", after, sizeof(after));
	CHECK(strlen(before) == 39 && strlen(after) == 39 && strcmp(before, after));
	CHECK(!strncmp(before, after, 34) && !strcmp(before + 35, "0000"));
	/* A child cannot use the device, and has the files. */
	in_child(by_each_call);
	CHECK(!ibv_close_device(context));
	CHECK(fcntl(commands, F_GETFD) == -1 && errno == EBADF);
	by_each_call();
	return 0;
}
