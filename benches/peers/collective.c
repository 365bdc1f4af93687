// Times one collective of an MPI library by size, under the rule of README.md: fresh input before, verified result after each
// operation. Usage: collective OP MIN MAX FACTOR pin|free. Rank 0 prints one line per size:
// row,OP,RANKS,BYTES,BATCH,SAMPLES,P10,P50,P90 (nanoseconds per operation). Wrong data ends it with status 1.
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 64, BATCH_BYTES = 8192, FEWEST_SAMPLES = 5, MOST_SAMPLES = 1000, FEWEST_WARM = 2 };
static const double WARM_NS = 10e6, SLICE_NS = 40e6;

struct job {
    int rank, ranks;
    size_t elements;      // of the larger of input and result
    size_t inputs;        // of the input
    uint32_t turn;        // number of the operation: makes every input different from the last one
    float *input, *result;
    uint64_t wrong;       // elements that were not as expected
};

struct operation {
    const char *name;
    void (*run)(struct job *);
    void (*verify)(struct job *);
    enum { WHOLE, SPLIT, JOINED } shape; // of the data: every rank has all; has all and divides it; has a share of it
};

// What rank `rank` adds to every element in this turn. Small whole numbers, so that sums are exact in any order.
static uint32_t base(uint32_t rank, uint32_t turn) { return (rank * 5 + turn * 3) & 31; }

// What element `index` carries on every rank: a hash, so that data in a wrong place is seen.
static uint32_t pattern(uint32_t index) { return (index * 2654435761u) >> 22; }

static uint32_t sum_of_bases(const struct job *job) {
    uint32_t sum = 0;
    for (int rank = 0; rank < job->ranks; rank++) sum += base(rank, job->turn);
    return sum;
}

static int root(const struct job *job) { return job->turn % job->ranks; }
static int share(const struct job *job) { return job->elements / job->ranks; }

static void rewrite(struct job *job) {
    uint32_t own = base(job->rank, ++job->turn);
    float *input = job->input;
    for (uint32_t i = 0; i < job->inputs; i++) input[i] = (float)(int32_t)(own + pattern(i));
}

// Counts elements of `data` that differ from `add + times * pattern(first + i)`.
static uint64_t mismatches(const float *data, uint32_t count, uint32_t first, uint32_t add, uint32_t times) {
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < count; i++) wrong += data[i] != (float)(int32_t)(add + times * pattern(first + i));
    return wrong;
}

static void all_reduce(struct job *job) {
    MPI_Allreduce(job->input, job->result, job->elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void verify_sum(struct job *job) {
    job->wrong += mismatches(job->result, job->elements, 0, sum_of_bases(job), job->ranks);
}

// The root rotates: it must have received the last operation before it sends the next, so that nobody runs ahead.
static void broadcast(struct job *job) {
    float *data = job->rank == root(job) ? job->input : job->result;
    MPI_Bcast(data, job->elements, MPI_FLOAT, root(job), MPI_COMM_WORLD);
}
static void verify_broadcast(struct job *job) {
    const float *data = job->rank == root(job) ? job->input : job->result;
    job->wrong += mismatches(data, job->elements, 0, base(root(job), job->turn), 1);
}

static void all_gather(struct job *job) {
    MPI_Allgather(job->input, share(job), MPI_FLOAT, job->result, share(job), MPI_FLOAT, MPI_COMM_WORLD);
}
static void verify_gather(struct job *job) {
    for (int rank = 0; rank < job->ranks; rank++)
        job->wrong += mismatches(job->result + (size_t)rank * share(job), share(job), 0, base(rank, job->turn), 1);
}

static void reduce_scatter(struct job *job) {
    MPI_Reduce_scatter_block(job->input, job->result, share(job), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void verify_scatter(struct job *job) {
    uint32_t first = (uint32_t)job->rank * share(job);
    job->wrong += mismatches(job->result, share(job), first, sum_of_bases(job), job->ranks);
}

static void all_to_all(struct job *job) {
    MPI_Alltoall(job->input, share(job), MPI_FLOAT, job->result, share(job), MPI_FLOAT, MPI_COMM_WORLD);
}
static void verify_exchange(struct job *job) {
    uint32_t first = (uint32_t)job->rank * share(job);
    for (int rank = 0; rank < job->ranks; rank++)
        job->wrong += mismatches(job->result + (size_t)rank * share(job), share(job), first, base(rank, job->turn), 1);
}

static const struct operation OPERATIONS[] = {
    {"all_reduce", all_reduce, verify_sum, WHOLE},       {"broadcast", broadcast, verify_broadcast, WHOLE},
    {"all_gather", all_gather, verify_gather, JOINED},   {"reduce_scatter", reduce_scatter, verify_scatter, SPLIT},
    {"all_to_all", all_to_all, verify_exchange, SPLIT},
};

static void fail(const char *what) {
    fprintf(stderr, "collective: %s\n", what);
    exit(2);
}

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

// One sample of a small size: a batch, rewriting and reading inside the clock. Returns nanoseconds per operation.
static double sample_batch(const struct operation *operation, struct job *job) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now_ns();
    for (int i = 0; i < BATCH; i++) {
        rewrite(job);
        operation->run(job);
        operation->verify(job);
    }
    return (now_ns() - start) / BATCH;
}

// One sample of a large size: one operation, with nothing else inside the clock.
static double sample_single(const struct operation *operation, struct job *job) {
    rewrite(job);
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now_ns();
    operation->run(job);
    double elapsed = now_ns() - start;
    operation->verify(job);
    return elapsed;
}

typedef double sampler(const struct operation *, struct job *);

// Warms up, and returns how many samples fill a slice; rank 0 decides for all.
static int warm_up(sampler *sample, const struct operation *operation, struct job *job) {
    double start = now_ns(), last = start;
    for (int samples = 1;; samples++) {
        sample(operation, job);
        double now = now_ns(), count = SLICE_NS / (now - last);
        int decision = count < FEWEST_SAMPLES ? FEWEST_SAMPLES : count > MOST_SAMPLES ? MOST_SAMPLES : (int)count;
        if (samples < FEWEST_WARM || now - start < WARM_NS) decision = 0;
        MPI_Bcast(&decision, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (decision) return decision;
        last = now_ns();
    }
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void print_row(const struct operation *operation, const struct job *job, int batch, double *times, int count) {
    qsort(times, count, sizeof *times, ascending);
    printf("row,%s,%d,%zu,%d,%d,%.1f,%.1f,%.1f\n", operation->name, job->ranks, job->elements * sizeof(float), batch, count,
           times[count / 10], count % 2 ? times[count / 2] : (times[count / 2 - 1] + times[count / 2]) / 2,
           times[count - 1 - count / 10]);
    fflush(stdout);
}

// Measures one size. A sample is as long as it was for the rank that took longest.
static void slice(const struct operation *operation, struct job *job) {
    int batch = job->elements * sizeof(float) <= BATCH_BYTES ? BATCH : 1;
    sampler *sample = batch == 1 ? sample_single : sample_batch;
    int count = warm_up(sample, operation, job);
    double own[MOST_SAMPLES], slowest[MOST_SAMPLES];
    for (int i = 0; i < count; i++) own[i] = sample(operation, job);
    MPI_Reduce(own, slowest, count, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (job->rank == 0) print_row(operation, job, batch, slowest, count);
}

static void measure(const struct operation *operation, struct job *job, size_t min, size_t max, size_t factor) {
    for (size_t bytes = min;; bytes = bytes > max / factor ? max : bytes * factor) {
        size_t step = sizeof(float) * (operation->shape == WHOLE ? 1 : job->ranks);
        job->elements = bytes / sizeof(float);
        job->inputs = operation->shape == JOINED ? job->elements / job->ranks : job->elements;
        if (bytes && bytes % step == 0) slice(operation, job);
        if (bytes >= max) return;
    }
}

// Ordinary memory, on pages of its own and touched before the first clock.
static float *buffer(size_t bytes) {
    void *data = NULL;
    if (posix_memalign(&data, 4096, bytes)) fail("out of memory");
    return memset(data, 0xff, bytes);
}

// Rank r runs on core r modulo the cores there are, as the devices of shmccl do. Called before MPI_Init, so that what the library
// allocates and starts is on that core from the outset.
static void pin(void) {
    const char *text = getenv("OMPI_COMM_WORLD_RANK");
    if (!text) text = getenv("PMI_RANK");
    cpu_set_t allowed, mine;
    if (!text || sched_getaffinity(0, sizeof allowed, &allowed)) fail("no rank in the environment");
    int skip = atoi(text) % CPU_COUNT(&allowed), core = 0;
    while (!CPU_ISSET(core, &allowed) || skip-- > 0) core++;
    CPU_ZERO(&mine);
    CPU_SET(core, &mine);
    if (sched_setaffinity(0, sizeof mine, &mine)) fail("a core could not be chosen");
}

static const struct operation *find(const char *name) {
    for (size_t i = 0; i < sizeof OPERATIONS / sizeof *OPERATIONS; i++)
        if (!strcmp(OPERATIONS[i].name, name)) return &OPERATIONS[i];
    fail("no such operation");
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 6) fail("usage: collective OP MIN MAX FACTOR pin|free");
    const struct operation *operation = find(argv[1]);
    size_t min = strtoull(argv[2], NULL, 10), max = strtoull(argv[3], NULL, 10), factor = strtoull(argv[4], NULL, 10);
    if (min > max || factor < 2) fail("sizes must ascend");
    if (!strcmp(argv[5], "pin")) pin();
    MPI_Init(&argc, &argv);
    struct job job = {.input = buffer(max), .result = buffer(max)};
    MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &job.ranks);
    measure(operation, &job, min, max, factor);
    uint64_t wrong = 0;
    MPI_Allreduce(&job.wrong, &wrong, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();
    if (wrong && job.rank == 0) fprintf(stderr, "collective: %s: %lu wrong elements\n", operation->name, (unsigned long)wrong);
    return wrong != 0;
}
