/* Elementary functions in double whose bits are the same on every machine (those of libm are not), good to a few units in the
   last place. For set-up work and sampling: rotary angles, random numbers. Not for inner loops. */
#ifndef DW_BASE_PRECISE_H
#define DW_BASE_PRECISE_H

double dw_log(double x);                                 /* natural logarithm, x > 0 and finite */
double dw_exp(double x);                                 /* |x| <= 700 */
double dw_pow(double base, double exponent);             /* base > 0, |exponent * ln base| <= 700 */
void dw_sin_cos(double x, double *sine, double *cosine); /* 0 <= x <= 2^31 */

#endif
