// Package hold shows on the real program, with every action of every check, that --check changes
// nothing on the node, and that --check --act does the same as the health check.
package hold

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// insideEnv is set in the child with its own namespaces.
const insideEnv = "NHC_GPU_HOLD_INSIDE"

var program string

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		os.Exit(need.Exit("tests/hold: needs root to mount and to make processes of other users"))
	}
	if os.Getenv(insideEnv) != "" {
		program = os.Getenv(built.Setting)
		os.Exit(m.Run())
	}
	os.Exit(built.Main(m, &program))
}

// alice owns the processes that the checks act on: a uid without an account.
const alice = 54321

// conf has every action of the checks that inspect this machine. W is the test's directory. The
// action that ends all of alice's processes is last.
const conf = `
* || NHC_RM=slurm
* || SQUEUE_CMD=/bin/true
* || MAX_SYS_UID=999
* || MOUNT_CMD="mount -t tmpfs hold"
* || check_fs_mount -0 -r -f W/new -f W/missing
* || MOUNT_CMD=mount
* || check_fs_mount_ro -0 -r -O ro -f W/mounted
* || check_fs_mount_rw -0 -f W/mounted -E 'touch W/did/mount-found'
* || check_fs_mount -0 -f W/none -e 'touch W/did/mount-missing'
* || check_net_socket -0 -p tcp -l '127.0.0.1:1' -e 'touch W/did/socket-missing'
* || check_net_socket -0 -a -p unix -E 'touch W/did/socket-found'
* || check_ps_service -0 -S absent-start
* || check_ps_service -0 -r absent-restart
* || check_ps_service -0 -c absent-cycle
* || check_ps_service -0 -V -S absent-verified
* || check_ps_service -0 -e 'touch W/did/service-missing' absent
* || check_ps_service -0 -v -e 'touch W/did/service-waited' absent
* || check_ps_service -0 -s -d held-stopped held-stopped
* || check_ps_service -0 -k -d held-killed held-killed
* || check_ps_service -0 -d held-found -E 'touch W/did/service-found' held-found
* || check_ps_cpu -0 -a -m '*held-cpu' -r 7 -e 'touch W/did/cpu' 0%
* || check_ps_mem -0 -m '*held-mem' -k 1k
* || check_ps_physmem -0 -m '*held-physmem' -K 1k
* || check_ps_time -0 -m '*held-time' -k 0s
* || { check_net_socket -0 -p tcp -l '127.0.0.1:1' -e 'touch W/did/shell-line'; }
* || check_gpu_persistence -s
* || check_ps_unauth_users -c W/held-lineage log kill
* || check_ps_userproc_lineage log kill
`

// victims are the processes of alice, by the last word of their names.
var victims = []string{"stopped", "killed", "found", "cpu", "mem", "physmem", "time", "lineage", "unauthorized"}

// marks are the files that actions create.
var marks = []string{
	"mount-found", "mount-missing", "socket-missing", "socket-found", "service-missing", "service-waited", "service-found", "cpu", "shell-line",
	"service-absent-start-start", "service-absent-restart-restart", "service-absent-cycle-stop", "service-absent-cycle-start",
	"service-absent-verified-start", "service-held-stopped-stop",
}

func TestCheckChangesNothing(t *testing.T) {
	if os.Getenv(insideEnv) == "" {
		runtime.LockOSThread() // Pdeathsig refers to the end of the thread
		cmd := exec.Command(os.Args[0], "-test.run=^TestCheckChangesNothing$", "-test.v")
		cmd.Env = append(os.Environ(), insideEnv+"=1", built.Setting+"="+program)
		cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS, Pdeathsig: unix.SIGKILL}
		out, err := cmd.CombinedOutput()
		if err != nil || !bytes.Contains(out, []byte("--- PASS: TestCheckChangesNothing")) {
			t.Fatalf("in namespaces: %v\n%s", err, out)
		}
		return
	}
	n := newNode(t)
	before := n.snapshot(t)
	for _, words := range [][]string{{"--check"}, {"--check", "--json"}, {"--check", "--no-shell"}, {"--check", "--epilog"}} {
		out, exit := n.run(t, words...)
		if diff := n.changes(t, before); diff != "" {
			t.Fatalf("%s changed the node (-before +after):\n%s\n%s", words, diff, out)
		}
		switch words[len(words)-1] {
		case "--check":
			n.held(t, out)
		case "--json":
			var report struct {
				NotDone int `json:"not_done"`
				Results []struct{ Code string }
			}
			if err := json.Unmarshal([]byte(out), &report); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			rows := 0
			for _, r := range report.Results {
				if r.Code == "act.held" {
					rows++
				}
			}
			if rows == 0 || report.NotDone != rows {
				t.Errorf("not_done %d, and %d rows", report.NotDone, rows)
			}
		case "--no-shell":
			if strings.Contains(out, "shell-line\n") && !strings.Contains(out, "not run (--no-shell): { check_net_socket") {
				t.Errorf("the shell line was run:\n%s", out)
			}
		}
		if strings.Contains(out, "cannot be turned on") { // NVML refuses it until --act
			t.Errorf("%s set persistence mode:\n%s", words, out)
		}
		if exit == 0 {
			t.Errorf("%s: exit status 0\n%s", words, out)
		}
	}
	for _, words := range [][]string{
		{"plan", "-c", n.conf}, {"lint", "-c", n.conf}, {"topo"}, {"platforms"}, {"xid", "explain", "79"}, {"genconf", "-c", "-"}, {"--baseline=0", "-c", n.conf},
		{"selftest", "check_fs_mount"}, {"-h"}, {"--version"},
	} {
		cmd := exec.Command(program, words...)
		cmd.Env = []string{"SLURMD_NODENAME=hold"}
		out, _ := cmd.CombinedOutput() // other tests check its output
		if len(out) == 0 {
			t.Errorf("%s printed nothing", words)
		}
		if diff := n.changes(t, before); diff != "" {
			t.Fatalf("%s changed the node (-before +after):\n%s\n%s", words, diff, out)
		}
	}
	time.Sleep(2 * time.Second) // actions run in the background
	if diff := n.changes(t, before); diff != "" {
		t.Fatalf("--check changed the node in the background (-before +after):\n%s", diff)
	}
	if err := os.WriteFile(filepath.Join(n.nvml, "act"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	out, _ := n.run(t, "--check", "--act")
	if strings.Contains(out, "not done") || !strings.Contains(out, "persistence mode was off and is on now") {
		t.Errorf("--act holds actions:\n%s", out)
	}
	n.acted(t, out)
}

// node is the machine of the test: this one, with its own mounts and processes.
type node struct {
	dir, conf string
	nvml      string         // directory of the driver's library, which counts its runs in a file
	victims   map[string]int // pids by the last word of the name
}

func newNode(t *testing.T) *node {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must(unix.Mount("proc", "/proc", "proc", 0, ""))
	must(unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"))
	must(os.MkdirAll("/var/lib/nhc-gpu", 0o755))
	must(unix.Mount("tmpfs", "/var/lib/nhc-gpu", "tmpfs", 0, "mode=700"))
	n := &node{dir: t.TempDir(), nvml: t.TempDir(), victims: map[string]int{}}
	must(os.Chmod(filepath.Dir(n.dir), 0o755))
	must(unix.Mount("tmpfs", n.dir, "tmpfs", 0, "mode=755"))
	t.Cleanup(func() { _ = unix.Unmount(n.dir, unix.MNT_DETACH) })
	for _, dir := range []string{"new", "mounted", "did"} {
		must(os.Mkdir(filepath.Join(n.dir, dir), 0o755))
	}
	must(unix.Mount("tmpfs", filepath.Join(n.dir, "mounted"), "tmpfs", 0, ""))

	_, err := fakenvml.Place(n.nvml, fakenvml.Scenario(fakenvml.H100, 8,
		"3 nvmlDeviceGetPersistenceMode = 0", "3 nvmlDeviceSetPersistenceMode error 4", "3 nvmlDeviceSetPersistenceMode with act = 0"))
	must(err)
	service := filepath.Join(n.dir, "service")
	must(built.WriteProgram(service, []byte("#!/bin/sh\ntouch "+n.dir+"/did/service-$1-$2\n")))
	if err := unix.Mount(service, "/usr/sbin/service", "", unix.MS_BIND, ""); err != nil {
		t.Fatalf("put a service command in the place of /usr/sbin/service: %v", err)
	}
	n.conf = filepath.Join(n.dir, "nhc.conf")
	must(os.WriteFile(n.conf, []byte(strings.ReplaceAll(conf, "W/", n.dir+"/")), 0o644))
	for _, name := range victims {
		n.victims[name] = n.victim(t, name)
	}
	for range 300 {
		if strings.Contains(fmt.Sprint(n.snapshot(t)), fmt.Sprintf("(held-physmem) %d ", n.victims["physmem"])) {
			return n
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatal("the shell has started nothing")
	return nil
}

// victim starts a process of alice. For check_ps_physmem -K its parent, also alice's, is to be
// ended.
func (n *node) victim(t *testing.T, name string) int {
	t.Helper()
	path := filepath.Join(n.dir, "held-"+name)
	sleep, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	if err := built.WriteProgram(path, sleep); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "3600")
	if name == "physmem" {
		cmd = exec.Command("/bin/sh", "-c", path+" 3600 & wait")
	}
	cmd.Dir = "/"
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: alice, Gid: alice}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	go func() { _ = cmd.Wait() }()
	return cmd.Process.Pid
}

// run runs the program with the node's configuration.
func (n *node) run(t *testing.T, words ...string) (out string, exit int) {
	t.Helper()
	cmd := exec.Command(program, append(words, "-t", "120", "-c", n.conf, "NVML_LIBRARY="+n.nvml+"/libnvidia-ml.so.1")...)
	cmd.Env = []string{"SLURMD_NODENAME=hold"}
	var text, wrong bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &wrong
	err := cmd.Run()
	if left, ok := errors.AsType[*exec.ExitError](err); ok {
		exit = left.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if wrong.Len() > 0 {
		t.Logf("%s: %s", words, wrong.String())
	}
	return text.String(), exit
}

// held checks that the table has each action, and the line below it their number.
func (n *node) held(t *testing.T, out string) {
	t.Helper()
	for _, want := range []string{
		"mount -t tmpfs hold W/new", "mount -t tmpfs hold W/missing", "create directory W/missing", "create directory W/none", "mount -o remount,ro W/mounted",
		"touch W/did/mount-found", "touch W/did/mount-missing", "touch W/did/socket-missing", "touch W/did/socket-found",
		"/sbin/service absent-start start", "/sbin/service absent-restart restart", "/sbin/service absent-cycle stop; sleep 2; /sbin/service absent-cycle start",
		"turn on persistence mode of gpu3",
		"/sbin/service absent-verified start", "/sbin/service held-stopped stop",
		"touch W/did/service-missing", "touch W/did/service-waited", "touch W/did/service-found", "touch W/did/cpu", "touch W/did/shell-line",
	} {
		if !strings.Contains(out, strings.ReplaceAll(want, "W/", n.dir+"/")) {
			t.Errorf("the table does not name %q", want)
		}
	}
	for _, name := range []string{"killed", "mem", "physmem", "time", "lineage", "unauthorized"} {
		if want := fmt.Sprintf("not done: would kill process %d ", n.victims[name]); !strings.Contains(out, want) {
			t.Errorf("the table does not name %q", want)
		}
	}
	if want := fmt.Sprintf("not done: would renice process %d ", n.victims["cpu"]); !strings.Contains(out, want) {
		t.Errorf("the table does not name %q", want)
	}
	rows := strings.Count(out, "not done: would ")
	if !strings.Contains(out, fmt.Sprintf("\n%d actions held; --act carries them out\n", rows)) {
		t.Errorf("%d rows, and no such number below the table", rows)
	}
	if !strings.Contains(out, "\n1 shell line was run; --no-shell skips it\n") {
		t.Error("the table does not count the shell line")
	}
	if t.Failed() {
		t.Log(out)
	}
}

// acted waits until all actions have had their effect.
func (n *node) acted(t *testing.T, out string) {
	t.Helper()
	var missing []string
	for range 600 {
		missing = nil
		for _, mark := range marks {
			if _, err := os.Stat(filepath.Join(n.dir, "did", mark)); err != nil {
				missing = append(missing, mark)
			}
		}
		for name, pid := range n.victims {
			if alive(pid) { // the last lines end them all
				missing = append(missing, "end of "+name)
			}
		}
		mounts := n.mounts(t)
		for _, want := range []string{n.dir + "/new rw", n.dir + "/missing rw", n.dir + "/mounted ro"} {
			if !slices.ContainsFunc(mounts, func(m string) bool { return strings.HasPrefix(m, want) }) {
				missing = append(missing, "mount of "+want)
			}
		}
		if len(missing) == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("not done with --act: %s\n%s", strings.Join(missing, ", "), out)
}

func alive(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(data, []byte(") Z "))
}

// mounts lists the mounts, each as its point and its options.
func (n *node) mounts(t *testing.T) (list []string) {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		list = append(list, f[4]+" "+f[5]+" "+strings.Join(f[6:], " "))
	}
	return list
}

// changes compares the node with a snapshot, after the program's own processes have ended.
func (n *node) changes(t *testing.T, before map[string]string) (diff string) {
	t.Helper()
	for range 100 {
		if diff = cmp.Diff(before, n.snapshot(t)); diff == "" {
			return ""
		}
		time.Sleep(100 * time.Millisecond)
	}
	return diff
}

// snapshot describes everything that an action could change: the test's files and those of the
// program, with mode, time and content; mounts; processes with parent, nice value and command.
func (n *node) snapshot(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{"mounts": strings.Join(n.mounts(t), "\n")}
	for _, root := range []string{n.dir, "/var/lib/nhc-gpu"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if root != n.dir && (d.IsDir() || strings.HasSuffix(path, ".by-hand.json")) { // what checks keep for later runs by hand
				return nil
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			text := fmt.Sprint(info.Mode(), info.ModTime(), info.Size())
			if data, err := os.ReadFile(path); err == nil && len(data) < 64<<10 {
				text += string(data)
			}
			all[path] = text
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	number := regexp.MustCompile(`^\S+ (\(.*\)) (\S) (\d+) (?:\S+ ){14}(\S+)`) // name, state, parent, nice
	for _, dir := range dirs {
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		if m := number.FindStringSubmatch(string(stat)); m != nil && m[2] != "Z" && filepath.Base(dir) != strconv.Itoa(os.Getpid()) {
			all[dir] = strings.Join([]string{m[1], m[3], m[4]}, " ")
		}
	}
	return all
}
