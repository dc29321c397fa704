/* Lists a folder and examines a path by system calls of its own, as programs in Go do. Prints the names in the folder,
 * and whether the path is a character device. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	const long folder = syscall(SYS_openat, AT_FDCWD, argv[1], O_RDONLY | O_DIRECTORY);
	static char entries[1 << 16];
	for (long size; folder >= 0 && (size = syscall(SYS_getdents64, folder, entries, sizeof(entries))) > 0;) {
		for (long at = 0; at < size;) {
			struct dirent64 *entry = (struct dirent64 *)(entries + at);
			if (entry->d_name[0] != '.')
				printf("%s\n", entry->d_name);
			at += entry->d_reclen;
		}
	}
	struct stat status;
	if (!syscall(SYS_newfstatat, AT_FDCWD, argv[2], &status, 0) && S_ISCHR(status.st_mode))
		printf("node\n");
	return 0;
}
