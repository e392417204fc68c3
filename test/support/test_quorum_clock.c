/* A wall clock that a test can set, for one VM of the machine. It is loaded before the C library (LD_PRELOAD) and
 * replaces clock_gettime, gettimeofday and time. It adds nanoseconds to the true time: a 64-bit integer in native byte
 * order at the beginning of the file that CANAL_LOCK_CLOCK names. The file is mapped, so a test changes the clock when
 * it writes to the file.
 *
 * The other clocks do not change. The native library reads its clock from memory that the kernel maps into each
 * process, without the C library, so it never calls these functions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static int (*true_clock)(clockid_t, struct timespec *);
static volatile const int64_t *added;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("CANAL_LOCK_CLOCK");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);

    true_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        added = mapped;
    close(file);
}

static void add(struct timespec *time, int64_t nanoseconds)
{
    int64_t sum = time->tv_sec * SECOND + time->tv_nsec + nanoseconds;

    time->tv_sec = sum / SECOND;
    time->tv_nsec = sum % SECOND;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    /* Other libraries may call this before the constructor has run. */
    if (true_clock == NULL)
        begin();
    int answer = true_clock(clock, time);

    if (answer != 0 || added == NULL)
        return answer;
    if (clock == CLOCK_REALTIME)
        add(time, *added);
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    struct timespec now;

    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to)
{
    struct timespec now;

    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return -1;
    if (to != NULL)
        *to = now.tv_sec;
    return now.tv_sec;
}
