// Package stuck shows on the real program that nothing below it keeps it from answering in time: a
// dead mount, a frozen file system, a process that no signal can end.
package stuck

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

var program string

func TestMain(m *testing.M) {
	if os.Getenv(deadMountEnv) != "" {
		os.Exit(insideDeadMount())
	}
	if os.Getenv(lockedEnv) != "" {
		os.Exit(insideLocked())
	}
	if os.Geteuid() != 0 {
		os.Exit(need.Exit("tests/stuck: needs root to mount, freeze and enter cgroups"))
	}
	os.Exit(built.Main(m, &program))
}

// answer is slurmd's view of a run.
type answer struct {
	out  string
	exit int
	took time.Duration // until the end of file on the pipe and the exit
}

// ask runs the program as slurmd does: with one pipe for both outputs, which it reads to the end,
// and the node's name as the whole environment.
func ask(t *testing.T, node, conf string, words ...string) answer {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nhc.conf")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, append(words, "-c", file, "LOGFILE=-", "MARK_OFFLINE=0")...)
	cmd.Env = []string{"SLURMD_NODENAME=" + node}
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	began := time.Now()
	if err := startFirst(cmd); err != nil {
		t.Fatal(err)
	}
	w.Close()
	_ = r.SetReadDeadline(time.Now().Add(25 * time.Second))
	var out bytes.Buffer
	if _, err := io.Copy(&out, r); err != nil {
		t.Fatalf("the pipe did not reach its end: %v\n%s", err, out.String())
	}
	err = cmd.Wait()
	a := answer{out: out.String(), took: time.Since(began)}
	if ee, ok := errors.AsType[*exec.ExitError](err); ok {
		a.exit = ee.ExitCode()
	}
	return a
}

// nodeName gives a test its own state directory, which is removed at its end.
func nodeName(t *testing.T) string {
	t.Helper()
	name := "stuck-" + strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-"))
	t.Cleanup(func() { _ = os.RemoveAll("/run/nhc-gpu/" + name) })
	return name
}

func (a answer) want(t *testing.T, exit int, within time.Duration, pattern string) {
	t.Helper()
	if a.exit != exit {
		t.Errorf("exit status %d, want %d\n%s", a.exit, exit, a.out)
	}
	if a.took > within {
		t.Errorf("took %s, want at most %s", a.took, within)
	}
	if !regexp.MustCompile(pattern).MatchString(a.out) {
		t.Errorf("output %q, want a match of %s", a.out, pattern)
	}
}

// startFirst starts a program with the highest priority, if this is root: other load must not count as
// its time.
func startFirst(cmd *exec.Cmd) error {
	runtime.LockOSThread() // a process inherits the priority of the thread that starts it
	defer runtime.UnlockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, -20)
	defer func() { _ = unix.Setpriority(unix.PRIO_PROCESS, 0, 0) }()
	return cmd.Start()
}

// A shell line that writes to a frozen file system makes bash itself sleep uninterruptibly.
func TestFrozenFileSystem(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	image, mnt := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	must(t, os.Mkdir(mnt, 0o755))
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 16<<20))
	for _, argv := range [][]string{{"mkfs.ext4", "-q", "-F", image}, {"mount", "-o", "loop", image, mnt}, {"fsfreeze", "-f", mnt}} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			need.Skip(t, "%s: %v: %s", strings.Join(argv, " "), err, out)
		}
	}
	thaw := func() { _ = exec.Command("fsfreeze", "-u", mnt).Run() }
	t.Cleanup(func() {
		thaw()
		for range 100 {
			if exec.Command("umount", mnt).Run() == nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Errorf("left mounted: %s", mnt)
	})
	node := nodeName(t)
	conf := fmt.Sprintf("* || check_hw_eth lo\n* || echo x > %s/f\n* || echo end\n", mnt)

	text := `(?m)^ERROR:  nhc:  Health check failed:  Script timed out while executing "echo x > \S+"\.  It hangs.*: process \d+ in state D, wait channel \w+; no signal can end it\.$`
	ask(t, node, conf, "-t", "4").want(t, 142, 5500*time.Millisecond, text)
	ask(t, node, conf, "-t", "4").want(t, 142, 3*time.Second, text)
	thaw()
	waitFor(t, func() bool { return ask(t, node, conf, "-t", "20").exit == 0 })
	ask(t, node, conf, "-t", "20").want(t, 0, 20*time.Second, `^end\n$`)
}

// onDeadMount runs lines twice on a node with a mount whose server never answers, and returns the
// outputs of the runs and the later ones.
func onDeadMount(t *testing.T, dir, lines string, env ...string) (runs []string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), env...), deadMountEnv+"="+dir, deadLinesEnv+"="+lines, "NHC_GPU_BINARY="+program, "SLURMD_NODENAME="+nodeName(t))
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if strings.HasPrefix(string(out), "skip") {
		need.Skip(t, "%s", out)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	runs = strings.Split(string(out), "---\n")
	if len(runs) != 3 {
		t.Fatalf("got %q, want two runs and genconf", out)
	}
	return runs
}

// Checks of files and file systems name the mount that does not answer, and do not delay checks of
// other mounts.
func TestDeadMountIsNamed(t *testing.T) {
	t.Parallel()
	for line, doing := range map[string]string{
		"check_fs_free {} 1%":               "statfs {}",
		"check_fs_inodes {} 1":              "statfs {}",
		"check_file_stat -m 0755 {}/x":      "stat {}/x",
		"check_file_contents {}/x '!/bad/'": "read {}/x",
	} {
		t.Run(strings.Fields(line)[0], func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			others := "* || check_fs_used / 1000%\n* || check_fs_size / 1k\n* || check_file_stat -M 0 /\n"
			line, doing := strings.ReplaceAll(line, "{}", dir), strings.ReplaceAll(doing, "{}", dir)
			runs := onDeadMount(t, dir, others+"* || "+line+"\n"+others)
			hung := strings.Fields(line)[0] + ":  hung (in " + doing + ": process "
			for i, r := range runs[:2] {
				if strings.Count(r, hung) != 1 || !strings.Contains(r, "exit 1\n") {
					t.Errorf("run %d: %q, want %q and exit 1", i+1, r, hung)
				}
			}
			if !strings.Contains(runs[0], "slow\n") || !strings.Contains(runs[1], "at once\n") {
				t.Errorf("%q, want the first run to wait for its deadline, the second not", runs)
			}
		})
	}
}

// A native check uses a mount whose server never answers.
func TestDeadMount(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	runs := onDeadMount(t, dir, fmt.Sprintf("* || check_file_test -d %s/x\n* || check_hw_eth nosuch0\n", dir))
	text := regexp.MustCompile(`(?m)^ERROR:  nhc:  Health check failed:  check_file_test:  hung \(in \w+ ` + dir + `/x: process \d+ in state D, wait channel \w+; no signal can end it\)$`)
	for i, r := range runs[:2] {
		if !text.MatchString(r) {
			t.Errorf("run %d: %q, want a match of %s", i+1, r, text)
		}
		if !strings.Contains(r, "check_hw_eth:  Ethernet device nosuch0 not detected.") {
			t.Errorf("run %d: %q: the check behind the one that hangs was not run", i+1, r)
		}
		if !strings.Contains(r, "exit 2\n") {
			t.Errorf("run %d: %q, want exit 2", i+1, r)
		}
	}
	if !strings.Contains(runs[0], "slow\n") || !strings.Contains(runs[1], "at once\n") {
		t.Errorf("%q, want the first run to wait for its deadline, the second not", runs)
	}
	generated := regexp.MustCompile(`(?m)^# no line for /srv \(fuse, dead\): stat /srv: no answer within 5\S* \(process \d+ in state D, wait channel \w+; no signal can end it\)$`)
	if !generated.MatchString(runs[2]) || !strings.Contains(runs[2], "check_hw_cpuinfo") || !strings.Contains(runs[2], "exit 0\n") || strings.Contains(runs[2], "too slow") {
		t.Errorf("genconf: %q, want a match of %s", runs[2], generated)
	}
}

// For a dead mount --check reports the same as the health check: the same row fails, with the same
// text.
func TestDeadMountInCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	runs := onDeadMount(t, dir, fmt.Sprintf("* || check_fs_size / 1k\n* || check_fs_free %s 1%%\n* || check_file_test -d /\n", dir), deadFirstEnv+"=--check --json")
	number := regexp.MustCompile(`process \d+`)
	text := regexp.MustCompile(`ERROR:  nhc:  Health check failed:  check_fs_free:  (hung [^\n]*)`).FindStringSubmatch(number.ReplaceAllString(runs[1], "process N"))
	if text == nil {
		t.Fatalf("%q: the health check does not name the mount", runs[1])
	}
	check := number.ReplaceAllString(runs[0], "process N")
	for _, want := range []string{`{"result":"fail","check":"check_fs_free",`, `"code":"probe.hung"`, `"message":"` + text[1] + `"`, `"count":{"fail":1,"ok":2,`, "exit 2\n"} {
		if !strings.Contains(check, want) {
			t.Errorf("%q, want %s", check, want)
		}
	}
}

// A command whose program lies on a mount that does not answer does not prevent the ones after it.
func TestDeadMountCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	runs := onDeadMount(t, dir, fmt.Sprintf("* || check_cmd_status -t 1 %s/x\n* || check_cmd_status -t 2 /bin/true\n* || check_cmd_output -t 2 -m /two/ /bin/echo one two\n* || check_file_test -d /\n", dir))
	texts := []*regexp.Regexp{
		regexp.MustCompile(`^ERROR:  nhc:  Health check failed:  check_cmd_status:  (137 returned by|TIMEOUT after 1s for) "` + dir + `/x"[^\n]*\nERROR:  nhc:  1 health checks failed\.\nexit 1\n`),
		regexp.MustCompile(`^ERROR:  nhc:  Health check failed:  check_cmd_status:  hung \([^\n]*process \d+ in state D[^\n]*\nERROR:  nhc:  1 health checks failed\.\nexit 1\nat once`),
	}
	for i, want := range texts {
		if !want.MatchString(runs[i]) {
			t.Errorf("run %d: %q, want a match of %s", i+1, runs[i], want)
		}
	}
}

// A line freezes itself in a cgroup v1 freezer.
func TestFrozenProcess(t *testing.T) {
	t.Parallel()
	group := freezer(t)
	node := nodeName(t)
	conf := fmt.Sprintf("* || bash -c 'echo $$ > %[1]s/cgroup.procs; echo FROZEN > %[1]s/freezer.state; echo awake'\n", group)
	text := `Script timed out while executing "bash -c .*"\.  It hangs.*: process \d+ in state D, wait channel \w+`
	ask(t, node, conf, "-t", "4").want(t, 142, 5500*time.Millisecond, text)
	ask(t, node, conf, "-t", "4").want(t, 142, 3*time.Second, text)
}

// Of two concurrent health checks of one node the second ends at once; a manual run does not.
func TestOverlap(t *testing.T) {
	t.Parallel()
	node := nodeName(t)
	dir := t.TempDir()
	begun, over := dir+"/begun", dir+"/over"
	first := make(chan answer)
	go func() {
		first <- ask(t, node, "* || touch "+begun+"\n* || while [ ! -e "+over+" ]; do sleep 0.05; done\n")
	}()
	waitFor(t, func() bool {
		_, err := os.Stat(begun)
		return err == nil
	})
	second := ask(t, node, "* || true\n")
	second.want(t, 0, 20*time.Second, "is at work.*without a verdict")
	must(t, os.WriteFile(over, nil, 0o600))
	a := <-first
	a.want(t, 0, 25*time.Second, `^$`)
	ask(t, node, "* || echo again\n").want(t, 0, 25*time.Second, `^again\n$`)
}

// Invalid files in the state directory cost one warning and not the run.
func TestStateGarbage(t *testing.T) {
	t.Parallel()
	node := nodeName(t)
	must(t, os.MkdirAll("/run/nhc-gpu/"+node, 0o700))
	must(t, os.WriteFile("/run/nhc-gpu/"+node+"/ledger.json", []byte("garbage"), 0o600))
	a := ask(t, node, "* || echo reached\n")
	a.want(t, 0, 25*time.Second, `(?m)^reached$`)
	if n := strings.Count(a.out, "warning"); n != 1 || !strings.Contains(a.out, "ledger.json") {
		t.Errorf("%d warnings in %q, want one that names the file", n, a.out)
	}
	must(t, os.RemoveAll("/run/nhc-gpu/"+node))
	must(t, os.WriteFile("/run/nhc-gpu/"+node, nil, 0o600)) // a file instead of the directory
	a = ask(t, node, "* || echo reached\n")
	a.want(t, 0, 25*time.Second, `(?m)^reached$`)
	if n := strings.Count(a.out, "warning"); n != 1 {
		t.Errorf("%d warnings in %q, want one", n, a.out)
	}
}

// A state directory that is full or read-only costs one warning and not the run.
func TestStateFullOrReadOnly(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]string{"full": "size=4k,nr_inodes=1", "read-only": "ro"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := nodeName(t)
			dir := "/run/nhc-gpu/" + node
			must(t, os.MkdirAll(dir, 0o700))
			if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "mode=700,"+opts, "tmpfs", dir).CombinedOutput(); err != nil {
				need.Skip(t, "mount tmpfs: %v: %s", err, out)
			}
			t.Cleanup(func() { _ = exec.Command("umount", dir).Run() })
			a := ask(t, node, "* || echo reached\n")
			a.want(t, 0, 25*time.Second, `(?m)^reached$`)
			if n := strings.Count(a.out, "warning"); n != 1 || !strings.Contains(a.out, dir) {
				t.Errorf("%d warnings in %q, want one that names %s", n, a.out, dir)
			}
		})
	}
}

// slurmd starts its health check with SIGPIPE blocked; the commands of checks and lines must not
// inherit that.
func TestSignalMask(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread() // and never unlocked: the thread ends with the test
	var pipe unix.Sigset_t
	pipe.Val[0] = 1 << (unix.SIGPIPE - 1)
	must(t, unix.PthreadSigmask(unix.SIG_BLOCK, &pipe, nil))
	conf := "* || check_cmd_output -m '/^SigBlk:.*0000000000000000$/' grep SigBlk /proc/self/status\n* || grep SigBlk /proc/self/status\n"
	ask(t, nodeName(t), conf).want(t, 0, 25*time.Second, `^SigBlk:\s0000000000000000\n$`)
}

// If an administrator's pipe is closed early the run continues.
func TestClosedOutput(t *testing.T) {
	t.Parallel()
	mark := filepath.Join(t.TempDir(), "mark")
	file := filepath.Join(t.TempDir(), "nhc.conf")
	must(t, os.WriteFile(file, []byte("* || echo a\n* || sleep 0.3\n* || echo b\n* || touch "+mark+"\n"), 0o644))
	r, w, err := os.Pipe()
	must(t, err)
	cmd := exec.Command(program, "-v", "-c", file, "LOGFILE=-", "MARK_OFFLINE=0")
	cmd.Stdout, cmd.Stderr = w, w
	must(t, cmd.Start())
	w.Close()
	r.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("run: %v", err)
	}
	if _, err := os.Stat(mark); err != nil {
		t.Errorf("the last line was not run: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatal("waited 30 s in vain")
}
