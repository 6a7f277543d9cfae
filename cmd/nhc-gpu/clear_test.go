package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// Without a device, clear asks at a terminal, and clears only after y or yes.
func TestClearAsks(t *testing.T) {
	t.Parallel()
	need.Root(t, "only root can clear")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, node := filepath.Join(programDir(t, self), "nhc-gpu"), t.TempDir()
	for name, text := range map[string]string{
		"dev/kmsg": "5,0,0,-;Linux version 6.8.0\n", "proc/stat": "cpu 1 2 3\nbtime 1790000000\n", "proc/uptime": "100000.00 1.00\n",
		"proc/sys/kernel/random/boot_id": "658f832e-2c36-42e1-a29c-a17c2e3298d2\n",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(node, name)), 0o755), os.WriteFile(filepath.Join(node, name), []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(program, "-e", "check_gpu_xid", "HOSTROOT="+node).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for answer, want := range map[string]string{
		"y\n": "Clear all GPU errors? [y/N] cleared nothing: no such error is remembered\n", "yes\n": "no such error",
		"\n": "[y/N] cleared nothing\n", "n\n": "[y/N] cleared nothing\n", "\x04": "[y/N] \ncleared nothing\n",
	} {
		person, stdin := terminal(t, 80)
		if _, err := person.WriteString(answer); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), program, "clear", "HOSTROOT="+node)
		cmd.Stdin = stdin
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%q: %v, want %q in\n%s", answer, err, want, out)
		}
	}
}
