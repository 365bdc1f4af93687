/* A PE dies while the others wait, each in another way. */
#include "check.h"
#include <signal.h>

static long word, lock;

int main(void)
{
    shmem_init();
    int me = shmem_my_pe();
    if (me == 1)
        shmem_set_lock(&lock);
    shmem_barrier_all();
    switch (me) {
    case 0:
        shmem_long_wait_until(&word, SHMEM_CMP_EQ, 1);
        break;
    case 1:
        raise(SIGKILL);
        break;
    case 2:
        shmem_team_sync(SHMEM_TEAM_SHARED);
        break;
    default:
        for (;;)
            shmem_set_lock(&lock);
    }
    return 0;
}
