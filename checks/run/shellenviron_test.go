package run

import (
	"slices"
	"strings"
	"testing"
)

// Exported variables arrive after each change, also before a check that a line calls; the exports
// of a subshell stay in the subshell.
func TestShellEnviron(t *testing.T) {
	t.Parallel()
	h := &script{}
	var called string
	h.native = func([]string) NativeReply {
		called = h.env["A"]
		return NativeReply{}
	}
	s := startTestShell(t, h, "")
	for _, step := range []struct {
		line, called, after string
		told                bool
	}{
		{"A=1", "", "", true}, // the initial environment
		{"export A", "", "1", true},
		{"true", "", "", false},
		{"A=2 check_hw_eth lo", "2", "1", true},
		{`A=$'3\n\n 4'; check_hw_eth lo`, "3\n\n 4", "3\n\n 4", true},
		{"(export A=5)", "", "", false},
		{"unset A", "", "", true},
	} {
		h.env, called = nil, ""
		if status, _, err := s.Line(false, 1, step.line, soon()); status != 0 || err != nil {
			t.Fatalf("%s: status %d, %v", step.line, status, err)
		}
		if (h.env != nil) != step.told || h.env["A"] != step.after || called != step.called {
			t.Errorf("%s: check saw %q, then told %v: A=%q; want %q, %v: %q", step.line, called, h.env != nil, h.env["A"], step.called, step.told, step.after)
		}
	}
}

// bash complains about a locale that is not installed when a line sets it, and no more.
func TestShellAbsentLocale(t *testing.T) {
	t.Parallel()
	for _, init := range []string{"", "set -x\n", "set -eu\n"} {
		h := &script{}
		s := startTestShell(t, h, init)
		for _, line := range []string{"LC_ALL=C.UTF-8", "LC_ALL=xx_YY.UTF-8", "check_hw_eth 1", "(check_hw_eth 2)", "check_hw_eth $'\\xc3'", "unset LC_ALL", "check_hw_eth last"} {
			if status, _, err := s.Line(false, 1, line, soon()); status != 0 || err != nil {
				t.Fatalf("%s%s: status %d, %v", init, line, status, err)
			}
		}
		all := strings.Join(slices.DeleteFunc(h.heard, func(l string) bool { return strings.HasPrefix(l, "2: ++") }), "\n")
		if n := strings.Count(all, "cannot change locale"); n != 1 || strings.Count(all, "native in") != 4 {
			t.Errorf("%s%d complaints, want 1, and the calls of 4 checks; heard\n%s", init, n, all)
		}
	}
}
