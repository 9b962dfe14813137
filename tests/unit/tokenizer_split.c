#include <criterion/criterion.h>
#include <string.h>

#include "base/memory.h"
#include "tokenizer/split.h"

#define BYTES(literal) (literal), (int64_t)sizeof(literal) - 1

static dw_splitter *make(const char *pre)
{
    dw_splitter *splitter;
    dw_error err;
    cr_assert_eq(dw_splitter_create(&splitter, pre, &err), DW_OK, "%s", err.message);
    return splitter;
}

/* Pieces with a bar in front of each. */
typedef struct {
    char text[256];
    int64_t length;
} joined;

static dw_status join(void *context, const char *piece, int64_t length, dw_error *err)
{
    joined *j = context;
    (void)err;
    cr_assert(j->length + length + 1 < (int64_t)sizeof j->text);
    j->text[j->length] = '|';
    memcpy(j->text + j->length + 1, piece, (size_t)length);
    j->length += length + 1;
    return DW_OK;
}

static void expect(const char *pre, const char *text, int64_t length, const char *pieces, int64_t pieces_length)
{
    dw_splitter *splitter = make(pre);
    dw_error err;
    joined j = {0};
    cr_assert_eq(dw_split(splitter, text, length, join, &j, &err), DW_OK, "%s", err.message);
    cr_assert(j.length == pieces_length && memcmp(j.text, pieces, (size_t)pieces_length) == 0, "'%s' gives '%s', not '%s'",
              text, j.text, pieces);
    dw_splitter_free(splitter);
}

#define EXPECT(text, pieces) expect("smollm", BYTES(text), BYTES(pieces))
#define EXPECT_QWEN2(text, pieces) expect("qwen2", BYTES(text), BYTES(pieces))

Test(tokenizer_split, words_take_one_space_in_front)
{
    EXPECT("", "");
    EXPECT("Hello, world!", "|Hello|,| world|!");
    EXPECT("a  b", "|a| | b");
    EXPECT("a \n b", "|a| \n| b");
    EXPECT("a...b ...", "|a|...|b| ...");
    EXPECT(" \t\nx", "| \t|\n|x");
    EXPECT("end  \n", "|end|  \n");
}

Test(tokenizer_split, contractions_are_pieces_in_lower_case_only)
{
    EXPECT("it's we'll I'd don't", "|it|'s| we|'ll| I|'d| don|'t");
    EXPECT("IT'S", "|IT|'|S");
    EXPECT("'reed", "|'re|ed");
    EXPECT("x 'tis", "|x| '|tis");
}

Test(tokenizer_split, each_number_character_is_a_piece)
{
    EXPECT("123", "|1|2|3");
    EXPECT("a1b", "|a|1|b");
    EXPECT("\xC2\xB2\xE2\x85\xA7\xD9\xA3", "|\xC2\xB2|\xE2\x85\xA7|\xD9\xA3"); /* superscript two, roman eight, arabic three */
    EXPECT("it'1s", "|it|'|1|s");
}

/* The digits are cut out first, so that white space before one stands at the end of its text and is not shared out. */
Test(tokenizer_split, white_space_before_a_number_stays_together)
{
    EXPECT("a 1", "|a| |1");
    EXPECT("a   1", "|a|   |1");
    EXPECT("a   b", "|a|  | b");
    EXPECT("\n\n 4", "|\n\n |4");
}

Test(tokenizer_split, white_space_is_unicode_s)
{
    EXPECT("a\xC2\x85\xC2\x85z", "|a|\xC2\x85|\xC2\x85|z");                 /* U+0085 is */
    EXPECT("a\xE3\x80\x80\xE2\x80\xA8z", "|a|\xE3\x80\x80|\xE2\x80\xA8|z"); /* U+3000 and U+2028 are */
    EXPECT("a\xE1\xA0\x8E.z", "|a|\xE1\xA0\x8E.|z");                        /* U+180E is not: it goes with the full stop */
    EXPECT("a\xE2\x80\x8B.z", "|a|\xE2\x80\x8B.|z");                        /* U+200B is not */
}

Test(tokenizer_split, zero_bytes_and_unassigned_characters_are_symbols)
{
    EXPECT("a\0b", "|a|\0|b");
    EXPECT("\0\0 \0", "|\0\0| \0");
    EXPECT("a\xF3\xBF\xBF\xBF!", "|a|\xF3\xBF\xBF\xBF!");
}

Test(tokenizer_split, qwen2_contractions_are_pieces_in_any_case)
{
    EXPECT_QWEN2("it's WE'LL I'd", "|it|'s| WE|'LL| I|'d");
    EXPECT_QWEN2("'Reed don'T", "|'Re|ed| don|'T");
    EXPECT_QWEN2("'\xC5\xBF", "|'\xC5\xBF"); /* the long s is an s without regard to case */
    EXPECT_QWEN2("x'y \xE2\x80\x99s", "|x|'y| \xE2\x80\x99|s");
}

/* What stands before a word belongs to it: one character that is no line end, letter or number. */
Test(tokenizer_split, qwen2_words_take_one_character_in_front)
{
    EXPECT_QWEN2("", "");
    EXPECT_QWEN2("Hello, world!", "|Hello|,| world|!");
    EXPECT_QWEN2("(a) \tb", "|(a|)| |\tb");
    EXPECT_QWEN2("a\nb\rc", "|a|\n|b|\r|c");
    EXPECT_QWEN2("1a..b  c", "|1|a|..|b| | c");
    EXPECT_QWEN2("a\0b", "|a|\0b");
}

Test(tokenizer_split, qwen2_each_number_character_is_a_piece)
{
    EXPECT_QWEN2("x12 3", "|x|1|2| |3");
    EXPECT_QWEN2("a   1", "|a|  | |1");
    EXPECT_QWEN2("\xC2\xB2\xE2\x85\xA7\xD9\xA3", "|\xC2\xB2|\xE2\x85\xA7|\xD9\xA3");
}

Test(tokenizer_split, qwen2_line_ends_close_a_piece)
{
    EXPECT_QWEN2("a;\n\nb", "|a|;\n\n|b");
    EXPECT_QWEN2("a {\r\n  b", "|a| {\r\n| | b");
    EXPECT_QWEN2("a \n \n  b", "|a| \n \n| | b");
    EXPECT_QWEN2("a  \n", "|a|  \n");
    EXPECT_QWEN2("a  ", "|a|  ");
    EXPECT_QWEN2("a\xE3\x80\x80\xC2\x85\n\xE2\x80\xA8.", "|a|\xE3\x80\x80\xC2\x85\n|\xE2\x80\xA8|.");
}

#define EXPECT_GPT2(text, pieces) expect("gpt-2", BYTES(text), BYTES(pieces))
#define EXPECT_LLAMA3(text, pieces) expect("llama-bpe", BYTES(text), BYTES(pieces))
#define EXPECT_METASPACE(text, pieces) expect("metaspace", BYTES(text), BYTES(pieces))

/* Like smollm, but for numbers, which stay together and take a space in front. */
Test(tokenizer_split, gpt2_numbers_are_words)
{
    EXPECT_GPT2("", "");
    EXPECT_GPT2("Hello, world 123!", "|Hello|,| world| 123|!");
    EXPECT_GPT2("x12 3   45", "|x|12| 3|  | 45");
    EXPECT_GPT2("\xC2\xB2\xE2\x85\xA7\xD9\xA3", "|\xC2\xB2\xE2\x85\xA7\xD9\xA3");
    EXPECT_GPT2("it's IT'S 'tis", "|it|'s| IT|'|S| '|tis");
    EXPECT_GPT2("a \n b  \n", "|a| \n| b|  \n");
    EXPECT_GPT2("a\xC2\x85\xC2\x85z\xE1\xA0\x8E.", "|a|\xC2\x85|\xC2\x85|z|\xE1\xA0\x8E.");
}

/* Like qwen2, but for numbers, which are cut into threes from the left. */
Test(tokenizer_split, llama3_numbers_have_up_to_three_digits)
{
    EXPECT_LLAMA3("", "");
    EXPECT_LLAMA3("1234567 12", "|123|456|7| |12");
    EXPECT_LLAMA3("a12b  345", "|a|12|b| | |345");
    EXPECT_LLAMA3("\xC2\xB2\xE2\x85\xA7\xD9\xA3\xC2\xB3", "|\xC2\xB2\xE2\x85\xA7\xD9\xA3|\xC2\xB3");
    EXPECT_LLAMA3("it's WE'LL 'Reed", "|it|'s| WE|'LL| '|Reed");
    EXPECT_LLAMA3("(a) \tb;\n\nc \n \n  d", "|(a|)| |\tb|;\n\n|c| \n \n| | d");
}

Test(tokenizer_split, metaspace_pieces_begin_at_its_signs)
{
    EXPECT_METASPACE("a\xE2\x96\x81"
                     "bc\xE2\x96\x81\xE2\x96\x81"
                     "d \n\xE2\x96\x81",
                     "|a|\xE2\x96\x81"
                     "bc|\xE2\x96\x81|\xE2\x96\x81"
                     "d \n|\xE2\x96\x81");
}

typedef struct {
    const char *next;
    int64_t pieces;
} walk;

static dw_status step(void *context, const char *piece, int64_t length, dw_error *err)
{
    walk *w = context;
    (void)err;
    cr_assert_eq(piece, w->next, "pieces follow one another");
    cr_assert_gt(length, 0);
    w->next += length;
    w->pieces++;
    return DW_OK;
}

/* Pattern engines have limits on backtracking and memory; none may be met, however long a run is. */
Test(tokenizer_split, runs_of_five_million_characters_are_split)
{
    enum { LENGTH = 5000000 };
    static const struct {
        const char *pre;
        char fill;
        char last;
        int64_t pieces;
    } cases[] = {{"smollm", ' ', ' ', 1}, {"smollm", ' ', 'x', 2},   {"smollm", ' ', '1', 2},      {"smollm", '\n', '.', 3},
                 {"smollm", 'a', 'a', 1}, {"smollm", '\'', '\'', 1}, {"smollm", '7', '7', LENGTH}, {"qwen2", ' ', ' ', 1},
                 {"qwen2", ' ', 'x', 2},  {"qwen2", ' ', '1', 3},    {"qwen2", ' ', '\n', 1},      {"qwen2", '\n', '.', 2},
                 {"qwen2", 'a', 'a', 1},  {"qwen2", '\'', '\n', 1},  {"qwen2", '7', '7', LENGTH}};
    dw_error err;
    char *text;
    cr_assert_eq(DW_ALLOC(&text, LENGTH, "text", &err), DW_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dw_splitter *splitter = make(cases[i].pre);
        walk w = {.next = text};
        memset(text, cases[i].fill, LENGTH);
        text[LENGTH - 1] = cases[i].last;
        cr_assert_eq(dw_split(splitter, text, LENGTH, step, &w, &err), DW_OK, "%s", err.message);
        cr_assert_eq(w.next, text + LENGTH);
        cr_assert_eq(w.pieces, cases[i].pieces, "case %zu: %lld pieces", i, (long long)w.pieces);
        dw_splitter_free(splitter);
    }
    dw_free(text);
}

/* A splitter that got no memory for machine code: of the allocations of its making, the one that may fail. */
static dw_splitter *make_interpreter(const char *pre)
{
    for (int n = 1; n < 100; n++) {
        dw_splitter *splitter;
        dw_error err;
        dw_status status;
        const int64_t before = dw_memory_allocations();
        int64_t made;
        dw_memory_fail_at(n);
        status = dw_splitter_create(&splitter, pre, &err);
        made = dw_memory_allocations() - before;
        dw_memory_fail_at(0);
        if (status == DW_OK && made >= n) return splitter;
        cr_assert(status != DW_OK, "no allocation is for machine code");
    }
    return NULL;
}

/* PCRE2's interpreter counts the steps of a match, here 12 million, and gives up at 10 million by itself. */
Test(tokenizer_split, without_machine_code_long_runs_are_split_alike)
{
    enum { LENGTH = 12000000 };
    dw_splitter *splitter = make_interpreter("qwen2");
    walk w = {0};
    dw_error err;
    char *text;
    cr_assert_eq(DW_ALLOC(&text, LENGTH, "text", &err), DW_OK);
    memset(text, ' ', LENGTH);
    text[LENGTH - 1] = 'x';
    w.next = text;
    cr_assert_eq(dw_split(splitter, text, LENGTH, step, &w, &err), DW_OK, "%s", err.message);
    cr_assert_eq(w.next, text + LENGTH);
    cr_assert_eq(w.pieces, 2);
    dw_free(text);
    dw_splitter_free(splitter);
}

static dw_status refuse_second(void *context, const char *piece, int64_t length, dw_error *err)
{
    int *calls = context;
    (void)piece, (void)length;
    return ++*calls == 2 ? dw_fail(err, DW_RESOURCE, "second") : DW_OK;
}

Test(tokenizer_split, ends_at_the_first_piece_that_fails)
{
    dw_splitter *splitter = make("smollm");
    dw_error err;
    int calls = 0;
    cr_assert_eq(dw_split(splitter, "a b c d", 7, refuse_second, &calls, &err), DW_RESOURCE);
    cr_assert_str_eq(err.message, "second");
    cr_assert_eq(calls, 2);
    dw_splitter_free(splitter);
}

Test(tokenizer_split, an_unknown_pre_tokenizer_is_named)
{
    dw_splitter *splitter;
    dw_error err;
    cr_assert_eq(dw_splitter_create(&splitter, "smol", &err), DW_INPUT);
    cr_assert_null(splitter);
    cr_assert_not_null(strstr(err.message, "\"smol\""), "%s", err.message);
    cr_assert_eq(dw_splitter_create(&splitter,
                                    "a\n\xFF"
                                    "b",
                                    &err),
                 DW_INPUT);
    cr_assert_not_null(strstr(err.message, "\"a??b\""), "%s", err.message);
    cr_assert_eq(dw_splitter_create(&splitter, "", &err), DW_INPUT);
}
