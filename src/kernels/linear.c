#include "kernels/linear.h"

#include "base/integers.h"
#include "base/memory.h"

enum {
    FEW_ROWS = 12,        /* up to here linear[] in slices of DW_LINEAR_ROWS beats widening */
    STORED_OUTPUTS = 128, /* most outputs of a task on stored weights: they stay in the L2 cache from slice to slice */
    PANEL = 32,           /* most outputs of a task on widened weights: with 576 inputs they fill 72 KiB of the L2 cache */
    OUTPUTS_STEP = 8,     /* tasks begin at multiples of this: the kernels take up to so many outputs at a time */
    TASKS_PER_THREAD = 4  /* at least, where there are outputs enough */
};

struct dw_linear_scratch {
    float *panels; /* [threads][PANEL][panel_stride] */
    int64_t panel_stride;
};

/* One product, as its tasks see it. */
typedef struct {
    const dw_kernels *kernels;
    const dw_linear_scratch *scratch;
    float *y;
    int64_t y_stride;
    const dw_matrix *w;
    const float *x;
    int64_t x_stride;
    int64_t rows;
    int64_t chunk; /* outputs of a task */
} product;

/* Floats from one widened row to the next: an odd number of cache lines, so that rows do not share their cache sets. */
static int64_t panel_stride(int64_t inputs)
{
    const int64_t lines = dw_padded(inputs) / DW_LANES;
    return (lines | 1) * DW_LANES;
}

dw_status dw_linear_scratch_create(dw_linear_scratch **out, int threads, int64_t max_inputs, dw_error *err)
{
    dw_linear_scratch *scratch;
    dw_status status;
    *out = NULL;
    DW_TRY(DW_ALLOC(&scratch, 1, "scratch of linear layers", err));
    scratch->panel_stride = panel_stride(max_inputs);
    status = dw_alloc_bytes((void **)&scratch->panels, (int64_t)threads * PANEL, scratch->panel_stride * (int64_t)sizeof(float),
                            "widened weights", err);
    if (status != DW_OK) {
        dw_free(scratch);
        return status;
    }
    *out = scratch;
    return DW_OK;
}

void dw_linear_scratch_destroy(dw_linear_scratch *scratch)
{
    if (scratch == NULL) return;
    dw_free(scratch->panels);
    dw_free(scratch);
}

static const char *weights_of(const dw_matrix *w, int64_t output)
{
    return (const char *)w->data + output * dw_row_bytes(w->type, w->inputs);
}

/* All rows of a chunk of outputs, from the weights as they are stored. */
static void run_stored(void *context, int64_t task, int thread)
{
    const product *p = context;
    const int64_t first = task * p->chunk;
    const int64_t outputs = dw_smaller(p->chunk, p->w->outputs - first);
    (void)thread;
    for (int64_t row = 0; row < p->rows; row += DW_LINEAR_ROWS) {
        p->kernels->linear[p->w->type](p->y + row * p->y_stride + first, p->y_stride, weights_of(p->w, first), outputs,
                                       p->x + row * p->x_stride, p->x_stride, (int)dw_smaller(DW_LINEAR_ROWS, p->rows - row),
                                       p->w->inputs);
    }
}

/* All rows of a chunk of outputs (at most PANEL), from weights widened to float. */
static void run_widened(void *context, int64_t task, int thread)
{
    const product *p = context;
    const int64_t first = task * p->chunk;
    const int64_t outputs = dw_smaller(p->chunk, p->w->outputs - first);
    const float *panel = (const float *)(const void *)weights_of(p->w, first);
    int64_t stride = p->w->inputs;
    if (p->w->type != DW_F32 || p->w->inputs % DW_LANES != 0) {
        float *widened = p->scratch->panels + p->scratch->panel_stride * PANEL * thread;
        stride = panel_stride(p->w->inputs);
        for (int64_t o = 0; o < outputs; o++) {
            p->kernels->dequantize[p->w->type](widened + o * stride, weights_of(p->w, first + o), p->w->inputs);
        }
        panel = widened;
    }
    p->kernels->linear_tile(p->y + first, p->y_stride, panel, stride, outputs, p->x, p->x_stride, p->rows, p->w->inputs);
}

void dw_linear(const dw_kernels *kernels, dw_pool *pool, dw_linear_scratch *scratch, float *y, int64_t y_stride,
               const dw_matrix *w, const float *x, int64_t x_stride, int64_t rows)
{
    const int few = rows <= FEW_ROWS;
    const int64_t tasks = (int64_t)dw_pool_threads(pool) * TASKS_PER_THREAD;
    const int64_t even = (w->outputs / tasks + OUTPUTS_STEP - 1) / OUTPUTS_STEP * OUTPUTS_STEP;
    const int64_t chunk = dw_smaller(even > 0 ? even : OUTPUTS_STEP, few ? STORED_OUTPUTS : PANEL);
    product p = {kernels, scratch, y, y_stride, w, x, x_stride, rows, chunk};
    dw_pool_run(pool, (w->outputs + chunk - 1) / chunk, few ? run_stored : run_widened, &p);
}
