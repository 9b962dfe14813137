/* Linear layers with AVX2, FMA and F16C: the sixteen lanes of the definition are two registers. */
#include <immintrin.h>
#include <string.h>

#include "kernels/kernels.h"
#include "kernels/linear_kernels.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    BLOCK = 32,        /* weights widened together: four registers */
    OUTPUTS = 4,       /* most outputs of linear() in flight */
    PREFETCH = 1024,   /* bytes of weights fetched ahead, by linear() behind all outputs in flight */
    TILE_OUTPUTS = 4,  /* accumulators of a tile: TILE_OUTPUTS * TILE_ROWS of the 16 registers, for eight of the lanes */
    TILE_ROWS = 3,
    GROUP_OUTPUTS = 8, /* tiles that share pieces of GROUP_INPUTS inputs: in the L1 cache 12 KiB of w, 9 of x, 3 of lanes */
    GROUP_ROWS = 6,
    GROUP_INPUTS = 384
};

/* Lanes 0-7 and 8-15. */
typedef struct {
    __m256 low;
    __m256 high;
} lanes;

/* scale = d and m of a block of Q4_1, d of one of Q8_0. In memory, because a broadcasting load is cheaper than a shuffle.
   The eight bytes read lie inside the block. */
INLINE void widen_scale(float scale[2], const char *block)
{
    _mm_storel_pi((__m64 *)scale, _mm_cvtph_ps(_mm_loadu_si64(block)));
}

/* w[i] = numbers 8 i .. 8 i + 7 of a block; scale as above (not used by the types without scales). */
INLINE void widen(__m256 w[4], dw_type type, const char *block, const float scale[2])
{
    if (type == DW_Q4_1) {
        const __m256 d = _mm256_broadcast_ss(scale);
        const __m256 m = _mm256_broadcast_ss(scale + 1);
        for (int i = 0; i < 2; i++) {
            const __m256i q = _mm256_cvtepu8_epi32(_mm_loadu_si64(((const dw_q4_1 *)block)->q + 8 * i));
            w[i] = _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(_mm256_and_si256(q, _mm256_set1_epi32(15))), m);
            w[i + 2] = _mm256_fmadd_ps(d, _mm256_cvtepi32_ps(_mm256_srli_epi32(q, 4)), m);
        }
        return;
    }
    for (int i = 0; i < 4; i++) {
        if (type == DW_F32) {
            w[i] = _mm256_loadu_ps((const float *)block + 8 * i);
        } else if (type == DW_Q8_0) {
            const __m256i q = _mm256_cvtepi8_epi32(_mm_loadu_si64(((const dw_q8_0 *)block)->q + 8 * i));
            w[i] = _mm256_mul_ps(_mm256_broadcast_ss(scale), _mm256_cvtepi32_ps(q));
        } else {
            const __m128i narrow = _mm_loadu_si128((const __m128i *)block + i);
            w[i] = type == DW_F16 ? _mm256_cvtph_ps(narrow)
                                  : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
        }
    }
}

/* The last numbers (less than a block) of a row of a type without scales, +0 behind them. */
static void widen_tail(float w[BLOCK], dw_type type, const char *block, int64_t numbers)
{
    char whole[4 * BLOCK] = {0};
    __m256 v[4];
    memcpy(whole, block, (size_t)(numbers * dw_piece_bytes(type) / BLOCK));
    widen(v, type, whole, NULL);
    for (int i = 0; i < 4; i++) _mm256_storeu_ps(w + 8 * i, v[i]);
}

/* Four dot products from their lanes, added in halves. */
INLINE __m128 add_in_halves(lanes a, lanes b, lanes c, lanes d)
{
    const __m256 a8 = _mm256_add_ps(a.low, a.high);
    const __m256 b8 = _mm256_add_ps(b.low, b.high);
    const __m256 c8 = _mm256_add_ps(c.low, c.high);
    const __m256 d8 = _mm256_add_ps(d.low, d.high);
    const __m256 ab = _mm256_add_ps(_mm256_permute2f128_ps(a8, b8, 0x20), _mm256_permute2f128_ps(a8, b8, 0x31));
    const __m256 cd = _mm256_add_ps(_mm256_permute2f128_ps(c8, d8, 0x20), _mm256_permute2f128_ps(c8, d8, 0x31));
    const __m256 two = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
    const __m256 one = _mm256_add_ps(two, _mm256_permute_ps(two, 0xb1)); /* a a c c, b b d d */
    return _mm_blend_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1), 0xa);
}

INLINE void add_products(lanes *sum, __m256 low, __m256 high, const float *x)
{
    sum->low = _mm256_fmadd_ps(low, _mm256_loadu_ps(x), sum->low);
    sum->high = _mm256_fmadd_ps(high, _mm256_loadu_ps(x + 8), sum->high);
}

/* Adds the products of block b to the lanes of outs x rows dot products; w: the first row of weights. */
INLINE void add_block(lanes sum[OUTPUTS][DW_LINEAR_ROWS], dw_type type, int outs, int rows, const char *w, int64_t w_bytes,
                      const float *x, int64_t x_stride, int64_t b)
{
    float scale[OUTPUTS][2];
    const char *block = w + b * dw_piece_bytes(type);
    if (dw_has_scales(type)) {
#pragma GCC unroll 4
        for (int o = 0; o < outs; o++) widen_scale(scale[o], block + o * w_bytes);
        __asm__("" : "+m"(scale)); /* keeps them in memory */
    }
#pragma GCC unroll 4
    for (int o = 0; o < outs; o++) {
        __m256 weight[4];
        widen(weight, type, block + o * w_bytes, scale[o]);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            add_products(&sum[o][r], weight[0], weight[1], x + r * x_stride + b * BLOCK);
            add_products(&sum[o][r], weight[2], weight[3], x + r * x_stride + b * BLOCK + 16);
        }
    }
}

/* Fetches the share of block b of the weights behind these outs rows: they follow in memory and come next. */
INLINE void prefetch(dw_type type, int outs, const char *w, int64_t w_bytes, int64_t b)
{
    const int64_t share = outs * dw_piece_bytes(type);
#pragma GCC unroll 8
    for (int64_t i = 0; i < share; i += 64) _mm_prefetch(w + outs * w_bytes + PREFETCH + b * share + i, _MM_HINT_T0);
}

/* The end of rows that are not whole blocks: numbers from i on. */
INLINE void add_tail(lanes sum[OUTPUTS][DW_LINEAR_ROWS], dw_type type, int outs, int rows, const char *w, int64_t w_bytes,
                     const float *x, int64_t x_stride, int64_t i, int64_t inputs)
{
#pragma GCC unroll 4
    for (int o = 0; o < outs; o++) {
        float weight[BLOCK];
        widen_tail(weight, type, w + o * w_bytes + i / BLOCK * dw_piece_bytes(type), inputs - i);
        for (int64_t t = 0; t < inputs - i; t += DW_LANES) {
            const __m256 low = _mm256_loadu_ps(weight + t);
            const __m256 high = _mm256_loadu_ps(weight + t + 8);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) add_products(&sum[o][r], low, high, x + r * x_stride + i + t);
        }
    }
}

/* y[r * y_stride + o] of outs (1, 2 or 4) outputs from w on; the loops over o and r unroll into registers. */
INLINE void linear_some(dw_type type, int outs, int rows, float *y, int64_t y_stride, const char *w, int64_t w_bytes,
                        const float *x, int64_t x_stride, int64_t inputs)
{
    lanes sum[OUTPUTS][DW_LINEAR_ROWS];
#pragma GCC unroll 4
    for (int o = 0; o < OUTPUTS; o++) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) sum[o][r] = (lanes){_mm256_setzero_ps(), _mm256_setzero_ps()};
    }
    for (int64_t b = 0; b < inputs / BLOCK; b++) {
        prefetch(type, outs, w, w_bytes, b);
        add_block(sum, type, outs, rows, w, w_bytes, x, x_stride, b);
    }
    if (inputs % BLOCK != 0) add_tail(sum, type, outs, rows, w, w_bytes, x, x_stride, inputs / BLOCK * BLOCK, inputs);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        const __m128 dot = add_in_halves(sum[0][r], sum[1][r], sum[2][r], sum[3][r]);
        if (outs == 4) _mm_storeu_ps(y + r * y_stride, dot);
        if (outs == 2) _mm_storel_pi((__m64 *)(y + r * y_stride), dot);
        if (outs == 1) _mm_store_ss(y + r * y_stride, dot);
    }
}

/* outs outputs at a time, then one at a time. */
INLINE void linear_rows(dw_type type, int outs, int rows, float *y, int64_t y_stride, const char *w, int64_t outputs,
                        const float *x, int64_t x_stride, int64_t inputs)
{
    const int64_t w_bytes = dw_row_bytes(type, inputs);
    int64_t o = 0;
    for (; o + outs <= outputs; o += outs) {
        linear_some(type, outs, rows, y + o, y_stride, w + o * w_bytes, w_bytes, x, x_stride, inputs);
    }
    for (; o < outputs; o++) linear_some(type, 1, rows, y + o, y_stride, w + o * w_bytes, w_bytes, x, x_stride, inputs);
}

INLINE void linear(dw_type type, float *y, int64_t y_stride, const void *w, int64_t outputs, const float *x, int64_t x_stride,
                   int rows, int64_t inputs)
{
    switch (rows) {
    case 1: linear_rows(type, 4, 1, y, y_stride, w, outputs, x, x_stride, inputs); break;
    case 2: linear_rows(type, 2, 2, y, y_stride, w, outputs, x, x_stride, inputs); break;
    case 3: linear_rows(type, 2, 3, y, y_stride, w, outputs, x, x_stride, inputs); break;
    default: linear_rows(type, 1, 4, y, y_stride, w, outputs, x, x_stride, inputs); break;
    }
}

INLINE void dequantize(float *out, dw_type type, const char *row, int64_t inputs)
{
    for (int64_t b = 0; b < inputs / BLOCK; b++) {
        const char *block = row + b * dw_piece_bytes(type);
        float scale[2] = {0};
        __m256 w[4];
        _mm_prefetch(block + PREFETCH, _MM_HINT_T0);
        if (dw_has_scales(type)) widen_scale(scale, block);
        widen(w, type, block, scale);
        for (int i = 0; i < 4; i++) _mm256_storeu_ps(out + b * BLOCK + 8 * i, w[i]);
    }
    if (inputs % BLOCK != 0) {
        const int64_t whole = inputs / BLOCK;
        float tail[BLOCK];
        widen_tail(tail, type, row + whole * dw_piece_bytes(type), inputs - whole * BLOCK);
        memcpy(out + whole * BLOCK, tail, (size_t)(dw_padded(inputs) - whole * BLOCK) * sizeof(float));
    }
}

#define DEFINE_SLOTS(TYPE, type)                                                                                               \
    void dw_linear_##type##_avx2(float *y, int64_t y_stride, const void *w, int64_t outputs, const float *x, int64_t x_stride, \
                                 int rows, int64_t inputs)                                                                     \
    {                                                                                                                          \
        linear(TYPE, y, y_stride, w, outputs, x, x_stride, rows, inputs);                                                      \
    }                                                                                                                          \
    void dw_dequantize_##type##_avx2(float *out, const void *row, int64_t inputs)                                              \
    {                                                                                                                          \
        dequantize(out, TYPE, row, inputs);                                                                                    \
    }

DEFINE_SLOTS(DW_F32, f32)
DEFINE_SLOTS(DW_F16, f16)
DEFINE_SLOTS(DW_BF16, bf16)
DEFINE_SLOTS(DW_Q8_0, q8_0)
DEFINE_SLOTS(DW_Q4_1, q4_1)

/* Eight lanes of every dot product of a group. */
typedef __m256 group_lanes[GROUP_ROWS][GROUP_OUTPUTS];

/* Adds the products of `numbers` inputs to eight lanes of outs (1 or TILE_OUTPUTS) x rows (1..TILE_ROWS) dot products.
   lane: [rows][GROUP_OUTPUTS]; w and x point at the first of these lanes. */
INLINE void add_lanes(__m256 *lane, int outs, int rows, const float *w, int64_t w_stride, const float *x,
                      int64_t x_stride, int64_t numbers)
{
    __m256 sum[TILE_ROWS][TILE_OUTPUTS];
#pragma GCC unroll 3
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int o = 0; o < outs; o++) sum[r][o] = lane[r * GROUP_OUTPUTS + o];
    }
    for (int64_t i = 0; i < numbers; i += DW_LANES) {
        __m256 v[TILE_ROWS];
#pragma GCC unroll 3
        for (int r = 0; r < rows; r++) v[r] = _mm256_loadu_ps(x + r * x_stride + i);
#pragma GCC unroll 4
        for (int o = 0; o < outs; o++) {
            const __m256 weight = _mm256_loadu_ps(w + o * w_stride + i);
#pragma GCC unroll 3
            for (int r = 0; r < rows; r++) sum[r][o] = _mm256_fmadd_ps(weight, v[r], sum[r][o]);
        }
    }
#pragma GCC unroll 3
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 4
        for (int o = 0; o < outs; o++) lane[r * GROUP_OUTPUTS + o] = sum[r][o];
    }
}

/* Lanes 0-7, then 8-15: the second pass finds the numbers in the L1 cache. */
INLINE void add_tile(group_lanes *low_high, int64_t r, int64_t o, int outs, int rows, const float *w, int64_t w_stride,
                     const float *x, int64_t x_stride, int64_t numbers)
{
    for (int h = 0; h < 2; h++) {
        add_lanes(&low_high[h][r][o], outs, rows, w + o * w_stride + 8 * h, w_stride, x + r * x_stride + 8 * h, x_stride,
                  numbers);
    }
}

INLINE void add_tile_rows(group_lanes *low_high, int64_t rows, int64_t o, int outs, const float *w, int64_t w_stride,
                          const float *x, int64_t x_stride, int64_t numbers)
{
    int64_t r = 0;
    for (; r + TILE_ROWS <= rows; r += TILE_ROWS) {
        add_tile(low_high, r, o, outs, TILE_ROWS, w, w_stride, x, x_stride, numbers);
    }
    if (rows - r == 2) add_tile(low_high, r, o, outs, 2, w, w_stride, x, x_stride, numbers);
    if (rows - r == 1) add_tile(low_high, r, o, outs, 1, w, w_stride, x, x_stride, numbers);
}

/* At most GROUP_OUTPUTS x GROUP_ROWS dot products, piece after piece of the inputs. */
static void tile_group(float *y, int64_t y_stride, const float *w, int64_t w_stride, int64_t outputs, const float *x,
                       int64_t x_stride, int64_t rows, int64_t padded)
{
    group_lanes low_high[2] = {0};
    for (int64_t i = 0; i < padded; i += GROUP_INPUTS) {
        const int64_t numbers = padded - i < GROUP_INPUTS ? padded - i : GROUP_INPUTS;
        int64_t o = 0;
        for (; o + TILE_OUTPUTS <= outputs; o += TILE_OUTPUTS) {
            add_tile_rows(low_high, rows, o, TILE_OUTPUTS, w + i, w_stride, x + i, x_stride, numbers);
        }
        for (; o < outputs; o++) add_tile_rows(low_high, rows, o, 1, w + i, w_stride, x + i, x_stride, numbers);
    }
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t o = 0; o < outputs; o += 4) {
            lanes sum[4];
            float dot[4];
            for (int i = 0; i < 4; i++) sum[i] = (lanes){low_high[0][r][o + i], low_high[1][r][o + i]};
            _mm_storeu_ps(dot, add_in_halves(sum[0], sum[1], sum[2], sum[3]));
            for (int64_t i = 0; i < 4 && o + i < outputs; i++) y[r * y_stride + o + i] = dot[i];
        }
    }
}

void dw_linear_tile_avx2(float *y, int64_t y_stride, const float *w, int64_t w_stride, int64_t outputs, const float *x,
                         int64_t x_stride, int64_t rows, int64_t inputs)
{
    for (int64_t r = 0; r < rows; r += GROUP_ROWS) {
        const int64_t group_rows = rows - r < GROUP_ROWS ? rows - r : GROUP_ROWS;
        for (int64_t o = 0; o < outputs; o += GROUP_OUTPUTS) {
            const int64_t group_outputs = outputs - o < GROUP_OUTPUTS ? outputs - o : GROUP_OUTPUTS;
            tile_group(y + r * y_stride + o, y_stride, w + o * w_stride, w_stride, group_outputs, x + r * x_stride, x_stride,
                       group_rows, dw_padded(inputs));
        }
    }
}

#define DEFINE_FALLBACK(type)                                                                                                  \
    void dw_linear_##type##_avx2(float *y, int64_t y_stride, const void *w, int64_t outputs, const float *x,                   \
                                 int64_t x_stride, int rows, int64_t inputs)                                                   \
    {                                                                                                                          \
        dw_linear_##type##_scalar(y, y_stride, w, outputs, x, x_stride, rows, inputs);                                         \
    }                                                                                                                          \
    void dw_dequantize_##type##_avx2(float *out, const void *row, int64_t inputs)                                              \
    {                                                                                                                          \
        dw_dequantize_##type##_scalar(out, row, inputs);                                                                       \
    }
DEFINE_FALLBACK(q4_0)
DEFINE_FALLBACK(q5_0)
DEFINE_FALLBACK(q5_1)
DEFINE_FALLBACK(q2_k)
DEFINE_FALLBACK(q3_k)
DEFINE_FALLBACK(q4_k)
DEFINE_FALLBACK(q5_k)
DEFINE_FALLBACK(q6_k)
DEFINE_FALLBACK(iq4_nl)
DEFINE_FALLBACK(iq4_xs)
