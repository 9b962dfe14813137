#include "tokenizer/tokenizer.h"

#include <string.h>

#include "base/memory.h"
#include "tokenizer/merge.h"
#include "tokenizer/quote.h"
#include "tokenizer/split.h"
#include "tokenizer/vocabulary.h"

struct dw_tokenizer {
    dw_vocabulary vocabulary;
    dw_merges merges;
    dw_splitter *splitter;
    unsigned char *ends; /* [tokens] 1: generation stops here */
    int32_t bos;
};

/* A file names one eos token (and perhaps an eot), but a chat model may end in either of two ways: SmolLM2's file names
   <|im_end|>, the end of a turn, while the model closes a plain document with <|endoftext|>; in Llama 3's it is
   <|end_of_text|> that is named and <|eot_id|> that ends a turn. Text after any of these is another document or turn, never
   a continuation. Only control tokens count, so that a normal token spelled alike does not stop anything. */
static const char *const known_ends[] = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<end_of_turn>"};

static dw_status check_id(const dw_tokenizer_parts *parts, const char *key, int64_t id, dw_error *err)
{
    if (id >= -1 && id < parts->token_count) return DW_OK;
    return dw_fail(err, DW_INPUT, "%s is %lld, but the vocabulary has %lld tokens", key, (long long)id,
                   (long long)parts->token_count);
}

static dw_status check_parts(const dw_tokenizer_parts *parts, dw_error *err)
{
    if (parts->token_count < 1 || parts->token_count > INT32_MAX / 4) {
        return dw_fail(err, DW_INPUT, "a vocabulary of %lld tokens (tokenizer.ggml.tokens) can not be used",
                       (long long)parts->token_count);
    }
    DW_TRY(check_id(parts, "tokenizer.ggml.bos_token_id", parts->bos, err));
    DW_TRY(check_id(parts, "tokenizer.ggml.eos_token_id", parts->eos, err));
    DW_TRY(check_id(parts, "tokenizer.ggml.eot_token_id", parts->eot, err));
    if (parts->add_bos && parts->bos < 0) {
        return dw_fail(err, DW_INPUT, "tokenizer.ggml.add_bos_token is set, but tokenizer.ggml.bos_token_id is missing");
    }
    return DW_OK;
}

static dw_status mark_ends(dw_tokenizer *t, const dw_tokenizer_parts *parts, dw_error *err)
{
    DW_TRY(DW_ALLOC(&t->ends, t->vocabulary.count, "vocabulary", err));
    if (parts->eos >= 0) t->ends[parts->eos] = 1;
    if (parts->eot >= 0) t->ends[parts->eot] = 1;
    for (int32_t id = 0; id < (int32_t)t->vocabulary.count; id++) {
        const dw_string text = dw_vocabulary_bytes(&t->vocabulary, id);
        if (t->vocabulary.types[id] != DW_TOKEN_CONTROL) continue;
        for (size_t i = 0; i < sizeof known_ends / sizeof known_ends[0]; i++) {
            const size_t length = strlen(known_ends[i]);
            if ((size_t)text.length == length && memcmp(text.data, known_ends[i], length) == 0) t->ends[id] = 1;
        }
    }
    return DW_OK;
}

dw_status dw_tokenizer_build(dw_tokenizer **out, const dw_tokenizer_parts *parts, dw_error *err)
{
    dw_tokenizer *t;
    dw_status status;
    *out = NULL;
    DW_TRY(check_parts(parts, err));
    DW_TRY(DW_ALLOC(&t, 1, "tokenizer", err));
    t->bos = parts->add_bos ? (int32_t)parts->bos : -1;
    DW_TRY_GOTO(status, dw_splitter_create(&t->splitter, parts->pre, err), error);
    DW_TRY_GOTO(status, dw_vocabulary_create(&t->vocabulary, parts, err), error);
    DW_TRY_GOTO(status, dw_vocabulary_merges(&t->merges, parts, err), error);
    DW_TRY_GOTO(status, mark_ends(t, parts, err), error);
    *out = t;
    return DW_OK;
error:
    dw_tokenizer_free(t);
    return status;
}

void dw_tokenizer_free(dw_tokenizer *t)
{
    if (t == NULL) return;
    dw_splitter_free(t->splitter);
    dw_merges_free(&t->merges);
    dw_vocabulary_free(&t->vocabulary);
    dw_free(t->ends);
    dw_free(t);
}

int64_t dw_tokenizer_size(const dw_tokenizer *t)
{
    return t->vocabulary.count;
}

int32_t dw_tokenizer_bos(const dw_tokenizer *t)
{
    return t->bos;
}

int dw_tokenizer_is_end(const dw_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocabulary.count && t->ends[id];
}

dw_string dw_token_bytes(const dw_tokenizer *t, int32_t id, int with_special)
{
    const dw_string nothing = {.data = "", .length = 0};
    if (id < 0 || id >= t->vocabulary.count) return nothing;
    switch (t->vocabulary.types[id]) {
    case DW_TOKEN_NORMAL:
    case DW_TOKEN_USER_DEFINED:
    case DW_TOKEN_BYTE: return dw_vocabulary_bytes(&t->vocabulary, id);
    default: return with_special ? dw_vocabulary_bytes(&t->vocabulary, id) : nothing;
    }
}

/* ---- text to ids ---- */

typedef struct {
    const dw_tokenizer *tokenizer;
    dw_merge_scratch scratch;
    int32_t *ids;
    int64_t count;
    int64_t capacity;
} encoder;

/* Bytes without a token vanish, before anything is merged: so do the tokenizers that the models were trained with. */
static dw_status encode_piece(void *context, const char *piece, int64_t length, dw_error *err)
{
    encoder *e = context;
    int64_t added = 0;
    DW_TRY(DW_GROW(&e->ids, &e->capacity, e->count + length, "token ids", err));
    for (int64_t i = 0; i < length; i++) {
        const int32_t id = e->tokenizer->vocabulary.byte_ids[(unsigned char)piece[i]];
        if (id >= 0) e->ids[e->count + added++] = id;
    }
    DW_TRY(dw_merge_piece(&e->tokenizer->merges, &e->scratch, e->ids + e->count, &added, err));
    e->count += added;
    return DW_OK;
}

/* Tokens that stand in the text as they are cut it first, leftmost and longest; no piece crosses such a cut. */
static dw_status encode(encoder *e, const char *text, int64_t length, int parse_special, dw_error *err)
{
    const dw_tokenizer *t = e->tokenizer;
    int64_t plain_start = 0; /* of the text that is not encoded yet */
    int64_t at = 0;
    while (at < length) {
        const int32_t id = dw_vocabulary_verbatim(&t->vocabulary, text + at, length - at, parse_special);
        if (id < 0) {
            at++;
            continue;
        }
        if (at > plain_start) DW_TRY(dw_split(t->splitter, text + plain_start, at - plain_start, encode_piece, e, err));
        DW_TRY(DW_GROW(&e->ids, &e->capacity, e->count + 1, "token ids", err));
        e->ids[e->count++] = id;
        at += dw_vocabulary_bytes(&t->vocabulary, id).length;
        plain_start = at;
    }
    if (at > plain_start) DW_TRY(dw_split(t->splitter, text + plain_start, at - plain_start, encode_piece, e, err));
    return DW_OK;
}

dw_status dw_tokenize(const dw_tokenizer *t, const char *text, int64_t length, int parse_special, int32_t **ids, int64_t *count,
                      dw_error *err)
{
    encoder e = {.tokenizer = t};
    const int64_t invalid = dw_utf8_check(text, length);
    dw_status status;
    *ids = NULL;
    *count = 0;
    if (invalid >= 0) return dw_fail(err, DW_INPUT, "invalid UTF-8 at byte %lld", (long long)invalid);
    /* English has about four bytes a token: one allocation is mostly enough. */
    DW_TRY(DW_GROW(&e.ids, &e.capacity, length / 3 + 1, "token ids", err));
    status = encode(&e, text, length, parse_special, err);
    dw_merge_scratch_free(&e.scratch);
    if (status != DW_OK) {
        dw_free(e.ids);
        return status;
    }
    *ids = e.ids;
    *count = e.count;
    return DW_OK;
}
