/* The last rank kills itself, comes back, and goes on where all the others are. Run as 2 ranks or more, by a launcher
 * that starts it again. */
#include <signal.h>

#include "check.h"

enum { STEPS = 6, FATAL = 3 };

int main(void) {
    shmcclComm_t comm;
    int rank, n, again;
    uint64_t completed;
    OK(shmcclCommInit(&comm));
    OK(shmcclCommCount(comm, &n));
    OK(shmcclCommUserRank(comm, &rank));
    OK(shmcclCommGetRecovery(comm, &again, &completed));
    EXPECT(again ? rank == n - 1 && completed <= FATAL : completed == 0);
    int was_lost = again;
    while (completed < STEPS) {
        int32_t mine = (int32_t)completed, sum = -1;
        if (rank == n - 1 && completed == FATAL && !was_lost) raise(SIGKILL);
        shmcclResult_t done = shmcclAllReduce(&mine, &sum, 1, shmcclInt32, shmcclSum, comm, NULL);
        if (done == shmcclSuccess) {
            EXPECT(sum == n * mine);
            completed++;
            continue;
        }
        RETURNS(shmcclPeerLost, done);
        shmcclComm_t on;
        OK(shmcclCommRecover(comm, completed, &on));
        OK(shmcclCommDestroy(comm));
        comm = on;
        OK(shmcclCommGetRecovery(comm, &again, &completed));
        EXPECT(!again && completed <= FATAL);
        was_lost = 1;
    }
    EXPECT(was_lost);
    OK(shmcclCommFinalize(comm));
    OK(shmcclCommDestroy(comm));
    return 0;
}
