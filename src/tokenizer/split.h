/* The first step of byte-level BPE: a text is normalised where the model's tokenizer does so, then cut into pieces (words,
   numbers, runs of spaces); no token crosses a cut. */
#ifndef DW_TOKENIZER_SPLIT_H
#define DW_TOKENIZER_SPLIT_H

#include "base/error.h"
#include "model/gguf.h"

typedef struct dw_splitter dw_splitter;

/* pre: value of tokenizer.ggml.pre; DW_INPUT naming it when it is not in the table. Read-only afterwards, shared by threads. */
dw_status dw_splitter_create(dw_splitter **out, dw_string pre, dw_error *err);
void dw_splitter_free(dw_splitter *splitter);

/* Takes one piece (length >= 1 bytes, whole characters). */
typedef dw_status dw_piece_function(void *context, const char *piece, int64_t length, dw_error *err);

/* Calls each on the pieces of text (length bytes of valid UTF-8) in order; joined they are the text, or its form C if the
   pre-tokenizer asks for that. Ends at the first call that fails, with its status. Cost is linear in length. */
dw_status dw_split(const dw_splitter *splitter, const char *text, int64_t length, dw_piece_function *each, void *context,
                   dw_error *err);

#endif
