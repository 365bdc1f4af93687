/* The program's check ends waits: of a started operation, which goes on, and of a call of all ranks, which does not.
 * Run as 2 ranks or more. */
#include "check.h"

static int says, asked;

static int check(void) {
    asked++;
    return says;
}

static shmcclCall_t message(shmcclOperation_t operation, const void *send, void *recv, int peer) {
    shmcclCall_t made = {0};
    made.size = sizeof made;
    made.operation = operation;
    made.datatype = shmcclInt32;
    made.sendbuff = send;
    made.recvbuff = recv;
    made.count = 1;
    made.peer = peer;
    return made;
}

int main(void) {
    shmcclComm_t comm, messages;
    int rank, n;
    OK(shmcclCommInit(&comm));
    OK(shmcclCommCount(comm, &n));
    OK(shmcclCommUserRank(comm, &rank));
    OK(shmcclCommDuplicate(comm, &messages));
    int32_t given = rank, got = -1;
    if (rank == 0) {
        OK(shmcclSetInterruptCheck(check));
        shmcclRequest_t request;
        shmcclCall_t receive = message(shmcclOpRecv, NULL, &got, 1);
        OK(shmcclSubmit(messages, &receive, 1, NULL, NULL, &request));
        says = 1;
        FAILS(shmcclInterrupted, "interrupt check", shmcclRequestWait(request, 0));
        RETURNS(shmcclInterrupted, shmcclRequestWait(request, 3600000));
        EXPECT(asked >= 2);
        int done = 1;
        OK(shmcclRequestTest(request, &done));
        EXPECT(!done);
        /* Nobody asks one that was taken back. */
        OK(shmcclSetInterruptCheck(NULL));
        asked = 0;
        RETURNS(shmcclInProgress, shmcclRequestWait(request, 120));
        EXPECT(asked == 0);
        OK(shmcclBarrier(comm));
        OK(shmcclRequestWait(request, 0));
        OK(shmcclRequestFree(request));
        EXPECT(got == 1);
        OK(shmcclSetInterruptCheck(check));
        FAILS(shmcclInterrupted, "interrupt check", shmcclBarrier(comm));
        FAILS(shmcclInterrupted, "interrupt check", shmcclAllReduce(&given, &got, 1, shmcclInt32, shmcclSum, comm, NULL));
        says = 0;
        RETURNS(shmcclRevoked, shmcclBarrier(comm));
    } else {
        OK(shmcclBarrier(comm));
        shmcclCall_t send = message(shmcclOpSend, &given, NULL, 0);
        if (rank == 1) OK(shmcclSubmit(messages, &send, 1, NULL, NULL, NULL));
        shmcclResult_t ended = shmcclSuccess;
        while (ended == shmcclSuccess) OK(shmcclCommGetAsyncError(comm, &ended));
        EXPECT(ended == shmcclRevoked);
    }
    OK(shmcclCommDestroy(messages));
    OK(shmcclCommDestroy(comm));
    return 0;
}
