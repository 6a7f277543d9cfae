package faults

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
)

// cellName is the argv[0] under which the test binary is process 1 of a cell.
const cellName = "nhc-gpu-fault-cell"

// work is the directory of a cell's files: nhc.conf, nhc.log, the fake scontrol.
const work = "/mnt"

// cell is a node with a fault.
type cell struct {
	order

	mu     sync.Mutex
	syslog bytes.Buffer
}

func cellMain() int {
	c := &cell{}
	r := result{}
	if orders, err := os.ReadFile(os.Args[1]); err != nil {
		r.Problem = err.Error()
	} else if err := json.Unmarshal(orders, &c.order); err != nil {
		r.Problem = err.Error()
	} else if err := c.make(); err != nil {
		r.Problem = err.Error()
	} else if err := c.runs(&r); err != nil {
		r.Problem = err.Error()
	}
	text, err := json.Marshal(r)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if err := c.tell(text); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// These are opened at the start, because the fault may prevent that later.
var answer, null *os.File

func (c *cell) tell(text []byte) error {
	_, err := answer.Write(text)
	return err
}

// make gives the node its own directories.
func (c *cell) make() (err error) {
	if answer, err = os.OpenFile(os.Args[2], os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	if null, err = os.Open(os.DevNull); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, m := range [][3]string{{"proc", "/proc"}, {"tmpfs", "/run", "size=4m"}, {"tmpfs", "/var/lib", "size=4m"}, {"tmpfs", "/var/log"}, {"tmpfs", work}} {
		if err := unix.Mount(m[0], m[1], m[0], 0, m[2]); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m[0], m[1], err)
		}
	}
	for _, dir := range []string{"/etc/default", "/etc/sysconfig"} {
		if unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755") != nil && dir == "/etc/default" {
			return fmt.Errorf("mount tmpfs on %s", dir)
		}
	}
	if err := unix.Sethostname([]byte("node1")); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	if err := c.devices(); err != nil {
		return err
	}
	return c.files()
}

// devices creates the device files of a node, and syslog's socket.
func (c *cell) devices() error {
	old, err := unix.OpenTree(unix.AT_FDCWD, "/dev", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("clone mount of /dev: %w", err)
	}
	if err := unix.Mount("tmpfs", "/dev", "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount tmpfs on /dev: %w", err)
	}
	if err := os.Mkdir("/dev/shm", 0o1777); err != nil {
		return err
	}
	for name, minor := range map[string]uint32{"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9, "kmsg": 11} {
		mode := uint32(0o666)
		if err := unix.Mknod("/dev/"+name, unix.S_IFCHR|mode, int(unix.Mkdev(1, minor))); err != nil {
			return fmt.Errorf("make device %s: %w", name, err)
		}
		if err := os.Chmod("/dev/"+name, os.FileMode(mode)); err != nil {
			return err
		}
	}
	_ = unix.Mknod("/dev/fuse", unix.S_IFCHR|0o600, int(unix.Mkdev(10, 229)))
	unix.Close(old)
	if err := os.Symlink("/proc/self/fd", "/dev/fd"); err != nil {
		return err
	}
	if err := os.MkdirAll("/run/systemd/journal", 0o755); err != nil {
		return err
	}
	return errors.Join(c.listen("/dev/log", "syslog"), c.listen("/run/systemd/journal/socket", "journal"))
}

// listen records what a socket gets.
func (c *cell) listen(path, name string) error {
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			c.mu.Lock()
			fmt.Fprintf(&c.syslog, "%s: %s\n", name, buf[:n])
			c.mu.Unlock()
		}
	}()
	return os.Chmod(path, 0o666)
}

// fakeScontrol is slurmctld, scontrol and sinfo in one. One file has the node's state and reason,
// another each update. The file hook, if it exists, breaks it.
const fakeScontrol = `#!/bin/bash
exec 9>>/mnt/slurm.lock
[[ -e /mnt/hook ]] && . /mnt/hook
flock 9
read -r state reason </mnt/state
case "$0 $*" in
*/sinfo*" -a "*) echo "main|${state,,}|1|node1|${reason:-none}" ;;
*/sinfo*) printf '%-200s%-60s%-2048s\n' "${state,,}" root "${reason:-none}" ;;
*show\ node*) echo "NodeName=node1 Arch=x86_64 CPUs=1 State=$state ThreadsPerCore=1${reason:+ Reason=$reason [root@2026-11-21T06:23:00]}" ;;
*update*NodeName=*)
	r= s=
	for w; do case $w in Reason=*) r=${w#Reason=} ;; State=*) s=${w#State=} ;; esac; done
	case $s in DRAIN) state="IDLE+DRAIN $r" ;; *) state=IDLE ;; esac
	echo "$*" >>/mnt/updates; echo "$state" >/mnt/state ;; # no fork: a kill must not come between the two
esac
`

func (c *cell) files() error {
	for path, text := range map[string]string{
		work + "/nhc.conf": c.Conf, work + "/state": "IDLE\n", work + "/updates": "", work + "/bin/scontrol": fakeScontrol, work + "/bin/sinfo": fakeScontrol, work + "/sbin/nhc-gpu": "",
		work + "/guard.toml": "[guard]\njitter = 0\n", // the rows have limits of some seconds
	} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := built.WriteProgram(path, []byte(text)); err != nil {
			return err
		}
	}
	if err := os.Chmod(work+"/nhc.conf", 0o644); err != nil {
		return err
	}
	if err := unix.Mount(c.Program, work+"/sbin/nhc-gpu", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount the program: %w", err)
	}
	if !c.GPUs && !c.Sys {
		return nil
	}
	stat := filepath.Join(c.Node, "root/proc/stat")
	if err := os.MkdirAll(filepath.Dir(stat), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(stat, []byte(text("/proc/stat")), 0o644); err != nil {
		return err
	}
	return os.Symlink(c.Node, work+"/node")
}

// runs breaks the node, runs the program, and a second time if the row requires it.
func (c *cell) runs(r *result) error {
	began := time.Now()
	base := exec.Command(work+"/sbin/nhc-gpu", "-e", "check_file_test -d /", "LOGFILE=/dev/null", "MARK_OFFLINE=0")
	base.Env = []string{"SLURMD_NODENAME=base"}
	if out, err := base.CombinedOutput(); err != nil {
		return fmt.Errorf("an ordinary run: %w\n%s", err, out)
	}
	r.Base = time.Since(began)
	if out, err := c.script(c.Set); err != nil {
		if reason, ok := strings.CutPrefix(string(out), "skip: "); ok {
			r.Skip = reason
			return nil
		}
		return fmt.Errorf("inject the fault: %w\n%s", err, out)
	}
	run, err := c.once(c.Wrap, c.Words, c.Env, c.With)
	if err != nil {
		return err
	}
	// After a time-out the drain has 0.5 s. On a busy machine the fake scontrol, a script, may not end in that time:
	// then the next run must deliver the drain. A run that has not waited those 0.5 s has not tried.
	waited := run.Exit == 142 && run.Took.Seconds() >= c.Within-1 // Within is TIMEOUT + 1.5 s
	if waited && !c.AtOnce && len(run.Updates) == 0 && strings.Contains(run.Said, "the next run will retry") {
		next, err := c.once(c.Wrap, c.Words, c.Env, "")
		if err != nil {
			return err
		}
		run.State, run.Updates = next.State, next.Updates
	}
	r.Runs = append(r.Runs, run)
	if !c.Again {
		return nil
	}
	if out, err := c.script("> updates\n" + c.Then); err != nil {
		return fmt.Errorf("afterwards: %w\n%s", err, out)
	}
	if run, err = c.once("", "", "", ""); err == nil {
		r.Runs = append(r.Runs, run)
	}
	return err
}

func (c *cell) script(text string) ([]byte, error) {
	cmd := exec.Command("/bin/bash", "-ec", text)
	cmd.Dir = work
	// A background process of the script must not hold the output open.
	fd, err := unix.MemfdCreate("output", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "output")
	defer file.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = null, file, file
	err = cmd.Run()
	out := make([]byte, 64<<10)
	n, _ := file.ReadAt(out, 0)
	return out[:n], err
}

// longest is how long a cell waits for a run that does not end.
const longest = 60 * time.Second

// once runs the program as slurmd does: with one pipe for both outputs, which it reads to the end.
func (c *cell) once(wrap, words, env, with string) (aRun, error) {
	var options, settings []string // the program requires this order
	for w := range strings.FieldsSeq(words) {
		if strings.Contains(w, "=") && w[0] != '-' {
			settings = append(settings, w)
		} else {
			options = append(options, w)
		}
	}
	argv := append([]string{work + "/sbin/nhc-gpu"}, options...)
	argv = append(argv, "-c", work+"/nhc.conf", "LOGFILE="+work+"/nhc.log", "NHC_RM=slurm", "SLURM_SCONTROL="+work+"/bin/scontrol", "TOMLFILE="+work+"/guard.toml")
	if c.GPUs || c.Sys {
		argv = append(argv, "HOSTROOT="+work+"/node/root")
	}
	if c.GPUs {
		argv = append(argv, "NVML_LIBRARY="+work+"/node/libnvidia-ml.so.1")
	}
	argv = append(argv, settings...)
	if wrap != "" {
		argv = append([]string{"/bin/bash", "-c", wrap, "wrap"}, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = work
	cmd.Env = append([]string{"SLURMD_NODENAME=node1"}, strings.Fields(env)...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	read, write, err := os.Pipe()
	if err != nil {
		return aRun{}, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = null, write, write
	before := c.processes()
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return aRun{}, err
	}
	write.Close()
	if with != "" {
		beside := exec.Command("/bin/bash", "-c", fmt.Sprintf("pid=%d\n%s", cmd.Process.Pid, with))
		beside.Dir, beside.Stdin, beside.Stdout, beside.Stderr = work, null, null, null
		if err := beside.Start(); err != nil {
			return aRun{}, err
		}
		go func() { _ = beside.Wait() }()
	}
	var out bytes.Buffer
	_ = read.SetReadDeadline(time.Now().Add(longest))
	if _, err := io.Copy(&out, read); err != nil {
		fmt.Fprintf(&out, "\nthe output did not end: %v\n", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // ProcessState has its status
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(longest - time.Since(began)):
		return aRun{}, errors.New("it does not end: " + strings.Join(c.processes(), "; ") + "\n" + out.String())
	}
	run := aRun{Exit: exitStatus(cmd.ProcessState), Took: time.Since(began), Left: c.left(before)}
	run.Said = c.said(out.String())
	run.State = text(work + "/state")
	if updates := strings.TrimSpace(text(work + "/updates")); updates != "" {
		run.Updates = strings.Split(updates, "\n")
	}
	return run, nil
}

func text(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(data)
}

// said returns everything that a person could have read.
func (c *cell) said(out string) string {
	log := "" // a log that does not answer, or has no end, is not read
	if fi, err := os.Lstat(work + "/nhc.log"); err == nil && fi.Mode().IsRegular() && fi.Size() < 1<<20 {
		log = text(work + "/nhc.log")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	const most = 100 << 10
	return out[:min(len(out), most)] + "\n-- log:\n" + log + "\n-- syslog:\n" + c.syslog.String()
}

// left returns the processes that a run has left behind, after some time to end.
func (c *cell) left(before []string) (left []string) {
	pid := func(p string) string { return strings.Fields(p)[0] }
	known := map[string]bool{}
	for _, p := range before {
		known[pid(p)] = true
	}
	for range 100 {
		left = nil
		for _, p := range c.processes() {
			if !known[pid(p)] && !strings.Contains(p, " -c pid=") {
				left = append(left, p)
			}
		}
		if len(left) == 0 {
			break
		}
		time.Sleep(30 * time.Millisecond)
	}
	return left
}

// processes returns the processes of the cell except its first and zombies.
func (c *cell) processes() (list []string) {
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range names {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		_, stat, ok := strings.Cut(text(dir+"/stat"), ") ")
		if pid <= 1 || !ok || stat[0] == 'Z' || stat[0] == 'X' {
			continue
		}
		line := strings.TrimSpace(strings.ReplaceAll(text(dir+"/cmdline"), "\x00", " "))
		list = append(list, fmt.Sprintf("%d %s: %s", pid, strings.TrimSpace(text(dir+"/comm")), line))
	}
	return list
}
