/* A whole file in memory, read-only: mapped (processes of a host share its pages), or read into memory of this process, which
   lies in large pages and is faster to stream through. */
#ifndef DW_MODEL_FILE_H
#define DW_MODEL_FILE_H

#include <stdint.h>

#include "base/error.h"

typedef enum { DW_FILE_MAP, DW_FILE_READ } dw_file_way;

typedef struct {
    char *path;
    const uint8_t *data; /* NULL when the file is empty */
    int64_t bytes;
    dw_file_way way;
    int64_t header_bytes; /* what stands in front of the tensors; set by whoever reads the format */
} dw_file;

/* *file = the file at path (copied). expected: what it should be, for messages ("a GGUF file"). DW_INPUT when it can not be
   opened or is a directory or no regular file, DW_RESOURCE when there is no memory for it; nothing is left open then. */
dw_status dw_file_open(dw_file *file, const char *path, const char *expected, dw_file_way way, dw_error *err);
void dw_file_close(dw_file *file);

/* *out = "directory/name", DW_ALLOC'ed. */
dw_status dw_path_join(char **out, const char *directory, const char *name, dw_error *err);

/* Reports DW_INPUT with "path: " in front, and is DW_INPUT (a macro, so that the compiler sees that it never is DW_OK). */
#define DW_REFUSE(path, err, ...) (dw_refuse((path), (err), __VA_ARGS__), DW_INPUT)
void dw_refuse(const char *path, dw_error *err, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
