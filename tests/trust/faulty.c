/* Preloaded: lets one call that changes a file below a folder fail, or ends the process there; see fault_worlds.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 0, WRITE = 1, SYNC = 2, RENAME = 3, KINDS = 4 };

static char root[PATH_MAX];
static long counts[KINDS];
static int armed_kind = -1, armed_error, armed; /* error 0: end the process */
static long armed_number;

void faulty_arm(const char *folder, int kind, long number, int error) {
    memset(counts, 0, sizeof counts);
    strncpy(root, folder, sizeof root - 1);
    armed_kind = kind, armed_number = number, armed_error = error;
    armed = 1;
}
long faulty_count(int kind) { return counts[kind]; }

static int below(const char *path) { return armed && root[0] && strncmp(path, root, strlen(root)) == 0; }

static int fd_below(int fd) {
    char link[64], path[PATH_MAX];
    if (!armed) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return below(path);
}

/* Counts a call; -1 with errno where it is the one that fails. */
static int strike(int kind) {
    long number = __atomic_add_fetch(&counts[kind], 1, __ATOMIC_SEQ_CST);
    if (kind != armed_kind || number != armed_number) return 0;
    if (armed_error == 0) kill(getpid(), SIGKILL);
    errno = armed_error;
    return -1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) {
    if (fd_below(fd) && strike(WRITE)) return -1;
    return REAL(write)(fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    if (fd_below(fd) && strike(WRITE)) return -1;
    return REAL(pwrite)(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    if (fd_below(fd) && strike(WRITE)) return -1;
    return REAL(pwrite64)(fd, data, size, at);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (fd_below(fd) && strike(WRITE)) return -1;
    return REAL(writev)(fd, parts, count);
}
int fsync(int fd) { return fd_below(fd) && strike(SYNC) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return fd_below(fd) && strike(SYNC) ? -1 : REAL(fdatasync)(fd); }
int rename(const char *from, const char *to) { return below(to) && strike(RENAME) ? -1 : REAL(rename)(from, to); }
int renameat(int a, const char *from, int b, const char *to) {
    return below(to) && strike(RENAME) ? -1 : REAL(renameat)(a, from, b, to);
}
int link(const char *from, const char *to) { return below(to) && strike(RENAME) ? -1 : REAL(link)(from, to); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
    return below(to) && strike(RENAME) ? -1 : REAL(linkat)(a, from, b, to, flags);
}

#define OPENING(name, ...)                                                       \
    mode_t mode = 0;                                                             \
    if (flags & (O_CREAT | O_TMPFILE)) {                                         \
        va_list more;                                                            \
        va_start(more, flags);                                                   \
        mode = va_arg(more, mode_t);                                             \
        va_end(more);                                                            \
    }                                                                            \
    if ((flags & O_ACCMODE) != O_RDONLY && below(path) && strike(OPEN)) return -1; \
    return REAL(name)(__VA_ARGS__, mode);

int open(const char *path, int flags, ...) { OPENING(open, path, flags) }
int open64(const char *path, int flags, ...) { OPENING(open64, path, flags) }
int openat(int folder, const char *path, int flags, ...) { OPENING(openat, folder, path, flags) }
int openat64(int folder, const char *path, int flags, ...) { OPENING(openat64, folder, path, flags) }
