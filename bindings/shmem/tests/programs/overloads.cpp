// The overloads of C++.
#include "check.h"

int main()
{
    shmem_init();
    int me = shmem_my_pe(), n = shmem_n_pes(), to = (me + 1) % n, from = (me + n - 1) % n;
    double *d = static_cast<double *>(shmem_calloc(8, sizeof(double)));
    long *flag = static_cast<long *>(shmem_calloc(1, sizeof(long)));
    auto *complex = static_cast<std::complex<double> *>(shmem_calloc(2, sizeof(std::complex<double>)));
    const double value = me + 0.5;
    shmem_put(d, &value, 1, to);
    shmem_put(SHMEM_CTX_DEFAULT, d + 1, &value, 1, to);
    shmem_p(d + 2, value, to);
    shmem_barrier_all();
    check(d[0] == from + 0.5 && d[1] == from + 0.5 && shmem_g(d + 2, me) == from + 0.5);
    shmem_atomic_inc(flag, to);
    shmem_wait_until(flag, SHMEM_CMP_EQ, 1L);
    check(shmem_test(flag, SHMEM_CMP_GE, 1L) && shmem_atomic_fetch_add(flag, 2L, me) == 1);
    complex[0] = {1.0, me + 0.0};
    shmem_sync(SHMEM_TEAM_WORLD);
    check(shmem_sum_reduce(SHMEM_TEAM_WORLD, complex + 1, complex, 1) == 0);
    check(complex[1] == std::complex<double>(n, n * (n - 1) / 2));
    shmem_sync(SHMEM_TEAM_WORLD);
    check(shmem_complexd_prod_reduce(SHMEM_TEAM_WORLD, complex + 1, complex, 1) == 0);
    // The complex numbers of C, which this compiler knows, too.
    auto *of_c = reinterpret_cast<SHMEM_COMPLEXD_ *>(complex);
    check(shmem_complexd_sum_reduce(SHMEM_TEAM_WORLD, of_c + 1, of_c, 1) == 0);
    check(shmem_sum_reduce(SHMEM_TEAM_WORLD, of_c + 1, of_c, 1) == 0);
    check(complex[1] == std::complex<double>(n, n * (n - 1) / 2));
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
