package worker

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

func TestPrograms(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"50-nhc-gpu": "#!/bin/bash -p\nexec /usr/sbin/nhc-gpu --prolog\n", "90-scratch": "#!/bin/sh\nmkdir /scratch/$SLURM_JOB_ID\n", ".hidden": "",
	} {
		if err := probetest.WriteProgram(filepath.Join(dir, name), []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "README"), []byte("how to use nhc-gpu\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"70-self": self, "80-gone": "/nonexistent/50-nhc-gpu", "85-other": "../nhc-gpu"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "old"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := probetest.WriteProgram(filepath.Join(dir, "../nhc-gpu"), nil); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	all := []wire.Program{
		{Path: at("50-nhc-gpu"), Starts: true}, {Path: at("70-self"), Self: true}, {Path: at("80-gone"), Gone: true, Bad: "a link that leads nowhere"},
		{Path: at("85-other"), Self: true}, {Path: at("90-scratch")}, {Path: at("README"), Bad: "cannot be executed (mode 0644)"},
		{Path: at("old"), Bad: "not a program (d---------)"},
	}
	for pattern, want := range map[string][]wire.Program{
		at("*"): all, at("50-nhc-gpu"): all[:1], at("nothing"): nil, at("nothing/*"): nil, at("[0-6]*"): all[:1],
	} {
		got := findPrograms(pattern, nil)
		if diff := cmp.Diff(want, got.Programs); diff != "" || got.Err != "" {
			t.Errorf("%s: %s (-want +got):\n%s", pattern, got.Err, diff)
		}
	}
	for _, pattern := range []string{at("50-nhc-gpu/*"), at("[")} {
		if got := findPrograms(pattern, nil); got.Err == "" {
			t.Errorf("%s: got %v, want an error", pattern, got.Programs)
		}
	}
}
