// Times one collective of an MPI library, turn by turn, under the rule of README.md: fresh input before, verified result after each
// operation. Usage: collective OP MAX DIR pin|free. Every rank sleeps until the pipe DIR/turns.RANK has a turn for it (struct turn);
// rank 0 answers in DIR/rows with a line: row,OP,RANKS,BYTES,BATCH,SAMPLES,P10,P50,P90,WRONG (nanoseconds per operation). It ends
// when the pipes do.
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BATCH = 64, BATCH_BYTES = 8192, FEWEST_SAMPLES = 3, MOST_SAMPLES = 4096, FEWEST_WARM = 2, ROOT = 0 };
enum { PERIOD = 509, TURNS = 5 }; // after which a buffer repeats itself, and after which operations

// What is asked of all ranks at once.
struct turn {
    uint64_t bytes, warm_ns, slice_ns;
    uint64_t ordinary; // for shmccl, which has two kinds of memory
};

struct job {
    int rank, ranks;
    size_t elements;      // of the larger of input and result
    size_t inputs;        // of the input
    uint32_t turn;        // number of the operation: makes every input different from the last one
    float *input, *result;
    float *inputs_of, *sums; // a period of each rank's input, and of their sum, for each turn
    uint64_t wrong;       // elements that were not as expected
    uint64_t *words_of, *word_sums; // the input and the result of each turn where either is one word
    struct gate *gate;    // where ranks meet, in memory that they share
    uint64_t met;         // how often they have
};

// Each line pair has one writer, but for the counter.
struct gate {
    struct { _Alignas(128) _Atomic uint64_t met; } of[2][2]; // by turns, and by rank
    _Alignas(128) _Atomic uint64_t arrived;
};

struct operation {
    const char *name;
    void (*run)(struct job *);
    void (*verify)(struct job *);
    enum { WHOLE, SPLIT, JOINED, ROOTED } shape; // of the data: every rank has all; divides it; has a share of it; the root has it
};

static void fail(const char *what) {
    fprintf(stderr, "collective: %s\n", what);
    exit(2);
}

static int share(const struct job *job) { return job->elements / job->ranks; }

// Element `index` of what rank `rank` contributes in a turn: a small whole number, so that sums are exact in any order, that tells
// the rank, the turn and the place.
static uint32_t value(uint32_t index, uint32_t rank, uint32_t turn) {
    return ((index * 2654435761u) >> 22) + ((rank * 5 + turn * 3) & 31);
}

static float *input_of(const struct job *job, int rank) {
    return job->inputs_of + ((size_t)(job->turn % TURNS) * job->ranks + rank) * PERIOD;
}
static const float *sums_of(const struct job *job) { return job->sums + (size_t)(job->turn % TURNS) * PERIOD; }

// Makes the data of all ranks and turns ready, so that rewriting and comparing run at the speed of memory.
static void prepare(struct job *job) {
    job->inputs_of = calloc((size_t)TURNS * job->ranks * PERIOD, sizeof(float));
    job->sums = calloc((size_t)TURNS * PERIOD, sizeof(float));
    if (!job->inputs_of || !job->sums) fail("out of memory");
    for (job->turn = 0; job->turn < TURNS; job->turn++)
        for (int rank = 0; rank < job->ranks; rank++)
            for (uint32_t i = 0; i < PERIOD; i++) {
                float one = (float)value(i, rank, job->turn);
                input_of(job, rank)[i] = one;
                job->sums[(size_t)job->turn * PERIOD + i] += one;
            }
    job->words_of = calloc(TURNS, sizeof(uint64_t));
    job->word_sums = calloc(TURNS, sizeof(uint64_t));
    if (!job->words_of || !job->word_sums) fail("out of memory");
    for (job->turn = 0; job->turn < TURNS; job->turn++) {
        memcpy(&job->words_of[job->turn], input_of(job, job->rank), sizeof(uint64_t));
        memcpy(&job->word_sums[job->turn], sums_of(job), sizeof(uint64_t));
    }
}

// Sets up where ranks meet: memory that MPI shares among the processes of a host.
static void open_gate(struct job *job) {
    MPI_Win window;
    MPI_Aint bytes = job->rank == 0 ? 2 * sizeof(struct gate) : 0;
    int unit;
    char *start;
    if (MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &start, &window) != MPI_SUCCESS
        || MPI_Win_shared_query(window, 0, &bytes, &unit, &start) != MPI_SUCCESS)
        fail("no shared memory to meet in");
    job->gate = (struct gate *)(((uintptr_t)start + 127) / 128 * 128);
    if (job->rank == 0) memset(job->gate, 0, sizeof *job->gate);
    MPI_Barrier(MPI_COMM_WORLD);
}

// Has all ranks leave at once, as shmccl's do: MPI's barrier, in which it ends what it still has to do, and then a bare one.
static void meet(struct job *job) {
    MPI_Barrier(MPI_COMM_WORLD);
    job->met++;
    if (job->ranks == 2) {
        atomic_store_explicit(&job->gate->of[job->met % 2][job->rank].met, job->met, memory_order_release);
        _Atomic uint64_t *other = &job->gate->of[job->met % 2][!job->rank].met;
        while (atomic_load_explicit(other, memory_order_acquire) < job->met) __builtin_ia32_pause();
    } else {
        atomic_fetch_add_explicit(&job->gate->arrived, 1, memory_order_acq_rel);
        uint64_t all = job->met * job->ranks;
        while (atomic_load_explicit(&job->gate->arrived, memory_order_acquire) < all) sched_yield();
    }
}

static void rewrite(struct job *job) {
    job->turn++;
    if (job->inputs * sizeof(float) == sizeof(uint64_t)) {
        memcpy(job->input, &job->words_of[job->turn % TURNS], sizeof(uint64_t));
        return;
    }
    const float *period = input_of(job, job->rank);
    for (size_t at = 0; at < job->inputs; at += PERIOD) {
        size_t count = job->inputs - at < PERIOD ? job->inputs - at : PERIOD;
        memcpy(job->input + at, period, count * sizeof(float));
    }
}

// Counts elements of `data`, the first of which came from place `first` of an input, that are not as `period` says.
static uint64_t mismatches(const float *data, size_t count, size_t first, const float *period) {
    uint64_t wrong = 0;
    for (size_t at = 0, place = first % PERIOD; at < count; place = 0) {
        size_t part = count - at < PERIOD - place ? count - at : PERIOD - place;
        if (memcmp(data + at, period + place, part * sizeof(float)))
            for (size_t i = 0; i < part; i++) wrong += data[at + i] != period[place + i];
        at += part;
    }
    return wrong;
}

static void all_reduce(struct job *job) {
    MPI_Allreduce(job->input, job->result, job->elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void verify_sum(struct job *job) {
    if (job->elements * sizeof(float) == sizeof(uint64_t)
        && !memcmp(job->result, &job->word_sums[job->turn % TURNS], sizeof(uint64_t)))
        return;
    job->wrong += mismatches(job->result, job->elements, 0, sums_of(job));
}

static void broadcast(struct job *job) {
    float *data = job->rank == ROOT ? job->input : job->result;
    MPI_Bcast(data, job->elements, MPI_FLOAT, ROOT, MPI_COMM_WORLD);
}
static void verify_broadcast(struct job *job) {
    const float *data = job->rank == ROOT ? job->input : job->result;
    job->wrong += mismatches(data, job->elements, 0, input_of(job, ROOT));
}

static void all_gather(struct job *job) {
    MPI_Allgather(job->input, share(job), MPI_FLOAT, job->result, share(job), MPI_FLOAT, MPI_COMM_WORLD);
}
static void verify_gather(struct job *job) {
    for (int rank = 0; rank < job->ranks; rank++)
        job->wrong += mismatches(job->result + (size_t)rank * share(job), share(job), 0, input_of(job, rank));
}

static void reduce_scatter(struct job *job) {
    MPI_Reduce_scatter_block(job->input, job->result, share(job), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void verify_scatter(struct job *job) {
    size_t first = (size_t)job->rank * share(job);
    job->wrong += mismatches(job->result, share(job), first, sums_of(job));
}

static void all_to_all(struct job *job) {
    MPI_Alltoall(job->input, share(job), MPI_FLOAT, job->result, share(job), MPI_FLOAT, MPI_COMM_WORLD);
}
static void verify_exchange(struct job *job) {
    size_t first = (size_t)job->rank * share(job);
    for (int rank = 0; rank < job->ranks; rank++)
        job->wrong += mismatches(job->result + (size_t)rank * share(job), share(job), first, input_of(job, rank));
}

static const struct operation OPERATIONS[] = {
    {"all_reduce", all_reduce, verify_sum, WHOLE},       {"broadcast", broadcast, verify_broadcast, ROOTED},
    {"all_gather", all_gather, verify_gather, JOINED},   {"reduce_scatter", reduce_scatter, verify_scatter, SPLIT},
    {"all_to_all", all_to_all, verify_exchange, SPLIT},
};

static double now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

// One sample of a small size: a batch, rewriting and reading inside the clock. Returns nanoseconds per operation.
static double sample_batch(const struct operation *operation, struct job *job) {
    meet(job);
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
    meet(job);
    double start = now_ns();
    operation->run(job);
    double elapsed = now_ns() - start;
    operation->verify(job);
    return elapsed;
}

typedef double sampler(const struct operation *, struct job *);

// Warms up, and returns how many samples fill a slice; rank 0 decides for all.
static int warm_up(sampler *sample, const struct operation *operation, struct job *job, const struct turn *turn) {
    double start = now_ns(), last = start;
    for (int samples = 1;; samples++) {
        sample(operation, job);
        double now = now_ns(), count = turn->slice_ns / (now - last);
        int decision = count < FEWEST_SAMPLES ? FEWEST_SAMPLES : count > MOST_SAMPLES ? MOST_SAMPLES : (int)count;
        if (samples < FEWEST_WARM || now - start < turn->warm_ns) decision = 0;
        MPI_Bcast(&decision, 1, MPI_INT, 0, MPI_COMM_WORLD);
        if (decision) return decision;
        last = now_ns();
    }
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void print_row(FILE *rows, const struct operation *operation, const struct job *job, int batch, double *times, int count,
                      uint64_t wrong) {
    qsort(times, count, sizeof *times, ascending);
    fprintf(rows, "row,%s,%d,%zu,%d,%d,%.1f,%.1f,%.1f,%lu\n", operation->name, job->ranks, job->elements * sizeof(float), batch, count,
            times[count / 10], count % 2 ? times[count / 2] : (times[count / 2 - 1] + times[count / 2]) / 2,
            times[count - 1 - count / 10], (unsigned long)wrong);
    fflush(rows);
}

// Measures one size. A sample is as long as it was for the rank that took longest.
static void take_turn(const struct operation *operation, struct job *job, const struct turn *turn, FILE *rows) {
    job->elements = turn->bytes / sizeof(float);
    job->inputs = operation->shape == JOINED ? job->elements / job->ranks : job->elements;
    if (operation->shape == ROOTED && job->rank != ROOT) job->inputs = 0;
    int batch = turn->bytes <= BATCH_BYTES ? BATCH : 1;
    sampler *sample = batch == 1 ? sample_single : sample_batch;
    job->wrong = 0;
    int count = warm_up(sample, operation, job, turn);
    static double own[MOST_SAMPLES], slowest[MOST_SAMPLES];
    for (int i = 0; i < count; i++) own[i] = sample(operation, job);
    uint64_t wrong = 0;
    MPI_Reduce(own, slowest, count, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&job->wrong, &wrong, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (job->rank == 0) print_row(rows, operation, job, batch, slowest, count, wrong);
}

// Opens the pipe `name` in `directory`.
static FILE *open_pipe(const char *directory, const char *name, const char *mode) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *pipe = fopen(path, mode);
    if (!pipe) fail("a pipe could not be opened");
    return pipe;
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
    if (argc != 5) fail("usage: collective OP MAX DIR pin|free");
    const struct operation *operation = find(argv[1]);
    size_t max = strtoull(argv[2], NULL, 10);
    if (!strcmp(argv[4], "pin")) pin();
    MPI_Init(&argc, &argv);
    struct job job = {.input = buffer(max), .result = buffer(max)};
    MPI_Comm_rank(MPI_COMM_WORLD, &job.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &job.ranks);
    prepare(&job);
    open_gate(&job);
    char name[32];
    snprintf(name, sizeof name, "turns.%d", job.rank);
    FILE *turns = open_pipe(argv[3], name, "r"), *rows = job.rank == 0 ? open_pipe(argv[3], "rows", "w") : NULL;
    struct turn turn;
    while (fread(&turn, sizeof turn, 1, turns) == 1) {
        if (turn.bytes > max) fail("a turn of more than was said");
        take_turn(operation, &job, &turn, rows);
    }
    MPI_Finalize();
    return 0;
}
