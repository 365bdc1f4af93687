/* All ranks in one process: one thread makes the calls of all, in groups and on streams; and ranks that meet
 * under an id within a group. No launcher. */
#include "check.h"

enum { N = 3, COUNT = 5000 };

static float x[N][COUNT], y[N][COUNT];

static void fill(void) {
    for (int r = 0; r < N; r++)
        for (int i = 0; i < COUNT; i++) x[r][i] = (float)(r + i);
    memset(y, 0, sizeof y);
}

static void expect_sums(void) {
    for (int r = 0; r < N; r++)
        for (int i = 0; i < COUNT; i++) EXPECT(y[r][i] == (float)(3 + 3 * i));
}

static void use(shmcclComm_t *comms) {
    shmcclStream_t streams[N];
    for (int r = 0; r < N; r++) OK(shmcclStreamCreate(&streams[r]));
    for (int round = 0; round < 3; round++) {
        fill();
        if (round == 0) OK(shmcclGroupStart());
        if (round == 1) OK(shmcclGroupStart());
        for (int r = 0; r < N; r++)
            OK(shmcclAllReduce(x[r], y[r], COUNT, shmcclFloat32, shmcclSum, comms[r], round ? streams[r] : NULL));
        if (round < 2) OK(shmcclGroupEnd());
        for (int r = 0; r < N; r++) OK(shmcclStreamSynchronize(streams[r]));
        expect_sums();
    }
    for (int r = 0; r < N; r++) OK(shmcclStreamDestroy(streams[r]));
    for (int r = 0; r < N; r++) {
        int rank;
        OK(shmcclCommUserRank(comms[r], &rank));
        EXPECT(rank == r);
        OK(shmcclCommDestroy(comms[r]));
    }
}

int main(void) {
    shmcclComm_t comms[N];
    OK(shmcclCommInitAll(comms, N));
    use(comms);

    shmcclUniqueId id;
    shmcclConfig_t config = SHMCCL_CONFIG_INITIALIZER;
    config.heapBytes = 32 << 20;
    config.timeoutMs = 20000;
    OK(shmcclGetUniqueId(&id));
    OK(shmcclGroupStart());
    for (int r = 0; r < N; r++) OK(shmcclCommInitRankConfig(&comms[r], N, id, r, &config));
    OK(shmcclGroupEnd());
    use(comms);

    FAILS(shmcclInvalidUsage, "shmccl run", shmcclCommInit(&comms[0]));
    return 0;
}
