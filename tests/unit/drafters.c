/* Looking up repeats, and how many tokens are worth drafting. */
#include "decode/drafters.h"

#include <criterion/criterion.h>

Test(drafters, the_latest_repeat_of_the_last_tokens_is_found)
{
    static const int32_t ids[] = {1, 2, 3, 4, 9, 1, 2, 3, 5, 7, 1, 2, 3};
    const dw_history h = {ids, 13};
    cr_assert_eq(dw_find_repeat(&h, 3), 8);
    cr_assert_eq(dw_find_repeat(&h, 4), -1);
    cr_assert_eq(dw_find_repeat(&(dw_history){ids, 9}, 3), -1, "2 3 5 stood nowhere");
    cr_assert_eq(dw_find_repeat(&(dw_history){ids, 8}, 3), 3);
}

Test(drafters, repeats_may_overlap_with_what_they_repeat)
{
    static const int32_t ids[] = {7, 7, 7, 7};
    cr_assert_eq(dw_find_repeat(&(dw_history){ids, 4}, 3), 3);
}

Test(drafters, more_is_drafted_the_more_is_right)
{
    cr_assert_eq(dw_draft_length(0, 12), 1);
    cr_assert_eq(dw_draft_length(0.5, 12), 2);
    cr_assert_eq(dw_draft_length(0.8, 12), 6);
    cr_assert_eq(dw_draft_length(1, 12), 12);
    for (int i = 1; i <= 100; i++) cr_assert_geq(dw_draft_length(i * 0.01, 16), dw_draft_length((i - 1) * 0.01, 16));
}
