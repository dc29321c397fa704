/*
 * This program is not linked with libibverbs, and opens the library with dlopen, as NCCL and Rust crates that
 * use rdma-mummy do. The arguments are the names to open. With or without a version, a function that the
 * program looks up is that of libuwarp.so, which is loaded once. With "--other", the only name leads to
 * another libibverbs, which has no device.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                            \
	do {                                                                                        \
		if (!(condition)) {                                                                 \
			fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, name);  \
			_exit(1);                                                                   \
		}                                                                                   \
	} while (0)

struct device;
typedef struct device **list_function(int *count);
typedef const char *name_function(struct device *device);

static void *base_of(const char *name, void *function)
{
	Dl_info info;
	CHECK(function && dladdr(function, &info));
	return info.dli_fbase;
}

static int devices(list_function *list)
{
	int count = -1;
	struct device **all = list(&count);
	return all ? count : 0;
}

/* The number of mapped libraries with this name. */
static int mapped(const char *name)
{
	char line[4096], before[4096] = "";
	int count = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	CHECK(maps);
	while (fgets(line, sizeof line, maps)) {
		char *path = strchr(line, '/');
		if (path && strstr(path, name) && strcmp(path, before)) {
			strcpy(before, path);
			count++;
		}
	}
	fclose(maps);
	return count;
}

int main(int argc, char **argv)
{
	int is_other = argc > 1 && !strcmp(argv[1], "--other");
	void *base = NULL;
	for (int i = 1 + is_other; i < argc; i++) {
		const char *name = argv[i];
		void *library = dlopen(name, RTLD_NOW);
		if (!library)
			fprintf(stderr, "%s\n", dlerror());
		CHECK(library);
		if (strstr(name, "rdmacm")) {
			void *make = dlvsym(library, "rdma_create_id", "RDMACM_1.0");
			CHECK(make == dlsym(library, "rdma_create_id"));
			CHECK(!base || base_of(name, make) == base);
			continue;
		}
		list_function *list = (list_function *)dlvsym(library, "ibv_get_device_list", "IBVERBS_1.1");
		CHECK(list && list == (list_function *)dlsym(library, "ibv_get_device_list"));
		if (is_other) {
			CHECK(devices(list) == 0);
			CHECK(devices(list) == 0);
			return 0;
		}
		CHECK(!base || base_of(name, list) == base);
		base = base_of(name, list);
		CHECK(devices(list) == 1);
		int count;
		name_function *name_of = (name_function *)dlsym(library, "ibv_get_device_name");
		CHECK(!strcmp(name_of(list(&count)[0]), "uwarp0"));
		/* These versions exist. Version 1.0 of 2006 has other structs, and is not supported. */
		CHECK(base_of(name, dlvsym(library, "ibv_create_comp_channel", "IBVERBS_1.0")) == base);
		CHECK(base_of(name, dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8")) == base);
		CHECK(!dlvsym(library, "ibv_get_device_list", "IBVERBS_1.0"));
		static const char *const releases[] = { "34", "57", "59", "64", "65" };
		for (unsigned at = 0; at < sizeof releases / sizeof *releases; at++) {
			char version[40], registers[40];
			snprintf(version, sizeof version, "IBVERBS_PRIVATE_%s", releases[at]);
			snprintf(registers, sizeof registers, "verbs_register_driver_%s", releases[at]);
			CHECK(base_of(name, dlvsym(library, registers, version)) == base);
			CHECK(base_of(name, dlvsym(library, "ibv_cmd_create_qp", version)) == base);
			CHECK(base_of(name, dlvsym(library, "ibv_query_gid_type", version)) == base);
		}
	}
	const char *name = "libuwarp.so";
	CHECK(mapped(name) == 1);
	puts("one library");
	return 0;
}
