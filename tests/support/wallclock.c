/* Preloaded into a server under test, it puts that process's wall clock into the test's hands.
 * $TB_WALLCLOCK names a file of two native 64-bit integers, both in microseconds: [0] where the clock stands
 * still (0: it runs), [1] what is added to the real clock while it runs. The monotonic clocks are left alone,
 * so timeouts, replication and the event loop go on as ever. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct control {
    int64_t frozen_us;
    int64_t shift_us;
};

static struct control ticking;
static struct control *control = &ticking;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("TB_WALLCLOCK");
    if (!path) return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    void *page = mmap(NULL, sizeof *control, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) control = page;
}

static int is_wall_clock(clockid_t id) {
    return id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
}

/* Straight to the kernel: the libc's own entry point is the one this file replaces. */
static int kernel_clock(clockid_t id, struct timespec *out) {
    return (int)syscall(SYS_clock_gettime, id, out);
}

static int64_t wall_us(void) {
    int64_t frozen = __atomic_load_n(&control->frozen_us, __ATOMIC_SEQ_CST);
    if (frozen) return frozen;
    struct timespec real;
    kernel_clock(CLOCK_REALTIME, &real);
    return real.tv_sec * INT64_C(1000000) + real.tv_nsec / 1000 + __atomic_load_n(&control->shift_us, __ATOMIC_SEQ_CST);
}

int clock_gettime(clockid_t id, struct timespec *out) {
    if (!is_wall_clock(id)) return kernel_clock(id, out);
    int64_t us = wall_us();
    *out = (struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    return 0;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    (void)zone;
    int64_t us = wall_us();
    *out = (struct timeval){.tv_sec = us / 1000000, .tv_usec = us % 1000000};
    return 0;
}

time_t time(time_t *out) {
    time_t seconds = wall_us() / 1000000;
    if (out) *out = seconds;
    return seconds;
}

/* Valkey 9.1 reads the wall clock once a millisecond and adds the processor's tick counter in between, which no
 * preload can stop. It trusts the counter only where /proc/cpuinfo praises it; without that file it asks
 * gettimeofday for every command, as the other servers do. */
static FILE *open_unless_cpuinfo(const char *entry, const char *path, const char *mode) {
    if (strcmp(path, "/proc/cpuinfo") == 0) {
        errno = ENOENT;
        return NULL;
    }
    FILE *(*next)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, entry);
    return next(path, mode);
}

FILE *fopen(const char *restrict path, const char *restrict mode) {
    return open_unless_cpuinfo("fopen", path, mode);
}

FILE *fopen64(const char *restrict path, const char *restrict mode) {
    return open_unless_cpuinfo("fopen64", path, mode);
}
