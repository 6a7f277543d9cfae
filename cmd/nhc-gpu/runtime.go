package main

/*
#cgo LDFLAGS: -Wl,--wrap=main -Wl,--wrap=pthread_create

#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

// ours are the settings of Go's runtime that this program starts with; those of its
// environment, by names, do not reach the runtime. By itself the runtime would make a
// scheduler and a memory cache for each CPU, which on 256 CPUs costs more than a run, and
// collect garbage in every process. A run's heap is a few MiB. The limit is for commands
// that read more.
static char *const ours[] = {"GOMAXPROCS=2", "GOGC=off", "GOMEMLIMIT=256MiB"};
static const char *const names[] = {"GOMAXPROCS", "GOGC", "GOMEMLIMIT", "GODEBUG", "GOTRACEBACK"};
#define OURS (sizeof ours / sizeof *ours)
#define NAMES (sizeof names / sizeof *names)

static const char *name_at(size_t i) { return i < NAMES ? names[i] : NULL; }

static int of_go(const char *entry) {
	for (size_t i = 0; i < NAMES; i++) {
		size_t n = strlen(names[i]);
		if (strncmp(entry, names[i], n) == 0 && entry[n] == '=') return 1;
	}
	return 0;
}

int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

// The first thread that Go's runtime makes is its monitor. It wakes up every 20
// microseconds while the program is at work, which was a seventh of what a run cost. With
// a timer slack of a millisecond it wakes up less often. A thread and a process have the
// slack of the thread that makes them: those that the monitor makes get the usual one.
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg) {
	static int usual;
	int own = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0), slack = usual;
	if (usual == 0) {
		usual = own;
		slack = 1000000; // ns
	}
	if (slack != own) prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
	int status = __real_pthread_create(thread, attr, start, arg);
	if (slack != own) prctl(PR_SET_TIMERSLACK, own, 0, 0, 0);
	return status;
}

int __real_main(int, char **);

// The linker has the C library call this in place of Go's main, which finds arguments,
// environment and auxiliary vector one behind the other. libc's own environment stays.
int __wrap_main(int argc, char **argv) {
	char **env = argv + argc + 1;
	int n = 0, aux = 1;
	while (env[n] != NULL) n++;
	ElfW(auxv_t) *vector = (ElfW(auxv_t) *)(env + n + 1);
	while (vector[aux - 1].a_type != AT_NULL) aux++;
	char **block = malloc((argc + 1 + n + OURS + 1) * sizeof *block + aux * sizeof *vector);
	if (block == NULL) return __real_main(argc, argv);
	// volatile: the compiler would make memcpy of a loop, which asks for glibc 2.14.
	char *volatile *to = block;
	for (int i = 0; i <= argc; i++) *to++ = argv[i];
	for (int i = 0; i < n; i++)
		if (!of_go(env[i])) *to++ = env[i];
	for (size_t i = 0; i < OURS; i++) *to++ = ours[i];
	*to++ = NULL;
	volatile ElfW(auxv_t) *copy = (volatile ElfW(auxv_t) *)to;
	for (int i = 0; i < aux; i++) {
		copy[i].a_type = vector[i].a_type;
		copy[i].a_un.a_val = vector[i].a_un.a_val;
	}
	return __real_main(argc, block);
}
*/
import "C"

import "os"

// environment takes the runtime's settings out of the environment of what this program
// starts, and brings GOMAXPROCS back as it was: a site's own checks may be in Go.
func environment() {
	const kept = 0
	was := C.getenv(C.name_at(kept))
	value := C.GoString(was)
	for i := C.size_t(0); C.name_at(i) != nil; i++ {
		_ = os.Unsetenv(C.GoString(C.name_at(i)))
	}
	if was != nil {
		_ = os.Setenv(C.GoString(C.name_at(kept)), value)
	}
}
