/* The tensors of a checkpoint, by name, whatever file format they come from. */
#ifndef DW_MODEL_TENSORS_H
#define DW_MODEL_TENSORS_H

#include "base/string.h"
#include "kernels/linear.h"
#include "model/file.h"

enum { DW_TENSOR_DIMS = 4 };

typedef struct {
    dw_string name;               /* first: see dw_string_compare */
    uint32_t type_id;             /* as the format numbers types (GGUF), or 0 */
    char type[12];                /* as the format names it; "" when the format does not know the number */
    dw_type storage;              /* the type that Dewpoint computes with; DW_TYPE_COUNT: none */
    int dims;                     /* 0 (a scalar) to 4 */
    int64_t size[DW_TENSOR_DIMS]; /* fastest first; 1 from `dims` on */
    int64_t elements;
    int64_t bytes; /* 0 for a type of unknown size */
    const uint8_t *data;
    const dw_file *file; /* that holds it */
} dw_tensor;

/* Sorted by name once dw_tensors_sort has been called. Names and data belong to the files. */
typedef struct {
    const char *path; /* of the checkpoint, for messages */
    dw_tensor *list;
    int64_t count, capacity;
} dw_tensors;

void dw_tensors_free(dw_tensors *tensors);

/* Sorts by name; DW_INPUT when a name occurs twice. */
dw_status dw_tensors_sort(dw_tensors *tensors, dw_error *err);

/* NULL when there is none. */
const dw_tensor *dw_tensors_find(const dw_tensors *tensors, const char *name);

/* A tensor of one or two dimensions as a matrix [outputs][inputs] (one dimension: outputs 1). Its shape must be the given one,
   -1 for "any". Absent: *found = 0, or DW_INPUT where found is NULL. A type that Dewpoint does not compute with is DW_INPUT and
   names tensor, type and what there is. data is aligned to the type's elements in GGUF files; in safetensors files it may not
   be. */
dw_status dw_tensors_matrix(const dw_tensors *tensors, const char *name, int64_t outputs, int64_t inputs, dw_matrix *value,
                            int *found, dw_error *err);

#endif
