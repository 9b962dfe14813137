/* Text to token ids and back, as the model's own vocabulary says. Read-only after loading; shared by threads. */
#ifndef DW_TOKENIZER_TOKENIZER_H
#define DW_TOKENIZER_TOKENIZER_H

#include "base/error.h"
#include "base/string.h"
#include "model/checkpoint.h"

typedef struct dw_tokenizer dw_tokenizer;

/* From the metadata of a GGUF file (tokenizer.ggml.*), or from tokenizer.json of a directory (with tokenizer_config.json,
   generation_config.json and config.json for BOS and ends), else from its tokenizer.model. *out = NULL and DW_OK when the
   checkpoint has no tokenizer (ids only). DW_INPUT names file and key: an unknown model, pre-tokenizer, normaliser or decoder,
   merges of unknown tokens, ids out of range. */
dw_status dw_tokenizer_load(dw_tokenizer **out, const dw_checkpoint *checkpoint, dw_error *err);
dw_status dw_tokenizer_load_gguf(dw_tokenizer **out, const dw_gguf *file, dw_error *err);
dw_status dw_tokenizer_load_json(dw_tokenizer **out, const dw_checkpoint *checkpoint, dw_error *err);
void dw_tokenizer_free(dw_tokenizer *tokenizer);

int64_t dw_tokenizer_size(const dw_tokenizer *tokenizer);

/* Ids of text (length bytes, valid UTF-8, may hold U+0000). Nothing is added in front or behind. Strings of control tokens in
   the text become those tokens when parse_special is set, else they are ordinary text; user-defined (added, not special)
   tokens are always recognised. What lies between is normalised as the model's tokenizer does it (qwen2: NFC). *ids (dw_free)
   has *count entries; an empty text gives none.
   Invalid UTF-8: DW_INPUT "invalid UTF-8 at byte N" (see dw_utf8_check). Cost is linear in length. */
dw_status dw_tokenize(const dw_tokenizer *tokenizer, const char *text, int64_t length, int parse_special, int32_t **ids,
                      int64_t *count, dw_error *err);

/* The same for a text that was put together: control tokens are recognised where all of their markup lies in one of the spans
   (bytes start .. end - 1). */
typedef struct {
    int64_t start, end;
} dw_span;
dw_status dw_tokenize_marked(const dw_tokenizer *tokenizer, const char *text, int64_t length, const dw_span *markup,
                             int64_t spans, int32_t **ids, int64_t *count, dw_error *err);

/* The bytes of one token; control tokens (also unknown and unused ones) give their markup when with_special is set, else
   nothing, as does an id out of range. Valid while the tokenizer is. */
dw_string dw_token_bytes(const dw_tokenizer *tokenizer, int32_t id, int with_special);

/* Whether the text of all ids of a text begins with a space that the tokenizer put there (SentencePiece), to be dropped. */
int dw_tokenizer_drops_space(const dw_tokenizer *tokenizer);

/* Ids that the model adds or stops at; -1: none. */
int32_t dw_tokenizer_bos(const dw_tokenizer *tokenizer); /* to put in front of a prompt, -1 when the model wants none */
int dw_tokenizer_is_end(const dw_tokenizer *tokenizer, int32_t id); /* end of text or end of turn */

/* Streaming detokenisation. Feed the bytes of tokens; take what forms whole characters. An incomplete character is held
   back until it is complete; bytes that can not become one turn into U+FFFD, one for each maximal bad part (as WHATWG and
   Python's "replace" do). The pieces joined equal the one-shot text. */
typedef struct {
    unsigned char held[4];
    int held_count;
} dw_utf8_stream;

/* Appends to *text (dw_grow'n, *length used of *capacity). last: nothing follows, so what is held becomes U+FFFD. */
dw_status dw_utf8_feed(dw_utf8_stream *stream, const char *bytes, int64_t count, int last, char **text, int64_t *length,
                       int64_t *capacity, dw_error *err);

/* Offset of the first byte that is not valid UTF-8 (overlong forms, surrogates and values above 10FFFF are not), -1 if all
   is. */
int64_t dw_utf8_check(const char *text, int64_t length);

#endif
