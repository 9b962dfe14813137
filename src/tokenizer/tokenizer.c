#include "tokenizer/tokenizer.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "tokenizer/merge_list.h"
#include "tokenizer/state.h"

/* A file names one eos token (and perhaps an eot), but a chat model may end in either of two ways: SmolLM2's file names
   <|im_end|>, the end of a turn, while the model closes a plain document with <|endoftext|>; in Llama 3's it is
   <|end_of_text|> that is named and <|eot_id|> that ends a turn. Text after any of these is another document or turn, never
   a continuation. Only control tokens count, so that a normal token spelled alike does not stop anything. */
static const char *const known_ends[] = {"<|im_end|>", "<|endoftext|>",   "<|eot_id|>",
                                         "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>"};

static dw_status check_id(const dw_tokenizer_parts *parts, const char *what, int64_t id, dw_error *err)
{
    if (id >= -1 && id < parts->token_count) return DW_OK;
    return dw_fail(err, DW_INPUT, "the %s token is %lld, but the vocabulary has %lld tokens", what, (long long)id,
                   (long long)parts->token_count);
}

static dw_status check_parts(const dw_tokenizer_parts *parts, dw_error *err)
{
    if (parts->token_count < 1 || parts->token_count > INT32_MAX / 4) {
        return dw_fail(err, DW_INPUT, "a vocabulary of %lld tokens can not be used", (long long)parts->token_count);
    }
    DW_TRY(check_id(parts, "bos", parts->bos, err));
    DW_TRY(check_id(parts, "unknown", parts->unknown, err));
    for (int64_t i = 0; i < parts->end_count; i++) DW_TRY(check_id(parts, "end", parts->ends[i], err));
    for (int64_t i = 0; parts->scores != NULL && i < parts->token_count; i++) {
        if (isnan(parts->scores[i])) return dw_fail(err, DW_INPUT, "the score of token %lld is not a number", (long long)i);
    }
    if (parts->add_bos && parts->bos < 0) return dw_fail(err, DW_INPUT, "a BOS token is to be added, but there is none");
    return DW_OK;
}

/* Copies the tokens as the file writes them: tables point to them. */
static dw_status copy_tokens(dw_tokenizer *t, const dw_tokenizer_parts *parts, dw_error *err)
{
    int64_t at = 0;
    for (int64_t i = 0; i < parts->token_count; i++) at += parts->tokens[i].length; /* they lie in memory: no overflow */
    DW_TRY(DW_ALLOC(&t->tokens, parts->token_count, "vocabulary", err));
    DW_TRY(DW_ALLOC(&t->token_bytes, at, "vocabulary", err));
    at = 0;
    for (int64_t i = 0; i < parts->token_count; i++) {
        const dw_string token = parts->tokens[i];
        if (token.length > 0) memcpy(t->token_bytes + at, token.data, (size_t)token.length);
        t->tokens[i] = (dw_string){t->token_bytes + at, token.length};
        at += token.length;
    }
    return DW_OK;
}

/* Only normal tokens and learned ones are made by merging; the byte level lists its merges, which may name any token. */
static dw_status make_merges(dw_tokenizer *t, const dw_tokenizer_parts *parts, dw_error *err)
{
    unsigned char *left_out;
    dw_status status;
    DW_TRY(DW_ALLOC(&left_out, t->vocabulary.count, "vocabulary", err));
    for (int64_t i = 0; i < t->vocabulary.count; i++) {
        const int is_learned = parts->flags != NULL && (parts->flags[i] & DW_TOKEN_IS_LEARNED) != 0;
        left_out[i] = t->kind == DW_TOKENIZER_SENTENCEPIECE && t->vocabulary.types[i] != DW_TOKEN_NORMAL && !is_learned;
    }
    status = dw_token_table_create(&t->table, t->tokens, t->vocabulary.count, left_out, err);
    if (status == DW_OK) status = dw_merge_list(&t->merges, parts, &t->table, err);
    if (status == DW_OK && t->kind == DW_TOKENIZER_SENTENCEPIECE) {
        status = dw_joints_create(&t->joints, &t->merges, &t->table, err);
    }
    dw_free(left_out);
    return status;
}

/* The text of an added token that is looked for in normalised text is normalised as well. */
static dw_status normalise_added(dw_tokenizer *t, dw_error *err)
{
    int64_t used = 0;
    int64_t capacity = 0;
    for (int64_t i = 0; i < t->normalized.count; i++) {
        dw_added_token *token = &t->normalized.list[i];
        char *normal;
        int64_t length;
        DW_TRY(dw_normalise(t, token->text.data, token->text.length, &normal, &length, err));
        const dw_status status = DW_GROW(&t->normalized_bytes, &capacity, used + length, "added tokens", err);
        if (status == DW_OK && length > 0) memcpy(t->normalized_bytes + used, normal, (size_t)length);
        dw_free(normal);
        if (status != DW_OK) return status;
        token->text.length = length;
        used += length;
    }
    used = 0;
    for (int64_t i = 0; i < t->normalized.count; i++) { /* the bytes no longer move */
        t->normalized.list[i].text.data = t->normalized_bytes + used;
        used += t->normalized.list[i].text.length;
    }
    dw_added_sort(&t->normalized);
    return DW_OK;
}

/* (A token that is not valid UTF-8 is in no text; it must not be found within a character.) */
static dw_status list_added(dw_tokenizer *t, const dw_tokenizer_parts *parts, dw_error *err)
{
    for (int32_t id = 0; id < (int32_t)t->vocabulary.count; id++) {
        const int type = t->vocabulary.types[id];
        const unsigned char flags = parts->flags == NULL ? 0 : parts->flags[id];
        const int is_control = type == DW_TOKEN_CONTROL || type == DW_TOKEN_UNKNOWN;
        const dw_added_token token = {t->tokens[id], id, (unsigned char)is_control, flags};
        if ((!is_control && type != DW_TOKEN_USER_DEFINED) || token.text.length == 0) continue;
        if (dw_utf8_check(token.text.data, token.text.length) >= 0) continue;
        DW_TRY(dw_added_put((flags & DW_TOKEN_IS_NORMALIZED) != 0 ? &t->normalized : &t->raw, &token, err));
    }
    dw_added_sort(&t->raw);
    return normalise_added(t, err);
}

static dw_status mark_ends(dw_tokenizer *t, const dw_tokenizer_parts *parts, dw_error *err)
{
    DW_TRY(DW_ALLOC(&t->ends, t->vocabulary.count, "vocabulary", err));
    for (int64_t i = 0; i < parts->end_count; i++) {
        if (parts->ends[i] >= 0) t->ends[parts->ends[i]] = 1;
    }
    for (int32_t id = 0; id < (int32_t)t->vocabulary.count; id++) {
        if (t->vocabulary.types[id] != DW_TOKEN_CONTROL) continue;
        for (size_t i = 0; i < sizeof known_ends / sizeof known_ends[0]; i++) {
            if (dw_string_is(t->tokens[id], known_ends[i])) t->ends[id] = 1;
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
    t->kind = parts->kind;
    t->nfc = parts->nfc;
    t->prefix = parts->prefix;
    t->replaces_late = parts->replaces_late;
    t->ignores_merges = parts->ignores_merges;
    t->unknown = (int32_t)parts->unknown;
    t->fuses_unknown = parts->fuses_unknown;
    t->bos = parts->add_bos ? (int32_t)parts->bos : -1;
    if (parts->split != NULL) DW_TRY_GOTO(status, dw_splitter_create(&t->splitter, parts->split, err), error);
    DW_TRY_GOTO(status, dw_vocabulary_create(&t->vocabulary, parts, err), error);
    DW_TRY_GOTO(status, copy_tokens(t, parts, err), error);
    DW_TRY_GOTO(status, make_merges(t, parts, err), error);
    DW_TRY_GOTO(status, list_added(t, parts, err), error);
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
    dw_vocabulary_free(&t->vocabulary);
    dw_token_table_free(&t->table);
    dw_merges_free(&t->merges);
    dw_joints_free(&t->joints);
    dw_added_free(&t->raw);
    dw_added_free(&t->normalized);
    dw_free(t->normalized_bytes);
    dw_free(t->tokens);
    dw_free(t->token_bytes);
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

int dw_tokenizer_drops_space(const dw_tokenizer *t)
{
    return t->kind == DW_TOKENIZER_SENTENCEPIECE && t->prefix != DW_PREFIX_NONE;
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
