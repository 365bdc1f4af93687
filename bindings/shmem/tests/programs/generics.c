/* The generic forms of C11. */
#include "check.h"

int main(void)
{
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes(), to = (me + 1) % n, from = (me + n - 1) % n;
    double *d = shmem_calloc(8, sizeof(double));
    volatile long *flag = shmem_calloc(1, sizeof(long));
    unsigned *u = shmem_calloc(4, sizeof(unsigned));
    size_t *size = shmem_calloc(1, sizeof(size_t));
    uint64_t *signal = shmem_calloc(1, sizeof(uint64_t));
    long *sync = shmem_calloc(SHMEM_SYNC_SIZE, sizeof(long));
    const double values[2] = {me + 0.5, me + 1.5};
    shmem_put(d, values, 2, to);
    shmem_put(SHMEM_CTX_DEFAULT, d + 2, values, 2, to);
    shmem_p(d + 4, 2.5, to);
    shmem_p(SHMEM_CTX_DEFAULT, d + 5, me + 3.5, to);
    shmem_barrier_all();
    check(d[1] == from + 1.5 && d[3] == from + 1.5 && d[4] == 2.5);
    check(shmem_g((const double *)d + 5, to) == me + 3.5);
    check(shmem_g(SHMEM_CTX_DEFAULT, d + 5, me) == from + 3.5);
    shmem_atomic_add(u, 3u, 0);
    shmem_atomic_inc(SHMEM_CTX_DEFAULT, u, 0);
    shmem_atomic_or(u + 1, 1u << me, 0);
    shmem_atomic_add(size, (size_t)1, to);
    shmem_barrier_all();
    check(shmem_atomic_fetch(u, 0) == 4u * n && shmem_atomic_fetch(u + 1, 0) == (1u << n) - 1 && *size == 1);
    shmem_put_signal(d, values, 1, signal, 1, SHMEM_SIGNAL_SET, to);
    shmem_signal_wait_until(signal, SHMEM_CMP_EQ, 1);
    shmem_signal_add(signal, 1, me);
    shmem_signal_set(SHMEM_CTX_DEFAULT, signal, 7, me);
    check(shmem_signal_fetch(signal) == 7);
    shmem_p((long *)flag, 1, to);
    shmem_wait_until(flag, SHMEM_CMP_EQ, 1);
    check(shmem_test(flag, SHMEM_CMP_EQ, 1));
    check(shmem_sum_reduce(SHMEM_TEAM_WORLD, d + 6, values, 0) == 0);
    d[0] = me;
    shmem_sync(SHMEM_TEAM_WORLD);
    check(shmem_max_reduce(SHMEM_TEAM_WORLD, d + 6, d, 1) == 0 && d[6] == n - 1);
    check(shmem_broadcast(SHMEM_TEAM_WORLD, d + 7, d, 1, n - 1) == 0 && d[7] == n - 1);
    shmem_sync(0, 0, n, sync);
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
