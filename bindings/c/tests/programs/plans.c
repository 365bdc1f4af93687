/* A plan is registered, does the calls that it fits, and is removed. Run as 2 ranks, from bindings/c. */
#include "check.h"

enum { COUNT = 1024 };

static float in[COUNT], out[2 * COUNT];

static void gather(shmcclComm_t comm, int count, int rank) {
    for (int i = 0; i < count; i++) in[i] = (float)(rank * COUNT + i);
    OK(shmcclAllGather(in, out, count, shmcclFloat32, comm, NULL));
    for (int from = 0; from < 2; from++)
        for (int i = 0; i < count; i++) EXPECT(out[from * count + i] == (float)(from * COUNT + i));
}

int main(void) {
    shmcclComm_t comm;
    uint64_t calls;
    int rank;
    OK(shmcclCommInit(&comm));
    OK(shmcclCommUserRank(comm, &rank));
    FAILS(shmcclInvalidArgument, "path is a null pointer", shmcclCommRegisterPlan(comm, NULL));
    FAILS(shmcclInvalidArgument, "no_such_plan.json", shmcclCommRegisterPlan(comm, "no_such_plan.json"));
    OK(shmcclCommPlannedCalls(comm, "allgather", &calls));
    EXPECT(calls == UINT64_MAX);

    OK(shmcclCommRegisterPlan(comm, "../../tests/plans/generated/ag_2.json"));
    gather(comm, COUNT, rank);
    OK(shmcclCommPlannedCalls(comm, "allgather", &calls));
    EXPECT(calls == 1);
    /* It fits whole units of 16 bytes. */
    gather(comm, 1, rank);
    OK(shmcclCommPlannedCalls(comm, "allgather", &calls));
    EXPECT(calls == 1);

    OK(shmcclCommDeregisterPlan(comm, "allgather"));
    gather(comm, COUNT, rank);
    OK(shmcclCommFinalize(comm));
    OK(shmcclCommDestroy(comm));
    return 0;
}
