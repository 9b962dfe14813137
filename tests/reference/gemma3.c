/* Gemma 3 270M (Q4_K_M) against transformers in float32 on the expanded weights: data/gguf/gemma3.json, by make_gemma3.py. The
   longest prompt passes the window of 512. */
#include <criterion/criterion.h>

#include "tests/shared/parity.h"
#include "tests/shared/reference.h"

/* Largest errors of a logit. f32 cache: two float32 evaluations of the reference are up to 5.6e-5 apart, and logits reach 30;
   measured: 1.33e-4. f16 cache: every key and value is rounded by up to 2^-11 of it; measured: 2.1e-2. */
#define TOLERANCE_F32 2e-4
#define TOLERANCE_F16 3e-2

static parity_model gemma;

static void load(void)
{
    parity_load(&gemma, reference_gemma3());
}

static void unload(void)
{
    parity_unload(&gemma);
}

TestSuite(gemma3, .init = load, .fini = unload);

Test(gemma3, ids_of_the_prompts_equal_the_reference)
{
    parity_expect_ids(&gemma, "gguf/gemma3.json", 3);
}

Test(gemma3, runs_with_an_f32_cache_equal_the_float32_reference_but_for_its_noise)
{
    parity_expect_runs(&gemma, "gguf/gemma3.json", 3, DW_F32, TOLERANCE_F32);
}

Test(gemma3, runs_with_the_default_f16_cache_are_close_to_the_float32_reference)
{
    parity_expect_runs(&gemma, "gguf/gemma3.json", 3, DW_F16, TOLERANCE_F16);
}
