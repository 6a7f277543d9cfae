/* A libcuda.so.1 that answers as its scenario defines: devices, contexts, memory. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct device devices[MAX_GPUS];
int ndevices;
__thread struct device *current;
static int started;

/* CALL reads the scenario's action for a call. */
#define CALL(gpu, name, arg) \
	do { \
		int result; \
		if (!started && strcmp(name, "cuInit") != 0) \
			return 3; \
		if (!allowed(gpu, name, arg, &result)) \
			return result; \
	} while (0)
#define CURRENT(name) \
	if (!current) \
		return INVALID_CONTEXT; \
	if (current->dead && current->dead != NOT_READY) \
		return current->dead; \
	CALL(current->index, name, NULL)

static void charge(struct stream *s, double us)
{
	if (s->now < s->device->now)
		s->now = s->device->now;
	for (struct stream *other = s->device->streams; other; other = other->next)
		if (other != s && other->now > s->now) {
			us /= number(s->device->index, "beside", NULL, 1);
			break;
		}
	s->now += us;
}

/* start_device allocates a GPU's memory, which uses no host memory until it is written. */
static void start_device(int i)
{
	struct device *d = &devices[i];
	const char *stuck = text(i, "stuck", NULL);

	d->index = i;
	pthread_mutex_init(&d->lock, NULL);
	d->size = (size_t)number(i, "memory", NULL, 32 << 20);
	d->memory = mmap(NULL, d->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (d->memory == MAP_FAILED)
		abort();
	d->pieces = calloc(1, sizeof *d->pieces);
	d->pieces->size = d->size;
	d->zero = (struct stream){.charge = charge, .device = d};
	d->stuck.bit = -1;
	if (stuck)
		sscanf(stuck, "%li %d %d", (long *)&d->stuck.at, &d->stuck.bit, &d->stuck.value);
}

static int shows_mig;

/* asked_for is the number of GPUs in a list of UUIDs. Without a list there is only the MIG instance
   of the last GPU, as before R570. */
static int asked_for(const char *list)
{
	int n = 1;

	for (; list && *list; list++)
		n += *list == ',';
	return n;
}

int cuInit(unsigned flags)
{
	load_scenario();
	CALL(SYSTEM, "cuInit", NULL);
	ndevices = (int)number(SYSTEM, "cuDeviceGetCount", NULL, 0);
	if (number(SYSTEM, "mig", NULL, 0)) {
		shows_mig = !getenv("CUDA_VISIBLE_DEVICES");
		ndevices = asked_for(getenv("CUDA_VISIBLE_DEVICES"));
	}
	if (ndevices == 0)
		return NO_DEVICE;
	for (int i = 0; i < ndevices && i < MAX_GPUS && !started; i++)
		start_device(i);
	started = 1;
	return flags ? INVALID_VALUE : OK;
}

int cuDriverGetVersion(int *version)
{
	CALL(SYSTEM, "cuDriverGetVersion", NULL);
	*version = (int)number(SYSTEM, "cuDriverGetVersion", NULL, 12080);
	return OK;
}

int cuGetErrorName(int error, const char **name)
{
	if (error != 998)
		return INVALID_VALUE; /* the program has its own names */
	*name = "CUDA_ERROR_OF_ANOTHER_TIME";
	return OK;
}

int cuDeviceGetCount(int *n)
{
	CALL(SYSTEM, "cuDeviceGetCount", NULL);
	*n = ndevices;
	return OK;
}

int cuDeviceGet(int *device, int ordinal)
{
	if (ordinal < 0 || ordinal >= ndevices)
		return INVALID_DEVICE;
	CALL(ordinal, "cuDeviceGet", NULL);
	*device = ordinal;
	return OK;
}

int cuDeviceGetName(char *out, int size, int d)
{
	const char *name = text(d, "cuDeviceGetName", NULL);

	CALL(d, "cuDeviceGetName", NULL);
	snprintf(out, (size_t)size, "%s", name ? name : "NVIDIA H100 80GB HBM3");
	return OK;
}

int cuDeviceGetPCIBusId(char *out, int size, int d)
{
	const char *address = text(d, "cuDeviceGetPCIBusId", NULL);

	CALL(d, "cuDeviceGetPCIBusId", NULL);
	if (address)
		snprintf(out, (size_t)size, "%s", address);
	else
		snprintf(out, (size_t)size, "0000:%02X:00.0", 0x10 + (shows_mig ? (int)number(SYSTEM, "mig", NULL, 0) : d));
	return OK;
}

int cuDeviceGetUuid_v2(unsigned char uuid[16], int d)
{
	CALL(d, "cuDeviceGetUuid", NULL);
	memset(uuid, 0, 16);
	uuid[15] = (unsigned char)d;
	return OK;
}

int cuDeviceGetUuid(unsigned char uuid[16], int d) { return cuDeviceGetUuid_v2(uuid, d); }

int cuDeviceTotalMem_v2(size_t *bytes, int d)
{
	CALL(d, "cuDeviceTotalMem", NULL);
	*bytes = (size_t)number(d, "total", NULL, (double)devices[d].size);
	return OK;
}

int cuDeviceGetAttribute(int *value, int attribute, int d)
{
	static const struct { int attribute; double value; } usual[] = {
		{16, 2}, {75, 9}, {76, 0},
	};
	char name[16];

	snprintf(name, sizeof name, "%d", attribute);
	CALL(d, "cuDeviceGetAttribute", name);
	for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
		if (usual[i].attribute == attribute) {
			*value = (int)number(d, "attribute", name, usual[i].value);
			return OK;
		}
	return INVALID_VALUE;
}

static int reach(int from, int to)
{
	char name[16];

	snprintf(name, sizeof name, "%d", to);
	return number(from, "reach", name, 1) != 0;
}

int cuDeviceCanAccessPeer(int *can, int from, int to)
{
	CALL(from, "cuDeviceCanAccessPeer", NULL);
	*can = from != to && reach(from, to);
	return OK;
}

int cuDevicePrimaryCtxRetain(struct device **context, int d)
{
	CALL(d, "cuDevicePrimaryCtxRetain", NULL);
	if (number(d, "attribute", "20", 0) == 2)
		return INVALID_DEVICE; /* compute mode prohibited */
	pthread_mutex_lock(&devices[d].lock);
	devices[d].retained++;
	pthread_mutex_unlock(&devices[d].lock);
	*context = &devices[d];
	return OK;
}

/* empty frees all resources of a context. */
static void empty_device(struct device *d)
{
	struct piece *p = d->pieces, *next;

	for (; p; p = next) {
		next = p->next;
		free(p);
	}
	d->pieces = calloc(1, sizeof *d->pieces);
	d->pieces->size = d->size;
	for (struct stream *s = d->streams, *after; s; s = after) {
		after = s->next;
		free(s);
	}
	for (struct event *e = d->events, *after; e; e = after) {
		after = e->next;
		free(e);
	}
	d->streams = NULL;
	d->events = NULL;
	d->peers = 0;
}

static void wait_for_work(struct device *d)
{
	while (d->held)
		pause();
}

int cuDevicePrimaryCtxRelease_v2(int d)
{
	wait_for_work(&devices[d]);
	CALL(d, "cuDevicePrimaryCtxRelease", NULL);
	pthread_mutex_lock(&devices[d].lock);
	int result = devices[d].retained > 0 ? OK : INVALID_CONTEXT;
	if (result == OK && --devices[d].retained == 0)
		empty_device(&devices[d]);
	pthread_mutex_unlock(&devices[d].lock);
	return result;
}

int cuDevicePrimaryCtxReset_v2(int d)
{
	wait_for_work(&devices[d]);
	CALL(d, "cuDevicePrimaryCtxReset", NULL);
	pthread_mutex_lock(&devices[d].lock);
	empty_device(&devices[d]);
	pthread_mutex_unlock(&devices[d].lock);
	return OK;
}

int cuCtxSetCurrent(struct device *context)
{
	CALL(context ? context->index : SYSTEM, "cuCtxSetCurrent", NULL);
	current = context;
	return OK;
}

int cuCtxGetDevice(int *device)
{
	if (!current)
		return INVALID_CONTEXT;
	*device = current->index;
	return OK;
}

int cuCtxEnablePeerAccess(struct device *peer, unsigned flags)
{
	CURRENT("cuCtxEnablePeerAccess");
	if (flags || !peer || peer == current || !reach(current->index, peer->index))
		return PEER_UNSUPPORTED;
	if (current->peers & 1 << peer->index)
		return PEER_ALREADY;
	if (__builtin_popcount((unsigned)current->peers) >= (int)number(current->index, "peers", NULL, 32))
		return TOO_MANY_PEERS;
	current->peers |= 1 << peer->index;
	return OK;
}

int cuCtxDisablePeerAccess(struct device *peer)
{
	CURRENT("cuCtxDisablePeerAccess");
	if (!peer || !(current->peers & 1 << peer->index))
		return PEER_NOT_ENABLED;
	current->peers &= ~(1 << peer->index);
	return OK;
}

int cuMemGetInfo_v2(size_t *left, size_t *total)
{
	CURRENT("cuMemGetInfo");
	pthread_mutex_lock(&current->lock);
	*left = 0;
	*total = current->size;
	for (struct piece *p = current->pieces; p; p = p->next)
		*left += p->taken ? 0 : p->size;
	*left = (size_t)number(current->index, "free", NULL, (double)*left);
	pthread_mutex_unlock(&current->lock);
	return OK;
}

int cuMemAlloc_v2(void **out, size_t size)
{
	struct piece *p, *rest;

	CURRENT("cuMemAlloc");
	*out = NULL;
	if (number(current->index, "nothing", "cuMemAlloc", 0))
		return OK;
	if (size == 0)
		return INVALID_VALUE;
	size = (size + 511) & ~(size_t)511;
	pthread_mutex_lock(&current->lock);
	for (p = current->pieces; p && (p->taken || p->size < size); p = p->next)
		;
	if (p && p->size > size) {
		rest = calloc(1, sizeof *rest);
		*rest = (struct piece){p->at + size, p->size - size, 0, p->next};
		p->next = rest;
		p->size = size;
	}
	if (p)
		p->taken = 1;
	pthread_mutex_unlock(&current->lock);
	if (!p)
		return OUT_OF_MEMORY;
	*out = current->memory + p->at;
	return OK;
}

int cuMemFree_v2(char *at)
{
	int result = INVALID_VALUE;

	CURRENT("cuMemFree");
	pthread_mutex_lock(&current->lock);
	for (struct piece *p = current->pieces, *before = NULL; p; before = p, p = p->next) {
		if (current->memory + p->at != at || !p->taken)
			continue;
		p->taken = 0;
		result = OK;
		for (struct piece *n = p->next; n && !n->taken; n = p->next) {
			p->size += n->size;
			p->next = n->next;
			free(n);
		}
		if (before && !before->taken) {
			before->size += p->size;
			before->next = p->next;
			free(p);
		}
		break;
	}
	pthread_mutex_unlock(&current->lock);
	return result;
}

int cuMemHostAlloc(void **out, size_t size, unsigned flags)
{
	CURRENT("cuMemHostAlloc");
	(void)flags;
	*out = NULL;
	if (number(current->index, "nothing", "cuMemHostAlloc", 0))
		return OK;
	*out = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return *out == MAP_FAILED ? OUT_OF_MEMORY : OK;
}

int cuMemFreeHost(void *at)
{
	CURRENT("cuMemFreeHost");
	(void)at; /* its size is unknown; the process ends soon */
	return OK;
}
