package fakenvml_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// slurmd starts the program for eight jobs and for the node concurrently: every run has the correct
// verdict, and no record is lost or half written.
func TestRunsOverlap(t *testing.T) {
	t.Parallel()
	need.Root(t, "only root keeps records")
	n := newNode(t, fakenvml.H100, 8, []string{"* nvmlDeviceGetName late 20"})
	if err := fakenvml.Write(filepath.Join(n.dir, "root"), map[string]string{
		"dev/kmsg": "6,1,1,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.124.06\n", "proc/sys/kernel/random/boot_id": "this\n",
	}); err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(n.dir, "nhc.conf")
	lines := strings.ReplaceAll(gpuLines, "* || check_file_test -f /other/lane\n", "") + "* || check_gpu_xid\n"
	if err := os.WriteFile(conf, []byte(lines), 0o644); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("overlap%d", os.Getpid())
	t.Cleanup(func() { _ = os.RemoveAll("/run/nhc-gpu/" + name) })
	start := func(words []string, env ...string) (said string, err error) {
		cmd := exec.Command(program, append(words, "-c", conf, "LOGFILE=-", "MARK_OFFLINE=0",
			"HOSTROOT="+filepath.Join(n.dir, "root"), "NVML_LIBRARY="+n.lib)...)
		cmd.Env = append(env, "SLURMD_NODENAME="+name)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err = cmd.Run()
		return out.String(), err
	}
	const jobs = 8
	for _, role := range []string{"--prolog", "--epilog"} {
		var wg sync.WaitGroup
		for i := range jobs {
			wg.Go(func() {
				said, err := start([]string{role}, fmt.Sprintf("SLURM_JOB_ID=%d", 100+i), fmt.Sprintf("SLURM_JOB_GPUS=%d", i), "SLURM_JOB_UID=5001")
				line, ended := strings.CutPrefix(said, fmt.Sprintf("nhc-gpu: job %d of uid 5001, gpu%d, ", 100+i, i))
				ended = ended && strings.HasSuffix(line, "s: nothing happened\n") && strings.Count(line, "\n") == 1
				if err != nil || ended != (role == "--epilog") || !ended && said != "" {
					t.Errorf("%s of job %d: %v\n%s", role, 100+i, err, said)
				}
			})
		}
		wg.Go(func() {
			if said, err := start(nil); err != nil {
				t.Errorf("health check: %v\n%s", err, said)
			}
		})
		wg.Wait()
	}
	past := filepath.Join(n.dir, "root/var/lib/nhc-gpu", name)
	data, err := os.ReadFile(filepath.Join(past, "jobs.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	closed := map[string]string{}
	for line := range bytes.Lines(data) {
		var r struct {
			Job, Outcome string
			Doubts       []string
		}
		if err := json.Unmarshal(line, &r); err != nil || len(r.Doubts) > 0 {
			t.Errorf("%v, %v: %s", err, r.Doubts, line)
		}
		closed[r.Job] = r.Outcome
	}
	for i := range jobs {
		if got := closed[fmt.Sprint(100+i)]; got != "complete" {
			t.Errorf("job %d is closed as %q, want complete", 100+i, got)
		}
	}
	if open, _ := filepath.Glob(filepath.Join(past, "job-*")); len(open) > 0 {
		t.Errorf("still open: %v", open)
	}
	if half, _ := filepath.Glob(filepath.Join(past, "*.new")); len(half) > 0 {
		t.Errorf("half written: %v", half)
	}
}

// busy is a node with fully loaded GPUs, used by processes of a job.
var busy = []string{
	"* nvmlDeviceGetComputeRunningProcesses = 4242 80000000000",
	"* nvmlDeviceGetMemoryInfo = 85520809984 1000000000 5000000000 79520809984",
	"* nvmlDeviceGetTemperature 0 = 84", "* field 82 = 94", "* nvmlDeviceGetMarginTemperature = 3", "* nvmlDeviceGetPowerUsage = 699000",
	"* nvmlDeviceGetCurrentClocksEventReasons = 4", "* nvmlDeviceGetCurrentClocksThrottleReasons = 4", "* field 74 = 0+600000000000",
}

// A busy node does not fail, causes no finding, and no setting changes.
func TestBusyNode(t *testing.T) {
	t.Parallel()
	lines := append(slices.Clone(busy), "* nvmlDeviceGetPersistenceMode = 0")
	n := newNode(t, fakenvml.H100, 8, busy)
	conf := strings.ReplaceAll(gpuLines, "* || check_file_test -f /other/lane\n", "")
	for run := range 3 {
		if out, _ := n.run(t, conf); out != "" {
			t.Errorf("run %d says: %s", run, out)
		}
	}
	n = newNode(t, fakenvml.H100, 8, lines)
	out, _ := n.run(t, "* || check_gpu_persistence -s")
	if !strings.Contains(out, "gpu7 0000:17:00.0: persistence mode is not turned on while the GPU is in use (processes: 1), want on, got off") {
		t.Errorf("persistence mode of a busy node: %s", out)
	}
}

// If only the counters of a job's record show that a GPU is lost, the prolog keeps the job away if
// it is the job's GPU.
func TestCountersFindLost(t *testing.T) {
	t.Parallel()
	need.Root(t, "only root keeps records")
	n := newNode(t, fakenvml.H100, 8, []string{"3 nvmlDeviceGetPcieReplayCounter error 15"})
	conf := filepath.Join(n.dir, "nhc.conf")
	if err := os.WriteFile(conf, []byte("* || check_file_test -d /proc\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("counters%d", os.Getpid())
	t.Cleanup(func() { _ = os.RemoveAll("/run/nhc-gpu/" + name) })
	for gpu, fails := range map[int]bool{2: false, 3: true} {
		cmd := exec.Command(program, "--prolog", "-c", conf, "LOGFILE=-", "MARK_OFFLINE=0", "HOSTROOT="+filepath.Join(n.dir, "root"), "NVML_LIBRARY="+n.lib)
		cmd.Env = []string{"SLURMD_NODENAME=" + name, fmt.Sprintf("SLURM_JOB_ID=%d", 100+gpu), fmt.Sprintf("SLURM_JOB_GPUS=%d", gpu), "SLURM_JOB_UID=5001"}
		said, err := cmd.CombinedOutput()
		if (err != nil) != fails || strings.Count(string(said), "gpu3 0000:13:00.0: the GPU is lost") != 1 {
			t.Errorf("job on gpu%d: %v\n%s", gpu, err, said)
		}
	}
}
