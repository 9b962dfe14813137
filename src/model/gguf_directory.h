/* What gguf.c reads and gguf_lookup.c finds. */
#ifndef DW_MODEL_GGUF_DIRECTORY_H
#define DW_MODEL_GGUF_DIRECTORY_H

#include <stdint.h>

#include "model/gguf.h"

/* Kinds of metadata values, as the file numbers them. */
typedef enum {
    KIND_U8,
    KIND_I8,
    KIND_U16,
    KIND_I16,
    KIND_U32,
    KIND_I32,
    KIND_F32,
    KIND_BOOL,
    KIND_STRING,
    KIND_ARRAY,
    KIND_U64,
    KIND_I64,
    KIND_F64,
    KIND_COUNT
} dw_gguf_kind;

/* A scalar is an array of one. Elements lie one behind the other, unaligned; strings each behind their u64 length. */
typedef struct {
    dw_string name;    /* first, see dw_gguf_compare */
    dw_gguf_kind kind; /* of the elements */
    int is_array;
    int64_t count;
    const uint8_t *data;
} dw_gguf_entry;

enum { DW_GGUF_DIMS = 4 };

typedef struct {
    dw_string name; /* first, see dw_gguf_compare */
    uint32_t type;  /* as ggml numbers them; may be unknown */
    int dims;
    int64_t size[DW_GGUF_DIMS]; /* fastest first; 1 from `dims` on */
    int64_t offset;             /* in the data section */
    const uint8_t *data;
} dw_gguf_tensor;

struct dw_gguf {
    char *path;
    const uint8_t *map;
    int64_t bytes;
    dw_gguf_entry *entries; /* sorted by name, as the tensors are */
    int64_t entry_count, entry_capacity;
    dw_gguf_tensor *tensors;
    int64_t tensor_count, tensor_capacity;
};

/* Orders entries, tensors and plain dw_strings by name (each starts with one). */
int dw_gguf_compare(const void *a, const void *b);

/* Bytes of one element; 0 for strings, arrays and unknown kinds. */
int64_t dw_gguf_kind_bytes(uint32_t kind);

/* Reports DW_INPUT with "path: " in front, and is DW_INPUT (a macro, so that the compiler sees that it never is DW_OK). */
#define DW_GGUF_REFUSE(path, err, ...) (dw_gguf_report((path), (err), __VA_ARGS__), DW_INPUT)
void dw_gguf_report(const char *path, dw_error *err, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
