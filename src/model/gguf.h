/* GGUF v2 and v3 container (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): metadata and tensors of a file, or of
   the parts of a split one. Every length, count and offset is checked against the file before it is used; a damaged file gives
   DW_INPUT with a message that names the file and the key or tensor. */
#ifndef DW_MODEL_GGUF_H
#define DW_MODEL_GGUF_H

#include <stdint.h>

#include "base/error.h"
#include "base/string.h"
#include "model/tensors.h"

typedef struct dw_gguf dw_gguf;

/* Opens path. Any part NAME-0000i-of-0000N.gguf of a split file opens all of them: metadata are those of the first, tensors those
   of all. Tensors and strings found later point into the files and live until dw_gguf_close. */
dw_status dw_gguf_open(dw_gguf **out, const char *path, dw_file_way way, dw_error *err);
void dw_gguf_close(dw_gguf *file);

/* Of the (first) file. */
const char *dw_gguf_path(const dw_gguf *file);

/* The tensors, sorted by name, and the files that hold them. */
const dw_tensors *dw_gguf_tensors_of(const dw_gguf *file);
const dw_file *dw_gguf_files_of(const dw_gguf *file, int64_t *count);

/* Metadata by key. Where `found` is given, an absent key sets *found = 0, leaves *value and is no error; with found NULL it
   is DW_INPUT "FILE: metadata key KEY is missing". A value of another kind is DW_INPUT either way. Any integer type is
   accepted where an integer is asked (in range), f32 and f64 and integers where a float is. */
dw_status dw_gguf_int(const dw_gguf *file, const char *key, int64_t *value, int *found, dw_error *err);
dw_status dw_gguf_float(const dw_gguf *file, const char *key, double *value, int *found, dw_error *err);
dw_status dw_gguf_bool(const dw_gguf *file, const char *key, int *value, int *found, dw_error *err);
dw_status dw_gguf_string(const dw_gguf *file, const char *key, dw_string *value, int *found, dw_error *err);

/* Arrays. *out (dw_free) holds *count entries. */
dw_status dw_gguf_strings(const dw_gguf *file, const char *key, dw_string **out, int64_t *count, int *found, dw_error *err);
dw_status dw_gguf_ints(const dw_gguf *file, const char *key, int64_t **out, int64_t *count, int *found, dw_error *err);
dw_status dw_gguf_floats(const dw_gguf *file, const char *key, float **out, int64_t *count, int *found, dw_error *err);

/* All metadata keys, in the order of their bytes. 0 <= i < count. */
int64_t dw_gguf_keys(const dw_gguf *file);
dw_string dw_gguf_key(const dw_gguf *file, int64_t i);

/* The value of key i, for listings: the field that its kind names is set. */
typedef struct {
    enum { DW_GGUF_INTEGER, DW_GGUF_REAL, DW_GGUF_BOOL, DW_GGUF_STRING, DW_GGUF_ARRAY } kind;
    int64_t integer; /* INTEGER, BOOL; ARRAY: how many elements */
    double real;     /* also an integer above 2^63 */
    dw_string string;
} dw_gguf_value;
dw_gguf_value dw_gguf_value_of(const dw_gguf *file, int64_t i);

#endif
