/* Declarations that the files of the fake libnccl share. */
#ifndef FAKE_H
#define FAKE_H

#include <stddef.h>

#define ANY (-1)
#define SYSTEM (-2)

enum { OK, CUDA_ERROR, SYSTEM_ERROR, INTERNAL, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS };
enum action { ANSWER, FAIL, HANG, CRASH, EXIT };

struct rule {
	int gpu;
	char call[48], arg[48];
	long after;
	enum action action;
	long number;
	char *text;
};

/* matched is the action of the scenario for a call, NULL for none. */
struct rule *matched(int gpu, const char *call);
/* text and number are the scenario's values. */
const char *text(int gpu, const char *what, const char *arg, const char *otherwise);
double number(int gpu, const char *what, const char *arg, double otherwise);
const char *setting(const char *name);
/* say writes a line to NCCL's log. */
void say(const char *kind, const char *what);

struct net;

struct comm {
	int rank, n, gpu;
	struct comm **all; /* of the clique, if all ranks are in this process */
	struct net *net;   /* the connections to ranks in other processes; NULL: there are none */
};

/* The first fields of the fake libcuda's streams: charge adds time. */
struct stream {
	void (*charge)(struct stream *, double us);
};

enum kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, SEND, RECV };
extern const char *const names[];

struct op {
	enum kind kind;
	const float *send;
	float *recv;
	size_t count;
	int peer; /* the root of a broadcast, too */
	struct comm *comm;
	struct stream *stream;
	int done;
};

/* turn_over inverts a bit in data, as the scenario defines: "3 wrong all_reduce = ELEMENT BIT". */
void turn_over(int gpu, const char *what, enum kind kind, float *data, size_t count);
double factor_of(enum kind kind, int n);
double link_of(int gpu);

/* fakenccl.c: what a join of a rank needs. */
int started(struct comm *c);
int refused_join(int gpu, const char *call);

/* net.c: queue has the thread of a rank carry out operations. finish waits for it if the rank
   blocks, and returns IN_PROGRESS if not. */
void queue(struct comm *c, const struct op *ops, int n);
int finish(struct comm *c);
int state_of(struct comm *c);
void end_net(struct comm *c);

#endif
