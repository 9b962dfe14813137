/* The tokens of a vocabulary: their bytes and kinds, and which stand for single bytes. */
#ifndef DW_TOKENIZER_VOCABULARY_H
#define DW_TOKENIZER_VOCABULARY_H

#include "base/error.h"
#include "tokenizer/parts.h"

typedef struct {
    int64_t count;
    int64_t *offsets;      /* [count + 1] into bytes */
    char *bytes;           /* of all tokens as they appear in a text; added tokens: their markup */
    unsigned char *types;  /* [count] */
    int32_t byte_ids[256]; /* token of each single byte, -1: the vocabulary has none */
} dw_vocabulary;

dw_status dw_vocabulary_create(dw_vocabulary *vocabulary, const dw_tokenizer_parts *parts, dw_error *err);
void dw_vocabulary_free(dw_vocabulary *vocabulary);

dw_string dw_vocabulary_bytes(const dw_vocabulary *vocabulary, int32_t id);

#endif
