/* Both PEs end all at once. One that has begun to end writes what it has printed, though the other
 * has told it to end, and though its end takes time. */
#include "check.h"
#include <time.h>
#include <unistd.h>

static char path[4096];

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void take_time(void)
{
    strcat(path, ".begun");
    FILE *file = fopen(path, "w");
    check(file && fclose(file) == 0);
    usleep(300000);
}

int main(int argc, char **argv)
{
    check(argc == 2);
    atexit(take_time);
    shmem_init();
    snprintf(path, sizeof path - 8, "%s.%d", argv[1], shmem_my_pe());
    FILE *file = fopen(path, "w");
    check(file);
    fputs("printed", file);
    double *start = shmem_malloc(sizeof *start), mine = now() + 0.1;
    shmem_barrier_all();
    if (shmem_my_pe() == 0)
        for (int pe = 0; pe < shmem_n_pes(); pe++)
            shmem_double_p(start, mine, pe);
    shmem_barrier_all();
    while (now() < *start)
        ;
    shmem_global_exit(0);
}
