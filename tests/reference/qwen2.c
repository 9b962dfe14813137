/* Qwen2.5-Coder-0.5B-Instruct (Q4_K_M: Q5_0, Q6_K, Q8_0, Q4_K) against float32 programs of others:
   ../shared/reference/README.md, gguf/ and real/. */
#include <criterion/criterion.h>

#include "tests/shared/parity.h"
#include "tests/shared/reference.h"

/* Largest errors of a logit. They are the same on every machine (promise P1), so that little room is needed.
   f32 cache: the files give logits to 1e-4, which is an error of 5e-5, and two float32 evaluations of the reference are up to
   1.5e-5 apart; measured: 5.5e-5. f16 cache: every key and value is rounded by up to 2^-11 of it, and the largest keys of this
   model exceed 300; measured: 1.26e-2. */
#define TOLERANCE_F32 1e-4
#define TOLERANCE_F16 1.5e-2

static parity_model qwen;

static void load(void)
{
    parity_load(&qwen, reference_qwen05());
}

static void unload(void)
{
    parity_unload(&qwen);
}

TestSuite(qwen2, .init = load, .fini = unload);

Test(qwen2, ids_of_the_prompts_equal_the_reference)
{
    parity_expect_ids(&qwen, "real/qwen05.json", 3);
    parity_expect_ids(&qwen, "gguf/qwen2.json", 3);
}

Test(qwen2, long_runs_with_an_f32_cache_equal_the_float32_reference_but_for_its_noise)
{
    parity_expect_runs(&qwen, "real/qwen05.json", 3, DW_F32, TOLERANCE_F32);
}

Test(qwen2, short_runs_with_an_f32_cache_equal_the_float32_reference_but_for_its_noise)
{
    parity_expect_runs(&qwen, "gguf/qwen2.json", 3, DW_F32, TOLERANCE_F32);
}

Test(qwen2, long_runs_with_the_default_f16_cache_are_close_to_the_float32_reference)
{
    parity_expect_runs(&qwen, "real/qwen05.json", 3, DW_F16, TOLERANCE_F16);
}

Test(qwen2, short_runs_with_the_default_f16_cache_are_close_to_the_float32_reference)
{
    parity_expect_runs(&qwen, "gguf/qwen2.json", 3, DW_F16, TOLERANCE_F16);
}
