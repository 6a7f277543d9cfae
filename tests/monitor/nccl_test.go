package monitor

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/fakeras"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// The test program is a process of a job with NCCL, too.
func init() {
	if how := os.Getenv("RAS_FAKE"); how != "" {
		fakeras.Serve(how)
		os.Exit(1)
	}
}

// A run that the samples of jobs have woken asks NCCL of a job that hangs, if a line says so.
func TestAsksNCCL(t *testing.T) {
	tier.All(t)
	t.Parallel()
	n := newNode(t, "check_job_health -r")
	n.gpus("* nvmlDeviceGetUtilizationRates = 100 0")
	n.job("4711", 0)
	ras := exec.Command("/proc/self/exe")
	ras.Env = append(os.Environ(), "RAS_FAKE=lag", "RAS_HOST=127.0.0.1", "NCCL_RAS_ADDR=127.0.0.1:0")
	out, err := ras.StdoutPipe()
	n.must(err)
	n.must(ras.Start())
	t.Cleanup(func() { _ = ras.Process.Kill(); _ = ras.Wait() })
	address := make([]byte, 64)
	size, err := out.Read(address)
	n.must(err)
	pid := strconv.Itoa(ras.Process.Pid)
	for _, name := range []string{"stat", "status", "net", "ns", "fd", "maps"} {
		n.must(os.MkdirAll(filepath.Join(n.root, "proc", pid), 0o755))
		n.must(os.Symlink(filepath.Join("/proc", pid, name), filepath.Join(n.root, "proc", pid, name)))
	}
	n.write("root/proc/"+pid+"/environ", "NCCL_RAS_ADDR="+strings.TrimSpace(string(address[:size]))+"\x00")
	n.write("root/var/lib/nhc-gpu/"+n.name+"/job-4711.json", `{"version":1,"job":"4711","node":"gpu01","whole":true,"one_node":true,"first_node":"gpu01"}`)
	n.write("root/sys/fs/cgroup/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0/cgroup.procs", pid+"\n")
	n.start(0)
	want := "NCCL: rank 3 (gpu3 of this node, process " + pid + ") has launched 6649 AllReduce operations, the first 6650"
	said := ""
	for end := time.Now().Add(2 * time.Minute); !strings.Contains(said, want); time.Sleep(5 * time.Second) {
		if time.Now().After(end) {
			t.Fatalf("no %q in\n%s", want, said)
		}
		run := exec.Command(program, append(n.words(), "LOGFILE=-", "VERBOSE=1")...)
		run.Env = append(os.Environ(), "SLURMD_NODENAME="+n.name, "SLURM_SCRIPT_CONTEXT=nhc-gpu-monitor", "NHC_GPU_EVENTS=job", "NHC_RM=slurm", "SLURM_SCONTROL="+n.dir+"/scontrol")
		text, _ := run.CombinedOutput() // another run may be under way
		said = string(text)
	}
}
