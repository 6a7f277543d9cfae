package slurm_test

import (
	"cmp"
	"crypto/rand"
	_ "embed"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

//go:embed slurm.conf
var slurmConf []byte

//go:embed node.sh
var nodeScript []byte

// defaultConf is the nhc.conf of a node until a test writes another.
const defaultConf = "* || check_file_test -f /etc/nhc/ok"

// Cluster is a running Slurm in its own bubble, which ends with its test.
type Cluster struct {
	t     *testing.T
	dir   string // its files on the host, clusterDir inside
	pid   string // process 1 of its bubble
	group string // its directory below freezerDir
	root  string // the system whose Slurm runs
	conf  string // slurm.conf, except nodes and partitions
	ctld  *process
	Nodes []*Node

	partitions string   // lines of slurm.conf
	beforeCtld []func() // start what slurmctld needs, when munged runs
	version    string   // "slurm-wlm 22.05.8"
}

// start starts a cluster of four idle nodes, whose health checks run every two seconds and pass.
func start(t *testing.T) *Cluster {
	t.Helper()
	c := newCluster(t)
	c.up()
	return c
}

// newCluster creates the files of a cluster that is not started yet.
func newCluster(t *testing.T) *Cluster {
	t.Helper()
	c := &Cluster{t: t, dir: t.ArtifactDir(), conf: string(slurmConf), root: cmp.Or(os.Getenv("NHC_GPU_SLURM_ROOT"), "/"), partitions: "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"}
	skipUnlessAble(t, c.root)
	if err := os.Chmod(c.dir, 0o755); err != nil { // users of the cluster read its slurm.conf
		t.Fatal(err)
	}
	c.group = fmt.Sprintf("nhc-gpu-test-%d-%s", os.Getpid(), filepath.Base(filepath.Dir(c.dir)))
	c.writeFiles()
	return c
}

// up starts the cluster's daemons; first runs before those of Slurm.
func (c *Cluster) up(first ...func()) {
	t := c.t
	t.Helper()
	bin, err := builtBinary()
	if err != nil {
		t.Fatal(err)
	}
	c.writeConf()
	c.startBubble(bin)
	t.Cleanup(c.explain)
	c.version = strings.TrimSpace(c.Exec("slurmctld", "-V"))
	c.write("etc/cgroup.conf", []byte(cgroupConf(c.version)), 0o644)

	began := time.Now()
	for _, f := range first {
		f()
	}
	munged := c.daemon("munged", "munged", "--foreground", "--key-file="+clusterDir+"/etc/munge.key", "--socket=/run/munge/munge.socket",
		"--pid-file="+clusterDir+"/run/munged.pid", "--log-file="+clusterDir+"/log/munged.log",
		"--seed-file="+clusterDir+"/run/munged.seed", "--origin=127.0.0.1", "--num-threads=4")
	c.waitFor(60*time.Second, "munged", func() (string, bool) {
		c.mustRun(munged)
		_, err := os.Stat(c.inside("/run/munge/munge.socket"))
		return "no socket", err == nil
	})
	for _, f := range c.beforeCtld {
		f()
	}
	c.StartCtld()
	for _, n := range c.Nodes {
		n.start()
	}
	for _, n := range c.Nodes {
		n.WaitState("idle", 90*time.Second)
	}
	t.Logf("%s: %d nodes idle after %v", c.version, len(c.Nodes), time.Since(began).Round(time.Millisecond))
}

// writeFiles creates the cluster's directory.
func (c *Cluster) writeFiles() {
	for _, dir := range []string{"etc", "run", "log", "state", "spool"} {
		c.mkdir(dir)
	}
	key := make([]byte, 128)
	_, _ = rand.Read(key)
	c.write("etc/munge.key", key, 0o400)
	c.write("etc/plugstack.conf", nil, 0o644)
	c.write("node.sh", nodeScript, 0o755)
	c.addNodes(4)
}

// addNodes adds nodes to a cluster that is not started yet.
func (c *Cluster) addNodes(more int) {
	for range more {
		n := &Node{c: c, Name: fmt.Sprintf("gpu%02d", len(c.Nodes)+1)}
		for _, dir := range []string{"nhc", "default", "log", "state", "past"} {
			c.mkdir("nodes/" + n.Name + "/" + dir)
		}
		n.Conf(defaultConf)
		n.Settings("")
		n.Create("ok")
		c.Nodes = append(c.Nodes, n)
	}
}

// writeConf writes slurm.conf.
func (c *Cluster) writeConf() {
	c.t.Helper()
	text := c.conf
	for i, n := range c.Nodes {
		text += fmt.Sprintf("NodeName=%s NodeAddr=127.0.0.1 Port=%d CPUs=16 RealMemory=1000000 %s\n", n.Name, 6821+i, n.conf)
	}
	c.write("etc/slurm.conf", []byte(text+c.partitions), 0o644)
}

func (c *Cluster) mkdir(dir string) {
	c.t.Helper()
	if err := os.MkdirAll(filepath.Join(c.dir, dir), 0o755); err != nil {
		c.t.Fatal(err)
	}
}

// write replaces a file atomically, because a health check may be reading it.
func (c *Cluster) write(name string, data []byte, mode os.FileMode) {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path+".new", data, mode); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		c.t.Fatal(err)
	}
}

// StartCtld starts slurmctld and waits until it answers.
func (c *Cluster) StartCtld() {
	c.t.Helper()
	c.ctld = c.daemon("slurmctld", "slurmctld", "-D")
	c.waitFor(60*time.Second, "slurmctld", func() (string, bool) {
		c.mustRun(c.ctld)
		out, err := c.Try("scontrol", "ping")
		return out, err == nil
	})
}

// cgroupConf returns the settings that a slurmd without its own cgroup hierarchy needs.
func cgroupConf(version string) string {
	var major, minor int
	if _, err := fmt.Sscanf(version, "slurm-wlm %d.%d", &major, &minor); err == nil && major*100+minor < 2305 {
		return "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
	}
	return "CgroupPlugin=disabled\n"
}

// StopCtld ends slurmctld, which saves its state.
func (c *Cluster) StopCtld() {
	c.t.Helper()
	c.Exec("sh", "-c", "kill -TERM $(cat "+clusterDir+"/run/slurmctld.pid)")
	c.waitFor(60*time.Second, "end of slurmctld", func() (string, bool) {
		select {
		case <-c.ctld.ended:
			return "", true
		default:
			return "it runs", false
		}
	})
}

// Update runs scontrol update for a node.
func (c *Cluster) Update(n *Node, settings ...string) {
	c.t.Helper()
	c.Exec(append([]string{"scontrol", "update", "NodeName=" + n.Name}, settings...)...)
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
	data, _ := os.ReadFile(filepath.Join(c.dir, "log/syslog"))
	return string(data)
}

// log returns the log of slurmctld, or of the slurmd of a node.
func (c *Cluster) log(daemon string) string {
	data, _ := os.ReadFile(filepath.Join(c.dir, "log", daemon+".log"))
	return string(data)
}

// waitFor repeats ask until ok is true; after the limit it fails the test with the last answer.
func (c *Cluster) waitFor(limit time.Duration, what string, ask func() (got string, ok bool)) {
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
		files, _ := filepath.Glob(filepath.Join(c.dir, pattern))
		for _, path := range files {
			if _, err := os.Stat(strings.TrimSuffix(path, ".out") + ".log"); err == nil && strings.HasSuffix(path, ".out") {
				continue // the same, without times
			}
			if text := tail(path, 4<<10); text != "" {
				name, _ := filepath.Rel(c.dir, path)
				c.t.Logf("%s ends in\n%s", name, text)
			}
		}
	}
}

func tail(path string, size int64) string {
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
