/* One PE still uses the job, and ends all, when the others do not use it any more. */
#include "check.h"
#include <unistd.h>

int main(void)
{
    shmem_init();
    int me = shmem_my_pe();
    if (me == 0)
        shmem_init();
    shmem_finalize();
    if (me == 0)
        shmem_global_exit(0);
    sleep(50);
    return 9;
}
