package stuck

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/deadfs"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// lockedEnv names the part of the test binary in the attack: "cell" is root's part in a mount namespace
// of its own, "reader" and "victim" are processes of a user.
const (
	lockedEnv    = "NHC_GPU_LOCKED"
	lockedDirEnv = "NHC_GPU_LOCKED_DIR"
	attacker     = 12345
)

// A user can lock the memory of a process for ever, so that each read of its command line, its
// environment and its mappings blocks: one process reads, through /proc/PID/mem, a page of another on a
// FUSE mount that does not answer, and the other one then calls mmap. That must not hang a run, hide the
// GPUs, drain the node or break the jobs of other users. It blocks ps and pgrep of tests that run at the same
// time, so it is not among those of make test.
func TestLockedMemory(t *testing.T) {
	tier.All(t)
	dir := t.TempDir()
	for p := dir; p != "/" && p != os.TempDir(); p = filepath.Dir(p) {
		must(t, os.Chmod(p, 0o755))
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), lockedEnv+"=cell", lockedDirEnv+"="+dir, "NHC_GPU_BINARY="+program, "SLURMD_NODENAME="+nodeName(t))
	cmd.SysProcAttr = &unix.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if strings.HasPrefix(string(out), "skip") {
		t.Skip(string(out))
	}
	runs := strings.Split(string(out), "---\n")
	if err != nil || len(runs) != 6 {
		t.Fatalf("%v\n%s", err, out)
	}
	const warning = "process VICTIM (exe) of user 12345: its command line and environment cannot be read\n"
	for i, want := range []string{"check_ps_blacklist:  " + warning, "check_gpu_procs:  " + warning, "", "", "check_job_leftovers:  " + warning} {
		if !strings.Contains(runs[i+1], want) || !strings.Contains(runs[i+1], "exit 0\n") {
			t.Errorf("run %d: %s\nwant %q and exit 0", i+1, runs[i+1], want)
		}
		if strings.Contains(runs[i+1], "hung") || strings.Contains(runs[i+1], "not run") || strings.Contains(runs[i+1], "slow\n") {
			t.Errorf("run %d: %s\nwant no hang, and all checks", i+1, runs[i+1])
		}
	}
}

func insideLocked() int {
	var err error
	switch os.Getenv(lockedEnv) {
	case "cell":
		err = lockedCell(os.Getenv(lockedDirEnv))
	case "reader":
		err = lockedReader(os.Getenv(lockedDirEnv))
	default:
		err = lockedVictim(os.Getenv(lockedDirEnv))
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// lockedCell attacks, and runs the program. Its own end releases all blocked processes.
func lockedCell(dir string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	backing, mount, root := dir+"/backing", dir+"/mount", dir+"/root"
	for _, d := range []string{backing, mount, root + "/proc"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(backing+"/page", make([]byte, 4096), 0o644); err != nil {
		return err
	}
	fs, err := deadfs.Mount(backing, mount)
	if err != nil {
		fmt.Println("skip: needs FUSE:", err)
		return nil
	}
	reader := exec.Command("/proc/self/exe")
	reader.Env = []string{lockedEnv + "=reader", lockedDirEnv + "=" + mount}
	reader.SysProcAttr = &unix.SysProcAttr{Credential: &syscall.Credential{Uid: attacker, Gid: attacker}, Pdeathsig: unix.SIGKILL, Setsid: true}
	in, err := reader.StdinPipe()
	if err != nil {
		return err
	}
	out, err := reader.StdoutPipe()
	if err != nil {
		return err
	}
	reader.Stderr = os.Stdout
	if err := reader.Start(); err != nil {
		return err
	}
	var victim int
	if _, err := fmt.Fscan(out, &victim); err != nil {
		return fmt.Errorf("read the victim's PID: %w", err)
	}
	defer func() {
		_ = unix.Kill(victim, unix.SIGKILL)
		_ = unix.Kill(reader.Process.Pid, unix.SIGKILL)
	}()
	fs.Die()
	in.Close()
	for _, pid := range []int{reader.Process.Pid, victim} {
		if !awaitBlocked(pid) {
			fmt.Println("skip: this kernel does not hold the lock")
			return nil
		}
	}
	cat := exec.Command("/bin/cat", fmt.Sprintf("/proc/%d/cmdline", victim))
	if err := cat.Start(); err != nil {
		return err
	}
	blocked := awaitBlocked(cat.Process.Pid)
	_ = cat.Process.Kill()
	_ = cat.Wait()
	if !blocked {
		fmt.Println("skip: this kernel reads the command line without the lock")
		return nil
	}
	return lockedRuns(dir, root, victim)
}

// awaitBlocked waits until a thread of a process waits for the lock of a memory, or for an answer of FUSE.
func awaitBlocked(pid int) bool {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		for _, task := range tasks {
			stat, _ := os.ReadFile(task + "/stat")
			wait, _ := os.ReadFile(task + "/wchan")
			if _, rest, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(rest, "D") || string(wait) == "request_wait_answer" {
				return true
			}
		}
	}
	return false
}

// lockedRuns runs the program on a node with simulated GPUs and the real /proc.
func lockedRuns(dir, root string, victim int) error {
	if err := unix.Mount("proc", root+"/proc", "proc", 0, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", root+"/proc/driver", "tmpfs", 0, ""); err != nil {
		return err
	}
	files := fakenvml.Files(fakenvml.H100, 1)
	for name := range files {
		if strings.HasPrefix(name, "proc/") && !strings.HasPrefix(name, "proc/driver/") {
			delete(files, name)
		}
	}
	files["etc/passwd"] = "root:x:0:0::/root:/bin/sh\n"
	if err := fakenvml.Write(root, files); err != nil {
		return err
	}
	lib, err := fakenvml.Place(dir, fakenvml.Scenario(fakenvml.H100, 1, fmt.Sprintf("0 nvmlDeviceGetComputeRunningProcesses = %d 1000000", victim)))
	if err != nil {
		return err
	}
	conf := dir + "/nhc.conf"
	if err := os.WriteFile(conf, []byte("* || check_ps_blacklist nosuchd root\n* || check_gpu_procs\n* || check_gpu_count 1\n"), 0o644); err != nil {
		return err
	}
	for _, run := range [][]string{{"-a"}, {"-a"}, {"--prolog", "5001"}, {"--epilog", "5001"}, {"--epilog", strconv.Itoa(attacker)}} {
		cmd := exec.Command(os.Getenv("NHC_GPU_BINARY"), run[0], "-t", "20", "-c", conf, "LOGFILE=-", "MARK_OFFLINE=0", "HOSTROOT="+root, "NVML_LIBRARY="+lib)
		cmd.Env = []string{"SLURMD_NODENAME=" + os.Getenv("SLURMD_NODENAME")}
		if len(run) > 1 {
			cmd.Env = append(cmd.Env, "SLURM_JOB_ID=77", "SLURM_JOB_UID="+run[1], "SLURM_JOB_GPUS=0")
		}
		began := time.Now()
		out, _ := cmd.CombinedOutput()
		fmt.Printf("---\n%sexit %d\n", strings.ReplaceAll(string(out), strconv.Itoa(victim), "VICTIM"), cmd.ProcessState.ExitCode())
		if time.Since(began) > 9*time.Second {
			fmt.Println("slow")
		}
	}
	return nil
}

// lockedReader starts the victim, so that it may read its memory, and reads its page when its standard
// input ends.
func lockedReader(dir string) error {
	victim := exec.Command("/proc/self/exe")
	victim.Env = []string{lockedEnv + "=victim", lockedDirEnv + "=" + dir}
	victim.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	victim.Stderr = os.Stderr
	out, err := victim.StdoutPipe()
	if err != nil {
		return err
	}
	if err := victim.Start(); err != nil {
		return err
	}
	var page int64
	if _, err := fmt.Fscan(bufio.NewReader(out), &page); err != nil {
		return fmt.Errorf("read the page's address: %w", err)
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", victim.Process.Pid))
	if err != nil {
		return err
	}
	fmt.Println(victim.Process.Pid)
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	_, err = memory.ReadAt(make([]byte, 8), page)
	return errors.Join(err, victim.Wait())
}

// lockedVictim maps a page of the mount, and maps another one as soon as its parent reads the first.
func lockedVictim(dir string) error {
	fd, err := unix.Open(dir+"/page", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	page, err := unix.MmapPtr(fd, 0, nil, 4096, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	fmt.Println(uintptr(page))
	if !awaitBlocked(os.Getppid()) {
		return errors.New("the reader does not wait")
	}
	_, err = unix.Mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	return err
}
