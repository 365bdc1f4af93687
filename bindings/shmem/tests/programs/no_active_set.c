/* An active set whose distances no number has. Two of them come back to the first PE. */
#include "check.h"

int main(void)
{
    static long sync[SHMEM_BARRIER_SYNC_SIZE];
    shmem_init();
    if (shmem_my_pe() == 0)
        shmem_barrier(0, 63, 3, sync);
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
