/* A course's module on NCCL, as a program: its three patterns and its training loop, word for word where the
 * text gives code, with a model small enough to be checked. One process drives all devices. */
#include <math.h>
#include <stdio.h>

#include "nccl_compat.h"

#define nGPUs 3
#define PARAMS 257
#define SAMPLES 8

#define CHECK(call)                                                                        \
    do {                                                                                   \
        int failed = (int)(call);                                                          \
        if (failed) {                                                                      \
            fprintf(stderr, "%s:%d: %s: %d %s\n", __FILE__, __LINE__, #call, failed,       \
                    ncclGetLastError(NULL));                                               \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

typedef struct {
    float *params, *gradients, *averaged, *loss, *mean_loss;
    cudaStream_t stream;
} Device;

static Device devices[nGPUs];

/* A linear model of one input for each parameter: the target of sample s is s times the parameter's number. */
static void compute_on_gpu(int device) {
    Device *it = &devices[device];
    *it->loss = 0;
    for (int p = 0; p < PARAMS; p++) {
        it->gradients[p] = 0;
        for (int s = 0; s < SAMPLES; s++) {
            float input = (float)(device * SAMPLES + s + 1) / (nGPUs * SAMPLES);
            float error = it->params[p] * input - (float)p * input;
            it->gradients[p] += 2 * error * input / SAMPLES;
            *it->loss += error * error / SAMPLES;
        }
    }
}

int main(void) {
    // Initialize CUDA devices
    for (int i = 0; i < nGPUs; i++) {
        cudaSetDevice(i);
        // Allocate memory and initialize data on each GPU
        CHECK(cudaMalloc(&devices[i].params, PARAMS * sizeof(float)));
        CHECK(cudaMalloc(&devices[i].gradients, PARAMS * sizeof(float)));
        CHECK(cudaMalloc(&devices[i].averaged, PARAMS * sizeof(float)));
        CHECK(cudaMalloc(&devices[i].loss, sizeof(float)));
        CHECK(cudaMalloc(&devices[i].mean_loss, sizeof(float)));
        CHECK(cudaMemset(devices[i].params, 0, PARAMS * sizeof(float)));
        CHECK(cudaStreamCreate(&devices[i].stream));
    }
    // Initialize NCCL communicators
    ncclComm_t* comms = (ncclComm_t*)malloc(nGPUs * sizeof(ncclComm_t));
    ncclCommInitAll(comms, nGPUs, NULL);

    float first = 0, last = 0;
    for (int step = 0; step < 60; step++) {
        // Compute on each GPU independently
        for (int current_gpu_id = 0; current_gpu_id < nGPUs; current_gpu_id++) {
            compute_on_gpu(current_gpu_id);
        }
        // Synchronize gradients across all GPUs
        ncclGroupStart();
        for (int i = 0; i < nGPUs; i++) {
            const void *sendbuff1 = devices[i].gradients, *sendbuff2 = devices[i].loss;
            void *recvbuff1 = devices[i].averaged, *recvbuff2 = devices[i].mean_loss;
            size_t count = PARAMS;
            ncclComm_t comm = comms[i];
            cudaStream_t stream = devices[i].stream;
            CHECK(ncclAllReduce(sendbuff1, recvbuff1, count, ncclFloat32, ncclAvg, comm, stream));
            CHECK(ncclAllReduce(sendbuff2, recvbuff2, 1, ncclFloat32, ncclAvg, comm, stream));
        }
        CHECK(ncclGroupEnd());  // Execute all operations together
        for (int i = 0; i < nGPUs; i++) {
            cudaStream_t stream = devices[i].stream;
            CHECK(cudaStreamSynchronize(stream));
            for (int p = 0; p < PARAMS; p++) devices[i].params[p] -= 0.5f * devices[i].averaged[p];
        }
        last = *devices[0].mean_loss;
        if (step == 0) first = last;
    }
    // Always validate that all GPUs have consistent data
    for (int i = 1; i < nGPUs; i++) {
        CHECK(memcmp(devices[0].params, devices[i].params, PARAMS * sizeof(float)));
    }
    CHECK(!(last < first / 1e4f));
    for (int p = 0; p < PARAMS; p++) CHECK(!(fabsf(devices[0].params[p] - (float)p) < 1));
    for (int i = 0; i < nGPUs; i++) {
        CHECK(cudaStreamDestroy(devices[i].stream));
        CHECK(ncclCommDestroy(comms[i]));
        cudaFree(devices[i].params);
        cudaFree(devices[i].gradients);
        cudaFree(devices[i].averaged);
        cudaFree(devices[i].loss);
        cudaFree(devices[i].mean_loss);
    }
    free(comms);
    printf("loss %g, then %g\n", first, last);
    return 0;
}
