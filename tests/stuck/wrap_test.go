package stuck

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// freezer creates a control group whose frozen processes do not react to signals. The end of the
// test thaws it.
func freezer(t *testing.T) string {
	t.Helper()
	group, err := os.MkdirTemp("/sys/fs/cgroup/freezer", "nhc-gpu-stuck-")
	if err != nil {
		need.Skip(t, "needs cgroup v1 with the freezer: %v", err)
	}
	thaw := func() { _ = os.WriteFile(group+"/freezer.state", []byte("THAWED"), 0) }
	t.Cleanup(func() {
		thaw()
		for range 200 {
			if os.Remove(group) == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("left behind: %s", group)
	})
	return group
}

// A wrapped program that no signal can end is reported, and does not start again while it exists.
func TestFrozenUnderWrap(t *testing.T) {
	t.Parallel()
	group := freezer(t)
	dir := t.TempDir() + "/state"
	freeze := fmt.Sprintf("echo begun; echo $$ > %[1]s/cgroup.procs; echo FROZEN > %[1]s/freezer.state; echo awake", group)
	for i, want := range []string{
		`^begun\nnhc-gpu wrap: bash: killed after 5s\n$`,
		`^nhc-gpu wrap: bash: hangs \(process \d+ in state D, wait channel \w+; no signal can end it\)\n$`,
		`^$`,
	} {
		cmd := exec.Command(program, "wrap", "-D", dir, "-P", "bash", "--", "-c", freeze)
		cmd.Env = []string{"NW_TIMEOUT=5"}
		began := time.Now()
		out, err := cmd.CombinedOutput()
		if err != nil || !regexp.MustCompile(want).Match(out) {
			t.Errorf("run %d: %q, %v, want a match of %s", i+1, out, err, want)
		}
		if took := time.Since(began); took > 12*time.Second || i > 0 && took > 4*time.Second {
			t.Errorf("run %d took %s", i+1, took)
		}
	}
	if n := len(procs(t, group)); n != 1 {
		t.Errorf("%d processes hang, want one", n)
	}
}

// procs returns the processes of a control group.
func procs(t *testing.T, group string) []string {
	t.Helper()
	text, err := os.ReadFile(group + "/cgroup.procs")
	must(t, err)
	return regexp.MustCompile(`\d+`).FindAllString(string(text), -1)
}
