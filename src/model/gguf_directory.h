/* What gguf.c reads, gguf_lookup.c finds and gguf_split.c checks. */
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
    dw_string name;    /* first, see dw_string_compare */
    dw_gguf_kind kind; /* of the elements */
    int is_array;
    int64_t count;
    const uint8_t *data;
} dw_gguf_entry;

struct dw_gguf {
    dw_file *files; /* [file_count], the parts in order; [count of parts] allocated */
    int64_t file_count;
    dw_gguf_entry *entries; /* of the first part, sorted by name */
    int64_t entry_count, entry_capacity;
    dw_tensors tensors; /* of all parts */
};

/* Bytes of one element; 0 for strings, arrays and unknown kinds. */
int64_t dw_gguf_kind_bytes(uint32_t kind);

/* Part `number` of `count`, both from 1; 1 of 1 is a whole file. */
typedef struct {
    int64_t number, count;
} dw_gguf_part;

/* What the name of a file says: NAME-0000i-of-0000N.gguf is part i of N. */
dw_gguf_part dw_gguf_part_named(const char *path);

/* *out (dw_free) = the path of the part with that number of the split model that path is a part of. */
dw_status dw_gguf_part_path(char **out, const char *path, int64_t number, dw_error *err);

/* Whether a part's metadata say the same as its name. *tensors: what split.tensors.count said so far and says from now on; -1:
   nothing. The entries of `file` are the part's. */
dw_status dw_gguf_part_check(const dw_gguf *file, dw_gguf_part part, int64_t *tensors, dw_error *err);

#endif
