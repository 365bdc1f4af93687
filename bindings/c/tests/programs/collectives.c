/* Every operation, on ordinary memory, on heap memory and at odd addresses, in place and not, now, in groups
 * and on streams, against expected values. Run as any number of ranks. */
#include "check.h"

enum { MOST = 64, COUNT = 1031 };

static shmcclComm_t comm;
static int rank, n;

/* What rank r has at place i. */
static int32_t value(int r, size_t i) {
    return (int32_t)(r * 1000 + (int)(i % 97));
}

static void fill(int32_t *at, size_t count, int r) {
    for (size_t i = 0; i < count; i++) at[i] = value(r, i);
}

static int32_t sum(size_t i) {
    int32_t all = 0;
    for (int r = 0; r < n; r++) all += value(r, i);
    return all;
}

/* Two buffers of a block for each rank. */
typedef struct {
    int32_t *send, *recv;
} Pair;

static void all_reduce(Pair at, size_t count, shmcclStream_t stream) {
    fill(at.send, count, rank);
    OK(shmcclAllReduce(at.send, at.recv, count, shmcclInt32, shmcclSum, comm, stream));
    OK(shmcclStreamSynchronize(stream));
    for (size_t i = 0; i < count; i++) EXPECT(at.recv[i] == sum(i));
    OK(shmcclAllReduce(at.send, at.send, count, shmcclInt32, shmcclMax, comm, stream));
    OK(shmcclStreamSynchronize(stream));
    for (size_t i = 0; i < count; i++) EXPECT(at.send[i] == value(n - 1, i));
}

static void reduce(Pair at, size_t count, shmcclStream_t stream) {
    int root = n - 1;
    fill(at.send, count, rank);
    OK(shmcclReduce(at.send, rank == root ? at.recv : NULL, count, shmcclInt32, shmcclMin, root, comm, stream));
    OK(shmcclReduce(at.send, at.send, count, shmcclInt32, shmcclSum, root, comm, stream));
    OK(shmcclStreamSynchronize(stream));
    for (size_t i = 0; rank == root && i < count; i++) {
        EXPECT(at.recv[i] == value(0, i));
        EXPECT(at.send[i] == sum(i));
    }
}

static void broadcast(Pair at, size_t count, shmcclStream_t stream) {
    fill(at.send, count, rank);
    OK(shmcclBroadcast(rank == 0 ? at.send : NULL, at.recv, count, shmcclInt32, 0, comm, stream));
    OK(shmcclBroadcast(at.send, at.send, count, shmcclInt32, n - 1, comm, stream));
    OK(shmcclStreamSynchronize(stream));
    for (size_t i = 0; i < count; i++) {
        EXPECT(at.recv[i] == value(0, i));
        EXPECT(at.send[i] == value(n - 1, i));
    }
}

static void expect_gathered(const int32_t *at, size_t count) {
    for (int r = 0; r < n; r++)
        for (size_t i = 0; i < count; i++) EXPECT(at[r * count + i] == value(r, i));
}

static void gathers(Pair at, size_t count, shmcclStream_t stream) {
    int32_t *own = at.recv + rank * count;
    fill(at.send, count, rank);
    OK(shmcclAllGather(at.send, at.recv, count, shmcclInt32, comm, stream));
    OK(shmcclStreamSynchronize(stream));
    expect_gathered(at.recv, count);
    memset(at.recv, 0, n * count * sizeof *at.recv);
    fill(own, count, rank);
    OK(shmcclAllGather(own, at.recv, count, shmcclInt32, comm, stream));
    OK(shmcclStreamSynchronize(stream));
    expect_gathered(at.recv, count);
    memset(at.recv, 0, n * count * sizeof *at.recv);
    fill(own, count, rank);
    OK(shmcclGather(rank == 0 ? own : at.send, at.recv, count, shmcclInt32, 0, comm, stream));
    OK(shmcclStreamSynchronize(stream));
    if (rank == 0) expect_gathered(at.recv, count);
    OK(shmcclGather(at.send, rank == n - 1 ? at.recv : NULL, count, shmcclInt32, n - 1, comm, stream));
    OK(shmcclStreamSynchronize(stream));
    if (rank == n - 1) expect_gathered(at.recv, count);
}

/* Rank r has value(r, block * count + i) for the others. */
static void scatters(Pair at, size_t count, shmcclStream_t stream) {
    int32_t *own = at.send + rank * count;
    fill(at.send, n * count, rank);
    OK(shmcclReduceScatter(at.send, at.recv, count, shmcclInt32, shmcclSum, comm, stream));
    OK(shmcclStreamSynchronize(stream));
    for (size_t i = 0; i < count; i++) EXPECT(at.recv[i] == sum(rank * count + i));
    OK(shmcclReduceScatter(at.send, own, count, shmcclInt32, shmcclSum, comm, stream));
    OK(shmcclStreamSynchronize(stream));
    for (size_t i = 0; i < count; i++) EXPECT(own[i] == sum(rank * count + i));
    fill(at.send, n * count, rank);
    OK(shmcclScatter(rank == 0 ? at.send : NULL, rank == 0 ? own : at.recv, count, shmcclInt32, 0, comm, stream));
    OK(shmcclStreamSynchronize(stream));
    const int32_t *got = rank == 0 ? own : at.recv;
    for (size_t i = 0; i < count; i++) EXPECT(got[i] == value(0, rank * count + i));
}

static void all_to_all(Pair at, size_t count, shmcclStream_t stream) {
    fill(at.send, n * count, rank);
    OK(shmcclAlltoAll(at.send, at.recv, count, shmcclInt32, comm, stream));
    OK(shmcclAlltoAll(at.send, at.send, count, shmcclInt32, comm, stream));
    OK(shmcclStreamSynchronize(stream));
    for (int r = 0; r < n; r++)
        for (size_t i = 0; i < count; i++) {
            EXPECT(at.recv[r * count + i] == value(r, rank * count + i));
            EXPECT(at.send[r * count + i] == value(r, rank * count + i));
        }
}

/* Rank s sends s + d elements to rank d. */
static void all_to_all_v(Pair at, shmcclStream_t stream) {
    size_t sendcounts[MOST], sdispls[MOST], recvcounts[MOST], rdispls[MOST], sent = 0, received = 0;
    for (int r = 0; r < n; r++) {
        sendcounts[r] = recvcounts[r] = rank + r;
        sdispls[r] = sent;
        rdispls[r] = received + 1;
        sent += sendcounts[r];
        received += recvcounts[r] + 1;
    }
    fill(at.send, sent, rank);
    memset(at.recv, -1, (received + 1) * sizeof *at.recv);
    OK(shmcclAlltoAllv(at.send, sendcounts, sdispls, at.recv, recvcounts, rdispls, shmcclInt32, comm, stream));
    OK(shmcclAlltoAllv(at.send, sendcounts, sdispls, at.send, sendcounts, sdispls, shmcclInt32, comm, stream));
    OK(shmcclStreamSynchronize(stream));
    for (int r = 0; r < n; r++) {
        size_t theirs = 0; /* where rank r has its block for this one */
        for (int d = 0; d < rank; d++) theirs += r + d;
        EXPECT(at.recv[rdispls[r] - 1] == -1);
        for (size_t i = 0; i < recvcounts[r]; i++) {
            EXPECT(at.recv[rdispls[r] + i] == value(r, theirs + i));
            EXPECT(at.send[sdispls[r] + i] == value(r, theirs + i));
        }
    }
}

static void messages(Pair at, size_t count, shmcclStream_t stream) {
    int right = (rank + 1) % n, left = (rank + n - 1) % n;
    fill(at.send, count, rank);
    OK(shmcclGroupStart());
    OK(shmcclSend(at.send, count, shmcclInt32, right, comm, stream));
    OK(shmcclRecv(at.recv, count, shmcclInt32, left, comm, stream));
    OK(shmcclGroupEnd());
    OK(shmcclStreamSynchronize(stream));
    for (size_t i = 0; i < count; i++) EXPECT(at.recv[i] == value(left, i));
    if (n > 1 && rank == 0) OK(shmcclSend(at.send, count, shmcclInt32, 1, comm, stream));
    if (rank == 1) OK(shmcclRecv(at.recv, count, shmcclInt32, 0, comm, stream));
    OK(shmcclStreamSynchronize(stream));
    for (size_t i = 0; rank == 1 && i < count; i++) EXPECT(at.recv[i] == value(0, i));
}

/* Nested groups of calls of two communicators, done together at the outermost end. */
static void groups(Pair at, size_t count, shmcclStream_t stream) {
    shmcclComm_t twin;
    OK(shmcclCommDuplicate(comm, &twin));
    fill(at.send, n * count, rank);
    OK(shmcclGroupStart());
    OK(shmcclAllReduce(at.send, at.recv, count, shmcclInt32, shmcclSum, comm, stream));
    OK(shmcclGroupStart());
    OK(shmcclAllReduce(at.send + count, at.recv + count, count, shmcclInt32, shmcclSum, twin, stream));
    OK(shmcclGroupEnd());
    OK(shmcclGroupEnd());
    OK(shmcclStreamSynchronize(stream));
    for (size_t i = 0; i < 2 * count; i++) EXPECT(at.recv[i] == sum(i));
    OK(shmcclCommDestroy(twin));
}

static void operations(Pair at, shmcclStream_t stream) {
    static const size_t counts[] = {0, 1, 3, COUNT};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        all_reduce(at, counts[c], stream);
        reduce(at, counts[c], stream);
        broadcast(at, counts[c], stream);
        gathers(at, counts[c], stream);
        scatters(at, counts[c], stream);
        all_to_all(at, counts[c], stream);
        messages(at, counts[c], stream);
        if (n > 1) groups(at, counts[c], stream);
    }
    all_to_all_v(at, stream);
}

static void operators(void) {
    double x[2] = {rank + 1, -rank}, y[2], factor = 0.5;
    shmcclRedOp_t half;
    OK(shmcclRedOpCreatePreMulSum(&half, &factor, shmcclFloat64));
    OK(shmcclAllReduce(x, y, 2, shmcclFloat64, half, comm, NULL));
    EXPECT(y[0] == n * (n + 1) / 4.0 && y[1] == -n * (n - 1) / 4.0);
    OK(shmcclRedOpDestroy(half));
    FAILS(shmcclInvalidArgument, "no shmcclRedOp_t", shmcclAllReduce(x, y, 2, shmcclFloat64, half, comm, NULL));
    FAILS(shmcclInvalidArgument, "shmcclRedOpCreatePreMulSum", shmcclRedOpDestroy(half));
    OK(shmcclAllReduce(x, y, 2, shmcclFloat64, shmcclAvg, comm, NULL));
    EXPECT(y[0] == (n + 1) / 2.0);
    OK(shmcclAllReduce(x, y, 1, shmcclFloat64, shmcclProd, comm, NULL));
    double product = 1;
    for (int r = 1; r <= n; r++) product *= r;
    EXPECT(y[0] == product);
    uint16_t bits = (uint16_t)(1 << rank | 0x8000), all;
    OK(shmcclAllReduce(&bits, &all, 1, shmcclUint16, shmcclBitOr, comm, NULL));
    EXPECT(all == (uint16_t)(((1 << n) - 1) | 0x8000));
    OK(shmcclAllReduce(&bits, &all, 1, shmcclUint16, shmcclBitAnd, comm, NULL));
    EXPECT(all == (n == 1 ? 0x8001 : 0x8000));
    OK(shmcclAllReduce(&bits, &all, 1, shmcclUint16, shmcclBitXor, comm, NULL));
    EXPECT(all == (uint16_t)(((1 << n) - 1) | (n % 2 ? 0x8000 : 0)));
    float complex_[2] = {1, (float)rank}, total[2];
    OK(shmcclAllReduce(complex_, total, 1, shmcclComplex64, shmcclSum, comm, NULL));
    EXPECT(total[0] == n && total[1] == n * (n - 1) / 2.0f);
}

/* Every type goes from the root to all, whole. */
static void types(void) {
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1, 2, 2, 1, 8, 16};
    for (int type = shmcclInt8; type <= shmcclComplex128; type++) {
        unsigned char bytes[48];
        for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(rank == 0 ? i + type : 0xff);
        OK(shmcclBroadcast(bytes, bytes, 2, (shmcclDataType_t)type, 0, comm, NULL));
        for (size_t i = 0; i < sizeof bytes; i++)
            EXPECT(bytes[i] == (rank == 0 || i < 2 * sizes[type] ? i + type : 0xff));
    }
}

/* Buffers need no alignment, in ordinary memory and in the heap. */
static void odd_addresses(void *heap) {
    char ordinary[2 * sizeof(int32_t) + 2];
    char *places[] = {ordinary + 1, (char *)heap + 3};
    for (int p = 0; p < 2; p++) {
        int32_t given = rank + 1, got;
        memcpy(places[p], &given, sizeof given);
        OK(shmcclAllReduce(places[p], places[p] + sizeof given, 1, shmcclInt32, shmcclSum, comm, NULL));
        memcpy(&got, places[p] + sizeof given, sizeof got);
        EXPECT(got == n * (n + 1) / 2);
    }
}

int main(void) {
    OK(shmcclCommInit(&comm));
    OK(shmcclCommCount(comm, &n));
    OK(shmcclCommUserRank(comm, &rank));
    OK(shmcclBarrier(comm));

    size_t len = (size_t)n * (COUNT + n) * sizeof(int32_t) + 4;
    Pair ordinary = {malloc(len), malloc(len)}, heap;
    OK(shmcclMemAlloc(comm, (void **)&heap.send, len));
    OK(shmcclMemAlloc(comm, (void **)&heap.recv, len));
    int where;
    uint64_t offset;
    void *same;
    OK(shmcclMemLocate(comm, heap.send, len, &where, &offset));
    EXPECT(where == rank);
    OK(shmcclMemAddress(comm, rank, offset, len, &same));
    EXPECT(same == heap.send);
    OK(shmcclMemLocate(comm, ordinary.send, len, &where, &offset));
    EXPECT(where == -1);

    shmcclStream_t stream;
    OK(shmcclStreamCreate(&stream));
    OK(shmcclStreamQuery(stream));
    Pair mixed = {ordinary.send, heap.recv};
    operations(ordinary, NULL);
    operations(heap, NULL);
    operations(mixed, stream);
    operations(heap, stream);
    OK(shmcclStreamSynchronize(stream));
    OK(shmcclStreamQuery(stream));
    OK(shmcclStreamDestroy(stream));
    operators();
    types();
    odd_addresses(heap.send);

    free(ordinary.send);
    free(ordinary.recv);
    OK(shmcclMemFree(heap.send));
    OK(shmcclMemFree(heap.recv));
    OK(shmcclMemFree(NULL));
    OK(shmcclCommFinalize(comm));
    FAILS(shmcclInvalidUsage, "finalized", shmcclBarrier(comm));
    OK(shmcclCommDestroy(comm));
    return 0;
}
