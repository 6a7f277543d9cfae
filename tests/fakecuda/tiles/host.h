/* A GPU for the kernels of tiles.h: the 256 threads of a block take turns on one CPU, each until it
   waits for the others. Fragments of tensor cores are those of the PTX ISA ("Matrix Fragments for
   mma.m16n8k8 with .tf32", "m16n8k16", "m16n8k32"); those of wmma, which the PTX ISA does not
   define, are whole rows here. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define SHARED static

static u32 block_y;
static ucontext_t threads[256], home;
__thread u32 thread_x, threads_x, block_x, blocks_x;

/* barrier lets the next thread run; this one continues when all have arrived. */
static void barrier(void) { swapcontext(&threads[thread_x], &home); }

/* Data that the threads of a warp exchange. */
static u32 shown_a[256][8], shown_b[256][8];

enum { TYPE_F16, TYPE_BF16, TYPE_TF32, TYPE_E4M3 };
static const int sizes[] = {2, 2, 4, 1};

static float narrow_value(u32 v, int exponent, int mantissa)
{
	int e = (int)(v >> mantissa) & ((1 << exponent) - 1), m = (int)v & ((1 << mantissa) - 1);
	float size = e ? ldexpf((float)((1 << mantissa) + m), e - (1 << (exponent - 1)) + 1 - mantissa) : ldexpf((float)m, 2 - (1 << (exponent - 1)) - mantissa);

	return v >> (exponent + mantissa) & 1 ? -size : size;
}

/* value is number i in some words. */
static float value(int type, const u32 *words, int i)
{
	u32 bits;
	float f;

	switch (type) {
	case TYPE_F16:
		return narrow_value(((const unsigned short *)words)[i], 5, 10);
	case TYPE_E4M3:
		return narrow_value(((const unsigned char *)words)[i], 4, 3);
	case TYPE_BF16:
		bits = (u32)((const unsigned short *)words)[i] << 16;
		break;
	default:
		bits = words[i] & 0xffffe000; /* a tensor core ignores the rest */
	}
	memcpy(&f, &bits, 4);
	return f;
}

/* mma is the product of 16 rows and 8 columns of 32 bytes. */
static void mma(int type, float d[4], const u32 a[4], const u32 b[2])
{
	int warp = (int)(thread_x / 32 * 32), lane = (int)(thread_x % 32), count = 4 / sizes[type];

	memcpy(shown_a[thread_x], a, 16);
	memcpy(shown_b[thread_x], b, 8);
	barrier();
	for (int e = 0; e < 4; e++) {
		int row = lane / 4 + e / 2 * 8, col = lane % 4 * 2 + e % 2;
		for (int half = 0; half < 2; half++) /* the first or the second 16 bytes */
			for (int quad = 0; quad < 4; quad++)
				for (int i = 0; i < count; i++)
					d[e] += value(type, &shown_a[warp + row % 8 * 4 + quad][row / 8 + half * 2], i) *
						value(type, &shown_b[warp + col * 4 + quad][half], i);
	}
	barrier();
}

#define MMA_OF(name, type) static inline void name(float d[4], const u32 a[4], const u32 b[2]) { mma(type, d, a, b); }
#if GEMM_SM == 80
MMA_OF(mma_f16, TYPE_F16)
MMA_OF(mma_bf16, TYPE_BF16)
MMA_OF(mma_tf32, TYPE_TF32)
#elif GEMM_SM == 89
MMA_OF(mma_e4m3, TYPE_E4M3)
#else
/* A thread has half a row, or half a column, of 16 halves; of the sums half a row. */
static inline void wmma_half(u32 f[8], const unsigned char *from, u32 pitch)
{
	int lane = (int)(thread_x % 32);

	memset(f, 0, 32);
	memcpy(f, from + (lane / 2 * (int)pitch + lane % 2 * 8) * 2, 16);
}
#define wmma_rows wmma_half
#define wmma_cols wmma_half

static inline void wmma(float d[8], const u32 a[8], const u32 b[8])
{
	int warp = (int)(thread_x / 32 * 32), lane = (int)(thread_x % 32);

	memcpy(shown_a[thread_x], a, 32);
	memcpy(shown_b[thread_x], b, 32);
	barrier();
	for (int e = 0; e < 8; e++)
		for (int k = 0; k < 16; k++)
			d[e] += value(TYPE_F16, shown_a[warp + lane / 2 * 2 + k / 8], k % 8) *
				value(TYPE_F16, shown_b[warp + (lane % 2 * 8 + e) * 2 + k / 8], k % 8);
	barrier();
}

static inline void wmma_put(float *to, const float d[8], u32 pitch)
{
	int lane = (int)(thread_x % 32);

	memcpy(to + (u64)(lane / 2) * pitch + lane % 2 * 8, d, 32);
}
#endif
