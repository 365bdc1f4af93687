/* One PE ends all, as all is done. */
#define STATUS 0
#include "global_exit.c"
