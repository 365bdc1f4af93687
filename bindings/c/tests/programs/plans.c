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

/* Each rank gets the input of the other one: at once, in a group, in place and on a stream. */
static void send_and_receive(shmcclComm_t comm, int rank) {
    static float both[COUNT];
    uint64_t calls;
    shmcclStream_t stream;
    FAILS(shmcclInvalidUsage, "run_plan", shmcclRunPlan("sendrecv", in, out, COUNT, shmcclFloat32, comm, NULL));
    OK(shmcclCommRegisterPlan(comm, "../../tests/plans/generated/mn_sendrecv_2x1_m0_i1.json"));
    for (int i = 0; i < COUNT; i++) both[i] = in[i] = (float)(rank * COUNT + i);
    OK(shmcclRunPlan("sendrecv", in, out, COUNT, shmcclFloat32, comm, NULL));
    for (int i = 0; i < COUNT; i++) EXPECT(out[i] == (float)((1 - rank) * COUNT + i));
    FAILS(shmcclInvalidArgument, "the bytes of a call by a plan", shmcclRunPlan("sendrecv", in, out, 1, shmcclFloat32, comm, NULL));

    OK(shmcclGroupStart());
    OK(shmcclRunPlan("sendrecv", in, out + COUNT, COUNT, shmcclFloat32, comm, NULL));
    OK(shmcclRunPlan("sendrecv", both, both, COUNT, shmcclFloat32, comm, NULL));
    OK(shmcclGroupEnd());
    for (int i = 0; i < COUNT; i++) EXPECT(out[COUNT + i] == out[i] && both[i] == out[i]);

    OK(shmcclStreamCreate(&stream));
    OK(shmcclRunPlan("sendrecv", both, both, COUNT, shmcclFloat32, comm, stream));
    OK(shmcclRunPlan("sendrecv", both, out, COUNT, shmcclFloat32, comm, stream));
    OK(shmcclStreamSynchronize(stream));
    OK(shmcclStreamDestroy(stream));
    for (int i = 0; i < COUNT; i++) EXPECT(both[i] == in[i] && out[i] == (float)((1 - rank) * COUNT + i));
    OK(shmcclCommPlannedCalls(comm, "sendrecv", &calls));
    EXPECT(calls == 5);
    OK(shmcclCommDeregisterPlan(comm, "sendrecv"));
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
    send_and_receive(comm, rank);
    OK(shmcclCommFinalize(comm));
    OK(shmcclCommDestroy(comm));
    return 0;
}
