#include <criterion/criterion.h>
#include <string.h>

#include "base/memory.h"
#include "tokenizer/split.h"

#define BYTES(literal) (literal), (int64_t)sizeof(literal) - 1

static dw_splitter *make(void)
{
    dw_splitter *splitter;
    dw_error err;
    cr_assert_eq(dw_splitter_create(&splitter, (dw_string){BYTES("smollm")}, &err), DW_OK, "%s", err.message);
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

static void expect(const char *text, int64_t length, const char *pieces, int64_t pieces_length)
{
    dw_splitter *splitter = make();
    dw_error err;
    joined j = {0};
    cr_assert_eq(dw_split(splitter, text, length, join, &j, &err), DW_OK, "%s", err.message);
    cr_assert(j.length == pieces_length && memcmp(j.text, pieces, (size_t)pieces_length) == 0,
              "'%s' gives '%s', not '%s'", text, j.text, pieces);
    dw_splitter_free(splitter);
}

#define EXPECT(text, pieces) expect(BYTES(text), BYTES(pieces))

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
    EXPECT("a\xC2\x85\xC2\x85z", "|a|\xC2\x85|\xC2\x85|z");             /* U+0085 is */
    EXPECT("a\xE3\x80\x80\xE2\x80\xA8z", "|a|\xE3\x80\x80|\xE2\x80\xA8|z"); /* U+3000 and U+2028 are */
    EXPECT("a\xE1\xA0\x8E.z", "|a|\xE1\xA0\x8E.|z");                    /* U+180E is not: it goes with the full stop */
    EXPECT("a\xE2\x80\x8B.z", "|a|\xE2\x80\x8B.|z");                    /* U+200B is not */
}

Test(tokenizer_split, zero_bytes_and_unassigned_characters_are_symbols)
{
    EXPECT("a\0b", "|a|\0|b");
    EXPECT("\0\0 \0", "|\0\0| \0");
    EXPECT("a\xF3\xBF\xBF\xBF!", "|a|\xF3\xBF\xBF\xBF!");
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
        char fill;
        char last;
        int64_t pieces;
    } cases[] = {{' ', ' ', 1}, {' ', 'x', 2}, {' ', '1', 2}, {'\n', '.', 3}, {'a', 'a', 1}, {'\'', '\'', 1},
                 {'7', '7', LENGTH}};
    dw_splitter *splitter = make();
    dw_error err;
    char *text;
    cr_assert_eq(DW_ALLOC(&text, LENGTH, "text", &err), DW_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        walk w = {.next = text};
        memset(text, cases[i].fill, LENGTH);
        text[LENGTH - 1] = cases[i].last;
        cr_assert_eq(dw_split(splitter, text, LENGTH, step, &w, &err), DW_OK, "%s", err.message);
        cr_assert_eq(w.next, text + LENGTH);
        cr_assert_eq(w.pieces, cases[i].pieces, "case %zu: %lld pieces", i, (long long)w.pieces);
    }
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
    dw_splitter *splitter = make();
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
    cr_assert_eq(dw_splitter_create(&splitter, (dw_string){BYTES("smol")}, &err), DW_INPUT);
    cr_assert_null(splitter);
    cr_assert_not_null(strstr(err.message, "\"smol\""), "%s", err.message);
    cr_assert_eq(dw_splitter_create(&splitter, (dw_string){BYTES("a\n\xFF" "b")}, &err), DW_INPUT);
    cr_assert_not_null(strstr(err.message, "\"a??b\""), "%s", err.message);
    cr_assert_eq(dw_splitter_create(&splitter, (dw_string){BYTES("")}, &err), DW_INPUT);
}
