package stuck

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A result is reported even if the next run cannot start: here because the name of the program is
// longer than the maximum of one argument, 128 KiB.
func TestDetachedResultIsNotLost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conf, result := filepath.Join(dir, "nhc.conf"), filepath.Join(dir, "status")
	must(t, os.WriteFile(conf, []byte("* || true\n"), 0o644))
	must(t, os.WriteFile(result, []byte("9 bad disk\n"), 0o600))
	cmd := exec.Command(program)
	cmd.Args = []string{strings.Repeat("n", 131060) + "/nhc", "-c", conf, "LOGFILE=-", "MARK_OFFLINE=0", "DETACHED_MODE=1", "RESULTFILE=" + result}
	cmd.Env = []string{"SLURMD_NODENAME=" + nodeName(t)}
	out, _ := cmd.CombinedOutput()
	a := answer{out: string(out), exit: cmd.ProcessState.ExitCode()}
	a.want(t, 9, 1, `warning: start n*/nhc-detached: argument list too long\n`)
	a.want(t, 9, 1, `ERROR Health check failed:  bad disk\n$`)
	if _, err := os.Lstat(result); !os.IsNotExist(err) {
		t.Errorf("the result is still there (%v)", err)
	}
}
