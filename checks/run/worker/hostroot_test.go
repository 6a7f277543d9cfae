package worker

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// TestHostRootOfALine checks that HOSTROOT in a line of nhc.conf applies to the check after it,
// although the worker got the variables before that line.
func TestHostRootOfALine(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "proc/net"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "proc/net/dev"), []byte("a|b\nc|d\n   zz0: 1 2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	w := &worker{host: probe.NewHost("/")}
	w.setVars(wire.Vars{Plain: map[string]string{}})
	got := w.check(&wire.Request{Op: wire.OpCheck, Name: "check_hw_eth", Args: []string{"zz0"}, Over: map[string]string{"HOSTROOT": root}})
	if got.Err != "" || len(got.Findings) > 0 {
		t.Errorf("check_hw_eth zz0 below HOSTROOT=%s: %s %v, want nothing", root, got.Err, got.Findings)
	}
}
