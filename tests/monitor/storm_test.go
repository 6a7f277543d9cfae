package monitor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// stormShare is the share of one CPU that a storm may cost.
const stormShare = 0.05

// storm makes a storm for a time, and returns what the monitor, its workers and its runs have cost as a share of one
// CPU. It waits until the storm has been handled.
func (n *node) storm(length time.Duration, blow func(end time.Time)) {
	n.t.Helper()
	before, began := n.cpu(), time.Now()
	runs, updates := n.ledger().Runs, n.updates()
	blow(began.Add(length))
	passed := time.Since(began)
	share := (n.cpu() - before).Seconds() / passed.Seconds()
	l := n.ledger()
	n.t.Logf("%.2f %% of one CPU over %s, %d runs, %d messages lost, %d changes of the node", 100*share, passed.Round(time.Second), l.Runs-runs, l.Lost, n.updates()-updates)
	if share > stormShare {
		n.t.Errorf("the storm has cost %.1f %% of one CPU, want at most %.0f %%: %v", 100*share, 100*stormShare, n.processes())
	}
	if most := 10; l.Runs-runs > most {
		n.t.Errorf("%d runs, want at most %d", l.Runs-runs, most)
	}
	if got := n.updates() - updates; got > 1 {
		n.t.Errorf("the node was changed %d times, want one drain", got)
	}
}

// stormLength is the length of a storm.
const stormLength = 15 * time.Second

const drained = "IDLE+DRAIN NHC: gpu3 reset due 0000:13:00.0: reset the GPU (check_gpu_recovery) [gpu.recovery.reset]"

// 800,000 lines a minute, every tenth of them an Xid: the node is drained once, and at once.
func TestKernelStorm(t *testing.T) {
	t.Parallel()
	n := newNode(t, "check_gpu_recovery")
	n.start(0)
	n.gpus("3 field 230 = 1")
	n.storm(stormLength, func(end time.Time) {
		const pace, part = 100 * time.Millisecond, 800_000 / 600
		lines := make([]string, part)
		for i := range lines {
			if lines[i] = "usb 1-1: device descriptor read/64, error -71"; i%10 == 0 {
				lines[i] = fmt.Sprintf("NVRM: Xid (PCI:0000:13:00): 31, pid=%d, name=python, MMU Fault", i)
			}
		}
		for at := time.Now(); at.Before(end); at = at.Add(pace) {
			time.Sleep(time.Until(at))
			n.kernel(lines...)
		}
	})
	if n.slurm() != drained {
		t.Errorf("the node is %q, want it drained during the storm", n.slurm())
	}
	n.await("end of the storm", func() bool { return n.ledger().Mark.Next == n.seq })
	if l := n.ledger(); l.Lost != 0 {
		t.Errorf("%d messages lost of a file", l.Lost)
	}
}

// An interface and an InfiniBand port lose and gain their links without end.
func TestLinkStorm(t *testing.T) {
	t.Parallel()
	need.Program(t, "ip")
	n := newNode(t, "check_ib_ports")
	n.must(os.MkdirAll(filepath.Join(n.root, "sys/class/net/flap0/device"), 0o755))
	n.start(syscall.CLONE_NEWNET)
	inside := func(batch string) {
		cmd := exec.Command("nsenter", "--net", "--target", fmt.Sprint(n.cmd.Process.Pid), "ip", "-batch", "-")
		cmd.Stdin = strings.NewReader(batch)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("ip: %v\n%s", err, out)
		}
	}
	inside("link add flap0 type veth peer name flap1\nlink set flap1 up\n")
	set := func(name, text string) { // the file stays the same, as in sysfs
		n.must(os.WriteFile(filepath.Join(n.root, "sys/class/infiniband/mlx5_3/ports/1", name), []byte(text), 0o644))
	}
	n.storm(stormLength, func(end time.Time) {
		flaps := 0
		for ; time.Now().Before(end); flaps++ {
			inside(strings.Repeat("link set flap0 down\nlink set flap0 up\n", 50))
			down := flaps%2 == 0
			set("state", map[bool]string{true: "1: DOWN\n", false: "4: ACTIVE\n"}[down])
			set("phys_state", map[bool]string{true: "2: Polling\n", false: "5: LinkUp\n"}[down])
			time.Sleep(20 * time.Millisecond)
		}
		t.Logf("%d changes of the interface, %d of the port", 100*flaps, flaps)
	})
	if want := "event link: flap0 "; !strings.Contains(n.out.String(), want) || n.ledger().Runs == 0 {
		t.Errorf("%d runs, no %q in\n%s", n.ledger().Runs, want, n.out.String())
	}
}

// The values of one GPU time out while a job runs: it is asked seldom, its checks run, and the others have samples.
func TestSlowGPU(t *testing.T) {
	t.Parallel()
	n := newNode(t, "check_gpu_recovery")
	n.gpus("3 nvmlDeviceGetFieldValues error 10", "3 nvmlDeviceGetFieldValues late 5000")
	n.job("4711", 3)
	n.start(0)
	n.storm(stormLength, func(end time.Time) { time.Sleep(time.Until(end)) })
	n.await("run", func() bool { return n.ledger().Runs > 0 })
	if got := strings.Count(n.out.String(), "event gpu: gpu3: NVML has taken 5"); got != 1 || len(n.ledger().Silent) > 0 {
		t.Errorf("reported %d times: %+v\n%s", got, n.ledger(), n.out.String())
	}
}

// One GPU answers nothing: each call of NVML times out or hangs. The monitor says so once, the node is drained for a
// call that hangs, and no processes and files pile up.
func TestSilentGPU(t *testing.T) {
	tier.All(t)
	t.Parallel()
	for name, tt := range map[string]struct {
		lines        []string
		event, state string
		silent       int
	}{
		"each call times out": {[]string{"3 * error 10", "3 * late 5000"}, "event gpu: gpu3: it gives no answer", "IDLE", 0},
		"each call hangs":     {[]string{"3 * hang"}, "watch gpus: no answer within 45", "IDLE+DRAIN NHC: gpu3 hung 0000:13:00.0: reboot (check_gpu_recovery) [probe.hung]", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "check_gpu_recovery")
			n.gpus(tt.lines...)
			n.job("4711", 3)
			n.start(0)
			const length = 100 * time.Second // the driver is asked again after 45 s
			n.storm(length, func(end time.Time) { time.Sleep(time.Until(end)) })
			if got := strings.Count(n.out.String(), tt.event); got != 1 || n.slurm() != tt.state || len(n.ledger().Silent) != tt.silent {
				t.Errorf("reported %d times, the node is %s, %+v\n%s", got, n.slurm(), n.ledger(), n.out.String())
			}
			if list := names(n.processes()); len(list) > 9 {
				t.Errorf("processes pile up: %v", list)
			}
			if files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.cmd.Process.Pid)); err != nil || len(files) > 60 {
				t.Errorf("%d open files, %v", len(files), err)
			}
		})
	}
}
