/* A loaded model: hyperparameters and weights, read-only once loaded and shared by all ranks and threads of the process. */
#ifndef DW_MODEL_MODEL_H
#define DW_MODEL_MODEL_H

#include "kernels/linear.h"
#include "model/family.h"
#include "model/gguf.h"

typedef struct {
    dw_matrix q;                    /* [heads * head_dim][hidden] */
    dw_matrix k;                    /* [kv_heads * head_dim][hidden] */
    dw_matrix v;                    /* [kv_heads * head_dim][hidden] */
    dw_matrix output;               /* [hidden][heads * head_dim] */
    dw_matrix gate;                 /* [feed_forward][hidden] */
    dw_matrix up;                   /* [feed_forward][hidden] */
    dw_matrix down;                 /* [hidden][feed_forward] */
    const float *q_bias;            /* [heads * head_dim], or NULL: none, as the next two */
    const float *k_bias;            /* [kv_heads * head_dim] */
    const float *v_bias;            /* [kv_heads * head_dim] */
    const float *attention_norm;    /* [hidden] */
    const float *feed_forward_norm; /* [hidden] */
    int32_t *value_exponent;        /* [kv_heads]: |V| <= 2^value_exponent for every possible input (docs/numerics.md) */
} dw_layer;

typedef struct dw_model {
    char *path;
    const dw_family *family;
    dw_gguf *file;

    int64_t layers;
    int64_t hidden;
    int64_t feed_forward;
    int64_t heads;
    int64_t kv_heads;
    int64_t head_dim;
    int64_t rope_dims; /* leading dims of a head that rotate, in pairs as the family says */
    int64_t vocabulary;
    int64_t context; /* trained context */
    double norm_epsilon;
    double rope_base;

    dw_matrix embedding;      /* [vocabulary][hidden] */
    dw_matrix head;           /* [vocabulary][hidden]; the embedding when the file has no output.weight */
    const float *output_norm; /* [hidden] */
    dw_layer *layer;          /* [layers] */
} dw_model;

/* Loads path (a GGUF file). rope_base > 0 overrides the file's. Local: each process loads for itself.
   Errors: DW_INPUT for a missing or damaged file, another family, an unknown tensor type or a wrong shape, each naming what;
   DW_RESOURCE. */
dw_status dw_model_load(dw_model **out, const char *path, double rope_base, dw_error *err);
void dw_model_free(dw_model *model);

/* Whether dw_model_load would take the file, all but the values in its tensors, which are not read: takes milliseconds. */
dw_status dw_model_check(const char *path, dw_error *err);

/* Bytes of all weights as stored. */
int64_t dw_model_weight_bytes(const dw_model *model);

#endif
