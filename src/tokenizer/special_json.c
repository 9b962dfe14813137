/* Which token begins a text, and which end it: what the configurations beside a tokenizer say.

   BOS as in transformers 5: where tokenizer.json has a post-processor, that alone decides, and add_bos_token of
   tokenizer_config.json is not looked at; it decides where there is none, and for tokenizer.model (which wants BOS unless told
   otherwise). A token that a post-processor puts behind a text (add_eos_token) is left out: a prompt is to be continued.
   Generation stops at the ids of generation_config.json (transformers looks at these alone), of config.json and at the
   eos_token of tokenizer_config.json: text behind any of them is never a continuation. */
#include "tokenizer/load_json.h"

#include "base/memory.h"

int64_t dw_find_token(const dw_tokenizer_parts *parts, dw_string text)
{
    for (int64_t i = 0; i < parts->token_count; i++) {
        if (text.length > 0 && dw_string_compare(&parts->tokens[i], &text) == 0) return i;
    }
    return -1;
}

static dw_status refuse(const dw_checkpoint *checkpoint, const char *file, dw_error *err)
{
    dw_fail_context(err, "%s/%s", checkpoint->path, file);
    return DW_INPUT;
}

/* ---- BOS ---- */

static dw_string token_text(const json_t *value)
{
    if (json_is_object(value)) value = json_object_get(value, "content");
    return json_is_string(value) ? dw_json_string(value) : (dw_string){NULL, 0};
}

static dw_status read_bos(dw_tokenizer_parts *parts, const dw_checkpoint *checkpoint, const json_t *config, int is_said,
                          dw_error *err)
{
    const json_t *add = json_object_get(config, "add_bos_token");
    const dw_string name = token_text(json_object_get(config, "bos_token"));
    const json_t *number = json_object_get(checkpoint->config, "bos_token_id");
    const int64_t named = dw_find_token(parts, name);
    if (add != NULL && !json_is_boolean(add) && !json_is_null(add)) {
        dw_fail(err, DW_INPUT, "add_bos_token must be true or false");
        return refuse(checkpoint, "tokenizer_config.json", err);
    }
    if (is_said && parts->add_bos) return DW_OK;
    if (named >= 0) parts->bos = named;
    if (parts->bos < 0 && json_is_integer(number) && json_integer_value(number) < parts->token_count) {
        parts->bos = json_integer_value(number);
    }
    if (is_said) return DW_OK;
    if (json_is_boolean(add)) parts->add_bos = json_is_true(add);
    if (parts->add_bos && name.length > 0 && named < 0) {
        dw_fail(err, DW_INPUT, "bos_token \"%s\" is not a token of the vocabulary", dw_printable(name).text);
        return refuse(checkpoint, "tokenizer_config.json", err);
    }
    parts->add_bos = parts->add_bos && parts->bos >= 0;
    return DW_OK;
}

/* ---- ends ---- */

typedef struct {
    int64_t *ids;
    int64_t count;
    int64_t capacity;
} id_list;

static dw_status put_end(id_list *ends, int64_t id, dw_error *err)
{
    DW_TRY(DW_GROW(&ends->ids, &ends->capacity, ends->count + 1, "end tokens", err));
    ends->ids[ends->count++] = id;
    return DW_OK;
}

/* eos_token_id of a configuration: absent or null, a number, or a list of numbers. */
static dw_status put_ends(id_list *ends, const json_t *config, int64_t token_count, dw_error *err)
{
    const json_t *value = json_object_get(config, "eos_token_id");
    const size_t count = json_is_array(value) ? json_array_size(value) : 1;
    if (value == NULL || json_is_null(value)) return DW_OK;
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_integer(id)) return dw_fail(err, DW_INPUT, "eos_token_id must be a whole number or a list of such");
        if (json_integer_value(id) < 0 || json_integer_value(id) >= token_count) {
            return dw_fail(err, DW_INPUT, "eos_token_id is %lld, but the vocabulary has %lld tokens",
                           (long long)json_integer_value(id), (long long)token_count);
        }
        DW_TRY(put_end(ends, json_integer_value(id), err));
    }
    return DW_OK;
}

static dw_status read_ends(id_list *ends, dw_tokenizer_parts *parts, const dw_checkpoint *checkpoint, const json_t *config,
                           const json_t *generation, dw_error *err)
{
    const int64_t eos = dw_find_token(parts, token_text(json_object_get(config, "eos_token")));
    dw_status status = put_ends(ends, generation, parts->token_count, err);
    if (status == DW_INPUT) return refuse(checkpoint, "generation_config.json", err);
    if (status == DW_OK) status = put_ends(ends, checkpoint->config, parts->token_count, err);
    if (status == DW_INPUT) return refuse(checkpoint, "config.json", err);
    if (status == DW_OK && eos >= 0) status = put_end(ends, eos, err);
    for (int64_t i = 0; i < parts->end_count && status == DW_OK; i++) status = put_end(ends, parts->ends[i], err);
    return status;
}

dw_status dw_special_from_json(dw_tokenizer_parts *parts, int64_t **ends, const dw_checkpoint *checkpoint, int is_said,
                               dw_error *err)
{
    id_list list = {0};
    json_t *config = NULL;
    json_t *generation = NULL;
    dw_status status = dw_checkpoint_json(checkpoint, "tokenizer_config.json", 0, &config, err);
    if (status == DW_OK) status = dw_checkpoint_json(checkpoint, "generation_config.json", 0, &generation, err);
    if (status == DW_OK) status = read_bos(parts, checkpoint, config, is_said, err);
    if (status == DW_OK) status = read_ends(&list, parts, checkpoint, config, generation, err);
    json_decref(config);
    json_decref(generation);
    *ends = list.ids;
    parts->ends = list.ids;
    parts->end_count = list.count;
    return status;
}
