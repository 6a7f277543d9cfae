/* A cuBLASLt in the same library, limited to the product of n * n matrices. It is as strict as
   NVIDIA's: sizes of attributes, valid combinations of types. */
#define _GNU_SOURCE
#include "gemm.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_INITIALIZED = 1, INVALID = 7, NOT_SUPPORTED = 15 };
enum { HANDLE = 0x48414e44, DESC = 0x44455343, LAYOUT = 0x4c41594f, PREFERENCE = 0x50524546 };

/* The program's handles are one of these; the first field has the kind. */
struct thing {
	unsigned what;
	int compute, scale, transposed; /* of a product */
	int type;                       /* of a matrix */
	uint64_t rows, cols;
	int64_t ld;
	uint64_t workspace; /* of a preference */
};

struct heuristic {
	uint64_t algorithm[8];
	size_t workspace;
	int state;
	float waves;
	int reserved[4];
};

#define CALL(name) \
	do { \
		int result; \
		if (!current) \
			return NOT_INITIALIZED; \
		if (!allowed(current->index, name, NULL, &result)) \
			return result; \
	} while (0)

static int is(const struct thing *t, unsigned what) { return t && t->what == what; }

static int make(struct thing **out, struct thing t)
{
	*out = malloc(sizeof t);
	**out = t;
	return 0;
}

static int destroy(struct thing *t, unsigned what)
{
	if (!is(t, what))
		return INVALID;
	t->what = 0;
	free(t);
	return 0;
}

size_t cublasLtGetVersion(void) { return (size_t)number(SYSTEM, "cublasLtGetVersion", NULL, 120405); }

int cublasLtCreate(struct thing **out)
{
	CALL("cublasLtCreate");
	return make(out, (struct thing){.what = HANDLE});
}

int cublasLtDestroy(struct thing *t) { return destroy(t, HANDLE); }

int cublasLtMatmulDescCreate(struct thing **out, int compute, int scale)
{
	CALL("cublasLtMatmulDescCreate");
	return make(out, (struct thing){.what = DESC, .compute = compute, .scale = scale});
}

int cublasLtMatmulDescDestroy(struct thing *t) { return destroy(t, DESC); }

int cublasLtMatmulDescSetAttribute(struct thing *t, int attribute, const void *value, size_t size)
{
	if (!is(t, DESC) || attribute != 3 || size != 4)
		return INVALID;
	memcpy(&t->transposed, value, size);
	return 0;
}

int cublasLtMatrixLayoutCreate(struct thing **out, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
	return make(out, (struct thing){.what = LAYOUT, .type = type, .rows = rows, .cols = cols, .ld = ld});
}

int cublasLtMatrixLayoutDestroy(struct thing *t) { return destroy(t, LAYOUT); }

int cublasLtMatmulPreferenceCreate(struct thing **out) { return make(out, (struct thing){.what = PREFERENCE}); }

int cublasLtMatmulPreferenceDestroy(struct thing *t) { return destroy(t, PREFERENCE); }

int cublasLtMatmulPreferenceSetAttribute(struct thing *t, int attribute, const void *value, size_t size)
{
	if (!is(t, PREFERENCE) || attribute != 1 || size != 8)
		return INVALID;
	memcpy(&t->workspace, value, size);
	return 0;
}

/* valid combinations of types: the sums', and the factors'. -1: invalid. */
static int type_of(const struct thing *desc, const struct thing *factor, const struct thing *product_type)
{
	static const struct { int compute, factor, product, type; } known[] = {
		{70, 1, 1, F64}, {68, 0, 0, F32}, {77, 0, 0, F32}, {68, 14, 0, BF16}, {68, 2, 0, F16}, {68, 28, 0, E4M3},
	};

	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (desc->compute == known[i].compute && desc->scale == known[i].product && factor->type == known[i].factor &&
		    product_type->type == known[i].product)
			return known[i].type;
	return -1;
}

static int fits(const struct thing *desc, const struct thing *a, const struct thing *b, const struct thing *c, const struct thing *d)
{
	return is(desc, DESC) && is(a, LAYOUT) && is(b, LAYOUT) && is(c, LAYOUT) && is(d, LAYOUT) && desc->transposed == 1 &&
	       a->rows == a->cols && a->ld == (int64_t)a->rows && type_of(desc, a, d) >= 0 && b->type == a->type && c->type == d->type;
}

int cublasLtMatmulAlgoGetHeuristic(struct thing *handle, struct thing *desc, struct thing *a, struct thing *b, struct thing *c, struct thing *d,
				   struct thing *preference, int wanted, struct heuristic *out, int *found)
{
	CALL("cublasLtMatmulAlgoGetHeuristic");
	if (!is(handle, HANDLE) || !is(preference, PREFERENCE) || wanted < 1)
		return INVALID;
	if (!fits(desc, a, b, c, d))
		return NOT_SUPPORTED;
	memset(out, 0, sizeof *out);
	out->algorithm[0] = 0x1d0 + (uint64_t)type_of(desc, a, d);
	out->workspace = preference->workspace / 2;
	*found = (int)number(current->index, "cublasLtMatmulAlgoGetHeuristic", NULL, 1);
	return 0;
}

int cublasLtMatmul(struct thing *handle, struct thing *desc, const void *alpha, const char *a, struct thing *adesc, const char *b, struct thing *bdesc,
		   const void *beta, const char *c, struct thing *cdesc, char *d, struct thing *ddesc, const uint64_t *algorithm, char *workspace,
		   size_t size, struct stream *s)
{
	static const char *const names[] = {"cublaslt_f64", "cublaslt_f32", "cublaslt_bf16", "cublaslt_f16", "cublaslt_e4m3"};
	static unsigned long done[MAX_GPUS];
	double n, one = 0, slower;
	float one_float = 0;
	int type;

	CALL("cublasLtMatmul");
	if (!is(handle, HANDLE) || !fits(desc, adesc, bdesc, cdesc, ddesc) || c != d || !workspace || size == 0)
		return INVALID;
	type = type_of(desc, adesc, ddesc);
	memcpy(type == F64 ? (void *)&one : (void *)&one_float, alpha, type == F64 ? 8 : 4);
	if (one + one_float != 1 || memcmp(beta, "\0\0\0\0\0\0\0", 8) != 0 || algorithm[0] != 0x1d0 + (uint64_t)type)
		return INVALID;
	product((enum number_type)type, a, b, d, adesc->rows);
	turn_over(current, "product", d, adesc->rows * adesc->rows * 4);
	n = (double)adesc->rows;
	s = s ? s : &current->zero;
	slower = 1 + number(current->index, "fade", NULL, 0) * (double)done[current->index]++;
	s->charge(s, slower * 2 * n * n * n / (number(current->index, "tflops", names[type], number(current->index, "tflops", NULL, 600)) * 1e6));
	return 0;
}
