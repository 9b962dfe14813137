#include "tokenizer/added.h"

#include <stdlib.h>

#include "base/memory.h"

dw_status dw_added_put(dw_added *added, const dw_added_token *token, dw_error *err)
{
    DW_TRY(DW_GROW(&added->list, &added->capacity, added->count + 1, "added tokens", err));
    added->list[added->count++] = *token;
    return DW_OK;
}

void dw_added_sort(dw_added *added)
{
    if (added->count > 0) qsort(added->list, (size_t)added->count, sizeof *added->list, dw_string_compare);
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
const dw_added_token *dw_added_at(const dw_added *added, const char *text, int64_t length, int control)
{
    const dw_added_token *found = NULL;
    int64_t low = 0;
    int64_t high = added->count;
    for (int64_t depth = 0; low < high; depth++) {
        while (low < high && added->list[low].text.length == depth) {
            if (depth > 0 && (control || !added->list[low].is_control)) found = &added->list[low];
            low++;
        }
        if (low == high || depth == length) break;
        const int byte = (unsigned char)text[depth];
        low = first_from(added, low, high, depth, byte);
        high = first_from(added, low, high, depth, byte + 1);
    }
    return found;
}
