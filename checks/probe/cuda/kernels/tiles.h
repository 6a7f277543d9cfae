/* The product of two matrices, used without cuBLASLt: C = A * B of n * n, n a multiple of 128. A is
   in row order, B and C are in column order: in both factors the index of the sum is last in memory,
   the one layout that every tensor core supports. Since C(i, j) is at c[j*n + i], the rows of a tile
   are columns of B, and its columns rows of A. Blocks have 256 threads. GEMM_SM selects the kernels:
   70 those for a V100, 80 and 89 those for newer tensor cores. gemm70.cu and the others are loaded
   only on GPUs that support them. */
#include "tensor.h"

enum { THREADS = 256 };

#if GEMM_SM == 70

/* gemm_f64 and gemm_f32: fused multiply-add on the ordinary cores. A slab has 8 values of the index
   of the sum, transposed in shared memory; a thread has SIDE * SIDE elements of the tile, 16 rows
   and 16 columns apart. */
#define FMA_GEMM(name, real, fma, SIDE)                                               \
KERNEL name(const real *a, const real *b, real *c, u32 n)                             \
{                                                                                     \
	enum { EDGE = 16 * SIDE };                                                    \
	SHARED real rows[8][EDGE + 4], cols[8][EDGE + 4];                             \
	int tx = thread_x % 16, ty = thread_x / 16;                                   \
	const real *x = b + (u64)block_y * EDGE * n, *y = a + (u64)block_x * EDGE * n; \
	real *to = c + (u64)block_y * EDGE * n + (u64)block_x * EDGE;                 \
	real sum[SIDE][SIDE] = {};                                                    \
                                                                                      \
	for (u32 k = 0; k < n; k += 8) {                                              \
		for (int e = thread_x; e < EDGE * 8; e += THREADS) {                  \
			rows[e % 8][e / 8] = x[(u64)(e / 8) * n + k + e % 8];         \
			cols[e % 8][e / 8] = y[(u64)(e / 8) * n + k + e % 8];         \
		}                                                                     \
		barrier();                                                            \
		UNROLL                                                                \
		for (int q = 0; q < 8; q++) {                                         \
			real p[SIDE], o[SIDE];                                        \
			UNROLL                                                        \
			for (int r = 0; r < SIDE; r++) {                              \
				p[r] = rows[q][ty + 16 * r];                          \
				o[r] = cols[q][tx + 16 * r];                          \
			}                                                             \
			UNROLL                                                        \
			for (int e = 0; e < SIDE * SIDE; e++)                         \
				sum[e / SIDE][e % SIDE] = fma(p[e / SIDE], o[e % SIDE], sum[e / SIDE][e % SIDE]); \
		}                                                                     \
		barrier();                                                            \
	}                                                                             \
	UNROLL                                                                        \
	for (int e = 0; e < SIDE * SIDE; e++)                                         \
		to[(u64)(ty + 16 * (e / SIDE)) * n + tx + 16 * (e % SIDE)] = sum[e / SIDE][e % SIDE]; \
}

FMA_GEMM(gemm_f64, double, __builtin_fma, 4)
FMA_GEMM(gemm_f32, float, __builtin_fmaf, 8)

#endif

/* Tensor cores. A tile is 128 by 128 by 64 bytes of the index of the sum. A row of it has 16 unused
   bytes, so that the eight rows that a warp reads at once are in different banks. */
enum { TILE = 128, SLAB = 64, ROW = 80 };

/* fetch reads a thread's part of a slab, two pieces of 16 bytes; stow stores it in shared memory. */
DEVICE void fetch(words got[2], const unsigned char *from, u64 pitch)
{
	UNROLL
	for (int p = 0; p < 2; p++) {
		int piece = thread_x + p * THREADS;
		got[p] = *(const words *)(from + (piece / 4) * pitch + (piece % 4) * 16);
	}
}

DEVICE void stow(unsigned char *to, const words got[2])
{
	UNROLL
	for (int p = 0; p < 2; p++) {
		int piece = thread_x + p * THREADS;
		*(words *)(to + (piece / 4) * ROW + (piece % 4) * 16) = got[p];
	}
}

/* A block of eight warps has a tile, each warp 64 rows and 32 columns of it. While a slab is
   multiplied the next one is being loaded into registers. BYTES is the size of an element; SUMS are
   a warp's sums, in an order that multiply and put know. */
#define TENSOR_GEMM(name, BYTES, SUMS, multiply, put)                                  \
KERNEL name(const unsigned char *a, const unsigned char *b, float *c, u32 n)           \
{                                                                                      \
	SHARED unsigned char rows[2][TILE * ROW] ALIGNED, cols[2][TILE * ROW] ALIGNED; \
	int warp = thread_x / 32, top = warp / 4 * 64, left = warp % 4 * 32, now = 0;  \
	u64 pitch = (u64)n * BYTES;                                                    \
	const unsigned char *x = b + (u64)block_y * TILE * pitch, *y = a + (u64)block_x * TILE * pitch; \
	float *to = c + ((u64)block_y * TILE + top) * n + (u64)block_x * TILE + left;  \
	words p[2], q[2];                                                              \
	float sum SUMS = {};                                                           \
                                                                                       \
	fetch(p, x, pitch);                                                            \
	fetch(q, y, pitch);                                                            \
	stow(rows[0], p);                                                              \
	stow(cols[0], q);                                                              \
	barrier();                                                                     \
	for (u64 k = SLAB; k <= pitch; k += SLAB) {                                    \
		if (k < pitch) {                                                       \
			fetch(p, x + k, pitch);                                        \
			fetch(q, y + k, pitch);                                        \
		}                                                                      \
		UNROLL                                                                 \
		for (int at = 0; at < SLAB; at += 32)                                  \
			multiply(sum, rows[now] + top * ROW + at, cols[now] + left * ROW + at); \
		if (k < pitch) {                                                       \
			stow(rows[!now], p);                                           \
			stow(cols[!now], q);                                           \
		}                                                                      \
		barrier();                                                             \
		now = !now;                                                            \
	}                                                                              \
	put(to, sum, n);                                                               \
}

#if GEMM_SM == 70

/* Volta's: 16 by 16 by 16 halves, in an order that only the GPU knows. */
DEVICE void multiply_wmma(float sum[4][2][8], const unsigned char *rows, const unsigned char *cols)
{
	u32 p[4][8], q[2][8];

	UNROLL
	for (int r = 0; r < 4; r++)
		wmma_rows(p[r], rows + 16 * r * ROW, ROW / 2);
	UNROLL
	for (int s = 0; s < 2; s++)
		wmma_cols(q[s], cols + 16 * s * ROW, ROW / 2);
	UNROLL
	for (int e = 0; e < 8; e++)
		wmma(sum[e / 2][e % 2], p[e / 2], q[e % 2]);
}

DEVICE void put_wmma(float *to, float sum[4][2][8], u32 n)
{
	UNROLL
	for (int e = 0; e < 8; e++)
		wmma_put(to + (u64)(16 * (e / 2)) * n + 16 * (e % 2), sum[e / 2][e % 2], n);
}

TENSOR_GEMM(gemm_f16_wmma, 2, [4][2][8], multiply_wmma, put_wmma)

#else

/* Ampere's: 16 by 8 by 32 bytes. For every type a thread has the same 4 bytes: row lane / 4, and 8
   rows below it, byte lane % 4 * 4, and 16 behind it. */
#define MULTIPLY(name, mma)                                                                        \
DEVICE void name(float sum[4][4][4], const unsigned char *rows, const unsigned char *cols)         \
{                                                                                                  \
	int lane = thread_x % 32, at = lane / 4 * ROW + lane % 4 * 4;                              \
	u32 p[4][4], q[4][2];                                                                      \
                                                                                                   \
	UNROLL                                                                                     \
	for (int e = 0; e < 16; e++)                                                               \
		p[e / 4][e % 4] = *(const u32 *)(rows + at + (16 * (e / 4) + e % 2 * 8) * ROW + e % 4 / 2 * 16); \
	UNROLL                                                                                     \
	for (int e = 0; e < 8; e++)                                                                \
		q[e / 2][e % 2] = *(const u32 *)(cols + at + 8 * (e / 2) * ROW + e % 2 * 16);      \
	UNROLL                                                                                     \
	for (int e = 0; e < 16; e++)                                                               \
		mma(sum[e / 4][e % 4], p[e / 4], q[e % 4]);                                        \
}

DEVICE void put_mma(float *to, float sum[4][4][4], u32 n)
{
	int lane = thread_x % 32;

	to += (u64)(lane / 4) * n + lane % 4 * 2;
	UNROLL
	for (int e = 0; e < 64; e++)
		to[(u64)(16 * (e / 16) + e % 4 / 2 * 8) * n + 8 * (e / 4 % 4) + e % 2] = sum[e / 16][e / 4 % 4][e % 4];
}

#if GEMM_SM == 80
MULTIPLY(multiply_f16, mma_f16)
MULTIPLY(multiply_bf16, mma_bf16)
MULTIPLY(multiply_tf32, mma_tf32)
TENSOR_GEMM(gemm_f16, 2, [4][4][4], multiply_f16, put_mma)
TENSOR_GEMM(gemm_bf16, 2, [4][4][4], multiply_bf16, put_mma)
TENSOR_GEMM(gemm_tf32, 4, [4][4][4], multiply_tf32, put_mma)
#else
MULTIPLY(multiply_e4m3, mma_e4m3)
TENSOR_GEMM(gemm_e4m3, 1, [4][4][4], multiply_e4m3, put_mma)
#endif

#endif
