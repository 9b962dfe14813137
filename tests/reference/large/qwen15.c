/* Qwen2.5-Coder-1.5B-Instruct (Q4_K_M; head_dim 128, 12 heads over 2 KV heads) against a float32 program of others:
   ../shared/reference/README.md, real/. A gigabyte of weights: make check-large. */
#include <criterion/criterion.h>

#include "tests/shared/parity.h"
#include "tests/shared/reference.h"

/* Largest errors of a logit. f32 cache: the file gives logits to 1e-4, which is an error of 5e-5, and the noise of float32
   is added; measured: 5.3e-5. f16 cache; measured: 4.9e-3. */
#define TOLERANCE_F32 1e-4
#define TOLERANCE_F16 7e-3

static parity_model qwen;

static void load(void)
{
    parity_load(&qwen, reference_qwen15());
}

static void unload(void)
{
    parity_unload(&qwen);
}

TestSuite(qwen15, .init = load, .fini = unload);

Test(qwen15, ids_of_the_prompts_equal_the_reference)
{
    parity_expect_ids(&qwen, "real/qwen15.json", 2);
}

Test(qwen15, runs_with_an_f32_cache_equal_the_float32_reference_but_for_its_noise)
{
    parity_expect_runs(&qwen, "real/qwen15.json", 2, DW_F32, TOLERANCE_F32);
}

Test(qwen15, runs_with_the_default_f16_cache_are_close_to_the_float32_reference)
{
    parity_expect_runs(&qwen, "real/qwen15.json", 2, DW_F16, TOLERANCE_F16);
}
