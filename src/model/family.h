/* Model families as data: what distinguishes one from another, a row each. The forward pass and the loading are one. A similar
   family is a row here, a map of names and a row of defaults in config_json.c. */
#ifndef DW_MODEL_FAMILY_H
#define DW_MODEL_FAMILY_H

#include "base/string.h"
#include "kernels/types.h"

/* Which numbers of a head rotate together: neighbours (2i, 2i+1), or i and i + dims/2. GGUF files of llama models have their q
   and k rows permuted for the first; those of others, and all checkpoints of Hugging Face, are in the order of the second. */
typedef enum { DW_ROPE_NEIGHBOURS, DW_ROPE_HALVES, DW_ROPE_ABSENT } dw_rope_pairs;

typedef enum { DW_NORM_RMS, DW_NORM_LAYER } dw_norm_kind;

/* How a Hugging Face checkpoint stores Q, K and V. (GGUF: three matrices, or one with the rows of Q, K, V in this order.) */
typedef enum {
    DW_QKV_SEPARATE,
    DW_QKV_COLUMNS, /* one matrix [inputs][3 * hidden], transposed like all matrices of the model (GPT-2's Conv1D) */
    DW_QKV_BY_HEAD  /* one matrix; each head has its rows of q, then k, then v (GPT-NeoX) */
} dw_qkv_layout;

/* What a tensor is for. The first DW_PART_LAYER are of the model, the others of each layer. */
typedef enum {
    DW_PART_EMBEDDING,
    DW_PART_POSITIONS,
    DW_PART_OUTPUT_NORM,
    DW_PART_HEAD,
    DW_PART_ROPE_FACTORS, /* GGUF only */
    DW_PART_LAYER,
    DW_PART_ATTENTION_NORM = DW_PART_LAYER,
    DW_PART_Q,
    DW_PART_K,
    DW_PART_V,
    DW_PART_QKV,
    DW_PART_Q_NORM,
    DW_PART_K_NORM,
    DW_PART_ATTENTION_OUTPUT,
    DW_PART_ATTENTION_POST_NORM,
    DW_PART_FEED_FORWARD_NORM,
    DW_PART_GATE,
    DW_PART_UP,
    DW_PART_DOWN,
    DW_PART_FEED_FORWARD_POST_NORM,
    DW_PARTS
} dw_part;

typedef struct {
    const char *name;         /* as reports name it */
    const char *architecture; /* general.architecture of GGUF files and the prefix of their keys; NULL: there are none */
    const char *const *types; /* model_type values of config.json, NULL at the end */
    dw_rope_pairs gguf_pairs; /* DW_ROPE_ABSENT: learned positions */
    dw_norm_kind norm;
    dw_activation activation; /* where the file does not name one */
    int norm_has_bias;
    int norm_offset; /* Hugging Face stores norm gains less 1 (Gemma) */
    dw_qkv_layout qkv;
    int gguf_qkv_is_one; /* GGUF: attn_qkv.weight */
    int qkv_has_bias;    /* tensors of these biases must be there */
    int output_has_bias; /* attention output */
    int feed_forward_has_bias;
    int is_gated;                /* W_down (act(W_gate x) * W_up x), else W_down act(W_up x) */
    int has_qk_norm;             /* RMS norm of each head of q and k before the rotation */
    int has_post_norms;          /* norms of what attention and feed forward return, before it is added */
    int has_local_layers;        /* layers with a window alternate with others and have a RoPE base of their own */
    int scales_embedding;        /* by sqrt(hidden) */
    int is_transposed;           /* Hugging Face stores matrices [inputs][outputs] */
    const char *hf_prefix;       /* in front of all names but the head's; files without it exist ("transformer.", "model.") */
    const char *const *hf_names; /* [DW_PARTS] without ".weight" and ".bias"; NULL: the family has no such part; layers: behind
                                      "hf_layers.N." */
    const char *hf_layers;       /* "layers", "h" */
    const char *const *hf_ignored; /* endings of names that hold no weights (masks, inv_freq), NULL at the end */
} dw_family;

/* By general.architecture. NULL when there is no such family. */
const dw_family *dw_family_of_gguf(dw_string architecture);

/* By model_type. */
const dw_family *dw_family_of_hf(dw_string model_type);

/* "gemma3, gpt2, ...", for messages: of GGUF files, of directories. */
const char *dw_family_gguf_names(void);
const char *dw_family_hf_names(void);

/* Name of a part in a GGUF file without ".weight" and ".bias" ("token_embd", "attn_q"; the latter stand behind "blk.N."). */
const char *dw_part_gguf_name(dw_part part);

#endif
