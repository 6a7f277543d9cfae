/* Products of matrices in the fakes: real, but slow. */
#ifndef GEMM_H
#define GEMM_H

#include "fake.h"

enum number_type { F64, F32, BF16, F16, E4M3 };

/* element is a number of a matrix; product computes transposed(a) * b of n * n matrices in column
   order, but leaves results with n above 512 unchanged. */
double element(enum number_type t, const void *at, size_t i);
void product(enum number_type t, const void *a, const void *b, void *c, size_t n);

#endif
