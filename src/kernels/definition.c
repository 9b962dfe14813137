#include "kernels/definition.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/pool.h"
#include "base/precise.h"
#include "kernels/f16.h"
#include "kernels/vector.h"

/* Shapes with whole vectors and remainders of every instruction set. */
enum {
    INPUTS = 544, /* 17 blocks of 32; types whose blocks are longer take 512 */
    LONG_BLOCK_INPUTS = 512,
    OUTPUTS = 11,
    HEAD_DIM = 72,
    ROWS = 4,
    NUMBERS = OUTPUTS * INPUTS, /* >= DW_BLOCK * HEAD_DIM: a matrix, or a block of keys or values */
    RESULTS = NUMBERS           /* floats that a slot may write */
};
_Static_assert(NUMBERS >= DW_BLOCK * HEAD_DIM && INPUTS % DW_LANES == 0, "buffers are shared");

/* What the slots read and write. */
typedef struct {
    float x[ROWS * INPUTS];            /* [ROWS][INPUTS] in -1..1 */
    float weights[ROWS * DW_BLOCK];    /* of keys, 0..1, every third 0 */
    float matrix[NUMBERS];             /* [OUTPUTS][INPUTS] in -1..1 */
    unsigned char stored[NUMBERS * 4]; /* as many numbers of the present type */
    float expected[RESULTS];
    float got[RESULTS];
} bench;

/* Runs a slot; returns how many floats of out hold its results. type: of those slots that there are for every type. */
typedef int64_t slot(const dw_kernels *k, const bench *b, dw_type type, float *out);

/* ---- numbers ---- */

static uint64_t next_bits(uint64_t *state)
{
    return dw_mix(*state += DW_GOLDEN);
}

/* -1..1, multiples of 2^-23. */
static float next_float(uint64_t *state)
{
    return (float)((int32_t)(next_bits(state) >> 40) - (1 << 23)) * 0x1p-23f;
}

static int all_finite(const float *x, int64_t n)
{
    return dw_largest(x, n) < INFINITY;
}

/* A block of a quantised type is random bytes that happen to mean finite numbers. */
static void next_block(uint64_t *state, dw_type type, unsigned char *block)
{
    float numbers[256];
    do {
        for (int i = 0; i < dw_types[type].bytes; i++) block[i] = (unsigned char)(next_bits(state) >> 56);
        dw_kernels_scalar.dequantize[type](numbers, block, dw_types[type].elements);
    } while (!all_finite(numbers, dw_types[type].elements));
}

static void fill_stored(bench *b, dw_type type)
{
    const dw_type_info *info = &dw_types[type];
    uint64_t state = 1000 + (uint64_t)info->gguf_id;
    for (int64_t i = 0; i < NUMBERS / info->elements; i++) {
        unsigned char *at = b->stored + i * info->bytes;
        const float number = next_float(&state);
        const uint16_t half = type == DW_F16 ? dw_f16_of_f32(number) : dw_bf16_of_f32(number);
        if (type == DW_F32) {
            memcpy(at, &number, sizeof number);
        } else if (type == DW_F16 || type == DW_BF16) {
            memcpy(at, &half, sizeof half);
        } else {
            next_block(&state, type, at);
        }
    }
}

static void fill_fixed(bench *b)
{
    uint64_t state = 1;
    for (int i = 0; i < ROWS * INPUTS; i++) b->x[i] = next_float(&state);
    for (int i = 0; i < ROWS * DW_BLOCK; i++) b->weights[i] = i % 3 == 0 ? 0 : fabsf(next_float(&state));
    for (int i = 0; i < NUMBERS; i++) b->matrix[i] = next_float(&state);
}

/* ---- the slots of a table ---- */

static int64_t inputs_of(dw_type type)
{
    return INPUTS % dw_types[type].elements == 0 ? INPUTS : LONG_BLOCK_INPUTS;
}

/* One row alone and ROWS together. */
static int64_t run_linear(const dw_kernels *k, const bench *b, dw_type type, float *out)
{
    k->linear[type](out, OUTPUTS, b->stored, OUTPUTS, b->x + INPUTS, INPUTS, 1, inputs_of(type));
    k->linear[type](out + OUTPUTS, OUTPUTS, b->stored, OUTPUTS, b->x, INPUTS, ROWS, inputs_of(type));
    return (int64_t)(1 + ROWS) * OUTPUTS;
}

static int64_t run_dequantize(const dw_kernels *k, const bench *b, dw_type type, float *out)
{
    const int64_t inputs = inputs_of(type);
    for (int64_t o = 0; o < OUTPUTS; o++) {
        k->dequantize[type](out + o * inputs, b->stored + o * dw_row_bytes(type, inputs), inputs);
    }
    return OUTPUTS * inputs;
}

static int64_t run_scores(const dw_kernels *k, const bench *b, dw_type type, float *out)
{
    k->scores[type](out, b->x, INPUTS, 1, b->stored, HEAD_DIM);
    k->scores[type](out + DW_BLOCK, b->x, INPUTS, ROWS, b->stored, HEAD_DIM);
    return (int64_t)(1 + ROWS) * DW_BLOCK;
}

static int64_t run_values(const dw_kernels *k, const bench *b, dw_type type, float *out)
{
    k->values[type](out, b->weights, 1, b->stored, HEAD_DIM, 0, DW_BLOCK - 1);
    k->values[type](out + HEAD_DIM, b->weights, ROWS, b->stored, HEAD_DIM, 0, DW_BLOCK - 1);
    return (int64_t)(1 + ROWS) * HEAD_DIM;
}

static int64_t run_linear_tile(const dw_kernels *k, const bench *b, dw_type type, float *out)
{
    (void)type;
    k->linear_tile(out, OUTPUTS, b->matrix, INPUTS, OUTPUTS, b->x, INPUTS, ROWS, INPUTS);
    return (int64_t)ROWS * OUTPUTS;
}

static int64_t run_exp2(const dw_kernels *k, const bench *b, dw_type type, float *out)
{
    enum { COUNT = 200 };
    (void)type;
    for (int i = 0; i < COUNT; i++) out[i] = b->x[i] * 126.0f;
    k->exp2(out, out, COUNT - 1); /* an odd number */
    return COUNT - 1;
}

/* With a product and without. */
static int64_t run_activation(const dw_kernels *k, const bench *b, dw_activation activation, float *out)
{
    enum { COUNT = 199 }; /* an odd number */
    for (int i = 0; i < 2 * COUNT; i++) out[i] = b->x[i] * 8.0f;
    k->activate[activation](out, b->x + COUNT, COUNT);
    k->activate[activation](out + COUNT, NULL, COUNT);
    return (int64_t)2 * COUNT;
}

static int64_t run_silu(const dw_kernels *k, const bench *b, dw_type type, float *out)
{
    (void)type;
    return run_activation(k, b, DW_SILU, out);
}

static int64_t run_gelu(const dw_kernels *k, const bench *b, dw_type type, float *out)
{
    (void)type;
    return run_activation(k, b, DW_GELU, out);
}

static int64_t run_gelu_tanh(const dw_kernels *k, const bench *b, dw_type type, float *out)
{
    (void)type;
    return run_activation(k, b, DW_GELU_TANH, out);
}

static int64_t run_weights(const dw_kernels *k, const bench *b, dw_type type, float *out)
{
    static const uint64_t masks[] = {UINT64_MAX, 1, (uint64_t)1 << 63, 0x00FFF0F3A5C01804u};
    enum { MASKS = sizeof masks / sizeof masks[0], EACH = DW_BLOCK + DW_LANES + 3 };
    (void)type;
    for (int64_t m = 0; m < MASKS; m++) {
        float *at = out + m * EACH;
        int32_t exponent;
        for (int i = 0; i < DW_BLOCK; i++) at[i] = b->x[m * DW_BLOCK + i] * 40.0f;
        at[DW_BLOCK] = k->weights(at, at, 0.18f, masks[m], &exponent, &at[DW_BLOCK + 1], &at[DW_BLOCK + 3]);
        at[DW_BLOCK + 2] = (float)exponent;
    }
    return (int64_t)MASKS * EACH;
}

/* Queries against a block of the screen; scales and lowest numbers are halves of floats. */
enum { SCREEN_CHANNELS = 80 };
typedef struct {
    int16_t number[ROWS][SCREEN_CHANNELS];
    dw_screen_query query[ROWS];
} screen_queries;

static void make_queries(const dw_kernels *k, const bench *b, screen_queries *q)
{
    uint16_t scale[SCREEN_CHANNELS];
    uint16_t lowest[SCREEN_CHANNELS];
    for (int c = 0; c < SCREEN_CHANNELS; c++) {
        scale[c] = (uint16_t)(c % 7 == 0 ? 0 : dw_bf16_of_f32(fabsf(b->matrix[c])));
        lowest[c] = dw_bf16_of_f32(b->matrix[SCREEN_CHANNELS + c] * 3.0f);
    }
    for (int64_t i = 0; i < ROWS; i++) {
        q->query[i] = k->screen_query(q->number[i], b->x + i * INPUTS, scale, lowest, SCREEN_CHANNELS);
    }
}

static int64_t run_screen_query(const dw_kernels *k, const bench *b, dw_type type, float *out)
{
    screen_queries q;
    (void)type;
    make_queries(k, b, &q);
    memcpy(out, &q, sizeof q);
    return (int64_t)(sizeof q / sizeof *out);
}
_Static_assert(sizeof(screen_queries) % sizeof(float) == 0, "run_screen_query copies it");

/* b->stored: any bytes. */
static int64_t run_screen_scores(const dw_kernels *k, const bench *b, dw_type type, float *out)
{
    screen_queries q;
    (void)type;
    make_queries(&dw_kernels_scalar, b, &q);
    k->screen_scores(out, q.query, q.number[0], ROWS, b->stored, SCREEN_CHANNELS);
    return (int64_t)ROWS * DW_BLOCK;
}

static int64_t run_key_scores(const dw_kernels *k, const bench *b, dw_type type, float *out)
{
    enum { KEYS = 11, STRIDE = 80 };
    (void)type;
    k->key_scores(out, b->x, b->matrix, STRIDE, KEYS, HEAD_DIM);
    return KEYS;
}

/* Onto limbs that are not zero; with the low ones and without. */
static int64_t run_add_limbs(const dw_kernels *k, const bench *b, dw_type type, float *out)
{
    int64_t limbs[3][HEAD_DIM];
    (void)type;
    for (int i = 0; i < HEAD_DIM; i++) limbs[0][i] = limbs[1][i] = limbs[2][i] = (int64_t)i << 20;
    k->add_limbs(limbs[0], limbs[1], b->x, HEAD_DIM, 0x1p28f, 13);
    k->add_limbs(NULL, limbs[2], b->x, HEAD_DIM, 0x1p28f, 27);
    memcpy(out, limbs, sizeof limbs);
    return (int64_t)(sizeof limbs / sizeof *out);
}

/* ---- operators that have one form only ---- */

static int64_t run_vector(const dw_kernels *k, const bench *b, dw_type type, float *out)
{
    float *normed = out + INPUTS;
    float *cosine = normed + INPUTS;
    float *sine = cosine + HEAD_DIM / 2;
    float *heads = sine + HEAD_DIM / 2;
    (void)k;
    (void)type;
    dw_rms_norm(out, b->x, b->matrix, INPUTS - 3, 1e-5f);
    dw_vector_add(out, b->x + INPUTS, INPUTS);
    dw_layer_norm(normed, b->x, b->matrix, b->matrix + INPUTS, INPUTS - 3, 1e-5f);
    dw_vector_scale(normed, 25.298221f, INPUTS);
    for (int i = 0; i < HEAD_DIM / 2; i++) {
        double angle[2];
        dw_sin_cos(123456.0 * dw_pow(10000.0, -2.0 * i / HEAD_DIM), &angle[0], &angle[1]);
        sine[i] = (float)angle[0];
        cosine[i] = (float)angle[1];
    }
    memcpy(heads, b->x, sizeof *heads * 2 * HEAD_DIM);
    dw_rotate(heads, cosine, sine, HEAD_DIM, 0);
    dw_rotate(heads + HEAD_DIM, cosine, sine, HEAD_DIM, 1);
    return (int64_t)2 * INPUTS + (int64_t)3 * HEAD_DIM;
}

/* Rounding to the cache types, and the functions behind sampling. */
static int64_t run_numbers(const dw_kernels *k, const bench *b, dw_type type, float *out)
{
    enum { COUNT = 100 };
    (void)k;
    (void)type;
    for (int64_t i = 0; i < COUNT; i++) {
        const float x = b->x[i];
        const double pair[2] = {dw_log(1.5 + (double)x), dw_exp(50.0 * (double)x)};
        out[6 * i] = dw_f32_of_f16(dw_f16_of_f32(x * 3000.0f));
        out[6 * i + 1] = dw_f32_of_bf16(dw_bf16_of_f32(x));
        memcpy(out + 6 * i + 2, pair, sizeof pair);
    }
    return (int64_t)6 * COUNT;
}

/* ---- all of them ---- */

static const struct {
    const char *name; /* as in kernels.h */
    slot *run;
} typed[] = {{"linear", run_linear}, {"dequantize", run_dequantize}, {"scores", run_scores}, {"values", run_values}},
  untyped[] = {{"linear_tile", run_linear_tile},
               {"exp2", run_exp2},
               {"silu", run_silu},
               {"gelu", run_gelu},
               {"gelu_tanh", run_gelu_tanh},
               {"weights", run_weights},
               {"add_limbs", run_add_limbs},
               {"screen_query", run_screen_query},
               {"screen_scores", run_screen_scores},
               {"key_scores", run_key_scores},
               {"vector", run_vector},
               {"numbers", run_numbers}};
enum { TYPED = sizeof typed / sizeof typed[0], UNTYPED = sizeof untyped / sizeof untyped[0] };

static int has_slot(slot *run, dw_type type)
{
    if (run == run_scores) return dw_kernels_scalar.scores[type] != NULL;
    if (run == run_values) return dw_kernels_scalar.values[type] != NULL;
    return 1;
}

static dw_status check_slot(const dw_kernels *k, bench *b, slot *run, const char *name, const char *of, dw_type type,
                            uint64_t *hash, dw_error *err)
{
    int64_t bytes;
    memset(b->expected, 0, sizeof b->expected);
    bytes = run(&dw_kernels_scalar, b, type, b->expected) * (int64_t)sizeof *b->expected;
    *hash = dw_hash(*hash, b->expected, bytes);
    if (k == &dw_kernels_scalar) return DW_OK;
    memset(b->got, 0, sizeof b->got);
    run(k, b, type, b->got);
    if (memcmp(b->expected, b->got, sizeof b->got) == 0) return DW_OK;
    return dw_fail(
        err, DW_RUNTIME,
        "the %s kernel '%s'%s%s gives other bits than the definition on this machine; DEWPOINT_ISA=scalar works without it",
        k->name, name, *of == '\0' ? "" : " of ", of);
}

static dw_status check_all(const dw_kernels *k, bench *b, uint64_t *hash, dw_error *err)
{
    fill_fixed(b);
    for (int t = 0; t < DW_TYPE_COUNT; t++) {
        fill_stored(b, (dw_type)t);
        for (int i = 0; i < TYPED; i++) {
            if (!has_slot(typed[i].run, (dw_type)t)) continue;
            DW_TRY(check_slot(k, b, typed[i].run, typed[i].name, dw_types[t].name, (dw_type)t, hash, err));
        }
    }
    for (int i = 0; i < UNTYPED; i++) DW_TRY(check_slot(k, b, untyped[i].run, untyped[i].name, "", DW_F32, hash, err));
    return DW_OK;
}

dw_status dw_definition_check(const dw_kernels *kernels, uint64_t *hash, dw_error *err)
{
    bench *b;
    dw_status status;
    *hash = 0;
    DW_TRY(DW_ALLOC(&b, 1, "the self-test of the kernels", err));
    status = check_all(kernels, b, hash, err);
    dw_free(b);
    return status;
}
