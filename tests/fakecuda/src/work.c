/* Streams, events, copies, kernels: done at once, with a simulated clock. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__thread unsigned thread_x, threads_x, block_x, blocks_x;

#define CURRENT(name) CURRENT_OF(name, NULL)
#define CURRENT_OF(name, arg) \
	do { \
		int result; \
		if (!current) \
			return INVALID_CONTEXT; \
		if (current->dead && current->dead != NOT_READY) \
			return current->dead; \
		if (!allowed(current->index, name, arg, &result)) \
			return result; \
	} while (0)

static struct stream *of(struct stream *s) { return s ? s : &current->zero; }

int cuStreamCreate(struct stream **out, unsigned flags)
{
	CURRENT("cuStreamCreate");
	(void)flags;
	struct stream *s = calloc(1, sizeof *s);
	pthread_mutex_lock(&current->lock);
	*s = (struct stream){current->zero.charge, current, current->now, current->streams};
	current->streams = s;
	pthread_mutex_unlock(&current->lock);
	*out = s;
	return OK;
}

int cuStreamQuery(struct stream *s)
{
	CURRENT("cuStreamQuery");
	if (current->dead)
		return current->dead;
	s = of(s);
	pthread_mutex_lock(&current->lock);
	if (s->device->now < s->now)
		s->device->now = s->now;
	pthread_mutex_unlock(&current->lock);
	return OK;
}

int cuEventCreate(struct event **out, unsigned flags)
{
	CURRENT("cuEventCreate");
	(void)flags;
	*out = calloc(1, sizeof **out);
	pthread_mutex_lock(&current->lock);
	(*out)->next = current->events;
	current->events = *out;
	pthread_mutex_unlock(&current->lock);
	return OK;
}

int cuEventRecord(struct event *e, struct stream *s)
{
	CURRENT("cuEventRecord");
	if (!e)
		return INVALID_HANDLE;
	s = of(s);
	s->charge(s, 0);
	e->at = s->now;
	e->recorded = 1;
	return OK;
}

int cuStreamWaitEvent(struct stream *s, struct event *e, unsigned flags)
{
	CURRENT("cuStreamWaitEvent");
	(void)flags;
	s = of(s);
	if (!e)
		return INVALID_HANDLE;
	if (s->now < e->at)
		s->now = e->at;
	return OK;
}

int cuEventElapsedTime(float *ms, struct event *from, struct event *to)
{
	CURRENT("cuEventElapsedTime");
	if (!from || !to || !from->recorded || !to->recorded)
		return INVALID_HANDLE;
	*ms = (float)((to->at - from->at) / 1000 * number(current->index, "elapsed", NULL, 1));
	return OK;
}

void settle(struct device *d)
{
	if (d->stuck.bit < 0 || d->stuck.at >= d->size)
		return;
	char mask = (char)(1 << (d->stuck.bit & 7));
	if (d->stuck.value)
		d->memory[d->stuck.at] |= mask;
	else
		d->memory[d->stuck.at] &= (char)~mask;
}

void turn_over(struct device *d, const char *by, void *to, size_t size)
{
	const char *t = text(d->index, "wrong", by);
	unsigned long at = 0;
	int bit = 0;

	if (!t || sscanf(t, "%li %d", (long *)&at, &bit) < 1 || at >= size)
		return;
	((char *)to)[at] ^= (char)(1 << (bit & 7));
}

/* within reports whether memory belongs to a GPU. */
static int within(struct device *d, const char *at, size_t size)
{
	return at >= d->memory && size <= d->size && at + size <= d->memory + d->size;
}

/* copy copies at the rate of the scenario, in GB/s. */
static int copy(const char *call, void *to, const void *from, size_t size, struct stream *s, double rate)
{
	memmove(to, from, size);
	turn_over(current, call, to, size);
	settle(current);
	s = of(s);
	s->charge(s, (double)size / (rate * 1e3));
	return OK;
}

int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t size, struct stream *s)
{
	CURRENT("cuMemcpyHtoDAsync");
	if (!within(current, to, size))
		return INVALID_VALUE;
	return copy("cuMemcpyHtoDAsync", to, from, size, s, number(current->index, "h2d", NULL, 55));
}

int cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t size, struct stream *s)
{
	CURRENT("cuMemcpyDtoHAsync");
	if (!within(current, from, size))
		return INVALID_VALUE;
	return copy("cuMemcpyDtoHAsync", to, from, size, s, number(current->index, "d2h", NULL, 54));
}

int cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t size, struct stream *s)
{
	CURRENT("cuMemcpyDtoDAsync");
	if (!within(current, to, size) || !within(current, from, size))
		return INVALID_VALUE;
	return copy("cuMemcpyDtoDAsync", to, from, size, s, number(current->index, "membw", NULL, 2800) / 2);
}

int cuMemcpyPeerAsync(void *to, struct device *there, const void *from, struct device *here, size_t size, struct stream *s)
{
	const char *reads;
	char name[16];
	double rate;

	CURRENT("cuMemcpyPeerAsync");
	if (!there || !here || !within(there, to, size) || !within(here, from, size))
		return INVALID_VALUE;
	snprintf(name, sizeof name, "%d", here->index);
	if ((reads = text(there->index, "reads", name))) { /* this error appears while the copy is in progress */
		sscanf(reads, "%d %d", &there->dead, &here->dead);
		there->held = here->held = there->dead == NOT_READY;
		return OK;
	}
	snprintf(name, sizeof name, "%d", there->index);
	rate = number(here->index, "peer", name, 390);
	if (!(here->peers & 1 << there->index)) /* through the node's memory */
		rate = number(here->index, "d2h", NULL, 54) / 2;
	return copy("cuMemcpyPeerAsync", to, from, size, s, rate);
}

int cuMemsetD32Async(unsigned *to, unsigned word, size_t n, struct stream *s)
{
	CURRENT("cuMemsetD32Async");
	if (!within(current, (char *)to, n * 4))
		return INVALID_VALUE;
	for (size_t i = 0; i < n; i++)
		to[i] = word;
	settle(current);
	s = of(s);
	s->charge(s, (double)n * 4 / (number(current->index, "membw", NULL, 2800) * 1e3));
	return OK;
}

static struct kernel *kernels;

void add_kernel(struct kernel *k)
{
	k->next = kernels;
	kernels = k;
}

/* A module is its text. */
int cuModuleLoadData(char **module, const char *image)
{
	int major = 0, minor = 0, target = 0;
	const char *version = strstr(image, "\n.version "), *sm = strstr(image, "\n.target sm_");

	CURRENT("cuModuleLoadData");
	if (!version || !sm || sscanf(version, "\n.version %d.%d", &major, &minor) != 2 || sscanf(sm, "\n.target sm_%d", &target) != 1)
		return INVALID_IMAGE;
	if (major * 10 + minor > number(SYSTEM, "ptx", NULL, 87))
		return UNSUPPORTED_PTX;
	if (target > number(current->index, "attribute", "75", 9) * 10 + number(current->index, "attribute", "76", 0))
		return NO_BINARY_FOR_GPU;
	*module = strdup(image);
	return OK;
}

int cuModuleGetFunction(struct kernel **out, const char *module, const char *name)
{
	char entry[128];

	CURRENT_OF("cuModuleGetFunction", name);
	snprintf(entry, sizeof entry, ".entry %s(", name);
	if (!strstr(module, entry))
		return NOT_FOUND;
	for (struct kernel *k = kernels; k; k = k->next)
		if (strcmp(k->name, name) == 0) {
			*out = k;
			return OK;
		}
	fprintf(stderr, "fakecuda: kernel %s has no function for the host\n", name);
	return NOT_FOUND;
}

/* launch_time is the time to launch an empty kernel: the scenario's times, one after the other. */
static double launch_time(struct device *d, const char *times)
{
	double list[64];
	int n = 0, used = 0;

	while (times && n < 64 && sscanf(times, "%lf%n", &list[n], &used) == 1) {
		times += used;
		n++;
	}
	return n ? list[d->launches++ % (unsigned)n] : 5;
}

/* cost is the time of a kernel in microseconds. */
static double cost(const struct kernel *k, void **args)
{
	int gpu = current->index;
	double us = 0;

	if (k->bytes)
		us += k->bytes(args) / (number(gpu, "membw", k->name, 2800) * 1e3);
	if (k->flops)
		us += k->flops(args) / (number(gpu, "tflops", k->name, 50) * 1e6);
	return us > 0 ? us : launch_time(current, text(gpu, "launch", NULL));
}

/* run_grid runs a kernel with at most 2 blocks of 3 threads: each goes over the data in steps of the
   whole grid, so that a few do the work of all. */
static void run_grid(const struct kernel *k, void **args, unsigned blocks, unsigned threads)
{
	blocks_x = blocks < 2 ? blocks : 2;
	threads_x = threads < 3 ? threads : 3;
	for (block_x = 0; block_x < blocks_x; block_x++)
		for (thread_x = 0; thread_x < threads_x; thread_x++)
			k->run(args);
}

int cuLaunchKernel(struct kernel *k, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
		   unsigned shared, struct stream *s, void **args, void **extra)
{
	if (!k || extra || (size_t)bx * by * bz > 1024 || !gx || !gy || !gz || !bx)
		return INVALID_VALUE;
	CURRENT_OF("cuLaunchKernel", k->name);
	(void)shared;
	if (k->whole)
		k->run(args);
	else
		run_grid(k, args, gx, bx);
	char *first = k->bytes || k->flops ? ARG(args, 0, char *) : NULL;
	if (first && within(current, first, 1))
		turn_over(current, k->name, first, (size_t)(current->memory + current->size - first));
	settle(current);
	s = of(s);
	s->charge(s, cost(k, args));
	return OK;
}
