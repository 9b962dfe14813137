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

#define CHECK(type, name) check(type, name##_bytes, sizeof name##_bytes, name##_floats, sizeof name##_floats)

Test(gguf_dequantize, q8_0_equals_gguf_py)
{
    CHECK(DW_Q8_0, q8_0);
}

Test(gguf_dequantize, q4_1_equals_gguf_py)
{
    CHECK(DW_Q4_1, q4_1);
}

Test(gguf_dequantize, f16_equals_gguf_py)
{
    CHECK(DW_F16, f16);
}

Test(gguf_dequantize, bf16_equals_gguf_py)
{
    CHECK(DW_BF16, bf16);
}

/* Sum over the numbers of the matrix of bits * (2 i + 1), modulo 2^64. */
static uint64_t checksum(const dw_matrix *w, int64_t rows)
{
    uint64_t sum = 0;
    uint64_t i = 0;
    float row[2048];
    cr_assert(w->inputs <= 2048 && rows <= w->outputs);
    for (int64_t r = 0; r < rows; r++) {
        dw_kernels_scalar.dequantize[w->type](row, (const uint8_t *)w->data + r * dw_row_bytes(w->type, w->inputs), w->inputs);
        for (int64_t c = 0; c < w->inputs; c++, i++) {
            uint32_t bits;
            memcpy(&bits, &row[c], sizeof bits);
            sum += bits * (2 * i + 1);
        }
    }
    return sum;
}

Test(gguf_dequantize, smollm2_tensors_equal_gguf_py)
{
    static const struct {
        const char *name;
        dw_type type;
        int64_t outputs, inputs, rows;
        uint64_t sum; /* from the Python package gguf 0.19.0 */
    } tensors[] = {
        {"token_embd.weight", DW_Q8_0, 49152, 576, 1000, 0xa185d6d9ea3ff4c0},
        {"blk.3.attn_v.weight", DW_Q4_1, 192, 576, 192, 0x6587888ce5314e00},
        {"blk.29.ffn_down.weight", DW_Q4_1, 576, 1536, 576, 0x77afc6edc381ae00},
        {"output_norm.weight", DW_F32, 1, 576, 1, 0x144868d320000},
    };
    const char *path = "data/SmolLM2-135M-Instruct.Q4_1.gguf";
    dw_gguf *file;
    dw_error err;
    cr_assert(dw_gguf_open(&file, path, &err) == DW_OK, "%s (`make check` fetches the model)", err.message);
    cr_expect(dw_gguf_tensors(file) == 272);
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        dw_matrix w;
        cr_assert(dw_gguf_matrix(file, tensors[i].name, tensors[i].outputs, tensors[i].inputs, &w, NULL, &err) == DW_OK, "%s",
                  err.message);
        cr_expect(w.type == tensors[i].type, "%s", tensors[i].name);
        cr_expect(checksum(&w, tensors[i].rows) == tensors[i].sum, "%s", tensors[i].name);
    }
    dw_gguf_close(file);
}
