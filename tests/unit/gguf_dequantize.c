/* Widening of stored numbers equals the Python package gguf bit for bit, in every instruction set that runs here. */
#include <criterion/criterion.h>
#include <string.h>

#include "kernels/kernels.h"
#include "model/gguf.h"
#include "tests/unit/gguf_dequantized.h"

enum { MAX_NUMBERS = 256 };

static void check(dw_type type, const uint8_t *stored, size_t stored_bytes, const uint32_t *expected, size_t expected_bytes)
{
    static const char *const sets[] = {"scalar", "avx2", "avx512"};
    const int64_t count = (int64_t)(expected_bytes / sizeof *expected);
    cr_assert(count <= MAX_NUMBERS && count % DW_LANES == 0 && dw_row_bytes(type, count) == (int64_t)stored_bytes);
    for (size_t s = 0; s < sizeof sets / sizeof sets[0]; s++) {
        const dw_kernels *kernels = dw_kernels_named(sets[s]);
        float row[MAX_NUMBERS];
        if (kernels == NULL) {
            cr_assert(s > 0, "the scalar kernels must run everywhere");
            continue;
        }
        memset(row, 0xFF, sizeof row);
        kernels->dequantize[type](row, stored, count);
        for (int64_t i = 0; i < count; i++) {
            uint32_t bits;
            memcpy(&bits, &row[i], sizeof bits);
            cr_assert(bits == expected[i], "%s, %s: number %lld is %08x, expected %08x", dw_types[type].name, sets[s],
                      (long long)i, bits, expected[i]);
        }
    }
}

#define EQUALS_GGUF_PY(TYPE, type)                                                                                             \
    Test(gguf_dequantize, type##_equals_gguf_py)                                                                               \
    {                                                                                                                          \
        check(TYPE, type##_bytes, sizeof type##_bytes, type##_floats, sizeof type##_floats);                                   \
    }

EQUALS_GGUF_PY(DW_F16, f16)
EQUALS_GGUF_PY(DW_BF16, bf16)
EQUALS_GGUF_PY(DW_Q4_0, q4_0)
EQUALS_GGUF_PY(DW_Q4_1, q4_1)
EQUALS_GGUF_PY(DW_Q5_0, q5_0)
EQUALS_GGUF_PY(DW_Q5_1, q5_1)
EQUALS_GGUF_PY(DW_Q8_0, q8_0)
EQUALS_GGUF_PY(DW_Q2_K, q2_k)
EQUALS_GGUF_PY(DW_Q3_K, q3_k)
EQUALS_GGUF_PY(DW_Q4_K, q4_k)
EQUALS_GGUF_PY(DW_Q5_K, q5_k)
EQUALS_GGUF_PY(DW_Q6_K, q6_k)
EQUALS_GGUF_PY(DW_IQ4_NL, iq4_nl)
EQUALS_GGUF_PY(DW_IQ4_XS, iq4_xs)

/* Adds bits * (2 i + 1), modulo 2^64, of numbers first.. of a tensor. */
static uint64_t checksum(const float *x, int64_t count, int64_t first)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        sum += bits * (2 * (uint64_t)(first + i) + 1);
    }
    return sum;
}

/* The bytes of make_dequantized.py: a linear congruential generator, halves made finite. */
static void generate_blocks(uint8_t *out, int blocks, int bytes, int d, int m)
{
    uint64_t state = 1;
    for (int i = 0; i < blocks * bytes; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        out[i] = (uint8_t)(state >> 56);
    }
    for (int b = 0; b < blocks; b++) {
        out[b * bytes + d + 1] &= 0xBF;
        out[b * bytes + m + 1] &= 0xBF;
    }
}

Test(gguf_dequantize, four_hundred_blocks_of_every_quantised_type_equal_gguf_py_on_every_isa)
{
    enum { BLOCKS = 400 };
    static const char *const sets[] = {"scalar", "avx2", "avx512"};
    static uint8_t stored[BLOCKS * MAX_NUMBERS];
    static float row[BLOCKS * MAX_NUMBERS];
    cr_assert(sizeof many_blocks / sizeof many_blocks[0] == DW_TYPE_COUNT - 3);
    for (size_t t = 0; t < sizeof many_blocks / sizeof many_blocks[0]; t++) {
        const dw_type type = many_blocks[t].type;
        const int64_t count = (int64_t)BLOCKS * dw_types[type].elements;
        cr_assert(many_blocks[t].bytes == dw_types[type].bytes);
        generate_blocks(stored, BLOCKS, many_blocks[t].bytes, many_blocks[t].d, many_blocks[t].m);
        for (size_t s = 0; s < sizeof sets / sizeof sets[0]; s++) {
            const dw_kernels *kernels = dw_kernels_named(sets[s]);
            if (kernels == NULL) continue;
            memset(row, 0xFF, sizeof row);
            kernels->dequantize[type](row, stored, count);
            cr_expect(checksum(row, count, 0) == many_blocks[t].sum, "%s, %s", dw_types[type].name, sets[s]);
        }
    }
}

typedef struct {
    const char *name;
    dw_type type;
    int64_t outputs, inputs, rows; /* rows: of the checksum */
    uint64_t sum;                  /* from the Python package gguf 0.19.0 */
} known_tensor;

static void check_tensors(const char *path, const known_tensor *tensors, size_t count)
{
    enum { MAX_INPUTS = 4864 };
    float row[MAX_INPUTS];
    dw_gguf *file;
    dw_error err;
    cr_assert(dw_gguf_open(&file, path, DW_FILE_MAP, &err) == DW_OK, "%s (`make check` fetches the model)", err.message);
    for (size_t t = 0; t < count; t++) {
        uint64_t sum = 0;
        dw_matrix w;
        cr_assert(dw_tensors_matrix(dw_gguf_tensors_of(file), tensors[t].name, tensors[t].outputs, tensors[t].inputs, &w, NULL,
                                    &err) == DW_OK,
                  "%s", err.message);
        cr_assert(w.type == tensors[t].type, "%s", tensors[t].name);
        cr_assert(w.inputs <= MAX_INPUTS && tensors[t].rows <= w.outputs);
        for (int64_t r = 0; r < tensors[t].rows; r++) {
            dw_kernels_scalar.dequantize[w.type](row, (const uint8_t *)w.data + r * dw_row_bytes(w.type, w.inputs), w.inputs);
            sum += checksum(row, w.inputs, r * w.inputs);
        }
        cr_expect(sum == tensors[t].sum, "%s: %016llx", tensors[t].name, (unsigned long long)sum);
    }
    dw_gguf_close(file);
}

Test(gguf_dequantize, smollm2_tensors_equal_gguf_py)
{
    static const known_tensor tensors[] = {
        {"token_embd.weight", DW_Q8_0, 49152, 576, 1000, 0xa185d6d9ea3ff4c0},
        {"blk.3.attn_v.weight", DW_Q4_1, 192, 576, 192, 0x6587888ce5314e00},
        {"blk.29.ffn_down.weight", DW_Q4_1, 576, 1536, 576, 0x77afc6edc381ae00},
        {"output_norm.weight", DW_F32, 1, 576, 1, 0x144868d320000},
    };
    check_tensors("data/SmolLM2-135M-Instruct.Q4_1.gguf", tensors, sizeof tensors / sizeof tensors[0]);
}

Test(gguf_dequantize, qwen2_tensors_equal_gguf_py)
{
    static const known_tensor tensors[] = {
        {"token_embd.weight", DW_Q5_0, 151936, 896, 500, 0xfa514bdbb511d000},
        {"blk.0.attn_v.weight", DW_Q8_0, 128, 896, 128, 0x772cabd0f94af200},
        {"blk.0.ffn_down.weight", DW_Q6_K, 896, 4864, 200, 0x31975ad313d7f0a0},
        {"blk.11.ffn_down.weight", DW_Q4_K, 896, 4864, 200, 0x66c6e0d10cb3fba8},
        {"output.weight", DW_Q8_0, 151936, 896, 300, 0x1a69e7c21d9d32c0},
    };
    check_tensors("data/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf", tensors, sizeof tensors / sizeof tensors[0]);
}
