/* Definitions for the sources of kernels instead of CUDA's own headers. The sources are compiled
   twice: by clang to PTX (make ptx), and by gcc into the fake libcuda of the tests, which runs them
   thread by thread. So they are plain C, and in kernels that run there no thread of a block may wait
   for another. */
#ifndef KERNEL_H
#define KERNEL_H

typedef unsigned int u32;
typedef unsigned long long u64;
typedef u32 words __attribute__((vector_size(16)));      /* one access of 128 bits */
typedef double doubles __attribute__((vector_size(16)));

#ifdef __NVPTX__
#define DEVICE static inline __attribute__((device, always_inline))
#define KERNEL extern "C" __attribute__((global)) void
#define thread_x __nvvm_read_ptx_sreg_tid_x()
#define threads_x __nvvm_read_ptx_sreg_ntid_x()
#define block_x __nvvm_read_ptx_sreg_ctaid_x()
#define blocks_x __nvvm_read_ptx_sreg_nctaid_x()
#define UNROLL _Pragma("unroll")
#else
#define DEVICE static inline
#define KERNEL void
extern __thread u32 thread_x, threads_x, block_x, blocks_x;
#define UNROLL
#endif

/* The number of this thread in the whole grid, and the number of threads. */
DEVICE u64 first_of_grid(void) { return (u64)block_x * threads_x + thread_x; }
DEVICE u64 step_of_grid(void) { return (u64)blocks_x * threads_x; }

#endif
