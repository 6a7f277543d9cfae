package sink

import (
	"cmp"
	"context"
	"errors"
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

// syslogLimit is the time limit for one batch: a stopped syslogd must not stop the run. After
// one late batch the limit is very short; otherwise each failure would cost the remaining checks
// a second.
const (
	syslogLimit = time.Second
	syslogAgain = 10 * time.Millisecond
)

// syslogLate is set if a batch was late.
var syslogLate atomic.Bool

func syslogWait() time.Duration {
	if syslogLate.Load() {
		return syslogAgain
	}
	return syslogLimit
}

// maxRecord is the maximum length of a record in bytes, as in rsyslog. A socket rejects much longer
// messages as a whole.
const maxRecord = 8 << 10

func record(line string) string {
	line = verdict.Printable(line)
	if len(line) <= maxRecord {
		return line
	}
	return strings.ToValidUTF8(line[:maxRecord], "")
}

// Syslog writes lines with facility daemon and severity err, one record for each, tagged with the
// program's name. Without a syslog socket they are lost, as in LBNL NHC without
// logger(1).
func Syslog(tag string, lines []string) { _ = SyslogAs(syslog.LOG_ERR, tag, lines) }

// dialSyslog connects to the standard socket of syslog. log/syslog also tries other paths, whose
// file system may not answer.
func dialSyslog() (conn net.Conn, err error) {
	for _, kind := range []string{"unixgram", "unix"} {
		if conn, err = net.Dial(kind, "/dev/log"); err == nil { //nolint:forbidigo // /dev/log
			break
		}
	}
	return conn, err
}

// SyslogAs writes lines with another severity. Without a syslog socket the error is [fs.ErrNotExist].
func SyslogAs(severity syslog.Priority, tag string, lines []string) error {
	return Records(recordsOf(severity, tag, lines, os.Getpid(), time.Now()), syslogWait())
}

// recordsOf returns a record with its header for each line of text.
func recordsOf(severity syslog.Priority, tag string, lines []string, pid int, now time.Time) (records []string) {
	for _, l := range lines {
		for rec := range strings.SplitSeq(l, "\n") {
			records = append(records, fmt.Sprintf("<%d>%s %s[%d]: %s", syslog.LOG_DAEMON|severity, now.Format(time.Stamp), tag, pid, record(rec)))
		}
	}
	return records
}

// Records writes records that have their header, and waits at most that long.
func Records(records []string, limit time.Duration) error {
	done := make(chan error, 1)
	run.Go(func() {
		conn, err := dialSyslog()
		if err == nil {
			defer conn.Close()
			_ = conn.SetWriteDeadline(time.Now().Add(syslogLimit))
			for _, rec := range records {
				_, failed := fmt.Fprintln(conn, rec)
				err = cmp.Or(err, failed)
			}
		}
		done <- err
	})
	select {
	case err := <-done:
		return err
	case <-time.After(min(limit, syslogWait())):
		syslogLate.Store(true)
		return errors.New("no answer")
	}
}

// Logger sends lines through logger(1) if commands run in between (-a), as LBNL NHC does: a site
// that watches both, for example with its own logger, sees them in order.
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
