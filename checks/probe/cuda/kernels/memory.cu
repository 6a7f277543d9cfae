/* Kernels that load the memory of a GPU: rates of reading and writing, and patterns that are written
   and verified. All of them accept any grid and any block. */
#include "kernel.h"

#define BATCH 4 /* concurrent accesses of each thread */

/* empty does nothing, so that only the launch counts. */
KERNEL empty(void) {}

/* copy16 copies n words of 128 bits. */
KERNEL copy16(words *to, const words *from, u64 n)
{
	u64 step = step_of_grid(), i = first_of_grid();

	for (; i + (BATCH - 1) * step < n; i += BATCH * step) {
		words w[BATCH];
		UNROLL
		for (int k = 0; k < BATCH; k++)
			w[k] = from[i + k * step];
		UNROLL
		for (int k = 0; k < BATCH; k++)
			to[i + k * step] = w[k];
	}
	for (; i < n; i += step)
		to[i] = from[i];
}

/* daxpy adds a * x to y, n pairs of doubles each. */
KERNEL daxpy(doubles *y, const doubles *x, double a, u64 n)
{
	u64 step = step_of_grid(), i = first_of_grid();

	for (; i + (BATCH - 1) * step < n; i += BATCH * step) {
		doubles v[BATCH], w[BATCH];
		UNROLL
		for (int k = 0; k < BATCH; k++) {
			v[k] = x[i + k * step];
			w[k] = y[i + k * step];
		}
		UNROLL
		for (int k = 0; k < BATCH; k++)
			y[i + k * step] = v[k] * a + w[k];
	}
	for (; i < n; i += step)
		y[i] = x[i] * a + y[i];
}

/* triad puts b + s * c into a, n pairs of doubles each. */
KERNEL triad(doubles *a, const doubles *b, const doubles *c, double s, u64 n)
{
	u64 step = step_of_grid(), i = first_of_grid();

	for (; i + (BATCH - 1) * step < n; i += BATCH * step) {
		doubles v[BATCH], w[BATCH];
		UNROLL
		for (int k = 0; k < BATCH; k++) {
			v[k] = b[i + k * step];
			w[k] = c[i + k * step];
		}
		UNROLL
		for (int k = 0; k < BATCH; k++)
			a[i + k * step] = v[k] + w[k] * s;
	}
	for (; i < n; i += step)
		a[i] = b[i] + c[i] * s;
}

/* fill_doubles writes a value to n pairs of doubles. */
KERNEL fill_doubles(doubles *to, double value, u64 n)
{
	for (u64 i = first_of_grid(); i < n; i += step_of_grid())
		to[i] = (doubles){value, value};
}

/* The patterns. */
enum { SAME, ADDRESS, RANDOM };

/* shuffled mixes the bits of a number, so that each depends on all others. */
DEVICE u32 shuffled(u32 x)
{
	x ^= x >> 16;
	x *= 0x21f0aaadU;
	x ^= x >> 15;
	x *= 0x735a2d97U;
	return x ^ x >> 15;
}

/* following is the next number of a sequence that reaches all numbers except 0. */
DEVICE u32 following(u32 x)
{
	x ^= x << 13;
	x ^= x >> 17;
	return x ^ x << 5;
}

/* pattern is the content of the 16 bytes with the number i, counted through all chunks of memory:
   the same value everywhere, the number of each word, or noise with the value as seed. */
DEVICE words pattern(int kind, u32 value, u64 i)
{
	words w;

	switch (kind) {
	case ADDRESS:
		return (words){(u32)(4 * i), (u32)(4 * i + 1), (u32)(4 * i + 2), (u32)(4 * i + 3)} ^ value;
	case RANDOM:
		w[0] = shuffled((u32)i ^ shuffled((u32)(i >> 32) + value)) | 1;
		w[1] = following(w[0]);
		w[2] = following(w[1]);
		w[3] = following(w[2]);
		return w;
	default:
		return (words){value, value, value, value};
	}
}

/* report is the result of a verification: the number of wrong words, and the first one found. */
struct wrong {
	u64 offset; /* in bytes, counted through all chunks */
	u32 want, got;
};
#define KEPT 16
struct report {
	u64 count;
	struct wrong kept[KEPT];
};

DEVICE void note(struct report *r, u64 i, words want, words got)
{
	for (int k = 0; k < 4; k++) {
		if (want[k] == got[k])
			continue;
		u64 slot = __atomic_fetch_add(&r->count, 1, __ATOMIC_RELAXED);
		if (slot < KEPT) {
			r->kept[slot].offset = i * 16 + k * 4;
			r->kept[slot].want = want[k];
			r->kept[slot].got = got[k];
		}
	}
}

DEVICE int differ(words a, words b)
{
	words d = a ^ b;

	return (d[0] | d[1] | d[2] | d[3]) != 0;
}

/* pattern_write writes n words of 128 bits; the first one has the number first. */
KERNEL pattern_write(words *to, u64 n, u64 first, int kind, u32 value)
{
	for (u64 i = first_of_grid(); i < n; i += step_of_grid())
		to[i] = pattern(kind, value, first + i);
}

/* pattern_verify reads the words of pattern_write. */
KERNEL pattern_verify(const words *from, u64 n, u64 first, int kind, u32 value, struct report *r)
{
	u64 step = step_of_grid(), i = first_of_grid();

	for (; i + (BATCH - 1) * step < n; i += BATCH * step) {
		words got[BATCH];
		UNROLL
		for (int k = 0; k < BATCH; k++)
			got[k] = from[i + k * step];
		UNROLL
		for (int k = 0; k < BATCH; k++) {
			words want = pattern(kind, value, first + i + k * step);
			if (differ(want, got[k]))
				note(r, first + i + k * step, want, got[k]);
		}
	}
	for (; i < n; i += step) {
		words want = pattern(kind, value, first + i), got = from[i];
		if (differ(want, got))
			note(r, first + i, want, got);
	}
}

/* pattern_invert verifies a pattern, and inverts every bit of it. */
KERNEL pattern_invert(words *at, u64 n, u64 first, int kind, u32 value, struct report *r)
{
	for (u64 i = first_of_grid(); i < n; i += step_of_grid()) {
		words want = pattern(kind, value, first + i), got = at[i];
		if (differ(want, got))
			note(r, first + i, want, got);
		at[i] = ~want;
	}
}

/* compare records the words that differ between two parts of memory; a is the expected one. */
KERNEL compare(const words *a, const words *b, u64 n, struct report *r)
{
	for (u64 i = first_of_grid(); i < n; i += step_of_grid()) {
		words want = a[i], got = b[i];
		if (differ(want, got))
			note(r, i, want, got);
	}
}

/* checksum adds a sum of n words of 128 bits to out. Any wrong bit changes it, because each word
   counts an odd number of times; the order of threads does not matter. */
KERNEL checksum(const words *from, u64 n, u64 *out)
{
	u64 sum = 0;

	for (u64 i = first_of_grid(); i < n; i += step_of_grid()) {
		words w = from[i];
		for (int k = 0; k < 4; k++)
			sum += w[k] * (8 * i + 2 * k + 1);
	}
	if (sum)
		__atomic_fetch_add(out, sum, __ATOMIC_RELAXED);
}
