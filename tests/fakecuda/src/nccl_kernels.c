/* The kernels of nccl.cu, compiled for the host. */
#include "fake.h"
#include "nccl.cu"

#define N(args, n) ARG(args, n, u64)
#define AT(args, n) ARG(args, n, void *)

#define KERNEL_OF(name, call, moved, computed) \
	static void run_##name(void **a) { call; } \
	static double bytes_of_##name(void **a) { (void)a; return (double)(moved); } \
	static double flops_of_##name(void **a) { (void)a; return (double)(computed); } \
	static struct kernel the_##name = {#name, 0, run_##name, bytes_of_##name, flops_of_##name, 0}; \
	__attribute__((constructor)) static void add_##name(void) { add_kernel(&the_##name); }

KERNEL_OF(nccl_fill, nccl_fill(AT(a, 0), N(a, 1), N(a, 2), ARG(a, 3, u32)), 4 * N(a, 1), 0)
KERNEL_OF(nccl_verify, nccl_verify(AT(a, 0), N(a, 1), N(a, 2), ARG(a, 3, u32), ARG(a, 4, u32), AT(a, 5)), 4 * N(a, 1), 0)
