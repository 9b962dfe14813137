/* A loaded model: hyperparameters and weights, read-only once loaded and shared by all ranks and threads of the process. */
#ifndef DW_MODEL_MODEL_H
#define DW_MODEL_MODEL_H

#include "kernels/linear.h"
#include "model/checkpoint.h"
#include "model/config.h"

/* gain NULL: no such norm. bias NULL: none. [hidden], or [head_dim] for norms of heads. */
typedef struct {
    const float *gain;
    const float *bias;
} dw_norm;

/* w.data NULL: no such layer. bias [outputs] NULL: none. */
typedef struct {
    dw_matrix w;
    const float *bias;
} dw_linear_layer;

typedef struct {
    dw_norm attention_norm;
    dw_linear_layer q;      /* [heads * head_dim][hidden] */
    dw_linear_layer k;      /* [kv_heads * head_dim][hidden] */
    dw_linear_layer v;      /* [kv_heads * head_dim][hidden] */
    dw_norm q_norm, k_norm; /* of each head, before the rotation */
    dw_linear_layer output; /* [hidden][heads * head_dim] */
    dw_norm attention_post_norm;
    dw_norm feed_forward_norm;
    dw_linear_layer gate; /* [feed_forward][hidden]; absent in models without gate */
    dw_linear_layer up;   /* [feed_forward][hidden] */
    dw_linear_layer down; /* [hidden][feed_forward] */
    dw_norm feed_forward_post_norm;
    int32_t *value_exponent; /* [kv_heads]: |V| <= 2^value_exponent for every possible input (docs/numerics.md) */
} dw_layer;

typedef struct dw_model {
    dw_checkpoint *checkpoint;
    dw_config config;
    int64_t vocabulary;    /* rows of the embedding */
    dw_matrix embedding;   /* [vocabulary][hidden] */
    float embedding_scale; /* rows are multiplied by it; 1: none */
    dw_matrix positions;   /* [context][hidden] learned positions; data NULL: none */
    dw_norm output_norm;
    dw_matrix head;  /* [vocabulary][hidden]; the embedding when tied */
    dw_layer *layer; /* [config.layers] */

    void **owned; /* [owned_count] arrays that had to be made: transposed, regrouped, widened or moved to an aligned place */
    int64_t owned_count, owned_capacity;
    int64_t owned_bytes;
    int64_t stored_bytes; /* of the tensors that are used, as they lie in the files */
} dw_model;

/* Loads path: a GGUF file (any part of a split one) or a Hugging Face directory. Local: each process loads for itself.
   Errors: DW_INPUT for a missing or damaged file, another family, an unknown tensor type or a wrong shape, each naming what;
   DW_RESOURCE. */
dw_status dw_model_load(dw_model **out, const char *path, dw_file_way way, const dw_config_overrides *overrides, dw_error *err);
void dw_model_free(dw_model *model);

/* Whether dw_model_load would take the checkpoint, all but the values in its tensors, which are not read: takes milliseconds. */
dw_status dw_model_check(const char *path, dw_error *err);

/* Bytes of all weights in memory, what had to be made included. */
int64_t dw_model_weight_bytes(const dw_model *model);

#endif
