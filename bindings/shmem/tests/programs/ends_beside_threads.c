/* A PE ends all while threads of every PE poll for a lock and wait for a word: their calls come too
 * late, and nobody fails by that. */
#include "check.h"
#include <pthread.h>

static long lock, never;

static void *poll_for_the_lock(void *unused)
{
    (void)unused;
    while (shmem_test_lock(&lock))
        ;
    return NULL;
}

static void *wait_for_a_word(void *unused)
{
    (void)unused;
    shmem_long_wait_until(&never, SHMEM_CMP_EQ, 1);
    return NULL;
}

int main(void)
{
    int provided;
    shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided);
    check(provided == SHMEM_THREAD_MULTIPLE);
    if (shmem_my_pe() == 0)
        shmem_set_lock(&lock);
    shmem_barrier_all();
    pthread_t threads[2];
    check(pthread_create(&threads[0], NULL, poll_for_the_lock, NULL) == 0);
    check(pthread_create(&threads[1], NULL, wait_for_a_word, NULL) == 0);
    if (shmem_my_pe() == shmem_n_pes() - 1)
        shmem_global_exit(0);
    pthread_join(threads[1], NULL);
    return 1;
}
