/* Model families as data: what distinguishes one from another, a row each. The forward pass is one. */
#ifndef DW_MODEL_FAMILY_H
#define DW_MODEL_FAMILY_H

/* Which numbers of a head rotate together: neighbours (2i, 2i+1), or i and i + dims/2. GGUF files of llama models have their q
   and k rows permuted for the first, those of others keep the checkpoint's order, which is the second. */
typedef enum { DW_ROPE_NEIGHBOURS, DW_ROPE_HALVES } dw_rope_pairs;

typedef struct {
    const char *name; /* general.architecture, and the prefix of the metadata keys */
    dw_rope_pairs rope_pairs;
    int has_qkv_bias; /* tensors attn_q.bias, attn_k.bias, attn_v.bias */
} dw_family;

/* NULL when there is no such family. name: length bytes, not terminated. */
const dw_family *dw_family_named(const char *name, long long length);

/* "llama, qwen2", for messages. */
const char *dw_family_names(void);

#endif
