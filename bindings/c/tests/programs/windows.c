/* Windows, puts, signals. Run as any number of ranks. */
#include "check.h"

enum { COUNT = 1000 };

int main(void) {
    shmcclComm_t comm;
    shmcclStream_t stream;
    shmcclWindow_t window, second;
    int rank, n;
    OK(shmcclCommInit(&comm));
    OK(shmcclCommCount(comm, &n));
    OK(shmcclCommUserRank(comm, &rank));
    OK(shmcclStreamCreate(&stream));
    int right = (rank + 1) % n, left = (rank + n - 1) % n;

    /* Parts differ in size: rank r has room for 2 * COUNT + r numbers. */
    size_t size = (2 * COUNT + rank) * sizeof(double);
    double *mine, *source, ordinary[COUNT];
    OK(shmcclMemAlloc(comm, (void **)&source, COUNT * sizeof(double)));
    OK(shmcclMemAlloc(comm, (void **)&mine, size));
    memset(mine, 0, size);
    OK(shmcclCommWindowRegister(comm, mine, size, &window));
    OK(shmcclCommWindowRegister(comm, NULL, 0, &second));
    void *theirs;
    size_t room;
    OK(shmcclWindowAddress(comm, window, right, &theirs, &room));
    EXPECT(room == (2 * COUNT + right) * sizeof(double));
    for (int i = 0; i < COUNT; i++) source[i] = ordinary[i] = rank * 1000 + i;

    shmcclWaitSignalDesc_t one = {1, left, 0}, both[] = {{1, left, 3}, {2, left, 0}};
    for (int round = 0; round < 20; round++) {
        shmcclStream_t on = round % 2 ? stream : NULL;
        OK(shmcclPutSignal(source, COUNT, shmcclFloat64, right, window, 0, 0, comm, on));
        OK(shmcclWaitSignal(1, &one, comm, on));
        OK(shmcclStreamSynchronize(on));
        for (int i = 0; i < COUNT; i++) EXPECT(mine[i] == left * 1000 + i);
        /* From ordinary memory, and what was put before comes with a later signal. */
        OK(shmcclPutSignal(ordinary, COUNT, shmcclFloat64, right, window, COUNT * sizeof(double), 0, comm, on));
        OK(shmcclSignal(right, 0, comm, on));
        OK(shmcclSignal(right, 3, comm, on));
        OK(shmcclWaitSignal(2, both, comm, on));
        OK(shmcclStreamSynchronize(on));
        for (int i = 0; i < COUNT; i++) EXPECT(mine[COUNT + i] == left * 1000 + i);
        memset(mine, 0, 2 * COUNT * sizeof(double));
        OK(shmcclBarrier(comm));
    }
    /* A store of one's own into a peer's part. */
    ((double *)theirs)[0] = rank;
    OK(shmcclSignal(right, 15, comm, NULL));
    shmcclWaitSignalDesc_t last = {1, left, 15};
    OK(shmcclWaitSignal(1, &last, comm, NULL));
    EXPECT(mine[0] == left);

    FAILS(shmcclInvalidArgument, "exceeds the window size",
          shmcclPutSignal(source, 1, shmcclFloat64, right, window, room, 0, comm, NULL));
    FAILS(shmcclInvalidArgument, "exceeds the window size",
          shmcclPutSignal(source, 1, shmcclUint8, right, second, 0, 0, comm, NULL));
    FAILS(shmcclInvalidArgument, "sigIdx is 16", shmcclSignal(right, 16, comm, NULL));
    OK(shmcclCommWindowDeregister(comm, second));
    OK(shmcclCommWindowDeregister(comm, window));
    FAILS(shmcclInvalidArgument, "it was freed", shmcclCommWindowDeregister(comm, window));
    OK(shmcclMemFree(mine));
    OK(shmcclMemFree(source));
    OK(shmcclStreamDestroy(stream));
    OK(shmcclCommFinalize(comm));
    OK(shmcclCommDestroy(comm));
    return 0;
}
