/* The functions of OpenSHMEM by their second names, for profilers. shmem.h declares both. */
#include <shmem.h>
