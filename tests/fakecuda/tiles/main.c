/* Runs the kernels of tiles.h on the CPU and compares their products with that of the
   definition. It prints a line for each kernel. */
#define GEMM_HOST "host.h"
#include "tiles.h"

enum { N = 256 };

static int failed;
static void (*kernel)(void);

static void begin(void)
{
	kernel();
	for (;;)
		barrier(); /* it has finished, and waits for the others */
}

static int ended;
static void *a, *b, *c;

/* run runs one block: every thread until it waits, repeatedly. */
static void run(void)
{
	static char *stacks;
	enum { STACK = 64 << 10 };

	if (!stacks)
		stacks = malloc((size_t)256 * STACK);
	ended = 0;
	for (int t = 0; t < 256; t++) {
		getcontext(&threads[t]);
		threads[t].uc_stack.ss_sp = stacks + (size_t)t * STACK;
		threads[t].uc_stack.ss_size = STACK;
		threads[t].uc_link = NULL;
		makecontext(&threads[t], begin, 0);
	}
	while (ended < 256)
		for (thread_x = 0; thread_x < 256; thread_x++)
			swapcontext(&home, &threads[thread_x]);
}

static double exact(const int *x, const int *y)
{
	double sum = 0;

	for (int k = 0; k < N; k++)
		sum += (double)x[k] * y[k];
	return sum;
}

/* compare runs a grid of a kernel whose blocks have tiles of some rows. */
static void compare(const char *name, void (*k)(void), int tile, const int *x, const int *y, int is_double)
{
	int wrong = 0;

	kernel = k;
	memset(c, 0xff, (size_t)N * N * 8);
	for (block_y = 0; block_y < (u32)(N / tile); block_y++)
		for (block_x = 0; block_x < (u32)(N / tile); block_x++)
			run();
	for (int j = 0; j < N; j++)
		for (int i = 0; i < N; i++) {
			double got = is_double ? ((double *)c)[j * N + i] : ((float *)c)[j * N + i];
			wrong += !(got == exact(x + i * N, y + j * N));
		}
	printf("%s: %d wrong\n", name, wrong);
	failed |= wrong != 0;
}

/* narrow_bits packs a whole number, one of a few. */
static u32 narrow_bits(int v, int exponent, int mantissa)
{
	static struct { int exponent; u32 bits; } known[32];

	if (known[v + 16].exponent == exponent)
		return known[v + 16].bits;
	for (u32 bits = 0; bits < 1u << (exponent + mantissa + 1); bits++)
		if (narrow_value(bits, exponent, mantissa) == (float)v) {
			known[v + 16].exponent = exponent;
			known[v + 16].bits = bits;
			return bits;
		}
	abort();
}

static void fill(int type, const int *from, void *to)
{
	for (int i = 0; i < N * N; i++) {
		float f = (float)from[i];
		u32 bits;

		memcpy(&bits, &f, 4);
		if (type == TYPE_F16)
			((unsigned short *)to)[i] = (unsigned short)narrow_bits(from[i], 5, 10);
		else if (type == TYPE_BF16)
			((unsigned short *)to)[i] = (unsigned short)(bits >> 16);
		else if (type == TYPE_E4M3)
			((unsigned char *)to)[i] = (unsigned char)narrow_bits(from[i], 4, 3);
		else
			((float *)to)[i] = f;
	}
}

#define RUN(kernel_name, type_of_number, tile) \
	fill(type_of_number, x, a); \
	fill(type_of_number, y, b); \
	compare(#kernel_name, go_##kernel_name, tile, x, y, 0)
#define GO(kernel_name) static void go_##kernel_name(void) { kernel_name(a, b, c, N); ended++; }

#if GEMM_SM == 70
GO(gemm_f64)
GO(gemm_f32)
GO(gemm_f16_wmma)
#elif GEMM_SM == 80
GO(gemm_f16)
GO(gemm_bf16)
GO(gemm_tf32)
#else
GO(gemm_e4m3)
#endif

int main(void)
{
	static int x[N * N], y[N * N];

	for (int i = 0; i < N * N; i++) {
		x[i] = (int)((unsigned)i * 2654435761u >> 7) % 13 - 6;
		y[i] = (int)((unsigned)i * 2246822519u >> 9) % 11 - 5;
	}
	a = malloc((size_t)N * N * 8);
	b = malloc((size_t)N * N * 8);
	c = malloc((size_t)N * N * 8);
#if GEMM_SM == 70
	for (int i = 0; i < N * N; i++) {
		((double *)a)[i] = x[i];
		((double *)b)[i] = y[i];
	}
	compare("gemm_f64", go_gemm_f64, 64, x, y, 1);
	RUN(gemm_f32, TYPE_TF32, 128);
	RUN(gemm_f16_wmma, TYPE_F16, 128);
#elif GEMM_SM == 80
	RUN(gemm_f16, TYPE_F16, 128);
	RUN(gemm_bf16, TYPE_BF16, 128);
	RUN(gemm_tf32, TYPE_TF32, 128);
#else
	RUN(gemm_e4m3, TYPE_E4M3, 128);
#endif
	return failed;
}
