/* Private to kernels/: the blocks in which GGUF stores quantised weights, as they lie in the file. `half` fields are binary16
   bits. Their numbers are spelled out by kernels/widen_scalar.c. */
#ifndef DW_KERNELS_BLOCKS_H
#define DW_KERNELS_BLOCKS_H

#include <stdint.h>

#include "kernels/types.h"

/* ---- blocks of 32 weights ----
   q[i] holds weight i in its low four bits and weight i + 16 in the high ones. */

/* d * (q - 8); as dw_iq4_nl: d * (q-th of DW_IQ4_VALUES) */
typedef struct {
    uint16_t d; /* half */
    uint8_t q[16];
} dw_q4_0;
typedef dw_q4_0 dw_iq4_nl;

/* d * q + m */
typedef struct {
    uint16_t d;
    uint16_t m;
    uint8_t q[16];
} dw_q4_1;

/* d * (q - 16) */
typedef struct {
    uint16_t d;
    uint8_t high[4]; /* bit 4 of weight i is bit i of these 32 */
    uint8_t q[16];
} dw_q5_0;

/* d * q + m */
typedef struct {
    uint16_t d;
    uint16_t m;
    uint8_t high[4];
    uint8_t q[16];
} dw_q5_1;

/* d * q */
typedef struct {
    uint16_t d;
    int8_t q[32];
} dw_q8_0;

/* ---- blocks of 256 weights, in parts of 16 or 32 with a scale of their own (and a minimum) ---- */

/* (d * scale) * q - m * minimum */
typedef struct {
    uint8_t scales[16]; /* part i / 16: scale in the low four bits, minimum in the high ones */
    uint8_t q[64];      /* two bits each: weight 128 n + 32 j + l in bits 2 j of q[32 n + l] */
    uint16_t d;
    uint16_t m;
} dw_q2_k;

/* (d * (scale - 32)) * (q - 4) */
typedef struct {
    uint8_t high[32];   /* bit 2 of weight 32 j + l, inverted: bit j of high[l] */
    uint8_t q[64];      /* bits 0 and 1, as in dw_q2_k */
    uint8_t scales[12]; /* 16 scales of six bits: four low bits of s in the nibbles of 0..7, two high bits of s in 8 + s % 4 */
    uint16_t d;
} dw_q3_k;

/* (d * scale) * q - m * minimum */
typedef struct {
    uint16_t d;
    uint16_t m;
    uint8_t scales[12]; /* eight scales and eight minima of six bits: those of parts 0..3 whole in 0..3 and 4..7, those of
                           4..7 in the nibbles of 8..11 and the highest bits of 0..7 */
    uint8_t q[128];     /* four bits each: weight 64 n + l in the low bits of q[32 n + l], 64 n + 32 + l in the high ones */
} dw_q4_k;

/* (d * scale) * q - m * minimum */
typedef struct {
    uint16_t d;
    uint16_t m;
    uint8_t scales[12]; /* as in dw_q4_k */
    uint8_t high[32];   /* bit 4 of weight 32 j + l: bit j of high[l] */
    uint8_t q[128];     /* bits 0 to 3, as in dw_q4_k */
} dw_q5_k;

/* (d * scale) * (q - 32) */
typedef struct {
    uint8_t q[128];    /* bits 0 to 3: weight 128 n + l in the low bits of q[64 n + l], 128 n + 64 + l in the high ones */
    uint8_t high[64];  /* bits 4 and 5: weight 128 n + 32 j + l in bits 2 j of high[32 n + l] */
    int8_t scales[16]; /* of part i / 16 */
    uint16_t d;
} dw_q6_k;

/* (d * (scale - 32)) * (q-th of DW_IQ4_VALUES) */
typedef struct {
    uint16_t d;
    uint16_t scales_high;  /* bits 4 and 5 of scale s in bits 2 s */
    uint8_t scales_low[4]; /* bits 0 to 3 of scale s in nibble s */
    uint8_t q[128];        /* part s (32 weights) in 16 s .. 16 s + 15, as the blocks of 32 */
} dw_iq4_xs;

_Static_assert(sizeof(dw_q4_0) == 18 && sizeof(dw_q4_1) == 20 && sizeof(dw_q5_0) == 22 && sizeof(dw_q5_1) == 24 &&
                   sizeof(dw_q8_0) == 34 && sizeof(dw_q2_k) == 84 && sizeof(dw_q3_k) == 110 && sizeof(dw_q4_k) == 144 &&
                   sizeof(dw_q5_k) == 176 && sizeof(dw_q6_k) == 210 && sizeof(dw_iq4_xs) == 136,
               "blocks as they lie in the file");

/* The sixteen steps of IQ4_NL and IQ4_XS. */
#define DW_IQ4_VALUES -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113

#endif
