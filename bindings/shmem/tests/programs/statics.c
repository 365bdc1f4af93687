/* Static objects as symmetric memory. */
#include "check.h"

enum { N = 40 };

static long initialised = 5, counter, flag, lock;
static int data[N], received[N];
static long sync[SHMEM_SYNC_SIZE];
static double work[N], numbers[N], sums[N];

int main(void)
{
    static uint64_t signal;
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes(), to = (me + 1) % n, from = (me + n - 1) % n;
    check(initialised == 5 && shmem_addr_accessible(&initialised, to) && shmem_ptr(data, to) != NULL);
    for (int i = 0; i < N; i++)
        data[i] = me + i;
    shmem_barrier_all();
    shmem_int_put(received, data, N, to);
    shmem_fence();
    shmem_long_p(&flag, 1, to);
    shmem_long_wait_until(&flag, SHMEM_CMP_EQ, 1);
    for (int i = 0; i < N; i++)
        check(received[i] == from + i && shmem_int_g(data + i, to) == to + i);
    shmem_long_atomic_inc(&counter, 0);
    shmem_int_put_signal(received, data, 1, &signal, 1, SHMEM_SIGNAL_SET, to);
    shmem_signal_wait_until(&signal, SHMEM_CMP_EQ, 1);
    shmem_set_lock(&lock);
    shmem_long_p(&initialised, shmem_long_g(&initialised, 0) + 1, 0);
    shmem_clear_lock(&lock);
    shmem_barrier_all();
    check(shmem_long_g(&counter, 0) == n && shmem_long_g(&initialised, 0) == 5 + n);
    for (int i = 0; i < N; i++)
        numbers[i] = me;
    shmem_double_sum_to_all(sums, numbers, N, 0, 0, n, work, sync);
    for (int i = 0; i < N; i++)
        check(sums[i] == n * (n - 1) / 2);
    shmem_barrier(0, 0, n, sync);
    check(shmem_double_max_reduce(SHMEM_TEAM_WORLD, sums, numbers, N) == 0 && sums[0] == n - 1);
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
