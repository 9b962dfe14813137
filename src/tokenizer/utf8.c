#include "tokenizer/tokenizer.h"

#include <string.h>

#include "base/memory.h"

typedef enum {
    WHOLE, /* a character */
    BAD,   /* the longest beginning that no character can have, or a byte that begins none */
    OPEN   /* a correct beginning; the bytes end before the character does */
} sequence;

/* What the bytes at s (count >= 1) begin with, and over how many of them. */
static sequence examine(const unsigned char *s, int64_t count, int *length)
{
    const unsigned char lead = s[0];
    const int needed = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    /* The second byte of these leads has a narrower range: overlong forms, surrogates, values above 10FFFF. */
    unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    *length = 1;
    if (lead < 0x80) return WHOLE;
    if (lead < 0xC2 || lead > 0xF4) return BAD;
    while (*length < needed) {
        if (*length == count) return OPEN;
        if (s[*length] < low || s[*length] > high) return BAD;
        low = 0x80;
        high = 0xBF;
        ++*length;
    }
    return WHOLE;
}

int64_t dw_utf8_check(const char *text, int64_t length)
{
    const unsigned char *s = (const unsigned char *)text;
    int64_t at = 0;
    while (at < length) {
        int bytes;
        if (examine(s + at, length - at, &bytes) != WHOLE) return at;
        at += bytes;
    }
    return -1;
}

static void append(char *text, int64_t *length, const void *bytes, int count)
{
    memcpy(text + *length, bytes, (size_t)count);
    *length += count;
}

dw_status dw_utf8_feed(dw_utf8_stream *stream, const char *bytes, int64_t count, int last, char **text, int64_t *length,
                       int64_t *capacity, dw_error *err)
{
    static const char replacement[3] = "\xEF\xBF\xBD";
    int64_t needed;
    /* No byte, held or new, becomes more than the three of U+FFFD. */
    if (__builtin_add_overflow(count, (int64_t)stream->held_count, &needed) ||
        __builtin_mul_overflow(needed, INT64_C(3), &needed) || __builtin_add_overflow(needed, *length, &needed)) {
        return dw_fail(err, DW_RESOURCE, "text: %lld bytes is more than this machine can address", (long long)count);
    }
    DW_TRY(DW_GROW(text, capacity, needed, "text", err));
    for (int64_t i = 0; i < count; i++) {
        int bytes_seen;
        sequence kind;
        stream->held[stream->held_count++] = (unsigned char)bytes[i];
        kind = examine(stream->held, stream->held_count, &bytes_seen);
        if (kind == BAD && stream->held_count > 1) {
            /* What was held is the bad part; the byte that ended it may begin a character. */
            append(*text, length, replacement, sizeof replacement);
            stream->held[0] = (unsigned char)bytes[i];
            stream->held_count = 1;
            kind = examine(stream->held, 1, &bytes_seen);
        }
        if (kind == OPEN) continue;
        if (kind == WHOLE)
            append(*text, length, stream->held, stream->held_count);
        else
            append(*text, length, replacement, sizeof replacement);
        stream->held_count = 0;
    }
    if (last && stream->held_count > 0) {
        append(*text, length, replacement, sizeof replacement);
        stream->held_count = 0;
    }
    return DW_OK;
}
