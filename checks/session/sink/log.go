// Package sink writes the lines of a run to the log file and to syslog.
package sink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// Log is LBNL's standard output after LOGFILE is applied. A worker writes the log file: its
// file system can hang.
type Log struct {
	Pool     *run.Pool
	Out, Err io.Writer // standard output and standard error
	Unlogged bool      // the log cannot be opened

	spec   conf.LogSpec
	On     bool   // LOGFILE is set
	known  bool   // the target is known, and can be used
	path   string // the target of standard output; "" means unchanged
	lost   bool   // the log file does not answer: no more lines are taken
	failed bool   // a write has failed: the lines wait for Close
	buf    strings.Builder

	// shared holds the logs in directories that another user controls.
	shared map[string]bool
}

// logLimit is the time limit of a write to the log file.
const logLimit = 300 * time.Millisecond

// logLane is the worker that writes the log file.
const logLane = "log"

// Parse parses LOGFILE, and stores it in the settings in the form that checks see.
func (l *Log) Parse(set *setting.Settings) (spec string, err error) {
	spec, l.known = set.Get("LOGFILE"), true
	if strings.HasPrefix(spec, "/") {
		spec = ">>" + spec + " 2>&1"
		set.Put("LOGFILE", spec, true)
	}
	if spec == "-" || spec == "" {
		delete(set.Vars, "LOGFILE")
		return spec, nil
	}
	for _, own := range []string{"/dev/stdout", "/dev/stderr", "/dev/fd/1", "/dev/fd/2"} {
		if strings.HasPrefix(spec, ">>"+own+" ") { // LBNL NHC has already closed them
			return spec, fmt.Errorf("open %s: the log cannot be this program's own output; write LOGFILE=- for that", own)
		}
	}
	l.spec, err = conf.ParseLog(spec, set.Get)
	if err != nil {
		return spec, err
	}
	l.On = true
	if out := l.spec.Stdout(); out.Path != "" {
		l.path = out.Path
	}
	return spec, nil
}

// OpenRequests returns requests that create the log files, as LBNL NHC does in every run.
func (l *Log) OpenRequests() (reqs []*wire.Request) {
	if !l.On {
		return nil
	}
	seen := map[string]bool{}
	for _, t := range []conf.LogTarget{l.spec.Stdout(), l.spec.Stderr()} {
		if t.Path != "" && !seen[t.Path] {
			seen[t.Path] = true
			reqs = append(reqs, &wire.Request{Op: wire.OpAppend, Path: t.Path, Trunc: !t.Append, Line: "open " + t.Path})
		}
	}
	return reqs
}

// Opened records the result of opening a log.
func (l *Log) Opened(q *wire.Request, o run.Outcome) {
	if _, err := o.File(q.Line); err == nil {
		if l.shared == nil {
			l.shared = map[string]bool{}
		}
		l.shared[q.Path] = true
	}
}

// shellPath returns the path at which bash opens a log. Another user can replace a file that a
// worker has found safe, so bash gets the file that a worker holds open.
func (l *Log) shellPath(path string) string {
	if !l.shared[path] {
		return path
	}
	q := &wire.Request{Op: wire.OpAppend, Path: path, Line: "open " + path}
	file, err := l.Pool.Call(context.Background(), logLane, q, logLimit).File(q.Line)
	if err != nil {
		return "/dev/null"
	}
	return file.Path
}

// ShellText returns bash code that applies the redirections of LOGFILE.
func (l *Log) ShellText() string {
	if !l.On {
		return ""
	}
	var b strings.Builder
	b.WriteString("exec 3>&1 4>&2\n__nhc_private 3 4\nNHC_FD_OUT=3 NHC_FD_ERR=4\n")
	for fd, t := range []conf.LogTarget{l.spec.Stdout(), l.spec.Stderr()} {
		switch {
		case t.Path != "":
			fmt.Fprintf(&b, "exec %d>>%s\n", fd+1, setting.Quote(l.shellPath(t.Path)))
		case t.Fd != fd+1:
			fmt.Fprintf(&b, "exec %d>&%d\n", fd+1, t.Fd+2)
		}
	}
	return b.String()
}

// Write writes one line.
func (l *Log) Write(text string) {
	if l.path == "" {
		fmt.Fprintln(l.Out, text)
		return
	}
	if l.lost {
		return
	}
	if l.buf.Len() == 0 {
		_ = l.Pool.Start(logLane) // on a loaded node the start takes longer than the write; an error comes with the write
	}
	l.buf.WriteString(verdict.Printable(text) + "\n")
}

// Note writes a line of nhc-gpu, with two blanks after the name as in LBNL NHC's lines.
func (l *Log) Note(format string, args ...any) { l.Write("nhc-gpu:  " + fmt.Sprintf(format, args...)) }

// Flush sends the written lines to the log file, and reports whether the log has all lines of the run.
func (l *Log) Flush() (written bool) {
	switch {
	case l.lost || l.failed:
		return false
	case l.path == "":
		return l.known
	case l.buf.Len() == 0:
		return true
	}
	err := l.send()
	if err != nil {
		l.failed = true
		fmt.Fprintf(l.Err, "nhc-gpu: warning: %v\n", err)
	}
	return err == nil
}

// Close sends the lines once more that the log did not take: its file system can be full for a moment.
func (l *Log) Close() {
	if l.failed && !l.lost {
		_ = l.send() // Flush has reported it
	}
}

// send writes the lines. A log that does not answer is lost, so that it costs its time once.
func (l *Log) send() error {
	q := &wire.Request{Op: wire.OpAppend, Path: l.path, Data: []byte(l.buf.String()), Line: "write " + l.path}
	o := l.Pool.Call(context.Background(), logLane, q, logLimit)
	l.lost = o.Late()
	err := o.FailureIn(q.Line)
	if err == nil || l.lost {
		l.buf.Reset()
	}
	return err
}

// Fail reports a LOGFILE that cannot be opened, with LBNL's text. Unlike LBNL NHC, the run
// continues without a log: a root file system that became read-only is a fault to report. The
// exit status is then 1 if no check fails. A LOGFILE that is not a redirection ends the
// run.
func (l *Log) Fail(set *setting.Settings, spec string, err error) (exit int, over bool) {
	if errors.Is(err, conf.ErrNotRedirection) {
		fmt.Fprintf(l.Err, "nhc-gpu: LOGFILE: %v\n", err)
		return 127, true
	}
	text := fmt.Sprintf("NHC:  FATAL:  Can't write %s as %s (uid %d) -- Read-only filesystem/device failure?", spec, set.Get("USER"), os.Geteuid())
	fmt.Fprintln(l.Out, "ERROR "+text)
	fmt.Fprintf(l.Err, "nhc-gpu: %v\n", err)
	Syslog(set.Get("NAME"), []string{text})
	const nowhere = ">>/dev/null 2>&1"
	l.spec, _ = conf.ParseLog(nowhere, set.Get)
	l.On, l.lost, l.path = true, true, "/dev/null"
	l.Unlogged = true
	return 1, false
}

// Drop stops the use of LOGFILE, and returns the warning.
func (l *Log) Drop(set *setting.Settings, spec string, err error) error {
	l.On, l.known, l.path, l.spec = false, false, "", conf.LogSpec{}
	delete(set.Vars, "LOGFILE")
	err = fmt.Errorf("LOGFILE %s is not used: %w", spec, err)
	Syslog(set.Get("NAME"), []string{err.Error()})
	return err
}
