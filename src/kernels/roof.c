#include "kernels/roof.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { REGISTERS = 12 };

static const dw_roof roofs[] = {
    {"scalar", dw_roof_read_scalar, dw_roof_fma_scalar, 2 * REGISTERS},
    {"avx2", dw_roof_read_avx2, dw_roof_fma_avx2, 2 * 8 * REGISTERS},
    {"avx512", dw_roof_read_avx512, dw_roof_fma_avx512, 2 * 16 * REGISTERS},
};
enum { ROOFS = sizeof roofs / sizeof roofs[0] };

const dw_roof *dw_roof_named(const char *name)
{
    for (int i = 0; i < ROOFS; i++) {
        if (strcmp(roofs[i].name, name) == 0) return &roofs[i];
    }
    return NULL;
}

float dw_roof_read_scalar(const float *x, int64_t n)
{
    float sum[16] = {0};
    for (int64_t i = 0; i < n; i += 16) {
        for (int l = 0; l < 16; l++) sum[l] += x[i + l];
    }
    for (int l = 1; l < 16; l++) sum[0] += sum[l];
    return sum[0];
}

float dw_roof_fma_scalar(int64_t rounds)
{
    float a[REGISTERS];
    for (int r = 0; r < REGISTERS; r++) a[r] = (float)r;
    for (int64_t i = 0; i < rounds; i++) {
        for (int r = 0; r < REGISTERS; r++) a[r] = fmaf(a[r], 0.5f, 1.0f);
    }
    for (int r = 1; r < REGISTERS; r++) a[0] += a[r];
    return a[0];
}
