#include <cpuid.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention_kernels.h"
#include "kernels/kernels.h"
#include "kernels/linear_kernels.h"
#include "kernels/math_kernels.h"
#include "kernels/screen_kernels.h"

#define LINEAR(TYPE, type, isa) [DW_##TYPE] = dw_linear_##type##_##isa,
#define DEQUANTIZE(TYPE, type, isa) [DW_##TYPE] = dw_dequantize_##type##_##isa,

/* The table of one instruction set; screen: that of the screen's scores. The KV cache has no quantised types: their slots of scores and values stay NULL. */
#define TABLE(isa, screen)                                                                                                     \
    {                                                                                                                          \
        .name = #isa, .linear = {DW_EACH_TYPE(LINEAR, isa)}, .dequantize = {DW_EACH_TYPE(DEQUANTIZE, isa)},                    \
        .linear_tile = dw_linear_tile_##isa, .exp2 = dw_exp2_##isa,                                                            \
        .activate = {[DW_SILU] = dw_silu_##isa, [DW_GELU] = dw_gelu_##isa, [DW_GELU_TANH] = dw_gelu_tanh_##isa},               \
        .scores = {[DW_F32] = dw_scores_f32_##isa, [DW_F16] = dw_scores_f16_##isa, [DW_BF16] = dw_scores_bf16_##isa},          \
        .weights = dw_weights_##isa,                                                                                           \
        .values = {[DW_F32] = dw_values_f32_##isa, [DW_F16] = dw_values_f16_##isa, [DW_BF16] = dw_values_bf16_##isa},          \
        .screen_query = dw_screen_query_##isa, .screen_scores = dw_screen_scores_##screen, .key_scores = dw_key_scores_##isa,  \
        .add_limbs = dw_add_limbs_##isa,                                                                                       \
    }

const dw_kernels dw_kernels_scalar = TABLE(scalar, scalar);
const dw_kernels dw_kernels_avx2 = TABLE(avx2, avx2);
const dw_kernels dw_kernels_avx512 = TABLE(avx512, avx512);
const dw_kernels dw_kernels_avx512vnni = TABLE(avx512, avx512vnni);

static const dw_kernels *const best_first[] = {&dw_kernels_avx512vnni, &dw_kernels_avx512, &dw_kernels_avx2,
                                               &dw_kernels_scalar};
enum { TABLES = sizeof best_first / sizeof best_first[0] };

/* clang, which checks these sources, knows no name for it. */
static int has_f16c(void)
{
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}

/* The compiler's run-time library also asks the operating system (XGETBV) whether it keeps the registers. */
static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static int has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static int runs_here(const dw_kernels *kernels)
{
    if (kernels == &dw_kernels_avx512vnni) return has_avx512() && __builtin_cpu_supports("avx512vnni");
    if (kernels == &dw_kernels_avx512) return has_avx512();
    if (kernels == &dw_kernels_avx2) return has_avx2();
    return 1;
}

/* Of the tables of one name the first that runs. */
const dw_kernels *dw_kernels_named(const char *name)
{
    for (int i = 0; i < TABLES; i++) {
        if (strcmp(best_first[i]->name, name) == 0 && runs_here(best_first[i])) return best_first[i];
    }
    return NULL;
}

const dw_kernels *dw_kernels_best(void)
{
    const char *name = getenv("DEWPOINT_ISA");
    if (name != NULL) return dw_kernels_named(name);
    for (int i = 0; i < TABLES; i++) {
        if (runs_here(best_first[i])) return best_first[i];
    }
    return NULL;
}
