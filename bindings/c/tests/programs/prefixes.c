/* Each rank combines what the ranks up to it, or before it, have: on memory of any kind, in place and not, now, on a
 * stream, in a group and as a structure. Run as any number of ranks. */
#include "check.h"

enum { COUNT = 40009 };

static shmcclComm_t comm;
static int rank, n;

typedef shmcclResult_t (*Prefix)(const void *, void *, size_t, shmcclDataType_t, shmcclRedOp_t, shmcclComm_t, shmcclStream_t);

typedef struct {
    int32_t *send, *recv;
} Pair;

/* What rank r has at place i. */
static int32_t value(int r, size_t i) {
    return (int32_t)((r + 1) * 1000 + (int)(i % 97));
}

/* The sum of what `ranks` ranks from the first one on have there. */
static int32_t sum(int ranks, size_t i) {
    int32_t all = 0;
    for (int r = 0; r < ranks; r++) all += value(r, i);
    return all;
}

static void fill(Pair at, size_t count) {
    for (size_t i = 0; i < count; i++) {
        at.send[i] = value(rank, i);
        at.recv[i] = -1;
    }
}

/* `ranks` are combined here. Where they are none, the memory is as it was before. */
static void expect(const int32_t *at, size_t count, int ranks, int32_t before) {
    for (size_t i = 0; i < count; i++) EXPECT(at[i] == (ranks > 0 ? sum(ranks, i) : before));
}

static void apart(Prefix prefix, int ranks, Pair at, size_t count, shmcclStream_t stream) {
    fill(at, count);
    OK(prefix(at.send, at.recv, count, shmcclInt32, shmcclSum, comm, stream));
    OK(shmcclStreamSynchronize(stream));
    expect(at.recv, count, ranks, -1);
    for (size_t i = 0; i < count; i++) EXPECT(at.send[i] == value(rank, i));
    OK(prefix(at.send, at.recv, count, shmcclInt32, shmcclMax, comm, stream));
    OK(shmcclStreamSynchronize(stream));
    for (size_t i = 0; i < count; i++) EXPECT(at.recv[i] == (ranks > 0 ? value(ranks - 1, i) : -1));
}

static void in_place(Prefix prefix, int ranks, Pair at, size_t count, shmcclStream_t stream) {
    fill(at, count);
    OK(prefix(at.send, at.send, count, shmcclInt32, shmcclSum, comm, stream));
    OK(shmcclStreamSynchronize(stream));
    for (size_t i = 0; i < count; i++) EXPECT(at.send[i] == (ranks > 0 ? sum(ranks, i) : value(rank, i)));
}

/* Both in a group, and a third call on what the first one leaves. */
static void grouped(Pair at, size_t count, shmcclStream_t stream) {
    int32_t *before = malloc((count + 1) * sizeof *before), *most = malloc((count + 1) * sizeof *most);
    memset(before, 0, count * sizeof *before);
    fill(at, count);
    OK(shmcclGroupStart());
    OK(shmcclScan(at.send, at.recv, count, shmcclInt32, shmcclSum, comm, stream));
    OK(shmcclExscan(at.send, before, count, shmcclInt32, shmcclSum, comm, stream));
    OK(shmcclAllReduce(at.recv, most, count, shmcclInt32, shmcclMax, comm, stream));
    OK(shmcclGroupEnd());
    OK(shmcclStreamSynchronize(stream));
    for (size_t i = 0; i < count; i++) {
        EXPECT(at.recv[i] == sum(rank + 1, i));
        EXPECT(before[i] == sum(rank, i));
        EXPECT(most[i] == sum(n, i));
    }
    free(before);
    free(most);
}

static void submitted(shmcclOperation_t operation, int ranks, Pair at, size_t count) {
    fill(at, count);
    shmcclCall_t call = {0};
    call.size = sizeof call;
    call.operation = operation;
    call.datatype = shmcclInt32;
    call.op = shmcclSum;
    call.sendbuff = at.send;
    call.recvbuff = at.recv;
    call.count = count;
    shmcclRequest_t request;
    OK(shmcclSubmit(comm, &call, 1, NULL, NULL, &request));
    OK(shmcclRequestWait(request, 0));
    OK(shmcclRequestFree(request));
    expect(at.recv, count, ranks, -1);
    int32_t factor = rank + 2;
    call.scalar = &factor;
    OK(shmcclSubmit(comm, &call, 1, NULL, NULL, NULL));
    for (size_t i = 0; i < count; i++) {
        int32_t scaled = ranks > 0 ? 0 : -1;
        for (int r = 0; r < ranks; r++) scaled += (r + 2) * value(r, i);
        EXPECT(at.recv[i] == scaled);
    }
}

static void all_ways(Pair at, shmcclStream_t stream) {
    static const size_t counts[] = {0, 1, 2, 3, 700, COUNT};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        apart(shmcclScan, rank + 1, at, counts[c], stream);
        apart(shmcclExscan, rank, at, counts[c], stream);
        in_place(shmcclScan, rank + 1, at, counts[c], stream);
        in_place(shmcclExscan, rank, at, counts[c], stream);
        grouped(at, counts[c], stream);
        submitted(shmcclOpScan, rank + 1, at, counts[c]);
        submitted(shmcclOpExscan, rank, at, counts[c]);
    }
}

/* An average is of the ranks that are combined, and a factor is that of the rank whose elements it scales. */
static void averages_and_factors(void) {
    double x[2] = {rank, 2.0 * rank}, y[2] = {-1, -1}, factor = rank + 0.5, scaled = 0;
    OK(shmcclScan(x, y, 2, shmcclFloat64, shmcclAvg, comm, NULL));
    EXPECT(y[0] == rank / 2.0 && y[1] == rank);
    y[0] = -1;
    OK(shmcclExscan(x, y, 1, shmcclFloat64, shmcclAvg, comm, NULL));
    EXPECT(y[0] == (rank ? (rank - 1) / 2.0 : -1));
    shmcclRedOp_t by;
    OK(shmcclRedOpCreatePreMulSum(&by, &factor, shmcclFloat64));
    for (int r = 0; r < rank; r++) scaled += (r + 0.5) * r;
    y[0] = -1;
    OK(shmcclExscan(x, y, 1, shmcclFloat64, by, comm, NULL));
    EXPECT(y[0] == (rank ? scaled : -1));
    OK(shmcclScan(x, y, 1, shmcclFloat64, by, comm, NULL));
    EXPECT(y[0] == scaled + factor * rank);
    OK(shmcclRedOpDestroy(by));
}

/* The first rank of an exclusive prefix has no result, and needs no buffer for one. */
static void no_buffer_where_there_is_no_result(Pair at) {
    fill(at, COUNT);
    OK(shmcclExscan(at.send, rank ? at.recv : NULL, COUNT, shmcclInt32, shmcclSum, comm, NULL));
    expect(at.recv, COUNT, rank, -1);
    FAILS(shmcclInvalidArgument, "sendbuff is a null", shmcclExscan(NULL, at.recv, 1, shmcclInt32, shmcclSum, comm, NULL));
    FAILS(shmcclInvalidArgument, "sendbuff is a null", shmcclScan(NULL, at.recv, 1, shmcclInt32, shmcclSum, comm, NULL));
    FAILS(shmcclInvalidArgument, "recvbuff is a null", shmcclScan(at.send, NULL, 1, shmcclInt32, shmcclSum, comm, NULL));
    if (rank)
        FAILS(shmcclInvalidArgument, "recvbuff is a null",
              shmcclExscan(at.send, NULL, 1, shmcclInt32, shmcclSum, comm, NULL));
    RETURNS(shmcclInvalidArgument, shmcclScan(at.send, at.send + 1, 2, shmcclInt32, shmcclSum, comm, NULL));
    FAILS(shmcclUnsupported, "operator band is not defined on float",
          shmcclScan(at.send, at.recv, 1, shmcclFloat32, shmcclBitAnd, comm, NULL));
}

int main(void) {
    OK(shmcclCommInit(&comm));
    OK(shmcclCommCount(comm, &n));
    OK(shmcclCommUserRank(comm, &rank));
    size_t len = COUNT * sizeof(int32_t);
    Pair ordinary = {malloc(len), malloc(len)}, heap;
    OK(shmcclMemAlloc(comm, (void **)&heap.send, len));
    OK(shmcclMemAlloc(comm, (void **)&heap.recv, len));
    shmcclStream_t stream;
    OK(shmcclStreamCreate(&stream));
    Pair mixed = {ordinary.send, heap.recv}, mixed_again = {heap.send, ordinary.recv};
    Pair all[] = {ordinary, heap, mixed, mixed_again};
    for (size_t p = 0; p < sizeof all / sizeof *all; p++) {
        all_ways(all[p], NULL);
        all_ways(all[p], stream);
        no_buffer_where_there_is_no_result(all[p]);
    }
    averages_and_factors();
    OK(shmcclStreamDestroy(stream));
    free(ordinary.send);
    free(ordinary.recv);
    OK(shmcclMemFree(heap.send));
    OK(shmcclMemFree(heap.recv));
    OK(shmcclCommFinalize(comm));
    OK(shmcclCommDestroy(comm));
    return 0;
}
