/* Collectives of memory and of sizes, over teams and active sets, in place and one after the other. */
#include "check.h"

enum { N = 600 };

static void of_bytes(int me, int n)
{
    unsigned char *source = shmem_malloc(N * n), *target = shmem_malloc(N * n * 2);
    for (int i = 0; i < N * n; i++)
        source[i] = (unsigned char)(me + i);
    shmem_barrier_all();
    for (int root = 0; root < n; root++) {
        check(shmem_broadcastmem(SHMEM_TEAM_WORLD, target, source, N, root) == 0);
        check(target[0] == root && target[N - 1] == (unsigned char)(root + N - 1));
    }
    check(shmem_broadcastmem(SHMEM_TEAM_INVALID, target, source, N, 0) != 0);
    check(shmem_fcollectmem(SHMEM_TEAM_WORLD, target, source, 3) == 0);
    for (int i = 0; i < 3 * n; i++)
        check(target[i] == i / 3 + i % 3);
    check(shmem_collectmem(SHMEM_TEAM_WORLD, target, source, me) == 0);
    for (int pe = 0, i = 0; pe < n; pe++)
        for (int k = 0; k < pe; k++)
            check(target[i++] == pe + k);
    check(shmem_alltoallmem(SHMEM_TEAM_WORLD, target, source, 4) == 0);
    for (int i = 0; i < 4 * n; i++)
        check(target[i] == (unsigned char)(i / 4 + 4 * me + i % 4));
    check(shmem_alltoallsmem(SHMEM_TEAM_WORLD, target, source, 2, 3, 2) == 0);
    for (int i = 0; i < 2 * n; i++)
        check(target[2 * i] == (unsigned char)(i / 2 + 3 * (2 * me + i % 2)));
    check(shmem_fcollectmem(SHMEM_TEAM_WORLD, NULL, NULL, 0) == 0);
    check(shmem_int_sum_reduce(SHMEM_TEAM_WORLD, NULL, NULL, 0) == 0);
    shmem_free(source);
    shmem_free(target);
}

#define ACTIVE_SET(T, bits)                                                                       \
    do {                                                                                          \
        T *source = shmem_malloc(N * n * sizeof(T)), *target = shmem_calloc(N * n * 2, sizeof(T)); \
        for (int i = 0; i < N * n; i++)                                                           \
            source[i] = (T)(1000 * me + i);                                                       \
        shmem_barrier_all();                                                                      \
        if (me % 2 == 0) {                                                                        \
            for (int root = 0; root < size; root++) {                                             \
                target[0] = 7;                                                                    \
                shmem_broadcast##bits(target, source, N, root, 0, 1, size, sync);                 \
                check(target[0] == (T)(me == 2 * root ? 7 : 2000 * root));                        \
                shmem_sync(0, 1, size, sync);                                                     \
            }                                                                                     \
            shmem_fcollect##bits(target, source, 3, 0, 1, size, sync);                            \
            for (int i = 0; i < 3 * size; i++)                                                    \
                check(target[i] == (T)(2000 * (i / 3) + i % 3));                                  \
            shmem_collect##bits(target, source, me / 2 + 1, 0, 1, size, sync);                    \
            check(target[0] == 0 && (size < 2 || (target[1] == 2000 && target[2] == 2001)));      \
            shmem_alltoall##bits(target, source, 2, 0, 1, size, sync);                            \
            for (int i = 0; i < 2 * size; i++)                                                    \
                check(target[i] == (T)(2000 * (i / 2) + 2 * (me / 2) + i % 2));                   \
            shmem_alltoalls##bits(target, source, 2, 1, 2, 0, 1, size, sync);                     \
            for (int i = 0; i < 2 * size; i++)                                                    \
                check(target[2 * i] == (T)(2000 * (i / 2) + 2 * (me / 2) + i % 2));               \
            for (int i = 0; i < 100; i++)                                                         \
                shmem_barrier(0, 1, size, sync);                                                  \
            for (int i = 0; i < SHMEM_SYNC_SIZE; i++)                                             \
                check(sync[i] == SHMEM_SYNC_VALUE);                                               \
        }                                                                                         \
        shmem_barrier_all();                                                                      \
        shmem_free(source);                                                                       \
        shmem_free(target);                                                                       \
    } while (0)

static void of_active_sets(int me, int n)
{
    int size = (n + 1) / 2;
    long *sync = shmem_calloc(SHMEM_SYNC_SIZE, sizeof(long));
    ACTIVE_SET(uint32_t, 32);
    ACTIVE_SET(uint64_t, 64);
    shmem_free(sync);
}

static void of_teams(int me, int n)
{
    shmem_team_t back;
    double *source = shmem_malloc(5000 * sizeof(double)), *target = shmem_malloc(5000 * sizeof(double));
    check(shmem_team_split_strided(SHMEM_TEAM_WORLD, n - 1, -1, n, NULL, 0, &back) == 0);
    for (int count = 1; count <= 5000; count = count * 3 + 1) {
        for (int i = 0; i < count; i++)
            source[i] = me + i;
        check(shmem_double_sum_inscan(back, target, source, count) == 0);
        for (int i = 0; i < count; i++) {
            double sum = 0;
            for (int pe = n - 1; pe >= me; pe--)
                sum += pe + i;
            check(target[i] == sum);
        }
        check(shmem_double_sum_exscan(back, source, source, count) == 0);
        check(source[0] == (n - 1 - me) * (n + me) / 2);
        for (int i = 0; i < count; i++)
            source[i] = me * i;
        check(shmem_double_max_reduce(back, source, source, count) == 0);
        for (int i = 0; i < count; i++)
            check(source[i] == (n - 1) * i);
        check(shmem_double_broadcast(back, source, source, count, 0) == 0);
        shmem_team_sync(back);
    }
    shmem_team_destroy(back);
}

int main(void)
{
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes();
    of_bytes(me, n);
    of_active_sets(me, n);
    of_teams(me, n);
    for (int i = 0; i < 1000; i++) {
        shmem_sync_all();
        shmem_barrier_all();
    }
    shmem_finalize();
    return 0;
}
