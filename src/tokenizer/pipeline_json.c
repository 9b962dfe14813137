/* The steps of a tokenizer.json around its model: every one is understood, or without influence, or refused by name. */
#include "tokenizer/load_json.h"

typedef struct {
    dw_tokenizer_parts *parts;
    const char *directory;
    int replaces_spaces; /* by U+2581 */
    int is_byte_level;
    int splits_digits;
    const char *pattern; /* row of split.c of a Split step */
} pipeline;

#define REFUSE(p, err, ...) DW_REFUSE_JSON((p)->directory, err, __VA_ARGS__)
#define SPACE_SIGN "\xE2\x96\x81"

/* Patterns of Split steps as published tokenizers write them, and the row of split.c that is the same. */
static const struct {
    const char *regex;
    const char *split;
} patterns[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", "gpt-2"},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)"
     "|\\s+",
     "qwen2"},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
     "\\s+(?!\\S)|\\s+",
     "llama-bpe"},
};

typedef dw_status step_reader(pipeline *p, const json_t *step, const char *type, dw_error *err);

/* Calls read on a step, or on each of a Sequence (whose list has the name `list`); sequences of sequences are refused. */
static dw_status read_steps(pipeline *p, const json_t *step, const char *what, const char *list, step_reader *read,
                            dw_error *err)
{
    const char *type = json_string_value(json_object_get(step, "type"));
    const json_t *steps = json_object_get(step, list);
    if (step == NULL || json_is_null(step)) return DW_OK;
    if (type == NULL) return REFUSE(p, err, "%s has no type", what);
    if (strcmp(type, "Sequence") != 0) return read(p, step, type, err);
    if (!json_is_array(steps)) return REFUSE(p, err, "%s is a Sequence without %s", what, list);
    for (size_t i = 0; i < json_array_size(steps); i++) {
        type = json_string_value(json_object_get(json_array_get(steps, i), "type"));
        if (type == NULL) return REFUSE(p, err, "step %zu of the %s has no type", i, what);
        DW_TRY(read(p, json_array_get(steps, i), type, err));
    }
    return DW_OK;
}

static dw_status unknown_step(const pipeline *p, const char *what, const char *type, const char *known, dw_error *err)
{
    return REFUSE(p, err, "%s '%s' is not supported; there are %s", what, dw_printable(dw_string_of(type)).text, known);
}

/* ---- normaliser ---- */

static dw_status read_normalizer(pipeline *p, const json_t *step, const char *type, dw_error *err)
{
    if (strcmp(type, "NFC") == 0) {
        if (p->replaces_spaces || p->parts->prefix != DW_PREFIX_NONE) return REFUSE(p, err, "normalizer NFC must come first");
        p->parts->nfc = 1;
    } else if (strcmp(type, "Prepend") == 0 && dw_json_string_is(json_object_get(step, "prepend"), SPACE_SIGN)) {
        p->parts->prefix = DW_PREFIX_NORMALIZER;
    } else if (strcmp(type, "Replace") == 0 && dw_json_string_is(json_object_get(step, "content"), SPACE_SIGN) &&
               dw_json_string_is(json_object_get(json_object_get(step, "pattern"), "String"), " ")) {
        p->replaces_spaces = 1;
    } else {
        return unknown_step(p, "normalizer", type, "NFC, Prepend of U+2581 and Replace of spaces by it", err);
    }
    return DW_OK;
}

/* ---- pre-tokenizer ---- */

/* A Split at spaces after these have been replaced cuts nothing (Gemma). */
static dw_status read_split(pipeline *p, const json_t *step, dw_error *err)
{
    const json_t *pattern = json_object_get(step, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    if (p->replaces_spaces && dw_json_string_is(json_object_get(pattern, "String"), " ")) return DW_OK;
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        if (!dw_json_string_is(regex, patterns[i].regex) || p->pattern != NULL) continue;
        if (!dw_json_string_is(json_object_get(step, "behavior"), "Isolated") || json_is_true(json_object_get(step, "invert")))
            break;
        p->pattern = patterns[i].split;
        return DW_OK;
    }
    return REFUSE(p, err, "the pattern of a Split pre-tokenizer is not known: %s",
                  json_is_string(regex) ? dw_printable(dw_json_string(regex)).text : "no Regex");
}

/* Older files say add_prefix_space where newer ones have prepend_scheme; split defaults to true. */
static dw_status read_metaspace(pipeline *p, const json_t *step, dw_error *err)
{
    const json_t *scheme = json_object_get(step, "prepend_scheme");
    const json_t *split = json_object_get(step, "split");
    if (!dw_json_string_is(json_object_get(step, "replacement"), SPACE_SIGN)) {
        return REFUSE(p, err, "the replacement of a Metaspace pre-tokenizer must be U+2581");
    }
    if (p->parts->prefix != DW_PREFIX_NONE) return REFUSE(p, err, "Prepend and Metaspace in one tokenizer are not supported");
    p->replaces_spaces = 1;
    if (dw_json_string_is(scheme, "always") || (scheme == NULL && !json_is_false(json_object_get(step, "add_prefix_space")))) {
        p->parts->prefix = DW_PREFIX_EACH;
    } else if (dw_json_string_is(scheme, "first")) {
        p->parts->prefix = DW_PREFIX_FIRST;
    } else if (scheme != NULL && !dw_json_string_is(scheme, "never")) {
        return REFUSE(p, err, "the prepend_scheme of a Metaspace pre-tokenizer must be always, first or never");
    }
    p->parts->replaces_late = 1;
    if (!json_is_false(split)) p->parts->split = "metaspace";
    return DW_OK;
}

static dw_status read_byte_level(pipeline *p, const json_t *step, dw_error *err)
{
    p->is_byte_level = 1;
    if (json_is_true(json_object_get(step, "add_prefix_space"))) {
        if (p->pattern != NULL || p->splits_digits) {
            return REFUSE(p, err, "add_prefix_space of a ByteLevel pre-tokenizer behind another one is not supported");
        }
        p->parts->prefix = DW_PREFIX_EACH;
    }
    if (json_is_false(json_object_get(step, "use_regex"))) {
        if (p->splits_digits) return REFUSE(p, err, "a Digits pre-tokenizer without GPT-2's pattern is not supported");
        p->parts->split = p->pattern;
    } else if (p->pattern != NULL) {
        return REFUSE(p, err, "a Split and a ByteLevel pre-tokenizer that both cut are not supported");
    } else {
        p->parts->split = p->splits_digits ? "smollm" : "gpt-2";
    }
    return DW_OK;
}

static dw_status read_pre_tokenizer(pipeline *p, const json_t *step, const char *type, dw_error *err)
{
    if (p->is_byte_level)
        return REFUSE(p, err, "pre-tokenizer '%s' behind ByteLevel is not supported", dw_printable(dw_string_of(type)).text);
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(p, step, err);
    if (strcmp(type, "Split") == 0) return read_split(p, step, err);
    if (strcmp(type, "Metaspace") == 0) return read_metaspace(p, step, err);
    if (strcmp(type, "Digits") == 0 && json_is_true(json_object_get(step, "individual_digits"))) {
        p->splits_digits = 1;
        return DW_OK;
    }
    return unknown_step(p, "pre_tokenizer", type, "ByteLevel, Split, Metaspace and Digits (individual)", err);
}

/* ---- decoder ---- */

/* What decodes is implied by the kind; the decoder only must not do anything else. */
static dw_status read_decoder(pipeline *p, const json_t *step, const char *type, dw_error *err)
{
    static const char *const known[] = {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"};
    const json_t *pattern = json_object_get(json_object_get(step, "pattern"), "String");
    if (strcmp(type, "Replace") == 0 &&
        !(dw_json_string_is(pattern, SPACE_SIGN) && dw_json_string_is(json_object_get(step, "content"), " "))) {
        return REFUSE(p, err, "decoder 'Replace' of anything but U+2581 by a space is not supported");
    }
    if (strcmp(type, "Strip") == 0 &&
        !(dw_json_string_is(json_object_get(step, "content"), " ") && json_integer_value(json_object_get(step, "start")) <= 1 &&
          json_integer_value(json_object_get(step, "stop")) == 0)) {
        return REFUSE(p, err, "decoder 'Strip' of anything but a space in front is not supported");
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(type, known[i]) == 0 && (i == 0) == p->is_byte_level) return DW_OK;
    }
    return REFUSE(p, err, "decoder '%s' does not fit the pre_tokenizer and normalizer", dw_printable(dw_string_of(type)).text);
}

dw_status dw_pipeline_from_json(dw_tokenizer_parts *parts, const json_t *json, const char *directory, dw_error *err)
{
    pipeline p = {.parts = parts, .directory = directory};
    DW_TRY(read_steps(&p, json_object_get(json, "normalizer"), "normalizer", "normalizers", read_normalizer, err));
    DW_TRY(read_steps(&p, json_object_get(json, "pre_tokenizer"), "pre_tokenizer", "pretokenizers", read_pre_tokenizer, err));
    if (p.is_byte_level == p.replaces_spaces || (p.is_byte_level && parts->prefix == DW_PREFIX_NORMALIZER)) {
        return REFUSE(&p, err, "normalizer and pre_tokenizer are neither those of byte-level BPE nor of SentencePiece");
    }
    if (!p.is_byte_level && (p.pattern != NULL || p.splits_digits)) {
        return REFUSE(&p, err, "a pattern or Digits pre-tokenizer without ByteLevel is not supported");
    }
    parts->kind = p.is_byte_level ? DW_TOKENIZER_BYTE_LEVEL : DW_TOKENIZER_SENTENCEPIECE;
    return read_steps(&p, json_object_get(json, "decoder"), "decoder", "decoders", read_decoder, err);
}
