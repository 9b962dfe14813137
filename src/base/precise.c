#include "base/precise.h"

#include <math.h> /* frexp and ldexp: exact */

#define LN2_HIGH 0x1.62e42fee00000p-1 /* 33 bits: n * LN2_HIGH is exact for |n| < 2^20 */
#define LN2_LOW 0x1.a39ef35793c76p-33
#define SQRT_HALF 0.70710678118654752440

double dw_log(double x)
{
    int exponent;
    double m = frexp(x, &exponent); /* [1/2, 1) */
    if (m < SQRT_HALF) {
        m *= 2.0;
        exponent -= 1;
    }
    /* ln m = 2 artanh(s) = 2 (s + s^3/3 + s^5/5 + ...), |s| <= 0.172 */
    const double s = (m - 1.0) / (m + 1.0);
    const double s2 = s * s;
    double sum = 0.0;
    for (int k = 23; k >= 3; k -= 2) sum = (sum + 1.0 / k) * s2;
    return exponent * LN2_HIGH + (2.0 * s + (2.0 * s * sum + exponent * LN2_LOW));
}

double dw_exp(double x)
{
    const double n = rint(x * 1.44269504088896340736);
    const double r = (x - n * LN2_HIGH) - n * LN2_LOW; /* |r| <= 0.347 */
    double sum = 1.0;
    for (int k = 14; k >= 1; k--) sum = 1.0 + sum * r / k;
    return ldexp(sum, (int)n);
}

double dw_pow(double base, double exponent)
{
    return dw_exp(exponent * dw_log(base));
}

void dw_sin_cos(double x, double *sine, double *cosine)
{
    /* pi/2 in three parts; the first two have 33 bits, so that their multiples below 2^20 are exact. */
    static const double half_pi[3] = {0x1.921fb54400000p+0, 0x1.0b4611a600000p-34, 0x1.3198a2e037073p-69};
    const double n = rint(x * 0.63661977236758134308);
    const double r = ((x - n * half_pi[0]) - n * half_pi[1]) - n * half_pi[2]; /* |r| <= pi/4 */
    const double r2 = r * r;
    double s = 1.0;
    double c = 1.0;
    for (int k = 18; k >= 2; k -= 2) s = 1.0 - s * r2 / (k * (k + 1));
    for (int k = 17; k >= 1; k -= 2) c = 1.0 - c * r2 / (k * (k + 1));
    s *= r;
    switch ((long long)n & 3) {
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s; break;
    }
}
