/* Storage types of weights and of the KV cache, and the kinds of activations. */
#ifndef DW_KERNELS_TYPES_H
#define DW_KERNELS_TYPES_H

#include <stdint.h>

/* Activations of the feed forward. silu: x / (1 + exp(-x)); gelu: x/2 (1 + erf(x / sqrt 2)); gelu_tanh: its approximation by
   the hyperbolic tangent, "gelu_new". */
typedef enum { DW_SILU, DW_GELU, DW_GELU_TANH, DW_ACTIVATIONS } dw_activation;

typedef enum {
    DW_F32,
    DW_F16,
    DW_BF16,
    DW_Q4_0,
    DW_Q4_1,
    DW_Q5_0,
    DW_Q5_1,
    DW_Q8_0,
    DW_Q2_K,
    DW_Q3_K,
    DW_Q4_K,
    DW_Q5_K,
    DW_Q6_K,
    DW_IQ4_NL,
    DW_IQ4_XS,
    DW_TYPE_COUNT
} dw_type;

/* A type stores `elements` numbers in `bytes` bytes, block after block (kernels/blocks.h). GGUF numbers the types as ggml
   does. */
typedef struct {
    const char *name; /* as users write it: "F32", "Q4_1" */
    int elements;
    int bytes;
    int gguf_id;
} dw_type_info;

extern const dw_type_info dw_types[DW_TYPE_COUNT];

/* Bytes of one row of `elements` numbers; elements must be a multiple of the type's block. */
static inline int64_t dw_row_bytes(dw_type type, int64_t elements)
{
    return elements / dw_types[type].elements * dw_types[type].bytes;
}

#endif
