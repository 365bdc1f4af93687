/* shmccl: NCCL-style collectives and one-sided channels for processes on one Linux machine.
 *
 * Generated from bindings/c/src; docs/c.md tells how to begin. The shape is that of nccl.h.
 *
 * - Functions return a result; shmcclGetLastError has the text of the last failure of a thread.
 * - Ranks make the same collective calls of a communicator in the same order. Counts are elements.
 * - One thread at a time makes calls of a communicator; another one waits. Functions that end or
 *   observe it (revoke, abort, get async error) may be called at any time.
 * - Handles are checked, and so is every pointer that may not be NULL. Buffers are the caller's
 *   word. They may lie anywhere, at any alignment; memory of shmcclMemAlloc is moved without a copy.
 * - A failure while data move ends the epoch of the communicator, for all ranks.
 */

#ifndef SHMCCL_H
#define SHMCCL_H

#include <stddef.h>
#include <stdint.h>

/* The functions of this header: see its end. */
typedef struct shmcclTable shmcclTable;

/* Options that are all left to the library. */
#define SHMCCL_CONFIG_INITIALIZER {sizeof(shmcclConfig_t), 0, 0, 0}

/**
 * The color of a rank that gets no communicator from `shmcclCommSplit`.
 */
#define SHMCCL_SPLIT_NOCOLOR -1

/**
 * The rank of a receive from whichever rank sends first.
 */
#define SHMCCL_ANY_SOURCE -1

/**
 * How many signals a pair of ranks has in each direction, by their indices.
 */
#define SHMCCL_SIGNALS 16

/**
 * The version of `shmcclTable`. Functions that are added at its end leave it as it is, and make
 * `size` larger.
 */
#define SHMCCL_TABLE_VERSION 1

/**
 * What a function returns. `shmcclGetLastError` tells more, with values.
 */
typedef enum {
    /**
     * It was done, or enqueued.
     */
    shmcclSuccess = 0,
    /**
     * The operating system refused: see the text for the remedy.
     */
    shmcclSystemError = 2,
    /**
     * A bug of this library: please report the text.
     */
    shmcclInternalError = 3,
    /**
     * An argument has a value that the function cannot take. Nothing has changed.
     */
    shmcclInvalidArgument = 4,
    /**
     * The function cannot be called in this kind of job, or at this point of it.
     */
    shmcclInvalidUsage = 5,
    /**
     * Another rank failed in a call that succeeds on all ranks or on none.
     */
    shmcclRemoteError = 6,
    /**
     * Something is left to be done.
     */
    shmcclInProgress = 7,
    /**
     * The heap has no room: start with a larger one.
     */
    shmcclOutOfMemory = 8,
    /**
     * A table of fixed size is full.
     */
    shmcclExhausted = 9,
    /**
     * Ranks are in different calls, or in one call with different arguments.
     */
    shmcclMismatch = 10,
    /**
     * A wait passed its deadline although nobody died. `shmcclGetLastErrorRank` names the rank
     * that was awaited, where it is one.
     */
    shmcclTimeout = 11,
    /**
     * A rank died or left while it was needed. `shmcclGetLastErrorRank` names it.
     */
    shmcclPeerLost = 12,
    /**
     * The proxy that executes triggers was lost.
     */
    shmcclProxyLost = 13,
    /**
     * The epoch was ended by a rank (`shmcclGetLastErrorRank`), or by the launcher.
     */
    shmcclRevoked = 14,
    /**
     * The other ranks have given this one up.
     */
    shmcclExcluded = 15,
    /**
     * Ranks did not find each other under a unique id.
     */
    shmcclNoMeeting = 16,
    /**
     * Data were damaged on their way.
     */
    shmcclCorrupted = 17,
    /**
     * The operation exists, but not for this type, operator or algorithm.
     */
    shmcclUnsupported = 18,
    /**
     * A signal, or the program's own check, has ended the call.
     */
    shmcclInterrupted = 19,
} shmcclResult_t;

/**
 * The type of elements.
 */
typedef enum {
    /**
     * `int8_t`.
     */
    shmcclInt8 = 0,
    /**
     * `uint8_t`.
     */
    shmcclUint8 = 1,
    /**
     * `int32_t`.
     */
    shmcclInt32 = 2,
    /**
     * `uint32_t`.
     */
    shmcclUint32 = 3,
    /**
     * `int64_t`.
     */
    shmcclInt64 = 4,
    /**
     * `uint64_t`.
     */
    shmcclUint64 = 5,
    /**
     * IEEE 754 binary16.
     */
    shmcclFloat16 = 6,
    /**
     * The upper half of a `float`.
     */
    shmcclBfloat16 = 7,
    /**
     * `float`.
     */
    shmcclFloat32 = 8,
    /**
     * `double`.
     */
    shmcclFloat64 = 9,
    /**
     * 8 bits: sign, 4 of the exponent, 3 of the mantissa; no infinities.
     */
    shmcclFloat8e4m3 = 10,
    /**
     * 8 bits: sign, 5 of the exponent, 2 of the mantissa.
     */
    shmcclFloat8e5m2 = 11,
    /**
     * `int16_t`.
     */
    shmcclInt16 = 12,
    /**
     * `uint16_t`.
     */
    shmcclUint16 = 13,
    /**
     * `bool`: a byte, of which any value but 0 is true.
     */
    shmcclBool = 14,
    /**
     * Two `float`: the real part, then the imaginary one.
     */
    shmcclComplex64 = 15,
    /**
     * Two `double`: the real part, then the imaginary one.
     */
    shmcclComplex128 = 16,
} shmcclDataType_t;

/**
 * The operator of a reduction. Values past the last one are made by
 * `shmcclRedOpCreatePreMulSum`.
 */
typedef enum {
    /**
     * Adds.
     */
    shmcclSum = 0,
    /**
     * Multiplies.
     */
    shmcclProd = 1,
    /**
     * Takes the least.
     */
    shmcclMin = 2,
    /**
     * Takes the greatest.
     */
    shmcclMax = 3,
    /**
     * Adds, and divides by the number of ranks.
     */
    shmcclAvg = 4,
    /**
     * Keeps the bits that are set in all inputs; of integers and booleans.
     */
    shmcclBitAnd = 5,
    /**
     * Keeps the bits that are set in any input; of integers and booleans.
     */
    shmcclBitOr = 6,
    /**
     * Keeps the bits that are set in an odd number of inputs; of integers and booleans.
     */
    shmcclBitXor = 7,
    /**
     * No operator: makes the type wide enough.
     */
    shmcclMaxRedOp = 2147483647,
} shmcclRedOp_t;

/**
 * An operation, for `shmcclCall_t`.
 */
typedef enum {
    /**
     * `shmcclAllReduce`.
     */
    shmcclOpAllReduce = 0,
    /**
     * `shmcclReduce`.
     */
    shmcclOpReduce = 1,
    /**
     * `shmcclBroadcast`.
     */
    shmcclOpBroadcast = 2,
    /**
     * `shmcclAllGather`.
     */
    shmcclOpAllGather = 3,
    /**
     * `shmcclReduceScatter`.
     */
    shmcclOpReduceScatter = 4,
    /**
     * `shmcclAlltoAll`.
     */
    shmcclOpAlltoAll = 5,
    /**
     * `shmcclGather`.
     */
    shmcclOpGather = 6,
    /**
     * `shmcclScatter`.
     */
    shmcclOpScatter = 7,
    /**
     * `shmcclAlltoAllv`.
     */
    shmcclOpAlltoAllv = 8,
    /**
     * `shmcclSend`, with a tag.
     */
    shmcclOpSend = 9,
    /**
     * `shmcclRecv`, with a tag and from any rank.
     */
    shmcclOpRecv = 10,
    /**
     * `shmcclScan`.
     */
    shmcclOpScan = 11,
    /**
     * `shmcclExscan`.
     */
    shmcclOpExscan = 12,
} shmcclOperation_t;

/**
 * A communicator. It is no pointer that can be followed.
 */
typedef struct shmcclComm shmcclComm;

/**
 * An event: a mark in a stream.
 */
typedef struct shmcclEvent shmcclEvent;

/**
 * An operation that was started.
 */
typedef struct shmcclRequest shmcclRequest;

/**
 * A stream.
 */
typedef struct shmcclStream shmcclStream;

/**
 * A window: memory that all ranks of a communicator have registered for puts.
 */
typedef struct shmcclWindow shmcclWindow;

/**
 * The handle of a communicator. It is checked: one that was freed is an argument error.
 */
typedef shmcclComm *shmcclComm_t;

/**
 * The id of one meeting: `shmcclGetUniqueId` makes it, and the program hands its 128 bytes to the
 * other ranks in any way.
 */
typedef struct {
    /**
     * ASCII text, then zeros.
     */
    char internal[128];
} shmcclUniqueId;

/**
 * A process, as `shmcclGetProcess` names it. The program hands its 64 bytes to other ranks in any
 * way.
 */
typedef struct {
    /**
     * ASCII text, then zeros.
     */
    char internal[64];
} shmcclProcess_t;

/**
 * The options of a communicator. Begin with `SHMCCL_CONFIG_INITIALIZER`.
 */
typedef struct {
    /**
     * The size of this structure.
     */
    size_t size;
    /**
     * Length of each rank's heap in bytes, the same on all ranks; 0 for 256 MiB.
     */
    uint64_t heapBytes;
    /**
     * How long a wait may take, in milliseconds; 0 for a minute.
     */
    uint64_t timeoutMs;
    /**
     * The processes of all ranks in order, as `shmcclGetProcess` names them, or NULL. With them
     * the meeting fails for all as one of them ends, also before it has come.
     */
    const shmcclProcess_t *processes;
} shmcclConfig_t;

/**
 * The handle of a stream. Where a function takes one, NULL means: now, in the calling thread.
 */
typedef shmcclStream *shmcclStream_t;

/**
 * One call with all its arguments, for `shmcclSubmit`. What an operation does not use is not
 * looked at: begin with zeros.
 */
typedef struct {
    /**
     * The size of this structure.
     */
    size_t size;
    /**
     * Which operation.
     */
    shmcclOperation_t operation;
    /**
     * The type of elements.
     */
    shmcclDataType_t datatype;
    /**
     * The operator of a reduction.
     */
    shmcclRedOp_t op;
    /**
     * The root, or the peer of a message. `SHMCCL_ANY_SOURCE` receives from any rank.
     */
    int peer;
    /**
     * The tag of a message, not negative. A message is received by its tag.
     */
    int tag;
    /**
     * What is sent.
     */
    const void *sendbuff;
    /**
     * Where to receive.
     */
    void *recvbuff;
    /**
     * Elements, as the function of the operation counts them.
     */
    size_t count;
    /**
     * Elements of each block that is sent by `shmcclOpAlltoAllv`.
     */
    const size_t *sendcounts;
    /**
     * The first elements of these blocks.
     */
    const size_t *sdispls;
    /**
     * Elements of each block that is received.
     */
    const size_t *recvcounts;
    /**
     * The first elements of these blocks.
     */
    const size_t *rdispls;
    /**
     * One element by which this rank's input is multiplied before `shmcclSum`, or NULL. Of complex
     * types it is the real part alone.
     */
    const void *scalar;
} shmcclCall_t;

/**
 * What `shmcclSubmit` calls once when an operation has ended, in whatever thread ended it, before
 * any wait for it returns. It gets the `arg` of the call, the result, the text of a failure (empty
 * for success) and the rank that it names, as the communicator numbers it, or -1. It calls no
 * function of the same communicator.
 */
typedef void (*shmcclDone_t)(void*, shmcclResult_t, const char*, int);

/**
 * The handle of an operation that was started.
 */
typedef shmcclRequest *shmcclRequest_t;

/**
 * The handle of an event.
 */
typedef shmcclEvent *shmcclEvent_t;

/**
 * The handle of a window.
 */
typedef shmcclWindow *shmcclWindow_t;

/**
 * One kind of signals to wait for.
 */
typedef struct {
    /**
     * How many signals.
     */
    int opCnt;
    /**
     * The rank that sends the signals.
     */
    int peer;
    /**
     * The index of the signals, below `SHMCCL_SIGNALS`.
     */
    int sigIdx;
} shmcclWaitSignalDesc_t;

/**
 * What `shmcclSetInterruptCheck` takes: it returns something else than 0 to end the wait.
 */
typedef int (*shmcclInterruptCheck_t)(void);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns what a code means, in a few words. The text lives as long as the program.
 */
const char *shmcclGetErrorString(shmcclResult_t result);

/**
 * Returns the text of the last failure of the calling thread, with its values and, where there is
 * one, the remedy. The text is empty before the first failure, and is overwritten by the next
 * failure of this thread. `comm` may be NULL: the text is the thread's, whatever it belongs to.
 */
const char *shmcclGetLastError(shmcclComm_t comm);

/**
 * Stores the rank that the last failure of the calling thread names, or -1 where it names none:
 * the one that was lost, awaited, or has failed. It is numbered as `comm` numbers its ranks, with
 * -1 for a rank that is not in `comm`. With NULL it is numbered as the job does.
 */
shmcclResult_t shmcclGetLastErrorRank(shmcclComm_t comm, int *rank);

/**
 * Makes a unique id, and begins to host its meeting in a thread of this process. The process must
 * not end before all ranks have met, and need not be a rank itself. An id that no rank uses within
 * an hour is used up.
 */
shmcclResult_t shmcclGetUniqueId(shmcclUniqueId *uniqueId);

/**
 * Joins the job that `shmccl run -n N -- PROGRAM` has started this process for. All ranks call it.
 *
 * `shmcclInvalidUsage`: no launcher has started this process.
 */
shmcclResult_t shmcclCommInit(shmcclComm_t *comm);

/**
 * Meets the other ranks under `commId`, and makes a communicator of `nranks` ranks, this one being
 * `rank`. It returns when all have come. In a group it is done by `shmcclGroupEnd`, and `comm` has
 * to stay where it is until then: so one thread can be several ranks.
 *
 * `shmcclNoMeeting`, `shmcclTimeout`, `shmcclPeerLost`: the ranks have not come together, and the
 * id is used up.
 *
 * Duties of the caller:
 * `comm` is NULL, or a communicator handle can be written there.
 */
shmcclResult_t shmcclCommInitRank(shmcclComm_t *comm, int nranks, shmcclUniqueId commId, int rank);

/**
 * Does `shmcclCommInitRank` with options. `config` may be NULL.
 *
 * Duties of the caller:
 * `comm` is NULL, or a communicator handle can be written there. `processes` of `config` is NULL,
 * or leads to `nranks` of them.
 */
shmcclResult_t shmcclCommInitRankConfig(shmcclComm_t *comm,
                                        int nranks,
                                        shmcclUniqueId commId,
                                        int rank,
                                        const shmcclConfig_t *config);

/**
 * Stores a name of the calling process. It tells every other process of this machine and user
 * whether that one has ended: see `processes` of `shmcclConfig_t`.
 */
shmcclResult_t shmcclGetProcess(shmcclProcess_t *process);

/**
 * Makes all `nranks` communicators of a job in this process. Rank i is `comms[i]`.
 *
 * Calls of different ranks wait for each other. So each rank has a thread of its own, or one
 * thread makes the calls of all within `shmcclGroupStart` and `shmcclGroupEnd`, or on a stream for
 * each rank.
 *
 * Duties of the caller:
 * `comms` is NULL, or `nranks` communicator handles can be written there.
 */
shmcclResult_t shmcclCommInitAll(shmcclComm_t *comms, int nranks);

/**
 * Stores the number of ranks.
 */
shmcclResult_t shmcclCommCount(shmcclComm_t comm, int *count);

/**
 * Stores the rank of the caller.
 */
shmcclResult_t shmcclCommUserRank(shmcclComm_t comm, int *rank);

/**
 * Stores the number that the job has for `rank` of the communicator. Texts of errors name ranks
 * so.
 */
shmcclResult_t shmcclCommJobRank(shmcclComm_t comm, int rank, int *jobRank);

/**
 * Divides the communicator: ranks of one `color` come together in a new one, in the order of
 * `key`, then of their ranks. `SHMCCL_SPLIT_NOCOLOR` takes part, and gets NULL. All ranks call it.
 * The new communicator and the old one are independent of each other.
 */
shmcclResult_t shmcclCommSplit(shmcclComm_t comm, int color, int key, shmcclComm_t *newcomm);

/**
 * Makes another communicator of the same ranks, with calls independent of this one's. All ranks
 * call it.
 */
shmcclResult_t shmcclCommDuplicate(shmcclComm_t comm, shmcclComm_t *newcomm);

/**
 * Goes on without the lost ranks, once a call has failed with `shmcclPeerLost` or another error
 * that ended the epoch. All ranks that are left call it, on the job's first communicator.
 *
 * Ranks of `excludeRanksList` are given up first, whether they live or not. `lost` and `nLost` may
 * be NULL; otherwise `lost` has room for `shmcclCommCount` ranks, and gets those of `comm` that
 * are not in `newcomm`. Memory and windows of the old communicator do not belong to the new one.
 * Destroy the old one.
 *
 * `shmcclExcluded`: the others have given this rank up. `shmcclTimeout` names a rank that has not
 * called it; the call can be repeated.
 *
 * Duties of the caller:
 * `excludeRanksList` holds `excludeRanksCount` numbers; `lost` is NULL, or has room as described.
 */
shmcclResult_t shmcclCommShrink(shmcclComm_t comm,
                                const int *excludeRanksList,
                                int excludeRanksCount,
                                shmcclComm_t *newcomm,
                                int *lost,
                                int *nLost);

/**
 * Comes together with joining processes in a new communicator of `nranks` ranks. All ranks call
 * it. One rank at least passes the id of the meeting, and the others may pass NULL. The joining
 * processes call `shmcclCommJoin`. Ranks keep their numbers.
 */
shmcclResult_t shmcclCommGrow(shmcclComm_t comm,
                              int nranks,
                              const shmcclUniqueId *uniqueId,
                              shmcclComm_t *newcomm);

/**
 * Joins the ranks of a communicator that grow under `uniqueId`, as one of the ranks behind theirs.
 */
shmcclResult_t shmcclCommJoin(const shmcclUniqueId *uniqueId, shmcclComm_t *newcomm);

/**
 * Ends the epoch of the communicator for all ranks: every wait returns `shmcclRevoked` within
 * milliseconds. Any thread may call it, also while another one is in a call. The handle stays.
 */
shmcclResult_t shmcclCommRevoke(shmcclComm_t comm);

/**
 * Does `shmcclCommRevoke` because the caller has waited for `rank` of `comm` for longer than it
 * would: the other ranks read so. With -1 nobody in particular was awaited.
 */
shmcclResult_t shmcclCommRevokeAwaiting(shmcclComm_t comm, int rank);

/**
 * Stores which ranks of `comm` hold the others up: they are awaited, and wait for nobody. `ranks`
 * has room for all ranks of `comm`; `count` says how many it is. Any thread may call it, also
 * while another one waits.
 *
 * Duties of the caller:
 * `ranks` is NULL, or as many numbers as `comm` has ranks can be written there.
 */
shmcclResult_t shmcclCommGetStragglers(shmcclComm_t comm, int *ranks, int *count);

/**
 * Does `shmcclCommRevoke`, and destroys the communicator. A call of another thread returns first.
 */
shmcclResult_t shmcclCommAbort(shmcclComm_t comm);

/**
 * Waits until all ranks have called it and have done their enqueued calls, and leaves. The handle
 * is good for `shmcclCommDestroy` only. The ranks of one process call it in threads.
 */
shmcclResult_t shmcclCommFinalize(shmcclComm_t comm);

/**
 * Leaves the communicator, once its enqueued calls are done, and frees the handle. It waits for no
 * other rank. A rank that still needs this one gets `shmcclPeerLost`: where ranks may be at
 * different points, all call `shmcclCommFinalize` before.
 */
shmcclResult_t shmcclCommDestroy(shmcclComm_t comm);

/**
 * Stores why the epoch of the communicator has ended, or `shmcclSuccess` if it has not. Every call
 * returns that code from then on. It waits for nobody, and any thread may call it. The reason is
 * the thread's last failure as well: `shmcclGetLastError`, `shmcclGetLastErrorRank`.
 */
shmcclResult_t shmcclCommGetAsyncError(shmcclComm_t comm, shmcclResult_t *asyncError);

/**
 * Gives every wait that begins from now on `timeoutMs` milliseconds, which is not 0. It concerns
 * all communicators of this rank in the job, and no other rank.
 */
shmcclResult_t shmcclCommSetTimeout(shmcclComm_t comm, uint64_t timeoutMs);

/**
 * Stores how many bytes of this rank's inputs its calls have copied to where other ranks read
 * them, through all communicators of the job.
 *
 * Calls whose buffers are memory of `shmcclMemAlloc` on all ranks copy none, but for an all-reduce
 * out of place that was measured to be quicker so. What a small call carries with itself is not
 * counted.
 */
shmcclResult_t shmcclCommStagedBytes(shmcclComm_t comm, uint64_t *bytes);

/**
 * Combines `count` elements of all ranks, element by element, into the `recvbuff` of each. The
 * result is the same bits on every rank. In place: `sendbuff == recvbuff`.
 *
 * Duties of the caller:
 * The buffers are the call's until it is done, and as long as described.
 */
shmcclResult_t shmcclAllReduce(const void *sendbuff,
                               void *recvbuff,
                               size_t count,
                               shmcclDataType_t datatype,
                               shmcclRedOp_t op,
                               shmcclComm_t comm,
                               shmcclStream_t stream);

/**
 * Combines `count` elements of all ranks into the `recvbuff` of `root`. Other ranks may pass NULL
 * for it. In place: `sendbuff == recvbuff` on the root.
 *
 * Duties of the caller:
 * The buffers are the call's until it is done, and as long as described.
 */
shmcclResult_t shmcclReduce(const void *sendbuff,
                            void *recvbuff,
                            size_t count,
                            shmcclDataType_t datatype,
                            shmcclRedOp_t op,
                            int root,
                            shmcclComm_t comm,
                            shmcclStream_t stream);

/**
 * Copies `count` elements of the root to the `recvbuff` of every rank. Other ranks may pass NULL
 * for `sendbuff`. In place: `sendbuff == recvbuff` on the root.
 *
 * Duties of the caller:
 * The buffers are the call's until it is done, and as long as described.
 */
shmcclResult_t shmcclBroadcast(const void *sendbuff,
                               void *recvbuff,
                               size_t count,
                               shmcclDataType_t datatype,
                               int root,
                               shmcclComm_t comm,
                               shmcclStream_t stream);

/**
 * Collects `sendcount` elements of each rank, in the order of the ranks, in the `recvbuff` of all.
 * In place: `sendbuff` is this rank's block of `recvbuff`.
 *
 * Duties of the caller:
 * The buffers are the call's until it is done, and as long as described.
 */
shmcclResult_t shmcclAllGather(const void *sendbuff,
                               void *recvbuff,
                               size_t sendcount,
                               shmcclDataType_t datatype,
                               shmcclComm_t comm,
                               shmcclStream_t stream);

/**
 * Combines blocks of `recvcount` elements for each rank, and leaves block r of the result to rank
 * r. In place: `recvbuff` is this rank's block of `sendbuff`.
 *
 * Duties of the caller:
 * The buffers are the call's until it is done, and as long as described.
 */
shmcclResult_t shmcclReduceScatter(const void *sendbuff,
                                   void *recvbuff,
                                   size_t recvcount,
                                   shmcclDataType_t datatype,
                                   shmcclRedOp_t op,
                                   shmcclComm_t comm,
                                   shmcclStream_t stream);

/**
 * Combines `count` elements of all ranks up to this one, element by element, into the `recvbuff`.
 * An average divides by the number of these ranks. In place: `sendbuff == recvbuff`.
 *
 * Duties of the caller:
 * The buffers are the call's until it is done, and as long as described.
 */
shmcclResult_t shmcclScan(const void *sendbuff,
                          void *recvbuff,
                          size_t count,
                          shmcclDataType_t datatype,
                          shmcclRedOp_t op,
                          shmcclComm_t comm,
                          shmcclStream_t stream);

/**
 * Combines `count` elements of all ranks before this one, element by element, into the `recvbuff`.
 * The first rank receives nothing, and may pass NULL for it. In place: `sendbuff == recvbuff`.
 *
 * Duties of the caller:
 * The buffers are the call's until it is done, and as long as described.
 */
shmcclResult_t shmcclExscan(const void *sendbuff,
                            void *recvbuff,
                            size_t count,
                            shmcclDataType_t datatype,
                            shmcclRedOp_t op,
                            shmcclComm_t comm,
                            shmcclStream_t stream);

/**
 * Sends block r of `sendbuff` to rank r, and collects the blocks from all ranks in order. A block
 * has `count` elements. In place: `sendbuff == recvbuff`.
 *
 * Duties of the caller:
 * The buffers are the call's until it is done, and as long as described.
 */
shmcclResult_t shmcclAlltoAll(const void *sendbuff,
                              void *recvbuff,
                              size_t count,
                              shmcclDataType_t datatype,
                              shmcclComm_t comm,
                              shmcclStream_t stream);

/**
 * Collects `count` elements of each rank, in the order of the ranks, in the `recvbuff` of `root`.
 * Other ranks may pass NULL for it. In place: on the root, `sendbuff` is its block of `recvbuff`.
 *
 * Duties of the caller:
 * The buffers are the call's until it is done, and as long as described.
 */
shmcclResult_t shmcclGather(const void *sendbuff,
                            void *recvbuff,
                            size_t count,
                            shmcclDataType_t datatype,
                            int root,
                            shmcclComm_t comm,
                            shmcclStream_t stream);

/**
 * Sends block r of the root's `sendbuff`, `count` elements, to rank r. Other ranks may pass NULL
 * for `sendbuff`. In place: on the root, `recvbuff` is its block of `sendbuff`.
 *
 * Duties of the caller:
 * The buffers are the call's until it is done, and as long as described.
 */
shmcclResult_t shmcclScatter(const void *sendbuff,
                             void *recvbuff,
                             size_t count,
                             shmcclDataType_t datatype,
                             int root,
                             shmcclComm_t comm,
                             shmcclStream_t stream);

/**
 * Sends a block to each rank and collects a block from each: block r of what is sent goes to rank
 * r. Counts and displacements are elements, one number for each rank, and are read now. Blocks may
 * be empty. Blocks that are received overlap no other. In place: equal buffers and equal blocks;
 * the block from a rank replaces the one that goes to it.
 *
 * Duties of the caller:
 * The buffers are the call's until it is done, and as long as described.
 */
shmcclResult_t shmcclAlltoAllv(const void *sendbuff,
                               const size_t *sendcounts,
                               const size_t *sdispls,
                               void *recvbuff,
                               const size_t *recvcounts,
                               const size_t *rdispls,
                               shmcclDataType_t datatype,
                               shmcclComm_t comm,
                               shmcclStream_t stream);

/**
 * Sends `count` elements to `peer`, which receives as many of the same type. It returns when
 * `sendbuff` may be written again, which may be before the peer has received. Two ranks that send
 * to each other put both calls of each into a group.
 *
 * Duties of the caller:
 * The buffers are the call's until it is done, and as long as described.
 */
shmcclResult_t shmcclSend(const void *sendbuff,
                          size_t count,
                          shmcclDataType_t datatype,
                          int peer,
                          shmcclComm_t comm,
                          shmcclStream_t stream);

/**
 * Receives `count` elements of `peer`, in the order in which it has sent them.
 *
 * Duties of the caller:
 * The buffers are the call's until it is done, and as long as described.
 */
shmcclResult_t shmcclRecv(void *recvbuff,
                          size_t count,
                          shmcclDataType_t datatype,
                          int peer,
                          shmcclComm_t comm,
                          shmcclStream_t stream);

/**
 * Returns when all ranks have called it, now, behind all enqueued calls of the communicator. What
 * any of them did before is visible.
 */
shmcclResult_t shmcclBarrier(shmcclComm_t comm);

/**
 * Starts `ncalls` calls as one operation, several as in a group, and returns at once. Nothing
 * waits in the calling thread. `shmcclRequestWait` or `shmcclRequestTest` says when it is done,
 * and `done`, if it is not NULL, is called then. Buffers belong to the operation until it is done.
 *
 * With NULL for `request` the operation is done when the function returns. Its result is returned,
 * and `done` is called before.
 *
 * Operations of a communicator are done in order. Started messages progress together, but stand
 * behind collective calls that were started before. So messages that must not wait for these have
 * a communicator of their own (`shmcclCommDuplicate`).
 *
 * A failure of this function that has a `request` to fill has started nothing, and `done` is not
 * called.
 *
 * Duties of the caller:
 * `calls` leads to `ncalls` calls. Their buffers are the operation's until it is done. `done` may
 * be called with `arg` in any thread.
 */
shmcclResult_t shmcclSubmit(shmcclComm_t comm,
                            const shmcclCall_t *calls,
                            size_t ncalls,
                            shmcclDone_t done,
                            void *arg,
                            shmcclRequest_t *request);

/**
 * Says whether an operation is done, and lets messages progress. It does not wait. For one that
 * has failed it stores 1 and returns the failure.
 */
shmcclResult_t shmcclRequestTest(shmcclRequest_t request, int *isDone);

/**
 * Waits until an operation is done, and returns its result. It runs in the calling thread what no
 * other one has begun. With 0 for `timeoutMs` the deadline is the operation's own. Otherwise
 * `shmcclInProgress` says that it is not done after so many milliseconds; it goes on.
 */
shmcclResult_t shmcclRequestWait(shmcclRequest_t request, uint64_t timeoutMs);

/**
 * Stores the rank that has sent the message of a receive from `SHMCCL_ANY_SOURCE`, which is done.
 */
shmcclResult_t shmcclRequestSource(shmcclRequest_t request, int *rank);

/**
 * Frees the handle of an operation. One that is not done goes on, and keeps its buffers until
 * then.
 */
shmcclResult_t shmcclRequestFree(shmcclRequest_t request);

/**
 * Makes an operator that multiplies the input of this rank by `scalar`, and adds. Each rank has a
 * scalar of its own. `scalar` leads to one element of `datatype`, which is read now; of complex
 * types it is the real part alone.
 *
 * Duties of the caller:
 * `scalar` is NULL, or leads to one element.
 */
shmcclResult_t shmcclRedOpCreatePreMulSum(shmcclRedOp_t *op,
                                          const void *scalar,
                                          shmcclDataType_t datatype);

/**
 * Frees an operator. Calls that were made with it are not concerned.
 */
shmcclResult_t shmcclRedOpDestroy(shmcclRedOp_t op);

/**
 * Starts a group of calls of this thread. Groups may be nested: the outermost end counts.
 */
shmcclResult_t shmcclGroupStart(void);

/**
 * Ends a group. The outermost end does all its calls: collective calls in the order in which they
 * were put in, then all messages at once, so that no order of them blocks. Calls without a stream
 * are done when it returns, and others are enqueued. The calls of one rank name the same stream,
 * or none.
 *
 * Collective calls of one communicator that share memory behave as one after the other. A message
 * that was put in before a collective call, and a call of another communicator, share no memory
 * with it that one of both writes: `shmcclInvalidArgument`, and nothing is done.
 *
 * Calls of several ranks of this process may be in one group: each rank has a thread meanwhile,
 * unless it names a stream.
 *
 * Where a call of the group has failed, the end returns that failure and does nothing.
 */
shmcclResult_t shmcclGroupEnd(void);

/**
 * Makes a stream. Any thread may enqueue calls of any communicator there. Each stream has a
 * thread, which sleeps when there is nothing to do.
 *
 * Buffers of an enqueued call belong to it until the stream was synchronised. The first call that
 * fails is the last one that is done: from then on every use of the stream returns that failure.
 */
shmcclResult_t shmcclStreamCreate(shmcclStream_t *stream);

/**
 * Waits until everything enqueued is done, and frees the stream. Failures of enqueued calls are
 * told by `shmcclStreamSynchronize`.
 */
shmcclResult_t shmcclStreamDestroy(shmcclStream_t stream);

/**
 * Waits until everything is done that was enqueued by now. What it has written is visible then.
 * NULL has nothing to wait for. It returns the failure of an enqueued call.
 */
shmcclResult_t shmcclStreamSynchronize(shmcclStream_t stream);

/**
 * Says whether everything enqueued is done: `shmcclSuccess`, `shmcclInProgress`, or the failure of
 * an enqueued call.
 */
shmcclResult_t shmcclStreamQuery(shmcclStream_t stream);

/**
 * Makes an event, which no stream has recorded yet.
 */
shmcclResult_t shmcclEventCreate(shmcclEvent_t *event);

/**
 * Frees an event. Streams that wait for it are not concerned.
 */
shmcclResult_t shmcclEventDestroy(shmcclEvent_t event);

/**
 * Records an event in a stream: it is reached when everything is done that was enqueued there
 * before. It may be recorded again, and stands for the latest record then.
 */
shmcclResult_t shmcclEventRecord(shmcclEvent_t event, shmcclStream_t stream);

/**
 * Lets later calls of a stream wait until an event is reached as it was recorded last. An event
 * that was never recorded keeps nobody waiting.
 */
shmcclResult_t shmcclStreamWaitEvent(shmcclStream_t stream, shmcclEvent_t event);

/**
 * Says whether an event is reached: `shmcclSuccess`, `shmcclInProgress`, or the failure of a call
 * before it.
 */
shmcclResult_t shmcclEventQuery(shmcclEvent_t event);

/**
 * Waits until an event is reached. What was done before it is visible then.
 */
shmcclResult_t shmcclEventSynchronize(shmcclEvent_t event);

/**
 * Stores the milliseconds from reaching `start` to reaching `end`, or 0 where that came first.
 *
 * `shmcclInvalidUsage`: one of the two is not reached, or no stream has recorded it.
 */
shmcclResult_t shmcclEventElapsedTime(float *ms, shmcclEvent_t start, shmcclEvent_t end);

/**
 * Allocates `size` bytes of this rank's heap, aligned to 64 bytes at least. Other ranks are not
 * concerned. Calls move heap memory without staging it, and windows consist of it. Every function
 * recognises it by its address. Zero bytes are NULL.
 *
 * `shmcclOutOfMemory`: the heap is full; ordinary memory serves as well, but slower.
 */
shmcclResult_t shmcclMemAlloc(shmcclComm_t comm, void **ptr, size_t size);

/**
 * Frees what `shmcclMemAlloc` has returned, from any thread, also when the communicator was
 * destroyed. NULL is legal. No rank may use the memory any more.
 */
shmcclResult_t shmcclMemFree(void *ptr);

/**
 * Stores which rank's heap holds `size` bytes at `ptr`, and where; -1 for ordinary memory and for
 * heaps of other jobs. The heap of a rank is mapped by all ranks of its job.
 */
shmcclResult_t shmcclMemLocate(shmcclComm_t comm,
                               const void *ptr,
                               size_t size,
                               int *rank,
                               uint64_t *offset);

/**
 * Stores the address, in this process, of `size` bytes at `offset` of the heap of `rank`. They can
 * be read and written there as long as a communicator of the job is not destroyed. Nothing orders
 * such accesses but calls and signals.
 */
shmcclResult_t shmcclMemAddress(shmcclComm_t comm,
                                int rank,
                                uint64_t offset,
                                size_t size,
                                void **ptr);

/**
 * Makes the static objects of the program symmetric memory, if a launcher has started it as a
 * rank. `SHMCCL_STATICS` in the environment says otherwise: 0 never, 1 always. The first call
 * decides, for the whole process. In place of a call, programs put `SHMCCL_SYMMETRIC_STATICS` at
 * file scope.
 *
 * Other threads are a reason to refuse, but with 1.
 *
 * Duties of the caller:
 * No other thread writes to static objects of the program meanwhile: it would be lost.
 */
shmcclResult_t shmcclMapStatics(void);

/**
 * Returns where `peer` has what lies at `address` of this rank: a static object, or memory that
 * all ranks have allocated together. It can be read and written there as long as a communicator of
 * the job is not destroyed. Nothing orders such accesses but calls and signals. For any other
 * address, and where there is no such peer, it returns NULL, and `shmcclGetLastError` names what
 * lies there. Memory of `shmcclMemAlloc` is this rank's alone: `shmcclMemLocate` says where it is.
 */
void *shmcclPtr(shmcclComm_t comm, const void *address, int peer);

/**
 * Makes `size` bytes of heap memory at `buff` the part of this rank in a window. All ranks call
 * it, each with a size of its own, which may be zero. Memory that belongs to a window is freed
 * after the window.
 *
 * `shmcclRemoteError`: another rank could not, and no rank has the window.
 */
shmcclResult_t shmcclCommWindowRegister(shmcclComm_t comm,
                                        void *buff,
                                        size_t size,
                                        shmcclWindow_t *win);

/**
 * Takes a window back when all ranks have called it. Its memory stays allocated.
 */
shmcclResult_t shmcclCommWindowDeregister(shmcclComm_t comm, shmcclWindow_t win);

/**
 * Stores the address, in this process, of the part of `peer` in the window, and its length. It can
 * be read and written there until the window is taken back. Only signals and calls order that.
 */
shmcclResult_t shmcclWindowAddress(shmcclComm_t comm,
                                   shmcclWindow_t win,
                                   int peer,
                                   void **ptr,
                                   size_t *size);

/**
 * Copies `count` elements at `localbuff` to `peerWinOffset` bytes into the part of `peer` in the
 * window, then signals `peer`. What this rank has put there before comes before the signal.
 * `localbuff` may be written again when the function, or the stream, has done it.
 *
 * Duties of the caller:
 * `count` elements at `localbuff` can be read until it is done.
 */
shmcclResult_t shmcclPutSignal(const void *localbuff,
                               size_t count,
                               shmcclDataType_t datatype,
                               int peer,
                               shmcclWindow_t win,
                               size_t peerWinOffset,
                               int sigIdx,
                               shmcclComm_t comm,
                               shmcclStream_t stream);

/**
 * Signals `peer`, which then sees what this rank has put to it before.
 */
shmcclResult_t shmcclSignal(int peer, int sigIdx, shmcclComm_t comm, shmcclStream_t stream);

/**
 * Waits until every rank of `signalDescs` has signalled as often as it says, and takes these
 * signals. What the ranks have put before them is there then. One thread at a time waits for a
 * rank and index.
 *
 * Duties of the caller:
 * `signalDescs` leads to `nDesc` descriptions.
 */
shmcclResult_t shmcclWaitSignal(int nDesc,
                                const shmcclWaitSignalDesc_t *signalDescs,
                                shmcclComm_t comm,
                                shmcclStream_t stream);

/**
 * Has every long wait of the library ask `check` whether to end: every 50 ms, in the thread whose
 * function waits. Threads of the library ask nobody. NULL asks no more.
 *
 * A function that is ended so returns `shmcclInterrupted`. A call that moves data of all ranks
 * then ends the epoch for all of them. An operation that was started goes on. The check may use
 * another language's interpreter, but no function of this library.
 *
 * Duties of the caller:
 * `check` can be called from any thread that calls a function of this library, until another one
 * is set and these functions have returned.
 */
shmcclResult_t shmcclSetInterruptCheck(shmcclInterruptCheck_t check);

/**
 * Brings back the lost ranks, which `shmccl run --restart` starts again, once a call has failed.
 * All ranks that are left call it, on the job's first communicator. A restarted rank calls
 * `shmcclCommInit`.
 *
 * Each rank passes the number of its last `completed` step, and goes on behind the least of them:
 * `shmcclCommGetRecovery`. Ranks keep their numbers. Memory and windows of the old communicator do
 * not belong to the new one. Destroy the old one.
 *
 * `shmcclInvalidUsage`: nobody starts ranks again, or not this one. `shmcclTimeout` names a rank
 * that has not come; the call can be repeated.
 */
shmcclResult_t shmcclCommRecover(shmcclComm_t comm, uint64_t completed, shmcclComm_t *newcomm);

/**
 * Stores whether this process replaces a rank that has died, and the step that all survivors of
 * the latest recovery had completed. Both are 0 where there was none.
 */
shmcclResult_t shmcclCommGetRecovery(shmcclComm_t comm, int *wasRestarted, uint64_t *completed);

/**
 * Does the calls that an MSCCL++ execution plan fits by that plan from now on, in the JSON file
 * `path`. Collective: all ranks register the same plan.
 *
 * Calls that it does not fit are done as before. A plan of another number of ranks is
 * `shmcclInvalidArgument`.
 */
shmcclResult_t shmcclCommRegisterPlan(shmcclComm_t comm, const char *path);

/**
 * Removes the first plan called `name` that was registered. Collective.
 */
shmcclResult_t shmcclCommDeregisterPlan(shmcclComm_t comm, const char *name);

/**
 * Stores how many calls the first plan called `name` has begun that is registered, or
 * `UINT64_MAX` where there is none.
 */
shmcclResult_t shmcclCommPlannedCalls(shmcclComm_t comm, const char *name, uint64_t *calls);

/**
 * Does what the first plan called `plan` does that is registered, if that is a sendrecv: each rank
 * sends `count` elements, and gets those of the rank that the plan has for it. Plans of other
 * collectives do the calls of these. In place: `sendbuff == recvbuff`.
 *
 * Duties of the caller:
 * The buffers are the call's until it is done, and as long as described.
 */
shmcclResult_t shmcclRunPlan(const char *plan,
                             const void *sendbuff,
                             void *recvbuff,
                             size_t count,
                             shmcclDataType_t datatype,
                             shmcclComm_t comm,
                             shmcclStream_t stream);

/**
 * Returns the table of functions of this version, which lives as long as the program. For another
 * version it returns NULL, and `shmcclGetLastError` names both.
 */
const shmcclTable *shmcclGetTable(uint32_t version);

/**
 * Stores the version of the library: 10000 times the major number, 100 times the minor one, and
 * the patch.
 */
shmcclResult_t shmcclGetVersion(int *version);

/**
 * The functions of this header, for programs that do not link to the library: see
 * shmcclGetTable. Members are only ever added at the end.
 */
struct shmcclTable {
    /* sizeof(shmcclTable) in the library, which may be newer than this header. */
    uint32_t size;
    /* SHMCCL_TABLE_VERSION */
    uint32_t version;
    shmcclResult_t (*GetVersion)(int *version);
    const char *(*GetErrorString)(shmcclResult_t result);
    const char *(*GetLastError)(shmcclComm_t comm);
    shmcclResult_t (*GetLastErrorRank)(shmcclComm_t comm, int *rank);
    shmcclResult_t (*GetUniqueId)(shmcclUniqueId *uniqueId);
    shmcclResult_t (*CommInit)(shmcclComm_t *comm);
    shmcclResult_t (*CommInitRank)(shmcclComm_t *comm, int nranks, shmcclUniqueId commId, int rank);
    shmcclResult_t (*CommInitRankConfig)(shmcclComm_t *comm, int nranks, shmcclUniqueId commId, int rank, const shmcclConfig_t *config);
    shmcclResult_t (*CommInitAll)(shmcclComm_t *comms, int nranks);
    shmcclResult_t (*CommCount)(shmcclComm_t comm, int *count);
    shmcclResult_t (*CommUserRank)(shmcclComm_t comm, int *rank);
    shmcclResult_t (*CommJobRank)(shmcclComm_t comm, int rank, int *jobRank);
    shmcclResult_t (*CommSplit)(shmcclComm_t comm, int color, int key, shmcclComm_t *newcomm);
    shmcclResult_t (*CommDuplicate)(shmcclComm_t comm, shmcclComm_t *newcomm);
    shmcclResult_t (*CommShrink)(shmcclComm_t comm, const int *excludeRanksList, int excludeRanksCount, shmcclComm_t *newcomm, int *lost, int *nLost);
    shmcclResult_t (*CommGrow)(shmcclComm_t comm, int nranks, const shmcclUniqueId *uniqueId, shmcclComm_t *newcomm);
    shmcclResult_t (*CommJoin)(const shmcclUniqueId *uniqueId, shmcclComm_t *newcomm);
    shmcclResult_t (*CommRevoke)(shmcclComm_t comm);
    shmcclResult_t (*CommAbort)(shmcclComm_t comm);
    shmcclResult_t (*CommFinalize)(shmcclComm_t comm);
    shmcclResult_t (*CommDestroy)(shmcclComm_t comm);
    shmcclResult_t (*CommGetAsyncError)(shmcclComm_t comm, shmcclResult_t *asyncError);
    shmcclResult_t (*AllReduce)(const void *sendbuff, void *recvbuff, size_t count, shmcclDataType_t datatype, shmcclRedOp_t op, shmcclComm_t comm, shmcclStream_t stream);
    shmcclResult_t (*Reduce)(const void *sendbuff, void *recvbuff, size_t count, shmcclDataType_t datatype, shmcclRedOp_t op, int root, shmcclComm_t comm, shmcclStream_t stream);
    shmcclResult_t (*Broadcast)(const void *sendbuff, void *recvbuff, size_t count, shmcclDataType_t datatype, int root, shmcclComm_t comm, shmcclStream_t stream);
    shmcclResult_t (*AllGather)(const void *sendbuff, void *recvbuff, size_t sendcount, shmcclDataType_t datatype, shmcclComm_t comm, shmcclStream_t stream);
    shmcclResult_t (*ReduceScatter)(const void *sendbuff, void *recvbuff, size_t recvcount, shmcclDataType_t datatype, shmcclRedOp_t op, shmcclComm_t comm, shmcclStream_t stream);
    shmcclResult_t (*AlltoAll)(const void *sendbuff, void *recvbuff, size_t count, shmcclDataType_t datatype, shmcclComm_t comm, shmcclStream_t stream);
    shmcclResult_t (*AlltoAllv)(const void *sendbuff, const size_t *sendcounts, const size_t *sdispls, void *recvbuff, const size_t *recvcounts, const size_t *rdispls, shmcclDataType_t datatype, shmcclComm_t comm, shmcclStream_t stream);
    shmcclResult_t (*Gather)(const void *sendbuff, void *recvbuff, size_t count, shmcclDataType_t datatype, int root, shmcclComm_t comm, shmcclStream_t stream);
    shmcclResult_t (*Scatter)(const void *sendbuff, void *recvbuff, size_t count, shmcclDataType_t datatype, int root, shmcclComm_t comm, shmcclStream_t stream);
    shmcclResult_t (*Send)(const void *sendbuff, size_t count, shmcclDataType_t datatype, int peer, shmcclComm_t comm, shmcclStream_t stream);
    shmcclResult_t (*Recv)(void *recvbuff, size_t count, shmcclDataType_t datatype, int peer, shmcclComm_t comm, shmcclStream_t stream);
    shmcclResult_t (*Barrier)(shmcclComm_t comm);
    shmcclResult_t (*RedOpCreatePreMulSum)(shmcclRedOp_t *op, const void *scalar, shmcclDataType_t datatype);
    shmcclResult_t (*RedOpDestroy)(shmcclRedOp_t op);
    shmcclResult_t (*GroupStart)(void);
    shmcclResult_t (*GroupEnd)(void);
    shmcclResult_t (*StreamCreate)(shmcclStream_t *stream);
    shmcclResult_t (*StreamDestroy)(shmcclStream_t stream);
    shmcclResult_t (*StreamSynchronize)(shmcclStream_t stream);
    shmcclResult_t (*StreamQuery)(shmcclStream_t stream);
    shmcclResult_t (*Submit)(shmcclComm_t comm, const shmcclCall_t *calls, size_t ncalls, shmcclDone_t done, void *arg, shmcclRequest_t *request);
    shmcclResult_t (*RequestTest)(shmcclRequest_t request, int *isDone);
    shmcclResult_t (*RequestWait)(shmcclRequest_t request, uint64_t timeoutMs);
    shmcclResult_t (*RequestSource)(shmcclRequest_t request, int *rank);
    shmcclResult_t (*RequestFree)(shmcclRequest_t request);
    shmcclResult_t (*MemAlloc)(shmcclComm_t comm, void **ptr, size_t size);
    shmcclResult_t (*MemFree)(void *ptr);
    shmcclResult_t (*MemLocate)(shmcclComm_t comm, const void *ptr, size_t size, int *rank, uint64_t *offset);
    shmcclResult_t (*MemAddress)(shmcclComm_t comm, int rank, uint64_t offset, size_t size, void **ptr);
    shmcclResult_t (*CommWindowRegister)(shmcclComm_t comm, void *buff, size_t size, shmcclWindow_t *win);
    shmcclResult_t (*CommWindowDeregister)(shmcclComm_t comm, shmcclWindow_t win);
    shmcclResult_t (*WindowAddress)(shmcclComm_t comm, shmcclWindow_t win, int peer, void **ptr, size_t *size);
    shmcclResult_t (*PutSignal)(const void *localbuff, size_t count, shmcclDataType_t datatype, int peer, shmcclWindow_t win, size_t peerWinOffset, int sigIdx, shmcclComm_t comm, shmcclStream_t stream);
    shmcclResult_t (*Signal)(int peer, int sigIdx, shmcclComm_t comm, shmcclStream_t stream);
    shmcclResult_t (*WaitSignal)(int nDesc, const shmcclWaitSignalDesc_t *signalDescs, shmcclComm_t comm, shmcclStream_t stream);
    shmcclResult_t (*SetInterruptCheck)(shmcclInterruptCheck_t check);
    shmcclResult_t (*CommSetTimeout)(shmcclComm_t comm, uint64_t timeoutMs);
    shmcclResult_t (*CommStagedBytes)(shmcclComm_t comm, uint64_t *bytes);
    shmcclResult_t (*CommRecover)(shmcclComm_t comm, uint64_t completed, shmcclComm_t *newcomm);
    shmcclResult_t (*CommGetRecovery)(shmcclComm_t comm, int *wasRestarted, uint64_t *completed);
    shmcclResult_t (*EventCreate)(shmcclEvent_t *event);
    shmcclResult_t (*EventDestroy)(shmcclEvent_t event);
    shmcclResult_t (*EventRecord)(shmcclEvent_t event, shmcclStream_t stream);
    shmcclResult_t (*StreamWaitEvent)(shmcclStream_t stream, shmcclEvent_t event);
    shmcclResult_t (*EventQuery)(shmcclEvent_t event);
    shmcclResult_t (*EventSynchronize)(shmcclEvent_t event);
    shmcclResult_t (*EventElapsedTime)(float *ms, shmcclEvent_t start, shmcclEvent_t end);
    shmcclResult_t (*CommRegisterPlan)(shmcclComm_t comm, const char *path);
    shmcclResult_t (*CommDeregisterPlan)(shmcclComm_t comm, const char *name);
    shmcclResult_t (*CommPlannedCalls)(shmcclComm_t comm, const char *name, uint64_t *calls);
    shmcclResult_t (*RunPlan)(const char *plan, const void *sendbuff, void *recvbuff, size_t count, shmcclDataType_t datatype, shmcclComm_t comm, shmcclStream_t stream);
    shmcclResult_t (*GetProcess)(shmcclProcess_t *process);
    shmcclResult_t (*CommRevokeAwaiting)(shmcclComm_t comm, int rank);
    shmcclResult_t (*CommGetStragglers)(shmcclComm_t comm, int *ranks, int *count);
    shmcclResult_t (*Scan)(const void *sendbuff, void *recvbuff, size_t count, shmcclDataType_t datatype, shmcclRedOp_t op, shmcclComm_t comm, shmcclStream_t stream);
    shmcclResult_t (*Exscan)(const void *sendbuff, void *recvbuff, size_t count, shmcclDataType_t datatype, shmcclRedOp_t op, shmcclComm_t comm, shmcclStream_t stream);
    shmcclResult_t (*MapStatics)(void);
    void *(*Ptr)(shmcclComm_t comm, const void *address, int peer);
};

/* At file scope, once in a program: its static objects are symmetric memory from before its other
 * constructors on. See shmcclMapStatics. */
#define SHMCCL_SYMMETRIC_STATICS                                                \
    __attribute__((constructor(101), used)) static void shmcclConstruct(void) { \
        (void)shmcclMapStatics();                                               \
    }                                                                           \
    struct shmcclTable

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SHMCCL_H */
