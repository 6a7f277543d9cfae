/* Declarations that the files of the fake libcuda share. */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stddef.h>

#define SYSTEM (-2)  /* calls that are not about a GPU */
#define MAX_GPUS 16
#define MAX_ARGS 3

/* Results: CUresult of cuda.h. */
enum {
	OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201,
	NO_BINARY_FOR_GPU = 209, PEER_UNSUPPORTED = 217, UNSUPPORTED_PTX = 222, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600,
	PEER_ALREADY = 704,
	PEER_NOT_ENABLED = 705,
	TOO_MANY_PEERS = 711,
};

/* scenario.c: the scenario's result of a call. 1: none, continue; else the result of the call is
   *result. A rule that hangs or crashes does not return. */
int allowed(int gpu, const char *call, const char *arg, int *result);
/* text is the scenario's value, NULL if it has none; number is its first number. Unused arguments
   are NULL. */
const char *text(int gpu, const char *what, const char *arg);
double number(int gpu, const char *what, const char *arg, double otherwise);
void load_scenario(void);

/* A stream. Its clock is simulated: queued work is done at once, and takes as many microseconds as
   the scenario defines. charge is the first field, so that the work of other fakes, which get a
   CUstream, can take time, too. */
struct stream {
	void (*charge)(struct stream *, double us);
	struct device *device;
	double now;
	struct stream *next;
};

struct event {
	double at;
	int recorded;
	struct event *next;
};

/* A part of a GPU's memory: free or used. */
struct piece {
	size_t at, size;
	int taken;
	struct piece *next;
};

struct device {
	int index;
	pthread_mutex_t lock;
	char *memory;   /* the GPU's, if it is the fake's own */
	size_t size;
	struct piece *pieces;
	int retained;
	double now;     /* the time until which the program has waited */
	unsigned launches;
	struct stream zero, *streams;
	struct event *events;
	int peers;      /* bits: the devices whose memory it may access */
	struct { unsigned long at; int bit, value; } stuck;
	int dead;       /* the result of every call of the context from now on; NOT_READY: its work never ends */
	int held;       /* an end of the context waits for work that never ends */
};

extern struct device devices[MAX_GPUS];
extern int ndevices;

/* A context is its device. */
extern __thread struct device *current;

/* stuck restores a bit that does not keep its value after a possible write. */
void settle(struct device *d);
/* turn_over inverts a bit in the data that a call or kernel has written at to, as the scenario
   defines: "3 wrong KERNEL = OFFSET BIT". */
void turn_over(struct device *d, const char *by, void *to, size_t size);

/* A kernel on the host. run is called for each thread of the grid, or once if whole; the costs are
   in bytes of memory traffic and in floating point operations. */
struct kernel {
	const char *name;
	int whole;
	void (*run)(void **args);
	double (*bytes)(void **args);
	double (*flops)(void **args);
	struct kernel *next;
};
void add_kernel(struct kernel *k);

/* The index of a thread, and the sizes of the grid. */
extern __thread unsigned thread_x, threads_x, block_x, blocks_x;

/* The argument with a number, of a type. */
#define ARG(args, n, type) (*(type *)(args)[n])

#endif
