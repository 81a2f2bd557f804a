/* Stands between a program and its file system: counts what it does there, and at operation N kills it, lets the disk
   be full, lets one operation fail, or writes everything down, so that a loss of power can be played back.

       cc -shared -fPIC -o shim.so shim.c -ldl          LD_PRELOAD=shim.so, and shim_set() or the environment:
       SHIM_FOLDER  what is watched        SHIM_MODE  a mode below, as a number        SHIM_AT  N, counted from 1
       SHIM_MATCH   only paths with this in them count (default: all)                  SHIM_LOG where to write it down

   With UNREADABLE, N is an error: no file can be opened to read (EACCES), or read from (any other).
   With BUSY, a rename or a removal is refused (EBUSY) three times from operation N on.
   An fsync is passed over, whatever is watched: no test here pulls a plug. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OFF, COUNT, KILL_BEFORE, KILL_WITHIN, KILL_AFTER, FULL, BROKEN, RECORD, UNREADABLE, BUSY };

static char folder[PATH_MAX], match[256], kinds[4096]; /* kinds: a letter for each operation, - for one that failed */
static int mode = OFF, record_to = -1;
static long at, counted;

void shim_set(const char *where, int how, long n, const char *only, const char *log) {
    snprintf(folder, sizeof folder, "%s", where);
    snprintf(match, sizeof match, "%s", only ? only : "");
    if (record_to >= 0) close(record_to);
    record_to = log && *log ? (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
    at = n;
    counted = 0;
    memset(kinds, 0, sizeof kinds);
    mode = how;
}

const char *shim_kinds(void) { return kinds; }

__attribute__((constructor)) void shim_from_environment(void) {
    const char *where = getenv("SHIM_FOLDER"), *how = getenv("SHIM_MODE"), *n = getenv("SHIM_AT");
    if (where && how) shim_set(where, atoi(how), n ? atol(n) : 0, getenv("SHIM_MATCH"), getenv("SHIM_LOG"));
}

static const char *of_descriptor(int fd, char *full) {
    char link[64];
    if (mode == OFF) return full[0] = 0, full; /* nothing is watched */
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, full, PATH_MAX - 1);
    full[n < 0 ? 0 : n] = 0;
    return full;
}

static const char *of_path(int dir, const char *path, char *full) {
    char base[PATH_MAX];
    base[0] = 0;
    if (mode == OFF) return full[0] = 0, full;
    if (path[0] == '/') {
        snprintf(full, PATH_MAX, "%s", path);
        return full;
    }
    if (dir == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) base[0] = 0;
    } else {
        of_descriptor(dir, base);
    }
    size_t room = PATH_MAX - 1, used = strnlen(base, room);
    memcpy(full, base, used);
    snprintf(full + used, room - used, "/%s", path);
    return full;
}

static int watched(const char *full) {
    size_t n = strlen(folder);
    return mode != OFF && n && !strncmp(full, folder, n) && (full[n] == '/' || !full[n]) && (!*match || strstr(full, match));
}

/* Count an operation. Returns -1 where it is to fail, 1 for a write that is to be cut in half, else 0. A rename or a
   removal takes no space, but -1. */
static int begin(int takes_space) {
    if (++counted < (long)sizeof kinds) kinds[counted - 1] = '-';
    if (counted == at && mode == KILL_BEFORE) kill(getpid(), SIGKILL);
    if (counted == at && mode == BROKEN) return errno = EIO, -1;
    if (counted == at && mode == FULL && takes_space == 2) return 1;
    if (counted >= at && mode == FULL && takes_space > 0) return errno = ENOSPC, -1;
    if (counted >= at && counted < at + 3 && mode == BUSY && takes_space < 0) return errno = EBUSY, -1;
    return counted == at && mode == KILL_WITHIN && takes_space == 2;
}

static void end(int kind, const char *a, const char *b, int64_t offset, const struct iovec *data, int pieces, int64_t n) {
    if ((mode == KILL_WITHIN || mode == KILL_AFTER) && counted == at) kill(getpid(), SIGKILL);
    if (kind != 'n' && counted < (long)sizeof kinds) kinds[counted - 1] = (char)kind;
    if (mode != RECORD || record_to < 0) return;
    int64_t head[5] = {kind, (int64_t)strlen(a), (int64_t)strlen(b), offset, n};
    syscall(SYS_write, record_to, head, sizeof head);
    syscall(SYS_write, record_to, a, head[1]);
    syscall(SYS_write, record_to, b, head[2]);
    for (int i = 0; i < pieces && n > 0; i++) {
        int64_t part = (int64_t)data[i].iov_len < n ? (int64_t)data[i].iov_len : n;
        syscall(SYS_write, record_to, data[i].iov_base, part);
        n -= part;
    }
}

void shim_note(const char *text) {
    if (mode == RECORD) end('n', text, "", 0, NULL, 0, 0);
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name))

static int opened(const char *name, int dir, const char *path, int flags, mode_t bits) {
    char full[PATH_MAX];
    if (mode == UNREADABLE && at == EACCES && !(flags & O_DIRECTORY) && watched(of_path(dir, path, full))) {
        errno = EACCES;
        return -1;
    }
    int makes = flags & (O_CREAT | O_TRUNC), at_dir = strstr(name, "at") != NULL;
    int counts = makes && watched(of_path(dir, path, full));
    struct stat before;
    int was_there = counts && !stat(full, &before);
    if (counts && begin(!was_there) < 0) return -1;
    int fd = at_dir ? REAL(int, name, int, const char *, int, ...)(dir, path, flags, bits)
                    : REAL(int, name, const char *, int, ...)(path, flags, bits);
    if (counts && fd >= 0) end('o', full, "", (flags & O_TRUNC) || !was_there, NULL, 0, 0);
    return fd;
}

#define OPEN(name)                                  \
    int name(const char *path, int flags, ...) {    \
        va_list more;                               \
        va_start(more, flags);                      \
        mode_t bits = va_arg(more, int);            \
        va_end(more);                               \
        return opened(#name, AT_FDCWD, path, flags, bits); \
    }
#define OPENAT(name)                                      \
    int name(int dir, const char *path, int flags, ...) { \
        va_list more;                                     \
        va_start(more, flags);                            \
        mode_t bits = va_arg(more, int);                  \
        va_end(more);                                     \
        return opened(#name, dir, path, flags, bits);     \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

static ssize_t plain_write(int fd, const struct iovec *data, int pieces, off_t offset) {
    return offset < 0 ? syscall(SYS_writev, fd, data, pieces) : syscall(SYS_pwritev, fd, data, pieces, offset, 0);
}

static ssize_t written(int fd, const struct iovec *data, int pieces, off_t offset) {
    char full[PATH_MAX];
    if (mode == OFF || !watched(of_descriptor(fd, full))) return plain_write(fd, data, pieces, offset);
    int cut = begin(2);
    if (cut < 0) return -1;
    int append = fcntl(fd, F_GETFL) & O_APPEND;
    off_t place = offset >= 0 ? offset : lseek(fd, 0, append ? SEEK_END : SEEK_CUR);
    struct iovec half = {data[0].iov_base, data[0].iov_len / 2};
    ssize_t n = cut ? plain_write(fd, &half, 1, offset) : plain_write(fd, data, pieces, offset);
    if (n >= 0) end('w', full, "", place, data, pieces, n);
    return n;
}

ssize_t read(int fd, void *data, size_t n) {
    char full[PATH_MAX];
    if (mode == UNREADABLE && at != EACCES && watched(of_descriptor(fd, full))) {
        errno = (int)at;
        return -1;
    }
    return syscall(SYS_read, fd, data, n);
}

ssize_t write(int fd, const void *data, size_t n) {
    struct iovec piece = {(void *)data, n};
    return written(fd, &piece, 1, -1);
}
ssize_t pwrite(int fd, const void *data, size_t n, off_t offset) {
    struct iovec piece = {(void *)data, n};
    return written(fd, &piece, 1, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t n, off_t offset) { return pwrite(fd, data, n, offset); }
ssize_t writev(int fd, const struct iovec *data, int pieces) { return written(fd, data, pieces, -1); }

static int on_file(const char *name, int kind, int fd, off_t size) {
    char full[PATH_MAX];
    int counts = mode != OFF && watched(of_descriptor(fd, full));
    if (counts && begin(0) < 0) return -1;
    int done = kind == 't' ? REAL(int, name, int, off_t)(fd, size) : 0;
    if (counts && !done) end(kind, full, "", size, NULL, 0, 0);
    return done;
}
int ftruncate(int fd, off_t size) { return on_file("ftruncate", 't', fd, size); }
int ftruncate64(int fd, off_t size) { return on_file("ftruncate64", 't', fd, size); }
int fsync(int fd) { return on_file("fsync", 's', fd, 0); }
int fdatasync(int fd) { return on_file("fdatasync", 's', fd, 0); }

/* Everything that changes a list of names goes through one of the system calls of the `at` family. */
static int renamed(int dir_a, const char *a, int dir_b, const char *b, unsigned flags) {
    char full_a[PATH_MAX], full_b[PATH_MAX];
    of_path(dir_a, a, full_a);
    of_path(dir_b, b, full_b);
    int counts = watched(full_a) || watched(full_b);
    if (counts && begin(-1) < 0) return -1;
    int done = (int)syscall(SYS_renameat2, dir_a, a, dir_b, b, flags);
    if (counts && !done) end('r', full_a, full_b, 0, NULL, 0, 0);
    return done;
}
int rename(const char *a, const char *b) { return renamed(AT_FDCWD, a, AT_FDCWD, b, 0); }
int renameat(int x, const char *a, int y, const char *b) { return renamed(x, a, y, b, 0); }
int renameat2(int x, const char *a, int y, const char *b, unsigned flags) { return renamed(x, a, y, b, flags); }

static int removed(int dir, const char *path, int flags) {
    char full[PATH_MAX];
    int counts = watched(of_path(dir, path, full));
    if (counts && begin(-1) < 0) return -1;
    int done = (int)syscall(SYS_unlinkat, dir, path, flags);
    if (counts && !done) end(flags & AT_REMOVEDIR ? 'd' : 'u', full, "", 0, NULL, 0, 0);
    return done;
}
int unlink(const char *path) { return removed(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return removed(AT_FDCWD, path, AT_REMOVEDIR); }
int unlinkat(int dir, const char *path, int flags) { return removed(dir, path, flags); }

int mkdirat(int dir, const char *path, mode_t bits) {
    char full[PATH_MAX];
    int counts = watched(of_path(dir, path, full));
    if (counts && begin(1) < 0) return -1;
    int done = (int)syscall(SYS_mkdirat, dir, path, bits);
    if (counts && !done) end('m', full, "", 0, NULL, 0, 0);
    return done;
}
int mkdir(const char *path, mode_t bits) { return mkdirat(AT_FDCWD, path, bits); }
