/* Preloaded into a process under test. While the file named by FAULTY_SYNC exists, every fsync and
 * fdatasync of a file whose path contains FAULTY_PATH fails with EIO, as a dying disk answers. Each
 * failed one is written to the file's neighbour with `.log`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(int descriptor, const char *call)
{
	const char *flag = getenv("FAULTY_SYNC"), *wanted = getenv("FAULTY_PATH");
	char link[64], path[4096], log[4096];
	if (!flag || !wanted || access(flag, F_OK) != 0)
		return 0;
	snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
	ssize_t length = readlink(link, path, sizeof path - 1);
	if (length < 0)
		return 0;
	path[length] = 0;
	if (!strstr(path, wanted))
		return 0;
	snprintf(log, sizeof log, "%s.log", flag);
	int file = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
	if (file >= 0) {
		dprintf(file, "%s %s\n", call, path);
		close(file);
	}
	errno = EIO;
	return 1;
}

int fsync(int descriptor)
{
	static int (*real)(int);
	if (!real)
		real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
	return fails(descriptor, "fsync") ? -1 : real(descriptor);
}

int fdatasync(int descriptor)
{
	static int (*real)(int);
	if (!real)
		real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
	return fails(descriptor, "fdatasync") ? -1 : real(descriptor);
}
