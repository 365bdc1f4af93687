/* The last rank kills itself: the others learn which one it was, and go on without it. Run as 2 ranks or
 * more, with a launcher that keeps going. */
#include <signal.h>

#include "check.h"

int main(void) {
    shmcclComm_t comm, part, on;
    int rank, n, who;
    OK(shmcclCommInit(&comm));
    OK(shmcclCommCount(comm, &n));
    OK(shmcclCommUserRank(comm, &rank));
    /* Numbered the other way round: the last rank is the first. */
    OK(shmcclCommSplit(comm, 0, -rank, &part));
    int32_t one = 1, all;
    OK(shmcclAllReduce(&one, &all, 1, shmcclInt32, shmcclSum, part, NULL));
    if (rank == n - 1) raise(SIGKILL);

    FAILS(shmcclPeerLost, "was lost", shmcclAllReduce(&one, &all, 1, shmcclInt32, shmcclSum, part, NULL));
    OK(shmcclGetLastErrorRank(NULL, &who));
    EXPECT(who == n - 1);
    OK(shmcclGetLastErrorRank(part, &who));
    EXPECT(who == 0);
    shmcclResult_t state;
    OK(shmcclCommGetAsyncError(comm, &state));
    EXPECT(state == shmcclPeerLost);

    int lost[64], nlost = 0;
    OK(shmcclCommShrink(comm, NULL, 0, &on, lost, &nlost));
    EXPECT(nlost == 1 && lost[0] == n - 1);
    OK(shmcclAllReduce(&one, &all, 1, shmcclInt32, shmcclSum, on, NULL));
    EXPECT(all == n - 1);
    OK(shmcclCommDestroy(part));
    OK(shmcclCommDestroy(comm));
    OK(shmcclCommFinalize(on));
    OK(shmcclCommDestroy(on));
    return 0;
}
