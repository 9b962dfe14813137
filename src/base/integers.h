#ifndef DW_BASE_INTEGERS_H
#define DW_BASE_INTEGERS_H

#include <stdint.h>

static inline int64_t dw_smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t dw_larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* x >= 0 rounded up to a multiple of step. */
static inline int64_t dw_round_up(int64_t x, int64_t step)
{
    return (x + step - 1) / step * step;
}

#endif
