#include <string.h>

#include "base/memory.h"
#include "tokenizer/quote.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocabulary.h"

/* Arrays of a file, owned until the tokenizer is built. */
typedef struct {
    dw_string *tokens;
    dw_string *merges;
    int64_t *types;
} arrays;

static dw_status read_id(const dw_gguf *file, const char *key, int64_t *id, dw_error *err)
{
    int found;
    *id = -1;
    return dw_gguf_int(file, key, id, &found, err);
}

static dw_status read_parts(const dw_gguf *file, dw_tokenizer_parts *parts, arrays *owned, dw_error *err)
{
    int64_t type_count = 0;
    int found;
    DW_TRY(dw_gguf_string(file, "tokenizer.ggml.pre", &parts->pre, NULL, err));
    DW_TRY(dw_gguf_strings(file, "tokenizer.ggml.tokens", &owned->tokens, &parts->token_count, NULL, err));
    DW_TRY(dw_gguf_strings(file, "tokenizer.ggml.merges", &owned->merges, &parts->merge_count, NULL, err));
    DW_TRY(dw_gguf_ints(file, "tokenizer.ggml.token_type", &owned->types, &type_count, &found, err));
    if (found && type_count != parts->token_count) {
        return dw_fail(err, DW_INPUT, "%s: %lld tokens (tokenizer.ggml.tokens), but %lld types (tokenizer.ggml.token_type)",
                       dw_gguf_path(file), (long long)parts->token_count, (long long)type_count);
    }
    DW_TRY(read_id(file, "tokenizer.ggml.bos_token_id", &parts->bos, err));
    DW_TRY(read_id(file, "tokenizer.ggml.eos_token_id", &parts->eos, err));
    DW_TRY(read_id(file, "tokenizer.ggml.eot_token_id", &parts->eot, err));
    parts->add_bos = 0; /* absent: byte-level BPE models want none */
    DW_TRY(dw_gguf_bool(file, "tokenizer.ggml.add_bos_token", &parts->add_bos, &found, err));
    parts->tokens = owned->tokens;
    parts->merges = owned->merges;
    parts->types = owned->types;
    return DW_OK;
}

dw_status dw_tokenizer_load(dw_tokenizer **out, const dw_gguf *file, dw_error *err)
{
    dw_tokenizer_parts parts = {0};
    arrays owned = {0};
    dw_string model;
    dw_status status;
    int found;
    *out = NULL;
    DW_TRY(dw_gguf_string(file, "tokenizer.ggml.model", &model, &found, err));
    if (!found) return DW_OK;
    if (model.length != 4 || memcmp(model.data, "gpt2", 4) != 0) {
        char name[DW_QUOTE_SIZE];
        return dw_fail(err, DW_INPUT, "%s: tokenizer %s (tokenizer.ggml.model) is not known; \"gpt2\" (byte-level BPE) is",
                       dw_gguf_path(file), dw_quote(model, name));
    }
    status = read_parts(file, &parts, &owned, err);
    if (status == DW_OK) {
        status = dw_tokenizer_build(out, &parts, err);
        if (status != DW_OK) dw_fail_context(err, "%s", dw_gguf_path(file));
    }
    dw_free(owned.tokens);
    dw_free(owned.merges);
    dw_free(owned.types);
    return status;
}
