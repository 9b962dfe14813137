/* Rotary position embedding (RoPE, arXiv 2104.09864) and its scalings: what turns a model's settings into angles. */
#ifndef DW_MODEL_ROPE_H
#define DW_MODEL_ROPE_H

#include <stdint.h>

#include "base/error.h"

typedef enum { DW_ROPE_NONE, DW_ROPE_LINEAR, DW_ROPE_DYNAMIC, DW_ROPE_LLAMA3, DW_ROPE_YARN, DW_ROPE_KINDS } dw_rope_kind;

/* Settings as a model states them, defaults filled in. Fields that a kind does not use are 0. */
typedef struct {
    double base;
    dw_rope_kind kind;
    double factor;           /* all kinds but none: >= 1 */
    double original_context; /* llama3, yarn; dynamic: the context from which on the base grows */
    double low_freq_factor;  /* llama3 */
    double high_freq_factor; /* llama3 */
    double attention_factor; /* yarn: multiplies cosine and sine; 1 for all others */
    double beta_fast;        /* yarn */
    double beta_slow;        /* yarn */
    int truncate;            /* yarn: the bounds of the ramp are rounded to whole dimensions */
    const float *factors;    /* [dims / 2] or NULL: each frequency is divided by its factor (GGUF rope_freqs.weight) */
} dw_rope;

/* "none", "linear", ... */
const char *dw_rope_name(dw_rope_kind kind);

/* YaRN's growth of scores: 0.1 * weight * ln(factor) + 1. The attention factor of a model is that of weight 1, unless it
   states another. */
double dw_rope_yarn_magnitude(double factor, double weight);

/* frequency[i], i < dims / 2: the angle of pair i is position * frequency[i]. context: positions that the run may use (only
   dynamic looks at it: the base grows with the context of the run, never with the rows so far, so that the bits do not depend
   on chunks). Sources: linear, dynamic, llama3 as in transformers' modeling_rope_utils; yarn arXiv 2309.00071. Local. */
void dw_rope_frequencies(const dw_rope *rope, int64_t dims, int64_t context, double *frequency);

/* cosine[i] = (float)(cos(position * frequency[i]) * attention_factor), sine likewise; computed in double with the program's own
   sine and cosine: for an attention factor of 1 within 2^-25 + position * frequency[i] * 2^-51 of the exact value.
   position * frequency[i] <= 2^31. */
void dw_rope_angles(float *cosine, float *sine, int64_t position, const double *frequency, int64_t pairs,
                    double attention_factor);

#endif
