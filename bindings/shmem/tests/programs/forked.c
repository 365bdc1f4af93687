/* A child of a fork has symmetric memory for itself, as it was at the fork, and is no PE. */
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 3000 };

static long fixed;
static long *own, *theirs, *their_fixed, *late, *their_late;
static int me, next;

/* Returns the status of a child that makes the call. */
static int status_of(void (*call)(void))
{
    int status;
    pid_t child = fork();
    check(child >= 0);
    if (child == 0) {
        call();
        exit(0);
    }
    check(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void look(void)
{
    check(shmem_my_pe() == me);
    for (int i = 0; i < COUNT; i++)
        check(own[i] == 1000 * me + i && theirs[i] == 1000 * next + i);
    check(fixed == me + 7 && *their_fixed == next + 7);
    check(*late == me + 9 && *their_late == next + 9);
    own[0] = theirs[1] = *late = *their_late = fixed = *their_fixed = -1;
}

static void put(void)
{
    close(2);
    shmem_long_p(own, -1, next);
}

static void come_together(void)
{
    close(2);
    shmem_barrier_all();
}

static void begin(void)
{
    close(2);
    shmem_init();
}

int main(void)
{
    start_pes(0);
    me = shmem_my_pe();
    next = (me + 1) % shmem_n_pes();
    own = shmem_malloc(COUNT * sizeof(long));
    theirs = shmem_ptr(own, next);
    their_fixed = shmem_ptr(&fixed, next);
    /* Freed memory that is allocated again, and what is allocated when a peer is within reach. */
    shmem_free(shmem_malloc(sizeof(long)));
    late = shmem_malloc(sizeof(long));
    their_late = shmem_ptr(late, next);
    for (int i = 0; i < COUNT; i++)
        own[i] = 1000 * me + i;
    fixed = me + 7;
    *late = me + 9;
    shmem_barrier_all();
    check(status_of(look) == 0);
    check(status_of(put) == 1 && status_of(come_together) == 1 && status_of(begin) == 1);
    shmem_barrier_all();
    check(own[0] == 1000 * me && own[1] == 1000 * me + 1 && fixed == me + 7 && *late == me + 9);
    shmem_finalize();
    check(status_of(begin) == 1);
    return 0;
}
