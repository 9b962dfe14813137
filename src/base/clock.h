#ifndef DW_BASE_CLOCK_H
#define DW_BASE_CLOCK_H

#include <time.h>

/* Seconds on a clock that never goes back. */
static inline double dw_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
