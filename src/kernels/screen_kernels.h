/* Kernels of the int8 screen, one set an ISA; contracts in kernels.h. */
#ifndef DW_KERNELS_SCREEN_KERNELS_H
#define DW_KERNELS_SCREEN_KERNELS_H

#include <math.h>

#include "kernels/kernels.h"

#define DW_SCREEN_STEPS 32000.0f /* numbers of a query reach from -32000 to 32000 */
#define DW_SCREEN_LEAST 1e-30f   /* smaller queries are taken for 0 */

#define DW_DECLARE_SCREEN_KERNELS(isa)                                                                                         \
    dw_screen_query dw_screen_query_##isa(int16_t *number, const float *q, const uint16_t *scale, const uint16_t *lowest,      \
                                          int n);                                                                              \
    void dw_screen_scores_##isa(float *out, const dw_screen_query *query, const int16_t *number, int rows,                     \
                                const uint8_t *codes, int n);                                                                  \
    void dw_key_scores_##isa(float *out, const float *q, const float *rows, int64_t stride, int n, int d);

DW_DECLARE_SCREEN_KERNELS(scalar)
DW_DECLARE_SCREEN_KERNELS(avx2)
DW_DECLARE_SCREEN_KERNELS(avx512)
void dw_screen_scores_avx512vnni(float *out, const dw_screen_query *query, const int16_t *number, int rows,
                                 const uint8_t *codes, int n);

/* A chain waits for each FMA before the next; CHAINS of them run side by side. */
enum { DW_KEY_CHAINS = 8 };

static inline __attribute__((always_inline)) void dw_key_scores_chains(float *out, const float *q, const float *rows,
                                                                       int64_t stride, int n, int d)
{
    int i = 0;
    for (; i + DW_KEY_CHAINS <= n; i += DW_KEY_CHAINS) {
        float dot[DW_KEY_CHAINS] = {0};
        for (int c = 0; c < d; c++) {
            for (int64_t j = 0; j < DW_KEY_CHAINS; j++) dot[j] = fmaf(q[c], rows[(i + j) * stride + c], dot[j]);
        }
        for (int j = 0; j < DW_KEY_CHAINS; j++) out[i + j] = dot[j];
    }
    for (; i < n; i++) {
        float dot = 0.0f;
        for (int c = 0; c < d; c++) dot = fmaf(q[c], rows[i * stride + c], dot);
        out[i] = dot;
    }
}

#endif
