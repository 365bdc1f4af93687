/* One PE ends all, of which one computes and the others wait. */
#include "check.h"

int main(void)
{
    shmem_init();
    long *never = shmem_calloc(1, sizeof(long));
    int me = shmem_my_pe();
    shmem_barrier_all();
    if (me == 0)
        shmem_global_exit(7);
    if (me == 1)
        for (volatile long i = 0;; i++)
            ;
    shmem_long_wait_until(never, SHMEM_CMP_EQ, 1);
    return 0;
}
