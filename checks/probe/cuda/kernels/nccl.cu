/* Kernels for the tests of NCCL: data with exact sums in any order, their verification, and a
   product of matrices to compute beside NCCL. All of them accept any grid and any block. */
#include "kernel.h"

/* value is a rank's value of the element i: a whole number below 256, so that the sum of 65536 ranks
   is exact in a float. */
DEVICE float value(u64 i, u32 rank)
{
	u32 x = (u32)i * 0x9e3779b1U + (u32)(i >> 32) * 0x85ebca77U + rank * 0xc2b2ae3dU;

	x ^= x >> 15;
	x *= 0x2c1b3c6dU;
	return (float)(x >> 24);
}

/* nccl_fill writes a rank's values of n elements; the first one has the number first. */
KERNEL nccl_fill(float *to, u64 n, u64 first, u32 rank)
{
	for (u64 i = first_of_grid(); i < n; i += step_of_grid())
		to[i] = value(first + i, rank);
}

/* mismatch is a wrong element: its number in the received data, and the expected and the received
   bits. mismatches counts them up to about MOST, since counting all of a large wrong result would
   take too long. */
struct mismatch {
	u64 at;
	u32 want, got;
};
#define KEPT 16
#define MOST 1000000
struct mismatches {
	u64 count;
	struct mismatch kept[KEPT];
};

DEVICE u32 bits(float f)
{
	union { float f; u32 u; } v = {f};

	return v.u;
}

/* nccl_verify checks whether n elements, from the number first on, are the sums of the values of
   some ranks, from one on. */
KERNEL nccl_verify(const float *got, u64 n, u64 first, u32 rank, u32 ranks, struct mismatches *r)
{
	for (u64 i = first_of_grid(); i < n; i += step_of_grid()) {
		float want = 0;
		for (u32 k = 0; k < ranks; k++)
			want += value(first + i, rank + k);
		if (want == got[i] || __atomic_load_n(&r->count, __ATOMIC_RELAXED) > MOST)
			continue;
		u64 slot = __atomic_fetch_add(&r->count, 1, __ATOMIC_RELAXED);
		if (slot < KEPT) {
			r->kept[slot].at = i;
			r->kept[slot].want = bits(want);
			r->kept[slot].got = bits(got[i]);
		}
	}
}
