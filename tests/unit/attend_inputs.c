/* What attend(rows) refuses to take into the cache. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "mpi/attend.h"

enum { HEADS = 2, KV_HEADS = 2, D = 4 };

/* One row on one rank: head 1 of q, k or v holds `x`, all else is 1. Returns the message, empty when there is none. */
static const char *attend_with(float x, char which, dw_type type)
{
    static dw_error err;
    static const int32_t value_exponent[KV_HEADS] = {0, 30};
    const dw_shard_config config = {4, KV_HEADS, D, type, type, 8, 0, 1};
    const dw_attend_layer layer = {3, 0, value_exponent};
    int64_t start[] = {0, 1};
    const dw_rows rows = {0, 1, start};
    float row[3][HEADS * D], out[HEADS * D];
    dw_attention *attention;
    dw_transport *transport;
    dw_pool *pool;
    for (int i = 0; i < 3; i++) {
        for (int c = 0; c < HEADS * D; c++) row[i][c] = 1.0f;
    }
    row[which == 'q' ? 0 : which == 'k' ? 1 : 2][D + 1] = x;
    memset(&err, 0, sizeof err);
    dw_set_float_state();
    cr_assert(dw_transport_local_create(&transport, 1, 10.0, &err) == DW_OK && dw_pool_create(&pool, 1, 0, &err) == DW_OK);
    cr_assert(dw_attention_create(&attention, transport, pool, dw_kernels_best(), &config, HEADS, 1, NULL, 0, &err) == DW_OK);
    if (dw_attend(attention, &layer, &rows, DW_ATTEND_DENSE, row[0], row[1], row[2], out, HEADS * D, NULL, &err) == DW_OK) {
        for (int c = 0; c < HEADS * D; c++) cr_assert(isfinite(out[c]), "an output is not a number");
    } else {
        cr_assert_eq(err.status, DW_RUNTIME);
    }
    dw_attention_destroy(attention);
    dw_pool_destroy(pool);
    dw_transport_destroy(transport);
    return err.message;
}

#define SAYS(message, number, which, type) cr_assert_str_eq(attend_with((number), (which), (type)), message)

Test(attend_inputs, what_is_no_number_or_too_large_is_an_error_that_names_layer_and_head)
{
    SAYS("layer 3, head 1: query is not a number or out of range", NAN, 'q', DW_F32);
    SAYS("layer 3, head 1: query is not a number or out of range", 0x1p41f, 'q', DW_F32);
    SAYS("layer 3, KV head 1: key is not a number or out of range", -INFINITY, 'k', DW_F16);
    SAYS("layer 3, KV head 1: value is not a number or above its bound 2^30", 0x1.000002p30f, 'v', DW_BF16);
    SAYS("layer 3, KV head 1: value is not a number or above its bound 2^30", NAN, 'v', DW_F16);
}

/* 65504 is the largest number of f16; half a step above it, at 65520, rounding gives infinity. */
Test(attend_inputs, a_number_that_f16_does_not_hold_is_an_error_and_never_an_infinity_in_the_cache)
{
    SAYS("layer 3, KV head 1: key is too large for f16 (see --kv-type)", 65520.0f, 'k', DW_F16);
    SAYS("layer 3, KV head 1: value is too large for f16 (see --kv-type)", -65520.0f, 'v', DW_F16);
    SAYS("", 65519.996f, 'k', DW_F16);
    SAYS("", 65519.996f, 'v', DW_F16);
    SAYS("", 1e6f, 'k', DW_BF16);
    SAYS("", 1e9f, 'v', DW_F32);
}
