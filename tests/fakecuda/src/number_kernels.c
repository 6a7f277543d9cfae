/* The kernels of numbers.cu, compiled for the host, and products of matrices instead of those of
   tiles.h, whose threads work together. */
#include "gemm.h"
#include "numbers.cu"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N(args, n) ARG(args, n, u64)
#define AT(args, n) ARG(args, n, void *)

#define KERNEL_OF(name, call, moved) \
	static void run_##name(void **a) { call; } \
	static double bytes_of_##name(void **a) { return (double)(moved); } \
	static struct kernel the_##name = {#name, 0, run_##name, bytes_of_##name, 0, 0}; \
	__attribute__((constructor)) static void add_##name(void) { add_kernel(&the_##name); }
#define FILL(name, size) KERNEL_OF(name, name(AT(a, 0), N(a, 1), N(a, 2), ARG(a, 3, u32)), size * N(a, 1))

FILL(fill_f64, 8)
FILL(fill_f32, 4)
FILL(fill_bf16, 2)
FILL(fill_f16, 2)
FILL(fill_e4m3, 1)
KERNEL_OF(sum_f64, sum_f64(AT(a, 0), N(a, 1), N(a, 2), AT(a, 3)), 8 * N(a, 1) * N(a, 1))
KERNEL_OF(sum_f32, sum_f32(AT(a, 0), N(a, 1), N(a, 2), AT(a, 3)), 4 * N(a, 1) * N(a, 1))

/* narrow_value converts a number of few bits. */
static double narrow_value(u32 v, int exponent, int mantissa)
{
	int e = (int)(v >> mantissa) & ((1 << exponent) - 1), m = (int)v & ((1 << mantissa) - 1);
	double size = e ? ldexp((1 << mantissa) + m, e - (1 << (exponent - 1)) + 1 - mantissa) : ldexp(m, 2 - (1 << (exponent - 1)) - mantissa);

	return v >> (exponent + mantissa) & 1 ? -size : size;
}

double element(enum number_type t, const void *at, size_t i)
{
	u32 bits;
	float f;

	switch (t) {
	case F64:
		return ((const double *)at)[i];
	case F32:
		return ((const float *)at)[i];
	case F16:
		return narrow_value(((const unsigned short *)at)[i], 5, 10);
	case E4M3:
		return narrow_value(((const unsigned char *)at)[i], 4, 3);
	default: /* BF16 */
		bits = (u32)((const unsigned short *)at)[i] << 16;
		memcpy(&f, &bits, 4);
		return f;
	}
}

static void compute(enum number_type t, const void *a, const void *b, void *c, size_t n)
{
	static __thread double column[512], rows[512 * 512]; /* a, read once */

	for (size_t i = 0; i < n * n; i++)
		rows[i] = element(t, a, i);
	for (size_t j = 0; j < n; j++) {
		for (size_t k = 0; k < n; k++)
			column[k] = element(t, b, j * n + k);
		for (size_t i = 0; i < n; i++) {
			double sum = 0;
			for (size_t k = 0; k < n; k++)
				sum += rows[i * n + k] * column[k];
			if (t == F64)
				((double *)c)[j * n + i] = sum;
			else
				((float *)c)[j * n + i] = (float)sum;
		}
	}
}

/* The last product of a thread, since the same factors have the same product. */
void product(enum number_type t, const void *a, const void *b, void *c, size_t n)
{
	static const size_t sizes[] = {8, 4, 2, 2, 1};
	static __thread struct { char *a, *b, *c; size_t n; enum number_type t; } last;
	size_t in = n * n * sizes[t], out = n * n * (t == F64 ? 8 : 4);

	if (n > 512)
		return;
	if (last.n != n || last.t != t || memcmp(last.a, a, in) != 0 || memcmp(last.b, b, in) != 0) {
		last.a = realloc(last.a, in);
		last.b = realloc(last.b, in);
		last.c = realloc(last.c, out);
		memcpy(last.a, a, in);
		memcpy(last.b, b, in);
		compute(t, a, b, last.c, n);
		last.n = n;
		last.t = t;
	}
	memcpy(c, last.c, out);
}

/* GEMM_OF registers a product for the program's own kernel. wrong inverts a bit of the product,
   which is the third argument. */
#define GEMM_OF(name, type) \
	static void run_##name(void **a) \
	{ \
		product(type, AT(a, 0), AT(a, 1), AT(a, 2), ARG(a, 3, u32)); \
		turn_over(current, "product", AT(a, 2), (size_t)ARG(a, 3, u32) * ARG(a, 3, u32) * 4); \
	} \
	static double flops_of_##name(void **a) { double n = ARG(a, 3, u32); return 2 * n * n * n; } \
	static struct kernel the_##name = {#name, 1, run_##name, 0, flops_of_##name, 0}; \
	__attribute__((constructor)) static void add_##name(void) { add_kernel(&the_##name); }

GEMM_OF(gemm_f64, F64)
GEMM_OF(gemm_f32, F32)
GEMM_OF(gemm_tf32, F32)
GEMM_OF(gemm_bf16, BF16)
GEMM_OF(gemm_f16, F16)
GEMM_OF(gemm_f16_wmma, F16)
GEMM_OF(gemm_e4m3, E4M3)
