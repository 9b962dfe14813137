#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/memory.h"
#include "tokenizer/nfc.h"

#define BYTES(literal) (literal), (int64_t)sizeof(literal) - 1

/* expected NULL: dw_nfc must say that nothing changes. */
static void expect(const char *text, int64_t length, const char *expected, int64_t expected_length, const char *name)
{
    char *composed;
    int64_t composed_length;
    dw_error err;
    cr_assert_eq(dw_nfc(text, length, &composed, &composed_length, &err), DW_OK, "%s", err.message);
    if (expected == NULL) {
        cr_assert_null(composed, "%s has form C, but '%.*s' came out", name, (int)composed_length, composed);
        return;
    }
    cr_assert_not_null(composed, "%s has not form C, but nothing was done", name);
    cr_assert(composed_length == expected_length && memcmp(composed, expected, (size_t)expected_length) == 0,
              "%s gives '%.*s', not '%s'", name, (int)composed_length, composed, expected);
    dw_free(composed);
}

#define EXPECT(text, expected) expect(BYTES(u8##text), BYTES(u8##expected), #text)
#define UNCHANGED(text) expect(BYTES(u8##text), NULL, 0, #text)

Test(tokenizer_nfc, composed_text_is_left_alone)
{
    UNCHANGED("");
    UNCHANGED("plain\n");
    UNCHANGED("\0a\0");
    UNCHANGED("na\u00EFve \u0160koda, \u03B1\u03B2 \u0416 \u4E2D\u6587 \U0001F600");
    UNCHANGED("\uAC00\uAC01");
    UNCHANGED("q\u0323\u0307"); /* marks in order; there is no composed q */
    UNCHANGED("\u0301");        /* a mark with nothing before it */
    UNCHANGED("\u02FF\u0300");
    UNCHANGED("a\0\u0301");
}

Test(tokenizer_nfc, decomposed_characters_are_composed)
{
    EXPECT("e\u0301", "\u00E9");
    EXPECT("cafe\u0301s e\u0300 \u4E2D e\u0308!", "caf\u00E9s \u00E8 \u4E2D \u00EB!");
    EXPECT("o\u0302\u0301", "\u1ED1");
    EXPECT("\u00F4\u0301", "\u1ED1");
    EXPECT("=\u0338 >\u0338", "\u2260 \u226F");
    EXPECT("\u304B\u3099", "\u304C");
    EXPECT("\u09C7\u09BE", "\u09CB"); /* the second one is no mark that is ordered */
    EXPECT("e\u0301\0e\u0301", "\u00E9\0\u00E9");
}

Test(tokenizer_nfc, characters_without_a_form_of_their_own_are_replaced)
{
    EXPECT("\u212B", "\u00C5");       /* angstrom sign */
    EXPECT("\u2126", "\u03A9");       /* ohm sign */
    EXPECT("\uF900", "\u8C48");       /* compatibility ideograph */
    EXPECT("\u0344", "\u0308\u0301"); /* a mark that stands for two */
    EXPECT("\u0958", "\u0915\u093C"); /* excluded from composition */
    EXPECT("\U0001D160", "\U0001D158\U0001D165\U0001D16E");
    UNCHANGED("\uFB01 \u00B2 \uFF21"); /* compatibility characters stay: that would be form KC */
}

Test(tokenizer_nfc, marks_get_their_canonical_order)
{
    EXPECT("a\u0301\u0316", "\u00E1\u0316"); /* above (230), below (220) */
    EXPECT("q\u0307\u0323", "q\u0323\u0307");
    EXPECT("a\u0345\u0301\u0327\u0300", "\u00E1\u0327\u0300\u0345"); /* 240 230 202 230: equal classes keep their order */
    EXPECT("q\u0307\u0323b\u0307\u0323", "q\u0323\u0307\u1E05\u0307");
    EXPECT("\u0308\u0327a", "\u0327\u0308a");
    UNCHANGED("q\u0301\u0300"); /* equal classes: not to be exchanged */
}

Test(tokenizer_nfc, a_mark_of_the_same_class_between_blocks)
{
    UNCHANGED("q\u0302\u0301\u0307");
    EXPECT("a\u0308\u0304\u0327", "\u01DF\u0327");
    EXPECT("a\u0327\u0308", "\u00E4\u0327"); /* another class does not block */
    EXPECT("a\u0305\u0301\u0316", "a\u0316\u0305\u0301");
    UNCHANGED("\u09C7<\u09BE");
}

Test(tokenizer_nfc, hangul_is_composed)
{
    EXPECT("\u1100\u1161", "\uAC00");
    EXPECT("\u1100\u1161\u11A8", "\uAC01");
    EXPECT("\uAC00\u11A8", "\uAC01");
    EXPECT("\u1112\u1175\u11C2\u1112\u1175", "\uD7A3\uD788");
    UNCHANGED("\uAC01\u11A8"); /* has its trailing consonant */
    UNCHANGED("\u1100\u0300\u1161");
    UNCHANGED("\u1161\u11A8 \u1100 \u1161");
}

/* It lies just before the trailing consonants and is none. */
Test(tokenizer_nfc, u11a7_is_kept)
{
    UNCHANGED("\uAC00\u11A7");
    UNCHANGED("\u11A7\u11A7");
    EXPECT("\u1100\u1161\u11A7\u1100\u1161\u11A8", "\uAC00\u11A7\uAC01");
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* utf8proc's own way through a whole text, which orders marks in another manner, is the reference. */
static void compare_with_utf8proc(const char *text, int64_t length)
{
    utf8proc_uint8_t *expected;
    const utf8proc_ssize_t expected_length = utf8proc_map((const utf8proc_uint8_t *)text, length, &expected,
                                                          UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    const int same = expected_length == length && memcmp(expected, text, (size_t)length) == 0;
    cr_assert_geq(expected_length, 0);
    expect(text, length, same ? NULL : (const char *)expected, expected_length, "a random text");
    free(expected);
}

Test(tokenizer_nfc, random_texts_equal_those_of_utf8proc)
{
    static const utf8proc_int32_t points[] = {
        'a',    'e',    ' ',    0,      0xE9,   0x1E05, 0x300,  0x301,  0x316, 0x323,   0x327,
        0x338,  0x345,  0x344,  0x3B1,  0x1FB3, 0x915,  0x93C,  0x958,  0x9C7, 0x9BE,   0x1100,
        0x1161, 0x11A8, 0xAC00, 0x4E2D, 0x3099, 0x304B, 0x212B, 0xFB2C, 0x5B0, 0x1D15E, 0x1F600,
    };
    enum { POINTS = sizeof points / sizeof points[0], TEXTS = 20000, MOST = 24 };
    uint64_t state = 1;
    for (int n = 0; n < TEXTS; n++) {
        utf8proc_uint8_t text[4 * MOST];
        const uint64_t count = next_random(&state) % (MOST + 1);
        int64_t length = 0;
        for (uint64_t i = 0; i < count; i++) {
            length += utf8proc_encode_char(points[next_random(&state) % POINTS], text + length);
        }
        compare_with_utf8proc((const char *)text, length);
    }
}

Test(tokenizer_nfc, every_character_alone_equals_utf8proc_s)
{
    for (utf8proc_int32_t point = 0; point < 0x110000; point++) {
        utf8proc_uint8_t text[8];
        if (point >= 0xD800 && point < 0xE000) continue;
        compare_with_utf8proc((const char *)text, utf8proc_encode_char(point, text));
    }
}

/* Four million marks after one letter, alternately above and below; ordering them pair by pair would take hours. */
Test(tokenizer_nfc, cost_is_linear_in_runs_of_marks)
{
    enum { PAIRS = 2000000 };
    char *text, *composed;
    int64_t length;
    dw_error err;
    cr_assert_eq(DW_ALLOC(&text, 1 + 4 * PAIRS, "text", &err), DW_OK);
    text[0] = 'q';
    for (int64_t i = 0; i < PAIRS; i++) memcpy(text + 1 + 4 * i, "\xCC\x81\xCC\x96", 4);
    cr_assert_eq(dw_nfc(text, 1 + 4 * PAIRS, &composed, &length, &err), DW_OK, "%s", err.message);
    cr_assert_eq(length, 1 + 4 * PAIRS);
    for (int64_t i = 0; i < 2 * PAIRS; i++) {
        cr_assert(memcmp(composed + 1 + 2 * i, i < PAIRS ? "\xCC\x96" : "\xCC\x81", 2) == 0, "mark %lld", (long long)i);
    }
    dw_free(composed);
    dw_free(text);
}

Test(tokenizer_nfc, every_failing_allocation_is_reported)
{
    static const char text[] = "e\xCC\x81 and q\xCC\x87\xCC\xA3";
    int refused = 0, n = 0;
    dw_status status;
    do {
        char *composed = NULL;
        int64_t length;
        dw_error err = {.message = ""};
        dw_memory_fail_at(++n);
        status = dw_nfc(BYTES(text), &composed, &length, &err);
        dw_memory_fail_at(0);
        cr_assert(status == DW_OK || status == DW_RESOURCE, "allocation %d: status %d", n, (int)status);
        cr_assert_eq(status == DW_OK, composed != NULL, "allocation %d", n);
        refused += status != DW_OK;
        dw_free(composed);
    } while (status != DW_OK);
    cr_assert_geq(refused, 3, "only %d failures were seen", refused); /* points, marks, text */
}
