/* What is ordered by flags, signals and locks. */
#include "check.h"
#include <pthread.h>

enum { ROUNDS = 500, LOCKED = 200, THREADS = 3 };

static void ping_pong(int me, int n)
{
    long *flag = shmem_calloc(1, sizeof(long)), *data = shmem_calloc(64, sizeof(long));
    int to = (me + 1) % n;
    long values[64];
    for (long round = 1; round <= ROUNDS; round++) {
        for (int i = 0; i < 64; i++)
            values[i] = round;
        if (me != 0) {
            shmem_long_wait_until(flag, SHMEM_CMP_GE, round);
            check(data[0] == round && data[63] == round);
        }
        shmem_long_put(data, values, 64, to);
        shmem_fence();
        shmem_long_p(flag, round, to);
        if (me == 0)
            while (!shmem_long_test(flag, SHMEM_CMP_EQ, round))
                ;
    }
    shmem_barrier_all();
}

static void signals(int me, int n)
{
    uint64_t *signal = shmem_calloc(1, sizeof(uint64_t));
    int *data = shmem_calloc(n, sizeof(int)), value = me + 1;
    for (int pe = 0; pe < n; pe++)
        shmem_int_put_signal(data + me, &value, 1, signal, 1, SHMEM_SIGNAL_ADD, pe);
    check(shmem_signal_wait_until(signal, SHMEM_CMP_EQ, n) == (uint64_t)n);
    for (int pe = 0; pe < n; pe++)
        check(data[pe] == pe + 1);
    shmem_barrier_all();
    shmem_signal_set(signal, 40, (me + 1) % n);
    shmem_barrier_all();
    shmem_signal_add(signal, 2, (me + 1) % n);
    check(shmem_signal_wait_until(signal, SHMEM_CMP_GE, 42) == 42 && shmem_signal_fetch(signal) == 42);
    shmem_barrier_all();
}

static long *lock, *counter;

static void *add(void *unused)
{
    for (int i = 0; i < LOCKED; i++) {
        if (i % 3 == 0)
            while (shmem_test_lock(lock))
                ;
        else
            shmem_set_lock(lock);
        long seen = shmem_long_g(counter, 0);
        shmem_long_p(counter, seen + 1, 0);
        shmem_clear_lock(lock);
    }
    return unused;
}

static void locks(int n)
{
    pthread_t threads[THREADS];
    lock = shmem_calloc(1, sizeof(long));
    counter = shmem_calloc(1, sizeof(long));
    for (int i = 0; i < THREADS; i++)
        check(pthread_create(&threads[i], NULL, add, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    shmem_barrier_all();
    check(shmem_long_g(counter, 0) == (long)LOCKED * THREADS * n);
    shmem_barrier_all();
}

static void counts(int n)
{
    long *count = shmem_calloc(1, sizeof(long));
    for (int i = 0; i < 5000; i++)
        shmem_long_atomic_inc(count, 0);
    shmem_barrier_all();
    check(shmem_long_atomic_fetch(count, 0) == 5000L * n);
    shmem_barrier_all();
}

static void sets(int me, int n)
{
    int *flags = shmem_calloc(n, sizeof(int)), *status = calloc(n, sizeof(int));
    for (int pe = 0; pe < n; pe++)
        shmem_int_p(flags + me, 1, pe);
    for (int left = n; left > 0; left--) {
        size_t at = shmem_int_wait_until_any(flags, n, status, SHMEM_CMP_EQ, 1);
        check(at < (size_t)n && status[at] == 0);
        status[at] = 1;
    }
    check(shmem_int_wait_until_any(flags, n, status, SHMEM_CMP_EQ, 1) == SIZE_MAX);
    check(shmem_int_test_all(flags, n, NULL, SHMEM_CMP_EQ, 1) == 1);
    shmem_int_wait_until_all(flags, n, NULL, SHMEM_CMP_NE, 0);
    /* Who asks again and again hears of every word. */
    for (int pe = 0; pe < n; pe++)
        status[shmem_int_test_any(flags, n, NULL, SHMEM_CMP_EQ, 1)]++;
    for (int pe = 0; pe < n; pe++)
        check(status[pe] == 2);
    free(status);
    shmem_barrier_all();
}

int main(void)
{
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes();
    ping_pong(me, n);
    signals(me, n);
    locks(n);
    counts(n);
    sets(me, n);
    shmem_finalize();
    return 0;
}
