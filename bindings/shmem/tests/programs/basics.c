/* Setup, queries, memory, copies without a type, ordering. */
#include "check.h"

static void queries(int me, int n)
{
    int major, minor, provided, initialized;
    char name[SHMEM_MAX_NAME_LEN];
    shmem_info_get_version(&major, &minor);
    shmem_info_get_name(name);
    check(major == SHMEM_MAJOR_VERSION && minor == SHMEM_MINOR_VERSION);
    check(strcmp(name, SHMEM_VENDOR_STRING) == 0);
    shmem_query_thread(&provided);
    shmem_query_initialized(&initialized);
    check(provided == SHMEM_THREAD_MULTIPLE && initialized == 1);
    check(me >= 0 && me < n);
    check(shmem_pe_accessible(0) && shmem_pe_accessible(n - 1));
    check(!shmem_pe_accessible(n) && !shmem_pe_accessible(-1));
    shmem_pcontrol(1, "level", 2);
}

static void memory(int me)
{
    check(shmem_malloc(0) == NULL && shmem_calloc(0, 8) == NULL && shmem_calloc((size_t)-1, 8) == NULL);
    check(shmem_align(3, 8) == NULL);
    check(shmem_malloc((size_t)1 << 40) == NULL);
    shmem_free(NULL);
    long *numbers = shmem_malloc_with_hints(100 * sizeof(long), SHMEM_MALLOC_ATOMICS_REMOTE);
    check(numbers != NULL && shmem_addr_accessible(numbers, 0));
    for (int i = 0; i < 100; i++)
        numbers[i] = me + i;
    numbers = shmem_realloc(numbers, 5000 * sizeof(long));
    for (int i = 0; i < 100; i++)
        check(numbers[i] == me + i);
    numbers = shmem_realloc(numbers, 10 * sizeof(long));
    check(numbers[9] == me + 9);
    check(shmem_realloc(numbers, 0) == NULL);
    for (size_t alignment = 8; alignment <= 1 << 20; alignment *= 2) {
        char *aligned = shmem_align(alignment, 10);
        check(aligned != NULL && (uintptr_t)aligned % alignment == 0);
        shmem_free(aligned);
    }
    char *zeros = shmem_calloc(1000, 3);
    for (int i = 0; i < 3000; i++)
        check(zeros[i] == 0);
    memset(zeros, 1, 3000);
    shmem_free(zeros);
    zeros = shmem_calloc(3000, 1);
    for (int i = 0; i < 3000; i++)
        check(zeros[i] == 0);
    shmem_free(zeros);
}

static void copies(int me, int n)
{
    int to = (me + 1) % n, from = (me + n - 1) % n;
    size_t len = 1 << 20;
    unsigned char *target = shmem_malloc(len), *source = malloc(len);
    for (size_t i = 0; i < len; i++)
        source[i] = (unsigned char)(me * 31 + i);
    shmem_putmem(target, source, len, to);
    shmem_putmem(NULL, NULL, 0, to);
    shmem_getmem(NULL, NULL, 0, to);
    shmem_int_iput(NULL, NULL, 1, 1, 0, to);
    shmem_fence();
    shmem_quiet();
    shmem_pe_quiet(&to, 1);
    shmem_ctx_pe_quiet(SHMEM_CTX_DEFAULT, &to, 1);
    shmem_barrier_all();
    for (size_t i = 0; i < len; i++)
        check(target[i] == (unsigned char)(from * 31 + i));
    unsigned char *theirs = shmem_ptr(target, to);
    check(theirs != NULL && theirs[5] == (unsigned char)(me * 31 + 5));
    check(shmem_ptr(target, n) == NULL && shmem_ptr(source, to) == NULL);
    check(shmem_team_ptr(SHMEM_TEAM_WORLD, target, to) == (void *)theirs);
    check(shmem_addr_accessible(target, to) && !shmem_addr_accessible(source, to));
    shmem_getmem_nbi(source, target, len, from);
    shmem_quiet();
    shmem_sync_all();
    long double *wide = shmem_calloc(2, sizeof(long double));
    shmem_longdouble_p(wide, 1.25L + me, to);
    shmem_ctx_longdouble_p(SHMEM_CTX_DEFAULT, wide + 1, 2.5L + me, to);
    shmem_barrier_all();
    check(wide[0] == 1.25L + from && shmem_longdouble_g(wide, to) == 1.25L + me);
    check(shmem_ctx_longdouble_g(SHMEM_CTX_DEFAULT, wide + 1, me) == 2.5L + from);
    shmem_barrier_all();
    free(source);
}

int main(void)
{
    int initialized = 1, provided;
    shmem_query_initialized(&initialized);
    check(initialized == 0);
    shmem_init();
    check(shmem_init_thread(SHMEM_THREAD_SINGLE, &provided) == 0 && provided >= SHMEM_THREAD_SINGLE);
    int me = shmem_my_pe(), n = shmem_n_pes();
    queries(me, n);
    memory(me);
    shmem_finalize();
    copies(me, n);
    shmem_finalize();
    shmem_query_initialized(&initialized);
    check(initialized == 0);
    shmem_init();
    check(shmem_my_pe() == me && shmem_n_pes() == n);
    copies(me, n);
    shmem_finalize();
    return 0;
}
