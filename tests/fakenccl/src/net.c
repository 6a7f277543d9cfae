/* Ranks in several processes. Every rank has a TCP connection to every other one, and a thread that
   carries out its operations, rings as NCCL's own: so the traffic really crosses the network, and a
   slow or dead link is slow or dead. An operation takes as long on the fake libcuda's clock as it
   really took. */
#define _GNU_SOURCE
#include "fake.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_NET 256
#define LOOK 20 /* ms between two looks for an abort */

/* ncclUniqueId */
struct id {
	uint64_t magic;
	struct sockaddr_in root;
	char rest[128 - sizeof(uint64_t) - sizeof(struct sockaddr_in)];
};

/* ncclConfig_t of 2.14 */
struct config {
	size_t size;
	unsigned magic, version;
	int blocking;
};

/* A rank sends it to the root, and the root to all ranks. */
struct hello {
	uint64_t magic;
	int rank, n;
	struct sockaddr_in at;
};

struct batch {
	struct op *ops;
	int n;
	struct batch *next;
};

struct net {
	struct id id;
	int blocking, state, ending;
	volatile int aborted;
	int fds[MAX_NET];
	struct batch *first;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
};

/* address is that of the interface that NCCL_SOCKET_IFNAME names ("=eth0" exactly, "eth" by its
   beginning), else of the first one other than the loopback interface, else of that. */
static int address(struct sockaddr_in *at)
{
	const char *want = setting("NCCL_SOCKET_IFNAME");
	struct ifaddrs *list = NULL;
	int found = 0;

	if (getifaddrs(&list) != 0)
		return 0;
	for (struct ifaddrs *i = list; i && found < 2; i = i->ifa_next) {
		int loop = (i->ifa_flags & IFF_LOOPBACK) != 0;
		if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP))
			continue;
		if (want && (*want == '=' ? strcmp(i->ifa_name, want + 1) : strncmp(i->ifa_name, want, strlen(want))) != 0)
			continue;
		if (found && loop)
			continue;
		memcpy(at, i->ifa_addr, sizeof *at);
		at->sin_port = 0;
		found = loop && !want ? 1 : 2;
	}
	freeifaddrs(list);
	return found;
}

static int listen_at(struct sockaddr_in *at)
{
	socklen_t size = sizeof *at;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd >= 0 && bind(fd, (struct sockaddr *)at, sizeof *at) == 0 && listen(fd, MAX_NET) == 0 && getsockname(fd, (struct sockaddr *)at, &size) == 0)
		return fd;
	close(fd);
	return -1;
}

/* A transfer is a part of an operation: one way over one connection. */
struct transfer {
	int fd, out;
	char *at;
	size_t left;
};

/* move carries out transfers side by side; those of one connection and way in their order. */
static int move(struct net *net, struct transfer *t, int count)
{
	struct pollfd polls[2 * MAX_NET];
	int of[2 * MAX_NET];

	for (;;) {
		int n = 0;
		for (int i = 0; i < count; i++) {
			int waits = t[i].left == 0;
			for (int k = 0; k < i && !waits; k++)
				waits = t[k].left > 0 && t[k].fd == t[i].fd && t[k].out == t[i].out;
			if (waits || n == 2 * MAX_NET)
				continue;
			polls[n] = (struct pollfd){t[i].fd, t[i].out ? POLLOUT : POLLIN, 0};
			of[n++] = i;
		}
		if (n == 0)
			return OK;
		if (net->aborted)
			return INTERNAL;
		if (poll(polls, (nfds_t)n, LOOK) < 0 && errno != EINTR)
			return SYSTEM_ERROR;
		for (int p = 0; p < n; p++) {
			struct transfer *one = &t[of[p]];
			if (!polls[p].revents)
				continue;
			ssize_t got = one->out ? send(one->fd, one->at, one->left, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(one->fd, one->at, one->left, MSG_DONTWAIT);
			if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
				return REMOTE_ERROR;
			if (got > 0) {
				one->at += got;
				one->left -= (size_t)got;
			}
		}
	}
}

static int transfer(struct net *net, int fd, int out, void *at, size_t size)
{
	return move(net, &(struct transfer){fd, out, at, size}, 1);
}

/* connect_to connects, however long that takes. */
static int connect_to(struct net *net, const struct sockaddr_in *at)
{
	while (!net->aborted) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
		socklen_t size = sizeof error;
		struct pollfd p = {fd, POLLOUT, 0};
		connect(fd, (const struct sockaddr *)at, sizeof *at);
		while (!net->aborted && poll(&p, 1, LOOK) == 0)
			;
		if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0 && p.revents & POLLOUT)
			return fd;
		close(fd);
		usleep(LOOK * 1000);
	}
	return -1;
}

/* serve is the root of a communicator: it gives every rank the addresses of all. */
static void *serve(void *arg)
{
	struct hello first, *table = NULL;
	int fds[MAX_NET], got = 0, n = 1, listener = ((int *)arg)[0];
	uint64_t magic;
	struct net own = {0};

	memcpy(&magic, (int *)arg + 2, sizeof magic);
	free(arg);
	for (int i = 0; i < MAX_NET; i++)
		fds[i] = -1;
	table = calloc(MAX_NET, sizeof *table);
	while (got < n) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0 || transfer(&own, fd, 0, &first, sizeof first) != OK || first.magic != magic || first.n > MAX_NET || first.rank < 0 || first.rank >= first.n || fds[first.rank] >= 0) {
			close(fd);
			continue;
		}
		n = first.n;
		fds[first.rank] = fd;
		table[first.rank] = first;
		got++;
	}
	for (int i = 0; i < n; i++) {
		transfer(&own, fds[i], 1, table, (size_t)n * sizeof *table);
		close(fds[i]);
	}
	close(listener);
	free(table);
	return NULL;
}

int ncclGetUniqueId(struct id *id)
{
	pthread_t thread;
	int *arg = malloc(2 * sizeof *arg + sizeof id->magic), code = refused_join(SYSTEM, "ncclGetUniqueId");

	if (code != OK)
		return code;
	memset(id, 0, sizeof *id);
	if (!address(&id->root) || (arg[0] = listen_at(&id->root)) < 0 || getrandom(&id->magic, sizeof id->magic, 0) < 0) {
		say("WARN", "Bootstrap : no socket interface found");
		return SYSTEM_ERROR;
	}
	memcpy(arg + 2, &id->magic, sizeof id->magic);
	pthread_create(&thread, NULL, serve, arg);
	pthread_detach(thread);
	return OK;
}

/* join connects a rank with all others. */
static int join(struct comm *c)
{
	struct net *net = c->net;
	struct hello mine = {net->id.magic, c->rank, c->n, {0}}, *table = calloc((size_t)c->n, sizeof *table);
	int code, root, listener;

	if (!address(&mine.at) || (listener = listen_at(&mine.at)) < 0) {
		say("WARN", "Bootstrap : no socket interface found");
		return SYSTEM_ERROR;
	}
	if ((root = connect_to(net, &net->id.root)) < 0)
		return INTERNAL;
	if ((code = transfer(net, root, 1, &mine, sizeof mine)) == OK)
		code = transfer(net, root, 0, table, (size_t)c->n * sizeof *table);
	close(root);
	for (int r = 0; r < c->rank && code == OK; r++)
		if ((net->fds[r] = connect_to(net, &table[r].at)) < 0)
			code = INTERNAL;
		else
			code = transfer(net, net->fds[r], 1, &mine, sizeof mine);
	for (int left = c->n - 1 - c->rank; left > 0 && code == OK;) {
		struct pollfd p = {listener, POLLIN, 0};
		struct hello other;
		if (net->aborted)
			code = INTERNAL;
		if (code != OK || poll(&p, 1, LOOK) <= 0)
			continue;
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0 && transfer(net, fd, 0, &other, sizeof other) == OK && other.magic == mine.magic && other.rank > c->rank && other.rank < c->n && net->fds[other.rank] < 0) {
			net->fds[other.rank] = fd;
			left--;
		} else
			close(fd);
	}
	close(listener);
	free(table);
	return code;
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int mod(int a, int n) { return ((a % n) + n) % n; }

/* block is where a block of a buffer of count elements begins, in n blocks. */
static size_t block(size_t count, int n, int i) { return count / (size_t)n * (size_t)i + ((size_t)i < count % (size_t)n ? (size_t)i : count % (size_t)n); }

/* swap sends to the next rank of the ring while it receives from the one before. */
static int swap(struct comm *c, const void *out, size_t sent, void *in, size_t received)
{
	struct net *net = c->net;
	if (c->n == 1) { /* only the check of what others ask for */
		memcpy(in, out, received);
		return OK;
	}
	struct transfer t[] = {
		{net->fds[mod(c->rank + 1, c->n)], 1, (char *)(uintptr_t)out, sent}, {net->fds[mod(c->rank - 1, c->n)], 0, in, received}};

	return move(net, t, 2);
}

/* ring_reduce leaves in each rank the sums of its own block. */
static int ring_reduce(struct comm *c, float *data, size_t count)
{
	float *in = malloc((count / (size_t)c->n + 1) * sizeof *in);
	int code = OK;

	for (int s = 0; s < c->n - 1 && code == OK; s++) {
		int to = mod(c->rank - 1 - s, c->n), from = mod(c->rank - 2 - s, c->n);
		size_t a = block(count, c->n, to), b = block(count, c->n, from), size = block(count, c->n, from + 1) - b;
		code = swap(c, data + a, (block(count, c->n, to + 1) - a) * 4, in, size * 4);
		for (size_t i = 0; i < size && code == OK; i++)
			data[b + i] += in[i];
	}
	free(in);
	return code;
}

/* ring_gather gives each rank the blocks of all. */
static int ring_gather(struct comm *c, float *data, size_t count)
{
	int code = OK;

	for (int s = 0; s < c->n - 1 && code == OK; s++) {
		int to = mod(c->rank - s, c->n), from = mod(c->rank - s - 1, c->n);
		size_t a = block(count, c->n, to), b = block(count, c->n, from);
		code = swap(c, data + a, (block(count, c->n, to + 1) - a) * 4, data + b, (block(count, c->n, from + 1) - b) * 4);
	}
	return code;
}

/* chain passes the data of the root from rank to rank, in pieces. */
static int chain(struct comm *c, int root, char *data, size_t size)
{
	struct net *net = c->net;
	int code = OK, from = net->fds[mod(c->rank - 1, c->n)], next = mod(c->rank + 1, c->n);

	for (size_t at = 0, piece; at < size && code == OK; at += piece) {
		piece = size - at < 65536 ? size - at : 65536;
		if (c->rank != root)
			code = transfer(net, from, 0, data + at, piece);
		if (code == OK && next != root)
			code = transfer(net, net->fds[next], 1, data + at, piece);
	}
	return code;
}

static int collective(struct op *o)
{
	struct comm *c = o->comm;
	size_t blocks = o->kind == ALL_GATHER || o->kind == REDUCE_SCATTER ? (size_t)c->n : 1, all = o->count * blocks;
	float *data = calloc(all + 1, sizeof *data);
	uint64_t mine[2] = {(uint64_t)o->kind, o->count}, other[2];
	int code = swap(c, mine, sizeof mine, other, sizeof other);

	if (code == OK && memcmp(mine, other, sizeof mine) != 0) {
		fprintf(stderr, "fakenccl: rank %d asks for %s of %zu, and the one before it for %lu of %lu\n", c->rank, names[o->kind], o->count, (unsigned long)other[0], (unsigned long)other[1]);
		code = INVALID_USAGE;
	}
	if (o->kind == ALL_GATHER)
		memcpy(data + (size_t)c->rank * o->count, o->send, o->count * 4);
	else if (o->kind != BROADCAST || c->rank == o->peer)
		memcpy(data, o->send, all * 4);
	turn_over(c->gpu, "spoils", o->kind, o->kind == ALL_GATHER ? data + (size_t)c->rank * o->count : data, o->kind == ALL_GATHER ? o->count : all);
	if (code == OK && o->kind == BROADCAST)
		code = chain(c, o->peer, (char *)data, all * 4);
	if (code == OK && (o->kind == ALL_REDUCE || o->kind == REDUCE_SCATTER))
		code = ring_reduce(c, data, all);
	if (code == OK && (o->kind == ALL_REDUCE || o->kind == ALL_GATHER))
		code = ring_gather(c, data, all);
	if (code == OK) {
		size_t received = o->kind == ALL_GATHER ? all : o->count;
		memcpy(o->recv, o->kind == REDUCE_SCATTER ? data + (size_t)c->rank * o->count : data, received * 4);
		turn_over(c->gpu, "wrong", o->kind, o->recv, received);
	}
	free(data);
	return code;
}

/* messages carries out the sends and receives of a group. */
static int messages(struct op *ops, int n)
{
	struct net *net = ops->comm->net;
	struct transfer *t = calloc((size_t)n, sizeof *t);
	int count = 0, code, self = ops->comm->rank;

	for (int i = 0; i < n; i++) {
		struct op *o = &ops[i];
		if (o->peer != self) {
			t[count++] = (struct transfer){net->fds[o->peer], o->kind == SEND, o->kind == SEND ? (char *)(uintptr_t)o->send : (char *)o->recv, o->count * 4};
			continue;
		}
		for (int k = 0; k < n && o->kind == SEND && !o->done; k++)
			if (ops[k].kind == RECV && ops[k].peer == self && !ops[k].done) {
				memcpy(ops[k].recv, o->send, o->count * 4);
				o->done = ops[k].done = 1;
			}
	}
	code = move(net, t, count);
	for (int i = 0; i < n && code == OK; i++)
		if (ops[i].kind == RECV)
			turn_over(ops[i].comm->gpu, "wrong", RECV, ops[i].recv, ops[i].count);
	free(t);
	return code;
}

/* scripted is what the scenario does to the work itself: "3 work hang" never ends on this rank,
   unless it is aborted. */
static int scripted(struct comm *c)
{
	struct rule *r = matched(c->gpu, "work");

	if (!r)
		return OK;
	switch (r->action) {
	case FAIL:
		return (int)r->number;
	case CRASH:
		*(volatile int *)0 = 0;
		break;
	case EXIT:
		_exit((int)r->number);
	default:
		while (!c->net->aborted)
			usleep(LOOK * 1000);
	}
	return INTERNAL;
}

/* held_back is the time that the scenario's bandwidths add to an operation, seconds. */
static double held_back(const struct op *o)
{
	double rate = number(SYSTEM, "busbw", names[o->kind], 1e6), link = link_of(o->comm->gpu);
	size_t blocks = o->kind == ALL_GATHER || o->kind == REDUCE_SCATTER ? (size_t)o->comm->n : 1;

	return o->kind == RECV ? 0 : 4.0 * (double)(o->count * blocks) * factor_of(o->kind, o->comm->n) / (rate < link ? rate : link) / 1e9;
}

static int run(struct comm *c, struct op *ops, int n)
{
	int code = scripted(c), sends = 0;

	for (int i = 0; i < n && code == OK; i++) {
		double began = seconds(), extra = held_back(&ops[i]);
		for (double now = began; extra > 1e-4 && now < began + extra && !c->net->aborted; now = seconds())
			usleep((useconds_t)((began + extra - now < 0.02 ? began + extra - now : 0.02) * 1e6));
		if (ops[i].kind >= SEND) {
			sends++;
			continue;
		}
		code = collective(&ops[i]);
		ops[i].stream->charge(ops[i].stream, (seconds() - began) * 1e6);
	}
	if (sends > 0 && code == OK) {
		double began = seconds();
		struct op *only = calloc((size_t)n, sizeof *only);
		int count = 0;
		for (int i = 0; i < n; i++)
			if (ops[i].kind >= SEND)
				only[count++] = ops[i];
		code = messages(only, count);
		only->stream->charge(only->stream, (seconds() - began) * 1e6);
		free(only);
	}
	return code;
}

/* work is the thread of a rank: it joins, then carries out one group of operations after another. */
static void *work(void *arg)
{
	struct comm *c = arg;
	struct net *net = c->net;
	int code = join(c);

	pthread_mutex_lock(&net->lock);
	for (;;) {
		struct batch *b = net->first;
		if (code != OK || !b) {
			net->state = code;
			pthread_cond_broadcast(&net->changed);
			if (net->ending || net->aborted)
				break;
			pthread_cond_wait(&net->changed, &net->lock);
			if (code != OK)
				net->first = NULL;
			continue;
		}
		pthread_mutex_unlock(&net->lock);
		code = run(c, b->ops, b->n);
		pthread_mutex_lock(&net->lock);
		net->first = b->next;
		free(b->ops);
		free(b);
	}
	pthread_mutex_unlock(&net->lock);
	return NULL;
}

void queue(struct comm *c, const struct op *ops, int n)
{
	struct net *net = c->net;
	struct batch *b = calloc(1, sizeof *b), **end;

	*b = (struct batch){malloc((size_t)n * sizeof *ops), n, NULL};
	memcpy(b->ops, ops, (size_t)n * sizeof *ops);
	pthread_mutex_lock(&net->lock);
	for (end = &net->first; *end; end = &(*end)->next)
		;
	*end = b;
	if (net->state == OK)
		net->state = IN_PROGRESS;
	pthread_cond_broadcast(&net->changed);
	pthread_mutex_unlock(&net->lock);
}

int state_of(struct comm *c)
{
	pthread_mutex_lock(&c->net->lock);
	int state = c->net->state;
	pthread_mutex_unlock(&c->net->lock);
	return state;
}

int finish(struct comm *c)
{
	struct net *net = c->net;

	pthread_mutex_lock(&net->lock);
	while (net->blocking && net->state == IN_PROGRESS)
		pthread_cond_wait(&net->changed, &net->lock);
	int state = net->state;
	pthread_mutex_unlock(&net->lock);
	return state;
}

void end_net(struct comm *c)
{
	struct net *net = c->net;

	pthread_mutex_lock(&net->lock);
	net->ending = net->aborted = 1;
	pthread_cond_broadcast(&net->changed);
	pthread_mutex_unlock(&net->lock);
	pthread_join(net->thread, NULL);
	for (int i = 0; i < c->n; i++)
		if (net->fds[i] >= 0)
			close(net->fds[i]);
	c->net = NULL; /* the rest stays: a test ends with its process */
}

/* current is the GPU of the thread's context. */
static int current(void)
{
	int device = 0;
	void *cuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	int (*get)(int *) = NULL;

	if (cuda)
		*(void **)&get = dlsym(cuda, "cuCtxGetDevice");
	if (get && get(&device) == 0)
		return device;
	return 0;
}

static int start_rank(const char *call, struct comm **out, int n, struct id id, int rank, int blocking)
{
	struct comm *c = calloc(1, sizeof *c);
	struct net *net = calloc(1, sizeof *net);
	const char *has = text(SYSTEM, "network", NULL, "IB"), *want = setting("NCCL_NET");
	char line[128];
	int code = refused_join(current(), call);

	if (code != OK)
		return code;
	if (n < 1 || n > MAX_NET || rank < 0 || rank >= n)
		return INVALID_ARGUMENT;
	if (strcmp(has, "Socket") == 0)
		say("INFO", "NET/IB : No device found.");
	if (want && strcmp(want, "Socket") != 0 && strcmp(want, has) != 0) {
		snprintf(line, sizeof line, "Error: network %s not found.", want);
		say("WARN", line);
		return INVALID_USAGE;
	}
	snprintf(line, sizeof line, "Using network %s", want ? want : has);
	say("INFO", line);
	*c = (struct comm){rank, n, current(), NULL, net};
	net->id = id;
	net->blocking = setting("NCCL_COMM_BLOCKING") ? atoi(getenv("NCCL_COMM_BLOCKING")) : blocking;
	net->state = IN_PROGRESS;
	for (int i = 0; i < MAX_NET; i++)
		net->fds[i] = -1;
	pthread_mutex_init(&net->lock, NULL);
	pthread_cond_init(&net->changed, NULL);
	*out = c;
	if (pthread_create(&net->thread, NULL, work, c) != 0)
		return SYSTEM_ERROR;
	return started(c);
}

int ncclCommInitRank(struct comm **out, int n, struct id id, int rank)
{
	return start_rank("ncclCommInitRank", out, n, id, rank, 1);
}

int ncclCommInitRankConfig(struct comm **out, int n, struct id id, int rank, struct config *config)
{
	if (config->magic != 0xcafebeef || config->size < sizeof *config || config->version < 21400)
		return INVALID_ARGUMENT;
	return start_rank("ncclCommInitRankConfig", out, n, id, rank, config->blocking != 0);
}
