/* tokenizer.json and tokenizer.model: what a file gets wrong is named, and nothing that would change ids is passed over. Good
   files are compared with the reference in tests/reference/tokenizer.c. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tests/shared/fixtures.h"
#include "tests/shared/reference.h"
#include "tokenizer/tokenizer.h"

static char directory[512];

static void in_directory(const char *name, const void *data, int64_t bytes)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    write_file(path, data, bytes);
}

static dw_status load(dw_tokenizer **t, dw_error *err)
{
    const dw_checkpoint checkpoint = {.path = directory};
    return dw_tokenizer_load(t, &checkpoint, err);
}

static void start(void)
{
    snprintf(directory, sizeof directory, "%s", fixture_directory("model"));
}

TestSuite(tokenizer_json, .init = start);

/* a b ab <s>, byte level; the parts can be replaced. */
typedef struct {
    const char *normalizer, *pre_tokenizer, *decoder, *post_processor, *added, *model;
} parts;

#define BYTE_LEVEL "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}"
#define ADDED(more) "[{\"id\": 3, \"content\": \"<s>\", \"special\": true" more "}]"
#define BPE(more) "{\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a b\"]" more "}"

static void write_parts(const parts *p)
{
    char text[2048];
    snprintf(text, sizeof text,
             "{\"normalizer\": %s, \"pre_tokenizer\": %s, \"decoder\": %s, \"post_processor\": %s, \"added_tokens\": %s, "
             "\"model\": %s}",
             p->normalizer != NULL ? p->normalizer : "null", p->pre_tokenizer != NULL ? p->pre_tokenizer : BYTE_LEVEL,
             p->decoder != NULL ? p->decoder : "null", p->post_processor != NULL ? p->post_processor : "null",
             p->added != NULL ? p->added : ADDED(""), p->model != NULL ? p->model : BPE(""));
    in_directory("tokenizer.json", text, (int64_t)strlen(text));
}

static dw_tokenizer *load_good(const parts *p)
{
    dw_tokenizer *t;
    dw_error err;
    write_parts(p);
    cr_assert_eq(load(&t, &err), DW_OK, "%s", err.message);
    cr_assert_not_null(t);
    return t;
}

static void expect_ids(const dw_tokenizer *t, const char *text, const int32_t *expected, int64_t expected_count)
{
    int32_t *ids;
    int64_t count;
    dw_error err;
    cr_assert_eq(dw_tokenize(t, text, (int64_t)strlen(text), 1, &ids, &count, &err), DW_OK, "%s", err.message);
    cr_assert(count == expected_count && memcmp(ids, expected, (size_t)count * sizeof *ids) == 0, "'%s'", text);
    dw_free(ids);
}

#define EXPECT(t, text, ...)                                                                                                   \
    expect_ids(t, text, (const int32_t[]){__VA_ARGS__}, (int64_t)(sizeof((int32_t[]){__VA_ARGS__}) / 4))

static void expect_refused(const parts *p, const char *words)
{
    dw_tokenizer *t;
    dw_error err = {.message = ""};
    write_parts(p);
    cr_assert_eq(load(&t, &err), DW_INPUT, "no error about '%s'", words);
    cr_assert_null(t);
    cr_assert(strstr(err.message, "/tokenizer.json: ") != NULL && strstr(err.message, words) != NULL, "'%s' lacks '%s'",
              err.message, words);
}

Test(tokenizer_json, a_directory_without_tokenizer_gives_none)
{
    dw_tokenizer *t;
    dw_error err;
    cr_assert_eq(load(&t, &err), DW_OK, "%s", err.message);
    cr_assert_null(t);
}

Test(tokenizer_json, added_tokens_strip_white_space)
{
    dw_tokenizer *t = load_good(&(parts){.added = ADDED(", \"lstrip\": true, \"rstrip\": true")});
    EXPECT(t, "a \t<s>\n ab", 0, 3, 2);
    dw_tokenizer_free(t);
    t = load_good(&(parts){0});
    EXPECT(t, "a<s>ab", 0, 3, 2);
    dw_tokenizer_free(t);
}

Test(tokenizer_json, a_piece_that_is_a_token_ignores_merges_if_the_model_says_so)
{
    static const char odd[] =
        "{\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, \"ba\": 4, \"aba\": 5}, \"merges\": [\"b a\", \"a b\"]%s}";
    char model[256];
    dw_tokenizer *t;
    snprintf(model, sizeof model, odd, "");
    t = load_good(&(parts){.model = model});
    EXPECT(t, "aba", 0, 4);
    dw_tokenizer_free(t);
    snprintf(model, sizeof model, odd, ", \"ignore_merges\": true");
    t = load_good(&(parts){.model = model});
    EXPECT(t, "aba", 5);
    dw_tokenizer_free(t);
}

Test(tokenizer_json, metaspace_puts_its_sign_where_its_scheme_says)
{
    static const char model[] = "{\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"\xE2\x96\x81\": 2, \"\xE2\x96\x81"
                                "a\": 4}, \"merges\": [\"\xE2\x96\x81 a\"]}";
    static const char step[] =
        "{\"type\": \"Metaspace\", \"replacement\": \"\xE2\x96\x81\", \"prepend_scheme\": \"%s\", \"split\": %s}";
    char pre_tokenizer[256];
    dw_tokenizer *t;
    snprintf(pre_tokenizer, sizeof pre_tokenizer, step, "first", "false");
    t = load_good(&(parts){.pre_tokenizer = pre_tokenizer, .model = model});
    EXPECT(t, "a b", 4, 2, 1);
    EXPECT(t, "<s>a", 3, 0);
    dw_tokenizer_free(t);
    snprintf(pre_tokenizer, sizeof pre_tokenizer, step, "always", "true");
    t = load_good(&(parts){.pre_tokenizer = pre_tokenizer, .model = model});
    EXPECT(t, "<s>a  a", 3, 4, 2, 4);
    dw_tokenizer_free(t);
    snprintf(pre_tokenizer, sizeof pre_tokenizer, step, "never", "false");
    t = load_good(&(parts){.pre_tokenizer = pre_tokenizer, .model = model});
    EXPECT(t, "a", 0);
    dw_tokenizer_free(t);
}

#define TEMPLATE(single) "{\"type\": \"TemplateProcessing\", \"single\": [" single "]}"
#define SPECIAL "{\"SpecialToken\": {\"id\": \"<s>\"}}"
#define SEQUENCE "{\"Sequence\": {\"id\": \"A\"}}"

static void write_text(const char *name, const char *text)
{
    in_directory(name, text, (int64_t)strlen(text));
}

static void expect_bos(const char *post_processor, int32_t bos)
{
    dw_tokenizer *t = load_good(&(parts){.post_processor = post_processor});
    cr_assert_eq(dw_tokenizer_bos(t), bos, "%s", post_processor);
    dw_tokenizer_free(t);
}

/* As transformers 5.24 does with the fixtures of the reference whatever their add_bos_token is. */
Test(tokenizer_json, the_post_processor_says_whether_bos_is_added_and_without_one_add_bos_token_does)
{
    expect_bos(TEMPLATE(SPECIAL ", " SEQUENCE), 3);
    expect_bos("{\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, " TEMPLATE(SPECIAL ", " SEQUENCE) "]}", 3);
    expect_bos(TEMPLATE(SEQUENCE ", " SPECIAL), -1); /* what stands behind a text is no part of a prompt */
    expect_bos(NULL, -1);
    write_text("tokenizer_config.json", "{\"add_bos_token\": false, \"bos_token\": {\"content\": \"b\"}}");
    expect_bos(TEMPLATE(SPECIAL ", " SEQUENCE), 3);
    expect_bos(NULL, -1);
    write_text("tokenizer_config.json", "{\"add_bos_token\": true, \"bos_token\": {\"content\": \"b\"}}");
    expect_bos("{\"type\": \"ByteLevel\"}", -1);
    expect_bos(NULL, 1);
    write_text("tokenizer_config.json", "{\"add_bos_token\": true, \"bos_token\": null}");
    expect_bos(NULL, -1);
}

Test(tokenizer_json, ends_come_from_all_files_beside_it)
{
    dw_tokenizer *t = load_good(&(parts){0});
    for (int32_t i = 0; i < 4; i++) cr_assert(!dw_tokenizer_is_end(t, i));
    dw_tokenizer_free(t);
    write_text("tokenizer_config.json", "{\"eos_token\": \"b\"}");
    write_text("generation_config.json", "{\"eos_token_id\": [0, 2]}");
    t = load_good(&(parts){0});
    cr_assert(dw_tokenizer_is_end(t, 0) && dw_tokenizer_is_end(t, 1) && dw_tokenizer_is_end(t, 2) &&
              !dw_tokenizer_is_end(t, 3));
    dw_tokenizer_free(t);
    write_text("generation_config.json", "{\"eos_token_id\": 3}");
    t = load_good(&(parts){0});
    cr_assert(!dw_tokenizer_is_end(t, 0) && dw_tokenizer_is_end(t, 1) && dw_tokenizer_is_end(t, 3));
    dw_tokenizer_free(t);
}

static void expect_refused_file(const char *file, const char *text, const char *words)
{
    dw_tokenizer *t;
    dw_error err = {.message = ""};
    write_parts(&(parts){0});
    write_text(file, text);
    cr_assert_eq(load(&t, &err), DW_INPUT, "no error about '%s'", words);
    cr_assert(t == NULL && strstr(err.message, file) != NULL && strstr(err.message, words) != NULL, "%s", err.message);
    write_text(file, "{}");
}

Test(tokenizer_json, what_the_files_beside_it_get_wrong_is_named)
{
    expect_refused_file("generation_config.json", "{\"eos_token_id\": 4}",
                        "eos_token_id is 4, but the vocabulary has 4 tokens");
    expect_refused_file("generation_config.json", "{\"eos_token_id\": [1, -1]}", "eos_token_id is -1");
    expect_refused_file("generation_config.json", "{\"eos_token_id\": \"b\"}", "must be a whole number or a list of such");
    expect_refused_file("generation_config.json", "{\"eos_token_id\": 1.5}", "must be a whole number or a list of such");
    expect_refused_file("generation_config.json", "[]", "generation_config.json");
    expect_refused_file("tokenizer_config.json", "{\"add_bos_token\": \"yes\"}", "add_bos_token must be true or false");
    expect_refused_file("tokenizer_config.json", "{\"add_bos_token\": true, \"bos_token\": \"?\"}",
                        "bos_token \"?\" is not a token");
    expect_refused_file("tokenizer_config.json", "{\"add_bos_token\"", "tokenizer_config.json");
}

Test(tokenizer_json, what_would_change_ids_is_refused_by_name)
{
    expect_refused(&(parts){.normalizer = "{\"type\": \"NFKC\"}"}, "normalizer 'NFKC' is not supported; there are NFC");
    expect_refused(&(parts){.normalizer = "{\"type\": \"Sequence\"}"}, "normalizer is a Sequence without normalizers");
    expect_refused(&(parts){.normalizer = "{}"}, "normalizer has no type");
    expect_refused(&(parts){.pre_tokenizer = "null"}, "neither those of byte-level BPE nor of SentencePiece");
    expect_refused(&(parts){.pre_tokenizer = "{\"type\": \"Whitespace\"}"}, "pre_tokenizer 'Whitespace' is not supported");
    expect_refused(
        &(parts){.pre_tokenizer = "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
                                  "\"\\\\w+\"}, \"behavior\": \"Isolated\"}, " BYTE_LEVEL "]}"},
        "the pattern of a Split pre-tokenizer is not known: \\w+");
    expect_refused(&(parts){.decoder = "{\"type\": \"WordPiece\"}"}, "decoder 'WordPiece' does not fit");
    expect_refused(&(parts){.pre_tokenizer = "{\"type\": \"Metaspace\", \"replacement\": \"\xE2\x96\x81\"}",
                            .normalizer = "{\"type\": \"Prepend\", \"prepend\": \"\xE2\x96\x81\"}"},
                   "Prepend and Metaspace");
    expect_refused(&(parts){.decoder = "{\"type\": \"Strip\", \"content\": \" \", \"start\": 2, \"stop\": 0}"},
                   "decoder 'Strip' of anything but");
    expect_refused(&(parts){.decoder = "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"b\"}"},
                   "decoder 'Replace' of anything but");
    expect_refused(&(parts){.post_processor = "{\"type\": \"BertProcessing\"}"}, "post_processor 'BertProcessing' is not");
    expect_refused(&(parts){.post_processor = TEMPLATE(SPECIAL ", " SPECIAL ", " SEQUENCE)}, "more than one token in front");
    expect_refused(&(parts){.post_processor = TEMPLATE("{\"SpecialToken\": {\"id\": \"?\"}}, " SEQUENCE)}, "names no token");
    expect_refused(&(parts){.post_processor = TEMPLATE(SPECIAL)}, "TemplateProcessing has no text");
    expect_refused(&(parts){.added = "[{\"id\": 1, \"content\": \"x\"}]"}, "\"x\" has the id 1, but the vocabulary says");
    expect_refused(&(parts){.added = "[{\"id\": 3, \"content\": \"a\"}]"}, "\"a\" has the id 3, but the vocabulary says");
    expect_refused(&(parts){.added = "[{\"id\": 3, \"content\": \"x\"}, {\"id\": 3, \"content\": \"y\"}]"},
                   "\"y\" has the id 3");
    expect_refused(&(parts){.added = "[{\"id\": 70000, \"content\": \"x\"}]"},
                   "the largest id is 70000, but there are 4 tokens");
    expect_refused(&(parts){.added = ADDED(", \"single_word\": true")}, "is a single_word");
    expect_refused(&(parts){.added = "[{\"id\": -1, \"content\": \"x\"}]"}, "must be a whole number below 16777216");
    expect_refused(&(parts){.added = "[{\"id\": 3}]"}, "added token 3 has no content");
    expect_refused(&(parts){.model = "{\"type\": \"Unigram\"}"}, "model.type 'Unigram' is not supported; BPE is");
    expect_refused(&(parts){.model = "null"}, "model is missing");
    expect_refused(&(parts){.model = "{\"merges\": []}"}, "model.vocab is missing");
    expect_refused(&(parts){.model = "{\"vocab\": {\"a\": 0}}"}, "model.merges is missing");
    expect_refused(&(parts){.model = BPE(", \"dropout\": 0.1")}, "model.dropout is not supported");
    expect_refused(&(parts){.model = BPE(", \"unk_token\": \"?\"")}, "model.unk_token is not a token");
    expect_refused(&(parts){.model = "{\"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}"},
                   "two tokens of the vocabulary have the id 0");
    expect_refused(&(parts){.model = "{\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [\"a b\"]}"}, "\"ab\" is not a token");
    expect_refused(&(parts){.model = "{\"vocab\": {\"a\": 0}, \"merges\": [\"a\"]}"}, "merge 0 is not a pair of tokens");
    expect_refused(&(parts){.model = "{\"vocab\": {\"a\": 99999999999}, \"merges\": []}"}, "the id of token \"a\"");
}

/* Every prefix of a good file is damaged JSON; the message names the file. */
Test(tokenizer_json, truncation_is_noticed)
{
    uint8_t *data;
    int64_t bytes;
    read_file(reference_path("tokenizer/llama/tokenizer.json"), &data, &bytes);
    while (data[bytes - 1] != '}') bytes--;
    for (int64_t n = 0; n < bytes; n += n < 2000 ? 13 : 997) {
        dw_tokenizer *t;
        dw_error err;
        in_directory("tokenizer.json", data, n);
        cr_assert_eq(load(&t, &err), DW_INPUT, "%lld bytes", (long long)n);
        cr_assert(t == NULL && strstr(err.message, "tokenizer.json") != NULL, "%s", err.message);
    }
    dw_free(data);
}

/* Ids without a token are unused; the other tokens keep theirs. */
Test(tokenizer_json, ids_may_have_holes)
{
    dw_tokenizer *t = load_good(&(parts){.added = "[{\"id\": 9, \"content\": \"<s>\", \"special\": true}]"});
    cr_assert_eq(dw_tokenizer_size(t), 10);
    EXPECT(t, "ab<s>b", 2, 9, 1);
    for (int32_t id = 3; id < 9; id++) cr_assert_eq(dw_token_bytes(t, id, 1).length, 0);
    dw_tokenizer_free(t);
}

/* The fields of the file are told by number; the values here are those of its SentencePiece model with one of them changed. */
static void expect_refused_model(const char *more, int64_t bytes, const char *words)
{
    uint8_t *data;
    int64_t length;
    char all[20000];
    dw_tokenizer *t;
    dw_error err = {.message = ""};
    read_file(reference_path("tokenizer/llama/tokenizer.model"), &data, &length);
    cr_assert_lt(length + bytes, (int64_t)sizeof all);
    memcpy(all, data, (size_t)length);
    memcpy(all + length, more, (size_t)bytes); /* of a field that comes twice the last counts */
    dw_free(data);
    in_directory("tokenizer.model", all, length + bytes);
    cr_assert_eq(load(&t, &err), DW_INPUT, "no error about '%s'", words);
    cr_assert(strstr(err.message, "/tokenizer.model: ") != NULL && strstr(err.message, words) != NULL, "%s", err.message);
}

#define TRAINER(bytes) "\x12" bytes
#define NORMALIZER(bytes) "\x1A" bytes
#define MODEL(bytes) bytes, sizeof(bytes) - 1

Test(tokenizer_json, a_sentencepiece_model_of_another_kind_is_refused_by_name)
{
    expect_refused_model(MODEL(TRAINER("\x02\x18\x01")), "of type 1; 2 (BPE) is supported");
    expect_refused_model(MODEL(TRAINER("\x03\xC0\x01\x01")), "spaces behind words");
    expect_refused_model(MODEL(TRAINER("\x04\xC8\x02\xB6\x07")), "bos_id is 950 and eos_id 2, but there are 950 pieces");
    expect_refused_model(MODEL(NORMALIZER("\x03\x12\x01x")), "maps characters");
    expect_refused_model(MODEL(NORMALIZER("\x02\x20\x01")), "drops spaces");
    expect_refused_model(MODEL(NORMALIZER("\x02\x28\x00")), "does not escape spaces");
    expect_refused_model(MODEL("\x0A\x7Fx"), "damaged");
}

Test(tokenizer_json, tokenizer_model_takes_bos_and_ends_from_the_files_beside_it)
{
    uint8_t *data;
    int64_t bytes;
    dw_tokenizer *t;
    dw_error err;
    read_file(reference_path("tokenizer/llama/tokenizer.model"), &data, &bytes);
    in_directory("tokenizer.model", data, bytes);
    dw_free(data);
    cr_assert_eq(load(&t, &err), DW_OK, "%s", err.message);
    cr_assert(dw_tokenizer_bos(t) == 1 && dw_tokenizer_is_end(t, 2) && !dw_tokenizer_is_end(t, 7));
    dw_tokenizer_free(t);
    write_text("tokenizer_config.json", "{\"add_bos_token\": false}");
    write_text("generation_config.json", "{\"eos_token_id\": 7}");
    cr_assert_eq(load(&t, &err), DW_OK, "%s", err.message);
    cr_assert(dw_tokenizer_bos(t) == -1 && dw_tokenizer_is_end(t, 2) && dw_tokenizer_is_end(t, 7));
    dw_tokenizer_free(t);
    write_text("tokenizer_config.json", "{\"added_tokens_decoder\": {\"1\": {}, \"950\": {\"content\": \"<|im_end|>\"}}}");
    cr_assert_eq(load(&t, &err), DW_INPUT);
    cr_assert_not_null(strstr(err.message, "/tokenizer_config.json adds token 950 to the 950 of tokenizer.model"), "%s",
                       err.message);
    write_text("tokenizer_config.json", "{\"added_tokens_decoder\": {\"1\": {}}}");
    write_text("added_tokens.json", "{\"<|im_end|>\": 951}");
    cr_assert_eq(load(&t, &err), DW_INPUT);
    cr_assert_not_null(strstr(err.message, "/added_tokens.json adds token 951"), "%s", err.message);
    check_no_leak();
}

/* SentencePiece's file has no checksum: a damaged one may load, but must do no harm. */
Test(tokenizer_json, damage_to_tokenizer_model_does_no_harm)
{
    uint8_t *data;
    int64_t bytes, refused = 0;
    read_file(reference_path("tokenizer/llama/tokenizer.model"), &data, &bytes);
    for (int64_t i = 0; i < 1500; i++) {
        const int64_t at = (int64_t)((0.5 + 0.5 * (double)fixture_random(1, i, 1)) * (double)bytes);
        const uint8_t saved = data[at];
        dw_tokenizer *t;
        dw_error err;
        data[at] = (uint8_t)(128 + 128 * (double)fixture_random(2, i, 1));
        in_directory("tokenizer.model", data, i % 3 == 0 ? at : bytes);
        data[at] = saved;
        if (load(&t, &err) == DW_OK) {
            dw_tokenizer_free(t);
            continue;
        }
        refused++;
        cr_assert(err.status == DW_INPUT && strstr(err.message, "tokenizer.model: ") != NULL, "%s", err.message);
    }
    cr_assert(refused > 300 && refused < 1500, "%lld refused", (long long)refused);
    dw_free(data);
}

/* A changed byte may give another tokenizer, but never harm; what is refused names the file. */
Test(tokenizer_json, damage_to_tokenizer_json_does_no_harm)
{
    static const char *const names[] = {"tokenizer/llama/tokenizer.json", "tokenizer/neox/tokenizer.json"};
    int64_t refused = 0;
    for (int64_t i = 0; i < 800; i++) {
        uint8_t *data;
        int64_t bytes;
        dw_tokenizer *t;
        dw_error err;
        read_file(reference_path(names[i % 2]), &data, &bytes);
        /* Half of the changes hit what stands in front of the vocabulary. */
        const int64_t range = i % 4 < 2 ? 3000 : bytes;
        const int64_t at = (int64_t)((0.5 + 0.5 * (double)fixture_random(5, i, 1)) * (double)range);
        data[at] = (uint8_t)(128 + 128 * (double)fixture_random(6, i, 1));
        in_directory("tokenizer.json", data, bytes);
        dw_free(data);
        if (load(&t, &err) == DW_OK) {
            dw_tokenizer_free(t);
            continue;
        }
        refused++;
        cr_assert(err.status == DW_INPUT && strstr(err.message, "tokenizer.json") != NULL, "%s", err.message);
    }
    cr_assert(refused > 300 && refused < 800, "%lld refused", (long long)refused);
    check_no_leak();
}

static void fail_every_allocation(void)
{
    dw_tokenizer *t;
    dw_error err;
    dw_status status;
    int64_t n = 0;
    do {
        dw_memory_fail_at(++n);
        status = load(&t, &err);
        cr_assert(status == DW_OK || status == DW_RESOURCE || strstr(err.message, "memory") != NULL, "allocation %lld: %s",
                  (long long)n, err.message);
        cr_assert((status == DW_OK) == (t != NULL));
        dw_tokenizer_free(t);
    } while (status != DW_OK && n < 1000);
    dw_memory_fail_at(0);
    cr_assert(status == DW_OK && n > 10);
}

Test(tokenizer_json, a_failing_allocation_is_reported_and_leaves_nothing_behind)
{
    char path[600];
    uint8_t *data;
    int64_t bytes;
    write_text("tokenizer_config.json", "{\"eos_token\": \"<s>\"}");
    write_parts(&(parts){0});
    fail_every_allocation();
    read_file(reference_path("tokenizer/llama/tokenizer.model"), &data, &bytes);
    in_directory("tokenizer.model", data, bytes);
    dw_free(data);
    snprintf(path, sizeof path, "%s/tokenizer.json", directory);
    cr_assert_eq(remove(path), 0);
    fail_every_allocation();
    check_no_leak();
}
