/* What the test programs share. */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends all PEs unless the condition holds. */
#define check(holds)                                                                              \
    do {                                                                                          \
        if (!(holds)) {                                                                           \
            fprintf(stderr, "%s:%d: %d: %s\n", __FILE__, __LINE__, 0, #holds);     \
            exit(3);                                                                              \
        }                                                                                         \
    } while (0)
