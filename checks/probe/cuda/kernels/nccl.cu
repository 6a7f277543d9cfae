/* Kernels for the tests of NCCL: data whose sums are exact in whatever order they are
   taken, their verification, and a product of matrices to compute beside NCCL. All of
   them take any grid and any block. */
#include "kernel.h"

/* value is what a rank gives for the element i: a whole number below 256, so that the
   sum of 65536 ranks is exact in a float. */
DEVICE float value(u64 i, u32 rank)
{
	u32 x = (u32)i * 0x9e3779b1U + (u32)(i >> 32) * 0x85ebca77U + rank * 0xc2b2ae3dU;

	x ^= x >> 15;
	x *= 0x2c1b3c6dU;
	return (float)(x >> 24);
}

/* nccl_fill writes a rank's values of n elements, of which the first has the number first. */
KERNEL nccl_fill(float *to, u64 n, u64 first, u32 rank)
{
	for (u64 i = first_of_grid(); i < n; i += step_of_grid())
		to[i] = value(first + i, rank);
}

/* mismatch is an element that is wrong: its number in what was received, and the bits
   that are wanted and were got. mismatches counts them, about MOST at most: where all of
   a large result is wrong nobody waits for the count. */
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

/* nccl_verify looks whether n elements are the sums of the values of some ranks, from
   one on, for the elements from first on. */
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
