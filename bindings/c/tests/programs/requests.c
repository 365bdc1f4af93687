/* Operations that are started and waited for later, in any order; calls as structures. Run as 2 ranks or more. */
#include "check.h"

enum { MANY = 200, COUNT = 300 };

static shmcclComm_t comm, messages;
static int rank, n;

/* What `done` was told. */
typedef struct {
    int calls, result, lost;
    char text[256];
} Told;

static void tell(void *arg, shmcclResult_t result, const char *text, int lost) {
    Told *told = arg;
    told->result = result;
    told->lost = lost;
    snprintf(told->text, sizeof told->text, "%s", text);
    told->calls++;
}

static shmcclCall_t call(shmcclOperation_t operation, const void *send, void *recv, size_t count, int peer, int tag) {
    shmcclCall_t made = {0};
    made.size = sizeof made;
    made.operation = operation;
    made.datatype = shmcclInt32;
    made.sendbuff = send;
    made.recvbuff = recv;
    made.count = count;
    made.peer = peer;
    made.tag = tag;
    return made;
}

static void started_collectives_are_done_in_order(void) {
    static int32_t x[MANY][COUNT], y[MANY][COUNT];
    static Told told[MANY];
    shmcclRequest_t requests[MANY];
    for (int i = 0; i < MANY; i++) {
        for (int k = 0; k < COUNT; k++) x[i][k] = rank + i + k;
        shmcclCall_t one = call(shmcclOpAllReduce, x[i], y[i], COUNT, 0, 0);
        OK(shmcclSubmit(comm, &one, 1, tell, &told[i], &requests[i]));
    }
    for (int i = MANY - 1; i >= 0; i--) {
        int done = 0;
        if (i % 3 == 0)
            while (!done) OK(shmcclRequestTest(requests[i], &done));
        OK(shmcclRequestWait(requests[i], i % 2 ? 20000 : 0));
        EXPECT(told[i].calls == 1 && told[i].result == shmcclSuccess && told[i].lost == -1);
        for (int k = 0; k < COUNT; k++) EXPECT(y[i][k] == n * (n - 1) / 2 + n * (i + k));
        OK(shmcclRequestFree(requests[i]));
    }
    FAILS(shmcclInvalidArgument, "it was freed", shmcclRequestWait(requests[0], 0));
}

/* A synchronous call stands behind what was started, and an operation without a handle is done all the same. */
static void synchronous_calls_stand_behind(void) {
    int32_t x = rank, y = 0, z = 0;
    Told told = {0};
    shmcclRequest_t request;
    shmcclCall_t one = call(shmcclOpAllReduce, &x, &y, 1, 0, 0);
    OK(shmcclSubmit(comm, &one, 1, tell, &told, &request));
    OK(shmcclRequestFree(request));
    OK(shmcclAllReduce(&x, &z, 1, shmcclInt32, shmcclSum, comm, NULL));
    EXPECT(told.calls == 1 && y == z && z == n * (n - 1) / 2);
    /* And at once, with a scalar of this rank's own. */
    int32_t factor = rank + 1;
    one.scalar = &factor;
    OK(shmcclSubmit(comm, &one, 1, tell, &told, NULL));
    int32_t expected = 0;
    for (int r = 0; r < n; r++) expected += r * (r + 1);
    EXPECT(told.calls == 2 && y == expected);
}

/* Both sides receive first, twice, then send: no order of them blocks. */
static void messages_progress_together(void) {
    int32_t given[2] = {rank, rank + 100}, got[2] = {-1, -1};
    int right = (rank + 1) % n, left = (rank + n - 1) % n;
    shmcclCall_t calls[4] = {call(shmcclOpRecv, NULL, &got[1], 1, left, 7), call(shmcclOpRecv, NULL, &got[0], 1, left, 5),
                             call(shmcclOpSend, &given[0], NULL, 1, right, 5), call(shmcclOpSend, &given[1], NULL, 1, right, 7)};
    shmcclRequest_t requests[4];
    for (int i = 0; i < 4; i++) OK(shmcclSubmit(messages, &calls[i], 1, NULL, NULL, &requests[i]));
    for (int i = 0; i < 4; i++) {
        OK(shmcclRequestWait(requests[i], 0));
        OK(shmcclRequestFree(requests[i]));
    }
    EXPECT(got[0] == left && got[1] == left + 100);
    /* As one operation. */
    shmcclRequest_t all;
    got[0] = got[1] = -1;
    OK(shmcclSubmit(messages, calls, 4, NULL, NULL, &all));
    OK(shmcclRequestWait(all, 0));
    OK(shmcclRequestFree(all));
    EXPECT(got[0] == left && got[1] == left + 100);
}

/* Rank 0 receives from all others, in whatever order they come. */
static void whoever_sends_is_named(void) {
    int32_t given = rank, got;
    int seen = 0, source;
    shmcclRequest_t request;
    if (rank != 0) {
        shmcclCall_t send = call(shmcclOpSend, &given, NULL, 1, 0, 3);
        OK(shmcclSubmit(messages, &send, 1, NULL, NULL, NULL));
        return;
    }
    for (int r = 1; r < n; r++) {
        shmcclCall_t receive = call(shmcclOpRecv, NULL, &got, 1, SHMCCL_ANY_SOURCE, 3);
        OK(shmcclSubmit(messages, &receive, 1, NULL, NULL, &request));
        OK(shmcclRequestWait(request, 0));
        OK(shmcclRequestSource(request, &source));
        OK(shmcclRequestFree(request));
        EXPECT(source == got);
        seen |= 1 << source;
    }
    EXPECT(seen == (1 << n) - 2);
}

static void wrong_calls_start_nothing(void) {
    int32_t x = 1, y;
    Told told = {0};
    shmcclRequest_t request;
    shmcclCall_t wrong = call(shmcclOpAllReduce, &x, &y, 1, 0, 0);
    wrong.size = 8;
    FAILS(shmcclInvalidArgument, "sizeof(shmcclCall_t)", shmcclSubmit(comm, &wrong, 1, tell, &told, &request));
    wrong = call((shmcclOperation_t)99, &x, &y, 1, 0, 0);
    FAILS(shmcclInvalidArgument, "operation is 99", shmcclSubmit(comm, &wrong, 1, tell, &told, &request));
    wrong = call(shmcclOpSend, &x, NULL, 1, 0, -2);
    FAILS(shmcclInvalidArgument, "tag is -2", shmcclSubmit(comm, &wrong, 1, tell, &told, &request));
    FAILS(shmcclInvalidArgument, "calls is a null pointer", shmcclSubmit(comm, NULL, 1, tell, &told, &request));
    EXPECT(told.calls == 0);
}

/* One request too many fails before it has started anything; the next one is like all others. */
static void a_request_without_a_place_starts_nothing(void) {
    enum { PLACES = 1 << 16 };
    static shmcclRequest_t requests[PLACES];
    int32_t x = rank, y;
    Told told = {0};
    shmcclCall_t one = call(shmcclOpAllReduce, &x, &y, 1, 0, 0);
    for (int i = 0; i < PLACES; i++) {
        OK(shmcclSubmit(comm, &one, 1, NULL, NULL, &requests[i]));
        OK(shmcclRequestWait(requests[i], 0));
    }
    shmcclRequest_t more;
    FAILS(shmcclExhausted, "all 65536 are in use", shmcclSubmit(comm, &one, 1, tell, &told, &more));
    OK(shmcclRequestFree(requests[0]));
    OK(shmcclSubmit(comm, &one, 1, tell, &told, &requests[0]));
    OK(shmcclRequestWait(requests[0], 0));
    EXPECT(told.calls == 1 && y == n * (n - 1) / 2);
    for (int i = 0; i < PLACES; i++) OK(shmcclRequestFree(requests[i]));
}

/* What was started ends when the epoch does. */
static void a_revoked_epoch_ends_what_was_started(void) {
    int32_t x = 1, y;
    Told told = {0};
    shmcclRequest_t request;
    OK(shmcclBarrier(comm));
    if (rank == 0) {
        shmcclCall_t never = call(shmcclOpRecv, NULL, &y, 1, 1, 11);
        OK(shmcclSubmit(messages, &never, 1, tell, &told, &request));
        int done = 1;
        OK(shmcclRequestTest(request, &done));
        EXPECT(!done);
        RETURNS(shmcclInProgress, shmcclRequestWait(request, 5));
        OK(shmcclCommRevoke(comm));
        RETURNS(shmcclRevoked, shmcclRequestWait(request, 0));
        EXPECT(told.calls == 1 && told.result == shmcclRevoked && strstr(told.text, "revoked"));
        OK(shmcclRequestFree(request));
    } else {
        RETURNS(shmcclRevoked, shmcclAllReduce(&x, &y, 1, shmcclInt32, shmcclSum, comm, NULL));
    }
}

int main(void) {
    OK(shmcclCommInit(&comm));
    OK(shmcclCommCount(comm, &n));
    OK(shmcclCommUserRank(comm, &rank));
    OK(shmcclCommDuplicate(comm, &messages));
    started_collectives_are_done_in_order();
    synchronous_calls_stand_behind();
    messages_progress_together();
    whoever_sends_is_named();
    wrong_calls_start_nothing();
    a_request_without_a_place_starts_nothing();
    a_revoked_epoch_ends_what_was_started();
    OK(shmcclCommDestroy(messages));
    OK(shmcclCommDestroy(comm));
    return 0;
}
