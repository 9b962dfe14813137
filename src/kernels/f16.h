/* Half precision (binary16) and bfloat16, one number at a time, with the bits of the F16C instructions: widening is exact,
   narrowing rounds to nearest even, signalling NaNs turn quiet. */
#ifndef DW_KERNELS_F16_H
#define DW_KERNELS_F16_H

#include <stdint.h>
#include <string.h>

static inline float dw_float_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t dw_bits_of_float(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float dw_f32_of_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t exponent = half >> 10 & 0x1fu;
    const uint32_t fraction = half & 0x3ffu;
    if (exponent == 0) return dw_float_of_bits(sign | dw_bits_of_float((float)fraction * 0x1p-24f));
    if (exponent == 31) return dw_float_of_bits(sign | 0x7f800000u | (fraction != 0 ? 0x400000u | fraction << 13 : 0));
    return dw_float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

static inline uint16_t dw_f16_of_f32(float f)
{
    const uint32_t bits = dw_bits_of_float(f);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t size = bits & 0x7fffffffu;
    uint32_t half;
    if (size > 0x7f800000u) {
        half = 0x7e00u | (size >> 13 & 0x1ffu);
    } else if (size >= 0x477ff000u) { /* 65520 and more */
        half = 0x7c00u;
    } else if (size < 0x38800000u) { /* below 2^-14: a float in [1/2, 1) ends where these halves end, at 2^-24 */
        half = dw_bits_of_float(dw_float_of_bits(size) + 0.5f) - 0x3f000000u;
    } else {
        half = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
    }
    return (uint16_t)(sign | half);
}

static inline float dw_f32_of_bf16(uint16_t bits)
{
    return dw_float_of_bits((uint32_t)bits << 16);
}

static inline uint16_t dw_bf16_of_f32(float f)
{
    const uint32_t bits = dw_bits_of_float(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#endif
