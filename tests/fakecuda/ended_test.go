package fakecuda_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
)

// begin starts a run and waits until its test is in progress, as seen from outside.
func (n node) begin(t *testing.T, conf string, under func() bool) *exec.Cmd {
	t.Helper()
	file := filepath.Join(n.dir, "nhc.conf")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "-t", "300", "-c", file, "LOGFILE=-", "MARK_OFFLINE=0", "HOSTROOT="+filepath.Join(n.dir, "root"), "NVML_LIBRARY="+n.nvml, "CUDA_LIBRARY="+n.cuda)
	name := built.NodeName(n.dir)
	cmd.Env = []string{"SLURMD_NODENAME=" + name, "PATH=/usr/bin:/bin"}
	if os.Geteuid() == 0 {
		t.Cleanup(func() { _ = os.RemoveAll("/run/nhc-gpu/" + name) })
	}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	for end := time.Now().Add(30 * time.Second); !under(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			t.Fatalf("the test did not begin: %s", said.String())
		}
	}
	return cmd
}

// endings are the ways to end a run: by a person, by SIGTERM of its timeout or of slurmd, and by
// slurmd's SIGKILL, which no process can handle.
var endings = map[string]unix.Signal{"SIGINT": unix.SIGINT, "SIGTERM": unix.SIGTERM, "SIGKILL": unix.SIGKILL}

// A run that ends during a test leaves no process on the GPUs, and so no used memory, even if a
// call of the driver hangs.
func TestEndedOnGPU(t *testing.T) {
	t.Parallel()
	for name, sig := range endings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "3 cuLaunchKernel daxpy after 5 hang")
			cmd := n.begin(t, "* || check_gpu_membw -b 64K -t 20\n", func() bool { return len(n.holders(t)) > 0 })
			time.Sleep(300 * time.Millisecond)
			began := time.Now()
			_ = syscall.Kill(cmd.Process.Pid, sig)
			_ = cmd.Wait()
			n.leavesNobody(t)
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// Programs that a test has started end with it, even a program that ignores SIGTERM.
func TestEndedInProgram(t *testing.T) {
	t.Parallel()
	for name, sig := range endings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			script, at := filepath.Join(n.dir, "root", "perftest"), filepath.Join(n.dir, "root", "pid")
			text := "#!/bin/bash\ntrap '' TERM INT\necho $$ >" + at + ".new\nmv " + at + ".new " + at + "\nwhile :; do sleep 0.1; done\n"
			if err := built.WriteProgram(script, []byte(text)); err != nil {
				t.Fatal(err)
			}
			cmd := n.begin(t, "* || check_cmd_status -t 40 -r 0 /perftest\n", func() bool {
				_, err := os.Stat(at)
				return err == nil
			})
			data, err := os.ReadFile(at)
			if err != nil {
				t.Fatal(err)
			}
			pid, err := strconv.Atoi(string(bytes.TrimSpace(data)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline"); err == nil && bytes.Contains(data, []byte(script)) {
					_ = syscall.Kill(pid, unix.SIGKILL)
				}
			})
			_ = syscall.Kill(cmd.Process.Pid, sig)
			_ = cmd.Wait()
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
				data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
				if err != nil || !bytes.Contains(data, []byte(script)) {
					return
				}
				if time.Now().After(end) {
					t.Fatalf("%s is still there", data)
				}
			}
		})
	}
}

// A TIMEOUT beyond slurmd's limit leaves a test as much time as slurmd allows.
func TestTimeoutBeyondSlurmd(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if out, _ := n.run(t, "* || check_gpu_membw -b 64K -t 35\n", "-t", "300"); out != "" {
		t.Errorf("of slurmd's 50 s a test may have 41:\n%s", out)
	}
}
