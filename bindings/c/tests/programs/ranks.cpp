// A rank of NCCL's shape in C++, as a process: nccl_compat.h, and the same functions from the table.
#include <cstdlib>
#include <numeric>
#include <vector>

#include "check.h"
#include "nccl_compat.h"

int main() {
    ncclComm_t comm;
    OK(shmcclCommInit(&comm));
    int rank, count;
    OK(ncclCommUserRank(comm, &rank));
    OK(ncclCommCount(comm, &count));

    float *data;
    EXPECT(cudaMalloc(&data, 100 * sizeof(float)) == cudaSuccess);
    std::vector<float> host(100);
    std::iota(host.begin(), host.end(), static_cast<float>(rank));
    EXPECT(cudaMemcpy(data, host.data(), 100 * sizeof(float), cudaMemcpyHostToDevice) == cudaSuccess);
    cudaStream_t stream;
    EXPECT(cudaStreamCreate(&stream) == cudaSuccess);
    OK(ncclAllReduce(data, data, 100, ncclFloat, ncclMax, comm, stream));
    EXPECT(cudaMemcpyAsync(host.data(), data, 100 * sizeof(float), cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    EXPECT(cudaStreamSynchronize(stream) == cudaSuccess);
    for (int i = 0; i < 100; i++) EXPECT(host[i] == static_cast<float>(count - 1 + i));
    OK(ncclBcast(data, 100, ncclFloat, 0, comm, stream));
    EXPECT(cudaStreamDestroy(stream) == cudaSuccess);
    EXPECT(cudaFree(data) == cudaSuccess);

    ncclComm_t all;
    OK(ncclCommSplit(comm, 0, rank, &all, nullptr));
    double factor = 2, mine = rank, sum = 0;
    ncclRedOp_t doubled;
    OK(ncclRedOpCreatePreMulSum(&doubled, &factor, ncclDouble, ncclScalarHostImmediate, all));
    OK(ncclAllReduce(&mine, &sum, 1, ncclDouble, doubled, all, nullptr));
    EXPECT(sum == count * (count - 1));
    OK(ncclRedOpDestroy(doubled, all));
    OK(ncclCommDestroy(all));

    const shmcclTable *table = shmcclGetTable(SHMCCL_TABLE_VERSION);
    EXPECT(table && table->version == SHMCCL_TABLE_VERSION && table->size == sizeof(shmcclTable));
    int32_t one = 1, total = 0;
    OK(table->AllReduce(&one, &total, 1, shmcclInt32, shmcclSum, comm, nullptr));
    EXPECT(total == count);
    OK(table->CommFinalize(comm));
    OK(table->CommDestroy(comm));
    return 0;
}
