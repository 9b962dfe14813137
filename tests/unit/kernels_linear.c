/* Linear kernels: the portable definition, its vector forms bit for bit, the conversions, and dw_linear above them. */
#include <criterion/criterion.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/f16.h"
#include "kernels/linear.h"
#include "kernels/linear_kernels.h"

enum { GUARD = 5, GUARD_BYTE = 0xa5, MAX_OUTPUTS = 40, MAX_ROWS = 40 };

/* What the numbers look like. The vector forms must agree on all of them, also where sums vanish or underflow. */
typedef enum { ORDINARY, ZEROS, NEGATIVE_ZEROS, SUBNORMAL, HUGE_VALUES, CANCELLING, PATTERNS } pattern;

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static uint32_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

/* -1..1, multiples of 2^-23. */
static float random_float(void)
{
    return (float)((int32_t)(random_bits() >> 8) - (1 << 23)) * 0x1p-23f;
}

static float number_like(pattern p, int64_t i)
{
    switch (p) {
    case ZEROS: return 0.0f;
    case NEGATIVE_ZEROS: return -0.0f;
    case SUBNORMAL: return random_float() * (i % 3 == 0 ? 0x1p-130f : 0x1p-20f);
    case HUGE_VALUES: return random_float() * 0x1p50f; /* times 2^16 * 2^7 of the widest weights: far from overflow */
    case CANCELLING: return (i / DW_LANES % 2 == 0 ? 1.0f : -1.0f) * (4096.0f + random_float());
    default: return random_float();
    }
}

static uint16_t half_like(pattern p)
{
    switch (p) {
    case ZEROS: return 0;
    case NEGATIVE_ZEROS: return 0x8000;
    case SUBNORMAL: return (uint16_t)(random_bits() & 0x83ff);
    case HUGE_VALUES: return (uint16_t)(0x7b00 | (random_bits() & 0x80ff));
    default: return (uint16_t)(0x2000 | (random_bits() & 0x8fff)); /* 2^-7 .. 2^-3 */
    }
}

/* Where the halves of a block stand; a type with one names it twice. */
static const struct {
    size_t d, m;
} half_at[DW_TYPE_COUNT] = {
    [DW_Q4_1] = {offsetof(dw_q4_1, d), offsetof(dw_q4_1, m)}, [DW_Q5_1] = {offsetof(dw_q5_1, d), offsetof(dw_q5_1, m)},
    [DW_Q2_K] = {offsetof(dw_q2_k, d), offsetof(dw_q2_k, m)}, [DW_Q3_K] = {offsetof(dw_q3_k, d), offsetof(dw_q3_k, d)},
    [DW_Q4_K] = {offsetof(dw_q4_k, d), offsetof(dw_q4_k, m)}, [DW_Q5_K] = {offsetof(dw_q5_k, d), offsetof(dw_q5_k, m)},
    [DW_Q6_K] = {offsetof(dw_q6_k, d), offsetof(dw_q6_k, d)},
};

/* Weights of one type in a heap block of exactly their size, so that the sanitizer sees any byte read outside. */
static void *make_weights(dw_type type, int64_t outputs, int64_t inputs, pattern p)
{
    const int64_t bytes = outputs * dw_row_bytes(type, inputs);
    uint8_t *w = malloc((size_t)bytes);
    cr_assert(w != NULL);
    for (int64_t i = 0; i < bytes; i++) w[i] = (uint8_t)random_bits();
    if (type == DW_F32) {
        for (int64_t i = 0; i < outputs * inputs; i++) ((float *)w)[i] = number_like(p, i);
    } else if (type == DW_F16) {
        for (int64_t i = 0; i < outputs * inputs; i++) ((uint16_t *)w)[i] = half_like(p);
    } else if (type == DW_BF16) {
        for (int64_t i = 0; i < outputs * inputs; i++) ((uint16_t *)w)[i] = dw_bf16_of_f32(number_like(p, i));
    } else {
        for (uint8_t *block = w; block < w + bytes; block += dw_types[type].bytes) {
            const uint16_t half[2] = {half_like(p), half_like(p)};
            memcpy(block + half_at[type].m, &half[0], sizeof half[0]);
            memcpy(block + half_at[type].d, &half[1], sizeof half[1]);
        }
    }
    return w;
}

/* [rows][dw_padded(inputs)], zero behind inputs. */
static float *make_rows(int64_t rows, int64_t inputs, pattern p)
{
    const int64_t stride = dw_padded(inputs);
    float *x = malloc((size_t)(rows * stride) * sizeof *x);
    cr_assert(x != NULL);
    for (int64_t i = 0; i < rows * stride; i++) x[i] = i % stride < inputs ? number_like(p, i) : 0.0f;
    return x;
}

/* Outputs with a few floats of guard before each row and behind the last. */
typedef struct {
    float cell[MAX_ROWS * (MAX_OUTPUTS + GUARD) + GUARD];
    int64_t stride;
} guarded;

static float *guarded_start(guarded *g, int64_t outputs)
{
    memset(g->cell, GUARD_BYTE, sizeof g->cell);
    g->stride = outputs + GUARD;
    return g->cell + GUARD;
}

static void assert_guards(const guarded *g, int64_t rows, int64_t outputs, const char *what)
{
    const int64_t cells = (int64_t)(sizeof g->cell / sizeof g->cell[0]);
    uint32_t untouched;
    memset(&untouched, GUARD_BYTE, sizeof untouched);
    for (int64_t i = 0; i < cells; i++) {
        const int64_t row = (i - GUARD) / g->stride;
        if (i >= GUARD && row < rows && (i - GUARD) % g->stride < outputs) continue;
        cr_assert(dw_bits_of_float(g->cell[i]) == untouched, "%s: %lld rows x %lld outputs wrote outside, at %lld", what,
                  (long long)rows, (long long)outputs, (long long)i);
    }
}

static void assert_same(const guarded *expected, const guarded *got, const char *isa, dw_type type, int64_t rows,
                        int64_t outputs, int64_t inputs, int p)
{
    cr_assert(memcmp(expected->cell, got->cell, sizeof got->cell) == 0,
              "%s differs from scalar: %s, %lld rows, %lld outputs, %lld inputs, pattern %d", isa, dw_types[type].name,
              (long long)rows, (long long)outputs, (long long)inputs, p);
}

/* The vector tables of this CPU; says which can not be tested here. */
static int vector_tables(const dw_kernels *tables[2])
{
    static const char *const names[] = {"avx2", "avx512"};
    int found = 0;
    cr_assert(dw_kernels_named("scalar") == &dw_kernels_scalar);
    for (int i = 0; i < 2; i++) {
        tables[found] = dw_kernels_named(names[i]);
        if (tables[found] != NULL) {
            cr_assert_str_eq(tables[found]->name, names[i]);
            found++;
        } else {
            fprintf(stderr, "kernels_linear: this CPU can not run %s; its kernels are not compared\n", names[i]);
        }
    }
    dw_set_float_state();
    return found;
}

static int type_allows(dw_type type, int64_t inputs)
{
    return inputs % dw_types[type].elements == 0;
}

/* A few pieces, in whole blocks. */
static int64_t short_inputs(dw_type type)
{
    return type_allows(type, 96) ? 96 : 512;
}

/* Compares one shape of linear[type] in all numbers of rows. */
static void compare_stored(const dw_kernels *isa, dw_type type, int64_t outputs, int64_t inputs, pattern pw, pattern px)
{
    void *w = make_weights(type, outputs, inputs, pw);
    float *x = make_rows(DW_LINEAR_ROWS, inputs, px);
    for (int rows = 1; rows <= DW_LINEAR_ROWS; rows++) {
        guarded expected;
        guarded got;
        float *y = guarded_start(&expected, outputs);
        dw_kernels_scalar.linear[type](y, expected.stride, w, outputs, x, dw_padded(inputs), rows, inputs);
        assert_guards(&expected, rows, outputs, "scalar");
        y = guarded_start(&got, outputs);
        isa->linear[type](y, got.stride, w, outputs, x, dw_padded(inputs), rows, inputs);
        assert_same(&expected, &got, isa->name, type, rows, outputs, inputs, (int)px);
    }
    free(w);
    free(x);
}

static const int64_t edge_inputs[] = {1, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 96, 256, 512, 576, 1536};
enum { EDGE_INPUTS = sizeof edge_inputs / sizeof edge_inputs[0] };

Test(kernels_linear, stored_weights_give_the_definitions_bits_on_every_isa)
{
    const dw_kernels *tables[2];
    const int found = vector_tables(tables);
    for (int t = 0; t < found * DW_TYPE_COUNT; t++) {
        const dw_type type = (dw_type)(t % DW_TYPE_COUNT);
        for (int k = 0; k < EDGE_INPUTS; k++) {
            if (!type_allows(type, edge_inputs[k])) continue;
            compare_stored(tables[t / DW_TYPE_COUNT], type, edge_inputs[k] > 100 ? 9 : 13, edge_inputs[k], ORDINARY, ORDINARY);
        }
        for (int64_t outputs = 1; outputs <= 37; outputs++) {
            compare_stored(tables[t / DW_TYPE_COUNT], type, outputs, type_allows(type, 32) ? 32 : 256, ORDINARY, ORDINARY);
            if (type_allows(type, 49)) compare_stored(tables[t / DW_TYPE_COUNT], type, outputs, 49, ORDINARY, ORDINARY);
        }
    }
}

Test(kernels_linear, stored_weights_give_the_definitions_bits_on_extreme_numbers)
{
    const dw_kernels *tables[2];
    const int found = vector_tables(tables);
    for (int t = 0; t < found * DW_TYPE_COUNT; t++) {
        const dw_type type = (dw_type)(t % DW_TYPE_COUNT);
        for (int p = 0; p < PATTERNS * PATTERNS; p++) {
            const pattern pw = (pattern)(p / PATTERNS);
            const pattern px = (pattern)(p % PATTERNS);
            compare_stored(tables[t / DW_TYPE_COUNT], type, 9, short_inputs(type), pw, px);
            if (type_allows(type, 55)) compare_stored(tables[t / DW_TYPE_COUNT], type, 5, 55, pw, px);
        }
    }
}

static void compare_tile(const dw_kernels *isa, int64_t rows, int64_t outputs, int64_t inputs, pattern p)
{
    const int64_t stride = dw_padded(inputs) + DW_LANES; /* a stride that is not the row */
    float *w = make_rows(outputs, stride, p);
    float *x = make_rows(rows, stride, p);
    guarded expected;
    guarded got;
    float *y = guarded_start(&expected, outputs);
    dw_kernels_scalar.linear_tile(y, expected.stride, w, stride, outputs, x, stride, rows, inputs);
    assert_guards(&expected, rows, outputs, "scalar tile");
    y = guarded_start(&got, outputs);
    isa->linear_tile(y, got.stride, w, stride, outputs, x, stride, rows, inputs);
    assert_same(&expected, &got, isa->name, DW_F32, rows, outputs, inputs, (int)p);
    free(w);
    free(x);
}

Test(kernels_linear, tiles_of_any_size_give_the_definitions_bits_on_every_isa)
{
    const dw_kernels *tables[2];
    const int found = vector_tables(tables);
    for (int t = 0; t < found; t++) {
        for (int64_t rows = 1; rows <= 17; rows++) {
            for (int64_t outputs = 1; outputs <= 37; outputs++) compare_tile(tables[t], rows, outputs, 16, ORDINARY);
            compare_tile(tables[t], rows, 9, 48, CANCELLING);
        }
        for (int k = 0; k < EDGE_INPUTS; k++) compare_tile(tables[t], 13, 11, edge_inputs[k], ORDINARY);
        for (int p = 0; p < PATTERNS; p++) compare_tile(tables[t], 8, 10, 80, (pattern)p);
    }
}

Test(kernels_linear, widening_gives_the_definitions_bits_on_every_isa)
{
    const dw_kernels *tables[2];
    const int found = vector_tables(tables);
    for (int t = 0; t < found * DW_TYPE_COUNT; t++) {
        const dw_type type = (dw_type)(t % DW_TYPE_COUNT);
        for (int c = 0; c < EDGE_INPUTS * PATTERNS; c++) {
            const int64_t inputs = edge_inputs[c / PATTERNS];
            const int64_t padded = dw_padded(inputs);
            float expected[1536 + GUARD];
            float got[1536 + GUARD];
            if (!type_allows(type, inputs)) continue;
            void *row = make_weights(type, 1, inputs, (pattern)(c % PATTERNS));
            memset(expected, GUARD_BYTE, sizeof expected);
            memset(got, GUARD_BYTE, sizeof got);
            dw_kernels_scalar.dequantize[type](expected, row, inputs);
            tables[t / DW_TYPE_COUNT]->dequantize[type](got, row, inputs);
            cr_assert(memcmp(expected, got, sizeof got) == 0, "%s, %s, %lld inputs", tables[t / DW_TYPE_COUNT]->name,
                      dw_types[type].name, (long long)inputs);
            for (int64_t i = inputs; i < padded; i++) cr_assert(dw_bits_of_float(got[i]) == 0);
            for (int64_t i = padded; i < 1536 + GUARD; i++) cr_assert(dw_bits_of_float(got[i]) == 0xa5a5a5a5u);
            free(row);
        }
    }
}

/* The definition of kernels.h, written down a second time. */
static float dot_by_the_book(const float *w, const float *x, int64_t padded)
{
    float lane[16] = {0};
    for (int64_t i = 0; i < padded; i++) lane[i % 16] = fmaf(w[i], x[i], lane[i % 16]);
    for (int l = 0; l < 8; l++) lane[l] = lane[l] + lane[l + 8];
    for (int l = 0; l < 4; l++) lane[l] = lane[l] + lane[l + 4];
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

Test(kernels_linear, the_scalar_kernel_is_the_written_definition)
{
    dw_set_float_state();
    for (int t = 0; t < DW_TYPE_COUNT * EDGE_INPUTS; t++) {
        const dw_type type = (dw_type)(t % DW_TYPE_COUNT);
        const int64_t inputs = edge_inputs[t / DW_TYPE_COUNT];
        const int64_t padded = dw_padded(inputs);
        float w[1536];
        float y[3];
        if (!type_allows(type, inputs)) continue;
        void *row = make_weights(type, 1, inputs, ORDINARY);
        float *x = make_rows(3, inputs, ORDINARY);
        dw_kernels_scalar.dequantize[type](w, row, inputs);
        dw_kernels_scalar.linear[type](y, 1, row, 1, x, padded, 3, inputs);
        for (int r = 0; r < 3; r++) {
            const float expected = dot_by_the_book(w, x + r * padded, padded);
            cr_assert(dw_bits_of_float(y[r]) == dw_bits_of_float(expected), "%s, %lld inputs", dw_types[type].name,
                      (long long)inputs);
        }
        free(row);
        free(x);
    }
}

/* One rounding for each of the inputs/16 in a lane, 4 in the tree, each at most 2^-24 of a partial sum of |w x|; 1 % for
   their products. w: the weights as floats, which gguf_dequantize checks. */
Test(kernels_linear, dot_products_are_within_the_derived_bound_of_float64)
{
    static const int64_t inputs_of[] = {1, 17, 32, 96, 576, 1536};
    const dw_kernels *best = dw_kernels_best();
    cr_assert(best != NULL);
    dw_set_float_state();
    for (int t = 0; t < DW_TYPE_COUNT * 6; t++) {
        enum { OUTPUTS = 16 };
        float row[1536];
        const dw_type type = (dw_type)(t % DW_TYPE_COUNT);
        const int64_t inputs = inputs_of[t / DW_TYPE_COUNT];
        float y[OUTPUTS];
        if (!type_allows(type, inputs)) continue;
        char *w = make_weights(type, OUTPUTS, inputs, ORDINARY);
        float *x = make_rows(1, inputs, ORDINARY);
        best->linear[type](y, OUTPUTS, w, OUTPUTS, x, dw_padded(inputs), 1, inputs);
        for (int o = 0; o < OUTPUTS; o++) {
            double sum = 0;
            double size = 0;
            dw_kernels_scalar.dequantize[type](row, w + o * dw_row_bytes(type, inputs), inputs);
            for (int64_t i = 0; i < inputs; i++) {
                const double product = (double)row[i] * x[i];
                sum += product;
                size += fabs(product);
            }
            const double bound = 1.01 * ((double)(dw_padded(inputs) / DW_LANES) + 4) * 0x1p-24 * size;
            cr_assert(fabs(y[o] - sum) <= bound, "%s, %lld inputs: error %g, bound %g", dw_types[type].name, (long long)inputs,
                      fabs(y[o] - sum), bound);
        }
        free(w);
        free(x);
    }
}

/* y of all rows at once, and of each row alone, with one to three threads: all the same bits. */
static void compare_threads_and_rows(const dw_kernels *kernels, dw_type type, int64_t rows, int64_t outputs, int64_t inputs)
{
    dw_matrix w = {type, outputs, inputs, make_weights(type, outputs, inputs, ORDINARY)};
    const int64_t stride = dw_padded(inputs);
    float *x = make_rows(rows, inputs, ORDINARY);
    float *alone = calloc((size_t)(rows * outputs), sizeof *alone);
    float *together = calloc((size_t)(rows * outputs), sizeof *together);
    cr_assert(alone != NULL && together != NULL);
    for (int64_t r = 0; r < rows; r++) {
        kernels->linear[type](alone + r * outputs, outputs, w.data, outputs, x + r * stride, stride, 1, inputs);
    }
    for (int threads = 1; threads <= 3; threads++) {
        dw_pool *pool;
        dw_linear_scratch *scratch;
        cr_assert(dw_pool_create(&pool, threads, 0, NULL) == DW_OK);
        cr_assert(dw_linear_scratch_create(&scratch, threads, inputs + 32, NULL) == DW_OK);
        memset(together, GUARD_BYTE, (size_t)(rows * outputs) * sizeof *together);
        dw_linear(kernels, pool, scratch, together, outputs, &w, x, stride, rows);
        cr_assert(memcmp(alone, together, (size_t)(rows * outputs) * sizeof *together) == 0,
                  "%s, %s, %d threads, %lld rows, %lld outputs, %lld inputs", kernels->name, dw_types[type].name, threads,
                  (long long)rows, (long long)outputs, (long long)inputs);
        dw_linear_scratch_destroy(scratch);
        dw_pool_destroy(pool);
    }
    free((void *)w.data);
    free(x);
    free(alone);
    free(together);
}

Test(kernels_linear, rows_and_threads_do_not_change_the_bits_of_a_row)
{
    const dw_kernels *tables[2];
    const int found = vector_tables(tables);
    compare_threads_and_rows(&dw_kernels_scalar, DW_Q4_1, 17, 37, 64);
    compare_threads_and_rows(&dw_kernels_scalar, DW_F32, 3, 37, 17);
    for (int t = 0; t < found * DW_TYPE_COUNT; t++) {
        const dw_kernels *kernels = tables[t / DW_TYPE_COUNT];
        const dw_type type = (dw_type)(t % DW_TYPE_COUNT);
        for (int64_t rows = 1; rows <= 17; rows++) compare_threads_and_rows(kernels, type, rows, 37, short_inputs(type));
        compare_threads_and_rows(kernels, type, 13, 1600,
                                 type_allows(type, 576) ? 576 : 512); /* long enough for threads to work at the same time */
        compare_threads_and_rows(kernels, type, 2, 1, short_inputs(type));
        compare_threads_and_rows(kernels, type, 33, 1, short_inputs(type));
        if (type_allows(type, 49)) compare_threads_and_rows(kernels, type, 33, 65, 49);
    }
}

Test(kernels_linear, a_failing_allocation_of_the_scratch_is_reported)
{
    for (int n = 1; n <= 2; n++) {
        dw_linear_scratch *scratch = (dw_linear_scratch *)&n;
        dw_error err = {0};
        dw_memory_fail_at(n);
        cr_assert(dw_linear_scratch_create(&scratch, 2, 64, &err) == DW_RESOURCE, "allocation %d", n);
        cr_assert(scratch == NULL && err.message[0] != '\0');
        dw_memory_fail_at(0);
    }
    dw_linear_scratch_destroy(NULL);
}

Test(kernels_linear, half_precision_widens_as_the_hardware_does_for_all_65536_halves)
{
    const dw_kernels *tables[2];
    const int found = vector_tables(tables);
    uint16_t *halves = malloc(65536 * sizeof *halves);
    float *wide = malloc(65536 * sizeof *wide);
    cr_assert(halves != NULL && wide != NULL);
    for (int i = 0; i < 65536; i++) halves[i] = (uint16_t)i;
    for (int t = 0; t < found; t++) {
        tables[t]->dequantize[DW_F16](wide, halves, 65536);
        for (int i = 0; i < 65536; i++) {
            const uint32_t ours = dw_bits_of_float(dw_f32_of_f16((uint16_t)i));
            cr_assert(ours == dw_bits_of_float(wide[i]), "%s: half %04x", tables[t]->name, i);
        }
    }
    cr_assert(dw_f32_of_f16(0x3c00) == 1.0f && dw_f32_of_f16(0xc000) == -2.0f && dw_f32_of_f16(0x7bff) == 65504.0f);
    cr_assert(dw_f32_of_f16(0x0001) == 0x1p-24f && dw_f32_of_f16(0x03ff) == 1023 * 0x1p-24f);
    cr_assert(isinf(dw_f32_of_f16(0x7c00)) && isnan(dw_f32_of_f16(0x7c01)));
    free(halves);
    free(wide);
}

/* Narrows the midpoint of two neighbours and the floats beside it, for both signs. narrow(widen(h)) must be h. */
static void check_narrowing(uint16_t (*narrow)(float), float (*widen)(uint16_t), uint16_t h, float midpoint)
{
    const uint16_t even = (uint16_t)(h + (h & 1));
    for (int sign = 0; sign <= 0x8000; sign += 0x8000) {
        const float m = sign ? -midpoint : midpoint;
        cr_assert(narrow(widen((uint16_t)(h | sign))) == (h | sign), "%04x does not return", h | sign);
        cr_assert(narrow(m) == (even | sign), "%04x: a tie must go to even", h | sign);
        cr_assert(narrow(nextafterf(m, 0.0f)) == (h | sign), "%04x: below the midpoint", h | sign);
        cr_assert(narrow(nextafterf(m, m * 2)) == ((h + 1) | sign), "%04x: above the midpoint", h | sign);
    }
}

Test(kernels_linear, narrowing_rounds_every_half_to_nearest_even)
{
    dw_set_float_state();
    for (uint32_t h = 0; h < 0x7c00; h++) {
        /* 65520 is the midpoint of the largest half and the one that would follow it */
        const float next = h == 0x7bff ? 65536.0f : dw_f32_of_f16((uint16_t)(h + 1));
        check_narrowing(dw_f16_of_f32, dw_f32_of_f16, (uint16_t)h, (dw_f32_of_f16((uint16_t)h) + next) / 2);
    }
    cr_assert(dw_f16_of_f32(INFINITY) == 0x7c00 && dw_f16_of_f32(-INFINITY) == 0xfc00 && dw_f16_of_f32(1e30f) == 0x7c00);
    cr_assert(dw_f16_of_f32(NAN) == 0x7e00 && dw_f16_of_f32(dw_float_of_bits(0xff800001u)) == 0xfe00);
    cr_assert(dw_f16_of_f32(0x1p-149f) == 0 && dw_f16_of_f32(-0.0f) == 0x8000);
}

Test(kernels_linear, narrowing_rounds_every_bfloat16_to_nearest_even)
{
    dw_set_float_state();
    for (uint32_t h = 0; h < 0x7f80; h++) {
        check_narrowing(dw_bf16_of_f32, dw_f32_of_bf16, (uint16_t)h, dw_float_of_bits(h << 16 | 0x8000u));
    }
    cr_assert(dw_bf16_of_f32(INFINITY) == 0x7f80 && dw_bf16_of_f32(-INFINITY) == 0xff80);
    cr_assert(dw_bf16_of_f32(dw_float_of_bits(0x7f800001u)) == 0x7fc0, "a NaN must stay one");
}

Test(kernels_linear, the_environment_names_the_table)
{
    static const char *const best_first[] = {"avx512", "avx2", "scalar"};
    unsetenv("DEWPOINT_ISA");
    for (int i = 0; i < 3; i++) {
        if (dw_kernels_named(best_first[i]) == NULL) continue;
        cr_assert_str_eq(dw_kernels_best()->name, best_first[i]);
        break;
    }
    for (int i = 0; i < 3; i++) {
        setenv("DEWPOINT_ISA", best_first[i], 1);
        cr_assert(dw_kernels_best() == dw_kernels_named(best_first[i]), "%s", best_first[i]);
    }
    setenv("DEWPOINT_ISA", "avx1024", 1);
    cr_assert(dw_kernels_best() == NULL);
    cr_assert(dw_kernels_named("AVX2") == NULL && dw_kernels_named("") == NULL);
}

Test(kernels_linear, every_table_has_all_linear_slots)
{
    const dw_kernels *const all[] = {&dw_kernels_scalar, &dw_kernels_avx2, &dw_kernels_avx512};
    for (int i = 0; i < 3; i++) {
        for (int t = 0; t < DW_TYPE_COUNT; t++) cr_assert(all[i]->linear[t] != NULL && all[i]->dequantize[t] != NULL);
        cr_assert(all[i]->linear_tile != NULL);
    }
}
