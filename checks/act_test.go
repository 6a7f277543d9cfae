package checks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// observesByCommand lists the checks whose [Info.Acts] is true because they run
// a program of the site. The program is the check, not an action on what it found.
var observesByCommand = []string{"check_cmd_dmesg", "check_cmd_output", "check_cmd_status", "check_net_ping"}

// TestHoldChangesNothing runs every scenario of a check that acts with
// [Env.Hold]: the files of the node stay as they are, and at least one scenario
// of each family of checks names an action that was not done.
func TestHoldChangesNothing(t *testing.T) {
	t.Parallel()
	held := map[reflect.Type]int{}
	for name := range tables {
		info, _ := Lookup(name)
		if info.Acts == nil || slices.Contains(observesByCommand, name) {
			continue
		}
		family := reflect.TypeOf(info.New())
		for _, s := range scenariosOf(name) {
			if s.acts {
				held[family] += len(s.held(t, name))
			}
		}
	}
	for family, n := range held {
		if n == 0 && family != reflect.TypeFor[*jobLeftovers]() { // see TestHoldSparesLeftovers
			t.Errorf("%v: no scenario holds an action", family)
		}
	}
}

// held runs a scenario with Hold and returns the actions that were not done.
func (s scenario) held(t *testing.T, name string) []string {
	t.Helper()
	root, words, env := s.prepare(t, name)
	env.Hold = true
	before := snapshot(t, root)
	s.bindAndRun(t, name, words, env)
	if diff := cmp.Diff(before, snapshot(t, root)); diff != "" {
		t.Errorf("%s changed the node (-before +after):\n%s", env.Line, diff)
	}
	return env.Held()
}

// snapshot describes every file below a directory but what the checks keep for
// later runs: mode, time of the last change and content.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == "past" && d.IsDir() {
			return fs.SkipDir
		}
		if data, _ := os.ReadFile(path); strings.HasPrefix(string(data), "squeue ") {
			return nil // the fake squeue's own log
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch {
		case d.Type().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %s %q", info.ModTime(), data)
		case d.Type() == fs.ModeSymlink:
			target, _ := os.Readlink(path)
			text += " -> " + target
		}
		files[strings.TrimPrefix(path, dir)] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestActs shows what a check says in a run that carries out no actions.
func TestActs(t *testing.T) {
	t.Parallel()
	env := &Env{}
	if !env.acts("restart %s", "sshd") || env.Held() != nil {
		t.Errorf("without Hold: %q", env.Held())
	}
	env.Hold = true
	if env.acts("restart %s", "sshd") || env.acts("kill process %d", 7) {
		t.Error("acts with Hold")
	}
	want := []Finding{
		{Code: HeldCode, Severity: Skip, Message: "not done: would restart sshd"},
		{Code: HeldCode, Severity: Skip, Message: "not done: would kill process 7"},
	}
	if diff := cmp.Diff(want, env.NotDone()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestHoldLeavesMemory shows that a run with Hold changes nothing that the next
// health check compares with.
func TestHoldLeavesMemory(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	env := func(hold bool) *Env {
		e := &Env{Host: probe.NewHost(root), Hold: hold}
		e.Host.SetPast("/past")
		return e
	}
	recalled := func(hold bool) (v string) {
		if err := env(hold).recall("counters", &v); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		return v
	}
	for i, step := range []struct {
		hold       bool
		keep       string
		check, all string // what a run with Hold knows then, and what a health check knows
	}{
		{true, "by hand", "by hand", ""}, // nothing is there yet: kept apart
		{true, "again", "again", ""},
		{false, "health", "health", "health"},
		{true, "later", "health", "health"},
		{false, "next", "next", "next"},
	} {
		if err := env(step.hold).remember("counters", step.keep); err != nil {
			t.Fatal(err)
		}
		if check, all := recalled(true), recalled(false); check != step.check || all != step.all {
			t.Errorf("step %d: %q and %q, want %q and %q", i, check, all, step.check, step.all)
		}
	}
	if err := (&Env{Host: probe.NewHost(root), Hold: true}).remember("counters", 1); !errors.Is(err, probe.ErrNoMemory) {
		t.Errorf("without memory: %v", err)
	}
}
