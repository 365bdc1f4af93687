/* What the test programs have in common: each check that fails says where, and ends the program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shmccl.h"

#define EXPECT(condition)                                                                     \
    do {                                                                                      \
        if (!(condition)) {                                                                   \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                   \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

#define RETURNS(code, call)                                                                   \
    do {                                                                                      \
        shmcclResult_t got = (call);                                                          \
        if (got != (code)) {                                                                  \
            fprintf(stderr, "%s:%d: %s: %s (%s)\n", __FILE__, __LINE__, #call,                \
                    shmcclGetErrorString(got), shmcclGetLastError(NULL));                     \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)

#define OK(call) RETURNS(shmcclSuccess, call)

/* The call fails with this code, and a text that holds these words. */
#define FAILS(code, words, call)                                                              \
    do {                                                                                      \
        RETURNS(code, call);                                                                  \
        if (!strstr(shmcclGetLastError(NULL), words)) {                                       \
            fprintf(stderr, "%s:%d: %s: no \"%s\" in: %s\n", __FILE__, __LINE__, #call, words, \
                    shmcclGetLastError(NULL));                                                \
            exit(1);                                                                          \
        }                                                                                     \
    } while (0)
