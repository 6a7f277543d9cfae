/* A libnvidia-ml.so.1 that answers as the file nvml.scenario in its directory defines; README.md
   describes the language. Everything else is not supported. */
#define _GNU_SOURCE
#define NVML_NO_UNVERSIONED_FUNC_DEFS 1
#include "nvml.h"

#include <ctype.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

#define ANY (-1)     /* every device, every argument */
#define SYSTEM (-2)  /* calls that are not about a device */
#define MAX_ARGS 3
#define MAX_NODES 16

enum action { ANSWER, FAIL, HANG, CRASH, EXIT, LATE, FIRST, WITH, COUNT };

struct rule {
	int device;
	char call[56];
	int nargs;
	long args[MAX_ARGS];
	enum action action;
	long number;      /* FAIL: the NVML error; EXIT: the status; LATE: milliseconds; FIRST: how often; COUNT: of entries */
	const char *text; /* ANSWER, FIRST, WITH */
	char file[56];    /* WITH: the file in the library's directory that must exist */
};

static struct rule *rules;
static int nrules, run, ready;
static long claimed = -1; /* by the rule that ask has found: number of entries to claim */

/* beside returns the path of a file in the directory of this library. */
static void beside(char *path, size_t size, const char *name)
{
	Dl_info info;
	const char *slash;

	if (!dladdr((void *)beside, &info) || !(slash = strrchr(info.dli_fname, '/')))
		_exit(99);
	snprintf(path, size, "%.*s/%s", (int)(slash - info.dli_fname), info.dli_fname, name);
}

static void broken(int line, const char *what)
{
	fprintf(stderr, "nvml.scenario:%d: %s\n", line, what);
	_exit(98);
}

static const char *const actions[] = {"=", "error", "hang", "crash", "exit", "late", "first", "with", "count"};

static int action_of(const char *word)
{
	for (int i = 0; i < (int)(sizeof actions / sizeof *actions); i++)
		if (strcmp(word, actions[i]) == 0)
			return i;
	return -1;
}

/* parse reads one line: DEVICE CALL [ARGUMENT...] ACTION. */
static void parse(char *text, int line)
{
	struct rule r = {0};
	char *save = NULL, *word = strtok_r(text, " \t", &save);
	int action;

	if (!word || *word == '#')
		return;
	r.device = strcmp(word, "*") == 0 ? ANY : strcmp(word, "-") == 0 ? SYSTEM : atoi(word);
	word = strtok_r(NULL, " \t", &save);
	if (!word)
		broken(line, "no call");
	snprintf(r.call, sizeof r.call, "%s", word);
	for (;;) {
		word = strtok_r(NULL, " \t", &save);
		if (!word)
			broken(line, "no action");
		if ((action = action_of(word)) >= 0)
			break;
		if (r.nargs == MAX_ARGS)
			broken(line, "too many arguments");
		r.args[r.nargs++] = strcmp(word, "*") == 0 ? ANY : strtol(word, NULL, 0);
	}
	r.action = action;
	r.text = strdup(save ? save + strspn(save, " \t") : "");
	r.number = strtol(r.text, NULL, 0);
	if (action == WITH)
		snprintf(r.file, sizeof r.file, "%.*s", (int)strcspn(r.text, " "), r.text);
	if ((action == FIRST || action == WITH) && (r.text = strstr(r.text, "= ")))
		r.text += 2;
	if (!r.text)
		broken(line, "no answer");
	rules = realloc(rules, (nrules + 1) * sizeof *rules);
	rules[nrules++] = r;
}

/* count counts the earlier calls of nvmlInit in all processes. */
static int count(void)
{
	char path[4096], text[32] = "";
	int fd, n = 0;

	beside(path, sizeof path, "nvml.runs");
	if ((fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644)) < 0)
		return 0;
	if (pread(fd, text, sizeof text - 1, 0) > 0)
		n = atoi(text);
	snprintf(text, sizeof text, "%d\n", n + 1);
	if (pwrite(fd, text, strlen(text), 0) < 0)
		n = 0;
	close(fd);
	return n;
}

static void load(void)
{
	char path[4096], *text = NULL;
	size_t size = 0;
	FILE *f;

	if (ready++)
		return;
	run = count();
	beside(path, sizeof path, "nvml.scenario");
	if (!(f = fopen(path, "re")))
		return;
	for (int line = 1; getline(&text, &size, f) > 0; line++) {
		text[strcspn(text, "\n")] = 0;
		parse(text, line);
	}
	free(text);
	fclose(f);
}

static int fits(const struct rule *r, int device, const char *call, const long *args)
{
	if (strcmp(r->call, "*") != 0 && strcmp(r->call, call) != 0)
		return 0;
	if (r->device != device && !(r->device == ANY && device >= 0))
		return 0;
	for (int i = 0; i < r->nargs; i++)
		if (r->args[i] != ANY && r->args[i] != args[i])
			return 0;
	return 1;
}

static long long uptime(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* ask performs the action of the last matching rule, and finds the answer. */
static nvmlReturn_t ask(int device, const char *call, const long *args, const char **answer)
{
	claimed = -1;
	for (int i = nrules - 1; i >= 0; i--) {
		struct rule *r = &rules[i];

		if (!fits(r, device, call, args))
			continue;
		switch (r->action) {
		case ANSWER:
			*answer = r->text;
			return NVML_SUCCESS;
		case FAIL:
			return (nvmlReturn_t)r->number;
		case HANG:
			for (;;)
				pause();
		case CRASH:
			*(volatile int *)0 = 0;
			break;
		case EXIT:
			_exit((int)r->number);
		case LATE:
			for (long long end = uptime() + r->number, left; (left = end - uptime()) > 0;) /* Go's signals end a sleep early */
				usleep((useconds_t)left * 1000);
			break;
		case COUNT:
			claimed = r->number;
			*answer = "0";
			return NVML_SUCCESS;
		case FIRST:
			if (r->number-- <= 0)
				break;
			*answer = r->text;
			return NVML_SUCCESS;
		case WITH: {
			char path[4096];

			beside(path, sizeof path, r->file);
			if (access(path, F_OK) != 0)
				break;
			*answer = r->text;
			return NVML_SUCCESS;
		}
		}
	}
	return NVML_ERROR_NOT_SUPPORTED;
}

/* uptime returns the milliseconds since the boot. */
/* next removes a number from an answer: 17, 0x11, 10+5, which is 10 in the first run and 5 more in
   each later run, or 10@5, which is 10 at the boot and grows by 5 each second. */
static long long next(const char **answer)
{
	char *end;
	long long n = strtoll(*answer, &end, 0);

	if (*end == '@')
		n += strtoll(end + 1, &end, 0) * uptime() / 1000;
	if (*end == '+' || (*end == '-' && end != *answer))
		n += run * strtoll(end, &end, 0);
	*answer = end + strspn(end, " \t");
	return n;
}

static int hex(char c) { return isdigit((unsigned char)c) ? c - '0' : (c | 0x20) - 'a' + 10; }

/* put writes a text answer: {i} is the device's index, {x} the same in two hexadecimal digits, \xNN
   a byte. A text that is too long fills its buffer without a final zero, as a broken library might.
   */
static void put(char *out, unsigned int size, int device, const char *s)
{
	unsigned int n = 0;
	char piece[16];

	while (*s && n < size) {
		if (strncmp(s, "{i}", 3) == 0 || strncmp(s, "{x}", 3) == 0) {
			snprintf(piece, sizeof piece, s[1] == 'i' ? "%d" : "%02x", device);
			s += 3;
			for (const char *p = piece; *p && n < size; p++)
				out[n++] = *p;
		} else if (s[0] == '\\' && s[1] == 'x' && isxdigit((unsigned char)s[2]) && isxdigit((unsigned char)s[3])) {
			out[n++] = (char)(hex(s[2]) << 4 | hex(s[3]));
			s += 4;
		} else {
			out[n++] = *s++;
		}
	}
	if (n < size)
		out[n] = 0;
}

static int index_of(nvmlDevice_t d) { return (int)((long)d.handle - 1); }

static const long none[MAX_ARGS] = {ANY, ANY, ANY};

#define SYSTEM_STRING(call) \
	nvmlReturn_t call(char *out, unsigned int size) \
	{ \
		const char *a; \
		nvmlReturn_t r = ask(SYSTEM, #call, none, &a); \
		if (r == NVML_SUCCESS) \
			put(out, size, 0, a); \
		return r; \
	}
#define STRING(call) \
	nvmlReturn_t call(nvmlDevice_t d, char *out, unsigned int size) \
	{ \
		const char *a; \
		nvmlReturn_t r = ask(index_of(d), #call, none, &a); \
		if (r == NVML_SUCCESS) \
			put(out, size, index_of(d), a); \
		return r; \
	}
#define NOTHING(call) \
	nvmlReturn_t call(nvmlDevice_t d) \
	{ \
		const char *a; \
		return ask(index_of(d), #call, none, &a); \
	}
#define NUMBER(call, type) \
	nvmlReturn_t call(nvmlDevice_t d, type *out) \
	{ \
		const char *a; \
		nvmlReturn_t r = ask(index_of(d), #call, none, &a); \
		if (r == NVML_SUCCESS) \
			*out = strcmp(a, "{i}") == 0 ? (type)index_of(d) : (type)next(&a); \
		return r; \
	}
#define PAIR(call, type) \
	nvmlReturn_t call(nvmlDevice_t d, type *one, type *two) \
	{ \
		const char *a; \
		nvmlReturn_t r = ask(index_of(d), #call, none, &a); \
		if (r == NVML_SUCCESS) { \
			*one = (type)next(&a); \
			*two = (type)next(&a); \
		} \
		return r; \
	}
#define NUMBER_OF(call, kind) \
	nvmlReturn_t call(nvmlDevice_t d, kind what, unsigned int *out) \
	{ \
		const char *a; \
		long args[MAX_ARGS] = {what, ANY, ANY}; \
		nvmlReturn_t r = ask(index_of(d), #call, args, &a); \
		if (r == NVML_SUCCESS) \
			*out = (unsigned int)next(&a); \
		return r; \
	}
/* The answer is PID and bytes for each process. The first form of the call has no MIG instances; the
   third is the second with another name. */
#define PROCESSES(call) \
	PROCESS_LIST(call, call, nvmlProcessInfo_v1_t, (void)0) \
	PROCESS_LIST(call, call##_v2, nvmlProcessInfo_v2_t, instances(&out[*n])) \
	PROCESS_LIST(call, call##_v3, nvmlProcessInfo_t, instances(&out[*n]))
#define PROCESS_LIST(call, form, record, and) \
	nvmlReturn_t form(nvmlDevice_t d, unsigned int *n, record *out) \
	{ \
		const char *a; \
		unsigned int room = *n; \
		nvmlReturn_t r = ask(index_of(d), #call, none, &a); \
		if (r != NVML_SUCCESS) \
			return r; \
		if (claimed >= 0) { \
			*n = (unsigned int)claimed; \
			return r; \
		} \
		for (*n = 0; *a; (*n)++) { \
			unsigned int pid = (unsigned int)next(&a); \
			unsigned long long bytes = (unsigned long long)next(&a); \
			if (*n >= room) \
				continue; \
			out[*n].pid = pid; \
			out[*n].usedGpuMemory = bytes; \
			and; \
		} \
		return *n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS; \
	}

/* instances sets that a process is on no MIG instance. */
static void instances(nvmlProcessInfo_v2_t *p) { p->gpuInstanceId = p->computeInstanceId = -1U; }

/* A struct with a version must have the correct one. */
#define WANT_VERSION(s, want) \
	if ((s)->version != (want)) \
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH

#include "calls.h"

nvmlReturn_t nvmlInit_v2(void)
{
	const char *a;
	nvmlReturn_t r;

	load();
	r = ask(SYSTEM, "nvmlInit", none, &a);
	for (int i = 0; i < MAX_NODES; i++) {
		long node[MAX_ARGS] = {i};

		if (ask(SYSTEM, "node", node, &a) == NVML_SUCCESS) { /* of no GPU: "3 * hang" is not about it */
			char name[256], path[4096];

			put(name, sizeof name, i, a);
			beside(path, sizeof path, name);
			close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
		}
	}
	return r == NVML_ERROR_NOT_SUPPORTED ? NVML_SUCCESS : r;
}

nvmlReturn_t nvmlShutdown(void)
{
	const char *a;
	nvmlReturn_t r = ask(SYSTEM, "nvmlShutdown", none, &a);

	return r == NVML_ERROR_NOT_SUPPORTED ? NVML_SUCCESS : r;
}

const char *nvmlErrorString(nvmlReturn_t r)
{
	static char text[32];

	snprintf(text, sizeof text, "fake error %d", (int)r);
	return text;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *n)
{
	const char *a;
	nvmlReturn_t r = ask(SYSTEM, "nvmlDeviceGetCount", none, &a);

	if (r == NVML_SUCCESS)
		*n = (unsigned int)next(&a);
	return r;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int i, nvmlDevice_t *d)
{
	const char *a;
	nvmlReturn_t r = ask((int)i, "nvmlDeviceGetHandleByIndex", none, &a);

	d->handle = (void *)((long)i + 1); /* go-nvml's header wraps the pointer */
	return r == NVML_ERROR_NOT_SUPPORTED ? NVML_SUCCESS : r;
}

/* The handle of a MIG device is that of its GPU and, in thousands, its number. */
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned int i, nvmlDevice_t *mig)
{
	const char *a;
	long args[MAX_ARGS] = {(long)i, ANY, ANY};
	nvmlReturn_t r = ask(index_of(d), "nvmlDeviceGetMigDeviceHandleByIndex", args, &a);

	mig->handle = (void *)((long)d.handle + 1000 * ((long)i + 1));
	return r == NVML_ERROR_NOT_SUPPORTED ? NVML_ERROR_NOT_FOUND : r;
}

/* The UUID of a MIG device is the answer of the call for its handle. */
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *out, unsigned int size)
{
	const char *a;
	long handle = (long)d.handle, args[MAX_ARGS] = {handle / 1000 - 1, ANY, ANY};
	int gpu = (int)(handle % 1000 - 1);
	nvmlReturn_t r = handle < 1000 ? ask(gpu, "nvmlDeviceGetUUID", none, &a) : ask(gpu, "nvmlDeviceGetMigDeviceHandleByIndex", args, &a);

	if (r == NVML_SUCCESS)
		put(out, size, gpu, a);
	return r;
}

/* The answer is the address and, as numbers, device and subsystem; after "text" it is only a text. */
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *pci)
{
	const char *a;
	char text[128] = "";
	unsigned int fn = 0;
	int used = 0;
	nvmlReturn_t r = ask(index_of(d), "nvmlDeviceGetPciInfo", none, &a);

	if (r != NVML_SUCCESS)
		return r;
	memset(pci, 0, sizeof *pci);
	if (strncmp(a, "text ", 5) == 0) {
		put(pci->busId, sizeof pci->busId, index_of(d), a + 5);
		return r;
	}
	put(text, sizeof text - 1, index_of(d), a);
	if (sscanf(text, "%x:%x:%x.%x%n", &pci->domain, &pci->bus, &pci->device, &fn, &used) < 4)
		return NVML_ERROR_UNKNOWN;
	snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.%X", pci->domain, pci->bus, pci->device, fn);
	a = text + used;
	pci->pciDeviceId = (unsigned int)next(&a);
	pci->pciSubSystemId = (unsigned int)next(&a);
	return r;
}

/* A field is the call "field" with its number. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int n, nvmlFieldValue_t *values)
{
	const char *a;
	nvmlReturn_t r = ask(index_of(d), "nvmlDeviceGetFieldValues", none, &a);

	if (r != NVML_SUCCESS && r != NVML_ERROR_NOT_SUPPORTED)
		return r;
	for (int i = 0; i < n; i++) {
		long args[MAX_ARGS] = {values[i].fieldId, values[i].scopeId, ANY};

		values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
		values[i].nvmlReturn = ask(index_of(d), "field", args, &a);
		if (values[i].nvmlReturn != NVML_SUCCESS)
			continue;
		values[i].value.ullVal = (unsigned long long)next(&a);
		if ((long long)values[i].value.ullVal < 0) {
			values[i].valueType = NVML_VALUE_TYPE_SIGNED_INT;
			values[i].value.siVal = (int)values[i].value.ullVal;
		}
	}
	return NVML_SUCCESS;
}

/* Events: a device's rule for nvmlEventSetWait has the type and the data of an event. Each is reported once,
   and its file is removed: 3 nvmlEventSetWait with event3 = 8 79 */
static int registered[64];

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	const char *a;
	nvmlReturn_t r = ask(SYSTEM, "nvmlEventSetCreate", none, &a);

	set->handle = (void *)1;
	return r;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	(void)set;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t d, unsigned long long types, nvmlEventSet_t set)
{
	const char *a;
	nvmlReturn_t r = ask(index_of(d), "nvmlDeviceRegisterEvents", none, &a);

	(void)set;
	if (r == NVML_SUCCESS && index_of(d) < 64)
		registered[index_of(d)] = types != 0;
	return r;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int ms)
{
	static int files = -1; /* reports new files beside this library, so that nothing polls */
	const char *a;
	long long end = uptime() + ms;
	nvmlReturn_t r = ask(SYSTEM, "nvmlEventSetWait", none, &a);
	struct pollfd wait = {.events = POLLIN};

	(void)set;
	if (r != NVML_SUCCESS && r != NVML_ERROR_NOT_SUPPORTED)
		return r;
	if (files < 0) {
		char dir[4096];

		beside(dir, sizeof dir, "");
		if ((files = inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) >= 0)
			inotify_add_watch(files, dir, IN_CREATE | IN_MOVED_TO | IN_ATTRIB);
	}
	for (wait.fd = files;;) {
		char changes[4096];

		while (read(files, changes, sizeof changes) > 0)
			;
		for (int i = 0; i < 64; i++) {
			char path[4096], name[16];

			if (!registered[i] || ask(i, "nvmlEventSetWait", none, &a) != NVML_SUCCESS)
				continue;
			memset(data, 0, sizeof *data);
			data->device.handle = (void *)((long)i + 1);
			data->eventType = (unsigned long long)next(&a);
			data->eventData = (unsigned long long)next(&a);
			snprintf(name, sizeof name, "event%d", i);
			beside(path, sizeof path, name);
			unlink(path);
			return NVML_SUCCESS;
		}
		if (uptime() >= end)
			return NVML_ERROR_TIMEOUT;
		poll(&wait, 1, (int)(end - uptime()));
	}
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t d, nvmlMemoryErrorType_t kind, nvmlEccCounterType_t counter,
                                             nvmlMemoryLocation_t where, unsigned long long *out)
{
	const char *a;
	long handle = (long)d.handle, args[MAX_ARGS] = {kind, counter, where}, mig[MAX_ARGS] = {handle / 1000 - 1, ANY, ANY};
	nvmlReturn_t r = handle < 1000 ? ask(index_of(d), "nvmlDeviceGetMemoryErrorCounter", args, &a) : NVML_ERROR_NOT_SUPPORTED;

	if (handle >= 1000 && kind == NVML_MEMORY_ERROR_TYPE_UNCORRECTED && counter == NVML_VOLATILE_ECC && where == NVML_MEMORY_LOCATION_SRAM)
		r = ask((int)(handle % 1000 - 1), "migErrors", mig, &a);

	if (r == NVML_SUCCESS)
		*out = (unsigned long long)next(&a);
	return r;
}

/* Corrected, uncorrected, pending, failed. */
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned int *cor, unsigned int *unc, unsigned int *pending, unsigned int *failed)
{
	const char *a;
	nvmlReturn_t r = ask(index_of(d), "nvmlDeviceGetRemappedRows", none, &a);

	if (r == NVML_SUCCESS) {
		*cor = (unsigned int)next(&a);
		*unc = (unsigned int)next(&a);
		*pending = (unsigned int)next(&a);
		*failed = (unsigned int)next(&a);
	}
	return r;
}

/* Banks with max, high, partial, low and no spare rows. */
nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t d, nvmlRowRemapperHistogramValues_t *v)
{
	const char *a;
	nvmlReturn_t r = ask(index_of(d), "nvmlDeviceGetRowRemapperHistogram", none, &a);

	if (r == NVML_SUCCESS) {
		v->max = (unsigned int)next(&a);
		v->high = (unsigned int)next(&a);
		v->partial = (unsigned int)next(&a);
		v->low = (unsigned int)next(&a);
		v->none = (unsigned int)next(&a);
	}
	return r;
}

/* Whether the threshold is exceeded; the counters are those of the other call. */
nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t d, nvmlEccSramErrorStatus_t *s)
{
	const char *a;
	nvmlReturn_t r = ask(index_of(d), "nvmlDeviceGetSramEccErrorStatus", none, &a);

	WANT_VERSION(s, nvmlEccSramErrorStatus_v1);
	if (r == NVML_SUCCESS)
		s->bThresholdExceeded = (unsigned int)next(&a);
	return r;
}

/* Channel, TPC. */
nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t d, nvmlRepairStatus_t *s)
{
	const char *a;
	nvmlReturn_t r = ask(index_of(d), "nvmlDeviceGetRepairStatus", none, &a);

	WANT_VERSION(s, nvmlRepairStatus_v1);
	if (r == NVML_SUCCESS) {
		s->bChannelRepairPending = (unsigned int)next(&a);
		s->bTpcRepairPending = (unsigned int)next(&a);
	}
	return r;
}

nvmlReturn_t nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t d, nvmlUnrepairableMemoryStatus_v1_t *s)
{
	const char *a;
	nvmlReturn_t r = ask(index_of(d), "nvmlDeviceGetUnrepairableMemoryFlag_v1", none, &a);

	if (r == NVML_SUCCESS)
		s->bUnrepairableMemory = (unsigned int)next(&a);
	return r;
}

nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t d, nvmlMarginTemperature_t *m)
{
	const char *a;
	nvmlReturn_t r = ask(index_of(d), "nvmlDeviceGetMarginTemperature", none, &a);

	WANT_VERSION(m, nvmlMarginTemperature_v1);
	if (r == NVML_SUCCESS)
		m->marginTemperature = (int)next(&a);
	return r;
}

/* Percent of the time while a kernel ran, and while memory was read or written. */
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *u)
{
	const char *a;
	nvmlReturn_t r = ask(index_of(d), "nvmlDeviceGetUtilizationRates", none, &a);

	if (r == NVML_SUCCESS) {
		u->gpu = (unsigned int)next(&a);
		u->memory = (unsigned int)next(&a);
	}
	return r;
}

/* GPM: a device has it with "3 nvmlGpmQueryDeviceSupport = 1", and the values "3 gpm METRIC = PERCENT". */
struct nvmlGpmSample_st {
	int device;
	long long at;
};

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t d, nvmlGpmSupport_t *s)
{
	const char *a;
	nvmlReturn_t r = ask(index_of(d), "nvmlGpmQueryDeviceSupport", none, &a);

	WANT_VERSION(s, NVML_GPM_SUPPORT_VERSION);
	if (r == NVML_SUCCESS)
		s->isSupportedDevice = (unsigned int)next(&a);
	return r;
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *s)
{
	s->handle = calloc(1, sizeof *s->handle);
	return s->handle ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t s)
{
	free(s.handle);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t d, nvmlGpmSample_t s)
{
	const char *a;
	nvmlReturn_t r = ask(index_of(d), "nvmlGpmSampleGet", none, &a);

	s.handle->device = index_of(d);
	s.handle->at = uptime();
	return r == NVML_ERROR_NOT_SUPPORTED ? NVML_SUCCESS : r;
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *g)
{
	const char *a;

	WANT_VERSION(g, NVML_GPM_METRICS_GET_VERSION);
	if (g->sample1.handle->device != g->sample2.handle->device || g->sample2.handle->at - g->sample1.handle->at < 100)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < g->numMetrics; i++) {
		long args[MAX_ARGS] = {g->metrics[i].metricId, ANY, ANY};

		g->metrics[i].nvmlReturn = ask(g->sample2.handle->device, "gpm", args, &a);
		if (g->metrics[i].nvmlReturn == NVML_SUCCESS)
			g->metrics[i].value = (double)next(&a);
	}
	return NVML_SUCCESS;
}

/* Environment, feature, developers' tools. */
nvmlReturn_t nvmlSystemGetConfComputeState(nvmlConfComputeSystemState_t *s)
{
	const char *a;
	nvmlReturn_t r = ask(SYSTEM, "nvmlSystemGetConfComputeState", none, &a);

	if (r == NVML_SUCCESS) {
		s->environment = (unsigned int)next(&a);
		s->ccFeature = (unsigned int)next(&a);
		s->devToolsMode = (unsigned int)next(&a);
	}
	return r;
}

/* Total, free and used bytes. */
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t *m)
{
	const char *a;
	nvmlReturn_t r = ask(index_of(d), "nvmlDeviceGetMemoryInfo", none, &a);

	WANT_VERSION(m, nvmlMemory_v2);
	if (r == NVML_SUCCESS) {
		m->total = (unsigned long long)next(&a);
		m->free = (unsigned long long)next(&a);
		m->used = (unsigned long long)next(&a);
	}
	return r;
}

/* The same without the driver's own memory. */
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m)
{
	const char *a;
	nvmlReturn_t r = ask(index_of(d), "nvmlDeviceGetMemoryInfo", none, &a);

	if (r == NVML_SUCCESS) {
		m->total = (unsigned long long)next(&a);
		m->free = (unsigned long long)next(&a);
		m->used = (unsigned long long)next(&a);
	}
	return r;
}

/* Pages of each cause: the call with the cause as its argument. */
nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t d, nvmlPageRetirementCause_t cause, unsigned int *n, unsigned long long *addresses)
{
	const char *a;
	long args[MAX_ARGS] = {cause, ANY, ANY};
	unsigned int room = *n;
	nvmlReturn_t r = ask(index_of(d), "nvmlDeviceGetRetiredPages", args, &a);

	if (r != NVML_SUCCESS)
		return r;
	if (claimed >= 0) {
		*n = (unsigned int)claimed;
		return r;
	}
	*n = (unsigned int)next(&a);
	for (unsigned int i = 0; i < *n && i < room; i++)
		addresses[i] = i << 12;
	return *n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* Whether setting works: "= " does. Later calls return the new value. */
nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t d, nvmlEnableState_t mode)
{
	const char *a;
	char line[80];
	nvmlReturn_t r = ask(index_of(d), "nvmlDeviceSetPersistenceMode", none, &a);

	if (r == NVML_SUCCESS) {
		snprintf(line, sizeof line, "%d nvmlDeviceGetPersistenceMode = %d", index_of(d), (int)mode);
		parse(line, 0);
	}
	return r;
}

/* The far end of a link: GPU 0, NPU 1, switch 2, unknown 255. */
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t d, unsigned int link, nvmlIntNvLinkDeviceType_t *out)
{
	const char *a;
	long args[MAX_ARGS] = {link, ANY, ANY};
	nvmlReturn_t r = ask(index_of(d), "nvmlDeviceGetNvLinkRemoteDeviceType", args, &a);

	if (r == NVML_SUCCESS)
		*out = (nvmlIntNvLinkDeviceType_t)next(&a);
	return r;
}

/* Its address: 0000:05:00.0. */
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t d, unsigned int link, nvmlPciInfo_t *pci)
{
	const char *a;
	unsigned int fn = 0;
	long args[MAX_ARGS] = {link, ANY, ANY};
	nvmlReturn_t r = ask(index_of(d), "nvmlDeviceGetNvLinkRemotePciInfo", args, &a);

	if (r != NVML_SUCCESS)
		return r;
	memset(pci, 0, sizeof *pci);
	if (sscanf(a, "%x:%x:%x.%x", &pci->domain, &pci->bus, &pci->device, &fn) < 4)
		return NVML_ERROR_UNKNOWN;
	snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.%X", pci->domain, pci->bus, pci->device, fn);
	return NVML_SUCCESS;
}

/* The argument is the number of the PCI bus. */
nvmlReturn_t nvmlDeviceQueryDrainState(nvmlPciInfo_t *pci, nvmlEnableState_t *out)
{
	const char *a;
	char id[NVML_DEVICE_PCI_BUS_ID_BUFFER_SIZE];
	long args[MAX_ARGS] = {pci->bus, ANY, ANY};
	nvmlReturn_t r;

	snprintf(id, sizeof id, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
	if (strcmp(id, pci->busId) != 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	r = ask(SYSTEM, "nvmlDeviceQueryDrainState", args, &a);
	if (r == NVML_SUCCESS)
		*out = (nvmlEnableState_t)next(&a);
	return r;
}

/* The arguments are the other GPU and the access: read 0, write 1, NVLink 2. */
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t d, nvmlDevice_t peer, nvmlGpuP2PCapsIndex_t what, nvmlGpuP2PStatus_t *out)
{
	const char *a;
	long args[MAX_ARGS] = {index_of(peer), (long)what, ANY};
	nvmlReturn_t r = ask(index_of(d), "nvmlDeviceGetP2PStatus", args, &a);

	if (r == NVML_SUCCESS)
		*out = (nvmlGpuP2PStatus_t)next(&a);
	return r;
}

/* State, status, clique, the first and the last byte of the cluster's UUID, health mask, health
   summary. An older form of the struct lacks the last ones. */
static nvmlReturn_t fabric(nvmlDevice_t d, nvmlGpuFabricInfo_v3_t *f, const char *call)
{
	const char *a;
	nvmlReturn_t r = ask(index_of(d), call, none, &a);

	if (r == NVML_ERROR_NOT_SUPPORTED) /* both forms use the name of the first */
		r = ask(index_of(d), "nvmlDeviceGetGpuFabricInfo", none, &a);

	if (r == NVML_SUCCESS) {
		f->state = (nvmlGpuFabricState_t)next(&a);
		f->status = (nvmlReturn_t)next(&a);
		f->cliqueId = (unsigned int)next(&a);
		memset(f->clusterUuid, 0, sizeof f->clusterUuid);
		f->clusterUuid[0] = (unsigned char)next(&a);
		f->clusterUuid[NVML_GPU_FABRIC_UUID_LEN - 1] = (unsigned char)next(&a);
		f->healthMask = (unsigned int)next(&a);
		f->healthSummary = (unsigned char)next(&a);
	}
	return r;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t d, nvmlGpuFabricInfo_t *out)
{
	nvmlGpuFabricInfo_v3_t f = {0};
	nvmlReturn_t r = fabric(d, &f, "nvmlDeviceGetGpuFabricInfo");

	memcpy(out->clusterUuid, f.clusterUuid, sizeof f.clusterUuid);
	out->status = f.status;
	out->cliqueId = f.cliqueId;
	out->state = f.state;
	return r;
}

/* "- fabricVersions = N": the newest form that the driver has, 3 by default. */
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t d, nvmlGpuFabricInfoV_t *out)
{
	const char *a;
	long newest = ask(SYSTEM, "fabricVersions", none, &a) == NVML_SUCCESS ? (long)next(&a) : 3;
	nvmlGpuFabricInfo_v3_t f = {0};
	nvmlGpuFabricInfo_v2_t *old = (nvmlGpuFabricInfo_v2_t *)out;
	nvmlReturn_t r;

	if (out->version != nvmlGpuFabricInfo_v2 && (out->version != nvmlGpuFabricInfo_v3 || newest < 3))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if ((r = fabric(d, &f, "nvmlDeviceGetGpuFabricInfoV")) != NVML_SUCCESS)
		return r;
	memcpy(old->clusterUuid, f.clusterUuid, sizeof f.clusterUuid);
	old->status = f.status;
	old->cliqueId = f.cliqueId;
	old->state = f.state;
	old->healthMask = f.healthMask;
	if (out->version == nvmlGpuFabricInfo_v3)
		out->healthSummary = f.healthSummary;
	return r;
}
