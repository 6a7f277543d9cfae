package sink

import (
	"errors"
	"fmt"
	"log/syslog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// parse returns a log with a LOGFILE, and its settings.
func parse(t *testing.T, logfile string) (l *Log, set *setting.Settings, out *strings.Builder, err error) {
	t.Helper()
	out = new(strings.Builder)
	l = &Log{Out: out, Err: out}
	set = &setting.Settings{Vars: map[string]string{"LOGFILE": logfile, "NAME": "nhc-test", "USER": "root"}, Export: map[string]bool{}}
	_, err = l.Parse(set)
	return l, set, out, err
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		logfile string
		on      bool
		set     string // LOGFILE of the checks
		opens   string
		shell   string // of the redirections
		err     string
	}{
		{logfile: ""},
		{logfile: "-"},
		{logfile: ">>/log 2>&1", on: true, set: ">>/log 2>&1", opens: "/log", shell: "exec 1>>'/log'\nexec 2>>'/log'\n"},
		{logfile: "/log", on: true, set: ">>/log 2>&1", opens: "/log", shell: "exec 1>>'/log'\nexec 2>>'/log'\n"},
		{logfile: ">/log", on: true, set: ">/log", opens: "/log cut", shell: "exec 1>>'/log'\n"},
		{logfile: ">>/it's 2>>/err", on: true, set: ">>/it's 2>>/err", opens: "", err: "quote"},
		{logfile: ">>/log 2>>/err", on: true, set: ">>/log 2>>/err", opens: "/log /err", shell: "exec 1>>'/log'\nexec 2>>'/err'\n"},
		{logfile: "1>&2", on: true, set: "1>&2", shell: "exec 1>&4\n"},
		{logfile: "/dev/stdout", set: ">>/dev/stdout 2>&1", err: "open /dev/stdout: the log cannot be this program's own output; write LOGFILE=- for that"},
		{logfile: "rm -rf /", set: "rm -rf /", err: conf.ErrNotRedirection.Error()},
	} {
		l, set, _, err := parse(t, tt.logfile)
		if tt.err != "" {
			if err == nil || tt.err != "quote" && !strings.Contains(err.Error(), tt.err) || l.On {
				t.Errorf("%s: %v, on %v, want %q", tt.logfile, err, l.On, tt.err)
			}
			continue
		}
		var opens []string
		for _, q := range l.OpenRequests() {
			word := q.Path
			if q.Trunc {
				word += " cut"
			}
			opens = append(opens, word)
		}
		if err != nil || l.On != tt.on || set.Get("LOGFILE") != tt.set || strings.Join(opens, " ") != tt.opens {
			t.Errorf("%s: %v, on %v, LOGFILE=%s, opens %q", tt.logfile, err, l.On, set.Get("LOGFILE"), opens)
		}
		want := ""
		if tt.on {
			want = "exec 3>&1 4>&2\n__nhc_private 3 4\nNHC_FD_OUT=3 NHC_FD_ERR=4\n" + tt.shell
		}
		if diff := cmp.Diff(want, l.ShellText()); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tt.logfile, diff)
		}
	}
}

// A log that cannot be opened is reported once, and the run goes on without it.
func TestFailAndDrop(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		err  error
		exit int
		over bool
		out  string
	}{
		{"no redirection", fmt.Errorf("rm: %w", conf.ErrNotRedirection), 127, true, "nhc-gpu: LOGFILE: rm: "},
		{"no such directory", errors.New("open /log: no such file"), 1, false, "ERROR NHC:  FATAL:  Can't write >>/log as root (uid "},
	} {
		l, set, out, err := parse(t, ">>/log")
		if err != nil {
			t.Fatal(err)
		}
		exit, over := l.Fail(set, ">>/log", tt.err)
		if exit != tt.exit || over != tt.over || l.Unlogged == tt.over || !strings.HasPrefix(out.String(), tt.out) {
			t.Errorf("%s: exit %d, over %v, unlogged %v, %q", tt.name, exit, over, l.Unlogged, out)
		}
		if tt.over {
			continue
		}
		said := out.String()
		l.Write("a line")
		if l.Flush() || out.String() != said {
			t.Errorf("%s: then a line is printed: %q", tt.name, out)
		}
	}
	l, set, out, _ := parse(t, ">>/log")
	err := l.Drop(set, ">>/log", errors.New("denied"))
	if l.Write("a line"); l.Flush() || err.Error() != "LOGFILE >>/log is not used: denied" || l.On || out.String() != "a line\n" || set.Get("LOGFILE") != "" || len(l.OpenRequests()) > 0 {
		t.Errorf("%v, on %v, %q", err, l.On, out)
	}
}

func TestRecordsOf(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	got := recordsOf(syslog.LOG_ERR, "nhc", []string{"a\nb", "", "c\x1b"}, 7, now)
	const head = "<27>Jan  2 03:04:05 nhc[7]: "
	if diff := cmp.Diff([]string{head + "a", head + "b", head, head + "c?"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got = recordsOf(syslog.LOG_INFO, "nhc", []string{"a"}, 7, now); !strings.HasPrefix(got[0], "<30>") {
		t.Errorf("severity info: %q", got)
	}
	if got = recordsOf(syslog.LOG_INFO, "nhc", nil, 7, now); got != nil {
		t.Errorf("no line: %q", got)
	}
}
