/* The tokenizer of a Hugging Face directory: tokenizer.json (as the tokenizers library reads it), with BOS and ends from the
   configurations beside it; where that file is missing, tokenizer.model. */
#include "tokenizer/load_json.h"

#include <stdlib.h>

#include "base/memory.h"
#include "tokenizer/sentencepiece_model.h"

/* A file of another size would be no tokenizer. */
enum { MOST_TOKENS = 1 << 24 };

typedef struct {
    const dw_checkpoint *checkpoint;
    const json_t *json;       /* tokenizer.json */
    const json_t *config;     /* tokenizer_config.json, NULL: none */
    const json_t *generation; /* generation_config.json, NULL: none */
    dw_tokenizer_parts parts;
    dw_string *tokens; /* the arrays of parts */
    int64_t *types;
    unsigned char *flags;
    dw_string *merges;
    int64_t *ends;
    int64_t end_capacity;
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

static dw_status read_added(reader *r, const json_t *added, dw_error *err)
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
        r->tokens[id] = dw_json_string(content);
        r->types[id] = json_is_true(json_object_get(token, "special")) ? DW_TOKEN_CONTROL : DW_TOKEN_USER_DEFINED;
        if (json_is_true(json_object_get(token, "lstrip"))) r->flags[id] |= DW_TOKEN_STRIPS_LEFT;
        if (json_is_true(json_object_get(token, "rstrip"))) r->flags[id] |= DW_TOKEN_STRIPS_RIGHT;
        if (json_is_true(json_object_get(token, "normalized"))) r->flags[id] |= DW_TOKEN_IS_NORMALIZED;
    }
    return DW_OK;
}

/* -1: there is none. */
static int64_t find_token(const reader *r, dw_string text)
{
    for (int64_t i = 0; i < r->parts.token_count; i++) {
        if (text.length > 0 && dw_string_compare(&r->tokens[i], &text) == 0) return i;
    }
    return -1;
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
    DW_TRY(read_added(r, added, err));
    DW_TRY(read_merges(r, json_object_get(model, "merges"), err));
    r->parts.ignores_merges = json_is_true(json_object_get(model, "ignore_merges"));
    r->parts.fuses_unknown = json_is_true(json_object_get(model, "fuse_unk"));
    if (!json_is_string(unknown)) return DW_OK;
    r->parts.unknown = find_token(r, dw_json_string(unknown));
    return r->parts.unknown >= 0 ? DW_OK : REFUSE(r, err, "model.unk_token is not a token");
}

/* ---- BOS and ends ---- */

/* A token that a configuration names: a string, or an object with its content. -1: none. */
static int64_t named_token(const reader *r, const char *key)
{
    const json_t *value = json_object_get(r->config, key);
    if (json_is_object(value)) value = json_object_get(value, "content");
    return json_is_string(value) ? find_token(r, dw_json_string(value)) : -1;
}

/* Adds a number, or each of a list. */
static dw_status put_ends(reader *r, const json_t *value, dw_error *err)
{
    const size_t count = json_is_array(value) ? json_array_size(value) : 1;
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= r->parts.token_count) continue;
        DW_TRY(DW_GROW(&r->ends, &r->end_capacity, r->parts.end_count + 1, "end tokens", err));
        r->ends[r->parts.end_count++] = json_integer_value(id);
    }
    r->parts.ends = r->ends;
    return DW_OK;
}

/* The id that the post-processor puts in front of a text; -1: none. */
static int64_t template_bos(const reader *r)
{
    const json_t *processor = json_object_get(r->json, "post_processor");
    const json_t *list = json_object_get(processor, "processors");
    const json_t *name;
    for (size_t i = 0; json_is_array(list) && i < json_array_size(list); i++) {
        if (dw_json_string_is(json_object_get(json_array_get(list, i), "type"), "TemplateProcessing"))
            processor = json_array_get(list, i);
    }
    if (!dw_json_string_is(json_object_get(processor, "type"), "TemplateProcessing")) return -1;
    name = json_object_get(json_object_get(json_array_get(json_object_get(processor, "single"), 0), "SpecialToken"), "id");
    return json_is_string(name) ? find_token(r, dw_json_string(name)) : -1;
}

/* add_bos_token of tokenizer_config.json decides, else the post-processor. Generation ends at the ids of generation_config.json
   and config.json and at the tokenizer's eos_token. */
static dw_status read_special(reader *r, dw_error *err)
{
    const json_t *add = json_object_get(r->config, "add_bos_token");
    const json_t *bos = json_object_get(r->checkpoint->config, "bos_token_id");
    const int64_t from_template = template_bos(r);
    const int64_t eos = named_token(r, "eos_token");
    json_t *id;
    dw_status status;
    r->parts.add_bos = json_is_boolean(add) ? json_is_true(add) : from_template >= 0;
    r->parts.bos = named_token(r, "bos_token");
    if (r->parts.bos < 0) r->parts.bos = from_template;
    if (r->parts.bos < 0 && json_is_integer(bos)) r->parts.bos = json_integer_value(bos);
    if (r->parts.bos < 0) r->parts.add_bos = 0;
    DW_TRY(put_ends(r, json_object_get(r->generation, "eos_token_id"), err));
    DW_TRY(put_ends(r, json_object_get(r->checkpoint->config, "eos_token_id"), err));
    if (eos < 0) return DW_OK;
    id = json_integer(eos);
    if (id == NULL) return dw_fail(err, DW_RESOURCE, "not enough memory for the tokenizer");
    status = put_ends(r, id, err);
    json_decref(id);
    return status;
}

/* ---- the whole ---- */

static dw_status build(dw_tokenizer **out, reader *r, dw_error *err)
{
    dw_status status;
    DW_TRY(dw_pipeline_from_json(&r->parts, r->json, r->checkpoint->path, err));
    DW_TRY(read_model(r, err));
    DW_TRY(read_special(r, err));
    status = dw_tokenizer_build(out, &r->parts, err);
    if (status != DW_OK) dw_fail_context(err, "%s/tokenizer.json", r->checkpoint->path);
    return status;
}

static dw_status load(dw_tokenizer **out, const dw_checkpoint *checkpoint, const json_t *json, dw_error *err)
{
    reader r = {.checkpoint = checkpoint, .json = json, .parts = {.bos = -1, .unknown = -1}};
    json_t *config = NULL;
    json_t *generation = NULL;
    dw_status status = dw_checkpoint_json(checkpoint, "tokenizer_config.json", 0, &config, err);
    if (status == DW_OK) status = dw_checkpoint_json(checkpoint, "generation_config.json", 0, &generation, err);
    r.config = config;
    r.generation = generation;
    if (status == DW_OK) status = build(out, &r, err);
    json_decref(config);
    json_decref(generation);
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
