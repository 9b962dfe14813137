/* Cutting a text into pieces (words, numbers, runs of spaces) before byte-level BPE; no token crosses a cut. */
#ifndef DW_TOKENIZER_SPLIT_H
#define DW_TOKENIZER_SPLIT_H

#include "base/error.h"
#include "base/string.h"

typedef struct dw_splitter dw_splitter;

/* name: row of the table ("gpt-2", "smollm", "qwen2", "llama-bpe", "metaspace"); DW_INPUT naming it when there is none.
   Read-only afterwards, shared by threads. */
dw_status dw_splitter_create(dw_splitter **out, const char *name, dw_error *err);
void dw_splitter_free(dw_splitter *splitter);

/* Takes one piece (length >= 1 bytes, whole characters). */
typedef dw_status dw_piece_function(void *context, const char *piece, int64_t length, dw_error *err);

/* Calls each on the pieces of text (length bytes of valid UTF-8) in order; joined they are the text. Ends at the first call
   that fails, with its status. Cost is linear in length. */
dw_status dw_split(const dw_splitter *splitter, const char *text, int64_t length, dw_piece_function *each, void *context,
                   dw_error *err);

#endif
