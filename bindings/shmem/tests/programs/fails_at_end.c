/* A program of old, whose end is a barrier. One PE fails before it, in a call. */
#include "check.h"

int main(void)
{
    start_pes(0);
    long *word = shmem_malloc(sizeof(long));
    *word = 0;
    shmem_barrier_all();
    if (_my_pe() == 0)
        shmem_long_p(word, 1, _num_pes());
    shmem_long_wait_until(word, SHMEM_CMP_EQ, 1);
    return 0;
}
