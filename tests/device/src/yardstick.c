/* yardstick measures one GPU by libcuda alone, independently of nhc-gpu, for acceptance.sh.

   yardstick LIBCUDA bw [MIB]       times of cuInit and of a context; GB/s of copies from and to the
                                    host (pinned), and within the GPU (read and write); launch latency
   yardstick LIBCUDA hold SECONDS   keeps a context and 16 MiB: a process of someone else on the GPU

   A line is NAME VALUE UNIT [...]. The exit status is 2 if a call fails. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t address;

static struct {
	int (*cuInit)(unsigned), (*cuDriverGetVersion)(int *), (*cuDeviceGet)(int *, int), (*cuDeviceGetName)(char *, int, int);
	int (*cuDevicePrimaryCtxRetain)(void **, int), (*cuCtxSetCurrent)(void *), (*cuMemGetInfo_v2)(size_t *, size_t *);
	int (*cuMemAlloc_v2)(address *, size_t), (*cuMemFree_v2)(address), (*cuMemHostAlloc)(void **, size_t, unsigned);
	int (*cuMemcpyHtoDAsync_v2)(address, const void *, size_t, void *), (*cuMemcpyDtoHAsync_v2)(void *, address, size_t, void *);
	int (*cuMemcpyDtoDAsync_v2)(address, address, size_t, void *);
	int (*cuStreamCreate)(void **, unsigned), (*cuStreamQuery)(void *), (*cuEventCreate)(void **, unsigned);
	int (*cuEventRecord)(void *, void *), (*cuEventElapsedTime)(float *, void *, void *);
	int (*cuModuleLoadData)(void **, const void *), (*cuModuleGetFunction)(void **, void *, const char *);
	int (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
} api;

static void must(int code, const char *call)
{
	if (code) {
		printf("yardstick %s: CUDA error %d\n", call, code);
		exit(2);
	}
}
#define MUST(call, ...) must(api.call(__VA_ARGS__), #call)

static void load(const char *path)
{
	void *lib = dlopen(path, RTLD_NOW);
	if (!lib) {
		printf("yardstick: %s\n", dlerror());
		exit(2);
	}
#define FIND(name) \
	if (!(*(void **)&api.name = dlsym(lib, #name))) { \
		printf("yardstick: %s has no %s\n", path, #name); \
		exit(2); \
	}
	FIND(cuInit) FIND(cuDriverGetVersion) FIND(cuDeviceGet) FIND(cuDeviceGetName)
	FIND(cuDevicePrimaryCtxRetain) FIND(cuCtxSetCurrent) FIND(cuMemGetInfo_v2)
	FIND(cuMemAlloc_v2) FIND(cuMemFree_v2) FIND(cuMemHostAlloc)
	FIND(cuMemcpyHtoDAsync_v2) FIND(cuMemcpyDtoHAsync_v2)
	FIND(cuStreamCreate) FIND(cuStreamQuery) FIND(cuEventCreate) FIND(cuEventRecord) FIND(cuEventElapsedTime)
	FIND(cuModuleLoadData) FIND(cuModuleGetFunction) FIND(cuLaunchKernel)
	*(void **)&api.cuMemcpyDtoDAsync_v2 = dlsym(lib, "cuMemcpyDtoDAsync_v2"); /* without it there is no copy within the GPU */
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void *stream, *before, *after, *host, *kernel;
static address from, to;
static size_t size;

static void h2d(void) { MUST(cuMemcpyHtoDAsync_v2, to, host, size, stream); }
static void d2h(void) { MUST(cuMemcpyDtoHAsync_v2, host, from, size, stream); }
static void d2d(void) { MUST(cuMemcpyDtoDAsync_v2, to, from, size, stream); }
static void launch(void) { MUST(cuLaunchKernel, kernel, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL); }

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* measure prints the median and the best of n times, after a warm-up: GB/s of so many bytes, or microseconds. */
static void measure(const char *name, void (*work)(void), double bytes, int n)
{
	static double seconds[2000];
	for (int i = -5; i < n; i++) {
		float ms;
		int code;
		MUST(cuEventRecord, before, stream);
		work();
		MUST(cuEventRecord, after, stream);
		while ((code = api.cuStreamQuery(stream)) == 600) /* not ready */
			;
		must(code, "cuStreamQuery");
		MUST(cuEventElapsedTime, &ms, before, after);
		if (i >= 0)
			seconds[i] = ms / 1e3;
	}
	qsort(seconds, n, sizeof *seconds, ascending);
	if (bytes > 0)
		printf("%s %.2f GB/s, best %.2f\n", name, bytes / seconds[n / 2] / 1e9, bytes / seconds[0] / 1e9);
	else
		printf("%s %.2f us, best %.2f\n", name, seconds[n / 2] * 1e6, seconds[0] * 1e6);
}

static void bandwidth(size_t most)
{
	size_t free, total;
	double began;
	void *module;
	MUST(cuMemGetInfo_v2, &free, &total);
	size = free / 4 < most ? free / 4 : most;
	size &= ~(size_t)0xffff;
	MUST(cuStreamCreate, &stream, 1);
	MUST(cuEventCreate, &before, 0);
	MUST(cuEventCreate, &after, 0);
	MUST(cuMemHostAlloc, &host, size, 0);
	memset(host, 0x5a, size);
	MUST(cuMemAlloc_v2, &from, size);
	MUST(cuMemAlloc_v2, &to, size);
	measure("h2d", h2d, size, 12);
	measure("d2h", d2h, size, 12);
	if (api.cuMemcpyDtoDAsync_v2)
		measure("d2d", d2d, 2.0 * size, 24);
	began = now();
	MUST(cuModuleLoadData, &module, "\n.version 6.0\n.target sm_70\n.address_size 64\n.visible .entry empty() { ret; }\n");
	printf("jit %.1f ms of an empty kernel\n", (now() - began) * 1e3);
	MUST(cuModuleGetFunction, &kernel, module, "empty");
	measure("launch", launch, 0, 2000);
}

int main(int argc, char **argv)
{
	double start, ready, open;
	int device, version;
	void *context;
	char name[100] = "";
	size_t free, total;
	if (argc < 3) {
		fprintf(stderr, "usage: yardstick LIBCUDA bw [MIB] | hold SECONDS\n");
		return 1;
	}
	load(argv[1]);
	start = now();
	MUST(cuInit, 0);
	ready = now();
	MUST(cuDriverGetVersion, &version);
	MUST(cuDeviceGet, &device, 0);
	MUST(cuDeviceGetName, name, sizeof name, device);
	MUST(cuDevicePrimaryCtxRetain, &context, device);
	MUST(cuCtxSetCurrent, context);
	open = now();
	MUST(cuMemGetInfo_v2, &free, &total);
	printf("cuinit %.3f s\ncontext %.3f s\ncuda %d version\nfree %zu MiB of %zu\nname 0 %s\n", ready - start, open - ready, version, free >> 20, total >> 20, name);
	fflush(stdout);
	if (!strcmp(argv[2], "hold") && argc > 3) {
		MUST(cuMemAlloc_v2, &from, 16 << 20);
		sleep(atoi(argv[3]));
	} else if (!strcmp(argv[2], "bw")) {
		bandwidth((size_t)(argc > 3 ? atoi(argv[3]) : 1024) << 20);
	}
	return 0;
}
