/* Linear layers: y = W x with the dot product of kernels.h, for any number of rows, spread over a pool. */
#ifndef DW_KERNELS_LINEAR_H
#define DW_KERNELS_LINEAR_H

#include "base/pool.h"
#include "kernels/kernels.h"

/* A weight matrix, rows of `inputs` numbers; data belongs to somebody else (the mapped file). */
typedef struct {
    dw_type type;
    int64_t outputs;
    int64_t inputs;
    const void *data;
} dw_matrix;

/* Scratch of dw_linear for one pool: one tile of widened weights per thread. */
typedef struct dw_linear_scratch dw_linear_scratch;
dw_status dw_linear_scratch_create(dw_linear_scratch **out, int threads, int64_t max_inputs, dw_error *err);
void dw_linear_scratch_destroy(dw_linear_scratch *scratch);

/* y: [rows][y_stride] f32, y_stride >= outputs; x: [rows][x_stride] f32, x_stride >= dw_padded(inputs), zero behind inputs.
   The bits of a row do not depend on rows, threads or instruction set. Local. Few rows go through kernels->linear[],
   many through widened tiles and kernels->linear_tile. */
void dw_linear(const dw_kernels *kernels, dw_pool *pool, dw_linear_scratch *scratch, float *y, int64_t y_stride,
               const dw_matrix *w, const float *x, int64_t x_stride, int64_t rows);

#endif
