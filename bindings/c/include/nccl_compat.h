/* Programs written for NCCL, on host memory: nccl.h's names, and the few of CUDA's runtime that such a
 * program uses beside them, over shmccl.h.
 *
 * A device is a rank. Device memory is ordinary memory: cudaMalloc is malloc, cudaMemcpy is memcpy, and a
 * buffer of malloc or new goes to every call. Kernels are functions of the program. A stream has a thread
 * that makes its calls; what is enqueued on no stream is done at once.
 *
 * Differences to NCCL that a program can see:
 * - the calls of one rank in a group name one stream, or none;
 * - ncclCommFinalize of several ranks of one process is called in threads;
 * - signals have no context: ctx and flags are 0.
 */
#ifndef SHMCCL_NCCL_COMPAT_H
#define SHMCCL_NCCL_COMPAT_H

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shmccl.h"

#define NCCL_MAJOR 2
#define NCCL_MINOR 29
#define NCCL_PATCH 0
#define NCCL_VERSION_CODE 22900
#define NCCL_VERSION(X, Y, Z) \
    (((X) <= 2 && (Y) <= 8) ? (X) * 1000 + (Y) * 100 + (Z) : (X) * 10000 + (Y) * 100 + (Z))
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_SPLIT_NOCOLOR SHMCCL_SPLIT_NOCOLOR
#define NCCL_WIN_DEFAULT 0
#define NCCL_WIN_COLL_SYMMETRIC 1

/* ---- Types ---- */

typedef shmcclComm_t ncclComm_t;
typedef shmcclUniqueId ncclUniqueId;
typedef shmcclWindow_t ncclWindow_t;

typedef shmcclResult_t ncclResult_t;
#define ncclSuccess shmcclSuccess
#define ncclUnhandledCudaError ((shmcclResult_t)1)
#define ncclSystemError shmcclSystemError
#define ncclInternalError shmcclInternalError
#define ncclInvalidArgument shmcclInvalidArgument
#define ncclInvalidUsage shmcclInvalidUsage
#define ncclRemoteError shmcclRemoteError
#define ncclInProgress shmcclInProgress
#define ncclTimeout shmcclTimeout

typedef shmcclDataType_t ncclDataType_t;
#define ncclInt8 shmcclInt8
#define ncclChar shmcclInt8
#define ncclUint8 shmcclUint8
#define ncclInt32 shmcclInt32
#define ncclInt shmcclInt32
#define ncclUint32 shmcclUint32
#define ncclInt64 shmcclInt64
#define ncclUint64 shmcclUint64
#define ncclFloat16 shmcclFloat16
#define ncclHalf shmcclFloat16
#define ncclFloat32 shmcclFloat32
#define ncclFloat shmcclFloat32
#define ncclFloat64 shmcclFloat64
#define ncclDouble shmcclFloat64
#define ncclBfloat16 shmcclBfloat16
#define ncclFloat8e4m3 shmcclFloat8e4m3
#define ncclFloat8e5m2 shmcclFloat8e5m2

typedef shmcclRedOp_t ncclRedOp_t;
#define ncclSum shmcclSum
#define ncclProd shmcclProd
#define ncclMax shmcclMax
#define ncclMin shmcclMin
#define ncclAvg shmcclAvg

typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;

typedef struct {
    int opCnt;
    int peer;
    int sigIdx;
    int ctx;
} ncclWaitSignalDesc_t;

/* ---- CUDA's runtime, for host memory ---- */

typedef shmcclStream_t cudaStream_t;

typedef enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorNotReady = 600,
    cudaErrorUnknown = 999
} cudaError_t;

typedef enum {
    cudaMemcpyHostToHost = 0,
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3,
    cudaMemcpyDefault = 4
} cudaMemcpyKind;

#define cudaStreamDefault 0
#define cudaStreamNonBlocking 1

static inline const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNotReady: return "device not ready";
    default: return shmcclGetLastError(NULL);
    }
}

static inline cudaError_t cudaGetDeviceCount(int *count) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    *count = online < 1 ? 1 : (int)online;
    return cudaSuccess;
}

static inline cudaError_t cudaSetDevice(int device) {
    return device < 0 ? cudaErrorInvalidValue : cudaSuccess;
}

/* Any pointer to a pointer will do, as in CUDA. */
static inline cudaError_t cudaMalloc(void *pointer, size_t size) {
    void *made = size ? malloc(size) : NULL;
    memcpy(pointer, &made, sizeof made);
    return size && !made ? cudaErrorMemoryAllocation : cudaSuccess;
}

static inline cudaError_t cudaMallocHost(void *pointer, size_t size) {
    return cudaMalloc(pointer, size);
}

static inline cudaError_t cudaFree(void *pointer) {
    free(pointer);
    return cudaSuccess;
}

static inline cudaError_t cudaFreeHost(void *pointer) {
    return cudaFree(pointer);
}

static inline cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind kind) {
    (void)kind;
    memmove(to, from, size);
    return cudaSuccess;
}

static inline cudaError_t cudaMemset(void *to, int value, size_t size) {
    memset(to, value, size);
    return cudaSuccess;
}

static inline cudaError_t shmcclCompatError(shmcclResult_t result) {
    switch (result) {
    case shmcclSuccess: return cudaSuccess;
    case shmcclInProgress: return cudaErrorNotReady;
    case shmcclInvalidArgument: return cudaErrorInvalidValue;
    default: return cudaErrorUnknown;
    }
}

static inline cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    return shmcclCompatError(shmcclStreamCreate(stream));
}

static inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    (void)flags;
    return cudaStreamCreate(stream);
}

static inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return shmcclCompatError(shmcclStreamDestroy(stream));
}

static inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return shmcclCompatError(shmcclStreamSynchronize(stream));
}

static inline cudaError_t cudaStreamQuery(cudaStream_t stream) {
    return shmcclCompatError(shmcclStreamQuery(stream));
}

/* A copy waits for its stream, and is made at once. */
static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                                          cudaStream_t stream) {
    cudaError_t waited = cudaStreamSynchronize(stream);
    return waited == cudaSuccess ? cudaMemcpy(to, from, size, kind) : waited;
}

/* ---- NCCL ---- */

static inline ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

#define ncclGetErrorString shmcclGetErrorString
#define ncclGetLastError shmcclGetLastError
#define ncclGetUniqueId shmcclGetUniqueId
#define ncclCommInitRank shmcclCommInitRank
#define ncclCommCount shmcclCommCount
#define ncclCommUserRank shmcclCommUserRank
#define ncclCommCuDevice shmcclCommUserRank
#define ncclCommFinalize shmcclCommFinalize
#define ncclCommDestroy shmcclCommDestroy
#define ncclCommAbort shmcclCommAbort
#define ncclCommGetAsyncError shmcclCommGetAsyncError
#define ncclCommWindowDeregister shmcclCommWindowDeregister
#define ncclGroupStart shmcclGroupStart
#define ncclGroupEnd shmcclGroupEnd
#define ncclAllReduce shmcclAllReduce
#define ncclReduce shmcclReduce
#define ncclBroadcast shmcclBroadcast
#define ncclAllGather shmcclAllGather
#define ncclReduceScatter shmcclReduceScatter
#define ncclAlltoAll shmcclAlltoAll
#define ncclAllToAll shmcclAlltoAll
#define ncclAllToAllv shmcclAlltoAllv
#define ncclGather shmcclGather
#define ncclScatter shmcclScatter
#define ncclSend shmcclSend
#define ncclRecv shmcclRecv

/* Ranks are devices 0 to ndev - 1, whatever the list says. */
static inline ncclResult_t ncclCommInitAll(ncclComm_t *comms, int ndev, const int *devlist) {
    (void)devlist;
    return shmcclCommInitAll(comms, ndev);
}

/* Options of NCCL's own do nothing here. */
#define ncclCommSplit(comm, color, key, newcomm, config) shmcclCommSplit((comm), (color), (key), (newcomm))

static inline ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
    (void)flags;
    return shmcclCommRevoke(comm);
}

static inline ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root,
                                     ncclComm_t comm, cudaStream_t stream) {
    return shmcclBroadcast(buff, buff, count, datatype, root, comm, stream);
}

static inline ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                                    ncclScalarResidence_t residence, ncclComm_t comm) {
    (void)residence;
    (void)comm;
    return shmcclRedOpCreatePreMulSum(op, scalar, datatype);
}

static inline ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
    (void)comm;
    return shmcclRedOpDestroy(op);
}

/* Ordinary memory. A window needs that of shmcclMemAlloc, which knows its communicator. */
static inline ncclResult_t ncclMemAlloc(void **pointer, size_t size) {
    return cudaMalloc(pointer, size) == cudaSuccess ? ncclSuccess : ncclSystemError;
}

static inline ncclResult_t ncclMemFree(void *pointer) {
    free(pointer);
    return ncclSuccess;
}

static inline ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                                  int flags) {
    (void)flags;
    return shmcclCommWindowRegister(comm, buff, size, win);
}

static inline ncclResult_t ncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                                         ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                                         unsigned int flags, ncclComm_t comm, cudaStream_t stream) {
    if (ctx || flags) return ncclInvalidArgument;
    return shmcclPutSignal(localbuff, count, datatype, peer, peerWin, peerWinOffset, sigIdx, comm, stream);
}

static inline ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                                      cudaStream_t stream) {
    if (ctx || flags) return ncclInvalidArgument;
    return shmcclSignal(peer, sigIdx, comm, stream);
}

static inline ncclResult_t ncclWaitSignal(int nDesc, const ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm,
                                          cudaStream_t stream) {
    for (int i = 0; i < nDesc; i++) {
        shmcclWaitSignalDesc_t one = {signalDescs[i].opCnt, signalDescs[i].peer, signalDescs[i].sigIdx};
        ncclResult_t result = signalDescs[i].ctx ? ncclInvalidArgument : shmcclWaitSignal(1, &one, comm, stream);
        if (result != ncclSuccess) return result;
    }
    return ncclSuccess;
}

#endif /* SHMCCL_NCCL_COMPAT_H */
