/* Events join streams; timeouts and staged bytes of a communicator. Run as 2 ranks or more. */
#include "check.h"

enum { COUNT = 100000 };

static float x[COUNT], y[COUNT], z[COUNT];

static void one_stream_waits_for_another(shmcclComm_t comm, int n) {
    shmcclStream_t first, second;
    shmcclEvent_t begun, between, end;
    float ms = -1;
    OK(shmcclStreamCreate(&first));
    OK(shmcclStreamCreate(&second));
    OK(shmcclEventCreate(&begun));
    OK(shmcclEventCreate(&between));
    OK(shmcclEventCreate(&end));
    OK(shmcclEventQuery(begun));
    OK(shmcclEventSynchronize(begun));
    FAILS(shmcclInvalidUsage, "recorded", shmcclEventElapsedTime(&ms, begun, end));
    FAILS(shmcclInvalidArgument, "stream is a null pointer", shmcclEventRecord(begun, NULL));

    for (int i = 0; i < COUNT; i++) x[i] = 1;
    OK(shmcclAllReduce(x, y, COUNT, shmcclFloat32, shmcclSum, comm, first));
    OK(shmcclEventRecord(begun, first));
    OK(shmcclAllReduce(y, y, COUNT, shmcclFloat32, shmcclSum, comm, first));
    OK(shmcclEventRecord(between, first));
    /* A stream that has had no call waits all the same. */
    OK(shmcclStreamWaitEvent(second, between));
    OK(shmcclAllReduce(y, z, COUNT, shmcclFloat32, shmcclSum, comm, second));
    OK(shmcclStreamWaitEvent(second, begun));
    OK(shmcclEventRecord(end, second));
    OK(shmcclEventSynchronize(end));
    OK(shmcclEventQuery(end));
    for (int i = 0; i < COUNT; i++) EXPECT(y[i] == (float)(n * n) && z[i] == (float)(n * n * n));
    OK(shmcclEventElapsedTime(&ms, begun, end));
    EXPECT(ms >= 0);
    OK(shmcclEventDestroy(begun));
    FAILS(shmcclInvalidArgument, "it was freed", shmcclEventQuery(begun));
    OK(shmcclEventDestroy(between));
    OK(shmcclEventDestroy(end));
    OK(shmcclStreamDestroy(first));
    OK(shmcclStreamDestroy(second));
}

static void staged_bytes_are_those_of_ordinary_memory(shmcclComm_t comm) {
    uint64_t before, after;
    float *heap;
    OK(shmcclMemAlloc(comm, (void **)&heap, sizeof x));
    memcpy(heap, x, sizeof x);
    OK(shmcclCommStagedBytes(comm, &before));
    OK(shmcclAllReduce(heap, heap, COUNT, shmcclFloat32, shmcclSum, comm, NULL));
    OK(shmcclCommStagedBytes(comm, &after));
    EXPECT(after == before);
    OK(shmcclAllReduce(x, y, COUNT, shmcclFloat32, shmcclSum, comm, NULL));
    OK(shmcclCommStagedBytes(comm, &after));
    EXPECT(after == before + sizeof x);
    OK(shmcclMemFree(heap));
}

/* The other ranks come late, and rank 0 says so after its own time. */
static void a_timeout_that_is_set_counts_for_later_waits(shmcclComm_t comm, int rank) {
    shmcclWindow_t window;
    OK(shmcclCommWindowRegister(comm, NULL, 0, &window));
    FAILS(shmcclInvalidArgument, "timeout", shmcclCommSetTimeout(comm, 0));
    if (rank == 0) {
        shmcclWaitSignalDesc_t one = {1, 1, 0};
        OK(shmcclCommSetTimeout(comm, 20));
        FAILS(shmcclTimeout, "20ms", shmcclWaitSignal(1, &one, comm, NULL));
        OK(shmcclCommSetTimeout(comm, 60000));
        OK(shmcclSignal(1, 0, comm, NULL));
    } else if (rank == 1) {
        shmcclWaitSignalDesc_t one = {1, 0, 0};
        OK(shmcclWaitSignal(1, &one, comm, NULL));
    }
    OK(shmcclCommWindowDeregister(comm, window));
}

int main(void) {
    shmcclComm_t comm;
    int rank, n;
    OK(shmcclCommInit(&comm));
    OK(shmcclCommCount(comm, &n));
    OK(shmcclCommUserRank(comm, &rank));
    one_stream_waits_for_another(comm, n);
    staged_bytes_are_those_of_ordinary_memory(comm);
    a_timeout_that_is_set_counts_for_later_waits(comm, rank);
    OK(shmcclCommFinalize(comm));
    OK(shmcclCommDestroy(comm));
    return 0;
}
