/* Static objects are symmetric memory. Run as 2 ranks or more. Built in many ways, also as C++; BSS is the length of its
 * largest object. An argument names another case than the common one: see `main`. */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#ifdef __cplusplus
#include <iostream>
#include <map>
#include <string>
#endif
#ifndef BSS
#define BSS (1 << 20)
#endif
#ifndef MORE
#define MORE 1
#endif

SHMCCL_SYMMETRIC_STATICS;

static volatile char padding_before[MORE];
static long initialised = 41;
static long zero, flag, done;
static char padding[BSS];
static const char *const constant = "constant";
static __thread long local = 5;
static volatile long ticks, stop;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

#ifdef __cplusplus
/* Constructed behind the mapping, and used by their own rank. */
static std::map<std::string, int> table{{"one", 1}};
#endif

/* A thread of a constructor of the program, which counts while all else begins. */
static pthread_t ticker;
static long counted;

static void *tick(void *arg) {
    (void)arg;
    long mine = 0;
    while (!stop) ticks++, mine++;
    counted = mine;
    return NULL;
}

__attribute__((constructor(102))) static void early(void) {
    if (getenv("STATICS_TICK")) pthread_create(&ticker, NULL, tick, NULL);
    initialised += 1;
}

static shmcclComm_t comm;
static int rank, n;

#define AT(object, peer) ((__typeof__(&(object)))shmcclPtr(comm, (const void *)&(object), peer))

static void barrier(void) { OK(shmcclBarrier(comm)); }

/* Every rank sees what the others have, and what is written there. */
static void exchange(void) {
    int right = (rank + 1) % n;
    initialised += rank;
    zero = 7 + rank;
    padding[BSS - 1] = (char)('a' + rank);
    EXPECT(AT(initialised, rank) == &initialised);
    barrier();
    EXPECT(*AT(initialised, right) == 42 + right);
    EXPECT(AT(padding[BSS - 1], right) && *AT(padding[BSS - 1], right) == 'a' + right);
    for (int i = 0; i < 10000; i++) __atomic_fetch_add(AT(zero, right), 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(AT(done, right), 1, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE)) usleep(100);
    EXPECT(zero == 7 + rank + 10000);
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    void *some = malloc(100);
    setenv("X", "y", 1);
    free(some);
    EXPECT(getenv("X") && padding_before[MORE - 1] == 0);
    padding_before[MORE - 1] = 1;
#ifdef __cplusplus
    EXPECT(table["one"] == 1);
    table["two"] = 2;
    std::cerr << "";
#endif
}

static void refused(const void *address, int peer, const char *words) {
    EXPECT(!shmcclPtr(comm, address, peer));
    if (!strstr(shmcclGetLastError(NULL), words)) {
        fprintf(stderr, "no \"%s\" in: %s\n", words, shmcclGetLastError(NULL));
        exit(1);
    }
}

/* What is not symmetric is named. */
static void strangers(void) {
    long on_stack = 0;
    void *mine;
    refused(&local, 0, "`local` of ");
    refused(&local, 0, "thread-local");
    refused(&constant, 0, "`constant` of ");
    refused(&on_stack, 0, "on a stack");
    refused((const void *)shmcclGetVersion, 0, "shmcclGetVersion` of ");
    refused(&zero, n, "rank");
    refused(NULL, 0, "address");
    OK(shmcclMemAlloc(comm, &mine, 64));
    refused(mine, 0, "shmcclMemLocate");
    OK(shmcclMemFree(mine));
}

/* A child of a fork has a copy: as it was at the fork, and written by nobody else. */
static void forks(void) {
    int right = (rank + 1) % n, status;
    for (int i = 0; i < 20; i++) {
        zero = 100 + i;
        barrier();
        pid_t child = fork();
        zero = child ? 1000 + i : zero;
        if (!child) {
            if (zero != 100 + i || padding[BSS - 1] != 'a' + rank) _exit(1);
            initialised = -1;
            usleep(1000);
            if (zero != 100 + i || padding[BSS / 2]) _exit(2);
            if (shmcclPtr(comm, &zero, right) && *AT(zero, right) == -1) _exit(3);
            char *text = (char *)malloc(100);
            sprintf(text, "%d", i);
            free(text);
            _exit(0);
        }
        *AT(flag, right) = 1;
        padding[BSS / 2] = 0;
        EXPECT(waitpid(child, &status, 0) == child && status == 0);
        EXPECT(zero == 1000 + i && initialised == 42 + rank);
        barrier();
    }
    EXPECT(system("true") == 0);
    FILE *pipe = popen("echo 5", "r");
    int five = 0;
    EXPECT(fscanf(pipe, "%d", &five) == 1 && five == 5 && pclose(pipe) == 0);
}

/* Where the C library is linked into the program, a child has none of it. */
static void forks_statically(void) {
    int status;
    pid_t child = fork();
    if (!child) _exit(0);
    EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    EXPECT(initialised == 42 + rank);
    EXPECT(system("true") == 0);
}

/* Every rank has 10 and its number, and all see that. */
static void look_at_all(void) {
    barrier();
    for (int peer = 0; peer < n; peer++) {
        EXPECT(*AT(zero, peer) == 10 + peer);
        __atomic_fetch_add(AT(done, peer), 1, __ATOMIC_RELAXED);
    }
    barrier();
    EXPECT(done == n);
}

/* The last rank dies. The others go on with the values that they had; one that comes back begins anew. */
static void losses(int comes_back) {
    int again = 0;
    uint64_t step = 0;
    OK(shmcclCommGetRecovery(comm, &again, &step));
    EXPECT(zero == 0);
    zero = 10 + rank;
    if (!again) {
        barrier();
        if (rank == n - 1) raise(SIGKILL);
        RETURNS(shmcclPeerLost, shmcclBarrier(comm));
        shmcclComm_t on;
        if (comes_back) {
            OK(shmcclCommRecover(comm, 0, &on));
        } else {
            OK(shmcclCommShrink(comm, NULL, 0, &on, NULL, NULL));
        }
        OK(shmcclCommDestroy(comm));
        comm = on;
        OK(shmcclCommCount(comm, &n));
    }
    look_at_all();
}

/* Starts this program once more, which gets the id by its environment. */
static pid_t start(char **argv, const shmcclUniqueId *id) {
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        setenv("MEET", id->internal, 1);
        setenv("SHMCCL_STATICS", "1", 1);
        execv(argv[0], argv);
        _exit(127);
    }
    return child;
}

/* The process that rank 0 starts comes to the others, or to rank 0 alone that no launcher has started. */
static void meet(char **argv, int is_alone) {
    shmcclUniqueId id;
    const char *text = getenv("MEET");
    pid_t child = 0;
    int status = 0;
    memset(&id, 0, sizeof id);
    if (text) strncpy(id.internal, text, sizeof id.internal - 1);
    if (!is_alone && !text) {
        OK(shmcclCommInit(&comm));
        OK(shmcclCommCount(comm, &n));
        OK(shmcclCommUserRank(comm, &rank));
    }
    if (!text && rank == 0) {
        OK(shmcclGetUniqueId(&id));
        child = start(argv, &id);
    }
    shmcclComm_t met;
    if (is_alone) {
        OK(shmcclCommInitRank(&met, 2, id, text != NULL));
    } else if (text) {
        OK(shmcclCommJoin(&id, &met));
    } else {
        OK(shmcclCommGrow(comm, n + 1, rank == 0 ? &id : NULL, &met));
        OK(shmcclCommDestroy(comm));
    }
    comm = met;
    OK(shmcclCommCount(comm, &n));
    OK(shmcclCommUserRank(comm, &rank));
    zero = 10 + rank;
    look_at_all();
    OK(shmcclCommFinalize(comm));
    OK(shmcclCommDestroy(comm));
    if (child) EXPECT(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (getenv("STATICS_TICK")) {
        usleep(2000);
        stop = 1;
        pthread_join(ticker, NULL);
        EXPECT(counted == ticks && counted > 0);
    }
    if (!strcmp(mode, "differs")) {
        FAILS(shmcclMismatch, "`padding_before` has 1 bytes at", shmcclCommInit(&comm));
        EXPECT(strstr(shmcclGetLastError(NULL), "statics-differs-0) and rank "));
        EXPECT(strstr(shmcclGetLastError(NULL), "statics-differs-1) differ"));
        return 0;
    }
    if (!strcmp(mode, "grow") || !strcmp(mode, "id")) {
        meet(argv, !strcmp(mode, "id"));
        return 0;
    }
    OK(shmcclCommInit(&comm));
    OK(shmcclCommCount(comm, &n));
    OK(shmcclCommUserRank(comm, &rank));
    if (!strcmp(mode, "off")) {
        refused(&zero, 0, "SHMCCL_STATICS is 0");
    } else if (!strcmp(mode, "one-off")) {
        refused(&zero, 0, rank == 0 ? "SHMCCL_STATICS is 0" : "rank 0 has none");
    } else if (!strcmp(mode, "shrink") || !strcmp(mode, "recover")) {
        losses(!strcmp(mode, "recover"));
    } else {
        exchange();
        if (!strcmp(mode, "strangers")) strangers();
        if (!strcmp(mode, "forks")) forks();
        if (!strcmp(mode, "forks-statically")) forks_statically();
    }
    OK(shmcclCommFinalize(comm));
    OK(shmcclCommDestroy(comm));
    return 0;
}
