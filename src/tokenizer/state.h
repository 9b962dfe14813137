/* What a tokenizer consists of; for tokenizer.c, which builds it, and encode.c, which uses it. */
#ifndef DW_TOKENIZER_STATE_H
#define DW_TOKENIZER_STATE_H

#include "tokenizer/added.h"
#include "tokenizer/joints.h"
#include "tokenizer/merge.h"
#include "tokenizer/parts.h"
#include "tokenizer/split.h"
#include "tokenizer/token_table.h"
#include "tokenizer/vocabulary.h"

/* SentencePiece's sign for a space, U+2581. */
#define DW_SPACE_SIGN "\xE2\x96\x81"

struct dw_tokenizer {
    dw_tokenizer_kind kind;
    dw_vocabulary vocabulary;
    dw_string *tokens;    /* [vocabulary.count] as the file writes them */
    char *token_bytes;    /* that these consist of */
    dw_token_table table; /* of the tokens that merges can make */
    dw_merges merges;
    dw_joints joints;    /* SentencePiece: where a stretch may be cut */
    dw_added raw;        /* looked for in the text as it stands */
    dw_added normalized; /* looked for in the normalised text */
    char *normalized_bytes;
    dw_splitter *splitter; /* NULL: a stretch is one piece */
    int nfc;
    dw_prefix prefix;
    int replaces_late;
    int ignores_merges;
    int32_t unknown; /* -1: what has no token vanishes */
    int fuses_unknown;
    unsigned char *ends; /* [tokens] 1: generation stops here */
    int32_t bos;
};

/* The text that BPE sees of a stretch of text: *out (dw_free) has *out_length bytes. */
dw_status dw_normalise(const dw_tokenizer *tokenizer, const char *text, int64_t length, char **out, int64_t *out_length,
                       dw_error *err);

#endif
