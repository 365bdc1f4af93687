/* A program with functions of its own before two calls of the library. */
#include "check.h"
#include <pshmem.h>

static int barriers, puts_seen;

void shmem_barrier_all(void)
{
    barriers++;
    pshmem_barrier_all();
}

void shmem_int_put(int *dest, const int *source, size_t nelems, int pe)
{
    puts_seen++;
    pshmem_int_put(dest, source, nelems, pe);
}

int main(void)
{
    shmem_init();
    int *target = shmem_calloc(1, sizeof(int)), value = 5;
    shmem_int_put(target, &value, 1, (shmem_my_pe() + 1) % shmem_n_pes());
    shmem_barrier_all();
    check(*target == 5 && barriers == 1 && puts_seen == 1);
    shmem_finalize();
    return 0;
}
