/* Loops that do as much as one core of this machine can, in each instruction set: what the benches compare kernels with. */
#ifndef DW_KERNELS_ROOF_H
#define DW_KERNELS_ROOF_H

#include <stdint.h>

enum { DW_ROOF_STEP = 128 }; /* floats that read takes at a time */

typedef struct dw_roof {
    const char *name; /* as in dw_kernels */

    /* Reads n floats (a multiple of DW_ROOF_STEP, aligned to 64 bytes) and returns their sum, in an order of its own. */
    float (*read)(const float *x, int64_t n);

    /* `rounds` times one FMA of every lane of 12 independent registers. The result depends on all of them. */
    float (*fma)(int64_t rounds);
    int fma_flops; /* floating-point operations of a round: 2 an FMA and lane */
} dw_roof;

/* NULL when there is no such instruction set; it must be one that runs here (dw_kernels_named). */
const dw_roof *dw_roof_named(const char *name);

float dw_roof_read_scalar(const float *x, int64_t n);
float dw_roof_read_avx2(const float *x, int64_t n);
float dw_roof_read_avx512(const float *x, int64_t n);
float dw_roof_fma_scalar(int64_t rounds);
float dw_roof_fma_avx2(int64_t rounds);
float dw_roof_fma_avx512(int64_t rounds);

#endif
