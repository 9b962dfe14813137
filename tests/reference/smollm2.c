/* SmolLM2-135M-Instruct (Q4_1) against float32 programs of others: ../shared/reference/README.md, gguf/ and real/. */
#include <criterion/criterion.h>

#include "tests/shared/parity.h"
#include "tests/shared/reference.h"

/* Largest errors of a logit. They are the same on every machine (promise P1), so that little room is needed.
   f32 cache: the files give logits to 1e-4, which is an error of 5e-5, and two float32 evaluations of the reference are up
   to 4.4e-5 apart: 1.4e-4 if the program is another such evaluation; measured: 6.6e-5. f16 cache: every key and value is
   rounded by up to 2^-11 of it; measured: 7.8e-3. */
#define TOLERANCE_F32 1.5e-4
#define TOLERANCE_F16 1e-2

static parity_model smollm2;

static void load(void)
{
    parity_load(&smollm2, reference_smollm2());
}

static void unload(void)
{
    parity_unload(&smollm2);
}

TestSuite(smollm2, .init = load, .fini = unload);

Test(smollm2, ids_of_the_prompts_equal_the_reference)
{
    parity_expect_ids(&smollm2, "real/smollm2.json", 3);
    parity_expect_ids(&smollm2, "gguf/smollm2.json", 3);
}

Test(smollm2, long_runs_with_an_f32_cache_equal_the_float32_reference_but_for_its_noise)
{
    parity_expect_runs(&smollm2, "real/smollm2.json", 3, DW_F32, TOLERANCE_F32);
}

Test(smollm2, short_runs_with_an_f32_cache_equal_the_float32_reference_but_for_its_noise)
{
    parity_expect_runs(&smollm2, "gguf/smollm2.json", 3, DW_F32, TOLERANCE_F32);
}

Test(smollm2, long_runs_with_the_default_f16_cache_are_close_to_the_float32_reference)
{
    parity_expect_runs(&smollm2, "real/smollm2.json", 3, DW_F16, TOLERANCE_F16);
}

Test(smollm2, short_runs_with_the_default_f16_cache_are_close_to_the_float32_reference)
{
    parity_expect_runs(&smollm2, "gguf/smollm2.json", 3, DW_F16, TOLERANCE_F16);
}
