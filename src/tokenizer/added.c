#include "tokenizer/added.h"

#include <stdlib.h>

#include "base/memory.h"

dw_status dw_added_put(dw_added *added, const dw_added_token *token, dw_error *err)
{
    DW_TRY(DW_GROW(&added->list, &added->capacity, added->count + 1, "added tokens", err));
    added->list[added->count++] = *token;
    return DW_OK;
}

static int by_text_then_id(const void *a, const void *b)
{
    const int order = dw_string_compare(a, b);
    return order != 0 ? order : ((const dw_added_token *)a)->id - ((const dw_added_token *)b)->id;
}

void dw_added_sort(dw_added *added)
{
    int64_t i = 0;
    if (added->count > 0) qsort(added->list, (size_t)added->count, sizeof *added->list, by_text_then_id);
    for (int byte = 0; byte <= 256; byte++) {
        while (i < added->count && (unsigned char)added->list[i].text.data[0] < byte) i++;
        added->first[byte] = i;
    }
}

void dw_added_free(dw_added *added)
{
    dw_free(added->list);
    *added = (dw_added){0};
}

/* The first index of low..high whose text has a byte of `byte` or more at `depth`; all of them have more bytes than that. */
static int64_t first_from(const dw_added *added, int64_t low, int64_t high, int64_t depth, int byte)
{
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if ((unsigned char)added->list[middle].text.data[depth] < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Narrows the range of tokens that begin with what has been read of the text; the shortest of a range stands first. */
const dw_added_token *dw_added_at(const dw_added *added, const char *text, int64_t length)
{
    const dw_added_token *found = NULL;
    int64_t low = added->first[(unsigned char)text[0]];
    int64_t high = added->first[(unsigned char)text[0] + 1];
    for (int64_t depth = 1; low < high; depth++) {
        if (added->list[low].text.length == depth) found = &added->list[low];
        while (low < high && added->list[low].text.length == depth) low++; /* the same text again */
        if (low == high || depth == length) break;
        const int byte = (unsigned char)text[depth];
        low = first_from(added, low, high, depth, byte);
        high = first_from(added, low, high, depth, byte + 1);
    }
    return found;
}

int64_t dw_white_space_at(const char *text, int64_t length)
{
    const unsigned char *s = (const unsigned char *)text;
    if (length >= 1 && (s[0] == ' ' || (s[0] >= '\t' && s[0] <= '\r'))) return 1;
    if (length >= 2 && s[0] == 0xC2 && (s[1] == 0x85 || s[1] == 0xA0)) return 2;
    if (length < 3) return 0;
    switch (s[0] << 16 | s[1] << 8 | s[2]) {
    case 0xE19A80: /* U+1680 */
    case 0xE280A8: /* U+2028 */
    case 0xE280A9: /* U+2029 */
    case 0xE280AF: /* U+202F */
    case 0xE2819F: /* U+205F */
    case 0xE38080: /* U+3000 */ return 3;
    default: return s[0] == 0xE2 && s[1] == 0x80 && s[2] <= 0x8A ? 3 : 0; /* U+2000 .. U+200A */
    }
}

int64_t dw_white_space_before(const char *text, int64_t length)
{
    int64_t start = length - 1;
    while (start > 0 && ((unsigned char)text[start] & 0xC0) == 0x80) start--;
    return length > 0 ? dw_white_space_at(text + start, length - start) : 0;
}
