/* The numbers and switches of a model, read from a GGUF file's metadata or from config.json and checked. What this program would
   leave out is refused: every key is either understood, or stands at a value that changes nothing, or is an error. */
#ifndef DW_MODEL_CONFIG_H
#define DW_MODEL_CONFIG_H

#include "model/checkpoint.h"
#include "model/family.h"
#include "model/rope.h"

typedef struct {
    const dw_family *family;
    int64_t layers;
    int64_t hidden;
    int64_t feed_forward;
    int64_t heads;
    int64_t kv_heads;   /* divides heads */
    int64_t head_dim;   /* even where it rotates */
    int64_t vocabulary; /* -1: not stated, the embedding's rows count */
    int64_t context;    /* positions that the model may use: trained, or extended by its RoPE scaling */
    double norm_epsilon;
    dw_activation activation;
    int is_parallel;          /* x + attention(norm1 x) + feed_forward(norm2 x), else one after the other */
    int is_tied;              /* the head is the embedding: -1 not stated (GGUF: as the file has a head or not), 0, 1 */
    double query_scale;       /* q is multiplied by it; scores are q.k / sqrt(head_dim) */
    dw_rope_pairs rope_pairs; /* of this checkpoint */
    int64_t rope_dims;        /* leading dims of a head that rotate; even */
    dw_rope rope;
    dw_rope local_rope; /* of layers with a window, where a model has another for these (Gemma 3); else equal to rope */
    int64_t *window;    /* [layers] positions that a row sees, itself included; 0: all. Owned */
} dw_config;

/* What the command line overrides. Zero: the model's. */
typedef struct {
    double rope_base;         /* 0: the model's */
    const char *rope_scaling; /* NULL, or KIND[:FACTOR[:ORIGINAL]] as --rope-scaling takes it, already checked */
} dw_config_overrides;

/* DW_INPUT names file, key and the legal values. Rope factors of GGUF files (a tensor) are filled in, too. Local. */
dw_status dw_config_read(dw_config *config, const dw_checkpoint *checkpoint, const dw_config_overrides *overrides,
                         dw_error *err);
void dw_config_free(dw_config *config);

/* Parses the value of --rope-scaling: none, linear:F, dynamic:F, yarn:F[:ORIGINAL]. DW_USAGE. rope may be NULL (only checks). */
dw_status dw_rope_scaling_parse(const char *text, dw_rope *rope, dw_error *err);

#endif
