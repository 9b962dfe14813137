/* What load_json.c and pipeline_json.c share. */
#ifndef DW_TOKENIZER_LOAD_JSON_H
#define DW_TOKENIZER_LOAD_JSON_H

#include <jansson.h>

#include "tokenizer/parts.h"

/* Reports DW_INPUT with "DIRECTORY/tokenizer.json: " in front, and is DW_INPUT. */
#define DW_REFUSE_JSON(directory, err, ...)                                                                                    \
    (dw_fail((err), DW_INPUT, __VA_ARGS__), dw_fail_context((err), "%s/tokenizer.json", (directory)), DW_INPUT)

/* Reads normalizer, pre_tokenizer and decoder of a tokenizer.json: kind, nfc, split, prefix. */
dw_status dw_pipeline_from_json(dw_tokenizer_parts *parts, const json_t *json, const char *directory, dw_error *err);

static inline dw_string dw_json_string(const json_t *string)
{
    return (dw_string){json_string_value(string), (int64_t)json_string_length(string)};
}

static inline int dw_json_string_is(const json_t *string, const char *text)
{
    return json_is_string(string) && dw_string_is(dw_json_string(string), text);
}

#endif
