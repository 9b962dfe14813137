/* Linear layers on numbers and blocks of 32 with AVX2. */
#include "kernels/linear_avx2.h"

DEFINE_SLOTS(F32, f32, avx2)
DEFINE_SLOTS(F16, f16, avx2)
DEFINE_SLOTS(BF16, bf16, avx2)
DEFINE_SLOTS(Q4_0, q4_0, avx2)
DEFINE_SLOTS(Q4_1, q4_1, avx2)
DEFINE_SLOTS(Q5_0, q5_0, avx2)
DEFINE_SLOTS(Q5_1, q5_1, avx2)
DEFINE_SLOTS(Q8_0, q8_0, avx2)
DEFINE_SLOTS(IQ4_NL, iq4_nl, avx2)
