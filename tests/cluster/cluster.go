// Package cluster starts a real Slurm for tests, in namespaces of its own: a bubble. Nothing in it
// conflicts with anything outside of it, and no process outlives its test. The packages that use it
// add the nodes.
//
// It needs root and Slurm. The environment may name another Slurm and another program:
//
//	NHC_GPU_SLURM_ROOT  a root file system whose Slurm is used (see tests/slurm/matrix.sh)
//	NHC_GPU_BINARY      an nhc-gpu already built
package cluster

import (
	"cmp"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// Conf is slurm.conf without controller, nodes and partitions.
//
//go:embed slurm.conf
var Conf string

// NodeScript becomes the slurmd of a node.
//
//go:embed node.sh
var NodeScript string

// Cluster is a Slurm in a bubble, which ends with its test.
type Cluster struct {
	Dir     string // its files on the host, Dir inside
	Root    string // the system whose Slurm runs
	Group   string // its directory below FreezerDir and GroupsDir
	Version string // "slurm-wlm 22.05.8", when it has started

	t    *testing.T
	pid  string // process 1 of its bubble
	ctld *Process
}

// Main runs the tests of a package that starts clusters, and returns the exit status. In a bubble,
// it is process 1.
func Main(m *testing.M) int {
	if os.Args[0] == bubbleName {
		return bubbleMain(os.Args)
	}
	for _, sig := range []os.Signal{unix.SIGINT, unix.SIGQUIT, unix.SIGHUP} {
		if signal.Ignored(sig) { // after "&" or nohup(1), and the programs would inherit that
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	var err error
	if tempDir, err = os.MkdirTemp("", "nhc-gpu-cluster-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(tempDir)
	if err := os.Chmod(tempDir, 0o755); err != nil { // users of a cluster run the program
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

var tempDir string // has the files that all tests share

// builtBinary returns the directory of the nhc-gpu under test.
var builtBinary = sync.OnceValues(func() (string, error) {
	program := filepath.Join(tempDir, "nhc-gpu")
	if path := os.Getenv(built.Setting); path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		return tempDir, built.WriteProgram(program, data)
	}
	if _, err := built.Program(tempDir); err != nil {
		return "", err
	}
	return tempDir, nil
})

// New creates the files of a cluster that is not started yet. It skips the test if this machine
// cannot start one.
func New(t *testing.T) *Cluster {
	t.Helper()
	c := &Cluster{t: t, Dir: t.ArtifactDir(), Root: cmp.Or(os.Getenv("NHC_GPU_SLURM_ROOT"), "/")}
	skipUnlessAble(t, c.Root)
	if err := os.Chmod(c.Dir, 0o755); err != nil { // users of the cluster read its slurm.conf
		t.Fatal(err)
	}
	c.Group = fmt.Sprintf("nhc-gpu-test-%d-%s", os.Getpid(), filepath.Base(filepath.Dir(c.Dir)))
	for _, dir := range []string{"etc", "run", "log", "state", "spool"} {
		c.Mkdir(dir)
	}
	key := make([]byte, 128)
	_, _ = rand.Read(key)
	c.Write("etc/munge.key", key, 0o400)
	c.Write("etc/plugstack.conf", nil, 0o644)
	c.Write("node.sh", []byte(NodeScript), 0o755)
	return c
}

// skipUnlessAble skips a test that cannot start a cluster here.
func skipUnlessAble(t *testing.T, root string) {
	t.Helper()
	need.Root(t, "a cluster of Slurm")
	for _, program := range []string{"slurmctld", "slurmd", "scontrol", "munged"} {
		if !installed(root, program) {
			need.Skip(t, "no %s in %s: tests/install-deps.sh installs it", program, root)
		}
	}
	need.Program(t, "nsenter")
}

func installed(root, program string) bool {
	for _, dir := range []string{"usr/sbin", "usr/bin"} {
		if _, err := os.Stat(filepath.Join(root, dir, program)); err == nil {
			return true
		}
	}
	return false
}

// Start starts the bubble. Programs can run in it, no daemon does.
func (c *Cluster) Start() {
	c.t.Helper()
	bin, err := builtBinary()
	if err != nil {
		c.t.Fatal(err)
	}
	c.startBubble(bin)
	c.t.Cleanup(c.explain)
	c.Version = strings.TrimSpace(c.Exec("slurmctld", "-V"))
	c.Write("etc/cgroup.conf", []byte(cgroupConf(c.Version)), 0o644)
}

// StartMunge starts munged and waits until it answers.
func (c *Cluster) StartMunge() {
	c.t.Helper()
	munged := c.Daemon("munged", "munged", "--foreground", "--key-file="+Dir+"/etc/munge.key", "--socket=/run/munge/munge.socket",
		"--pid-file="+Dir+"/run/munged.pid", "--log-file="+Dir+"/log/munged.log",
		"--seed-file="+Dir+"/run/munged.seed", "--origin=127.0.0.1", "--num-threads=4")
	c.WaitFor(60*time.Second, "munged", func() (string, bool) {
		c.MustRun(munged)
		_, err := os.Stat(c.Inside("/run/munge/munge.socket"))
		return "no socket", err == nil
	})
}

// StartCtld starts slurmctld and waits until it answers.
func (c *Cluster) StartCtld() {
	c.t.Helper()
	c.ctld = c.Daemon("slurmctld", "slurmctld", "-D")
	c.WaitFor(60*time.Second, "slurmctld", func() (string, bool) {
		c.MustRun(c.ctld)
		out, err := c.Try("scontrol", "ping")
		return out, err == nil
	})
}

// StopCtld ends slurmctld, which saves its state.
func (c *Cluster) StopCtld() {
	c.t.Helper()
	c.Exec("sh", "-c", "kill -TERM $(cat "+Dir+"/run/slurmctld.pid)")
	c.WaitFor(60*time.Second, "end of slurmctld", func() (string, bool) {
		select {
		case <-c.ctld.Ended:
			return "", true
		default:
			return "it runs", false
		}
	})
}

// Mkdir creates a directory in the cluster's.
func (c *Cluster) Mkdir(dir string) {
	c.t.Helper()
	if err := os.MkdirAll(filepath.Join(c.Dir, dir), 0o755); err != nil {
		c.t.Fatal(err)
	}
}

// Write replaces a file atomically, because a health check may be reading it.
func (c *Cluster) Write(name string, data []byte, mode os.FileMode) {
	c.t.Helper()
	path := filepath.Join(c.Dir, name)
	if err := errors.Join(built.WriteProgram(path+".new", data), os.Chmod(path+".new", mode), os.Rename(path+".new", path)); err != nil {
		c.t.Fatal(err)
	}
}

// cgroupConf returns the settings that a slurmd without its own cgroup hierarchy needs.
func cgroupConf(version string) string {
	var major, minor int
	if _, err := fmt.Sscanf(version, "slurm-wlm %d.%d", &major, &minor); err == nil && major*100+minor < 2305 {
		return "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
	}
	return "CgroupPlugin=disabled\n"
}

// rpcLine is a line of sdiag's statistics by message type.
var rpcLine = regexp.MustCompile(`(?m)^\s*([A-Z_]+)\s+\(\s*\d+\) count:(\d+)`)

// RPCs counts the requests to slurmctld since its start, by type of message.
func (c *Cluster) RPCs() map[string]int {
	c.t.Helper()
	counts := map[string]int{}
	for _, m := range rpcLine.FindAllStringSubmatch(c.Exec("sdiag"), -1) {
		counts[m[1]], _ = strconv.Atoi(m[2])
	}
	if len(counts) == 0 {
		c.t.Fatal("sdiag counts no messages")
	}
	return counts
}

// Syslog returns the cluster's messages to syslog, one per line.
func (c *Cluster) Syslog() string {
	data, _ := os.ReadFile(filepath.Join(c.Dir, "log/syslog"))
	return string(data)
}

// Log returns the log of slurmctld, or of the slurmd of a node.
func (c *Cluster) Log(daemon string) string {
	data, _ := os.ReadFile(filepath.Join(c.Dir, "log", daemon+".log"))
	return string(data)
}

// Output returns what a daemon has printed.
func (c *Cluster) Output(daemon string) string {
	data, _ := os.ReadFile(filepath.Join(c.Dir, "log", daemon+".out"))
	return string(data)
}

// WaitFor repeats ask until ok is true; after the limit it fails the test with the last answer.
func (c *Cluster) WaitFor(limit time.Duration, what string, ask func() (got string, ok bool)) {
	c.t.Helper()
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		got, ok := ask()
		if ok {
			return
		}
		if time.Since(began) > limit {
			c.t.Fatalf("after %v still no %s: %s", limit, what, got)
		}
	}
}

// explain shows the logs of a cluster whose test failed.
func (c *Cluster) explain() {
	if !c.t.Failed() {
		return
	}
	for _, pattern := range []string{"log/*", "nodes/*/log/*"} {
		files, _ := filepath.Glob(filepath.Join(c.Dir, pattern))
		for _, path := range files {
			if _, err := os.Stat(strings.TrimSuffix(path, ".out") + ".log"); err == nil && strings.HasSuffix(path, ".out") {
				continue // the same, without times
			}
			if text := Tail(path, 4<<10); text != "" {
				name, _ := filepath.Rel(c.Dir, path)
				c.t.Logf("%s ends in\n%s", name, text)
			}
		}
	}
}

// Tail returns the last bytes of a file, none if it cannot be read.
func Tail(path string, size int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > size {
		_, _ = f.Seek(-size, io.SeekEnd)
	}
	data, _ := io.ReadAll(f)
	return string(data)
}
