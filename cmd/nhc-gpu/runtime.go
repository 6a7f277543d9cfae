package main

/*
#cgo LDFLAGS: -Wl,--wrap=main -Wl,--wrap=pthread_create

#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

// ours are the settings of Go's runtime for this program; the runtime does not see those of the
// environment (names). By default the runtime makes a scheduler and a memory cache for each CPU,
// which on 256 CPUs costs more than a run, and collects garbage in every process. A run's heap is
// a few MiB. The limit is for commands that read more.
static char *ours[] = {"GOMAXPROCS=2", "GOGC=off", "GOMEMLIMIT=256MiB"};
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

// slack is the timer slack of the runtime's monitor thread, ns.
static int slack = 1000000;

// quieten is for the processes of nhc-gpu monitor, which live long and work a moment each second. With
// a second scheduler, the runtime would wake up a second thread for each of these moments. A source of
// events needs none; the monitor itself does, because it starts and awaits processes.
static void quieten(int argc, char **argv) {
	int source = argc > 1 && strncmp(argv[1], "watch-", 6) == 0;
	if (source) ours[0] = "GOMAXPROCS=1";
	if (source || (argc > 1 && strcmp(argv[1], "monitor") == 0)) slack = 10000000;
}

int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

// The first thread that Go's runtime creates is its monitor. It wakes up every 20 microseconds
// while the program works, which was a seventh of the cost of a run. With a timer slack of a
// millisecond it wakes up less often. Threads and processes inherit the slack of the thread that
// creates them: those that the monitor creates get the usual one.
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg) {
	static int usual;
	int own = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0), wanted = usual;
	if (usual == 0) {
		usual = own;
		wanted = slack;
	}
	if (wanted != own) prctl(PR_SET_TIMERSLACK, wanted, 0, 0, 0);
	int status = __real_pthread_create(thread, attr, start, arg);
	if (wanted != own) prctl(PR_SET_TIMERSLACK, own, 0, 0, 0);
	return status;
}

int __real_main(int, char **);

// The C library calls this instead of Go's main (the linker's --wrap). Go's main expects
// arguments, environment and auxiliary vector in one block. libc's own environment stays.
int __wrap_main(int argc, char **argv) {
	quieten(argc, argv);
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

// environment removes the runtime's settings from the environment of commands, and restores
// GOMAXPROCS: a site's own checks may be written in Go.
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
