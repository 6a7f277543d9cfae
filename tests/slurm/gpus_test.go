package slurm_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/cluster"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// gpusOfNode is the number of GPUs of a node that has GPUs.
const gpusOfNode = cluster.GPUs

// gpuConf is the additional part of slurm.conf for nodes with GPUs. Health checks run once, at the
// start of slurmd, unless a test changes that: otherwise they would find faults before the prolog.
const gpuConf = `
GresTypes=gpu
Prolog=/etc/slurm/prolog.d/*
Epilog=/etc/slurm/epilog.d/*
PrologFlags=Alloc
PrologEpilogTimeout=60
HealthCheckInterval=3600
# a job that was requeued waits as long as its credential is valid, 120 s by default
AuthInfo=socket=/run/munge/munge.socket,cred_expire=5
SchedulerParameters=nohold_on_prolog_fail,bf_interval=1,sched_interval=1
`

// gresConf names the files of the GPUs: slurmd refuses a count alone, and with regular files jobs
// get no variables (22.05).
const gresConf = "Name=gpu File=/dev/nvidia[0-7]\n"

// gpuLines are the checks of a node with GPUs.
const gpuLines = "* || check_gpu_count 8\n* || check_gpu_recovery\n* || check_gpu_xid"

// startGPUs starts a cluster whose nodes have eight GPUs each, with nhc-gpu as prolog and epilog
// and a syslog daemon. The lines go into slurm.conf, after gpuConf.
func startGPUs(t *testing.T, lines ...string) *Cluster {
	t.Helper()
	c := newGPUCluster(t, lines...)
	c.up(c.startSyslog)
	return c
}

// newGPUCluster creates the files of such a cluster.
func newGPUCluster(t *testing.T, lines ...string) *Cluster {
	t.Helper()
	for _, program := range []string{"gcc", "rsyslogd"} {
		need.Program(t, program)
	}
	c := newCluster(t)
	c.conf += gpuConf + strings.Join(lines, "\n") + "\n"
	c.Mkdir("jobs")
	if err := os.Chmod(filepath.Join(c.Dir, "jobs"), 0o777); err != nil {
		t.Fatal(err)
	}
	c.installScripts()
	c.Write("etc/gres.conf", []byte(gresConf), 0o644)
	for _, n := range c.Nodes {
		n.conf = "Gres=gpu:8"
		n.addGPUs()
	}
	return c
}

// addGPUs gives the node its own files and NVML.
func (n *Node) addGPUs() {
	n.c.t.Helper()
	if _, err := fakenvml.Place(n.path("nvml"), fakenvml.Scenario(fakenvml.H100, gpusOfNode)); err != nil {
		n.c.t.Fatal(err)
	}
	n.booted = time.Now().Add(-time.Hour).Truncate(time.Second)
	files := fakenvml.Files(fakenvml.H100, gpusOfNode)
	files["proc/stat"] = fmt.Sprintf("cpu 1\nbtime %d\n", n.booted.Unix())
	files["proc/sys/kernel/random/boot_id"] = "5d6f2a1e-0000-4000-8000-0000000000" + n.Name[3:] + "\n"
	files["dev/kmsg"] = ""
	if err := fakenvml.Write(n.path("host"), files); err != nil {
		n.c.t.Fatal(err)
	}
	if err := os.MkdirAll(n.path("host/usr/bin"), 0o755); err != nil {
		n.c.t.Fatal(err)
	}
	if err := os.Symlink("/usr/bin/scontrol", n.path("host/usr/bin/scontrol")); err != nil { // so that the program may act on the node
		n.c.t.Fatal(err)
	}
	n.Kernel("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  " + fakenvml.Driver)
	inside := filepath.Join(cluster.Dir, "nodes", n.Name)
	n.Settings("HOSTROOT=" + inside + "/host\nNVML_LIBRARY=" + inside + "/nvml/libnvidia-ml.so.1\n")
	n.Conf(gpuLines)
}

// GPUs changes the node's NVML from now on: the lines of a scenario, none for eight healthy GPUs.
func (n *Node) GPUs(lines ...string) {
	n.c.t.Helper()
	n.c.Write("nodes/"+n.Name+"/nvml/nvml.scenario", []byte(fakenvml.Scenario(fakenvml.H100, gpusOfNode, lines...)), 0o644)
}

// Kernel adds a line to the node's kernel log.
func (n *Node) Kernel(text string) {
	n.c.t.Helper()
	f, err := os.OpenFile(n.path("host/dev/kmsg"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		n.c.t.Fatal(err)
	}
	defer f.Close()
	if _, err := fmt.Fprintf(f, "4,%d,%d,-;%s\n", n.logged, time.Since(n.booted).Microseconds(), text); err != nil {
		n.c.t.Fatal(err)
	}
	n.logged++
}

// Xid makes the node's driver log an error of a GPU.
func (n *Node) Xid(gpu, code int, text string) {
	n.c.t.Helper()
	n.Kernel(fmt.Sprintf("NVRM: Xid (PCI:%s): %d, %s", strings.TrimSuffix(fakenvml.Address(gpu), ".0"), code, text))
}

// startSyslog starts this machine's rsyslogd, which reads /dev/log and writes to the same file as
// the bubble.
func (c *Cluster) startSyslog() {
	c.t.Helper()
	at := func(path string) string { return filepath.Join(c.Root, path) }
	c.Write("etc/rsyslog.conf", []byte(`global(workDirectory="`+at(cluster.Dir+"/run")+`" processInternalMessages="on")
module(load="imuxsock" SysSock.Name="`+at("/dev/log")+`")
action(type="omfile" file="`+at(cluster.Dir+"/log/syslog")+`")
`), 0o644)
	c.Background("rsyslogd", c.Foreign(context.Background(), "--", "rsyslogd", "-n", "-i", "NONE", "-f", at(cluster.Dir+"/etc/rsyslog.conf")))
	c.WaitFor(60*time.Second, "rsyslogd", func() (string, bool) {
		return c.Syslog() + cluster.Tail(filepath.Join(c.Dir, "log/rsyslogd.out"), 4096), strings.Contains(c.Syslog(), "rsyslogd")
	})
}

// Job is a batch job of an ordinary user.
type Job struct {
	c  *Cluster
	ID string
}

// Submit submits a job that lasts until its node has a file done in /etc/nhc.
func (c *Cluster) Submit(words ...string) *Job {
	c.t.Helper()
	return c.SubmitScript(untilDone, words...)
}

const untilDone = "while [ ! -e /etc/nhc/done ]; do sleep 0.2; done"

// SubmitScript submits that script as a job.
func (c *Cluster) SubmitScript(script string, words ...string) *Job {
	c.t.Helper()
	argv := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sbatch", "--parsable", "--output=/dev/null", "--chdir=/"}
	script = "touch " + cluster.Dir + "/jobs/$SLURM_JOB_ID\n" + script
	return &Job{c: c, ID: strings.TrimSpace(c.Exec(append(append(argv, words...), "--wrap="+script)...))}
}

// started reports whether the job has begun: its prolog has passed.
func (j *Job) started() bool {
	_, err := os.Stat(filepath.Join(j.c.Dir, "jobs", j.ID))
	return err == nil
}

// WaitStarted waits until the job has begun. slurmctld calls it running earlier.
func (j *Job) WaitStarted() {
	j.c.t.Helper()
	j.c.WaitFor(soon, "start of job "+j.ID, func() (string, bool) {
		return j.Is("JobState") + " " + j.Is("Reason"), j.started()
	})
}

// Is returns a field of the job from slurmctld: JobState, NodeList, Restarts...
func (j *Job) Is(name string) string {
	j.c.t.Helper()
	for word := range strings.FieldsSeq(j.c.Exec("scontrol", "show", "job", "--oneliner", j.ID)) {
		if value, ok := strings.CutPrefix(word, name+"="); ok {
			return value
		}
	}
	return ""
}

// Wait waits until the job is in that state.
func (j *Job) Wait(state string, limit time.Duration) {
	j.c.t.Helper()
	j.c.WaitFor(limit, "job "+j.ID+" in state "+state, func() (string, bool) {
		got := j.Is("JobState")
		return got + " " + j.Is("Reason"), got == state
	})
}

// Must fails the test unless a field of the job has that value.
func (j *Job) Must(name, want string) {
	j.c.t.Helper()
	if got := j.Is(name); got != want {
		j.c.t.Errorf("job %s has %s=%s, want %s", j.ID, name, got, want)
	}
}
