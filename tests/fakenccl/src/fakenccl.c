/* A libnccl.so.2 that answers as the file nccl.scenario in its directory defines; README.md
   describes the language. The memory of the fake libcuda's GPUs is the host's: an operation is
   carried out at once when all ranks have requested it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

#define MAX_RANKS 16
#define MAX_OPS 4096

static struct rule rules[128];
static int nrules;
static FILE *debug;

static void broken(int line, const char *what)
{
	fprintf(stderr, "nccl.scenario:%d: %s\n", line, what);
	_exit(98);
}

/* parse reads one line: GPU CALL [ARGUMENT] [after N] ACTION. */
static void parse(char *at, int line)
{
	static const char *const actions[] = {"=", "error", "hang", "crash", "exit"};
	struct rule r = {0};
	char *save = NULL, *word = strtok_r(at, " \t", &save);

	if (!word || *word == '#')
		return;
	r.gpu = strcmp(word, "*") == 0 ? ANY : strcmp(word, "-") == 0 ? SYSTEM : atoi(word);
	if (!(word = strtok_r(NULL, " \t", &save)))
		broken(line, "no call");
	snprintf(r.call, sizeof r.call, "%s", word);
	while ((word = strtok_r(NULL, " \t", &save))) {
		for (int i = 0; i < 5; i++) {
			if (strcmp(word, actions[i]) != 0)
				continue;
			r.action = (enum action)i;
			r.text = strdup(save ? save + strspn(save, " \t") : "");
			r.number = strtol(r.text, NULL, 0);
			if (nrules == 128)
				broken(line, "too many lines");
			rules[nrules++] = r;
			return;
		}
		if (strcmp(word, "after") == 0 && (word = strtok_r(NULL, " \t", &save)))
			r.after = strtol(word, NULL, 0);
		else
			snprintf(r.arg, sizeof r.arg, "%s", word);
	}
	broken(line, "no action");
}

static int fits(const struct rule *r, int gpu, const char *call, const char *arg)
{
	return strcmp(r->call, call) == 0 && (r->gpu == gpu || (r->gpu == ANY && gpu >= 0)) &&
	       (!r->arg[0] || strcmp(r->arg, "*") == 0 || (arg && strcmp(r->arg, arg) == 0));
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the rules' counts */

struct rule *matched(int gpu, const char *call)
{
	struct rule *found = NULL;

	pthread_mutex_lock(&lock);
	for (int i = nrules - 1; i >= 0 && !found; i--) {
		struct rule *r = &rules[i];
		if (r->action != ANSWER && fits(r, gpu, call, NULL) && r->after-- <= 0)
			found = r;
	}
	pthread_mutex_unlock(&lock);
	return found;
}

/* refused is the result of a call if the scenario has one, else OK. */
static int refused(int gpu, const char *call)
{
	struct rule *r = matched(gpu, call);

	if (!r)
		return OK;
	switch (r->action) {
	case FAIL:
		return (int)r->number;
	case HANG:
		for (;;)
			pause();
	case CRASH:
		*(volatile int *)0 = 0;
		break;
	default:
		_exit((int)r->number);
	}
	return OK;
}

const char *text(int gpu, const char *what, const char *arg, const char *otherwise)
{
	for (int i = nrules - 1; i >= 0; i--)
		if (rules[i].action == ANSWER && fits(&rules[i], gpu, what, arg))
			return rules[i].text;
	return otherwise;
}

double number(int gpu, const char *what, const char *arg, double otherwise)
{
	const char *t = text(gpu, what, arg, NULL);

	return t ? strtod(t, NULL) : otherwise;
}

static FILE *beside(const char *name, const char *mode)
{
	char path[4096], *slash;
	Dl_info info;

	if (!dladdr((void *)beside, &info) || !(slash = strrchr(info.dli_fname, '/')))
		_exit(99);
	snprintf(path, sizeof path, "%.*s/%s", (int)(slash - info.dli_fname), info.dli_fname, name);
	return fopen(path, mode);
}

const char *setting(const char *name)
{
	const char *value = getenv(name);

	return value && *value ? value : NULL;
}

static const char *algorithm; /* NCCL_ALGO, as NCCL reads it: once */
static int network;

void say(const char *kind, const char *what)
{
	if (debug)
		fprintf(debug, "node1:4242:4242 [0] NCCL %s %s\n", kind, what);
}

extern char **environ;

static void load(const char *name)
{
	char *line = NULL;
	size_t size = 0;
	FILE *f = beside(name, "re");

	for (int n = 1; f && getline(&line, &size, f) > 0; n++) {
		line[strcspn(line, "\n")] = 0;
		parse(line, n);
	}
	if (f)
		fclose(f);
	free(line);
}

/* start reads the scenario and the environment, when the library is loaded: that of all nodes, then
   that of this node of Slurm. */
__attribute__((constructor)) static void start(void)
{
	char of_node[256];
	FILE *f;

	load("nccl.scenario");
	if (setting("SLURMD_NODENAME")) {
		snprintf(of_node, sizeof of_node, "nccl.scenario.%s", getenv("SLURMD_NODENAME"));
		load(of_node);
	}
	if ((f = beside("nccl.environment", "we"))) {
		for (char **e = environ; *e; e++)
			if (strncmp(*e, "NCCL_", 5) == 0 && strncmp(*e, "NCCL_DEBUG_FILE=", 16) != 0)
				fprintf(f, "%s\n", *e);
		fclose(f);
	}
	if (setting("NCCL_DEBUG_FILE") && (debug = fopen(getenv("NCCL_DEBUG_FILE"), "we")))
		setbuf(debug, NULL);
	algorithm = setting("NCCL_ALGO") ? strdup(getenv("NCCL_ALGO")) : setting("NCCL_NVLS_ENABLE") ? "Ring" : NULL;
	network = setting("NCCL_P2P_DISABLE") != NULL;
}

int ncclGetVersion(int *version)
{
	*version = (int)number(SYSTEM, "version", NULL, 22203);
	return refused(SYSTEM, "ncclGetVersion");
}

const char *ncclGetErrorString(int code)
{
	(void)code;
	return "an error";
}

const char *ncclGetLastError(void *comm)
{
	(void)comm;
	return text(SYSTEM, "last", NULL, "");
}

static void warn(void)
{
	for (int i = 0; i < nrules; i++)
		if (rules[i].action == ANSWER && strcmp(rules[i].call, "warn") == 0)
			say("WARN", rules[i].text);
}

static int failed(int code)
{
	if (code != OK)
		warn();
	return code;
}

int ncclCommInitAll(struct comm **comms, int n, const int *devices)
{
	char line[256];
	int code = refused(SYSTEM, "ncclCommInitAll");

	snprintf(line, sizeof line, "Using network %s", text(SYSTEM, "network", NULL, "IB"));
	say("INFO", line);
	if (code != OK || n < 1 || n > MAX_RANKS)
		return failed(code == OK ? INVALID_ARGUMENT : code);
	struct comm **all = calloc((size_t)n, sizeof *all);
	for (int i = 0; i < n; i++) {
		comms[i] = all[i] = calloc(1, sizeof **comms);
		*all[i] = (struct comm){i, n, devices ? devices[i] : i, all, NULL};
	}
	return OK;
}

int ncclCommDestroy(struct comm *c)
{
	int code = refused(c->gpu, "ncclCommDestroy");

	if (c->net)
		end_net(c);
	return code;
}

int ncclCommAbort(struct comm *c)
{
	int code = refused(c->gpu, "ncclCommAbort");

	if (c->net)
		end_net(c);
	return code;
}

int ncclCommGetAsyncError(struct comm *c, int *code)
{
	*code = failed(refused(c->gpu, "ncclCommGetAsyncError"));
	if (*code == OK && c->net && (*code = state_of(c)) != IN_PROGRESS)
		failed(*code);
	return OK;
}

const char *const names[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "sendrecv", "sendrecv"};
static const char *const said[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Send", "Recv"};

static struct op ops[MAX_OPS];
static int nops, depth;

void turn_over(int gpu, const char *what, enum kind kind, float *data, size_t count)
{
	const char *t = text(gpu, what, names[kind], NULL);
	unsigned long at = 0;
	unsigned bit = 0;

	if (t && sscanf(t, "%lu %u", &at, &bit) >= 1 && at < count)
		((unsigned *)data)[at] ^= 1u << (bit & 31);
}

/* link_of is the maximum rate of a GPU's links in GB/s. */
double link_of(int gpu) { return number(gpu, "links", NULL, 1e6); }

double factor_of(enum kind kind, int n)
{
	return kind == ALL_REDUCE ? 2.0 * (n - 1) / n : kind >= BROADCAST ? 1 : 1.0 * (n - 1) / n;
}

/* between is the maximum rate between two GPUs in GB/s, in whichever order the scenario names them.
   */
static double between(int gpu, int other)
{
	char a[8], b[8];

	snprintf(a, sizeof a, "%d", gpu);
	snprintf(b, sizeof b, "%d", other);
	return number(gpu, "pair", b, number(other, "pair", a, 1e6));
}

static double slowest(double rate, double other) { return rate < other ? rate : other; }

/* collective carries out an operation that all ranks of a clique have requested. */
static int collective(struct op *o)
{
	struct comm *c = o->comm;
	struct op *by[MAX_RANKS] = {0};
	int n = c->n;
	size_t blocks = o->kind == ALL_GATHER || o->kind == REDUCE_SCATTER ? (size_t)n : 1;
	double bytes = 4.0 * (double)(o->count * blocks), rate = number(SYSTEM, network ? "netbw" : "busbw", names[o->kind], network ? 40 : 480);
	char line[256];

	for (struct op *p = o; p < ops + nops; p++) {
		if (p->done || p->kind != o->kind || p->comm->all != c->all || by[p->comm->rank])
			continue;
		by[p->comm->rank] = p;
	}
	float *sum = calloc(o->count * blocks + 1, sizeof *sum);
	for (int r = 0; r < n; r++) {
		if (!by[r] || by[r]->count != o->count) {
			fprintf(stderr, "fakenccl: rank %d of %d has not asked for %s of %zu\n", r, n, names[o->kind], o->count);
			free(sum);
			return INVALID_USAGE;
		}
		rate = slowest(rate, link_of(by[r]->comm->gpu));
		for (size_t i = 0; i < o->count * blocks && (o->kind == ALL_REDUCE || o->kind == REDUCE_SCATTER); i++)
			sum[i] += by[r]->send[i];
		if (o->kind == ALL_GATHER)
			memcpy(sum + (size_t)r * o->count, by[r]->send, o->count * 4);
		if (o->kind == BROADCAST && r == o->peer)
			memcpy(sum, by[r]->send, o->count * 4);
	}
	double factor = factor_of(o->kind, n);
	for (int r = 0; r < n; r++) {
		size_t first = o->kind == REDUCE_SCATTER ? (size_t)r * o->count : 0;
		size_t received = o->kind == ALL_GATHER ? o->count * blocks : o->count;
		memcpy(by[r]->recv, sum + first, received * 4);
		turn_over(by[r]->comm->gpu, "wrong", o->kind, by[r]->recv, received);
		by[r]->stream->charge(by[r]->stream, bytes * factor / (rate * 1e3));
		by[r]->done = 1;
	}
	free(sum);
	snprintf(line, sizeof line, "%s: %.0f Bytes -> Algo %s proto SIMPLE channel{Lo..Hi}={0..15}", said[o->kind], bytes,
		 algorithm ? algorithm : text(SYSTEM, "algorithm", NULL, "NVLS"));
	if (strcmp(text(SYSTEM, "silent", NULL, "0"), "0") == 0)
		say("INFO", line);
	return OK;
}

/* message carries out a send with its receive. A GPU sends and receives at the same time, so only
   sends take time. */
static int message(struct op *o)
{
	for (struct op *p = ops; p < ops + nops; p++) {
		if (p->done || p->kind != RECV || p->comm->all != o->comm->all || p->comm->rank != o->peer || p->peer != o->comm->rank)
			continue;
		double rate = slowest(slowest(number(SYSTEM, network ? "netbw" : "busbw", "sendrecv", network ? 40 : 390), link_of(o->comm->gpu)), link_of(p->comm->gpu));
		rate = slowest(rate, between(o->comm->gpu, p->comm->gpu));
		memcpy(p->recv, o->send, o->count * 4);
		turn_over(p->comm->gpu, "wrong", p->kind, p->recv, o->count);
		if (p->comm != o->comm)
			o->stream->charge(o->stream, 4.0 * (double)o->count / (rate * 1e3));
		o->done = p->done = 1;
		return OK;
	}
	fprintf(stderr, "fakenccl: nobody receives what rank %d sends to rank %d\n", o->comm->rank, o->peer);
	return INVALID_USAGE;
}

/* The ranks of this process whose connections or operations the group starts. */
static struct comm *begun[MAX_OPS];
static int nbegun;

/* begin queues the operations of a rank that has others in other processes. */
static void begin(struct comm *c)
{
	static struct op mine[MAX_OPS];
	int n = 0;

	for (struct op *o = ops; o < ops + nops; o++)
		if (!o->done && o->comm == c) {
			mine[n++] = *o;
			o->done = 1;
		}
	queue(c, mine, n);
	begun[nbegun++] = c;
}

static int carry_out(void)
{
	int code = OK;

	for (struct op *o = ops; o < ops + nops; o++)
		if (!o->done && o->comm->net)
			begin(o->comm);
	for (struct op *o = ops; o < ops + nops && code == OK; o++)
		if (!o->done && o->kind < SEND)
			code = collective(o);
		else if (!o->done && o->kind == SEND)
			code = message(o);
	nops = 0;
	for (int i = 0; i < nbegun; i++) {
		int one = finish(begun[i]);
		code = code == OK || code == IN_PROGRESS ? (one == OK ? code : one) : code;
	}
	nbegun = 0;
	return code == IN_PROGRESS ? code : failed(code);
}

int ncclGroupStart(void)
{
	depth++;
	return refused(SYSTEM, "ncclGroupStart");
}

int ncclGroupEnd(void)
{
	int code = refused(SYSTEM, "ncclGroupEnd");

	if (--depth > 0)
		return code;
	if (code != OK) {
		nops = nbegun = 0;
		return failed(code);
	}
	return carry_out();
}

static int add(const char *call, struct op o)
{
	int code = refused(o.comm->gpu, call);

	if (code != OK || nops == MAX_OPS)
		return failed(code == OK ? INTERNAL : code);
	ops[nops++] = o;
	return depth > 0 ? OK : carry_out();
}

/* started notes a rank that has begun to join, and waits for it if it is alone. */
int started(struct comm *c)
{
	begun[nbegun++] = c;
	return depth > 0 ? OK : carry_out();
}

int refused_join(int gpu, const char *call) { return failed(refused(gpu, call)); }

#define FLOAT32 7
#define SUM 0

int ncclAllReduce(const void *send, void *recv, size_t count, int type, int op, struct comm *c, struct stream *s)
{
	if (type != FLOAT32 || op != SUM)
		return INVALID_ARGUMENT;
	return add("ncclAllReduce", (struct op){ALL_REDUCE, send, recv, count, 0, c, s, 0});
}

int ncclAllGather(const void *send, void *recv, size_t count, int type, struct comm *c, struct stream *s)
{
	if (type != FLOAT32)
		return INVALID_ARGUMENT;
	return add("ncclAllGather", (struct op){ALL_GATHER, send, recv, count, 0, c, s, 0});
}

int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op, struct comm *c, struct stream *s)
{
	if (type != FLOAT32 || op != SUM)
		return INVALID_ARGUMENT;
	return add("ncclReduceScatter", (struct op){REDUCE_SCATTER, send, recv, count, 0, c, s, 0});
}

int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, struct comm *c, struct stream *s)
{
	if (type != FLOAT32 || root < 0 || root >= c->n)
		return INVALID_ARGUMENT;
	return add("ncclBroadcast", (struct op){BROADCAST, send, recv, count, root, c, s, 0});
}

int ncclSend(const void *send, size_t count, int type, int peer, struct comm *c, struct stream *s)
{
	if (type != FLOAT32 || peer < 0 || peer >= c->n)
		return INVALID_ARGUMENT;
	return add("ncclSend", (struct op){SEND, send, NULL, count, peer, c, s, 0});
}

int ncclRecv(void *recv, size_t count, int type, int peer, struct comm *c, struct stream *s)
{
	if (type != FLOAT32 || peer < 0 || peer >= c->n)
		return INVALID_ARGUMENT;
	return add("ncclRecv", (struct op){RECV, NULL, recv, count, peer, c, s, 0});
}
