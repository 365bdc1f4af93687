/* Communicators: derived, asked, grown, revoked, aborted, left. Run as 2 ranks or more. */
#include <unistd.h>

#include "check.h"

static int32_t total(shmcclComm_t comm, int32_t mine) {
    int32_t all;
    OK(shmcclAllReduce(&mine, &all, 1, shmcclInt32, shmcclSum, comm, NULL));
    return all;
}

/* Reversed by the key; rank 0 of the job gets none. */
static void split(shmcclComm_t comm, int rank, int n) {
    shmcclComm_t part;
    int color = rank == 0 ? SHMCCL_SPLIT_NOCOLOR : 5;
    OK(shmcclCommSplit(comm, color, -rank, &part));
    if (rank == 0) {
        EXPECT(part == NULL);
        return;
    }
    int size, own, job;
    OK(shmcclCommCount(part, &size));
    OK(shmcclCommUserRank(part, &own));
    OK(shmcclCommJobRank(part, own, &job));
    EXPECT(size == n - 1 && own == n - 1 - rank && job == rank);
    EXPECT(total(part, rank) == n * (n - 1) / 2);
    OK(shmcclCommFinalize(part));
    OK(shmcclCommDestroy(part));
}

/* A process of rank 0's joins; the id goes through its environment. */
static void grow(shmcclComm_t comm, const char *program, int rank, int n) {
    shmcclComm_t grown;
    shmcclUniqueId id;
    if (rank == 0) {
        OK(shmcclGetUniqueId(&id));
        pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0) {
            setenv("JOIN", id.internal, 1);
            execl(program, program, (char *)NULL);
            _exit(127);
        }
    }
    OK(shmcclCommGrow(comm, n + 1, rank == 0 ? &id : NULL, &grown));
    int size;
    OK(shmcclCommCount(grown, &size));
    EXPECT(size == n + 1 && total(grown, 1) == n + 1);
    OK(shmcclCommFinalize(grown));
    OK(shmcclCommDestroy(grown));
}

static int join(const char *text) {
    shmcclUniqueId id = {{0}};
    shmcclComm_t grown;
    strncpy(id.internal, text, sizeof id.internal - 1);
    OK(shmcclCommJoin(&id, &grown));
    int size;
    OK(shmcclCommCount(grown, &size));
    EXPECT(total(grown, 1) == size);
    OK(shmcclCommFinalize(grown));
    OK(shmcclCommDestroy(grown));
    return 0;
}

int main(int argc, char **argv) {
    (void)argc;
    if (getenv("JOIN")) return join(getenv("JOIN"));
    shmcclComm_t comm, twin;
    shmcclResult_t state;
    int rank, n, by;
    OK(shmcclCommInit(&comm));
    OK(shmcclCommCount(comm, &n));
    OK(shmcclCommUserRank(comm, &rank));
    OK(shmcclCommDuplicate(comm, &twin));
    EXPECT(total(twin, 1) == n);
    split(comm, rank, n);
    grow(comm, argv[0], rank, n);

    OK(shmcclCommGetAsyncError(comm, &state));
    EXPECT(state == shmcclSuccess);
    OK(shmcclBarrier(comm));
    if (rank == 1) OK(shmcclCommRevoke(comm));
    RETURNS(shmcclRevoked, shmcclBarrier(twin));
    OK(shmcclCommGetAsyncError(twin, &state));
    EXPECT(state == shmcclRevoked && strstr(shmcclGetLastError(NULL), "revoked by rank 1"));
    OK(shmcclGetLastErrorRank(twin, &by));
    EXPECT(by == 1);

    /* All are there: nobody is lost. */
    shmcclComm_t on;
    int lost[64], nlost = -1;
    OK(shmcclCommShrink(comm, NULL, 0, &on, lost, &nlost));
    EXPECT(nlost == 0 && total(on, 1) == n);
    OK(shmcclCommAbort(twin));
    FAILS(shmcclInvalidArgument, "it was freed", shmcclCommAbort(twin));
    OK(shmcclCommDestroy(comm));
    OK(shmcclCommFinalize(on));
    OK(shmcclCommDestroy(on));
    return 0;
}
