package main

import (
	"context"
	"fmt"
	"log/syslog"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
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
	line = verdict.Printable(line)
	if len(line) <= maxRecord {
		return line
	}
	return strings.ToValidUTF8(line[:maxRecord], "")
}

// sendSyslog writes lines with facility daemon and severity err, one record
// each, tagged with the program's name. Without a syslog socket they are lost,
// as LBNL NHC's are without logger(1).
func sendSyslog(tag string, lines []string) { sendSyslogAs(syslog.LOG_ERR, tag, lines) }

// dialSyslog connects to syslog where every Linux has it. log/syslog would look elsewhere,
// too, where a file system may not answer.
func dialSyslog() (conn net.Conn, err error) {
	for _, kind := range []string{"unixgram", "unix"} {
		if conn, err = net.Dial(kind, "/dev/log"); err == nil { //nolint:forbidigo // /dev/log
			break
		}
	}
	return conn, err
}

// sendSyslogAs writes lines with another severity.
func sendSyslogAs(severity syslog.Priority, tag string, lines []string) {
	done := make(chan struct{})
	run.Go(func() {
		defer close(done)
		conn, err := dialSyslog()
		if err != nil {
			return
		}
		defer conn.Close()
		_ = conn.SetWriteDeadline(time.Now().Add(syslogLimit))
		for _, l := range lines {
			for rec := range strings.SplitSeq(l, "\n") {
				_, _ = fmt.Fprintf(conn, "<%d>%s %s[%d]: %s\n", syslog.LOG_DAEMON|severity, time.Now().Format(time.Stamp), tag, os.Getpid(), record(rec))
			}
		}
	})
	select {
	case <-done:
	case <-time.After(syslogWait()):
		syslogLate.Store(true)
	}
}
