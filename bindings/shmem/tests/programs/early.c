/* PE 0 returns without shmem_finalize while the others wait for it. */
#include "check.h"

int main(void)
{
    shmem_init();
    if (shmem_my_pe() == 0)
        return 0;
    shmem_barrier_all();
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
