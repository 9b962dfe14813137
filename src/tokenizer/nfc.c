#include "tokenizer/nfc.h"

#include <string.h>
#include <utf8proc.h>

#include "base/memory.h"

/* utf8proc decomposes characters and composes them again. It does so here on one run of the text after another, so that a
   text that has the form already (nearly all have) is not copied, and with an ordering of marks between that is linear:
   utf8proc's own takes quadratic time on long runs of them. */

enum {
    /* Bytes of characters below U+0300 are smaller than this, others begin with a larger one. Characters below U+0300 have
       the form C, are no marks and join nothing before them: a run begins with at most one of them. */
    FIRST_LEAD = 0xCC,
    LONGEST_DECOMPOSITION = 4, /* Unicode promises that no canonical one gets longer */
    CLASSES = 256,             /* of marks; 0: not a mark that is ordered */
    HANGUL_BEFORE_TRAILING = 0x11A7
};

typedef struct {
    utf8proc_int32_t *points; /* of a run */
    int64_t count;
    int64_t capacity;
    utf8proc_int32_t *marks; /* scratch to order them */
    int64_t mark_capacity;
    char *out; /* NULL: nothing has changed up to here */
    int64_t out_length;
    int64_t out_capacity;
} composer;

static int is_continuation(char byte)
{
    return ((unsigned char)byte & 0xC0) == 0x80;
}

/* Where the next run begins, at or after from: length when there is none. Between runs nothing can change. */
static int64_t find_run(const char *text, int64_t length, int64_t from, int64_t *end)
{
    int64_t start = from;
    while (start < length && (unsigned char)text[start] < FIRST_LEAD) start++;
    *end = start;
    if (start == length) return length;
    while (*end < length && ((unsigned char)text[*end] >= FIRST_LEAD || is_continuation(text[*end]))) ++*end;
    if (start > from) start--;
    while (is_continuation(text[start])) start--;
    return start;
}

static dw_status decompose(composer *c, const char *text, int64_t length, dw_error *err)
{
    const utf8proc_uint8_t *bytes = (const utf8proc_uint8_t *)text;
    int64_t at = 0;
    c->count = 0;
    while (at < length) {
        utf8proc_int32_t point;
        int boundary; /* of grapheme clusters; not asked for */
        DW_TRY(DW_GROW(&c->points, &c->capacity, c->count + LONGEST_DECOMPOSITION, "normalised text", err));
        at += utf8proc_iterate(bytes + at, length - at, &point);
        c->count += utf8proc_decompose_char(point, c->points + c->count, LONGEST_DECOMPOSITION, UTF8PROC_DECOMPOSE, &boundary);
    }
    return DW_OK;
}

static int combining_class(utf8proc_int32_t point)
{
    return utf8proc_get_property(point)->combining_class;
}

/* Counting sort by combining class; marks of one class stay in their order. */
static dw_status sort_marks(composer *c, utf8proc_int32_t *marks, int64_t count, dw_error *err)
{
    int64_t place[CLASSES + 1] = {0};
    DW_TRY(DW_GROW(&c->marks, &c->mark_capacity, count, "normalised text", err));
    for (int64_t i = 0; i < count; i++) place[combining_class(marks[i]) + 1]++;
    for (int class = 0; class < CLASSES; class ++) place[class + 1] += place[class];
    for (int64_t i = 0; i < count; i++) c->marks[place[combining_class(marks[i])]++] = marks[i];
    memcpy(marks, c->marks, (size_t)count * sizeof *marks);
    return DW_OK;
}

static dw_status order(composer *c, dw_error *err)
{
    int64_t end;
    for (int64_t start = 0; start < c->count; start = end) {
        int sorted = 1;
        int class = combining_class(c->points[start]);
        end = start + 1;
        while (class != 0 && end < c->count) {
            const int next = combining_class(c->points[end]);
            if (next == 0) break;
            sorted &= next >= class;
            class = next;
            end++;
        }
        if (!sorted) DW_TRY(sort_marks(c, c->points + start, end - start, err));
    }
    return DW_OK;
}

/* In pieces that begin at each U+11A7: it joins nothing, but utf8proc takes it for a trailing consonant and drops it. */
static void compose(composer *c)
{
    int64_t kept = 0, end;
    for (int64_t start = 0; start < c->count; start = end) {
        int64_t left;
        end = start + 1;
        while (end < c->count && c->points[end] != HANGUL_BEFORE_TRAILING) end++;
        left = utf8proc_normalize_utf32(c->points + start, end - start, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        memmove(c->points + kept, c->points + start, (size_t)left * sizeof *c->points);
        kept += left;
    }
    c->count = kept;
}

static int is_same(const composer *c, const char *text, int64_t length)
{
    int64_t at = 0, i = 0;
    while (at < length && i < c->count) {
        utf8proc_int32_t point;
        at += utf8proc_iterate((const utf8proc_uint8_t *)text + at, length - at, &point);
        if (point != c->points[i++]) return 0;
    }
    return at == length && i == c->count;
}

/* Appends text as it is, then the points. */
static dw_status append(composer *c, const char *text, int64_t length, dw_error *err)
{
    DW_TRY(DW_GROW(&c->out, &c->out_capacity, c->out_length + length + 4 * c->count, "normalised text", err));
    memcpy(c->out + c->out_length, text, (size_t)length);
    c->out_length += length;
    for (int64_t i = 0; i < c->count; i++) {
        c->out_length += utf8proc_encode_char(c->points[i], (utf8proc_uint8_t *)c->out + c->out_length);
    }
    return DW_OK;
}

static dw_status compose_text(composer *c, const char *text, int64_t length, dw_error *err)
{
    int64_t copied = 0; /* of text; all before is in out, changed or not */
    int64_t end;
    for (int64_t start = find_run(text, length, 0, &end); start < length; start = find_run(text, length, end, &end)) {
        DW_TRY(decompose(c, text + start, end - start, err));
        DW_TRY(order(c, err));
        compose(c);
        if (is_same(c, text + start, end - start)) continue;
        DW_TRY(append(c, text + copied, start - copied, err));
        copied = end;
    }
    c->count = 0;
    return c->out != NULL ? append(c, text + copied, length - copied, err) : DW_OK;
}

dw_status dw_nfc(const char *text, int64_t length, char **composed, int64_t *composed_length, dw_error *err)
{
    composer c = {0};
    const dw_status status = compose_text(&c, text, length, err);
    dw_free(c.points);
    dw_free(c.marks);
    if (status != DW_OK) {
        dw_free(c.out);
        c.out = NULL;
        c.out_length = 0;
    }
    *composed = c.out;
    *composed_length = c.out_length;
    return status;
}
