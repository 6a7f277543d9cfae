package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// The lines of -d that LBNL NHC prints about itself.

// debug prints a line of -d, before the fold exists, too.
func (r *oneRun) debug(format string, args ...any) {
	if r.set.Get("DEBUG") != "1" {
		return
	}
	text := "DEBUG:  " + fmt.Sprintf(format, args...)
	if r.set.Stamps() {
		text = fmt.Sprintf("[%d] - %s", time.Now().Unix(), text)
	}
	r.log.Write(text)
}

// session does under -d what LBNL NHC does always: a process that leads no
// group of its own is started anew in its own session. Without -d there is no
// need to, since workers and bash have their own sessions.
func (r *oneRun) session() {
	if r.set.Get("DEBUG") != "1" {
		return
	}
	pid := os.Getpid()
	if unix.Kill(-pid, 0) == nil {
		r.debug("NHC process %d is session leader.", pid)
		return
	}
	if os.Getenv("NHC_FORCED_SESSION") == fmt.Sprint(pid) {
		r.debug("NHC failed to become session leader.")
		return
	}
	if r.set.Get("FORCE_SETSID") != "1" {
		return
	}
	argv := append(slices.Clone(r.argv), "FORCE_SETSID=0")
	r.debug("NHC process %d is not session leader.", pid)
	r.debug("Restarting via setsid:  setsid %s", strings.Join(argv, " "))
	r.log.Flush()
	r.letNextRun()
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
	if !r.budget.Limited() {
		r.debug("In %d:  No watchdog, NHC PID is %d", pid, pid)
	} else {
		r.debug("In %d:  Watchdog PID is %d, NHC PID is %d", pid, pid, pid)
	}
}

func (r *oneRun) debugEnd() {
	if r.opts.eval != "" { // there is none
		return
	}
	pid := 0
	if r.budget.Limited() {
		pid = os.Getpid()
	}
	r.debug("kill_watchdog:  Watchdog PID is %d.", pid)
}

// debugTarget tells how a line's target was judged.
func (r *oneRun) debugTarget(l conf.Line, matched bool) {
	if r.set.Get("DEBUG") != "1" {
		return
	}
	host := r.set.Get("HOSTNAME")
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
		r.debug("Regexp match check (internal):  %s %s %s", host, does("matches", "does not match"), expr)
	case n > 1 && expr[0] == '{' && expr[n-1] == '}':
		r.debug("mcheck_range:  %s in %s.", does("Found "+host, host+" NOT found"), expr[1:n-1])
	default:
		r.debug("Glob match check:  %s %s %s", host, does("matches", "does not match"), expr)
	}
	if matched {
		r.debug("Host match check:  \"%s\" matches \"%s\" for check:  %s", host, l.Target, l.Check)
	}
}
