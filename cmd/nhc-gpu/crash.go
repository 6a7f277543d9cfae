package main

/*
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <signal.h>
#include <unistd.h>
#include <sys/socket.h>
#include <sys/un.h>

static int is_worker, around_job;

// remember runs before Go starts: the first thread that cannot be created ends the program.
__attribute__((constructor)) static void remember(int argc, char **argv, char **envp) {
	is_worker = argc > 0 && strcmp(argv[0], "nhc-gpu-worker") == 0;
	int person = argc > 1 && argv[1][0] != '-' && strchr(argv[1], '=') == NULL; // as aroundArgs
	for (int i = 1; i < argc; i++) {
		person |= strcmp(argv[i], "--check") == 0;
		around_job |= strcmp(argv[i], "--prolog") == 0 || strcmp(argv[i], "--epilog") == 0;
	}
	around_job &= !person;
	for (; *envp != NULL; envp++)
		if (strcmp(*envp, "SLURM_SCRIPT_CONTEXT=prolog_slurmd") == 0 || strcmp(*envp, "SLURM_SCRIPT_CONTEXT=epilog_slurmd") == 0)
			around_job = 1;
}

// abort replaces the C library's for this program's own code: runtime/cgo calls it if it cannot
// create a thread. Go would print a page of registers and exit with 2, and slurmd would drain the
// node. A worker dies of the signal as usual.
void abort(void) {
	static const char text[] = "nhc-gpu: cannot create a thread (the limit of processes is too low): this health check is incomplete\n";
	if (!is_worker) {
		struct sockaddr_un log = {.sun_family = AF_UNIX, .sun_path = "/dev/log"};
		char line[sizeof text + 8];
		int n = snprintf(line, sizeof line, "<27>%.*s", (int)sizeof text - 2, text);
		int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		if (fd >= 0) (void)!sendto(fd, line, n, 0, (struct sockaddr *)&log, sizeof log);
		(void)!write(2, text, sizeof text - 1);
		_exit(around_job ? 0 : 3);
	}
	signal(SIGABRT, SIG_DFL);
	raise(SIGABRT);
	_exit(127);
}
*/
import "C"

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
)

// crash ends the program after an internal error in any goroutine. It prints one line for the
// user, then the trace for a bug report. The node's state does not change.
func crash(argv []string, cause any, trace []byte) (exit int) {
	fmt.Fprintf(console.Alerts, "nhc-gpu: internal error: %v\nnhc-gpu: please report this with the lines below; the node's state is unchanged\n%s", cause, trace)
	sink.Syslog(options.OwnName, []string{fmt.Sprintf("internal error: %v", cause)}) // slurmd keeps no standard error
	if aroundArgs(argv).AroundJob() {
		return 0 // slurmd would drain the node
	}
	return exitUnknown
}

// catchCrashes gives a panic of any goroutine, and SIGABRT, the documented exit status. A worker
// dies of them in Go's way: its supervisor reports how.
func catchCrashes() {
	if len(os.Args) > 0 && os.Args[0] == wire.WorkerName {
		return
	}
	run.OnPanic(func(cause any) { os.Exit(crash(os.Args, cause, debug.Stack())) })
	aborted := make(chan os.Signal, 1)
	signal.Notify(aborted, unix.SIGABRT)
	run.Go(func() {
		<-aborted
		trace := make([]byte, 1<<20)
		os.Exit(crash(os.Args, "SIGABRT", trace[:runtime.Stack(trace, true)]))
	})
}
