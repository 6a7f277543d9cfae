package checktest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// aloneEnv is set in the process that runs a test in its own namespaces.
const aloneEnv = "CHECKS_TEST_ALONE"

// Alone runs a test again in namespaces without other processes, IPC and files in /dev/shm: a
// Slurm on this machine can have jobs. It returns true in that second run.
func Alone(t *testing.T) bool {
	t.Helper()
	need.Root(t, "namespaces")
	if os.Getenv(aloneEnv) == "" {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v")
		cmd.Env = append(os.Environ(), aloneEnv+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC}
		out, err := cmd.CombinedOutput()
		switch {
		case err != nil && len(out) == 0:
			need.Skip(t, "needs namespaces: %v", err)
		case err != nil || !strings.Contains(string(out), "--- "):
			t.Errorf("%v\n%s", err, out)
		case strings.Contains(string(out), "--- SKIP"):
			t.Skipf("%s", out)
		}
		return false
	}
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{{"", "/", "", syscall.MS_REC | syscall.MS_PRIVATE}, {"proc", "/proc", "proc", 0}, {"tmpfs", "/dev/shm", "tmpfs", 0}} {
		if err := syscall.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			need.Skip(t, "mount %s: %v", m.target, err)
		}
	}
	return true
}

// TestDevice returns the device number of the file system with the files of a test.
func TestDevice() string {
	var st unix.Stat_t
	_ = unix.Stat(os.TempDir(), &st)
	return fmt.Sprintf("0x%x", st.Dev)
}
