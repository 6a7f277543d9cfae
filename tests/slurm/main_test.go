// Package slurm_test shows nhc-gpu on a real Slurm. Each test starts its own cluster from the
// distribution's packages (munged, slurmctld, four slurmd; no systemd), with nhc-gpu as its
// HealthCheckProgram, breaks something, and checks the resulting state of the nodes. In tests about
// jobs each node has eight GPUs, simulated by tests/fakenvml, nhc-gpu as Prolog and Epilog, and a
// real rsyslogd.
//
// It needs root and Slurm, and is skipped with the reason otherwise. The environment may name
// another Slurm and another program:
//
//	NHC_GPU_SLURM_ROOT  a root file system whose Slurm is used (see matrix.sh)
//	NHC_GPU_BINARY      an nhc-gpu already built
//
// With go test -artifacts the logs and files of every cluster are kept.
package slurm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

func TestMain(m *testing.M) {
	if os.Args[0] == bubbleName {
		os.Exit(bubbleMain(os.Args))
	}
	os.Exit(testMain(m))
}

var tempDir string // has the files that all tests share

func testMain(m *testing.M) int {
	var err error
	if tempDir, err = os.MkdirTemp("", "nhc-gpu-slurm-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(tempDir)
	if err := os.Chmod(tempDir, 0o755); err != nil { // users of a cluster run the program
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// builtBinary returns the directory of the nhc-gpu under test.
var builtBinary = sync.OnceValues(func() (string, error) {
	program := filepath.Join(tempDir, "nhc-gpu")
	if path := os.Getenv(built.Setting); path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		return tempDir, built.WriteProgram(program, data)
	}
	if _, err := built.Program(tempDir); err != nil {
		return "", err
	}
	return tempDir, nil
})

// skipUnlessAble skips a test that cannot start a cluster here.
func skipUnlessAble(t *testing.T, root string) {
	t.Helper()
	need.Root(t, "a cluster of Slurm")
	for _, program := range []string{"slurmctld", "slurmd", "scontrol", "munged"} {
		if !installed(root, program) {
			need.Skip(t, "no %s in %s: tests/install-deps.sh installs it", program, root)
		}
	}
	need.Program(t, "nsenter")
}

func installed(root, program string) bool {
	for _, dir := range []string{"usr/sbin", "usr/bin"} {
		if _, err := os.Stat(filepath.Join(root, dir, program)); err == nil {
			return true
		}
	}
	return false
}
