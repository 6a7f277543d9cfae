package session

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

func TestExcuse(t *testing.T) {
	t.Parallel()
	fault := checks.Finding{Code: "fs.free", Severity: checks.Fail, Message: "full", Remedy: checks.NoRemedy}
	usage := checks.Finding{Code: "config.usage", Severity: checks.Fail, Message: "Invalid option", Remedy: checks.FixConfig}
	warn := checks.Finding{Code: "config.value", Severity: checks.Warn, Message: "odd"}
	unknown := usage
	unknown.Severity = checks.Unknown
	if diff := cmp.Diff([]checks.Finding{fault, unknown, warn}, Excuse([]checks.Finding{fault, usage, warn}, "")); diff != "" {
		t.Errorf("a line with all arguments (-want +got):\n%s", diff)
	}
	want := checks.Finding{Code: "config.usage", Severity: checks.Unknown, Message: "full; no MIN is given", Remedy: checks.FixConfig}
	if diff := cmp.Diff([]checks.Finding{want, warn}, Excuse([]checks.Finding{fault, warn}, "no MIN is given")); diff != "" {
		t.Errorf("a line without one (-want +got):\n%s", diff)
	}
	if usage.Severity != checks.Fail {
		t.Error("its argument was changed")
	}
}
