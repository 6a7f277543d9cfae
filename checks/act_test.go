package checks

import (
	"errors"
	"io/fs"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// TestActs shows the findings of a check in a run that carries out no actions.
func TestActs(t *testing.T) {
	t.Parallel()
	env := &Env{}
	if !env.Acts("restart %s", "sshd") || env.Held() != nil {
		t.Errorf("not a dry run: %q", env.Held())
	}
	env.DryRun = true
	if env.Acts("restart %s", "sshd") || env.Acts("kill process %d", 7) {
		t.Error("acts in a dry run")
	}
	want := []Finding{
		{Code: HeldCode, Severity: Skip, Message: "not done: would restart sshd"},
		{Code: HeldCode, Severity: Skip, Message: "not done: would kill process 7"},
	}
	if diff := cmp.Diff(want, env.NotDone()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestDryRunLeavesMemory shows that a dry run does not change the data that the next
// health check compares with.
func TestDryRunLeavesMemory(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	env := func(dry bool) *Env {
		e := &Env{Host: probe.NewHost(root), DryRun: dry}
		e.Host.SetPast("/past")
		return e
	}
	recalled := func(dry bool) (v string) {
		if err := env(dry).Recall("counters", &v); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		return v
	}
	for i, step := range []struct {
		dry        bool
		keep       string
		check, all string // the data that a dry run then reads, and that of a health check
	}{
		{true, "by hand", "by hand", ""}, // the health check has stored nothing: kept separately
		{true, "again", "again", ""},
		{false, "health", "health", "health"},
		{true, "later", "health", "health"},
		{false, "next", "next", "next"},
	} {
		if err := env(step.dry).Remember("counters", step.keep); err != nil {
			t.Fatal(err)
		}
		if check, all := recalled(true), recalled(false); check != step.check || all != step.all {
			t.Errorf("step %d: %q and %q, want %q and %q", i, check, all, step.check, step.all)
		}
	}
	if err := (&Env{Host: probe.NewHost(root), DryRun: true}).Remember("counters", 1); !errors.Is(err, probe.ErrNoMemory) {
		t.Errorf("without memory: %v", err)
	}
}
