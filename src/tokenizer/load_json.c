/* The tokenizer of a Hugging Face directory: tokenizer.json (as the tokenizers library reads it), with BOS and ends from the
   configurations beside it; where that file is missing, tokenizer.model. */
#include "tokenizer/load_json.h"

#include <stdlib.h>

#include "base/memory.h"
#include "tokenizer/sentencepiece_model.h"

/* A file with a larger id, or more ids without a token, would be no tokenizer. */
enum { MOST_TOKENS = 1 << 24, MOST_HOLES = 1 << 16 };

typedef struct {
    const dw_checkpoint *checkpoint;
    const json_t *json; /* tokenizer.json */
    dw_tokenizer_parts parts;
    dw_string *tokens; /* the arrays of parts */
    int64_t *types;
    unsigned char *flags;
    dw_string *merges;
    int64_t *ends;
} reader;

#define REFUSE(r, err, ...) DW_REFUSE_JSON((r)->checkpoint->path, err, __VA_ARGS__)

/* ---- vocabulary ---- */

static dw_status read_id(const reader *r, const json_t *id, const char *token, int64_t *out, dw_error *err)
{
    if (json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < MOST_TOKENS) {
        *out = json_integer_value(id);
        return DW_OK;
    }
    return REFUSE(r, err, "the id of token \"%s\" must be a whole number below %d", dw_printable(dw_string_of(token)).text,
                  MOST_TOKENS);
}

/* One more than the largest id. */
static dw_status count_tokens(reader *r, const json_t *vocabulary, const json_t *added, dw_error *err)
{
    const char *token;
    json_t *id;
    int64_t value;
    json_object_foreach((json_t *)vocabulary, token, id) {
        DW_TRY(read_id(r, id, token, &value, err));
        if (value >= r->parts.token_count) r->parts.token_count = value + 1;
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        DW_TRY(read_id(r, json_object_get(json_array_get(added, i), "id"), "of added_tokens", &value, err));
        if (value >= r->parts.token_count) r->parts.token_count = value + 1;
    }
    if (r->parts.token_count - MOST_HOLES > (int64_t)(json_object_size(vocabulary) + json_array_size(added))) {
        return REFUSE(r, err, "the largest id is %lld, but there are %zu tokens", (long long)r->parts.token_count - 1,
                      json_object_size(vocabulary) + json_array_size(added));
    }
    return DW_OK;
}

static int is_byte_token(dw_string text)
{
    return text.length == 6 && memcmp(text.data, "<0x", 3) == 0 && text.data[5] == '>';
}

/* Ids without a token are unused ones. */
static dw_status read_vocabulary(reader *r, const json_t *vocabulary, int byte_fallback, dw_error *err)
{
    const char *token;
    size_t length;
    json_t *id;
    for (int64_t i = 0; i < r->parts.token_count; i++) r->types[i] = DW_TOKEN_UNUSED;
    json_object_keylen_foreach((json_t *)vocabulary, token, length, id)
    {
        const int64_t i = json_integer_value(id);
        if (r->types[i] != DW_TOKEN_UNUSED)
            return REFUSE(r, err, "two tokens of the vocabulary have the id %lld", (long long)i);
        r->tokens[i] = (dw_string){token, (int64_t)length};
        r->types[i] = byte_fallback && is_byte_token(r->tokens[i]) ? DW_TOKEN_BYTE : DW_TOKEN_NORMAL;
    }
    return DW_OK;
}

/* Whether the vocabulary gives a token that is added as `id` another id. */
static int is_elsewhere(const json_t *vocabulary, const json_t *content, int64_t id)
{
    const json_t *other = json_object_getn(vocabulary, json_string_value(content), json_string_length(content));
    return other != NULL && json_integer_value(other) != id;
}

static dw_status read_added(reader *r, const json_t *vocabulary, const json_t *added, dw_error *err)
{
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i);
        const json_t *content = json_object_get(token, "content");
        const int64_t id = json_integer_value(json_object_get(token, "id"));
        if (!json_is_string(content)) return REFUSE(r, err, "added token %lld has no content", (long long)id);
        if (json_is_true(json_object_get(token, "single_word"))) {
            return REFUSE(r, err, "added token \"%s\" is a single_word, which is not supported",
                          dw_printable(dw_json_string(content)).text);
        }
        const dw_string text = dw_json_string(content);
        const int is_taken = r->types[id] != DW_TOKEN_UNUSED && dw_string_compare(&r->tokens[id], &text) != 0;
        if (is_taken || (text.length > 0 && is_elsewhere(vocabulary, content, id))) {
            return REFUSE(r, err, "added token \"%s\" has the id %lld, but the vocabulary says otherwise",
                          dw_printable(text).text, (long long)id);
        }
        if (r->types[id] == DW_TOKEN_NORMAL && dw_string_compare(&r->tokens[id], &text) == 0)
            r->flags[id] |= DW_TOKEN_IS_LEARNED;
        r->tokens[id] = text;
        r->types[id] = json_is_true(json_object_get(token, "special")) ? DW_TOKEN_CONTROL : DW_TOKEN_USER_DEFINED;
        if (json_is_true(json_object_get(token, "lstrip"))) r->flags[id] |= DW_TOKEN_STRIPS_LEFT;
        if (json_is_true(json_object_get(token, "rstrip"))) r->flags[id] |= DW_TOKEN_STRIPS_RIGHT;
        if (json_is_true(json_object_get(token, "normalized"))) r->flags[id] |= DW_TOKEN_IS_NORMALIZED;
    }
    return DW_OK;
}

/* ---- merges ---- */

/* "left right", or ["left", "right"]. */
static dw_status read_merges(reader *r, const json_t *merges, dw_error *err)
{
    const int64_t count = (int64_t)json_array_size(merges);
    if (!json_is_array(merges)) return REFUSE(r, err, "model.merges is missing");
    DW_TRY(DW_ALLOC(&r->merges, 2 * count, "merges", err));
    for (int64_t i = 0; i < count; i++) {
        const json_t *merge = json_array_get(merges, (size_t)i);
        const dw_string text = json_is_string(merge) ? dw_json_string(merge) : (dw_string){NULL, 0};
        const char *space = text.length > 2 ? memchr(text.data + 1, ' ', (size_t)text.length - 2) : NULL;
        if (space != NULL) {
            r->merges[2 * i] = (dw_string){text.data, space - text.data};
            r->merges[2 * i + 1] = (dw_string){space + 1, text.length - (space - text.data) - 1};
        } else if (json_array_size(merge) == 2 && json_is_string(json_array_get(merge, 0)) &&
                   json_is_string(json_array_get(merge, 1))) {
            r->merges[2 * i] = dw_json_string(json_array_get(merge, 0));
            r->merges[2 * i + 1] = dw_json_string(json_array_get(merge, 1));
        } else {
            return REFUSE(r, err, "merge %lld is not a pair of tokens", (long long)i);
        }
    }
    r->parts.merges = r->merges;
    r->parts.merge_count = count;
    return DW_OK;
}

/* ---- the model ---- */

static dw_status check_model(const reader *r, const json_t *model, dw_error *err)
{
    static const char *const absent[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *type = json_object_get(model, "type");
    if (!json_is_object(model)) return REFUSE(r, err, "model is missing");
    if (type != NULL && !dw_json_string_is(type, "BPE")) {
        return REFUSE(r, err, "model.type '%s' is not supported; BPE is",
                      json_is_string(type) ? dw_printable(dw_json_string(type)).text : "?");
    }
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++) {
        const json_t *value = json_object_get(model, absent[i]);
        if (value == NULL || json_is_null(value) || dw_json_string_is(value, "")) continue;
        if (json_is_number(value) && json_number_value(value) == 0) continue;
        return REFUSE(r, err, "model.%s is not supported", absent[i]);
    }
    return DW_OK;
}

static dw_status read_model(reader *r, dw_error *err)
{
    const json_t *model = json_object_get(r->json, "model");
    const json_t *vocabulary = json_object_get(model, "vocab");
    const json_t *added = json_object_get(r->json, "added_tokens");
    const json_t *unknown = json_object_get(model, "unk_token");
    DW_TRY(check_model(r, model, err));
    if (!json_is_object(vocabulary)) return REFUSE(r, err, "model.vocab is missing");
    DW_TRY(count_tokens(r, vocabulary, added, err));
    DW_TRY(DW_ALLOC(&r->tokens, r->parts.token_count, "vocabulary", err));
    DW_TRY(DW_ALLOC(&r->types, r->parts.token_count, "vocabulary", err));
    DW_TRY(DW_ALLOC(&r->flags, r->parts.token_count, "vocabulary", err));
    r->parts.tokens = r->tokens;
    r->parts.types = r->types;
    r->parts.flags = r->flags;
    DW_TRY(read_vocabulary(r, vocabulary, json_is_true(json_object_get(model, "byte_fallback")), err));
    DW_TRY(read_added(r, vocabulary, added, err));
    DW_TRY(read_merges(r, json_object_get(model, "merges"), err));
    r->parts.ignores_merges = json_is_true(json_object_get(model, "ignore_merges"));
    r->parts.fuses_unknown = json_is_true(json_object_get(model, "fuse_unk"));
    if (!json_is_string(unknown) || json_string_length(unknown) == 0) return DW_OK;
    r->parts.unknown = dw_find_token(&r->parts, dw_json_string(unknown));
    return r->parts.unknown >= 0 ? DW_OK : REFUSE(r, err, "model.unk_token is not a token");
}

/* ---- post-processor ---- */

/* What a TemplateProcessing puts in front of a text: nothing, or one token. */
static dw_status read_template(reader *r, const json_t *processor, dw_error *err)
{
    const json_t *steps = json_object_get(processor, "single");
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *special = json_object_get(json_array_get(steps, i), "SpecialToken");
        const json_t *name = json_object_get(special, "id");
        if (special == NULL) return DW_OK;
        r->parts.bos = json_is_string(name) ? dw_find_token(&r->parts, dw_json_string(name)) : -1;
        if (r->parts.bos < 0) return REFUSE(r, err, "post_processor: step %zu of TemplateProcessing names no token", i);
        if (r->parts.add_bos++)
            return REFUSE(r, err, "post_processor: more than one token in front of a text is not supported");
    }
    return REFUSE(r, err, "post_processor: TemplateProcessing has no text");
}

/* ByteLevel only shifts offsets. *is_said: there is one, so that it says whether BOS is added. */
static dw_status read_post_processor(reader *r, int *is_said, dw_error *err)
{
    const json_t *processor = json_object_get(r->json, "post_processor");
    const json_t *list = json_object_get(processor, "processors");
    const int is_sequence = dw_json_string_is(json_object_get(processor, "type"), "Sequence");
    const size_t count = is_sequence ? json_array_size(list) : 1;
    *is_said = processor != NULL && !json_is_null(processor);
    for (size_t i = 0; i < count && *is_said; i++) {
        const json_t *step = is_sequence ? json_array_get(list, i) : processor;
        const json_t *type = json_object_get(step, "type");
        if (dw_json_string_is(type, "ByteLevel")) continue;
        if (!dw_json_string_is(type, "TemplateProcessing")) {
            return REFUSE(r, err, "post_processor '%s' is not supported; there are ByteLevel and TemplateProcessing",
                          json_is_string(type) ? dw_printable(dw_json_string(type)).text : "?");
        }
        DW_TRY(read_template(r, step, err));
    }
    return DW_OK;
}

/* ---- the whole ---- */

static dw_status build(dw_tokenizer **out, reader *r, dw_error *err)
{
    int is_said;
    dw_status status;
    DW_TRY(dw_pipeline_from_json(&r->parts, r->json, r->checkpoint->path, err));
    DW_TRY(read_model(r, err));
    DW_TRY(read_post_processor(r, &is_said, err));
    DW_TRY(dw_special_from_json(&r->parts, &r->ends, r->checkpoint, is_said, err));
    status = dw_tokenizer_build(out, &r->parts, err);
    if (status != DW_OK) dw_fail_context(err, "%s/tokenizer.json", r->checkpoint->path);
    return status;
}

static dw_status load(dw_tokenizer **out, const dw_checkpoint *checkpoint, const json_t *json, dw_error *err)
{
    reader r = {.checkpoint = checkpoint, .json = json, .parts = {.bos = -1, .unknown = -1}};
    const dw_status status = build(out, &r, err);
    dw_free(r.tokens);
    dw_free(r.types);
    dw_free(r.flags);
    dw_free(r.merges);
    dw_free(r.ends);
    return status;
}

dw_status dw_tokenizer_load_json(dw_tokenizer **out, const dw_checkpoint *checkpoint, dw_error *err)
{
    json_t *json;
    dw_status status;
    *out = NULL;
    DW_TRY(dw_checkpoint_json(checkpoint, "tokenizer.json", 0, &json, err));
    if (json == NULL) return dw_tokenizer_load_sentencepiece(out, checkpoint, err);
    status = load(out, checkpoint, json, err);
    json_decref(json);
    return status;
}
