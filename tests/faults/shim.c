/* Faults of disk and clock for one process, preloaded into it (LD_PRELOAD).
 *
 * Watches the files whose path contains a text: can fail, shorten or kill at the n-th operation that
 * changes one of them, and can write a trace of all of them, in order, with marks of the test's own
 * in between. `shim.py` is its other side, and the reader of the trace. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FDS 65536
#define FILES 250
#define EXPORT __attribute__((visibility("default")))

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static char watched[512] = "";
static char *names[FILES];
static int named = 0;
static unsigned char file_of[FDS]; /* descriptor -> 1 + file, 0: not watched */
static int trace = -1;
static long count = 0;
static long from = 0, until = 0; /* operations that meet the fault: from <= n < until */
static int action = 0, error = 0;
enum { FAIL = 1, SHORT = 2, KILL = 3 };
static double clock_offset = 0;

#define REAL(name) \
    static __typeof__(name) *real; \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static ssize_t real_write(int fd, const void *data, size_t size) {
    REAL(write);
    return real(fd, data, size);
}

static void put(char op, int file, int64_t at, const void *data, uint32_t size) {
    if (trace < 0) return;
    unsigned char head[14];
    head[0] = (unsigned char)op;
    head[1] = (unsigned char)file;
    memcpy(head + 2, &at, 8);
    memcpy(head + 10, &size, 4);
    struct iovec parts[2] = {{head, 14}, {(void *)data, size}};
    if (writev(trace, parts, 2) != (ssize_t)(14 + size)) abort();
}

static int file_named(const char *path) {
    for (int i = 0; i < named; i++)
        if (!strcmp(names[i], path)) return i;
    if (named == FILES) abort();
    names[named] = strdup(path);
    put('N', named, 0, path, (uint32_t)strlen(path));
    return named++;
}

static int watching(const char *path) { return watched[0] && strstr(path, watched) != NULL; }

static int watched_fd(int fd) { return fd >= 0 && fd < FDS && file_of[fd] ? file_of[fd] - 1 : -1; }

/* What the next operation meets: 0, FAIL or SHORT. Does not return where it is KILL. */
static int meets(void) {
    count++;
    if (!action || count < from || count >= until) return 0;
    if (action == KILL) kill(getpid(), SIGKILL);
    if (action == SHORT && count > from) return FAIL; /* what was short goes on to fail */
    return action;
}

EXPORT void fault_watch(const char *text) { snprintf(watched, sizeof watched, "%s", text); }
EXPORT long fault_count(void) { return count; }
EXPORT void fault_clock(double offset) { clock_offset = offset; }

EXPORT void fault_arm(long first, long times, int what, int with) {
    pthread_mutex_lock(&lock);
    count = 0;
    from = first;
    until = first + times;
    action = what;
    error = with;
    pthread_mutex_unlock(&lock);
}

EXPORT void fault_trace(const char *path) {
    trace = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (trace < 0) abort();
}

EXPORT void fault_mark(const char *text) {
    pthread_mutex_lock(&lock);
    put('M', 0, 0, text, (uint32_t)strlen(text));
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void begin(void) {
    const char *text = getenv("FAULT_WATCH"), *offset = getenv("FAULT_CLOCK");
    const char *record = getenv("FAULT_TRACE");
    if (text) fault_watch(text);
    if (offset) fault_clock(atof(offset));
    if (record) fault_trace(record);
}

/* Files */

static int opened(int fd, const char *path, int flags, int existed) {
    if (fd < 0 || fd >= FDS) return fd;
    pthread_mutex_lock(&lock);
    file_of[fd] = 0;
    if (watching(path)) {
        int file = file_named(path);
        file_of[fd] = (unsigned char)(file + 1);
        if (!existed) put('C', file, 0, NULL, 0);
        else if (flags & O_TRUNC) put('T', file, 0, NULL, 0);
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

#define OPEN(name) \
    EXPORT int name(const char *path, int flags, ...) { \
        REAL(name); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); \
        } \
        int existed = !watching(path) || access(path, F_OK) == 0; \
        return opened(real(path, flags, mode), path, flags, existed); \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name) \
    EXPORT int name(int at, const char *path, int flags, ...) { \
        REAL(name); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); \
        } \
        int existed = !watching(path) || access(path, F_OK) == 0; \
        return opened(real(at, path, flags, mode), path, flags, existed); \
    }
OPENAT(openat)
OPENAT(openat64)

EXPORT int close(int fd) {
    REAL(close);
    if (fd >= 0 && fd < FDS) file_of[fd] = 0;
    return real(fd);
}

/* The size to write, or -1 with errno set. */
static ssize_t may_write(size_t size) {
    switch (meets()) {
    case FAIL: errno = error; return -1;
    case SHORT: return (ssize_t)(size / 2);
    default: return (ssize_t)size;
    }
}

EXPORT ssize_t write(int fd, const void *data, size_t size) {
    int file = watched_fd(fd);
    if (file < 0) return real_write(fd, data, size);
    pthread_mutex_lock(&lock);
    off_t at = lseek(fd, 0, SEEK_CUR);
    ssize_t done = may_write(size);
    if (done >= 0) done = real_write(fd, data, (size_t)done);
    if (done > 0) put('W', file, at, data, (uint32_t)done);
    int kept = errno;
    pthread_mutex_unlock(&lock);
    errno = kept;
    return done;
}

#define PWRITE(name, off) \
    EXPORT ssize_t name(int fd, const void *data, size_t size, off at) { \
        REAL(name); \
        int file = watched_fd(fd); \
        if (file < 0) return real(fd, data, size, at); \
        pthread_mutex_lock(&lock); \
        ssize_t done = may_write(size); \
        if (done >= 0) done = real(fd, data, (size_t)done, at); \
        if (done > 0) put('W', file, at, data, (uint32_t)done); \
        int kept = errno; \
        pthread_mutex_unlock(&lock); \
        errno = kept; \
        return done; \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define CUT(name, off) \
    EXPORT int name(int fd, off size) { \
        REAL(name); \
        int file = watched_fd(fd); \
        if (file < 0) return real(fd, size); \
        pthread_mutex_lock(&lock); \
        int done = -1; \
        if (meets()) errno = error; \
        else done = real(fd, size); \
        if (done == 0) put('T', file, size, NULL, 0); \
        int kept = errno; \
        pthread_mutex_unlock(&lock); \
        errno = kept; \
        return done; \
    }
CUT(ftruncate, off_t)
CUT(ftruncate64, off64_t)

static int synced(int fd, int (*real)(int)) {
    int file = watched_fd(fd);
    if (file < 0) return real(fd);
    pthread_mutex_lock(&lock);
    int done = -1;
    if (meets()) errno = error;
    else done = 0;
    pthread_mutex_unlock(&lock);
    if (done) return done;
    /* While it runs others may write: those writes are not covered, so it counts from here. */
    pthread_mutex_lock(&lock);
    done = trace >= 0 ? 0 : real(fd); /* a trace needs no real disk */
    if (done == 0) put('S', file, 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return done;
}

EXPORT int fsync(int fd) {
    REAL(fsync);
    return synced(fd, real);
}

EXPORT int fdatasync(int fd) {
    REAL(fdatasync);
    return synced(fd, real);
}

static void named_change(char op, const char *path, const char *other) {
    char both[2048];
    int size = snprintf(both, sizeof both, "%s%c%s", path, 0, other ? other : "");
    put(op, 0, 0, both, (uint32_t)size);
}

EXPORT int unlink(const char *path) {
    REAL(unlink);
    pthread_mutex_lock(&lock);
    int done = real(path);
    if (!done && watching(path)) named_change('U', path, NULL);
    pthread_mutex_unlock(&lock);
    return done;
}

EXPORT int rename(const char *path, const char *other) {
    REAL(rename);
    pthread_mutex_lock(&lock);
    int done = real(path, other);
    if (!done && watching(path)) named_change('R', path, other);
    pthread_mutex_unlock(&lock);
    return done;
}

EXPORT int link(const char *path, const char *other) {
    REAL(link);
    pthread_mutex_lock(&lock);
    int done = real(path, other);
    if (!done && watching(path)) named_change('L', path, other);
    pthread_mutex_unlock(&lock);
    return done;
}

/* The wall clock; the monotonic one goes on as it is. */

static void shift(struct timespec *at) {
    int64_t nano = (int64_t)at->tv_nsec + (int64_t)((clock_offset - (int64_t)clock_offset) * 1e9);
    at->tv_sec += (time_t)clock_offset + nano / 1000000000;
    at->tv_nsec = nano % 1000000000;
}

EXPORT int clock_gettime(clockid_t which, struct timespec *at) {
    REAL(clock_gettime);
    int done = real(which, at);
    if (!done && which == CLOCK_REALTIME && clock_offset != 0) shift(at);
    return done;
}

EXPORT time_t time(time_t *out) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (out) *out = at.tv_sec;
    return at.tv_sec;
}

EXPORT int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    at->tv_sec = exact.tv_sec;
    at->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
