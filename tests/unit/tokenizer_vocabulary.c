#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tokenizer/parts.h"
#include "tokenizer/tokenizer.h"

#define BYTES(literal) (literal), (int64_t)sizeof(literal) - 1
#define STRING(literal)                                                                                                        \
    {                                                                                                                          \
        BYTES(literal)                                                                                                         \
    }

/* "\xC4\xA0" is the alphabet's space; bytes C3 and A9 of e with acute accent have no token here. */
enum { A, B, C, SPACE, AB, ABC, SPACE_A, BOS, END, LONG_END, TOOL, LONG_TOOL, RAW, HEX, UNUSED, SYMBOL, TOKENS };
static const dw_string tokens[TOKENS] = {
    STRING("a"),
    STRING("b"),
    STRING("c"),
    STRING("\xC4\xA0"),
    STRING("ab"),
    STRING("abc"),
    STRING("\xC4\xA0"
           "a"),
    STRING("<s>"),
    STRING("<|im_end|>"),
    STRING("<|im_end|>!"),
    STRING("[t]"),
    STRING("[t][u]"),
    STRING("\xE2\x82\xAC"),
    STRING("<0x7A>"),
    STRING("[PAD]"),
    STRING("<"),
};
static const int64_t types[TOKENS] = {1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 4, 4, 1, 6, 5, 1};
static const dw_string merges[] = {STRING("a"), STRING("b"), STRING("\xC4\xA0"), STRING("a"), STRING("ab"), STRING("c")};
static const int64_t ends[] = {TOOL};

static dw_tokenizer_parts good_parts(void)
{
    return (dw_tokenizer_parts){.split = "smollm",
                                .tokens = tokens,
                                .token_count = TOKENS,
                                .types = types,
                                .merges = merges,
                                .merge_count = 3,
                                .bos = BOS,
                                .unknown = -1,
                                .ends = ends,
                                .end_count = 1};
}

static dw_tokenizer *make(const dw_tokenizer_parts *parts)
{
    dw_tokenizer *t;
    dw_error err;
    cr_assert_eq(dw_tokenizer_build(&t, parts, &err), DW_OK, "%s", err.message);
    return t;
}

static void expect_ids_of(const dw_tokenizer_parts *parts, const char *text, int64_t length, int parse_special,
                          const int32_t *expected, int64_t expected_count)
{
    dw_tokenizer *t = make(parts);
    int32_t *ids;
    int64_t count;
    dw_error err;
    cr_assert_eq(dw_tokenize(t, text, length, parse_special, &ids, &count, &err), DW_OK, "%s", err.message);
    cr_assert_eq(count, expected_count, "'%s' gives %d ids, not %d", text, (int)count, (int)expected_count);
    for (int64_t i = 0; i < count; i++) {
        cr_assert_eq(ids[i], expected[i], "'%s': id %d is %d, not %d", text, (int)i, ids[i], expected[i]);
    }
    dw_free(ids);
    dw_tokenizer_free(t);
}

static void expect_ids(const char *text, int64_t length, int parse_special, const int32_t *expected, int64_t expected_count)
{
    const dw_tokenizer_parts parts = good_parts();
    expect_ids_of(&parts, text, length, parse_special, expected, expected_count);
}

#define EXPECT(text, parse_special, ...)                                                                                       \
    do {                                                                                                                       \
        static const int32_t expected[] = {__VA_ARGS__};                                                                       \
        expect_ids(BYTES(text), (parse_special), expected, (int64_t)(sizeof expected / sizeof *expected));                     \
    } while (0)

Test(tokenizer_vocabulary, bytes_are_merged_inside_pieces_only)
{
    expect_ids("", 0, 1, NULL, 0);
    EXPECT("abc", 0, ABC);
    EXPECT("abab", 0, AB, AB);
    EXPECT("a b", 0, A, SPACE, B);
    EXPECT("c a", 0, C, SPACE_A);
    EXPECT("c  a", 0, C, SPACE, SPACE_A);
}

/* The first merge has rank 0, so that "\xC4\xA0 a" does not take the a of " ab". */
Test(tokenizer_vocabulary, merges_rank_by_their_order_in_the_file)
{
    EXPECT(" ab", 0, SPACE, AB);
}

Test(tokenizer_vocabulary, bytes_without_a_token_vanish_before_merging)
{
    EXPECT("a\xC3\xA9"
           "b",
           0, AB);
    expect_ids(BYTES("\xC3\xA9\0"), 0, NULL, 0);
    EXPECT("a\0b", 0, A, B); /* the zero byte is a piece of its own */
}

Test(tokenizer_vocabulary, control_tokens_are_found_only_on_request)
{
    EXPECT("<s>a", 1, BOS, A);
    EXPECT("<s>a", 0, SYMBOL, A);
    EXPECT("a<|im_end|>b", 1, A, END, B);
    EXPECT("a<|im_end|>b", 0, A, SYMBOL, B);
    EXPECT("<s><s>", 1, BOS, BOS);
    EXPECT("<<s>", 1, SYMBOL, BOS);
}

Test(tokenizer_vocabulary, user_defined_tokens_are_always_found)
{
    EXPECT("a[t]b", 0, A, TOOL, B);
    EXPECT("a[t]b", 1, A, TOOL, B);
    EXPECT("[t]<s>", 0, TOOL, SYMBOL);
}

Test(tokenizer_vocabulary, the_longest_token_at_the_leftmost_place_wins)
{
    EXPECT("<|im_end|>!", 1, LONG_END);
    EXPECT("<|im_end|>a", 1, END, A);
    EXPECT("[t][u]", 0, LONG_TOOL);
    EXPECT("[t][t][u]", 0, TOOL, LONG_TOOL);
    EXPECT("[t][", 0, TOOL);
}

/* No piece crosses a recognised token, and white space in front of one stands at the end of its text. */
Test(tokenizer_vocabulary, recognised_tokens_cut_the_text)
{
    EXPECT("a<s>b", 1, A, BOS, B);
    EXPECT("  [t] a", 0, SPACE, SPACE, TOOL, SPACE_A);
}

/* Tokens are looked for in the text as it stands, and what lies between them is composed: > and U+0338 make one character
   (whose bytes have no token here), but not where the > belongs to a token. */
Test(tokenizer_vocabulary, recognised_tokens_are_found_before_the_text_is_composed)
{
    static const int32_t token[] = {BOS, A, SYMBOL};
    static const int32_t plain[] = {SYMBOL, A, SYMBOL};
    dw_tokenizer_parts parts = good_parts();
    parts.split = "qwen2";
    parts.nfc = 1;
    expect_ids_of(&parts,
                  BYTES("<s>\xCC\xB8"
                        "a<"),
                  1, token, 3);
    expect_ids_of(&parts,
                  BYTES("<s>\xCC\xB8"
                        "a<"),
                  0, plain, 3);
    expect_ids_of(&parts,
                  BYTES("<\xCC\xB8"
                        "a<"),
                  0, token + 1, 2);
    expect_ids_of(&parts,
                  BYTES("<s\xE2\x89\xAF"
                        "a<"),
                  1, plain, 3);
}

Test(tokenizer_vocabulary, only_the_types_named_for_it_are_found_in_text)
{
    EXPECT("[PAD]a", 1, A);
    EXPECT("<0x7A>", 1, SYMBOL);
    EXPECT("z", 0, HEX);
}

static void expect_bytes(const dw_tokenizer *t, int32_t id, int with_special, const char *bytes, int64_t count)
{
    const dw_string got = dw_token_bytes(t, id, with_special);
    cr_assert(got.length == count && memcmp(got.data, bytes, (size_t)count) == 0, "token %d is '%.*s'", id, (int)got.length,
              got.data);
}

Test(tokenizer_vocabulary, token_bytes_by_type)
{
    const dw_tokenizer_parts parts = good_parts();
    dw_tokenizer *t = make(&parts);
    cr_assert_eq(dw_tokenizer_size(t), TOKENS);
    expect_bytes(t, ABC, 0, "abc", 3);
    expect_bytes(t, SPACE_A, 0, " a", 2);
    expect_bytes(t, RAW, 0, "\xE2\x82\xAC", 3); /* outside the alphabet: as it is */
    expect_bytes(t, HEX, 0, "z", 1);
    expect_bytes(t, TOOL, 0, "[t]", 3);
    expect_bytes(t, BOS, 0, "", 0);
    expect_bytes(t, BOS, 1, "<s>", 3);
    expect_bytes(t, UNUSED, 0, "", 0);
    expect_bytes(t, UNUSED, 1, "[PAD]", 5);
    expect_bytes(t, -1, 1, "", 0);
    expect_bytes(t, TOKENS, 1, "", 0);
    dw_tokenizer_free(t);
}

Test(tokenizer_vocabulary, ends_are_eos_eot_and_known_control_tokens)
{
    static const int64_t other[] = {LONG_END};
    dw_tokenizer_parts parts = good_parts();
    dw_tokenizer *t = make(&parts);
    for (int32_t id = -1; id <= TOKENS; id++) cr_assert_eq(dw_tokenizer_is_end(t, id), id == TOOL || id == END, "token %d", id);
    dw_tokenizer_free(t);
    parts.ends = other;
    t = make(&parts);
    for (int32_t id = -1; id <= TOKENS; id++) {
        cr_assert_eq(dw_tokenizer_is_end(t, id), id == LONG_END || id == END, "token %d", id);
    }
    dw_tokenizer_free(t);
    parts.types = NULL; /* then <|im_end|> is a word like others */
    t = make(&parts);
    cr_assert(!dw_tokenizer_is_end(t, END));
    dw_tokenizer_free(t);
}

Test(tokenizer_vocabulary, bos_only_when_the_model_wants_it)
{
    dw_tokenizer_parts parts = good_parts();
    dw_tokenizer *t = make(&parts);
    cr_assert_eq(dw_tokenizer_bos(t), -1);
    dw_tokenizer_free(t);
    parts.add_bos = 1;
    t = make(&parts);
    cr_assert_eq(dw_tokenizer_bos(t), BOS);
    dw_tokenizer_free(t);
}

static void expect_refused(const dw_tokenizer_parts *parts, const char *named)
{
    dw_tokenizer *t;
    dw_error err;
    cr_assert_eq(dw_tokenizer_build(&t, parts, &err), DW_INPUT, "no error about %s", named);
    cr_assert_null(t);
    cr_assert_not_null(strstr(err.message, named), "'%s' does not say '%s'", err.message, named);
}

Test(tokenizer_vocabulary, ids_out_of_range_are_refused)
{
    static const int64_t below[] = {-2};
    static const int64_t above[] = {INT64_C(1) << 32};
    dw_tokenizer_parts parts = good_parts();
    parts.bos = TOKENS;
    expect_refused(&parts, "the bos token is 16, but the vocabulary has 16 tokens");
    parts = good_parts();
    parts.ends = below;
    expect_refused(&parts, "the end token is -2");
    parts = good_parts();
    parts.ends = above;
    expect_refused(&parts, "the end token is 4294967296");
    parts = good_parts();
    parts.unknown = TOKENS;
    expect_refused(&parts, "the unknown token is 16");
    parts = good_parts();
    parts.bos = -1;
    parts.add_bos = 1;
    expect_refused(&parts, "a BOS token is to be added, but there is none");
}

Test(tokenizer_vocabulary, damaged_parts_are_refused)
{
    static const dw_string unknown_left[] = {STRING("a"), STRING("b"), STRING("x"), STRING("b")};
    static const dw_string unknown_right[] = {STRING("a"), STRING("x\n")};
    static const dw_string unknown_result[] = {STRING("b"), STRING("a")};
    static const int64_t unknown_type[TOKENS] = {1, 1, 7};
    dw_tokenizer_parts parts = good_parts();
    parts.types = unknown_type;
    expect_refused(&parts, "token 2 has type 7");
    parts = good_parts();
    parts.token_count = 0;
    expect_refused(&parts, "a vocabulary of 0 tokens");
    parts = good_parts();
    parts.split = "other";
    expect_refused(&parts, "\"other\"");
    parts = good_parts();
    parts.merges = unknown_left;
    parts.merge_count = 2;
    expect_refused(&parts, "merge 1: \"x\" is not a token");
    parts.merge_count = 1;
    parts.merges = unknown_right;
    expect_refused(&parts, "merge 0: \"x?\" is not a token");
    parts.merges = unknown_result;
    expect_refused(&parts, "\"ba\" is not a token");
}

Test(tokenizer_vocabulary, invalid_utf8_is_refused_with_its_place)
{
    const dw_tokenizer_parts parts = good_parts();
    dw_tokenizer *t = make(&parts);
    int32_t *ids;
    int64_t count;
    dw_error err;
    cr_assert_eq(dw_tokenize(t, BYTES("ab<s>\xC3"), 1, &ids, &count, &err), DW_INPUT);
    cr_assert_str_eq(err.message, "invalid UTF-8 at byte 5");
    cr_assert_null(ids);
    cr_assert_eq(count, 0);
    dw_tokenizer_free(t);
}

/* One allocation after the other fails, until none does: machine code for the pattern may be done without, all else is
   needed, and nothing is kept (seen by the address sanitizer). */
Test(tokenizer_vocabulary, every_failing_allocation_is_reported)
{
    dw_tokenizer_parts parts = good_parts();
    int refused = 0, n = 0;
    int64_t made;
    parts.split = "qwen2";
    parts.nfc = 1;
    do {
        dw_tokenizer *t = NULL;
        int32_t *ids = NULL;
        int64_t count;
        dw_error err = {.message = ""};
        dw_status status;
        made = -dw_memory_allocations();
        dw_memory_fail_at(++n);
        status = dw_tokenizer_build(&t, &parts, &err);
        if (status == DW_OK) status = dw_tokenize(t, BYTES("abc abab<s>ae\xCC\x81"), 1, &ids, &count, &err);
        made += dw_memory_allocations();
        dw_memory_fail_at(0);
        cr_assert(status == DW_OK || status == DW_RESOURCE, "allocation %d: status %d, %s", n, (int)status, err.message);
        cr_assert(status == DW_OK || strstr(err.message, "not enough memory") != NULL, "allocation %d: %s", n, err.message);
        refused += status == DW_RESOURCE;
        dw_free(ids);
        dw_tokenizer_free(t);
    } while (made >= n);
    cr_assert_geq(refused, 18, "only %d of %d failures were seen", refused, n);
}
