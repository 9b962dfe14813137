/* Tensor types as ggml numbers them: every one is known by name and size, so that a file can be checked and listed whether
   or not Dewpoint computes with it. */
#ifndef DW_MODEL_GGML_TYPE_H
#define DW_MODEL_GGML_TYPE_H

#include <stdint.h>

#include "kernels/types.h"

/* A row of `elements` numbers takes `bytes` bytes. */
typedef struct {
    const char *name;
    int elements;
    int bytes;
} dw_ggml_type;

/* NULL for an id that ggml does not use. */
const dw_ggml_type *dw_ggml_type_by_id(uint32_t id);

/* The type that Dewpoint computes with; DW_TYPE_COUNT when there is none. */
dw_type dw_type_of_ggml(uint32_t id);

#endif
