/* PEs share tasks of unequal length by one counter: whoever is free takes the next one. The same
   tasks are then dealt out in rounds, each of which a reduction ends, and both times are told.

   cc -O2 load_balance.c -o load_balance $(pkg-config --cflags --libs shmccl-shmem)
   shmccl run -n 4 -- ./load_balance */

#include <shmem.h>
#include <stdio.h>
#include <time.h>

/* How many tasks there are, and how many of a PE are in a round. */
enum { TASKS = 2000, DEALT = 16 };

/* Those of PE 0 count: the next task, the sum of all results, and who is done. */
static unsigned long next, sum, done;
static unsigned long taken, in_round, of_all;

/* Counts the steps from `start` to 1: halves what is even, and makes 3n + 1 of what is odd. */
static unsigned long steps(unsigned long start)
{
    unsigned long count = 0;
    for (; start != 1; count++)
        start = start % 2 ? 3 * start + 1 : start / 2;
    return count;
}

/* One task in eight takes 30 times as long as the others. */
static unsigned long result_of(unsigned long task)
{
    unsigned long count = task % 8 == task / 8 % 8 ? 600 : 20, total = 0;
    for (unsigned long start = 1; start <= count; start++)
        total += steps(task + start);
    return total;
}

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

int main(void)
{
    shmem_init();
    unsigned long me = shmem_my_pe(), n_pes = shmem_n_pes(), expected = 0, total = 0, task;

    shmem_barrier_all();
    double start = now_ms();
    while ((task = shmem_ulong_atomic_fetch_inc(&next, 0)) < TASKS) {
        shmem_ulong_atomic_add(&sum, result_of(task), 0);
        taken++;
    }
    shmem_ulong_atomic_inc(&done, 0);
    if (me == 0)
        shmem_ulong_wait_until(&done, SHMEM_CMP_EQ, n_pes);
    double by_atomics = now_ms() - start;

    shmem_barrier_all();
    start = now_ms();
    for (unsigned long first = 0; first < TASKS; first += DEALT * n_pes) {
        in_round = 0;
        for (task = first + me * DEALT; task < first + (me + 1) * DEALT && task < TASKS; task++)
            in_round += result_of(task);
        shmem_ulong_sum_reduce(SHMEM_TEAM_WORLD, &of_all, &in_round, 1);
        total += of_all;
    }
    double by_collectives = now_ms() - start;

    if (me == 0) {
        for (task = 0; task < TASKS; task++)
            expected += result_of(task);
        if (sum != expected || total != expected) {
            fprintf(stderr, "the sums are %lu and %lu, and %lu computed alone\n", sum, total, expected);
            shmem_global_exit(1);
        }
        printf("load balance, %lu PEs have taken", n_pes);
        for (int pe = 0; pe < (int)n_pes; pe++)
            printf(" %lu", shmem_ulong_g(&taken, pe));
        printf(" of %d tasks, sum as computed alone: %.2f ms by atomics, %.2f ms in rounds of a reduction\n", TASKS,
               by_atomics, by_collectives);
    }
    shmem_finalize();
    return 0;
}
