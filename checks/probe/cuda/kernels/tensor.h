/* The GPU instructions that tiles.h needs in addition to kernel.h: barriers, and tensor cores as in
   the PTX ISA. GEMM_HOST is a header that replaces them when gcc compiles the kernels for a test. */
#ifndef TENSOR_H
#define TENSOR_H

#include "kernel.h"

#define ALIGNED __attribute__((aligned(128)))

#ifdef GEMM_HOST
#include GEMM_HOST
#else

#define SHARED __attribute__((shared))
#define block_y __nvvm_read_ptx_sreg_ctaid_y()
#define barrier() __syncthreads()

#if GEMM_SM == 70

/* wmma_rows and wmma_cols load a fragment, from rows that are pitch halves apart. */
#define WMMA_LOAD(name, form)                                                                              \
DEVICE void name(u32 f[8], const unsigned char *from, u32 pitch)                                           \
{                                                                                                          \
	__asm__ volatile("wmma.load." form ".m16n16k16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8], %9;"    \
	                 : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3]), "=r"(f[4]), "=r"(f[5]), "=r"(f[6]), "=r"(f[7]) \
	                 : "l"(from), "r"(pitch) : "memory");                                              \
}
WMMA_LOAD(wmma_rows, "a.sync.aligned.row")
WMMA_LOAD(wmma_cols, "b.sync.aligned.col")

/* wmma adds the product of two fragments to sums. */
DEVICE void wmma(float d[8], const u32 a[8], const u32 b[8])
{
	__asm__ volatile("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, "
	                 "{%8, %9, %10, %11, %12, %13, %14, %15}, {%16, %17, %18, %19, %20, %21, %22, %23}, "
	                 "{%0, %1, %2, %3, %4, %5, %6, %7};"
	                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
	                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]),
	                   "r"(b[0]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]), "r"(b[5]), "r"(b[6]), "r"(b[7]));
}

/* wmma_put writes sums to rows that are pitch floats apart. */
DEVICE void wmma_put(float *to, const float d[8], u32 pitch)
{
	__asm__ volatile("wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8}, %9;"
	                 ::"l"(to), "f"(d[0]), "f"(d[1]), "f"(d[2]), "f"(d[3]), "f"(d[4]), "f"(d[5]), "f"(d[6]), "f"(d[7]),
	                 "r"(pitch) : "memory");
}

#else

/* mma_f16 and the others add the product of 16 rows and 8 columns to sums. */
#define MMA(name, shape)                                                                                              \
DEVICE void name(float d[4], const u32 a[4], const u32 b[2])                                                          \
{                                                                                                                     \
	__asm__ volatile("mma.sync.aligned." shape " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
	                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                             \
	                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                         \
}

#if GEMM_SM == 80
MMA(mma_f16, "m16n8k16.row.col.f32.f16.f16.f32")
MMA(mma_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
MMA(mma_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")
#else
MMA(mma_e4m3, "m16n8k32.row.col.f32.e4m3.e4m3.f32")
#endif

#endif
#endif
#endif
