/* Preloaded into a process under test: what a power cut leaves. Each file that is synced in the folder
 * SYNCED_FOLDER and has `.db` in its name is copied into the folder SYNCED_COPY before the sync is
 * answered, so that the copy has all that was acknowledged and nothing that was only written. A
 * memory that is shared (`-shm`) is never on disk. Once there is the file SYNCED_CUT with a number in
 * it, the power fails in front of the sync after so many. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void copy(const char *from, const char *to)
{
	char buffer[1 << 16];
	int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT, 0600);
	off_t at = 0;
	ssize_t length;
	if (in < 0 || out < 0)
		abort();
	while ((length = pread(in, buffer, sizeof buffer, at)) > 0) {
		if (pwrite(out, buffer, length, at) != length)
			abort();
		at += length;
	}
	if (length < 0 || ftruncate(out, at) != 0)
		abort();
	close(in);
	close(out);
}

static void cut(void)
{
	static _Atomic int left = -1;
	const char *flag = getenv("SYNCED_CUT");
	char number[16] = "";
	int file = flag ? open(flag, O_RDONLY) : -1;
	if (file < 0)
		return;
	if (left < 0 && read(file, number, sizeof number - 1) > 0)
		left = atoi(number);
	close(file);
	if (left-- == 0)
		kill(getpid(), SIGKILL);
}

static void keep(int descriptor)
{
	const char *folder = getenv("SYNCED_FOLDER"), *kept = getenv("SYNCED_COPY"), *name;
	char link[64], path[4096], to[8192];
	struct stat what;
	if (!folder || !kept || fstat(descriptor, &what) != 0 || !S_ISREG(what.st_mode))
		return;
	snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
	ssize_t length = readlink(link, path, sizeof path - 1);
	if (length < 0)
		return;
	path[length] = 0;
	if (strncmp(path, folder, strlen(folder)) != 0 || path[strlen(folder)] != '/')
		return;
	name = path + strlen(folder) + 1;
	if (strchr(name, '/') || !strstr(name, ".db") || strstr(name, "-shm") || strstr(name, " (deleted)"))
		return;
	cut();
	snprintf(to, sizeof to, "%s/%s", kept, name);
	copy(path, to);
}

int fsync(int descriptor)
{
	static int (*real)(int);
	if (!real)
		real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
	keep(descriptor);
	return real(descriptor);
}

int fdatasync(int descriptor)
{
	static int (*real)(int);
	if (!real)
		real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
	keep(descriptor);
	return real(descriptor);
}
