/* A call of old that is not there. */
#include "check.h"

int main(void)
{
    shmem_init();
    shmem_udcflush();
    shmem_finalize();
    return 0;
}
