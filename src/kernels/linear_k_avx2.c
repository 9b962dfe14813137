/* Linear layers on blocks of 256 with AVX2. */
#include "kernels/linear_avx2.h"

DEFINE_SLOTS(Q2_K, q2_k, avx2)
DEFINE_SLOTS(Q3_K, q3_k, avx2)
DEFINE_SLOTS(Q4_K, q4_k, avx2)
DEFINE_SLOTS(Q5_K, q5_k, avx2)
DEFINE_SLOTS(Q6_K, q6_k, avx2)
DEFINE_SLOTS(IQ4_XS, iq4_xs, avx2)
