/* Calls of a group that share memory: one after the other, at every size. Run as 2 ranks or more. */
#include "check.h"

enum { MOST = 100000 };

static shmcclComm_t comm;
static int rank, n;

static void fill(double *at, size_t count, double value) {
    for (size_t i = 0; i < count; i++) at[i] = value;
}

static int all_are(const double *at, size_t count, double value) {
    for (size_t i = 0; i < count; i++)
        if (at[i] != value) return 0;
    return 1;
}

/* The same buffer, in place, twice. */
static void twice_in_place(double *x, size_t count, shmcclStream_t stream) {
    struct {
        shmcclRedOp_t first, second;
        double expected;
    } cases[] = {
        {shmcclMin, shmcclSum, n},
        {shmcclSum, shmcclMax, n * (n + 1) / 2},
        {shmcclSum, shmcclSum, n * n * (n + 1) / 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fill(x, count, rank + 1);
        OK(shmcclGroupStart());
        OK(shmcclAllReduce(x, x, count, shmcclFloat64, cases[i].first, comm, stream));
        OK(shmcclAllReduce(x, x, count, shmcclFloat64, cases[i].second, comm, stream));
        OK(shmcclGroupEnd());
        OK(shmcclStreamSynchronize(stream));
        EXPECT(all_are(x, count, cases[i].expected));
    }
}

/* The output of a call is the input of the next one, on one rank only, and of that a part. */
static void from_call_to_call(double *x, size_t count) {
    double *own = x, *sum = x + count, *copy = x + 2 * count;
    fill(own, count, rank + 1);
    fill(sum, count, 100);
    fill(copy, count, 0);
    const double *next = rank == n - 1 ? sum : own;
    OK(shmcclGroupStart());
    OK(shmcclAllReduce(own, sum, count, shmcclFloat64, shmcclSum, comm, NULL));
    OK(shmcclBroadcast(next, copy, count, shmcclFloat64, n - 1, comm, NULL));
    OK(shmcclReduce(copy + count / 2, own, count - count / 2, shmcclFloat64, shmcclMax, 0, comm, NULL));
    OK(shmcclGroupEnd());
    EXPECT(all_are(copy, count, n * (n + 1) / 2));
    if (rank == 0) EXPECT(all_are(own, count - count / 2, n * (n + 1) / 2));
}

/* Blocks that move by messages come in their turn. */
static void blocks_in_their_turn(double *x, size_t count) {
    size_t counts[8], displacements[8];
    for (int r = 0; r < n; r++) counts[r] = count, displacements[r] = r * count;
    double *blocks = x, *turned = x + n * count;
    for (int r = 0; r < n; r++) fill(blocks + r * count, count, 10 * rank + r);
    OK(shmcclGroupStart());
    OK(shmcclAlltoAllv(blocks, counts, displacements, turned, counts, displacements, shmcclFloat64, comm, NULL));
    OK(shmcclAllReduce(turned, turned, n * count, shmcclFloat64, shmcclSum, comm, NULL));
    OK(shmcclAlltoAllv(turned, counts, displacements, blocks, counts, displacements, shmcclFloat64, comm, NULL));
    OK(shmcclGroupEnd());
    /* Block r of all ranks together: what rank r has sent to all. */
    double from_me = 10 * n * rank + n * (n - 1) / 2;
    for (int r = 0; r < n; r++) {
        EXPECT(all_are(turned + r * count, count, 10 * n * r + n * (n - 1) / 2));
        EXPECT(all_are(blocks + r * count, count, from_me));
    }
}

/* A message passes on what an exchange of blocks before it brings. */
static void blocks_passed_on(double *x, size_t count) {
    size_t counts[8], displacements[8];
    for (int r = 0; r < n; r++) counts[r] = count, displacements[r] = r * count;
    double *blocks = x, *turned = x + n * count, *passed = turned + n * count;
    fill(blocks, n * count, rank);
    fill(turned, n * count, 100);
    OK(shmcclGroupStart());
    OK(shmcclAlltoAllv(blocks, counts, displacements, turned, counts, displacements, shmcclFloat64, comm, NULL));
    OK(shmcclSend(turned + (n - 1) * count, count, shmcclFloat64, (rank + 1) % n, comm, NULL));
    OK(shmcclRecv(passed, count, shmcclFloat64, (rank + n - 1) % n, comm, NULL));
    OK(shmcclGroupEnd());
    EXPECT(all_are(passed, count, n - 1));
}

static void started_together(double *x, size_t count) {
    shmcclCall_t calls[3] = {{0}, {0}, {0}};
    for (int i = 0; i < 3; i++) {
        calls[i].size = sizeof calls[i];
        calls[i].operation = shmcclOpAllReduce;
        calls[i].datatype = shmcclFloat64;
        calls[i].op = shmcclSum;
        calls[i].sendbuff = x;
        calls[i].recvbuff = x;
        calls[i].count = count;
    }
    shmcclRequest_t request;
    fill(x, count, 1);
    OK(shmcclSubmit(comm, calls, 3, NULL, NULL, &request));
    OK(shmcclRequestWait(request, 0));
    OK(shmcclRequestFree(request));
    EXPECT(all_are(x, count, n * n * n));
}

/* What has no order is refused, and nothing has moved. */
static void without_an_order(double *x) {
    shmcclComm_t other;
    OK(shmcclCommDuplicate(comm, &other));
    int peer = (rank + 1) % n;
    fill(x, 8, 1);
    OK(shmcclGroupStart());
    OK(shmcclSend(x, 4, shmcclFloat64, peer, comm, NULL));
    OK(shmcclAllReduce(x + 3, x + 3, 4, shmcclFloat64, shmcclSum, comm, NULL));
    OK(shmcclRecv(x + 8, 4, shmcclFloat64, (rank + n - 1) % n, comm, NULL));
    FAILS(shmcclInvalidArgument, "shares memory with a message", shmcclGroupEnd());
    OK(shmcclGroupStart());
    OK(shmcclAllReduce(x, x, 4, shmcclFloat64, shmcclSum, comm, NULL));
    OK(shmcclAllReduce(x + 3, x + 4, 1, shmcclFloat64, shmcclSum, other, NULL));
    FAILS(shmcclInvalidArgument, "share memory", shmcclGroupEnd());
    EXPECT(all_are(x, 8, 1));
    /* As the remedies say. */
    OK(shmcclGroupStart());
    OK(shmcclAllReduce(x + 3, x + 3, 4, shmcclFloat64, shmcclSum, comm, NULL));
    OK(shmcclSend(x, 4, shmcclFloat64, peer, comm, NULL));
    OK(shmcclRecv(x + 8, 4, shmcclFloat64, (rank + n - 1) % n, comm, NULL));
    OK(shmcclGroupEnd());
    EXPECT(all_are(x + 3, 4, n) && all_are(x + 8, 3, 1) && x[11] == n);
    OK(shmcclGroupStart());
    OK(shmcclAllReduce(x, x, 4, shmcclFloat64, shmcclMax, comm, NULL));
    OK(shmcclAllReduce(x + 4, x + 4, 1, shmcclFloat64, shmcclSum, other, NULL));
    OK(shmcclGroupEnd());
    EXPECT(x[3] == n && x[4] == n * n);
    OK(shmcclCommDestroy(other));
}

int main(void) {
    OK(shmcclCommInit(&comm));
    OK(shmcclCommCount(comm, &n));
    OK(shmcclCommUserRank(comm, &rank));
    OK(shmcclBarrier(comm));
    size_t counts[] = {1, 4, 64, 1000, MOST / 8}, len = MOST * sizeof(double);
    double *homes[2] = {malloc(len), NULL};
    OK(shmcclMemAlloc(comm, (void **)&homes[1], len));
    shmcclStream_t stream;
    OK(shmcclStreamCreate(&stream));
    for (int home = 0; home < 2; home++) {
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            twice_in_place(homes[home], counts[i], NULL);
            if (home == 1) twice_in_place(homes[home], counts[i], stream);
            from_call_to_call(homes[home], counts[i]);
            blocks_in_their_turn(homes[home], counts[i]);
            blocks_passed_on(homes[home], counts[i]);
            started_together(homes[home], counts[i]);
        }
        without_an_order(homes[home]);
    }
    OK(shmcclStreamDestroy(stream));
    free(homes[0]);
    OK(shmcclMemFree(homes[1]));
    OK(shmcclCommFinalize(comm));
    OK(shmcclCommDestroy(comm));
    return 0;
}
