/* Text to ids, in the steps of parts.h. */
#include <string.h>

#include "base/integers.h"
#include "base/memory.h"
#include "tokenizer/nfc.h"
#include "tokenizer/state.h"

typedef struct {
    const dw_tokenizer *tokenizer;
    const dw_span *markup; /* where control tokens are recognised */
    int64_t markup_count;
    int is_first; /* nothing has been encoded yet */
    dw_merge_scratch scratch;
    int32_t *ids;
    int64_t count;
    int64_t capacity;
    char *prepared; /* scratch of prepare */
    int64_t prepared_capacity;
} encoder;

/* ---- pieces ---- */

static dw_status put_id(encoder *e, int32_t id, dw_error *err)
{
    DW_TRY(DW_GROW(&e->ids, &e->capacity, e->count + 1, "token ids", err));
    e->ids[e->count++] = id;
    return DW_OK;
}

/* Symbols that no token stands for: the unknown token (once for a run, if the model says so), or nothing. */
static dw_status put_unknown(encoder *e, int64_t first, dw_error *err)
{
    const dw_tokenizer *t = e->tokenizer;
    if (t->unknown < 0) return DW_OK;
    if (t->fuses_unknown && e->count > first && e->ids[e->count - 1] == t->unknown) return DW_OK;
    return put_id(e, t->unknown, err);
}

static dw_status put_byte_symbols(encoder *e, const char *piece, int64_t length, dw_error *err)
{
    const int64_t first = e->count;
    for (int64_t i = 0; i < length; i++) {
        const int32_t id = e->tokenizer->vocabulary.byte_ids[(unsigned char)piece[i]];
        if (id >= 0) {
            DW_TRY(put_id(e, id, err));
        } else {
            DW_TRY(put_unknown(e, first, err));
        }
    }
    return DW_OK;
}

static int64_t character_length(char first)
{
    const unsigned char c = (unsigned char)first;
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

/* A character is a token, or its bytes are, or it is unknown. */
static dw_status put_character(encoder *e, const char *character, int64_t length, int64_t first, dw_error *err)
{
    const dw_tokenizer *t = e->tokenizer;
    const int32_t id = dw_token_table_find(&t->table, (dw_string){character, length});
    if (id >= 0) return put_id(e, id, err);
    for (int64_t i = 0; i < length; i++) {
        if (t->vocabulary.byte_ids[(unsigned char)character[i]] < 0) return put_unknown(e, first, err);
    }
    for (int64_t i = 0; i < length; i++) DW_TRY(put_id(e, t->vocabulary.byte_ids[(unsigned char)character[i]], err));
    return DW_OK;
}

/* Merges the symbols from ids[first] up to before ids[end]; the ones behind them follow. */
static dw_status merge(encoder *e, int64_t first, int64_t end, dw_error *err)
{
    const int64_t behind = e->count - end;
    int64_t left = end - first;
    DW_TRY(dw_merge_piece(&e->tokenizer->merges, &e->scratch, e->ids + first, &left, err));
    if (behind > 0) memmove(e->ids + first + left, e->ids + end, (size_t)behind * sizeof *e->ids);
    e->count = first + left + behind;
    return DW_OK;
}

/* Merges what is complete at each place that no token crosses. */
static dw_status encode_characters(encoder *e, const char *piece, int64_t length, dw_error *err)
{
    const int64_t first = e->count;
    int64_t open = first; /* symbols from here on are not merged */
    for (int64_t i = 0; i < length; i += character_length(piece[i])) {
        const int64_t before = e->count;
        DW_TRY(put_character(e, piece + i, character_length(piece[i]), first, err));
        if (before == open || before == e->count) continue;
        if (dw_joints_have(&e->tokenizer->joints, e->ids[before - 1], e->ids[before])) continue;
        const int64_t added = e->count - before;
        DW_TRY(merge(e, open, before, err));
        open = e->count - added;
    }
    return merge(e, open, e->count, err);
}

/* The token that a whole piece is, -1: none. Byte level: in the alphabet of the vocabulary, so over its own bytes. */
static int32_t whole_token(const dw_tokenizer *t, const char *piece, int64_t length)
{
    char text[256];
    int64_t used = 0;
    if (!t->ignores_merges) return -1;
    if (t->kind == DW_TOKENIZER_SENTENCEPIECE) return dw_token_table_find(&t->table, (dw_string){piece, length});
    for (int64_t i = 0; i < length; i++) {
        const int32_t id = t->vocabulary.byte_ids[(unsigned char)piece[i]];
        const dw_string letter = id < 0 ? (dw_string){NULL, 0} : t->tokens[id];
        if (letter.length == 0 || used + letter.length > (int64_t)sizeof text) return -1;
        memcpy(text + used, letter.data, (size_t)letter.length);
        used += letter.length;
    }
    return dw_token_table_find(&t->table, (dw_string){text, used});
}

/* A dw_piece_function. */
static dw_status encode_piece(void *context, const char *piece, int64_t length, dw_error *err)
{
    encoder *e = context;
    const int64_t first = e->count;
    const int32_t whole = whole_token(e->tokenizer, piece, length);
    if (whole >= 0) return put_id(e, whole, err);
    if (e->tokenizer->kind == DW_TOKENIZER_SENTENCEPIECE) return encode_characters(e, piece, length, err);
    DW_TRY(put_byte_symbols(e, piece, length, err));
    return merge(e, first, e->count, err);
}

/* ---- stretches ---- */

static dw_string space_of(const dw_tokenizer *t)
{
    return dw_string_of(t->kind == DW_TOKENIZER_SENTENCEPIECE ? DW_SPACE_SIGN : " ");
}

static int64_t put_text(char *out, dw_string text)
{
    if (text.length > 0) memcpy(out, text.data, (size_t)text.length);
    return text.length;
}

/* out: 3 * length bytes of room. */
static int64_t escape_spaces(const char *text, int64_t length, char *out)
{
    int64_t count = 0;
    for (int64_t i = 0; i < length; i++) {
        if (text[i] == ' ') {
            count += put_text(out + count, dw_string_of(DW_SPACE_SIGN));
        } else {
            out[count++] = text[i];
        }
    }
    return count;
}

static int begins_with(const char *text, int64_t length, dw_string start)
{
    return length >= start.length && memcmp(text, start.data, (size_t)start.length) == 0;
}

/* Step 4: the space of DW_PREFIX_FIRST or DW_PREFIX_EACH in front of *text, and U+2581 for the spaces in it, if they are due.
   What is changed lies in e->prepared. */
static dw_status prepare(encoder *e, const char **text, int64_t *length, dw_error *err)
{
    const dw_tokenizer *t = e->tokenizer;
    const dw_string space = space_of(t);
    const int prefixes = t->prefix == DW_PREFIX_EACH || (t->prefix == DW_PREFIX_FIRST && e->is_first);
    char *body;
    if (!t->replaces_late && (!prefixes || begins_with(*text, *length, space))) return DW_OK;
    DW_TRY(DW_GROW(&e->prepared, &e->prepared_capacity, space.length * (*length + 1), "text", err));
    body = e->prepared + space.length;
    *length = t->replaces_late ? escape_spaces(*text, *length, body) : put_text(body, (dw_string){*text, *length});
    *text = body;
    if (!prefixes || begins_with(body, *length, space)) return DW_OK;
    *length += put_text(e->prepared, space);
    *text = e->prepared;
    return DW_OK;
}

static dw_status encode_stretch(encoder *e, const char *text, int64_t length, dw_error *err)
{
    if (length == 0) return DW_OK;
    DW_TRY(prepare(e, &text, &length, err));
    e->is_first = 0;
    if (e->tokenizer->splitter == NULL) return encode_piece(e, text, length, err);
    return dw_split(e->tokenizer->splitter, text, length, encode_piece, e, err);
}

/* Whether control tokens are recognised in all of start .. end - 1. */
static int is_markup(const encoder *e, int64_t start, int64_t end)
{
    for (int64_t i = 0; i < e->markup_count; i++) {
        if (start >= e->markup[i].start && end <= e->markup[i].end) return 1;
    }
    return 0;
}

/* Bytes of white space at the beginning of a text, and at its end. */
static int64_t white_space_ahead(const char *text, int64_t length)
{
    int64_t count = 0;
    int64_t bytes;
    while ((bytes = dw_white_space_at(text + count, length - count)) > 0) count += bytes;
    return count;
}

static int64_t white_space_behind(const char *text, int64_t length)
{
    int64_t count = 0;
    int64_t bytes;
    while ((bytes = dw_white_space_before(text, length - count)) > 0) count += bytes;
    return count;
}

/* What encodes the text between added tokens. start: of the stretch in the whole text. */
typedef dw_status stretch_function(encoder *e, const char *text, int64_t length, int64_t start, dw_error *err);

/* Finds the tokens of `added` in text, leftmost and longest, and gives what lies between to each. White space that belongs to a
   token vanishes with it, but another token may begin in it. In a control token that is to be plain text no other one is looked
   for, as in the tokenizers library. start: of text in the whole text, -1: control tokens as `control` says. */
static dw_status cut_at_added(encoder *e, const dw_added *added, const char *text, int64_t length, int64_t start, int control,
                              stretch_function *each, dw_error *err)
{
    int64_t done = 0;
    int64_t white_end = 0; /* of the white space behind the last token */
    int64_t at = 0;
    while (added->count > 0 && at < length) {
        const dw_added_token *token = NULL;
        int64_t end = at;
        if (dw_added_begin_with(added, text[at])) token = dw_added_at(added, text + at, length - at);
        at += token != NULL ? token->text.length : 1;
        if (token == NULL || (token->is_control && !(start < 0 ? control : is_markup(e, start + end, start + at)))) continue;
        if ((token->flags & DW_TOKEN_STRIPS_LEFT) != 0) {
            if (at <= done) continue; /* all of it is white space that belongs to the token before */
            end -= white_space_behind(text + done, dw_larger(end - done, 0));
        }
        if (end > done) DW_TRY(each(e, text + done, end - done, start < 0 ? -1 : start + done, err));
        DW_TRY(put_id(e, token->id, err));
        e->is_first = 0;
        done = at;
        if ((token->flags & DW_TOKEN_STRIPS_RIGHT) == 0) continue;
        if (white_end < at) white_end = at + white_space_ahead(text + at, length - at);
        done = white_end;
    }
    return done < length ? each(e, text + done, length - done, start < 0 ? -1 : start + done, err) : DW_OK;
}

static dw_status plain_stretch(encoder *e, const char *text, int64_t length, int64_t start, dw_error *err)
{
    (void)start;
    return encode_stretch(e, text, length, err);
}

static dw_status raw_stretch(encoder *e, const char *text, int64_t length, int64_t start, dw_error *err)
{
    const int control = is_markup(e, start, start + length);
    char *normal;
    int64_t normal_length;
    dw_status status;
    if (length == 0) return DW_OK;
    DW_TRY(dw_normalise(e->tokenizer, text, length, &normal, &normal_length, err));
    status = cut_at_added(e, &e->tokenizer->normalized, normal, normal_length, -1, control, plain_stretch, err);
    dw_free(normal);
    return status;
}

/* ---- normalisation ---- */

dw_status dw_normalise(const dw_tokenizer *t, const char *text, int64_t length, char **out, int64_t *out_length, dw_error *err)
{
    const dw_string space = t->prefix == DW_PREFIX_NORMALIZER ? space_of(t) : dw_string_of("");
    const int escapes = t->kind == DW_TOKENIZER_SENTENCEPIECE && !t->replaces_late;
    char *composed = NULL;
    int64_t composed_length;
    dw_status status;
    *out = NULL;
    if (t->nfc) DW_TRY(dw_nfc(text, length, &composed, &composed_length, err));
    if (composed != NULL) {
        text = composed;
        length = composed_length;
    }
    status = DW_ALLOC(out, space.length + (escapes ? 3 : 1) * length, "text", err);
    if (status == DW_OK) {
        *out_length = put_text(*out, space);
        if (escapes) {
            *out_length += escape_spaces(text, length, *out + *out_length);
        } else {
            *out_length += put_text(*out + *out_length, (dw_string){text, length});
        }
    }
    dw_free(composed);
    return status;
}

/* ---- the whole ---- */

dw_status dw_tokenize_marked(const dw_tokenizer *t, const char *text, int64_t length, const dw_span *markup, int64_t spans,
                             int32_t **ids, int64_t *count, dw_error *err)
{
    encoder e = {.tokenizer = t, .markup = markup, .markup_count = spans, .is_first = 1};
    const int64_t invalid = dw_utf8_check(text, length);
    dw_status status;
    *ids = NULL;
    *count = 0;
    if (invalid >= 0) return dw_fail(err, DW_INPUT, "invalid UTF-8 at byte %lld", (long long)invalid);
    /* English has about four bytes a token: one allocation is mostly enough. */
    DW_TRY(DW_GROW(&e.ids, &e.capacity, length / 3 + 1, "token ids", err));
    status = cut_at_added(&e, &t->raw, text, length, 0, 0, raw_stretch, err);
    dw_merge_scratch_free(&e.scratch);
    dw_free(e.prepared);
    if (status != DW_OK) {
        dw_free(e.ids);
        return status;
    }
    *ids = e.ids;
    *count = e.count;
    return DW_OK;
}

dw_status dw_tokenize(const dw_tokenizer *t, const char *text, int64_t length, int parse_special, int32_t **ids, int64_t *count,
                      dw_error *err)
{
    const dw_span all = {0, length};
    return dw_tokenize_marked(t, text, length, &all, parse_special ? 1 : 0, ids, count, err);
}
