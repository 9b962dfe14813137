/* Small Hugging Face directories, sound and damaged, in the directory of the test (fixture_path). */
#ifndef DW_TESTS_SAFETENSORS_SMALL_H
#define DW_TESTS_SAFETENSORS_SMALL_H

#include <stdint.h>

/* The directory that fixture_path puts files into. */
const char *small_directory(void);

/* Writes a safetensors file: length of the header, header, `bytes` data bytes of values 0, 1, 2, ... */
void small_safetensors(const char *name, const char *header, int64_t bytes);

/* Writes a text file. */
void small_text(const char *name, const char *text);

/* Deletes it if it is there. */
void small_remove(const char *name);

/* Two shards and their index: tensors a F32 [2, 3] and c BF16 [] in one.safetensors, b F16 [4] in two.safetensors. */
#define SMALL_ONE                                                                                                              \
    "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"                 \
    "\"c\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[24,26]}}"
#define SMALL_TWO "{\"b\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[0,8]}}"
#define SMALL_INDEX                                                                                                            \
    "{\"metadata\":{\"total_size\":34},\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\","                   \
    "\"c\":\"one.safetensors\"}}"
enum { SMALL_ONE_BYTES = 26, SMALL_TWO_BYTES = 8 };
void small_shards(void);

#endif
