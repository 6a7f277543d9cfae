package sink

import (
	"context"
	"fmt"
	"log/syslog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
)

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

// Syslog writes lines with facility daemon and severity err, one record
// each, tagged with the program's name. Without a syslog socket they are lost,
// as LBNL NHC's are without logger(1).
func Syslog(tag string, lines []string) { SyslogAs(syslog.LOG_ERR, tag, lines) }

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

// SyslogAs writes lines with another severity.
func SyslogAs(severity syslog.Priority, tag string, lines []string) {
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

// Logger hands lines to logger(1), where commands are run in between (-a), as in LBNL
// NHC: whoever watches both, as a site's own logger does, sees them in order.
func Logger(pool *run.Pool, environ []string, tag string, lines []string) {
	if syslogWait() == syslogLimit {
		ctx, cancel := context.WithTimeout(context.Background(), syslogLimit)
		defer cancel()
		argv := []string{"logger", "-p", "daemon.err", "-t", fmt.Sprintf("%s[%d]", tag, os.Getpid())}
		out, err := pool.Exec(ctx, argv, environ, []byte(strings.Join(lines, "\n")+"\n"))
		if err == nil && out.Status == 0 {
			return
		}
		if out.TimedOut {
			syslogLate.Store(true)
		}
	}
	Syslog(tag, lines)
}
