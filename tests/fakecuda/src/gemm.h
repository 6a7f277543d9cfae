/* Products of matrices as the fakes compute them: for real, and slowly. */
#ifndef GEMM_H
#define GEMM_H

#include "fake.h"

enum number_type { F64, F32, BF16, F16, E4M3 };

/* element is a number of a matrix, product transposed(a) * b of n * n matrices, column by
   column; those of more than 512 are left as they are. */
double element(enum number_type t, const void *at, size_t i);
void product(enum number_type t, const void *a, const void *b, void *c, size_t n);

#endif
