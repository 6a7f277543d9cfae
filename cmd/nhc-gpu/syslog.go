package main

import (
	"context"
	"fmt"
	"log/syslog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/plan"
)

// tellSyslog hands lines to syslog. Where commands are run in between (-a) it is
// logger(1) that does, as in LBNL NHC: whoever watches both, as a site's own
// logger does, sees them in order.
func (r *oneRun) tellSyslog(lines []string) {
	tag := r.set.get("NAME")
	if r.fold.f.All && r.startsCommands() {
		ctx, cancel := context.WithTimeout(context.Background(), syslogLimit)
		defer cancel()
		argv := []string{"logger", "-p", "daemon.err", "-t", fmt.Sprintf("%s[%d]", tag, os.Getpid())}
		out, err := r.pool.Exec(ctx, argv, r.set.environ(), []byte(strings.Join(lines, "\n")+"\n"))
		if err == nil && out.Status == 0 {
			return
		}
	}
	sendSyslog(tag, lines)
}

// startsCommands says whether steps of the plan start other programs.
func (r *oneRun) startsCommands() bool {
	return r.plan != nil && slices.ContainsFunc(r.plan.Steps, func(s plan.Step) bool { return s.Barrier })
}

// syslogLimit bounds the delivery of one batch: a syslogd that is stopped must
// not stop us.
const syslogLimit = time.Second

// sendSyslog writes lines with facility daemon and severity err, one record
// each, tagged with the program's name. Without a syslog socket they are lost,
// as LBNL NHC's are without logger(1).
func sendSyslog(tag string, lines []string) { sendSyslogAs(syslog.LOG_ERR, tag, lines) }

// sendSyslogAs writes lines with another severity.
func sendSyslogAs(severity syslog.Priority, tag string, lines []string) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		w, err := syslog.New(syslog.LOG_DAEMON|severity, tag)
		if err != nil {
			return
		}
		defer w.Close()
		for _, l := range lines {
			for rec := range strings.SplitSeq(l, "\n") {
				_, _ = w.Write([]byte(rec))
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(syslogLimit):
	}
}
