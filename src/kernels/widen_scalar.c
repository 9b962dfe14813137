/* The definition of the quantised types in portable C: the float of every number of a block, with the roundings of ggml.
   Steps such as d * scale are exact (11 + 6 bits); where a product or a sum is not, it is rounded to float by itself. */
#include "kernels/f16.h"
#include "kernels/linear_kernels.h"

static const int8_t iq4_values[16] = {DW_IQ4_VALUES};

/* Four bits of weight i of a block of 32. */
static int nibble(const uint8_t q[16], int i)
{
    return i < 16 ? q[i] & 15 : q[i - 16] >> 4;
}

static int bit(const uint8_t *bits, int i)
{
    return bits[i / 8] >> i % 8 & 1;
}

static void widen_q4_0(float *out, const dw_q4_0 *block)
{
    const float d = dw_f32_of_f16(block->d);
    for (int i = 0; i < 32; i++) out[i] = d * (float)(nibble(block->q, i) - 8);
}

static void widen_q4_1(float *out, const dw_q4_1 *block)
{
    const float d = dw_f32_of_f16(block->d);
    const float m = dw_f32_of_f16(block->m);
    for (int i = 0; i < 32; i++) out[i] = d * (float)nibble(block->q, i) + m;
}

static void widen_q5_0(float *out, const dw_q5_0 *block)
{
    const float d = dw_f32_of_f16(block->d);
    for (int i = 0; i < 32; i++) out[i] = d * (float)((nibble(block->q, i) | bit(block->high, i) << 4) - 16);
}

static void widen_q5_1(float *out, const dw_q5_1 *block)
{
    const float d = dw_f32_of_f16(block->d);
    const float m = dw_f32_of_f16(block->m);
    for (int i = 0; i < 32; i++) out[i] = d * (float)(nibble(block->q, i) | bit(block->high, i) << 4) + m;
}

static void widen_q8_0(float *out, const dw_q8_0 *block)
{
    const float d = dw_f32_of_f16(block->d);
    for (int i = 0; i < 32; i++) out[i] = d * (float)block->q[i];
}

static void widen_iq4_nl(float *out, const dw_iq4_nl *block)
{
    const float d = dw_f32_of_f16(block->d);
    for (int i = 0; i < 32; i++) out[i] = d * (float)iq4_values[nibble(block->q, i)];
}

/* Two bits of weight i of a block of 256, where 128 weights share 32 bytes. */
static int two_bits(const uint8_t *q, int i)
{
    return q[i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3;
}

static void widen_q2_k(float *out, const dw_q2_k *block)
{
    const float d = dw_f32_of_f16(block->d);
    const float m = dw_f32_of_f16(block->m);
    for (int i = 0; i < 256; i++) {
        const float scale = d * (float)(block->scales[i / 16] & 15);
        const float minimum = m * (float)(block->scales[i / 16] >> 4);
        out[i] = scale * (float)two_bits(block->q, i) - minimum;
    }
}

static void widen_q3_k(float *out, const dw_q3_k *block)
{
    const float d = dw_f32_of_f16(block->d);
    for (int i = 0; i < 256; i++) {
        const int part = i / 16;
        const int low = block->scales[part % 8] >> part / 8 * 4 & 15;
        const int high = block->scales[8 + part % 4] >> part / 4 * 2 & 3;
        const float scale = d * (float)((low | high << 4) - 32);
        const int q = two_bits(block->q, i) | (block->high[i % 32] >> i / 32 & 1) << 2;
        out[i] = scale * (float)(q - 4);
    }
}

/* Six bits of scale `part` (0..7) of Q4_K and Q5_K, or of minimum part - 8 from 8 on. */
static int six_bits(const uint8_t scales[12], int part)
{
    const int minimum = part / 8;
    const int k = part % 4;
    if (part % 8 < 4) return scales[4 * minimum + k] & 63;
    return (scales[8 + k] >> 4 * minimum & 15) | (scales[4 * minimum + k] >> 6) << 4;
}

/* Four bits of weight i of a block of 256, where 64 weights share 32 bytes. */
static int four_bits(const uint8_t q[128], int i)
{
    return q[i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15;
}

static void widen_q4_k(float *out, const dw_q4_k *block)
{
    const float d = dw_f32_of_f16(block->d);
    const float m = dw_f32_of_f16(block->m);
    for (int i = 0; i < 256; i++) {
        const float scale = d * (float)six_bits(block->scales, i / 32);
        const float minimum = m * (float)six_bits(block->scales, 8 + i / 32);
        out[i] = scale * (float)four_bits(block->q, i) - minimum;
    }
}

static void widen_q5_k(float *out, const dw_q5_k *block)
{
    const float d = dw_f32_of_f16(block->d);
    const float m = dw_f32_of_f16(block->m);
    for (int i = 0; i < 256; i++) {
        const float scale = d * (float)six_bits(block->scales, i / 32);
        const float minimum = m * (float)six_bits(block->scales, 8 + i / 32);
        const int q = four_bits(block->q, i) | (block->high[i % 32] >> i / 32 & 1) << 4;
        out[i] = scale * (float)q - minimum;
    }
}

static void widen_q6_k(float *out, const dw_q6_k *block)
{
    const float d = dw_f32_of_f16(block->d);
    for (int i = 0; i < 256; i++) {
        const float scale = d * (float)block->scales[i / 16];
        const int low = block->q[i / 128 * 64 + i % 64] >> i / 64 % 2 * 4 & 15;
        out[i] = scale * (float)((low | two_bits(block->high, i) << 4) - 32);
    }
}

static void widen_iq4_xs(float *out, const dw_iq4_xs *block)
{
    const float d = dw_f32_of_f16(block->d);
    for (int i = 0; i < 256; i++) {
        const int64_t part = i / 32;
        const int low = block->scales_low[part / 2] >> part % 2 * 4 & 15;
        const int high = block->scales_high >> part * 2 & 3;
        const float scale = d * (float)((low | high << 4) - 32);
        out[i] = scale * (float)iq4_values[nibble(block->q + part * 16, i % 32)];
    }
}

void dw_widen_block_scalar(float *out, dw_type type, const void *block)
{
    switch (type) {
    case DW_Q4_0: widen_q4_0(out, block); break;
    case DW_Q4_1: widen_q4_1(out, block); break;
    case DW_Q5_0: widen_q5_0(out, block); break;
    case DW_Q5_1: widen_q5_1(out, block); break;
    case DW_Q8_0: widen_q8_0(out, block); break;
    case DW_Q2_K: widen_q2_k(out, block); break;
    case DW_Q3_K: widen_q3_k(out, block); break;
    case DW_Q4_K: widen_q4_k(out, block); break;
    case DW_Q5_K: widen_q5_k(out, block); break;
    case DW_Q6_K: widen_q6_k(out, block); break;
    case DW_IQ4_NL: widen_iq4_nl(out, block); break;
    case DW_IQ4_XS: widen_iq4_xs(out, block); break;
    case DW_F32: out[0] = *(const float *)block; break;
    case DW_F16: out[0] = dw_f32_of_f16(*(const uint16_t *)block); break;
    case DW_BF16: out[0] = dw_f32_of_bf16(*(const uint16_t *)block); break;
    case DW_TYPE_COUNT: break;
    }
}
