package main

import (
	"context"
	"fmt"
	"log/syslog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/plan"
)

// tellSyslog hands lines to syslog. Where commands are run in between (-a) it is
// logger(1) that does, as in LBNL NHC: whoever watches both, as a site's own
// logger does, sees them in order.
func (r *oneRun) tellSyslog(lines []string) {
	tag := r.set.get("NAME")
	if r.fold.f.All && r.startsCommands() && syslogWait() == syslogLimit {
		ctx, cancel := context.WithTimeout(context.Background(), syslogLimit)
		defer cancel()
		argv := []string{"logger", "-p", "daemon.err", "-t", fmt.Sprintf("%s[%d]", tag, os.Getpid())}
		out, err := r.pool.Exec(ctx, argv, r.set.environ(), []byte(strings.Join(lines, "\n")+"\n"))
		if err == nil && out.Status == 0 {
			return
		}
		if out.TimedOut {
			syslogLate.Store(true)
		}
	}
	sendSyslog(tag, lines)
}

// startsCommands says whether steps of the plan, or scripts before it, start other
// programs.
func (r *oneRun) startsCommands() bool {
	if r.plan == nil {
		return r.hasScripts()
	}
	return slices.ContainsFunc(r.plan.Steps, func(s plan.Step) bool { return s.Barrier })
}

// syslogLimit bounds the delivery of one batch: a syslogd that is stopped must
// not stop us. Once it was late it is given next to no time: with each of many
// failures a second would be lost to the checks that are still to come.
const (
	syslogLimit = time.Second
	syslogAgain = 10 * time.Millisecond
)

// syslogLate says that a batch was not taken in time.
var syslogLate atomic.Bool

func syslogWait() time.Duration {
	if syslogLate.Load() {
		return syslogAgain
	}
	return syslogLimit
}

// maxRecord is how much of a line is sent, in bytes: what rsyslog takes. A socket
// takes no message that is much longer, not even its beginning.
const maxRecord = 8 << 10

func record(line string) string {
	if len(line) <= maxRecord {
		return line
	}
	return strings.ToValidUTF8(line[:maxRecord], "")
}

// sendSyslog writes lines with facility daemon and severity err, one record
// each, tagged with the program's name. Without a syslog socket they are lost,
// as LBNL NHC's are without logger(1).
func sendSyslog(tag string, lines []string) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		w, err := syslog.New(syslog.LOG_DAEMON|syslog.LOG_ERR, tag)
		if err != nil {
			return
		}
		defer w.Close()
		for _, l := range lines {
			for rec := range strings.SplitSeq(l, "\n") {
				_ = w.Err(record(rec))
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(syslogWait()):
		syslogLate.Store(true)
	}
}
