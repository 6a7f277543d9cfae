// Package monitor runs nhc-gpu monitor as a process, with fakes for the kernel's log, sysfs, NVML and Slurm: in
// storms, beside a driver that hangs, and when its configuration changes. It measures its cost.
package monitor

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

var program string

func TestMain(m *testing.M) { os.Exit(built.Main(m, &program, "gcc")) }

// scontrol keeps the state of the node in a file, and each change in a log.
const scontrol = `#!/bin/sh
dir=${0%/*}
read -r state reason <"$dir/state"
case "$*" in
*show*) echo "NodeName=$SLURMD_NODENAME State=$state ThreadsPerCore=1 ${reason:+Reason=$reason [root@2026-11-21T06:23:00]}" ;;
update*)
	echo "$*" >>"$dir/updates"
	case $2 in
	State=DRAIN) echo "IDLE+DRAIN ${4#Reason=}" >"$dir/state" ;;
	State=RESUME) echo IDLE >"$dir/state" ;;
	esac
	;;
esac
`

// node is a node with 8 GPUs and 10 InfiniBand ports, whose monitor can run.
type node struct {
	t     *testing.T
	dir   string // with nhc.conf, nhc.toml and scontrol
	root  string // of the fakes
	name  string
	state string // directory
	seq   int    // the next record of the kernel's log

	cmd *exec.Cmd
	out text
}

// text collects what the monitor prints.
type text struct {
	sync.Mutex
	strings.Builder
}

func (w *text) Write(data []byte) (int, error) {
	w.Lock()
	defer w.Unlock()
	return w.Builder.Write(data)
}

func (w *text) String() string {
	w.Lock()
	defer w.Unlock()
	return w.Builder.String()
}

func newNode(t *testing.T, conf ...string) *node {
	t.Helper()
	need.Root(t, "only root can run the monitor")
	dir := t.TempDir()
	n := &node{t: t, dir: dir, root: filepath.Join(dir, "root"), name: built.NodeName(dir)}
	n.state = "/run/nhc-gpu/" + n.name
	t.Cleanup(func() { _ = os.RemoveAll(n.state) })
	sys := fakesys.DGXH100()
	delete(sys.Files, "proc/uptime")
	n.must(sys.Write(n.root))
	n.must(os.Symlink("/proc/uptime", filepath.Join(n.root, "proc/uptime")))
	n.must(fakenvml.Write(n.root, fakenvml.Files(fakenvml.H100, 8)))
	n.write("root/dev/kmsg", "")
	n.kernel("Linux version 6.8.0")
	n.gpus()
	n.conf(conf...)
	n.write("state", "IDLE\n")
	n.must(built.WriteProgram(filepath.Join(dir, "scontrol"), []byte(scontrol)))
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// write replaces a file of the node's directory at once.
func (n *node) write(name, content string) {
	n.t.Helper()
	path := filepath.Join(n.dir, name)
	n.must(os.MkdirAll(filepath.Dir(path), 0o755))
	n.must(os.WriteFile(path+".new", []byte(content), 0o644))
	n.must(os.Rename(path+".new", path))
}

// conf writes nhc.conf.
func (n *node) conf(lines ...string) {
	n.t.Helper()
	text := ""
	for _, l := range lines {
		text += "* || " + l + "\n"
	}
	n.write("nhc.conf", text)
}

// gpus changes what NVML answers to processes that start from now on.
func (n *node) gpus(lines ...string) {
	n.t.Helper()
	if _, err := fakenvml.Place(filepath.Join(n.dir, "nvml"), fakenvml.Scenario(fakenvml.H100, 8, lines...)); err != nil {
		n.t.Fatal(err)
	}
}

// job puts a job with processes onto the node.
func (n *node) job(id string, processes int) {
	n.t.Helper()
	dir := "root/sys/fs/cgroup/system.slice/slurmstepd.scope/job_" + id
	pids := ""
	for i := range processes {
		pid := strconv.Itoa(100_000 + i)
		pids += pid + "\n"
		n.write("root/proc/"+pid+"/stat", pid+" (python) S 1 1 1 0 -1 0\n")
	}
	for name, text := range map[string]string{
		"memory.current": "1048576\n", "memory.events": "oom_kill 0\n", "io.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
		"memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", "cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
		"step_0/user/task_0/cgroup.procs": pids,
	} {
		n.write(dir+"/"+name, text)
	}
}

// kernel appends records to the kernel's log.
func (n *node) kernel(lines ...string) {
	n.t.Helper()
	f, err := os.OpenFile(filepath.Join(n.root, "dev/kmsg"), os.O_WRONLY|os.O_APPEND, 0)
	n.must(err)
	defer f.Close()
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "4,%d,%d,-;%s\n", n.seq, 1000*n.seq, l)
		n.seq++
	}
	_, err = f.WriteString(b.String())
	n.must(err)
}

// words are the arguments of each run of the node.
func (n *node) words() []string {
	return []string{"CONFDIR=" + n.dir, "LOGFILE=" + n.dir + "/log", "HOSTROOT=" + n.root, "NVML_LIBRARY=" + n.dir + "/nvml/libnvidia-ml.so.1"}
}

// start starts the monitor, in namespaces of its own, and waits until it listens to all sources.
func (n *node) start(flags uintptr) {
	n.t.Helper()
	n.cmd = exec.Command(program, append([]string{"monitor"}, n.words()...)...)
	n.cmd.Env = append(os.Environ(), "SLURMD_NODENAME="+n.name, "NHC_RM=slurm", "SLURM_SCONTROL="+n.dir+"/scontrol", "MARK_OFFLINE=1")
	n.cmd.Stdout, n.cmd.Stderr = &n.out, &n.out
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	n.must(n.cmd.Start())
	n.t.Cleanup(n.stop)
	n.await("its start", func() bool { return n.ledger().Mark.Next == n.seq })
}

// stop ends the monitor as systemd does.
func (n *node) stop() {
	if n.cmd == nil {
		return
	}
	_ = n.cmd.Process.Signal(syscall.SIGTERM)
	end := time.AfterFunc(30*time.Second, func() { _ = n.cmd.Process.Kill() })
	_ = n.cmd.Wait()
	if !end.Stop() {
		n.t.Error("SIGTERM has not ended the monitor within 30 s")
	}
	n.cmd = nil
	if n.t.Failed() {
		n.t.Logf("the monitor:\n%s", n.out.String())
	}
}

type ledger struct {
	PID    int
	Mark   struct{ Next int }
	Runs   int
	Lost   int
	Silent []string
}

func (n *node) ledger() (l ledger) {
	data, _ := os.ReadFile(n.state + "/monitor.json")
	_ = json.Unmarshal(data, &l)
	return l
}

// await waits until something is true.
func (n *node) await(what string, is func() bool) {
	n.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			n.t.Fatalf("no %s: %+v, %s\n%s", what, n.ledger(), n.slurm(), n.out.String())
		}
	}
}

// slurm returns the state of the node in Slurm, and its reason.
func (n *node) slurm() string {
	data, _ := os.ReadFile(filepath.Join(n.dir, "state"))
	return strings.TrimSpace(string(data))
}

// updates counts the changes of the node in Slurm.
func (n *node) updates() int {
	data, _ := os.ReadFile(filepath.Join(n.dir, "updates"))
	return strings.Count(string(data), "\n")
}

// process is a process of the monitor.
type process struct {
	pid     int
	name    string        // watch-gpus; monitor
	cpu     time.Duration // user and system, own
	reaped  time.Duration // of its children that have ended
	threads int
	wakes   int // of its threads: voluntary changes of context
}

const tick = 10 * time.Millisecond // of /proc/PID/stat

// processes lists the monitor and what it has started.
func (n *node) processes() (list []process) {
	n.t.Helper()
	pids := []int{n.cmd.Process.Pid}
	for i := 0; i < len(pids); i++ {
		dir := fmt.Sprintf("/proc/%d/", pids[i])
		tasks, _ := filepath.Glob(dir + "task/*/children")
		for _, task := range tasks {
			data, _ := os.ReadFile(task)
			for word := range strings.FieldsSeq(string(data)) {
				pid, _ := strconv.Atoi(word)
				pids = append(pids, pid)
			}
		}
		stat, err := os.ReadFile(dir + "stat")
		if err != nil {
			continue // it has ended
		}
		line, _ := os.ReadFile(dir + "cmdline")
		args := strings.Split(string(line), "\x00")
		words := strings.Fields(string(stat)[strings.LastIndexByte(string(stat), ')')+2:])
		ticks := func(i int) time.Duration {
			v, _ := strconv.Atoi(words[i-3])
			return time.Duration(v) * tick
		}
		p := process{pid: pids[i], name: "monitor", cpu: ticks(14) + ticks(15), reaped: ticks(16) + ticks(17), threads: int(ticks(20) / tick)}
		status, _ := filepath.Glob(dir + "task/*/status")
		for _, file := range status {
			text, _ := os.ReadFile(file)
			if _, rest, ok := strings.Cut(string(text), "\nvoluntary_ctxt_switches:\t"); ok {
				word, _, _ := strings.Cut(rest, "\n")
				count, _ := strconv.Atoi(word)
				p.wakes += count
			}
		}
		if i > 0 {
			p.name = "run"
			if len(args) > 1 && strings.HasSuffix(args[0], "worker") {
				p.name = args[1]
			}
		}
		list = append(list, p)
	}
	return list
}

// cpu returns the CPU time of the monitor, its workers, and its runs of checks.
func (n *node) cpu() (total time.Duration) {
	n.t.Helper()
	for _, p := range n.processes() {
		total += p.cpu + p.reaped
	}
	return total
}

// pss returns the memory of a process, bytes. A shared page counts in equal parts for the processes that share it.
func pss(pid int) (bytes int) {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	for line := range strings.Lines(string(data)) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "Pss:" {
			kib, _ := strconv.Atoi(words[1])
			bytes += kib << 10
		}
	}
	return bytes
}

// names lists the processes by their names.
func names(list []process) (names []string) {
	for _, p := range list {
		names = append(names, p.name)
	}
	slices.Sort(names)
	return names
}
