/* The kernels of memory.cu, compiled for the host. */
#include "fake.h"
#include "memory.cu"

#define N(args, n) ARG(args, n, u64)
#define AT(args, n) ARG(args, n, void *)

/* KERNEL_OF registers a kernel: the function for one thread, and the bytes that it moves. */
#define KERNEL_OF(name, call, moved) \
	static void run_##name(void **a) { (void)a; call; } \
	static double bytes_of_##name(void **a) { (void)a; return (double)(moved); } \
	static struct kernel the_##name = {#name, 0, run_##name, bytes_of_##name, 0, 0}; \
	__attribute__((constructor)) static void add_##name(void) { add_kernel(&the_##name); }

static void run_empty(void **args) { (void)args; }
static struct kernel the_empty = {"empty", 1, run_empty, 0, 0, 0};
__attribute__((constructor)) static void add_empty(void) { add_kernel(&the_empty); }

KERNEL_OF(copy16, copy16(AT(a, 0), AT(a, 1), N(a, 2)), 32 * N(a, 2))
KERNEL_OF(daxpy, daxpy(AT(a, 0), AT(a, 1), ARG(a, 2, double), N(a, 3)), 48 * N(a, 3))
KERNEL_OF(triad, triad(AT(a, 0), AT(a, 1), AT(a, 2), ARG(a, 3, double), N(a, 4)), 48 * N(a, 4))
KERNEL_OF(fill_doubles, fill_doubles(AT(a, 0), ARG(a, 1, double), N(a, 2)), 16 * N(a, 2))
KERNEL_OF(pattern_write, pattern_write(AT(a, 0), N(a, 1), N(a, 2), ARG(a, 3, int), ARG(a, 4, u32)), 16 * N(a, 1))
KERNEL_OF(pattern_verify, pattern_verify(AT(a, 0), N(a, 1), N(a, 2), ARG(a, 3, int), ARG(a, 4, u32), AT(a, 5)), 16 * N(a, 1))
KERNEL_OF(pattern_invert, pattern_invert(AT(a, 0), N(a, 1), N(a, 2), ARG(a, 3, int), ARG(a, 4, u32), AT(a, 5)), 32 * N(a, 1))
KERNEL_OF(compare, compare(AT(a, 0), AT(a, 1), N(a, 2), AT(a, 3)), 32 * N(a, 2))
KERNEL_OF(checksum, checksum(AT(a, 0), N(a, 1), AT(a, 2)), 16 * N(a, 1))
