/* GGUF v2 and v3 container (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): metadata and tensors of a mapped
   file. Every length, count and offset is checked against the file before it is used; a damaged file gives DW_INPUT with a
   message that names the file and the key or tensor. */
#ifndef DW_MODEL_GGUF_H
#define DW_MODEL_GGUF_H

#include <stdint.h>

#include "base/error.h"
#include "kernels/linear.h"

typedef struct dw_gguf dw_gguf;

typedef struct {
    const char *data; /* not terminated, any bytes */
    int64_t length;
} dw_string;

/* Maps path read-only. The data of matrices and strings found later point into the map and live until dw_gguf_close. */
dw_status dw_gguf_open(dw_gguf **out, const char *path, dw_error *err);
void dw_gguf_close(dw_gguf *file);
const char *dw_gguf_path(const dw_gguf *file);
int64_t dw_gguf_bytes(const dw_gguf *file);

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

/* A tensor of one or two dimensions as a matrix [outputs][inputs] (one dimension: outputs 1), its data aligned to 8 bytes. Its
   shape must be the given one, -1 for "any". A type that Dewpoint does not know is DW_INPUT naming tensor and type. */
dw_status dw_gguf_matrix(const dw_gguf *file, const char *name, int64_t outputs, int64_t inputs, dw_matrix *value, int *found,
                         dw_error *err);

/* All metadata keys and all tensors (of supported types or not), in the order of the bytes of their names. 0 <= i < count. */
int64_t dw_gguf_keys(const dw_gguf *file);
dw_string dw_gguf_key(const dw_gguf *file, int64_t i);
int64_t dw_gguf_tensors(const dw_gguf *file);
dw_string dw_gguf_tensor_name(const dw_gguf *file, int64_t i);

/* The value of key i, for listings: the field that its kind names is set. */
typedef struct {
    enum { DW_GGUF_INTEGER, DW_GGUF_REAL, DW_GGUF_BOOL, DW_GGUF_STRING, DW_GGUF_ARRAY } kind;
    int64_t integer; /* INTEGER, BOOL; ARRAY: how many elements */
    double real;     /* also an integer above 2^63 */
    dw_string string;
} dw_gguf_value;
dw_gguf_value dw_gguf_value_of(const dw_gguf *file, int64_t i);

/* What tensor i is, whether or not Dewpoint computes with its type. */
typedef struct {
    uint32_t type_id;     /* as ggml numbers types */
    const char *type;     /* and names them; NULL: no type of ggml */
    int supported;        /* Dewpoint computes with the type */
    int dims;             /* 1..4 */
    const int64_t *shape; /* [dims], fastest first */
    int64_t elements;
    int64_t bytes; /* 0 for a type that is not ggml's */
} dw_gguf_tensor_info;
dw_gguf_tensor_info dw_gguf_tensor_at(const dw_gguf *file, int64_t i);

/* A string of a file as messages show it: nothing but printable ASCII, '?' for the rest, "..." after 80 characters. */
typedef struct {
    char text[84];
} dw_gguf_text;
dw_gguf_text dw_gguf_printable(dw_string name);

#endif
