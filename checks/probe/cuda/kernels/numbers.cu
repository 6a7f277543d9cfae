/* Matrices of small whole numbers, and the checksum of their product. The sums of products are exact
   in their type, in any order. So there is one correct result, which the CPU knows as well. All
   kernels accept any grid and any block. */
#include "kernel.h"

typedef long long s64;

/* whole is the element x of a matrix: a whole number from -most to most. */
DEVICE int whole(u64 x, u64 seed, u32 most)
{
	u64 h = (x + seed) * 0x9E3779B97F4A7C15ULL;

	h ^= h >> 32;
	h *= 0xD6E8FEB86659FD93ULL;
	return (int)((h >> 32) * (2 * (u64)most + 1) >> 32) - (int)most;
}

/* weight is an odd number for a row or for a column of the product. */
DEVICE u64 weight(u64 x, u64 seed)
{
	u64 h = (x + seed) * 0xD6E8FEB86659FD93ULL;

	h ^= h >> 32;
	return (h * 0x9E3779B97F4A7C15ULL) | 1;
}

#define EACH(x, count) for (u64 x = first_of_grid(); x < (count); x += step_of_grid())

/* The numbers in each type, count of them. */
KERNEL fill_f64(double *to, u64 count, u64 seed, u32 most)
{
	EACH (x, count)
		to[x] = whole(x, seed, most);
}

KERNEL fill_f32(float *to, u64 count, u64 seed, u32 most)
{
	EACH (x, count)
		to[x] = (float)whole(x, seed, most);
}

/* bits is a whole number as a float. */
DEVICE u32 bits(int v)
{
	union { float f; u32 u; } b;

	b.f = (float)v;
	return b.u;
}

/* narrow is the same in a type with fewer bits of exponent and of mantissa: the exponent has another
   bias, and the removed bits are zero. */
DEVICE u32 narrow(u32 b, int exponent, int mantissa)
{
	u32 sign = b >> 31 << (exponent + mantissa), size = b << 1 >> 1;

	if (size == 0)
		return sign;
	return sign | ((size >> (23 - mantissa)) - ((127 - ((1 << (exponent - 1)) - 1)) << mantissa));
}

/* exact up to 256, to 2048 and to 16 */
KERNEL fill_bf16(unsigned short *to, u64 count, u64 seed, u32 most)
{
	EACH (x, count)
		to[x] = (unsigned short)(bits(whole(x, seed, most)) >> 16);
}

KERNEL fill_f16(unsigned short *to, u64 count, u64 seed, u32 most)
{
	EACH (x, count)
		to[x] = (unsigned short)narrow(bits(whole(x, seed, most)), 5, 10);
}

KERNEL fill_e4m3(unsigned char *to, u64 count, u64 seed, u32 most)
{
	EACH (x, count)
		to[x] = (unsigned char)narrow(bits(whole(x, seed, most)), 4, 3);
}

/* The result of sum_f64 and sum_f32. */
struct sum {
	u64 total; /* each element times the weights of its row and of its column, modulo 2^64 */
	u64 odd;   /* number of elements that are not whole */
};

/* sum_f64 and sum_f32 compute the checksum of an n * n product in column order; each block sums up
   one column at a time. One wrong element always changes the total, because weights are odd. */
#define SUM(name, real)                                                      \
KERNEL name(const real *c, u64 n, u64 seed, struct sum *out)                 \
{                                                                            \
	u64 odd = 0;                                                         \
                                                                             \
	for (u64 j = block_x; j < n; j += blocks_x) {                        \
		u64 total = 0;                                               \
		for (u64 i = thread_x; i < n; i += threads_x) {              \
			real v = c[j * n + i];                               \
			if (!(v > -9e15 && v < 9e15) || v != (real)(s64)v)   \
				odd++;                                       \
			else                                                 \
				total += weight(i, seed) * (u64)(s64)v;      \
		}                                                            \
		__atomic_fetch_add(&out->total, total * weight(j, ~seed), __ATOMIC_RELAXED); \
	}                                                                    \
	if (odd != 0)                                                        \
		__atomic_fetch_add(&out->odd, odd, __ATOMIC_RELAXED);        \
}


SUM(sum_f64, double)
SUM(sum_f32, float)
