/* The tokenizer in the metadata of a GGUF file. */
#include <string.h>

#include "base/memory.h"
#include "tokenizer/parts.h"

#define REFUSE(file, err, ...) DW_REFUSE(dw_gguf_path(file), err, __VA_ARGS__)

/* Arrays of a file, owned until the tokenizer is built. */
typedef struct {
    dw_string *tokens;
    dw_string *merges; /* "left right" */
    dw_string *pairs;
    int64_t *types;
    unsigned char *flags;
    float *scores;
    int64_t ends[3];
} arrays;

/* Names of tokenizer.ggml.pre whose pattern is certain. NeoX's vocabularies (Pythia, OLMo) and Qwen2's are made on form C. */
static const struct {
    const char *pre;
    const char *split;
    int nfc;
    int is_llama3; /* pieces that are tokens stay whole; BOS is added unless the file says otherwise */
} known[] = {
    {"gpt-2", "gpt-2", 0, 0},         {"gpt2", "gpt-2", 0, 0},
    {"phi-2", "gpt-2", 0, 0},         {"mpt", "gpt-2", 1, 0},
    {"olmo", "gpt-2", 1, 0},          {"smollm", "smollm", 0, 0},
    {"qwen2", "qwen2", 1, 0},         {"deepseek-r1-qwen", "qwen2", 1, 0},
    {"llama-bpe", "llama-bpe", 0, 1}, {"llama3", "llama-bpe", 0, 1},
    {"llama-v3", "llama-bpe", 0, 1},
};

/* -1: the file names none. */
static dw_status read_id(const dw_gguf *file, const dw_tokenizer_parts *parts, const char *key, int64_t *id, dw_error *err)
{
    int found;
    *id = -1;
    DW_TRY(dw_gguf_int(file, key, id, &found, err));
    if (*id >= -1 && *id < parts->token_count) return DW_OK;
    return REFUSE(file, err, "%s is %lld, but the vocabulary has %lld tokens", key, (long long)*id,
                  (long long)parts->token_count);
}

/* ---- what both kinds have ---- */

static dw_status read_vocabulary(const dw_gguf *file, dw_tokenizer_parts *parts, arrays *owned, dw_error *err)
{
    int64_t type_count = 0;
    int found;
    DW_TRY(dw_gguf_strings(file, "tokenizer.ggml.tokens", &owned->tokens, &parts->token_count, NULL, err));
    DW_TRY(dw_gguf_ints(file, "tokenizer.ggml.token_type", &owned->types, &type_count, &found, err));
    if (found && type_count != parts->token_count) {
        return REFUSE(file, err, "%lld tokens (tokenizer.ggml.tokens), but %lld types (tokenizer.ggml.token_type)",
                      (long long)parts->token_count, (long long)type_count);
    }
    parts->tokens = owned->tokens;
    parts->types = owned->types;
    DW_TRY(read_id(file, parts, "tokenizer.ggml.bos_token_id", &parts->bos, err));
    DW_TRY(read_id(file, parts, "tokenizer.ggml.eos_token_id", &owned->ends[0], err));
    DW_TRY(read_id(file, parts, "tokenizer.ggml.eot_token_id", &owned->ends[1], err));
    DW_TRY(read_id(file, parts, "tokenizer.ggml.eom_token_id", &owned->ends[2], err));
    parts->ends = owned->ends;
    parts->end_count = 3;
    return dw_gguf_bool(file, "tokenizer.ggml.add_bos_token", &parts->add_bos, &found, err);
}

/* ---- byte level ---- */

/* "left right": cut at the first space behind the first character. */
static dw_status cut_merges(const dw_gguf *file, dw_tokenizer_parts *parts, arrays *owned, dw_error *err)
{
    DW_TRY(DW_ALLOC(&owned->pairs, 2 * parts->merge_count, "merges", err));
    for (int64_t i = 0; i < parts->merge_count; i++) {
        const dw_string text = owned->merges[i];
        const char *space = text.length > 2 ? memchr(text.data + 1, ' ', (size_t)text.length - 2) : NULL;
        if (space == NULL) {
            return REFUSE(file, err, "merge %lld (tokenizer.ggml.merges) is \"%s\", not two tokens with a space between",
                          (long long)i, dw_printable(text).text);
        }
        owned->pairs[2 * i] = (dw_string){text.data, space - text.data};
        owned->pairs[2 * i + 1] = (dw_string){space + 1, text.length - (space - text.data) - 1};
    }
    parts->merges = owned->pairs;
    return DW_OK;
}

static dw_status read_byte_level(const dw_gguf *file, dw_tokenizer_parts *parts, arrays *owned, dw_error *err)
{
    dw_string pre;
    size_t row = 0;
    int prefix = 0;
    int found;
    DW_TRY(dw_gguf_string(file, "tokenizer.ggml.pre", &pre, NULL, err));
    while (row < sizeof known / sizeof known[0] && !dw_string_is(pre, known[row].pre)) row++;
    if (row == sizeof known / sizeof known[0]) {
        return REFUSE(file, err,
                      "pre-tokenizer \"%s\" (tokenizer.ggml.pre) is not known; there are gpt-2, phi-2, mpt, olmo, "
                      "smollm, qwen2, deepseek-r1-qwen and llama-bpe",
                      dw_printable(pre).text);
    }
    parts->split = known[row].split;
    parts->nfc = known[row].nfc;
    parts->ignores_merges = known[row].is_llama3;
    parts->add_bos = known[row].is_llama3;
    DW_TRY(dw_gguf_bool(file, "tokenizer.ggml.add_space_prefix", &prefix, &found, err));
    if (prefix) parts->prefix = DW_PREFIX_EACH;
    DW_TRY(dw_gguf_strings(file, "tokenizer.ggml.merges", &owned->merges, &parts->merge_count, NULL, err));
    DW_TRY(cut_merges(file, parts, owned, err));
    return read_vocabulary(file, parts, owned, err);
}

/* ---- SentencePiece ---- */

/* The text must reach the tokenizer as it stands. */
static dw_status check_normaliser(const dw_gguf *file, dw_error *err)
{
    const char *const collapse = "tokenizer.ggml.remove_extra_whitespaces";
    int collapses = 0;
    int found;
    for (int64_t i = 0; i < dw_gguf_keys(file); i++) {
        if (!dw_string_is(dw_gguf_key(file, i), "tokenizer.ggml.precompiled_charsmap")) continue;
        if (dw_gguf_value_of(file, i).integer == 0) continue;
        return REFUSE(file, err, "a tokenizer that maps characters (tokenizer.ggml.precompiled_charsmap) is not supported");
    }
    DW_TRY(dw_gguf_bool(file, collapse, &collapses, &found, err));
    return collapses ? REFUSE(file, err, "a tokenizer that drops spaces (%s) is not supported", collapse) : DW_OK;
}

/* SentencePiece looks for user-defined tokens (Gemma: runs of spaces) in the normalised text. */
static dw_status flag_user_defined(dw_tokenizer_parts *parts, arrays *owned, dw_error *err)
{
    DW_TRY(DW_ALLOC(&owned->flags, parts->token_count, "vocabulary", err));
    for (int64_t i = 0; owned->types != NULL && i < parts->token_count; i++) {
        if (owned->types[i] == DW_TOKEN_USER_DEFINED) owned->flags[i] = DW_TOKEN_IS_NORMALIZED;
    }
    parts->flags = owned->flags;
    return DW_OK;
}

static dw_status read_sentencepiece(const dw_gguf *file, dw_tokenizer_parts *parts, arrays *owned, dw_error *err)
{
    int64_t score_count;
    int prefix = 1;
    int found;
    parts->kind = DW_TOKENIZER_SENTENCEPIECE;
    parts->add_bos = 1;
    parts->fuses_unknown = 1;
    DW_TRY(check_normaliser(file, err));
    DW_TRY(dw_gguf_bool(file, "tokenizer.ggml.add_space_prefix", &prefix, &found, err));
    if (prefix) parts->prefix = DW_PREFIX_NORMALIZER;
    DW_TRY(read_vocabulary(file, parts, owned, err));
    DW_TRY(read_id(file, parts, "tokenizer.ggml.unknown_token_id", &parts->unknown, err));
    DW_TRY(dw_gguf_floats(file, "tokenizer.ggml.scores", &owned->scores, &score_count, NULL, err));
    if (score_count != parts->token_count) {
        return REFUSE(file, err, "%lld tokens (tokenizer.ggml.tokens), but %lld scores (tokenizer.ggml.scores)",
                      (long long)parts->token_count, (long long)score_count);
    }
    parts->scores = owned->scores;
    return prefix ? DW_OK : flag_user_defined(parts, owned, err);
}

/* ---- the whole ---- */

static dw_status read_parts(const dw_gguf *file, dw_string model, dw_tokenizer_parts *parts, arrays *owned, dw_error *err)
{
    if (dw_string_is(model, "gpt2")) return read_byte_level(file, parts, owned, err);
    if (dw_string_is(model, "llama")) return read_sentencepiece(file, parts, owned, err);
    return REFUSE(file, err,
                  "tokenizer \"%s\" (tokenizer.ggml.model) is not known; \"gpt2\" (byte-level BPE) and \"llama\" "
                  "(SentencePiece BPE) are",
                  dw_printable(model).text);
}

dw_status dw_tokenizer_load_gguf(dw_tokenizer **out, const dw_gguf *file, dw_error *err)
{
    dw_tokenizer_parts parts = {.bos = -1, .unknown = -1};
    arrays owned = {0};
    dw_string model;
    dw_status status;
    int found;
    *out = NULL;
    DW_TRY(dw_gguf_string(file, "tokenizer.ggml.model", &model, &found, err));
    if (!found || dw_string_is(model, "none") || dw_string_is(model, "no_vocab")) return DW_OK;
    status = read_parts(file, model, &parts, &owned, err);
    if (status == DW_OK) {
        status = dw_tokenizer_build(out, &parts, err);
        if (status != DW_OK) dw_fail_context(err, "%s", dw_gguf_path(file));
    }
    dw_free(owned.tokens);
    dw_free(owned.merges);
    dw_free(owned.pairs);
    dw_free(owned.types);
    dw_free(owned.flags);
    dw_free(owned.scores);
    return status;
}
