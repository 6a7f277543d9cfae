// Package ended shows which processes remain after a run that ends by its time limit, a signal or a
// crash.
package ended

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
)

var program string

func TestMain(m *testing.M) {
	// nohup, and a shell's "&", start this process with ignored signals, which its children would
	// inherit.
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	os.Exit(built.Main(m, &program, "bash", "setsid"))
}

// patience is the time limit for events on a machine that is busy with other tests.
const patience = 30 * time.Second

func start(t *testing.T, lines string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "nhc.conf")
	if err := os.WriteFile(conf, []byte(lines), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, append(append(args, "-c", conf), "LOGFILE=-", "MARK_OFFLINE=0")...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = patience
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, out
}

// TestSignalAtTheStart sends a signal in the first moments of a run: the exit status is the
// signal's, at whatever point the run is.
func TestSignalAtTheStart(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		for range 20 {
			after := rand.N(40 * time.Millisecond)
			cmd, out := start(t, "* || check_file_test -d /\n* || sleep 60\n", "-t", "50")
			time.Sleep(after)
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			status := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if (!status.Signaled() || status.Signal() != sig) && status.ExitStatus() != 128+int(sig) {
				t.Errorf("%v after %s: ended with %v, want %d:\n%s", sig, after, cmd.ProcessState, 128+int(sig), out)
			}
		}
	}
}

// background returns a line that leaves two services behind, one of them in bash's session.
func background(dir string) string {
	return `* || setsid bash -c 'echo $$ >` + dir + `/old1; exec sleep 300' </dev/null &>/dev/null &` + "\n" +
		`* || nohup bash -c 'echo $$ >` + dir + `/old2; exec sleep 300' </dev/null &>/dev/null &` + "\n" +
		`* || until [ -s ` + dir + `/old1 ] && [ -s ` + dir + `/old2 ]; do sleep 0.02; done` + "\n"
}

// stubborn returns a line that does not end, with processes that leave its session and parents.
func stubborn(dir string) string {
	return `* || setsid bash -c 'echo $$ >` + dir + `/new1; exec sleep 300' & ` +
		`setsid -f bash -c 'trap "" TERM HUP; echo $$ >` + dir + `/new2; while :; do sleep 1; done'; ` +
		`bash -c 'echo $$ >` + dir + `/new3; exec sleep 300'` + "\n"
}

// await returns the processes that have written their PID.
func await(t *testing.T, dir string, names ...string) map[string]int {
	t.Helper()
	pids := map[string]int{}
	for end := time.Now().Add(patience); len(pids) < len(names); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not all of %v have started: %v", names, pids)
		}
		for _, name := range names {
			data, _ := os.ReadFile(filepath.Join(dir, name))
			if pid, err := strconv.Atoi(strings.TrimSpace(string(data))); err == nil {
				pids[name] = pid
			}
		}
	}
	return pids
}

func lives(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	rest := data[bytes.LastIndexByte(data, ')')+1:]
	return len(rest) > 1 && rest[1] != 'Z' && rest[1] != 'X'
}

// judge checks that the line's processes are gone, and that the services live.
func judge(t *testing.T, pids map[string]int, within time.Duration) {
	t.Helper()
	for name, pid := range pids {
		if strings.HasPrefix(name, "old") {
			continue
		}
		for end := time.Now().Add(within); lives(pid); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Errorf("%s lives on", name)
				_ = syscall.Kill(pid, syscall.SIGKILL)
				break
			}
		}
	}
	for name, pid := range pids {
		if strings.HasPrefix(name, "old") {
			if !lives(pid) {
				t.Errorf("%s, of a line that had ended, is gone", name)
			}
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// TestSupervisorDies kills the supervisor while a line runs: no process of the line survives,
// neither bash nor processes in other sessions; services of earlier lines do.
func TestSupervisorDies(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGABRT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cmd, out := start(t, background(dir)+stubborn(dir), "-t", "50")
			pids := await(t, dir, "old1", "old2", "new1", "new2", "new3")
			pids["bash"] = parent(pids["new3"])
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			judge(t, pids, patience)
			_ = cmd.Wait()
			if t.Failed() {
				t.Logf("output:\n%s", out)
			}
		})
	}
}

// TestTimeoutEndsTheLine ends by TIMEOUT a line with processes that have left its session.
func TestTimeoutEndsTheLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd, out := start(t, background(dir)+stubborn(dir), "-t", "6")
	pids := await(t, dir, "old1", "old2", "new1", "new2", "new3")
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 142 {
		t.Errorf("exit status %d, want 142:\n%s", code, out)
	}
	judge(t, pids, patience)
}

func parent(pid int) int {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}

// TestLostShell closes all descriptors of bash in a line: that line is Unknown, and the lines after
// it run.
func TestLostShell(t *testing.T) {
	t.Parallel()
	for _, line := range []string{`for i in {3..255}; do eval "exec $i>&-"; done`, `exec 240<&-`, `exec 241>&-`} {
		cmd, out := start(t, "* || A=5\n* || "+line+"\n* || check_file_test -d /\n* || echo behind\n* || check_file_test -e /nonexistent\n", "-a", "-t", "50")
		_ = cmd.Wait()
		text := out.String()
		for _, want := range []string{"Health check unknown:  Check ", "behind", "Health check failed:  check_file_test:  -e /nonexistent"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: output lacks %q:\n%s", line, want, text)
			}
		}
	}
}
