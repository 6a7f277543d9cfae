package main

import (
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/setting"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

func TestParseResult(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ data, status, message string }{
		{"", "", ""},
		{"\n", "", ""},
		{"0\n", "0", ""},
		{"7 bad disk", "7", "bad disk"},
		{" \t42  some 'old'   \"msg\" \\t \n", "42", `some 'old'   "msg" t`},
		{"1 first\nsecond\n", "1", "first"},
		{"1 joined \\\nline\nrest\n", "1", "joined line"},
		{"1 a\\\\b\\", "1", `a\b`},
		{"unknown read /x: denied\n", "unknown", "read /x: denied"},
	} {
		if got := parseResult(test.data); got != (result{test.status, test.message}) {
			t.Errorf("parseResult(%q) = %q, want %q %q", test.data, got, test.status, test.message)
		}
	}
}

// slurmd ends the run that it started, and not the background half.
func TestAllowed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		timeout    string
		background bool
		want       time.Duration
	}{
		{"30", false, 30 * time.Second},
		{"120", false, session.SlurmdLimit},
		{"0", false, session.SlurmdLimit},
		{"120", true, 120 * time.Second},
		{"0", true, session.SlurmdLimit},
	} {
		r := &oneRun{
			opts: &options{},
			Node: &node.Node{
				Set: &setting.Settings{Vars: map[string]string{"TIMEOUT": test.timeout}}, Role: slurm.HealthCheck, Background: test.background,
			},
		}
		if got := r.allowed(); got != test.want {
			t.Errorf("TIMEOUT=%s, background %v: %s, want %s", test.timeout, test.background, got, test.want)
		}
	}
}
