#include "kernels/definition.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/pool.h"

/* The hash of today's definition. Whoever means to change an operator's bits changes it here as well, and raises the version of
   the program: ranks and snapshots of the two definitions do not go together. */
static const uint64_t todays_hash = 0xaa84ce3ad5ff6fedu;

static void start(void)
{
    dw_set_float_state();
}

TestSuite(definition, .init = start);

Test(definition, every_instruction_set_is_admitted_and_the_hash_is_the_recorded_one)
{
    static const char *const names[] = {"scalar", "avx2", "avx512"};
    for (int i = 0; i < 3; i++) {
        const dw_kernels *kernels = dw_kernels_named(names[i]);
        uint64_t hash;
        dw_error err;
        if (kernels == NULL) {
            printf("note: this CPU can not run %s, it is not tested here\n", names[i]);
            continue;
        }
        cr_assert_eq(dw_definition_check(kernels, &hash, &err), DW_OK, "%s", err.message);
        cr_assert_eq(hash, todays_hash, "%s: the hash is 0x%016llx", names[i], (unsigned long long)hash);
    }
}

/* ---- kernels that are almost right ---- */

static dw_type broken_type;

static void flip(void *number)
{
    *(unsigned char *)number ^= 1;
}

static void bad_linear(float *y, int64_t y_stride, const void *w, int64_t outputs, const float *x, int64_t x_stride, int rows,
                       int64_t inputs)
{
    dw_kernels_scalar.linear[broken_type](y, y_stride, w, outputs, x, x_stride, rows, inputs);
    flip(&y[(rows - 1) * y_stride + outputs - 1]);
}

static void bad_dequantize(float *out, const void *row, int64_t inputs)
{
    dw_kernels_scalar.dequantize[broken_type](out, row, inputs);
    flip(&out[inputs - 1]);
}

static void bad_scores(float *out, const float *q, int64_t q_stride, int n, const void *k, int d)
{
    dw_kernels_scalar.scores[broken_type](out, q, q_stride, n, k, d);
    flip(&out[n * DW_BLOCK - 1]);
}

static void bad_values(float *out, const float *w, int n, const void *v, int d, int first, int last)
{
    dw_kernels_scalar.values[broken_type](out, w, n, v, d, first, last);
    flip(&out[n * d - 1]);
}

static void bad_linear_tile(float *y, int64_t y_stride, const float *w, int64_t w_stride, int64_t outputs, const float *x,
                            int64_t x_stride, int64_t rows, int64_t inputs)
{
    dw_kernels_scalar.linear_tile(y, y_stride, w, w_stride, outputs, x, x_stride, rows, inputs);
    flip(&y[(rows - 1) * y_stride + outputs - 1]);
}

static void bad_exp2(float *out, const float *x, int64_t n)
{
    dw_kernels_scalar.exp2(out, x, n);
    flip(&out[n - 1]);
}

static dw_activation broken_activation;

static void bad_activate(float *x, const float *up, int64_t n)
{
    dw_kernels_scalar.activate[broken_activation](x, up, n);
    flip(&x[n - 1]);
}

static float bad_weights(float *w, const float *s, float scale, uint64_t mask, int32_t *exponent, float *sum, float *maxima)
{
    const float largest = dw_kernels_scalar.weights(w, s, scale, mask, exponent, sum, maxima);
    flip(sum);
    return largest;
}

static void bad_add_limbs(int64_t *low, int64_t *high, const float *o, int64_t n, float scale, int shift)
{
    dw_kernels_scalar.add_limbs(low, high, o, n, scale, shift);
    flip(&high[n - 1]);
}

static dw_screen_query bad_screen_query(int16_t *number, const float *q, const uint16_t *scale, const uint16_t *lowest, int n)
{
    dw_screen_query query = dw_kernels_scalar.screen_query(number, q, scale, lowest, n);
    flip(&query.squares);
    return query;
}

static void bad_screen_scores(float *out, const dw_screen_query *query, const int16_t *number, int rows, const uint8_t *codes,
                              int n)
{
    dw_kernels_scalar.screen_scores(out, query, number, rows, codes, n);
    flip(&out[rows * DW_BLOCK - 1]);
}

static void bad_key_scores(float *out, const float *q, const float *rows, int64_t stride, int n, int d)
{
    dw_kernels_scalar.key_scores(out, q, rows, stride, n, d);
    flip(&out[n - 1]);
}

/* The table must be refused, and the message must name the slot. */
static void is_refused(const dw_kernels *table, const char *said)
{
    uint64_t hash;
    dw_error err = {.message = ""};
    cr_assert_eq(dw_definition_check(table, &hash, &err), DW_RUNTIME, "%s is admitted", said);
    cr_assert(strstr(err.message, said) != NULL && strstr(err.message, "broken") != NULL, "'%s' is not in '%s'", said,
              err.message);
}

Test(definition, a_wrong_bit_in_any_slot_is_noticed_and_the_slot_is_named)
{
    dw_kernels good = dw_kernels_scalar;
    dw_kernels bad;
    char said[64];
    good.name = "broken";
    for (int t = 0; t < DW_TYPE_COUNT; t++) {
        broken_type = (dw_type)t;
        bad = good;
        bad.linear[t] = bad_linear;
        snprintf(said, sizeof said, "'linear' of %s ", dw_types[t].name);
        is_refused(&bad, said);
        bad = good;
        bad.dequantize[t] = bad_dequantize;
        snprintf(said, sizeof said, "'dequantize' of %s ", dw_types[t].name);
        is_refused(&bad, said);
        if (good.scores[t] == NULL) continue;
        bad = good;
        bad.scores[t] = bad_scores;
        snprintf(said, sizeof said, "'scores' of %s ", dw_types[t].name);
        is_refused(&bad, said);
        bad = good;
        bad.values[t] = bad_values;
        snprintf(said, sizeof said, "'values' of %s ", dw_types[t].name);
        is_refused(&bad, said);
    }
#define BREAK(slot)                                                                                                            \
    do {                                                                                                                       \
        bad = good;                                                                                                            \
        bad.slot = bad_##slot;                                                                                                 \
        is_refused(&bad, "'" #slot "'");                                                                                       \
    } while (0)
    BREAK(linear_tile);
    BREAK(exp2);
    BREAK(weights);
    BREAK(add_limbs);
    BREAK(screen_query);
    BREAK(screen_scores);
    BREAK(key_scores);
#undef BREAK
    for (int a = 0; a < DW_ACTIVATIONS; a++) {
        static const char *const names[DW_ACTIVATIONS] = {"'silu'", "'gelu'", "'gelu_tanh'"};
        broken_activation = (dw_activation)a;
        bad = good;
        bad.activate[a] = bad_activate;
        is_refused(&bad, names[a]);
    }
}

Test(definition, a_failing_allocation_is_reported)
{
    uint64_t hash;
    dw_error err;
    dw_memory_fail_at(1);
    cr_assert_eq(dw_definition_check(&dw_kernels_scalar, &hash, &err), DW_RESOURCE);
}
