package lbnl

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

const (
	casesDir    = "testdata/cases"
	pendingPath = "pending.txt"
)

// TestMain runs another role of this binary if it was started for that.
func TestMain(m *testing.M) {
	switch os.Args[0] {
	case initName:
		os.Exit(caseInit())
	case processName: // the cases were recorded at nice value 0; this suite may run at another
		_ = syscall.Setpriority(syscall.PRIO_PROCESS, os.Getpid(), 0)
		os.Exit(caseProcess(os.Args[1]))
	}
	os.Exit(m.Run())
}

// TestRecorded replays every recorded case.
func TestRecorded(t *testing.T) {
	need.Root(t, "namespaces")
	cases, err := loadCases(casesDir)
	if err != nil {
		t.Fatal(err)
	}
	pending, err := loadPending(pendingPath)
	if err != nil {
		t.Fatal(err)
	}
	tmp := openTempDir(t)
	b, err := newBox(tmp, program(t, tmp))
	if err != nil {
		t.Fatal(err)
	}
	var passed, waiting, failed atomic.Int32
	t.Cleanup(func() {
		fmt.Printf("recorded cases: %d passed, %d pending, %d failed\n", passed.Load(), waiting.Load(), failed.Load())
	})
	for _, c := range cases {
		t.Run(c.Group+"/"+c.ID, func(t *testing.T) {
			t.Parallel()
			faults, err := b.try(t.Context(), c)
			isPending := pending.has(c.ID)
			switch {
			case err != nil:
				failed.Add(1)
				t.Fatal(err)
			case len(faults) == 0 && isPending:
				failed.Add(1)
				t.Errorf("passes now: remove it from %s", pendingPath)
			case len(faults) == 0:
				passed.Add(1)
			case isPending:
				waiting.Add(1)
				t.Skip("pending: " + summary(faults))
			default:
				failed.Add(1)
				t.Error(c.complain(faults))
			}
		})
	}
}

// openTempDir returns a new directory that any user can enter, unlike that of t.TempDir.
func openTempDir(t *testing.T) string {
	t.Helper()
	tmp, err := os.MkdirTemp("", "nhc-lbnl-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	if err := os.Chmod(tmp, 0o755); err != nil {
		t.Fatal(err)
	}
	return tmp
}

// program returns the path of the program to test, which it builds into tmp if none is named.
func program(t *testing.T, tmp string) string {
	t.Helper()
	bin, err := built.Program(tmp)
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// summary names the faulty parts of the outcome.
func summary(faults []fault) string {
	keys := make([]string, len(faults))
	for i, f := range faults {
		keys[i] = f.key
	}
	return "differs in " + strings.Join(keys, ", ")
}

// complain describes a failed case in full.
func (c *recorded) complain(faults []fault) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s\ncase: %s\nargv: %q\n", summary(faults), c.Desc, c.Argv)
	if c.Conf != nil {
		fmt.Fprintf(&s, "conf:\n%s", *c.Conf)
	}
	for _, f := range faults {
		fmt.Fprintf(&s, "\n%s (-want +got):\n%s\n", f.key, f.text)
	}
	return s.String()
}
