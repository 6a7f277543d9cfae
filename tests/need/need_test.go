package need

import (
	"fmt"
	"testing"
)

// result records whether a test was skipped or failed.
type result struct {
	testing.TB
	skipped, failed string
}

func (*result) Helper() {}

func (r *result) Skipf(format string, args ...any) { r.skipped = fmt.Sprintf(format, args...) }

func (r *result) Fatalf(format string, args ...any) { r.failed = fmt.Sprintf(format, args...) }

// In CI a test that lacks a program fails; elsewhere it is skipped, and names the program.
func TestProgram(t *testing.T) {
	const reason = "no nhc-gpu-no-such-program: tests/install-deps.sh installs it"
	for _, tt := range []struct{ ci, skipped, failed string }{
		{"", reason, ""},
		{"false", reason, ""},
		{"true", "", "CI must not skip this test: " + reason},
	} {
		t.Setenv("CI", tt.ci)
		r := new(result)
		if Program(r, "nhc-gpu-no-such-program"); tt.failed != "" {
			r.skipped = "" // the real Fatalf does not return
		}
		if r.skipped != tt.skipped || r.failed != tt.failed {
			t.Errorf("CI=%s: skipped %q, failed %q", tt.ci, r.skipped, r.failed)
		}
		if status := Exit("no gcc"); (status != 0) != (tt.failed != "") {
			t.Errorf("CI=%s: a package exits with status %d", tt.ci, status)
		}
		r = new(result)
		if path := Program(r, "sh"); path == "" || r.skipped+r.failed != "" {
			t.Errorf("CI=%s: sh is %q, skipped %q, failed %q", tt.ci, path, r.skipped, r.failed)
		}
	}
}
