package ended

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// TestAbortedHealthCheck ends a health check by SIGABRT.
func TestAbortedHealthCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd, out := start(t, "* || echo $$ >"+dir+"/up; sleep 60\n", "-t", "50")
	await(t, dir, "up")
	if err := cmd.Process.Signal(syscall.SIGABRT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 3 || !strings.Contains(out.String(), "internal error: SIGABRT") {
		t.Errorf("exit status %d, want 3:\n%s", code, out)
	}
}

// jobScript is one of the scripts that slurmd starts, with the tested program and its own syslog
// and kernel log. nhc is the shell text that replaces the program; "$nhc" in it is the program.
type jobScript struct {
	path string
	log  *net.UnixConn
	kmsg string
}

func newJobScript(t *testing.T, role, nhc string) *jobScript {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "slurm", role+".d", "50-nhc-gpu"))
	if err != nil {
		t.Fatal(err)
	}
	// The path of a socket must be short.
	dir, err := os.MkdirTemp("", "nhc-gpu-job-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &jobScript{path: filepath.Join(dir, "script"), kmsg: filepath.Join(dir, "kmsg")}
	conf := filepath.Join(dir, "nhc.conf")
	logger := "#!/bin/bash\nexec /usr/bin/logger -u " + dir + "/log \"$@\"\n"
	start := "#!/bin/bash\nnhc='" + program + " '\n" + nhc + "\n"
	full := strings.NewReplacer("/usr/sbin/nhc-gpu", dir+"/nhc", "/usr/bin/logger", dir+"/logger", "/dev/log", dir+"/log", "/dev/kmsg", s.kmsg).Replace(string(text))
	for path, text := range map[string]string{s.path: full, dir + "/logger": logger, dir + "/nhc": start, conf: "* || check_file_test -d /\n"} {
		if err := built.WriteProgram(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if s.log, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: dir + "/log", Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.log.Close() })
	return s
}

// said returns the next line of syslog, "" if there is none.
func (s *jobScript) said() string {
	buf := make([]byte, 64<<10)
	_ = s.log.SetReadDeadline(time.Now().Add(time.Second))
	n, err := s.log.Read(buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}

// run returns the exit status that slurmd gets.
func (s *jobScript) run(t *testing.T, before string) int {
	t.Helper()
	cmd := exec.Command("bash", "-c", before+` exec "$0"`, s.path)
	cmd.Env = []string{"SLURM_JOB_ID=7", "MARK_OFFLINE=0", "PATH=" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	t.Logf("%s", out)
	return cmd.ProcessState.ExitCode()
}

// signaled starts the program with a line that sends it a signal.
func signaled(signal string) string {
	return `conf="${0%/*}/nhc.conf"; echo '* || kill -` + signal + ` $PPID; sleep 60' >"$conf"; exec $nhc "$@" -t 50 -c "$conf" LOGFILE=-`
}

// TestCrashNeverDrains ends the program in every unintended way: slurmd gets 0, and syslog a line.
func TestCrashNeverDrains(t *testing.T) {
	need.Program(t, "logger")
	t.Parallel()
	for name, c := range map[string]struct {
		nhc    string
		status int
		said   string
	}{
		"passes":       {"exit 0", 0, ""},
		"fails":        {"exit 1", 1, ""},
		"killed":       {"kill -KILL $$", 0, "crashed (status 137)"},
		"aborted":      {"kill -ABRT $$", 0, "crashed (status 134)"},
		"faulty":       {"kill -SEGV $$", 0, "crashed (status 139)"},
		"Go's status":  {"exit 2", 0, "crashed (status 2)"},
		"unknown":      {"exit 3", 0, "crashed (status 3)"},
		"no library":   {"exit 127", 0, "cannot be started"},
		"real aborted": {signaled("ABRT"), 0, ""}, // the program has reported it itself
		"real killed":  {signaled("KILL"), 0, "crashed (status 137)"},
		"real dump":    {`ulimit -v 400000; exec $nhc "$@"`, 0, "crashed (status 2)"}, // of Go's runtime
	} {
		for _, role := range []string{"prolog", "epilog"} {
			t.Run(role+" "+name, func(t *testing.T) {
				t.Parallel()
				s := newJobScript(t, role, c.nhc)
				status := s.run(t, "")
				said := s.said()
				if status != c.status || (said == "") != (c.said == "") || !strings.Contains(said, c.said) || c.said != "" && !strings.Contains(said, role+": ") {
					t.Errorf("status %d, syslog %q, want %d and %q", status, said, c.status, c.said)
				}
			})
		}
	}
}

// TestSyslogDead crashes the program while syslog does not answer: the kernel's log gets the line,
// and slurmd gets 0.
func TestSyslogDead(t *testing.T) {
	t.Parallel()
	s := newJobScript(t, "prolog", "exit 2")
	_ = s.log.Close()
	if status := s.run(t, ""); status != 0 {
		t.Errorf("status %d, want 0", status)
	}
	if text, err := os.ReadFile(s.kmsg); err != nil || !strings.HasPrefix(string(text), "<27>nhc-gpu: prolog: ") {
		t.Errorf("kernel log %q, %v", text, err)
	}
}

// pidsLimit creates a control group with a limit of processes and threads. It returns the shell
// text that enters the group.
func pidsLimit(t *testing.T, most int) string {
	t.Helper()
	need.Root(t, "to limit processes by a control group")
	why := "there is no control group file system"
	for _, root := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		group := filepath.Join(root, fmt.Sprintf("nhc-gpu-test-%d-%d", os.Getpid(), most))
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
			continue
		}
		if err := os.Mkdir(group, 0o755); err != nil {
			why = err.Error()
			continue
		}
		t.Cleanup(func() {
			for end := time.Now().Add(patience); os.Remove(group) != nil && time.Now().Before(end); {
				time.Sleep(20 * time.Millisecond)
			}
		})
		if err := os.WriteFile(filepath.Join(group, "pids.max"), []byte(strconv.Itoa(most)), 0); err != nil {
			why = err.Error()
			continue
		}
		return "echo $$ >" + group + "/cgroup.procs;"
	}
	need.Skip(t, "no limit on processes can be set: %s", why)
	return ""
}

// TestTooFewProcesses allows 2 to 10 processes and threads: a health check ends with 3, a prolog
// with 0, each with a line. With about 10 the run may succeed.
func TestTooFewProcesses(t *testing.T) {
	t.Parallel()
	for most := 2; most <= 10; most++ {
		t.Run(strconv.Itoa(most), func(t *testing.T) {
			t.Parallel()
			enter := pidsLimit(t, most)
			s := newJobScript(t, "prolog", `exec $nhc "$@" -c "${0%/*}/nhc.conf" LOGFILE=-`)
			if status := s.run(t, enter); status != 0 {
				t.Errorf("prolog: status %d, want 0", status)
			}
			healthCheck(t, enter, most)
		})
	}
}

// TestNoProcessAfter allows no process after nhc-gpu, which has refused the job: that stays refused.
func TestNoProcessAfter(t *testing.T) {
	tier.All(t)
	t.Parallel()
	enter := pidsLimit(t, 11)
	group := strings.TrimSuffix(strings.TrimPrefix(enter, "echo $$ >"), "cgroup.procs;")
	s := newJobScript(t, "prolog", "echo 1 >"+group+"pids.max; exit 1")
	if status, said := s.run(t, enter), s.said(); status != 1 || said != "" {
		t.Errorf("prolog: status %d, syslog %q", status, said)
	}
}

// TestNoProcess allows only bash, which tries for 15 seconds to start another process.
func TestNoProcess(t *testing.T) {
	tier.All(t)
	t.Parallel()
	enter := pidsLimit(t, 1)
	s := newJobScript(t, "prolog", "exit 1")
	if status, said := s.run(t, enter), s.said(); status != 0 || !strings.Contains(said, "prolog: no process can be started") {
		t.Errorf("prolog: status %d, syslog %q", status, said)
	}
	healthCheck(t, enter, 1)
}

func healthCheck(t *testing.T, enter string, most int) {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "nhc.conf")
	if err := os.WriteFile(conf, []byte("* || check_file_test -d /\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "-c", enter+` exec "$0" "$@"`, program, "-c", conf, "LOGFILE=-", "MARK_OFFLINE=0")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 3 && (most < 8 || code != 0) || len(out) == 0 && code != 0 {
		t.Errorf("health check: exit status %d, want 3:\n%s", code, out)
	}
}
