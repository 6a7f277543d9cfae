package health

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// The lines of -d that LBNL NHC prints about itself.

// leadSession does with -d what LBNL NHC always does: it restarts a process that does not lead a
// process group in a session of its own. Without -d that is not needed, since workers and bash
// have their own sessions.
func (r *Run) leadSession() {
	if r.Set.Get("DEBUG") != "1" {
		return
	}
	pid := os.Getpid()
	if unix.Kill(-pid, 0) == nil {
		r.Debug("NHC process %d is session leader.", pid)
		return
	}
	if os.Getenv("NHC_FORCED_SESSION") == fmt.Sprint(pid) {
		r.Debug("NHC failed to become session leader.")
		return
	}
	if r.Set.Get("FORCE_SETSID") != "1" {
		return
	}
	argv := append(slices.Clone(r.argv), "FORCE_SETSID=0")
	r.Debug("NHC process %d is not session leader.", pid)
	r.Debug("Restarting via setsid:  setsid %s", strings.Join(argv, " "))
	r.Log.Flush()
	r.LetNextRun()
	r.Close()
	_, err := unix.Setsid()
	if err == nil {
		err = unix.Exec("/proc/self/exe", argv, append(os.Environ(), fmt.Sprintf("NHC_FORCED_SESSION=%d", pid))) //nolint:forbidigo // /proc/self
	}
	fmt.Fprintf(console.Alerts, "nhc-gpu: restart in a session of its own: %v\n", err)
	os.Exit(verdict.ExitUnknown)
}

// debugWatchdog names the process that ends the run after TIMEOUT: this one.
func (r *Run) debugWatchdog() {
	pid := os.Getpid()
	if !r.Budget.Limited() {
		r.Debug("In %d:  No watchdog, NHC PID is %d", pid, pid)
	} else {
		r.Debug("In %d:  Watchdog PID is %d, NHC PID is %d", pid, pid, pid)
	}
}
