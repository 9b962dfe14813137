/* A reference checkpoint of one safetensors file, taken apart, so that a test can change its configuration and tensors and write
   it as a directory of its own. For Criterion tests: anything that goes wrong fails the test. */
#ifndef DW_TESTS_EDITED_DIRECTORY_H
#define DW_TESTS_EDITED_DIRECTORY_H

#include <jansson.h>
#include <stdint.h>

typedef struct {
    json_t *config;
    json_t *header; /* name: {"dtype", "shape", "data_offsets"} */
    uint8_t *data;
    int64_t bytes;
} edited_directory;

/* name: of ../shared/reference/models. Free with edited_directory_free. */
edited_directory edited_directory_read(const char *name);
void edited_directory_free(edited_directory *directory);

/* Its config.json and model.safetensors as directory `name` of this test process; returns the path. */
const char *edited_directory_write(const edited_directory *directory, const char *name);

/* Bytes of a tensor. */
uint8_t *edited_tensor(const edited_directory *directory, const char *name, int64_t *bytes);

/* Another name for a tensor. */
void edited_rename(const edited_directory *directory, const char *from, const char *to);

/* A tensor behind all others. shape: JSON. data may be that of another tensor. */
void edited_add(edited_directory *directory, const char *name, const char *type, const char *shape, const void *data,
                int64_t bytes);

#endif
