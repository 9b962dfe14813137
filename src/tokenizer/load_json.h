/* What load_json.c, pipeline_json.c, special_json.c and sentencepiece_model.c share. */
#ifndef DW_TOKENIZER_LOAD_JSON_H
#define DW_TOKENIZER_LOAD_JSON_H

#include <jansson.h>

#include "tokenizer/parts.h"

/* Reports DW_INPUT with "DIRECTORY/tokenizer.json: " in front, and is DW_INPUT. */
#define DW_REFUSE_JSON(directory, err, ...)                                                                                    \
    (dw_fail((err), DW_INPUT, __VA_ARGS__), dw_fail_context((err), "%s/tokenizer.json", (directory)), DW_INPUT)

/* Reads normalizer, pre_tokenizer and decoder of a tokenizer.json: kind, nfc, split, prefix. */
dw_status dw_pipeline_from_json(dw_tokenizer_parts *parts, const json_t *json, const char *directory, dw_error *err);

/* The id of a token, by its text; -1: there is none. */
int64_t dw_find_token(const dw_tokenizer_parts *parts, dw_string text);

/* Completes bos, add_bos and ends of parts (tokens are read already) from tokenizer_config.json, generation_config.json and
   config.json. is_said: the file of the tokenizer says whether BOS is added, and parts does; else add_bos is what holds unless
   add_bos_token says otherwise. *ends (dw_free, also on failure) is the list that parts then has. DW_INPUT names the file. */
dw_status dw_special_from_json(dw_tokenizer_parts *parts, int64_t **ends, const dw_checkpoint *checkpoint, int is_said,
                               dw_error *err);

static inline dw_string dw_json_string(const json_t *string)
{
    return (dw_string){json_string_value(string), (int64_t)json_string_length(string)};
}

static inline int dw_json_string_is(const json_t *string, const char *text)
{
    return json_is_string(string) && dw_string_is(dw_json_string(string), text);
}

#endif
