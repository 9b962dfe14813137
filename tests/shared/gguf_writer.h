/* Builds GGUF files in memory, valid ones and, by patching the bytes at a known field, damaged ones. For Criterion tests: a
   failing allocation or write fails the test. */
#ifndef DW_TESTS_GGUF_WRITER_H
#define DW_TESTS_GGUF_WRITER_H

#include <stdint.h>

/* Value kinds of the format. */
/* clang-format off */
typedef enum {
    GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY, GGUF_U64, GGUF_I64,
    GGUF_F64
} gguf_kind;
/* clang-format on */

/* Fields of a built file that gguf_where can find. */
typedef enum {
    GGUF_AT_VERSION,      /* u32; the name is ignored for these three */
    GGUF_AT_TENSOR_COUNT, /* u64 */
    GGUF_AT_ENTRY_COUNT,  /* u64 */
    GGUF_AT_KEY,          /* u64 length of a metadata key */
    GGUF_AT_KIND,         /* u32 kind of its value */
    GGUF_AT_VALUE,        /* the value: a string starts with its u64 length, an array with u32 kind and u64 count */
    GGUF_AT_NAME,         /* u64 length of a tensor's name */
    GGUF_AT_DIMS,         /* u32 number of dimensions, then u64 each */
    GGUF_AT_TYPE,         /* u32 ggml type */
    GGUF_AT_OFFSET,       /* u64 offset of its data in the data section */
    GGUF_AT_DATA          /* first byte of its data */
} gguf_field;

typedef struct gguf_writer gguf_writer;

/* version 2 or 3 (the bytes are the same but for the number). Tensor data are aligned to 32 unless gguf_align is called. */
gguf_writer *gguf_new(uint32_t version);
void gguf_free(gguf_writer *writer);

/* Sets the alignment of the data (>= 1) and adds the key general.alignment. */
void gguf_align(gguf_writer *writer, uint32_t alignment);

/* Metadata, in the order of the calls. Keys and strings are C strings. */
void gguf_put_u32(gguf_writer *writer, const char *key, uint32_t value);
void gguf_put_f32(gguf_writer *writer, const char *key, float value);
void gguf_put_bool(gguf_writer *writer, const char *key, int value);
void gguf_put_string(gguf_writer *writer, const char *key, const char *value);
void gguf_put_strings(gguf_writer *writer, const char *key, const char *const *values, int64_t count);
void gguf_put_array(gguf_writer *writer, const char *key, gguf_kind element, int64_t element_bytes, const void *values,
                    int64_t count);
/* Any kind, the bytes of the value as they are in the file. */
void gguf_put_raw(gguf_writer *writer, const char *key, uint32_t kind, const void *value, int64_t bytes);

/* size: [dims], fastest dimension first (a matrix [outputs][inputs] is {inputs, outputs}). data (copied): bytes, as stored. */
void gguf_put_tensor(gguf_writer *writer, const char *name, uint32_t type, int dims, const int64_t *size, const void *data,
                     int64_t bytes);

/* The whole file; belongs to the writer and may be patched; nothing can be added afterwards. */
uint8_t *gguf_build(gguf_writer *writer, int64_t *bytes);

/* Offset of a field in the built file; name: the key or tensor it belongs to. */
int64_t gguf_where(const gguf_writer *writer, gguf_field field, const char *name);

/* Builds, if that is still to do, and writes the file. */
void gguf_write(gguf_writer *writer, const char *path);

void write_file(const char *path, const void *data, int64_t bytes);

#endif
