/* What a file says about its tokenizer, whichever format it comes from: load_gguf.c and load_json.c fill it, dw_tokenizer_build
   makes a tokenizer of it. The steps and their order are those of Hugging Face's tokenizers library:
   1. added tokens without DW_TOKEN_IS_NORMALIZED are found in the text as it stands, leftmost and longest;
   2. each stretch between them is normalised: nfc, DW_PREFIX_NORMALIZER, SentencePiece: U+2581 for spaces (or in step 4);
   3. added tokens with DW_TOKEN_IS_NORMALIZED (their texts normalised as well) are found in that;
   4. each stretch between them gets DW_PREFIX_FIRST or DW_PREFIX_EACH and is cut into pieces by `split`;
   5. the symbols of each piece are merged. */
#ifndef DW_TOKENIZER_PARTS_H
#define DW_TOKENIZER_PARTS_H

#include "base/string.h"
#include "tokenizer/tokenizer.h"

typedef enum {
    DW_TOKENIZER_BYTE_LEVEL,   /* BPE over bytes, in pieces that a pattern cuts (GPT-2 and its descendants) */
    DW_TOKENIZER_SENTENCEPIECE /* BPE over characters of a text without cuts, bytes for what has no token (Llama 2, Gemma) */
} dw_tokenizer_kind;

/* Values of tokenizer.ggml.token_type. Control and user-defined tokens are the added ones: special ones and others. */
enum {
    DW_TOKEN_NORMAL = 1,
    DW_TOKEN_UNKNOWN = 2,
    DW_TOKEN_CONTROL = 3,
    DW_TOKEN_USER_DEFINED = 4,
    DW_TOKEN_UNUSED = 5, /* also an id without a token: an empty string */
    DW_TOKEN_BYTE = 6    /* "<0xNN>" */
};

/* Flags of added tokens: white space in front or behind belongs to the token; the token is looked for in the normalised text;
   it is one of BPE's tokens as well, so that a character or a merge may become it. */
enum { DW_TOKEN_STRIPS_LEFT = 1, DW_TOKEN_STRIPS_RIGHT = 2, DW_TOKEN_IS_NORMALIZED = 4, DW_TOKEN_IS_LEARNED = 8 };

/* Where a space (SentencePiece: U+2581) is put in front of the text. */
typedef enum {
    DW_PREFIX_NONE,
    DW_PREFIX_NORMALIZER, /* always, in step 2 (Prepend; SentencePiece's dummy prefix) */
    DW_PREFIX_FIRST,      /* of the text's first stretch, in step 4, unless it begins with a space (Metaspace "first") */
    DW_PREFIX_EACH        /* same of every stretch (Metaspace "always"; ByteLevel's add_prefix_space) */
} dw_prefix;

/* Strings and arrays are only read while building. */
typedef struct {
    dw_tokenizer_kind kind;
    const dw_string *tokens; /* [token_count] byte level: in GPT-2's alphabet, SentencePiece: with U+2581 for spaces; added
                                tokens: as they stand in texts */
    int64_t token_count;
    const int64_t *types;       /* [token_count]; NULL: all are normal */
    const unsigned char *flags; /* [token_count] of added tokens; NULL: none */
    const dw_string *merges;    /* [2 * merge_count] left, right, lowest rank first */
    int64_t merge_count;
    const float *scores; /* [token_count] SentencePiece, instead of merges: tokens with a higher score are made first */
    int ignores_merges;  /* a piece that is a token as a whole is not cut further (Llama 3) */

    int64_t unknown;   /* token for characters (byte level: bytes) that have none, SentencePiece: if a byte of them has no
                          byte token; -1: they vanish */
    int fuses_unknown; /* one for a run of them */

    int nfc;           /* the text is brought to form C */
    const char *split; /* row of the table in split.c: "gpt-2", "smollm", "qwen2", "llama-bpe"; NULL: a stretch is one piece */
    dw_prefix prefix;
    int replaces_late; /* SentencePiece: U+2581 for spaces in step 4 (Metaspace) */

    int64_t bos; /* -1: none */
    int add_bos;
    const int64_t *ends; /* [end_count] ids at which generation stops, besides the known markups (tokenizer.c); none is -1 */
    int64_t end_count;
} dw_tokenizer_parts;

/* The errors name no file: the caller puts it in front. */
dw_status dw_tokenizer_build(dw_tokenizer **out, const dw_tokenizer_parts *parts, dw_error *err);

#endif
