#include <criterion/criterion.h>
#include <string.h>

#include "base/memory.h"
#include "tokenizer/tokenizer.h"

#define BYTES(literal) (literal), (int64_t)sizeof(literal) - 1
#define R "\xEF\xBF\xBD" /* U+FFFD */

typedef struct {
    dw_utf8_stream stream;
    char *text;
    int64_t length;
    int64_t capacity;
} sink;

static void feed(sink *s, const char *bytes, int64_t count, int last)
{
    dw_error err;
    dw_status status = dw_utf8_feed(&s->stream, bytes, count, last, &s->text, &s->length, &s->capacity, &err);
    cr_assert_eq(status, DW_OK, "%s", err.message);
}

static int holds(const sink *s, const char *text, int64_t length)
{
    return s->length == length && (length == 0 || memcmp(s->text, text, (size_t)length) == 0);
}

static int put_character(unsigned point, char *out)
{
    if (point < 0x80) {
        out[0] = (char)point;
        return 1;
    }
    if (point < 0x800) {
        out[0] = (char)(0xC0 | point >> 6);
        out[1] = (char)(0x80 | (point & 0x3F));
        return 2;
    }
    if (point < 0x10000) {
        out[0] = (char)(0xE0 | point >> 12);
        out[1] = (char)(0x80 | (point >> 6 & 0x3F));
        out[2] = (char)(0x80 | (point & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | point >> 18);
    out[1] = (char)(0x80 | (point >> 12 & 0x3F));
    out[2] = (char)(0x80 | (point >> 6 & 0x3F));
    out[3] = (char)(0x80 | (point & 0x3F));
    return 4;
}

Test(tokenizer_utf8, every_scalar_value_is_valid_and_no_other_is)
{
    for (unsigned point = 0; point < 0x200000; point++) {
        const int expected = point < 0x110000 && (point < 0xD800 || point > 0xDFFF);
        char text[8] = "ab";
        const int64_t length = 2 + put_character(point, text + 2);
        cr_assert_eq(dw_utf8_check(text, length), expected ? -1 : 2, "U+%04X", point);
    }
}

Test(tokenizer_utf8, check_names_the_first_bad_byte)
{
    cr_assert_eq(dw_utf8_check("", 0), -1);
    cr_assert_eq(dw_utf8_check(BYTES("a\0b")), -1);
    cr_assert_eq(dw_utf8_check(BYTES("\x80")), 0);
    cr_assert_eq(dw_utf8_check(BYTES("caf\xC3\xA9 \xE9")), 6);
    cr_assert_eq(dw_utf8_check(BYTES("\xC0\x80")), 0, "overlong, 2 bytes");
    cr_assert_eq(dw_utf8_check(BYTES("a\xE0\x9F\xBF")), 1, "overlong, 3 bytes");
    cr_assert_eq(dw_utf8_check(BYTES("a\xF0\x8F\xBF\xBF")), 1, "overlong, 4 bytes");
    cr_assert_eq(dw_utf8_check(BYTES("ab\xF0\x9F\x98")), 2, "ends inside a character");
    cr_assert_eq(dw_utf8_check(BYTES("ab\xF0\x9F\x98 ")), 2);
    cr_assert_eq(dw_utf8_check(BYTES("\xF8\x88\x80\x80\x80")), 0);
}

/* Expected texts: Python's bytes.decode("utf-8", "replace"). */
Test(tokenizer_utf8, each_maximal_bad_part_becomes_one_replacement_character)
{
    static const struct {
        const char *bytes;
        int64_t count;
        const char *text;
    } cases[] = {
        {BYTES("plain"), "plain"},
        {BYTES("\x80"), R},
        {BYTES("A\x80"
               "B"),
         "A" R "B"},
        {BYTES("\xC3("), R "("},
        {BYTES("\xC0\x80"), R R},
        {BYTES("\xE2\x82"), R},
        {BYTES("\xE2\x82"
               "a"),
         R "a"},
        {BYTES("\xE2(\xA1"), R "(" R},
        {BYTES("\xED\xA0\x80"), R R R},
        {BYTES("\xF0\x9F\x98"), R},
        {BYTES("\xF0\x9F\x98 \xF0\x9F\x98\x80"), R " \xF0\x9F\x98\x80"},
        {BYTES("\xF0\x9F\xF0\x9F\x98\x80"), R "\xF0\x9F\x98\x80"},
        {BYTES("\xF0\x80\x80\x80"), R R R R},
        {BYTES("\xF4\x90\x80\x80"), R R R R},
        {BYTES("\xE3\x81\xE3\x81\x82\xE3"), R "\xE3\x81\x82" R},
        {BYTES("\xFF \xFE \xFD"), R " " R " " R},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sink s = {0};
        feed(&s, cases[i].bytes, cases[i].count, 1);
        cr_assert(holds(&s, cases[i].text, (int64_t)strlen(cases[i].text)), "case %zu gives %.*s", i, (int)s.length, s.text);
        cr_assert_eq(s.stream.held_count, 0);
        dw_free(s.text);
    }
}

Test(tokenizer_utf8, pieces_joined_equal_the_one_shot_text_for_any_two_cuts)
{
    static const char bytes[] = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"
                                "\xF0\x9F\x98z\xE2\x82\xE2\x82\xAC\xED\xA0\x80\0\xC3\xC3\xA9\xF4\x90\x80\xFF\xE3\x81";
    const int64_t count = (int64_t)sizeof bytes - 1;
    sink whole = {0};
    feed(&whole, bytes, count, 1);
    for (int64_t i = 0; i <= count; i++) {
        for (int64_t j = i; j <= count; j++) {
            sink s = {0};
            feed(&s, bytes, i, 0);
            feed(&s, bytes + i, j - i, 0);
            feed(&s, bytes + j, count - j, 0);
            feed(&s, NULL, 0, 1);
            cr_assert(holds(&s, whole.text, whole.length), "cut at %d and %d", (int)i, (int)j);
            dw_free(s.text);
        }
    }
    dw_free(whole.text);
}

Test(tokenizer_utf8, a_character_is_held_back_until_it_is_complete)
{
    sink s = {0};
    feed(&s, BYTES("x\xF0\x9F\x98"), 0);
    cr_assert(holds(&s, "x", 1));
    feed(&s, BYTES("\x80"), 0);
    cr_assert(holds(&s, BYTES("x\xF0\x9F\x98\x80")));
    feed(&s, BYTES("\xE2\x82"), 0);
    cr_assert(holds(&s, BYTES("x\xF0\x9F\x98\x80")));
    feed(&s, BYTES("A"), 0);
    cr_assert(holds(&s, BYTES("x\xF0\x9F\x98\x80" R "A")));
    dw_free(s.text);
}

/* All strings of four bytes from the edges of the ranges that UTF-8 distinguishes. */
Test(tokenizer_utf8, check_and_feed_agree_on_what_is_valid)
{
    static const char edge[] = "\x00\x41\x7F\x80\x8F\x90\x9F\xA0\xBF"
                               "\xC0\xC1\xC2\xDF\xE0\xE1\xEC\xED\xEE\xEF\xF0\xF1\xF3\xF4\xF5\xFF";
    const int edges = (int)sizeof edge - 1;
    sink s = {0};
    for (int i = 0; i < edges * edges * edges * edges; i++) {
        const char text[4] = {edge[i % edges], edge[i / edges % edges], edge[i / edges / edges % edges],
                              edge[i / edges / edges / edges]};
        const int64_t bad = dw_utf8_check(text, 4);
        s.length = 0;
        feed(&s, text, 4, 1);
        cr_assert_eq(bad < 0, holds(&s, text, 4), "bytes %02X %02X %02X %02X", (unsigned char)text[0], (unsigned char)text[1],
                     (unsigned char)text[2], (unsigned char)text[3]);
        if (bad >= 0) {
            cr_assert(memcmp(s.text, text, (size_t)bad) == 0 && memcmp(s.text + bad, R, 3) == 0,
                      "replaced at another byte than %d", (int)bad);
        }
        cr_assert_eq(dw_utf8_check(s.text, s.length), -1, "what comes out is valid");
    }
    dw_free(s.text);
}

Test(tokenizer_utf8, a_failing_allocation_changes_nothing)
{
    dw_error err;
    sink s = {0};
    feed(&s, BYTES("\xE2"), 0);
    s.length = s.capacity;
    dw_memory_fail_at(1);
    cr_assert_eq(dw_utf8_feed(&s.stream, "\x82\xAC", 2, 0, &s.text, &s.length, &s.capacity, &err), DW_RESOURCE);
    cr_assert_eq(s.stream.held_count, 1);
    cr_assert_eq(s.length, s.capacity);
    s.length = 0;
    feed(&s, BYTES("\x82\xAC"), 0);
    cr_assert(holds(&s, BYTES("\xE2\x82\xAC")));
    dw_free(s.text);
}
