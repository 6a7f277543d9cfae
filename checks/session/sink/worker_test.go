package sink_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/session/sessiontest"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/slurm"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// The lines go to the log file, in one write; a file that cannot be written costs one warning.
func TestWrite(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, file, want, warned string }{
		{"a file", "log", "a?\nb\nc\n", ""},
		{"no directory", "none/log", "", "warning: open "},
	} {
		n := sessiontest.New(t, slurm.HealthCheck, "LOGFILE=x")
		n.Warm(t, "log")
		n.Set.Vars["LOGFILE"] = n.Dir + "/" + tt.file
		if _, err := n.Log.Parse(n.Set); err != nil {
			t.Fatal(err)
		}
		if n.Log.Flush(); n.Err.String() != "" {
			t.Errorf("%s: nothing is written, and warned %q", tt.name, n.Err)
		}
		n.Log.Write("a\x1b")
		n.Log.Write("b")
		if n.Read(tt.file) != "" {
			t.Errorf("%s: written before the end", tt.name)
		}
		n.Log.Flush()
		n.Log.Write("c")
		if written := n.Log.Flush(); written != (tt.warned == "") {
			t.Errorf("%s: written %v", tt.name, written)
		}
		if got := n.Read(tt.file); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
		if got := n.Err.String(); (strings.Count(got, "\n") == 1) != (tt.warned != "") || !strings.Contains(got, tt.warned) {
			t.Errorf("%s: warned %q, want %q once", tt.name, got, tt.warned)
		}
	}
}

// A log that does not take lines gets them again at the end of the run, with those after them.
func TestWriteAgain(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.HealthCheck)
	n.Warm(t, "log")
	if n.Log.Flush() {
		t.Error("the log has all lines before its target is known")
	}
	n.Set.Vars["LOGFILE"] = n.Dir + "/none/log"
	if _, err := n.Log.Parse(n.Set); err != nil {
		t.Fatal(err)
	}
	n.Log.Write("a")
	if once, again := n.Log.Flush(), n.Log.Flush(); once || again {
		t.Error("the log has a line without its directory")
	}
	n.Log.Write("b")
	n.Write(t, "none/log", "")
	if n.Log.Flush() {
		t.Error("it is tried again before the end")
	}
	n.Log.Close()
	if got := n.Read("none/log"); got != "a\nb\n" || strings.Count(n.Err.String(), "\n") != 1 {
		t.Errorf("%q, warned %q", got, n.Err)
	}
}

// A log that another user controls is opened by a worker, and bash gets what the worker holds open.
func TestSharedLog(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.HealthCheck, "LOGFILE=x")
	n.Warm(t, "log")
	shared := n.Dir + "/shared"
	if err := os.Mkdir(shared, 0o755); err != nil {
		t.Fatal(err)
	}
	need.Root(t, "the directory belongs to another user")
	if err := os.Chown(shared, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	n.Set.Vars["LOGFILE"] = shared + "/log"
	if _, err := n.Log.Parse(n.Set); err != nil {
		t.Fatal(err)
	}
	for _, q := range n.Log.OpenRequests() {
		o := n.Pool.Call(n.Ctx, "log", q, time.Minute)
		if err := o.Failure(); err != nil {
			t.Fatal(err)
		}
		n.Log.Opened(q, o)
	}
	if text := n.Log.ShellText(); strings.Contains(text, shared) || !strings.Contains(text, "exec 1>>'/proc/") {
		t.Errorf("bash opens %s", text)
	}
	n.Pool.Kill()
	if err := os.Rename(shared, shared+".old"); err != nil {
		t.Fatal(err)
	}
	if text := n.Log.ShellText(); !strings.Contains(text, "exec 1>>'/dev/null'") {
		t.Errorf("a log that is gone: bash opens %s", text)
	}
}

// Lines go through logger(1); each line is one of its input.
func TestLogger(t *testing.T) {
	t.Parallel()
	n := sessiontest.New(t, slurm.HealthCheck)
	n.Script(t, "bin/logger", `echo "$@" >"${0%/bin/*}/argv"; cat >"${0%/bin/*}/syslog"`)
	sink.Logger(n.Pool, n.Set.Environ(), "nhc-test", []string{"a", "b\nc"})
	if got := n.Read("syslog"); got != "a\nb\nc\n" {
		t.Errorf("%q", got)
	}
	if got, want := n.Read("argv"), "-p daemon.err -t nhc-test["; !strings.HasPrefix(got, want) {
		t.Errorf("logger %q, want %q", got, want)
	}
}
