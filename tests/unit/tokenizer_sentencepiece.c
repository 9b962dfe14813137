/* SentencePiece BPE from tokens and scores, without a file. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tests/shared/fixtures.h"
#include "tokenizer/parts.h"

#define BYTES(literal) (literal), (int64_t)sizeof(literal) - 1
#define STRING(literal)                                                                                                        \
    {                                                                                                                          \
        BYTES(literal)                                                                                                         \
    }
#define SIGN "\xE2\x96\x81" /* U+2581 */
#define EURO "\xE2\x82\xAC"
#define E_ACUTE "\xC3\xA9"

/* The three bytes of the euro sign have tokens, those of e with acute accent have not. */
enum { UNK, BOS, B_E2, B_82, B_AC, S, A, B, C, SA, AB, BC, SS, ABC, TOOL, TOKENS };
static const dw_string tokens[TOKENS] = {
    STRING("<unk>"), STRING("<s>"), STRING("<0xE2>"),  STRING("<0x82>"), STRING("<0xAC>"),
    STRING(SIGN),    STRING("a"),   STRING("b"),       STRING("c"),      STRING(SIGN "a"),
    STRING("ab"),    STRING("bc"),  STRING(SIGN SIGN), STRING("abc"),    STRING("[t]"),
};
static const int64_t types[TOKENS] = {2, 3, 6, 6, 6, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4};
static const float scores[TOKENS] = {0, 0, 0, 0, 0, -10, -11, -12, -13, -3, -2, -2, -1, -4, 0};

static dw_tokenizer_parts good_parts(void)
{
    return (dw_tokenizer_parts){.kind = DW_TOKENIZER_SENTENCEPIECE,
                                .tokens = tokens,
                                .token_count = TOKENS,
                                .types = types,
                                .scores = scores,
                                .unknown = UNK,
                                .fuses_unknown = 1,
                                .prefix = DW_PREFIX_NORMALIZER,
                                .bos = BOS};
}

static dw_tokenizer *make(const dw_tokenizer_parts *parts)
{
    dw_tokenizer *t;
    dw_error err;
    cr_assert_eq(dw_tokenizer_build(&t, parts, &err), DW_OK, "%s", err.message);
    return t;
}

static void expect(const dw_tokenizer_parts *parts, const char *text, int64_t length, int parse_special,
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

#define EXPECT(parts, text, parse_special, ...)                                                                                \
    do {                                                                                                                       \
        static const int32_t expected[] = {__VA_ARGS__};                                                                       \
        expect((parts), BYTES(text), (parse_special), expected, (int64_t)(sizeof expected / sizeof *expected));                \
    } while (0)

Test(tokenizer_sentencepiece, the_highest_score_is_made_first_and_the_leftmost_of_equals)
{
    const dw_tokenizer_parts parts = good_parts();
    expect(&parts, "", 0, 0, NULL, 0);
    EXPECT(&parts, "a", 0, SA);
    EXPECT(&parts, "ab", 0, S, AB);   /* ab is better than the a behind a space */
    EXPECT(&parts, "abc", 0, S, ABC); /* ab and bc are equal: the left one, which c then joins */
    EXPECT(&parts, "bcbc", 0, S, BC, BC);
    EXPECT(&parts, "c ab", 0, S, C, S, AB);
}

Test(tokenizer_sentencepiece, spaces_and_the_sign_for_them_are_one)
{
    dw_tokenizer_parts parts = good_parts();
    EXPECT(&parts, " ", 0, SS);
    EXPECT(&parts, "b  a", 0, S, B, SS, A);
    EXPECT(&parts, "b" SIGN SIGN "a", 0, S, B, SS, A);
    parts.prefix = DW_PREFIX_NONE;
    EXPECT(&parts, "a a", 0, A, SA);
}

/* In front of every stretch between added tokens, of the first only, or of those that do not begin with a space. */
Test(tokenizer_sentencepiece, prefixes_go_where_they_are_told_to)
{
    dw_tokenizer_parts parts = good_parts();
    EXPECT(&parts, "b[t]b", 0, S, B, TOOL, S, B);
    EXPECT(&parts, " b[t] b", 0, SS, B, TOOL, SS, B);
    parts.prefix = DW_PREFIX_EACH;
    EXPECT(&parts, "b[t]b", 0, S, B, TOOL, S, B);
    EXPECT(&parts, " b[t] b", 0, S, B, TOOL, S, B);
    parts.prefix = DW_PREFIX_FIRST;
    EXPECT(&parts, "b[t]b", 0, S, B, TOOL, B);
    EXPECT(&parts, "[t]b", 0, TOOL, B);
}

Test(tokenizer_sentencepiece, what_has_no_token_becomes_its_bytes_or_the_unknown_token)
{
    dw_tokenizer_parts parts = good_parts();
    EXPECT(&parts, "a" EURO "b", 0, SA, B_E2, B_82, B_AC, B);
    EXPECT(&parts,
           "a" E_ACUTE E_ACUTE "x\x01"
           "b" E_ACUTE,
           0, SA, UNK, B, UNK);
    parts.fuses_unknown = 0;
    EXPECT(&parts, "a" E_ACUTE "xb", 0, SA, UNK, UNK, B);
    parts.unknown = -1;
    EXPECT(&parts, "a" E_ACUTE "b", 0, S, AB); /* vanishes before anything is merged */
    EXPECT(&parts, "a<0xE2>", 0, SA);          /* the name of a byte token is no character of the text */
}

Test(tokenizer_sentencepiece, control_tokens_are_found_on_request_and_never_made)
{
    static const dw_string made[] = {STRING("<"), STRING("s"), STRING(">"), STRING("<s"), STRING("<s>")};
    static const int64_t made_types[] = {1, 1, 1, 1, 3};
    static const float made_scores[] = {-1, -1, -1, 0, 0};
    dw_tokenizer_parts parts = good_parts();
    EXPECT(&parts, "<s>b", 1, BOS, S, B);
    EXPECT(&parts, "b<unk>", 1, S, B, UNK);
    parts.tokens = made;
    parts.token_count = 5;
    parts.types = made_types;
    parts.scores = made_scores;
    parts.prefix = DW_PREFIX_NONE;
    EXPECT(&parts, "<s>", 1, 4);
    EXPECT(&parts, "<s>", 0, 3, 2);
}

/* The text of a normalised added token is normalised, too: with the prefix it is found only where the text has that. */
Test(tokenizer_sentencepiece, added_tokens_are_found_in_the_normalised_text_if_they_say_so)
{
    static const unsigned char flags[TOKENS] = {[TOOL] = DW_TOKEN_IS_NORMALIZED};
    dw_tokenizer_parts parts = good_parts();
    parts.flags = flags;
    parts.unknown = -1;
    EXPECT(&parts, "[t]b", 0, TOOL, B);
    EXPECT(&parts, "b [t]b", 0, S, B, TOOL, B);
    EXPECT(&parts, "b[t]b", 0, S, B, B);
}

/* All of Unicode's white space. */
Test(tokenizer_sentencepiece, white_space_belongs_to_added_tokens_that_strip_it)
{
    static const unsigned char left[TOKENS] = {[TOOL] = DW_TOKEN_STRIPS_LEFT};
    static const unsigned char right[TOKENS] = {[TOOL] = DW_TOKEN_STRIPS_RIGHT};
    static const char *const spaces[] = {" ",
                                         "\t",
                                         "\n",
                                         "\v",
                                         "\f",
                                         "\r",
                                         "\xC2\x85",
                                         "\xC2\xA0",
                                         "\xE1\x9A\x80",
                                         "\xE2\x80\x80",
                                         "\xE2\x80\x8A",
                                         "\xE2\x80\xA8",
                                         "\xE2\x80\xA9",
                                         "\xE2\x80\xAF",
                                         "\xE2\x81\x9F",
                                         "\xE3\x80\x80"};
    static const char *const others[] = {"\x08", "\x0E", "\xC2\xA1", "\xE2\x80\x8B", "\xE1\xA0\x8E", "\xEF\xBB\xBF"};
    static const int32_t stripped[] = {S, B, TOOL, S, B};
    static const int32_t with_unknown[] = {S, B, UNK, TOOL, S, B};
    dw_tokenizer_parts parts = good_parts();
    char text[32];
    parts.flags = left;
    EXPECT(&parts, "b \xC2\xA0\n[t] b", 0, S, B, TOOL, SS, B);
    EXPECT(&parts, " \n[t][t]b", 0, TOOL, TOOL, S, B);
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        const int n = snprintf(text, sizeof text, "b%s[t]b", spaces[i]);
        expect(&parts, text, n, 0, stripped, 5);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const int n = snprintf(text, sizeof text, "b%s[t]b", others[i]);
        expect(&parts, text, n, 0, with_unknown, 6);
    }
    parts.flags = right;
    EXPECT(&parts, "b [t] \xC2\xA0\nb", 0, S, B, S, TOOL, S, B);
    EXPECT(&parts, "[t]\n \n", 0, TOOL);
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        const int n = snprintf(text, sizeof text, "b[t]%sb", spaces[i]);
        expect(&parts, text, n, 0, stripped, 5);
    }
}

/* A token may begin in the white space of the one before; one that takes the white space in front of it must have more. */
Test(tokenizer_sentencepiece, white_space_of_one_token_may_be_another_token)
{
    static const unsigned char flags[TOKENS] = {[TOOL] = DW_TOKEN_STRIPS_RIGHT};
    static const unsigned char left[TOKENS] = {[TOOL] = DW_TOKEN_STRIPS_RIGHT, [SS] = DW_TOKEN_STRIPS_LEFT};
    dw_string spaces[TOKENS];
    int64_t added[TOKENS];
    dw_tokenizer_parts parts = good_parts();
    memcpy(spaces, tokens, sizeof spaces);
    memcpy(added, types, sizeof added);
    spaces[SS] = (dw_string){BYTES("  ")};
    added[SS] = DW_TOKEN_USER_DEFINED;
    parts.tokens = spaces;
    parts.types = added;
    parts.flags = flags;
    EXPECT(&parts, "[t]   b", 0, TOOL, SS, S, S, B);
    EXPECT(&parts, "[t] \n  b", 0, TOOL, SS, S, B);
    parts.flags = left;
    EXPECT(&parts, "[t]   b", 0, TOOL, S, B);
    EXPECT(&parts, "[t]b   b", 0, TOOL, S, B, SS, S, S, B);
}

/* As the tokenizers library does it: what a control token would have taken is plain text, all of it. */
Test(tokenizer_sentencepiece, nothing_is_found_in_control_tokens_that_are_plain_text)
{
    dw_string odd[TOKENS];
    dw_tokenizer_parts parts = good_parts();
    memcpy(odd, tokens, sizeof odd);
    odd[BOS] = (dw_string){BYTES("a[t]a")};
    parts.tokens = odd;
    parts.unknown = -1;
    EXPECT(&parts, "a[t]a[t]", 1, BOS, TOOL);
    EXPECT(&parts, "a[t]a[t]", 0, SA, A, TOOL);
}

/* Added tokens of a tokenizer.json are often tokens of its model as well. */
Test(tokenizer_sentencepiece, learned_added_tokens_are_made_by_merges_too)
{
    static const dw_string merges[] = {STRING("a"), STRING("b")};
    static const unsigned char flags[TOKENS] = {[A] = DW_TOKEN_IS_LEARNED, [AB] = DW_TOKEN_IS_LEARNED};
    static const unsigned char byte_flags[TOKENS] = {[A] = DW_TOKEN_IS_LEARNED};
    int64_t added[TOKENS];
    dw_tokenizer_parts parts = good_parts();
    memcpy(added, types, sizeof added);
    added[A] = added[AB] = DW_TOKEN_CONTROL;
    parts.types = added;
    parts.scores = NULL;
    parts.merges = merges;
    parts.merge_count = 1;
    parts.flags = flags;
    EXPECT(&parts, "babc", 0, S, B, AB, C);
    EXPECT(&parts, "babca", 1, S, B, AB, S, C, A);
    parts.kind = DW_TOKENIZER_BYTE_LEVEL;
    parts.prefix = DW_PREFIX_NONE;
    parts.unknown = -1;
    parts.flags = byte_flags;
    EXPECT(&parts, "babc", 0, B, AB, C);
    parts.flags = NULL;
    EXPECT(&parts, "babc", 0, B, B, C);
}

Test(tokenizer_sentencepiece, of_equal_added_tokens_the_first_counts)
{
    static const unsigned char flags[TOKENS] = {[ABC] = DW_TOKEN_IS_NORMALIZED, [TOOL] = DW_TOKEN_IS_NORMALIZED};
    dw_string equal[TOKENS];
    int64_t added[TOKENS];
    dw_tokenizer_parts parts = good_parts();
    memcpy(equal, tokens, sizeof equal);
    memcpy(added, types, sizeof added);
    equal[ABC] = (dw_string){BYTES(SIGN "[")};
    equal[TOOL] = (dw_string){BYTES(" [")};
    added[ABC] = DW_TOKEN_USER_DEFINED;
    parts.tokens = equal;
    parts.types = added;
    parts.flags = flags;
    parts.prefix = DW_PREFIX_NONE;
    EXPECT(&parts, "b [b", 0, B, ABC, B);
}

/* Metaspace: spaces are spaces for added tokens, and are replaced when these have been found. */
Test(tokenizer_sentencepiece, spaces_can_be_replaced_after_added_tokens_are_found)
{
    static const unsigned char flags[TOKENS] = {[TOOL] = DW_TOKEN_IS_NORMALIZED | DW_TOKEN_STRIPS_LEFT};
    dw_tokenizer_parts parts = good_parts();
    parts.flags = flags;
    parts.prefix = DW_PREFIX_EACH;
    EXPECT(&parts, "b [t] b", 0, S, B, S, TOOL, S, B);
    parts.replaces_late = 1;
    EXPECT(&parts, "b [t] b", 0, S, B, TOOL, S, B);
    EXPECT(&parts, "  b", 0, SS, B);
    parts.split = "metaspace";
    EXPECT(&parts, "  b a", 0, S, S, B, SA);
}

/* Else one could be found in the middle of a character, and half of that would be left. */
Test(tokenizer_sentencepiece, added_tokens_that_are_not_utf8_are_in_no_text)
{
    static const unsigned char normalized[TOKENS] = {[TOOL] = DW_TOKEN_IS_NORMALIZED};
    dw_string odd[TOKENS];
    dw_tokenizer_parts parts = good_parts();
    memcpy(odd, tokens, sizeof odd);
    parts.tokens = odd;
    odd[TOOL] = (dw_string){BYTES("\x82")};
    EXPECT(&parts, EURO, 0, S, B_E2, B_82, B_AC);
    odd[TOOL] = (dw_string){BYTES("\xE2")};
    parts.flags = normalized;
    parts.nfc = 1;
    EXPECT(&parts, EURO, 0, S, B_E2, B_82, B_AC);
    parts.kind = DW_TOKENIZER_BYTE_LEVEL;
    parts.scores = NULL;
    parts.split = "qwen2";
    dw_tokenizer_free(make(&parts));
}

Test(tokenizer_sentencepiece, scores_that_are_no_numbers_are_refused)
{
    float odd[TOKENS];
    dw_tokenizer_parts parts = good_parts();
    dw_tokenizer *t;
    dw_error err;
    memcpy(odd, scores, sizeof odd);
    odd[AB] = NAN;
    parts.scores = odd;
    cr_assert_eq(dw_tokenizer_build(&t, &parts, &err), DW_INPUT);
    cr_assert_null(t);
    cr_assert_str_eq(err.message, "the score of token 10 is not a number");
    odd[AB] = INFINITY;
    dw_tokenizer_free(make(&parts));
}

Test(tokenizer_sentencepiece, bytes_of_tokens_have_spaces)
{
    static const char *const expected[TOKENS] = {"",  "",   "\xE2", "\x82", "\xAC", " ",   "a",  "b",
                                                 "c", " a", "ab",   "bc",   "  ",   "abc", "[t]"};
    dw_tokenizer_parts parts = good_parts();
    dw_tokenizer *t = make(&parts);
    for (int32_t id = 0; id < TOKENS; id++) {
        const dw_string bytes = dw_token_bytes(t, id, 0);
        cr_assert(dw_string_is(bytes, expected[id]), "token %d is '%.*s'", id, (int)bytes.length, bytes.data);
    }
    cr_assert(dw_string_is(dw_token_bytes(t, UNK, 1), "<unk>"));
    cr_assert(dw_tokenizer_drops_space(t));
    dw_tokenizer_free(t);
    parts.prefix = DW_PREFIX_NONE;
    t = make(&parts);
    cr_assert(!dw_tokenizer_drops_space(t));
    dw_tokenizer_free(t);
}

/* ---- against the definition ---- */

enum { RANDOM_TOKENS = 60, LONGEST = 1600 };

static uint32_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

/* Writes `count` random ones of four characters; returns the bytes. */
static int64_t random_text(char *text, int64_t count, uint64_t *state)
{
    static const char *const characters[] = {"a", "b", E_ACUTE, SIGN};
    int64_t length = 0;
    for (int64_t i = 0; i < count; i++) {
        const dw_string character = dw_string_of(characters[next_random(state) % 4]);
        memcpy(text + length, character.data, (size_t)character.length);
        length += character.length;
    }
    return length;
}

static int32_t find(const dw_string *list, const char *text, int64_t length)
{
    for (int32_t id = RANDOM_TOKENS - 1; id >= 0; id--) {
        if (list[id].length == length && memcmp(list[id].data, text, (size_t)length) == 0) return id;
    }
    return -1;
}

/* The neighbours that make the token of the highest score are joined, the leftmost of equals, until no two make a token.
   Symbol i is bytes start[i] up to before start[i + 1]. */
static int64_t merge_slowly(const dw_string *list, const float *score, const char *text, int64_t length, int32_t *ids)
{
    static int64_t start[LONGEST + 1];
    int64_t count = 0;
    for (int64_t i = 0; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80) start[count++] = i;
    }
    start[count] = length;
    for (;;) {
        int64_t place = -1;
        float best = 0;
        for (int64_t i = 0; i + 1 < count; i++) {
            const int32_t id = find(list, text + start[i], start[i + 2] - start[i]);
            if (id < 0 || (place >= 0 && score[id] <= best)) continue;
            place = i;
            best = score[id];
        }
        if (place < 0) break;
        memmove(start + place + 1, start + place + 2, (size_t)(count - place - 1) * sizeof *start);
        count--;
    }
    for (int64_t i = 0; i < count; i++) ids[i] = find(list, text + start[i], start[i + 1] - start[i]);
    return count;
}

/* Texts of up to 60 characters, and some that are long enough to be sorted first. Scores are few, so that many are equal; a
   token may be better than its parts. */
Test(tokenizer_sentencepiece, random_texts_equal_the_quadratic_definition)
{
    static char storage[RANDOM_TOKENS][16];
    static char text[3 * LONGEST];
    static int32_t slow[LONGEST];
    dw_string list[RANDOM_TOKENS] = {STRING("a"), STRING("b"), STRING(E_ACUTE), STRING(SIGN)};
    float score[RANDOM_TOKENS] = {0};
    uint64_t state = 7;
    int64_t characters = 0, ids_seen = 0;
    for (int round = 0; round < 400; round++) {
        const dw_tokenizer_parts parts = {.kind = DW_TOKENIZER_SENTENCEPIECE,
                                          .tokens = list,
                                          .token_count = RANDOM_TOKENS,
                                          .scores = score,
                                          .unknown = -1,
                                          .bos = -1};
        const int64_t size = round % 50 == 0 ? LONGEST : next_random(&state) % 60;
        int64_t length, count, slow_count;
        dw_tokenizer *t;
        int32_t *ids;
        dw_error err;
        for (int i = 4; i < RANDOM_TOKENS; i++) {
            list[i] = (dw_string){storage[i], random_text(storage[i], 2 + next_random(&state) % 4, &state)};
            score[i] = -(float)(next_random(&state) % 20);
        }
        length = random_text(text, size, &state);
        t = make(&parts);
        cr_assert_eq(dw_tokenize(t, text, length, 0, &ids, &count, &err), DW_OK, "%s", err.message);
        slow_count = merge_slowly(list, score, text, length, slow);
        cr_assert_eq(count, slow_count, "round %d: %lld ids, not %lld", round, (long long)count, (long long)slow_count);
        cr_assert(count == 0 || memcmp(ids, slow, (size_t)count * sizeof *ids) == 0, "round %d", round);
        characters += size;
        ids_seen += count;
        dw_free(ids);
        dw_tokenizer_free(t);
    }
    cr_assert_gt(characters, 20000);
    cr_assert_lt(10 * ids_seen, 8 * characters, "little was merged: %lld ids of %lld characters", (long long)ids_seen,
                 (long long)characters);
}

Test(tokenizer_sentencepiece, every_failing_allocation_is_reported)
{
    static const unsigned char flags[TOKENS] = {[TOOL] = DW_TOKEN_IS_NORMALIZED};
    dw_tokenizer_parts parts = good_parts();
    int refused = 0, n = 0;
    int64_t made;
    parts.flags = flags;
    parts.nfc = 1;
    parts.prefix = DW_PREFIX_EACH;
    do {
        dw_tokenizer *t = NULL;
        int32_t *ids = NULL;
        int64_t count;
        dw_error err = {.message = ""};
        dw_status status;
        made = -dw_memory_allocations();
        dw_memory_fail_at(++n);
        status = dw_tokenizer_build(&t, &parts, &err);
        if (status == DW_OK)
            status = dw_tokenize(t, BYTES("abc e\xCC\x81[t]" EURO "<s>abcabcabcabcabc"), 1, &ids, &count, &err);
        made += dw_memory_allocations();
        dw_memory_fail_at(0);
        cr_assert(status == (made >= n ? DW_RESOURCE : DW_OK), "allocation %d: status %d, %s", n, (int)status, err.message);
        cr_assert(status == DW_OK || strstr(err.message, "not enough memory") != NULL, "allocation %d: %s", n, err.message);
        refused += status == DW_RESOURCE;
        dw_free(ids);
        dw_tokenizer_free(t);
        check_no_leak();
    } while (made >= n);
    cr_assert_geq(refused, 20, "only %d of %d failures were seen", refused, n);
}
