/* clockshim: a wall clock of its own for one process, moved from outside while it runs.
 *
 *     cc -O2 -shared -fPIC -o clockshim.so clockshim.c
 *     LD_PRELOAD=./clockshim.so HOLDFAST_CLOCK=/path/of/32/bytes valkey-server ...
 *
 * The file is mapped and read at every question, so a change is seen at once. It holds, in the
 * machine's byte order (lab/clock.py writes it):
 *
 *     int64  turn       odd while the rest is being written
 *     int64  real_ns    an instant of the machine's wall clock ...
 *     int64  shown_ns   ... and what the process shall be shown at that instant
 *     double rate       how fast its clock runs from there on
 *
 * Only the wall clock is changed: servers measure their own timeouts with the monotonic one. The
 * kernel is asked directly. Looking up the functions that are replaced here would allocate memory,
 * and an allocator that asks for the time while it starts (jemalloc does) would never get to its
 * end.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL

struct clock_file {
    volatile int64_t turn, real_ns, shown_ns;
    volatile double rate;
};

static const struct clock_file *file;

__attribute__((constructor)) static void open_file(void)
{
    const char *path = getenv("HOLDFAST_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *found = mmap(NULL, sizeof *file, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (found != MAP_FAILED)
        file = found;
}

static int64_t real_ns(void)
{
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * NS + t.tv_nsec;
}

static int64_t shown_ns(void)
{
    int64_t turn, real, shown;
    double rate;
    if (!file)
        return real_ns();
    do {
        turn = file->turn;
        __sync_synchronize();
        real = file->real_ns;
        shown = file->shown_ns;
        rate = file->rate;
        __sync_synchronize();
    } while (turn & 1 || turn != file->turn);
    return shown + (int64_t)((double)(real_ns() - real) * rate);
}

int clock_gettime(clockid_t which, struct timespec *t)
{
    if (which != CLOCK_REALTIME && which != CLOCK_REALTIME_COARSE)
        return (int)syscall(SYS_clock_gettime, which, t);
    int64_t ns = shown_ns();
    t->tv_sec = ns / NS;
    t->tv_nsec = ns % NS;
    return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    (void)zone;
    int64_t ns = shown_ns();
    t->tv_sec = ns / NS;
    t->tv_usec = ns % NS / 1000;
    return 0;
}

time_t time(time_t *t)
{
    time_t now = shown_ns() / NS;
    if (t)
        *t = now;
    return now;
}
