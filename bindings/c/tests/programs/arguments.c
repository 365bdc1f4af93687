/* What is wrong in itself is an error that says so, and nothing else happens. Run as 2 ranks or more. */
#include "check.h"

int main(void) {
    shmcclComm_t comm, other;
    int rank, n, number;
    OK(shmcclGetVersion(&number));
    EXPECT(number >= 100);
    EXPECT(!strcmp(shmcclGetLastError(NULL), ""));
    OK(shmcclGetLastErrorRank(NULL, &number));
    EXPECT(number == -1);

    FAILS(shmcclInvalidArgument, "comm is a null pointer", shmcclCommInit(NULL));
    OK(shmcclCommInit(&comm));
    OK(shmcclCommCount(comm, &n));
    OK(shmcclCommUserRank(comm, &rank));

    /* Null pointers, handles that are none, ranks that are none. */
    FAILS(shmcclInvalidArgument, "count is a null pointer", shmcclCommCount(comm, NULL));
    FAILS(shmcclInvalidArgument, "comm is a null pointer", shmcclCommCount(NULL, &number));
    FAILS(shmcclInvalidArgument, "never made", shmcclCommCount((shmcclComm_t)&number, &number));
    FAILS(shmcclInvalidArgument, "never made", shmcclStreamSynchronize((shmcclStream_t)comm));
    FAILS(shmcclInvalidArgument, "version is a null pointer", shmcclGetVersion(NULL));
    FAILS(shmcclInvalidArgument, "uniqueId is a null pointer", shmcclGetUniqueId(NULL));
    FAILS(shmcclInvalidArgument, "does not exist", shmcclCommJobRank(comm, n, &number));
    FAILS(shmcclInvalidArgument, "rank is -1", shmcclCommJobRank(comm, -1, &number));
    FAILS(shmcclInvalidArgument, "newcomm is a null pointer", shmcclCommSplit(comm, 0, 0, NULL));
    FAILS(shmcclInvalidArgument, "color is -7", shmcclCommSplit(comm, -7, 0, &other));
    OK(shmcclCommDuplicate(comm, &other));
    OK(shmcclCommDestroy(other));
    FAILS(shmcclInvalidArgument, "it was freed", shmcclCommDestroy(other));
    FAILS(shmcclInvalidArgument, "it was freed", shmcclBarrier(other));
    FAILS(shmcclInvalidArgument, "it was freed", shmcclCommRevoke(other));

    /* Ids and options. */
    shmcclUniqueId id;
    memset(&id, 'x', sizeof id);
    FAILS(shmcclInvalidArgument, "unique id", shmcclCommInitRank(&other, 2, id, 0));
    OK(shmcclGetUniqueId(&id));
    FAILS(shmcclInvalidArgument, "does not exist", shmcclCommInitRank(&other, 2, id, 2));
    FAILS(shmcclInvalidArgument, "n_ranks is 0", shmcclCommInitRank(&other, 0, id, 0));
    FAILS(shmcclInvalidArgument, "comm is a null pointer", shmcclCommInitRank(NULL, 2, id, 0));
    shmcclConfig_t config = SHMCCL_CONFIG_INITIALIZER;
    config.size = 3;
    FAILS(shmcclInvalidArgument, "SHMCCL_CONFIG_INITIALIZER", shmcclCommInitRankConfig(&other, 1, id, 0, &config));
    FAILS(shmcclInvalidArgument, "n_ranks is 0", shmcclCommInitAll(&other, 0));
    FAILS(shmcclInvalidArgument, "n_ranks is 100000, expected from 1 to 256", shmcclCommInitAll(&other, 100000));
    FAILS(shmcclInvalidArgument, "comms is a null pointer", shmcclCommInitAll(NULL, 1));

    /* Calls. */
    float x[8] = {0}, y[8];
    FAILS(shmcclInvalidArgument, "sendbuff is a null", shmcclAllReduce(NULL, y, 1, shmcclFloat32, shmcclSum, comm, NULL));
    FAILS(shmcclInvalidArgument, "recvbuff is a null", shmcclAllReduce(x, NULL, 1, shmcclFloat32, shmcclSum, comm, NULL));
    FAILS(shmcclInvalidArgument, "datatype is 77",
          shmcclAllReduce(x, y, 1, (shmcclDataType_t)77, shmcclSum, comm, NULL));
    FAILS(shmcclInvalidArgument, "op is 77", shmcclAllReduce(x, y, 1, shmcclFloat32, (shmcclRedOp_t)77, comm, NULL));
    FAILS(shmcclUnsupported, "operator band is not defined on float; use sum, prod",
          shmcclAllReduce(x, y, 1, shmcclFloat32, shmcclBitAnd, comm, NULL));
    /* In place is the same buffer, or this rank's block; of another rank's, all are told. */
    const int next = (rank + 1) % n;
    FAILS(shmcclInvalidArgument, "overlap", shmcclAllGather(x + next, x, 1, shmcclFloat32, comm, NULL));
    FAILS(shmcclInvalidArgument, "overlap", shmcclReduceScatter(x, x + next, 1, shmcclFloat32, shmcclSum, comm, NULL));
    FAILS(shmcclInvalidArgument, "overlap", shmcclAlltoAll(x, x + 1, 1, shmcclFloat32, comm, NULL));
    FAILS(shmcclInvalidArgument, "overlap", shmcclAllReduce(x, x + 1, 2, shmcclFloat32, shmcclSum, comm, NULL));
    const size_t one_each[3] = {1, 1, 1}, forth[3] = {0, 1, 2}, back[3] = {2, 1, 0};
    FAILS(shmcclInvalidArgument, "overlap",
          shmcclAlltoAllv(x, one_each, forth, x, one_each, back, shmcclFloat32, comm, NULL));
    FAILS(shmcclInvalidArgument, "does not exist", shmcclBroadcast(x, y, 1, shmcclFloat32, n, comm, NULL));
    FAILS(shmcclInvalidArgument, "fit into memory", shmcclAllGather(x, y, (size_t)-1, shmcclFloat32, comm, NULL));
    FAILS(shmcclInvalidArgument, "past all memory", shmcclSend(x, (size_t)-1 / 4, shmcclFloat32, 0, comm, NULL));
    FAILS(shmcclInvalidArgument, "sendcounts is a null",
          shmcclAlltoAllv(x, NULL, NULL, y, NULL, NULL, shmcclFloat32, comm, NULL));
    FAILS(shmcclInvalidArgument, "rank is a null pointer", shmcclGetLastErrorRank(NULL, NULL));
    shmcclRedOp_t op;
    FAILS(shmcclInvalidArgument, "scalar is a null", shmcclRedOpCreatePreMulSum(&op, NULL, shmcclFloat32));

    /* Groups: an error within makes the end fail, and nothing is done. */
    FAILS(shmcclInvalidUsage, "without shmcclGroupStart", shmcclGroupEnd());
    OK(shmcclGroupStart());
    OK(shmcclAllReduce(x, y, 1, shmcclFloat32, shmcclSum, comm, NULL));
    FAILS(shmcclInvalidArgument, "recvbuff", shmcclAllReduce(x, NULL, 1, shmcclFloat32, shmcclSum, comm, NULL));
    FAILS(shmcclInvalidUsage, "in a group", shmcclBarrier(comm));
    FAILS(shmcclInvalidArgument, "recvbuff", shmcclGroupEnd());

    /* Memory and windows. */
    void *memory, *address;
    uint64_t offset;
    FAILS(shmcclInvalidArgument, "ptr is a null pointer", shmcclMemAlloc(comm, NULL, 1));
    FAILS(shmcclOutOfMemory, "larger heap (heapBytes of shmcclConfig_t", shmcclMemAlloc(comm, &memory, (size_t)1 << 40));
    EXPECT(memory == NULL);
    OK(shmcclMemAlloc(comm, &memory, 0));
    EXPECT(memory == NULL);
    FAILS(shmcclInvalidArgument, "nobody has freed", shmcclMemFree(x));
    OK(shmcclMemAlloc(comm, &memory, 64));
    OK(shmcclMemFree(memory));
    FAILS(shmcclInvalidArgument, "nobody has freed", shmcclMemFree(memory));
    FAILS(shmcclInvalidArgument, "reaches past", shmcclMemAddress(comm, 0, (uint64_t)1 << 50, 8, &address));
    FAILS(shmcclInvalidArgument, "rank is a null", shmcclMemLocate(comm, x, 4, NULL, &offset));
    FAILS(shmcclInvalidUsage, "no signals yet", shmcclSignal(0, 0, comm, NULL));
    shmcclWindow_t window;
    if (rank == 0) {
        FAILS(shmcclInvalidArgument, "shmcclMemAlloc", shmcclCommWindowRegister(comm, x, sizeof x, &window));
    } else {
        FAILS(shmcclRemoteError, "rank 0", shmcclCommWindowRegister(comm, NULL, 0, &window));
    }

    /* The table. */
    EXPECT(shmcclGetTable(SHMCCL_TABLE_VERSION) != NULL);
    EXPECT(shmcclGetTable(SHMCCL_TABLE_VERSION + 1) == NULL);
    EXPECT(strstr(shmcclGetLastError(NULL), "table version 2 was asked for"));
    EXPECT(strstr(shmcclGetLastError(NULL), "with version 1"));
    EXPECT(!strcmp(shmcclGetErrorString((shmcclResult_t)99), "no result of shmccl"));

    /* After all that, the communicator is as it was. */
    x[0] = 1;
    OK(shmcclAllReduce(x, y, 1, shmcclFloat32, shmcclSum, comm, NULL));
    EXPECT(y[0] == n);
    OK(shmcclCommFinalize(comm));
    OK(shmcclCommDestroy(comm));
    return 0;
}
