/* The tokens of a byte-level BPE vocabulary: their bytes, their kinds, and which strings of a text are tokens as they stand. */
#ifndef DW_TOKENIZER_VOCABULARY_H
#define DW_TOKENIZER_VOCABULARY_H

#include "base/error.h"
#include "model/gguf.h"
#include "tokenizer/merge.h"
#include "tokenizer/tokenizer.h"

/* Values of tokenizer.ggml.token_type. */
enum {
    DW_TOKEN_NORMAL = 1,
    DW_TOKEN_UNKNOWN = 2,
    DW_TOKEN_CONTROL = 3,
    DW_TOKEN_USER_DEFINED = 4,
    DW_TOKEN_UNUSED = 5,
    DW_TOKEN_BYTE = 6
};

/* What a GGUF file says about its tokenizer. The strings and arrays are only read while building. */
typedef struct {
    dw_string pre;
    const dw_string *tokens; /* [token_count] */
    int64_t token_count;
    const int64_t *types;    /* [token_count]; NULL: all are normal */
    const dw_string *merges; /* [merge_count] "left right", lowest rank first */
    int64_t merge_count;
    int64_t bos; /* -1: none; also of eos, eot */
    int64_t eos;
    int64_t eot;
    int add_bos;
} dw_tokenizer_parts;

/* The tokenizer made of parts; dw_tokenizer_load is this on the parts in a file. */
dw_status dw_tokenizer_build(dw_tokenizer **out, const dw_tokenizer_parts *parts, dw_error *err);

typedef struct {
    int64_t count;
    int64_t *offsets;      /* [count + 1] into bytes */
    char *bytes;           /* of all tokens; control tokens: their markup */
    unsigned char *types;  /* [count] */
    int32_t byte_ids[256]; /* token of each single byte, -1: the vocabulary has none */
    /* Tokens recognised in a text, by first byte, longer before shorter: those that begin with byte b are
       verbatim[verbatim_first[b]] up to before verbatim[verbatim_first[b + 1]]. */
    int32_t *verbatim;
    int32_t verbatim_first[257];
} dw_vocabulary;

dw_status dw_vocabulary_create(dw_vocabulary *vocabulary, const dw_tokenizer_parts *parts, dw_error *err);
void dw_vocabulary_free(dw_vocabulary *vocabulary);

/* The merges of parts as ids. */
dw_status dw_vocabulary_merges(dw_merges *merges, const dw_tokenizer_parts *parts, dw_error *err);

dw_string dw_vocabulary_bytes(const dw_vocabulary *vocabulary, int32_t id);

/* The longest user-defined token (control token too, if parse_special) that text begins with, -1: none. */
int32_t dw_vocabulary_verbatim(const dw_vocabulary *vocabulary, const char *text, int64_t length, int parse_special);

#endif
