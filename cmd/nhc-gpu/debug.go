package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// The lines of -d that LBNL NHC prints about itself.

// session does under -d what LBNL NHC does always: a process that leads no
// group of its own is started anew in its own session. Without -d there is no
// need to, since workers and bash have their own sessions.
func (r *oneRun) session() {
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
	r.close()
	_, err := unix.Setsid()
	if err == nil {
		err = unix.Exec("/proc/self/exe", argv, append(os.Environ(), fmt.Sprintf("NHC_FORCED_SESSION=%d", pid))) //nolint:forbidigo // /proc/self
	}
	fmt.Fprintf(console.Alerts, "nhc-gpu: restart in a session of its own: %v\n", err)
	os.Exit(exitUnknown)
}

// debugWatchdog names the process that ends the run after TIMEOUT: this one.
func (r *oneRun) debugWatchdog() {
	pid := os.Getpid()
	if !r.Budget.Limited() {
		r.Debug("In %d:  No watchdog, NHC PID is %d", pid, pid)
	} else {
		r.Debug("In %d:  Watchdog PID is %d, NHC PID is %d", pid, pid, pid)
	}
}

func (r *oneRun) debugEnd() {
	if r.opts.eval != "" { // there is none
		return
	}
	pid := 0
	if r.Budget.Limited() {
		pid = os.Getpid()
	}
	r.Debug("kill_watchdog:  Watchdog PID is %d.", pid)
}

// debugTarget tells how a line's target was judged.
func (r *oneRun) debugTarget(l conf.Line, matched bool) {
	if r.Set.Get("DEBUG") != "1" {
		return
	}
	host := r.Set.Get("HOSTNAME")
	expr, negated := strings.CutPrefix(l.Target, "!")
	found := matched != negated
	does := func(yes, no string) string {
		if found {
			return yes
		}
		return no
	}
	switch n := len(expr); {
	case n > 1 && expr[0] == '/' && expr[n-1] == '/':
		r.Debug("Regexp match check (internal):  %s %s %s", host, does("matches", "does not match"), expr)
	case n > 1 && expr[0] == '{' && expr[n-1] == '}':
		r.Debug("mcheck_range:  %s in %s.", does("Found "+host, host+" NOT found"), expr[1:n-1])
	default:
		r.Debug("Glob match check:  %s %s %s", host, does("matches", "does not match"), expr)
	}
	if matched {
		r.Debug("Host match check:  \"%s\" matches \"%s\" for check:  %s", host, l.Target, l.Check)
	}
}
