package lbnl

import (
	"regexp"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The tests of this file test the runner itself.

func TestNorms(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want string }{
		{"/usr/sbin/nhc: eval: line 12: foo: command not found", "{SH}: foo: command not found"},
		{"nhc: line 3: 1234 Killed                  sleep 9", "{SH}: {PID} Killed sleep 9"},
		{"syslog daemon.err nhc[123]: text", "syslog daemon.err nhc[{PID}]: text"},
		{"20260102 10:20:30 [/slurm] check", "{DATE} [/slurm] check"},
		{"NHC process 12345 is hung", "NHC process {PID} is hung"},
		{"Script timed out while executing (30s).", "Script timed out while executing ({N}s)."},
	} {
		if got := applyRules(norms, tt.in); got != tt.want {
			t.Errorf("%q becomes %q, want %q", tt.in, got, tt.want)
		}
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	done := outcome{Exit: 1, Stdout: "one\ntwo\n", Calls: []string{"off [node01]"}}
	patterns := func(p string) map[string][]*regexp.Regexp {
		return map[string][]*regexp.Regexp{"stdout": {regexp.MustCompile(p)}}
	}
	for _, tt := range []struct {
		name  string
		wants wants
		fault string // key of the only fault, if there is one
	}{
		{"same", wants{Expect: done}, ""},
		{"exit", wants{Expect: outcome{Stdout: done.Stdout, Calls: done.Calls}}, "exit"},
		{"not compared", wants{Compare: []string{"stderr"}}, ""},
		{"ours", wants{ExpectOurs: &done}, ""},
		{"calls", wants{Compare: []string{"calls"}}, "calls"},
		{"killed", wants{Compare: []string{"stderr"}, Expect: outcome{Killed: []string{"a"}}}, "killed"},
		{"match", wants{Expect: done, MatchOurs: patterns(`(?m)^two$`)}, ""},
		{"no match", wants{Expect: done, MatchOurs: patterns(`three`)}, "stdout"},
		{"unwanted match", wants{Expect: done, NomatchOurs: patterns(`two`)}, "stdout"},
		{"count", wants{Expect: done, CountOurs: map[string]map[string]int{"stdout": {"o": 2}}}, ""},
		{"wrong count", wants{Expect: done, CountOurs: map[string]map[string]int{"stdout": {"o": 1}}}, "stdout"},
		{"beside", wants{Expect: done, BesideOurs: map[string]string{"out": "one"}}, ""},
		{"nothing beside", wants{Expect: done, BesideOurs: map[string]string{"calls": "off [node01]"}}, "calls"},
		{"in time", wants{Expect: done, WallMaxOurs: 2}, ""},
		{"late", wants{Expect: done, WallMaxOurs: 0.4}, "wall"},
		{"norm", wants{ExpectOurs: &outcome{Exit: 1, Stdout: "x\ntwo\n", Calls: done.Calls},
			NormOurs: []rule{{regexp.MustCompile(`(?m)^(?:one|x)$`), "{ANY}"}}}, ""},
	} {
		c := &recorded{wants: tt.wants}
		fault := ""
		for _, f := range c.judge(done, time.Second) {
			fault += f.key
		}
		if fault != tt.fault {
			t.Errorf("%s: fault in %q, want %q", tt.name, fault, tt.fault)
		}
	}
}

func TestSyslogRecord(t *testing.T) {
	t.Parallel()
	l := &syslog{}
	l.record("<27>nhc[12]: Health check failed")
	l.record("<27>Jan  2 10:20:30 nhc: a\nb")
	l.record("<14>Jan 12 10:20:30 node01 nhc: a")
	l.record("no priority")
	want := []string{"syslog daemon.err nhc[12]: Health check failed", "syslog daemon.err nhc: a", "syslog daemon.err nhc: b",
		"syslog user.info nhc: a", "syslog ? no priority"}
	if diff := cmp.Diff(want, l.lines); diff != "" {
		t.Errorf("syslog lines (-want +got):\n%s", diff)
	}
}

func TestSplitLines(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff([]string{"a", "", "b", "c"}, splitLines("a\n\r\nb\rc\n")); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}
