#include "attention/ranked.h"

#include <stdlib.h>
#include <string.h>

#include "base/integers.h"

static int better(const dw_ranked *a, const dw_ranked *b)
{
    return a->weight > b->weight || (a->weight == b->weight && a->position < b->position);
}

static int best_first(const void *a, const void *b)
{
    if (better(a, b)) return -1;
    return better(b, a) ? 1 : 0;
}

/* Puts the best k of count first, in any order (quickselect). */
static void select_best(dw_ranked *x, int64_t count, int64_t k)
{
    int64_t low = 0;
    int64_t high = count - 1;
    while (low < high) {
        const dw_ranked pivot = x[low + (high - low) / 2];
        int64_t i = low;
        int64_t j = high;
        while (i <= j) {
            while (better(&x[i], &pivot)) i++;
            while (better(&pivot, &x[j])) j--;
            if (i > j) break;
            const dw_ranked moved = x[i];
            x[i++] = x[j];
            x[j--] = moved;
        }
        if (k - 1 <= j) {
            high = j;
        } else if (k - 1 >= i) {
            low = i;
        } else {
            break;
        }
    }
}

void dw_ranked_select(dw_ranked_list *list, int64_t room, int64_t most, dw_ranked *found, int64_t count)
{
    memset(list, 0, (size_t)dw_ranked_bytes(room));
    list->count = dw_smaller(count, most);
    if (count > most) select_best(found, count, most);
    qsort(found, (size_t)list->count, sizeof *found, best_first);
    memcpy(list->best, found, (size_t)list->count * sizeof *found);
}

void dw_ranked_merge(dw_ranked_list *mine, const dw_ranked_list *theirs, int64_t most, dw_ranked *scratch)
{
    const int64_t count = dw_smaller(mine->count + theirs->count, most);
    int64_t i = 0;
    int64_t j = 0;
    for (int64_t n = 0; n < count; n++) {
        const int from_mine = j == theirs->count || (i < mine->count && better(&mine->best[i], &theirs->best[j]));
        scratch[n] = from_mine ? mine->best[i++] : theirs->best[j++];
    }
    memcpy(mine->best, scratch, (size_t)count * sizeof *scratch);
    mine->count = count;
}
