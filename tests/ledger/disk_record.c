/*
 * Records, in their order, what a program does to the files of one folder and what it answers on
 * one socket. It is loaded with LD_PRELOAD; disk.py reads the record and says what a disk surely
 * has after it. Variables: DISK_FOLDER, DISK_SOCKET, DISK_RECORD (a file anybody may append to).
 *
 * A record is a head and two byte strings. Each call and its record are made under one lock, so
 * their order is the same. A call that is not recorded would be missing in silence: what cannot be
 * recorded ends the program, and disk.py compares the folder with its record.
 *
 * Kinds:  c created   t truncated to `at`   w written at `at`   s synced           (of a file)
 *         r renamed   l linked   u unlinked   m a folder made                      (names)
 *         f the folder synced   F the folder above synced   d a folder by fdatasync
 *         a answer sent
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

enum { NONE, FILE_BELOW, FOLDER, ABOVE };

struct head {
	uint32_t kind, first, second, unused;
	uint64_t inode;
	int64_t at;
};

static char folder[4096], above[4096], record[4096], socket_path[108];
static unsigned char known[1 << 20]; /* what each descriptor is */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);
	if (!found)
		abort();
	return found;
}

__attribute__((constructor)) static void begin(void)
{
	const char *where = getenv("DISK_FOLDER"), *what = getenv("DISK_RECORD");
	const char *answers = getenv("DISK_SOCKET");
	if (!where || !what || !answers || strlen(where) >= sizeof folder ||
	    strlen(what) >= sizeof record || strlen(answers) >= sizeof socket_path)
		return;
	strcpy(folder, where);
	strcpy(above, where);
	*strrchr(above, '/') = 0;
	strcpy(record, what);
	strcpy(socket_path, answers);
}

static void put(char kind, uint64_t inode, int64_t at, const void *first, size_t one,
		const void *second, size_t two)
{
	int before = errno;
	struct head head = { (uint32_t)kind, (uint32_t)one, (uint32_t)two, 0, inode, at };
	struct iovec parts[] = { { &head, sizeof head }, { (void *)first, one }, { (void *)second, two } };
	/* Opened each time: the program closes what it did not open itself. */
	int fd = REAL(open64)(record, O_WRONLY | O_APPEND | O_CLOEXEC);
	if (fd < 0 || REAL(writev)(fd, parts, 3) != (ssize_t)(sizeof head + one + two))
		abort();
	REAL(close)(fd);
	errno = before;
}

/* The name of a path in the folder, "" for the folder itself, and nothing elsewhere. */
static const char *below(const char *path)
{
	size_t size = strlen(folder);
	if (!size || !path || strncmp(path, folder, size))
		return NULL;
	return path[size] == '/' ? path + size + 1 : path[size] ? NULL : path + size;
}

static uint64_t inode_of(int fd)
{
	struct stat found;
	if (fstat(fd, &found))
		abort();
	return found.st_ino;
}

static int what(int fd)
{
	return fd >= 0 && fd < (int)sizeof known ? known[fd] : NONE;
}

static void name_change(char kind, const char *one, const char *two)
{
	put(kind, 0, 0, one, strlen(one), two, two ? strlen(two) : 0);
}

static int do_open(const char *path, int flags, mode_t mode)
{
	const char *name = below(path);
	struct stat found;
	int fd, there;
	if (!name) {
		fd = REAL(open64)(path, flags, mode);
		if (what(fd) || fd < 0 || fd >= (int)sizeof known)
			return fd;
		known[fd] = *above && !strcmp(path, above) ? ABOVE : NONE;
		return fd;
	}
	pthread_mutex_lock(&lock);
	there = !lstat(path, &found);
	fd = REAL(open64)(path, flags, mode);
	if (fd >= (int)sizeof known)
		abort();
	if (fd >= 0) {
		known[fd] = *name ? FILE_BELOW : FOLDER;
		if (!there)
			put('c', inode_of(fd), 0, name, strlen(name), NULL, 0);
		else if (flags & O_TRUNC)
			put('t', inode_of(fd), 0, NULL, 0, NULL, 0);
	}
	pthread_mutex_unlock(&lock);
	return fd;
}

#define OPEN(name)                                                                         \
	int name(const char *path, int flags, ...)                                         \
	{                                                                                  \
		va_list rest;                                                              \
		mode_t mode;                                                               \
		va_start(rest, flags);                                                     \
		mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;           \
		va_end(rest);                                                              \
		return do_open(path, flags, mode);                                         \
	}
OPEN(open)
OPEN(open64)

int close(int fd)
{
	if (fd >= 0 && fd < (int)sizeof known)
		known[fd] = NONE;
	return REAL(close)(fd);
}

/* ---- content ---- */

static void written(int fd, int64_t at, const void *data, ssize_t size)
{
	if (size > 0)
		put('w', inode_of(fd), at, data, (size_t)size, NULL, 0);
}

/* Whether a descriptor is a client of the socket. */
static int answers(int fd)
{
	struct sockaddr_un name;
	socklen_t size = sizeof name;
	int before = errno, is;
	memset(&name, 0, sizeof name);
	is = *socket_path && !getsockname(fd, (struct sockaddr *)&name, &size) &&
	     name.sun_family == AF_UNIX && !strncmp(name.sun_path, socket_path, sizeof name.sun_path);
	errno = before;
	return is;
}

static void answer(int fd, const void *data, size_t size)
{
	if (!answers(fd))
		return;
	/* Before it is sent: who has the answer finds all of this recorded. */
	pthread_mutex_lock(&lock);
	put('a', 0, 0, data, size, NULL, 0);
	pthread_mutex_unlock(&lock);
}

ssize_t write(int fd, const void *data, size_t size)
{
	ssize_t done;
	if (what(fd) != FILE_BELOW)
		return REAL(write)(fd, data, size);
	pthread_mutex_lock(&lock);
	done = REAL(write)(fd, data, size);
	written(fd, lseek(fd, 0, SEEK_CUR) - done, data, done);
	pthread_mutex_unlock(&lock);
	return done;
}

#define PWRITE(name, type)                                                                 \
	ssize_t name(int fd, const void *data, size_t size, type at)                       \
	{                                                                                  \
		ssize_t done;                                                              \
		if (what(fd) != FILE_BELOW)                                                \
			return REAL(name)(fd, data, size, at);                             \
		pthread_mutex_lock(&lock);                                                 \
		done = REAL(name)(fd, data, size, at);                                     \
		written(fd, at, data, done);                                               \
		pthread_mutex_unlock(&lock);                                               \
		return done;                                                               \
	}
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define FTRUNCATE(name, type)                                                              \
	int name(int fd, type size)                                                        \
	{                                                                                  \
		int failed;                                                                \
		pthread_mutex_lock(&lock);                                                 \
		failed = REAL(name)(fd, size);                                             \
		if (!failed && what(fd) == FILE_BELOW)                                     \
			put('t', inode_of(fd), size, NULL, 0, NULL, 0);                    \
		pthread_mutex_unlock(&lock);                                               \
		return failed;                                                             \
	}
FTRUNCATE(ftruncate, off_t)
FTRUNCATE(ftruncate64, off64_t)

#define SYNC(name, of_folder, of_above)                                                    \
	int name(int fd)                                                                   \
	{                                                                                  \
		int failed, is = what(fd);                                                 \
		if (!is)                                                                   \
			return REAL(name)(fd);                                             \
		pthread_mutex_lock(&lock);                                                 \
		failed = REAL(name)(fd);                                                   \
		if (!failed)                                                               \
			put(is == FOLDER ? of_folder : is == ABOVE ? of_above : 's',       \
			    inode_of(fd), 0, NULL, 0, NULL, 0);                            \
		pthread_mutex_unlock(&lock);                                               \
		return failed;                                                             \
	}
SYNC(fsync, 'f', 'F')
SYNC(fdatasync, 'd', 'd')

/* ---- names ---- */

#define TWO_NAMES(name, kind)                                                              \
	int name(const char *one, const char *two)                                         \
	{                                                                                  \
		int failed;                                                                \
		const char *from = below(one), *to = below(two);                           \
		if (!from && !to)                                                          \
			return REAL(name)(one, two);                                       \
		if (!from || !to)                                                          \
			abort(); /* into the folder or out of it: not known here */        \
		pthread_mutex_lock(&lock);                                                 \
		failed = REAL(name)(one, two);                                             \
		if (!failed)                                                               \
			name_change(kind, from, to);                                       \
		pthread_mutex_unlock(&lock);                                               \
		return failed;                                                             \
	}
TWO_NAMES(rename, 'r')
TWO_NAMES(link, 'l')

int unlink(const char *path)
{
	int failed;
	const char *name = below(path);
	if (!name)
		return REAL(unlink)(path);
	pthread_mutex_lock(&lock);
	failed = REAL(unlink)(path);
	if (!failed)
		name_change('u', name, NULL);
	pthread_mutex_unlock(&lock);
	return failed;
}

int mkdir(const char *path, mode_t mode)
{
	int failed = REAL(mkdir)(path, mode);
	const char *name = below(path);
	if (!failed && name)
		name_change('m', name, NULL);
	return failed;
}

int mkdirat(int fd, const char *name, mode_t mode)
{
	int failed = REAL(mkdirat)(fd, name, mode);
	if (!failed && what(fd) == ABOVE && !strcmp(name, folder + strlen(above) + 1))
		name_change('m', "", NULL);
	return failed;
}

/* ---- the socket ---- */

ssize_t send(int fd, const void *data, size_t size, int flags)
{
	answer(fd, data, size);
	return REAL(send)(fd, data, size, flags);
}
