package jobs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor/flight"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakeras"
)

// The test program is a process of a job with NCCL, too.
func init() {
	if how := os.Getenv("RAS_FAKE"); how != "" {
		fakeras.Serve(how)
		os.Exit(1)
	}
}

// hung returns a node whose job 7 hangs for some seconds, and one of its processes. The process listens for NCCL's
// clients. idle runs no kernel, "" for none: the other GPUs wait for it.
func hung(t *testing.T, how string, seconds uint32, idle string) (h *probe.Host, process *exec.Cmd) {
	t.Helper()
	spinning := sampled("", func(at uint32, set func(device string, series flight.Name, v float32)) {
		for i := range 8 {
			if gpu := fmt.Sprintf("gpu%d", i); at > sampledUntil-seconds {
				for series, v := range map[flight.Name]float32{flight.Busy: 100, flight.Power: 120, flight.Memory: 0, flight.NVLink: 0, flight.PCIe: 1} {
					set(gpu, series, v)
				}
				if gpu == idle {
					set(gpu, flight.Busy, 0)
				}
			}
		}
	})
	process = exec.Command("/proc/self/exe")
	process.Env = append(os.Environ(), "RAS_FAKE="+how, "NCCL_RAS_ADDR=127.0.0.1:0", "RAS_HOST=127.0.0.1")
	out, err := process.StdoutPipe()
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(strings.TrimSpace(line), ":")
	pid := strconv.Itoa(process.Process.Pid)
	spinning.Files["sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/cgroup.procs"] = pid + "\n"
	spinning.Files["past/job-7.json"] = oneNode
	root := probetest.Tree(t, spinning.Files)
	proc := filepath.Join(root, "proc", pid)
	if err := os.Mkdir(proc, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"stat", "status", "net", "ns", "fd", "maps"} {
		if err := os.Symlink(filepath.Join("/proc", pid, name), filepath.Join(proc, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(proc, "environ"), []byte("A=b\x00NCCL_RAS_ADDR=127.0.0.1:"+port+"\x00"), 0o600); err != nil {
		t.Fatal(err)
	}
	h = probe.NewHost(root)
	h.SetPast("/past")
	h.SetState(filepath.Join(root, "state"))
	return h, process
}

// messages runs the check as the monitor does.
func messages(h *probe.Host, ras bool, events string) string {
	env := &checks.Env{Host: h, Vars: map[string]string{monitor.Events: events}}
	var text []string
	for _, f := range (&jobHealth{RAS: ras}).Run(context.Background(), env) {
		text = append(text, f.Code+" "+f.Message)
	}
	return strings.Join(text, "\n")
}

// A job that hangs is asked once, and its answer stays.
func TestNCCL(t *testing.T) {
	t.Parallel()
	h, process := hung(t, "lag", 130, "")
	const hang = "job.hang check_job_health:  job 7: all 8 GPUs have waited for 129 s: their kernels neither compute nor send data"
	const values = ", want power and traffic of a working GPU, got busy 100 %, 120 W, no traffic"
	for events, ras := range map[string]bool{"job": false, "gpu,job": true, "": true} {
		if got := messages(h, ras, events); got != hang+values {
			t.Errorf("events %q, -r %v: %q, want no question", events, ras, got)
		}
	}
	want := fmt.Sprintf("%s; NCCL: rank 3 (gpu3 of this node, process %d) has launched 6649 AllReduce operations, the first 6650, and its GPU waits, too: the others wait for it%s", hang, process.Process.Pid, values)
	if got := messages(h, true, "job"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	_ = process.Process.Kill()
	_ = process.Wait()
	for _, events := range []string{"job", ""} {
		if got := messages(h, true, events); got != want {
			t.Errorf("events %q: got %q, want the stored answer", events, got)
		}
	}
	env := &checks.Env{Host: h}
	if e, err := ExtractSamples(env, "7", 0, false); err != nil || !strings.Contains(e.Text(), "NCCL: rank 3 (gpu3 of this node") {
		t.Errorf("a person sees %+v, %v", e, err)
	}
}

// Only the first node of a job asks, and only if it is known.
func TestNCCLFirstNode(t *testing.T) {
	t.Parallel()
	h, _ := hung(t, "lag", 400, "")
	for record, want := range map[string]string{
		`{"version":1,"job":"7","node":"gpu02","whole":true,"first_node":"gpu01"}`: "; NCCL: not asked by this node, only by gpu01, the first one of the job, want",
		`{"version":1,"job":"7","node":"gpu02","whole":true}`:                      "; NCCL: not asked (the first node of the job is unknown), want",
		`{"version":1,"job":"6"}`: "; NCCL: not asked (the first node of the job is unknown), want",
	} {
		if err := os.WriteFile(h.Path("/past/job-7.json"), []byte(record), 0o600); err != nil {
			t.Fatal(err)
		}
		var a storedAnswer
		if got := messages(h, true, "job"); !strings.Contains(got, want) || h.Recall("nccl-7", &a) == nil {
			t.Errorf("%s: got %q, want %q and no question: %+v", record, got, want, a)
		}
		if got := messages(h, false, "job"); strings.Contains(got, "NCCL") {
			t.Errorf("%s: got %q without -r", record, got)
		}
	}
}

// The first node of a job of one node is this one, also if the record does not name it.
func TestNCCLOfOneNode(t *testing.T) {
	t.Parallel()
	h, _ := hung(t, "lag", 400, "")
	if err := os.WriteFile(h.Path("/past/job-7.json"), []byte(`{"version":1,"job":"7","node":"gpu02","whole":true,"one_node":true}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := messages(h, true, "job"); !strings.Contains(got, "; NCCL: rank 3 (") {
		t.Errorf("got %q, want an answer", got)
	}
}

// A job that waits for one GPU is never asked: its process may write a checkpoint, or it has died.
func TestNCCLWaitsForOne(t *testing.T) {
	t.Parallel()
	h, _ := hung(t, "lag", 400, "gpu3")
	if got := messages(h, true, "job"); !strings.HasPrefix(got, "job.hang") || strings.Contains(got, "NCCL") {
		t.Errorf("got %q, want a hang and no question", got)
	}
	var a storedAnswer
	if err := h.Recall("nccl-7", &a); err == nil {
		t.Errorf("the job was asked: %+v", a)
	}
}

// An answer that is none, and a job that has ended.
func TestNCCLHostile(t *testing.T) {
	t.Parallel()
	h, _ := hung(t, "garbage", 130, "")
	if got := messages(h, true, "job"); !strings.Contains(got, `data; NCCL: no answer (ask NCCL at 127.0.0.1:`) || !strings.Contains(got, `got "hello?[2Jworld"`) {
		t.Errorf("got %q", got)
	}
	var a storedAnswer
	if err := h.Recall("nccl-7", &a); err != nil || a.Err == "" {
		t.Errorf("%+v, %v", a, err)
	}
	forgetAnswers(h, nil)
	if err := h.Recall("nccl-7", &a); err == nil {
		t.Error("the answer is kept after the end of the job")
	}
	a = storedAnswer{Boot: "b", Seen: 1000}
	for since, same := range map[uint32]bool{900: true, 1000: true, 1001: false} {
		if a.sameHang("b", flight.Verdict{Since: since}) != same || a.sameHang("c", flight.Verdict{Since: since}) {
			t.Errorf("a hang since %d: want %v", since, same)
		}
	}
}

// A job is shown to its own user: by the record of its prolog, or by its processes.
func TestOwner(t *testing.T) {
	t.Parallel()
	h, process := hung(t, "ok", 130, "")
	env := &checks.Env{Host: h}
	sees := func(user uint32) bool {
		e, err := ExtractSamples(env, "7", user, true)
		if err != nil && !errors.Is(err, ErrStranger) {
			t.Fatal(err)
		}
		return e != nil && e.Seconds != nil
	}
	for user, want := range map[uint32]bool{0: true, 1000: false} { // its process is root's, or the user's who runs this test
		if sees(user) != want {
			t.Errorf("user %d: sees the job %v, want %v", user, !want, want)
		}
	}
	status := h.Path(fmt.Sprintf("/proc/%d/status", process.Process.Pid))
	_ = os.Remove(status)
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for uids, want := range map[string]bool{"1000\t1000\t1000\t1000": true, "1000\t0\t0\t0": false, "1001\t1001\t1001\t1001": false} {
		if write(status, "Name:\tx\nUid:\t"+uids+"\nGid:\t0\n"); sees(1000) != want {
			t.Errorf("a process of %q: user 1000 sees the job %v, want %v", uids, !want, want)
		}
	}
	write(h.Path("/past/job-7.json"), `{"job":"7","uid":1000,"whole":true}`)
	if !sees(1000) || sees(1001) {
		t.Errorf("a record of user 1000: sees %v, user 1001 %v", sees(1000), sees(1001))
	}
	if e, err := ExtractSamples(env, "8", 0, false); e != nil || err != nil {
		t.Errorf("a job that is not there: %v, %v", e, err)
	}
	_ = os.Remove(h.Path("/proc/uptime")) // without it no samples can be read
	for user, want := range map[uint32]bool{1000: false, 1001: true} {
		if _, err := ExtractSamples(env, "7", user, true); errors.Is(err, ErrStranger) != want || err == nil {
			t.Errorf("user %d: %v, refused before the samples are read: want %v", user, err, want)
		}
	}
}
