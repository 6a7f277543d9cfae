package worker

import (
	"context"
	"encoding/json"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/gpu"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// The local worker reads the log of Xids. It must never load NVML, because a driver that hangs
// writes to that log, too. If the log has errors, a separate process reads the state of the GPUs
// from the driver. If that does not answer, the verdict relies on the log alone.

// StatesName is argv[1] of a process that prints the driver's state of each GPU.
const StatesName = "states"

// statesLimit bounds the wait for the driver. On a healthy node NVML answers within a second, even
// if no process keeps the driver initialized.
const statesLimit = 4 * time.Second

// boundStates returns that limit for a run with this timeout, 0 for no timeout: half of the
// check's time, so that the check can still report if there is no answer.
func boundStates(timeout time.Duration) time.Duration {
	if timeout <= 0 {
		return statesLimit
	}
	return min(statesLimit, timeout*2/5)
}

// askStates reads the states from the driver, at most once a run; nil means unknown.
func askStates(ctx context.Context, w *worker, vars map[string]string, limit time.Duration) []checks.GPUState {
	if w.states != nil || hasOlder(StatesName, statesLimit+time.Second) {
		return w.states
	}
	w.states = []checks.GPUState{}
	if nvml.MayStart(w.host) != nil {
		return w.states
	}
	host := probe.NewHost("/") // also if the checks inspect another node
	x := host.Run(ctx, probe.Command{
		Argv:    []string{wire.WorkerName, StatesName, w.root, vars[probe.SettingNVML], vars[probe.SettingLibraryDirs]},
		Program: "/proc/self/exe", Timeout: limit, Output: 1 << 20,
	})
	if x.Status != 0 || json.Unmarshal(x.Output, &w.states) != nil {
		w.states = []checks.GPUState{}
	}
	return w.states
}

// hasOlder reports whether a process of this name of an earlier run still hangs, since another
// would only hang beside it. It ignores a younger process, which belongs to a current run, and
// processes of other users.
func hasOlder(name string, age time.Duration) bool {
	h := probe.NewHost("/")
	procs, err := probe.ProcessesOf(h, func(p probe.Process) bool { return p.UID == uint32(os.Geteuid()) && probe.OwnAccord(h, p.PID) })
	if err != nil {
		return true
	}
	for _, p := range procs {
		if !strings.HasPrefix(p.Args, wire.WorkerName+" "+name) {
			continue
		}
		if st, err := process.ReadStat(p.PID); err == nil && computeAge(st.Start) > age {
			return true
		}
	}
	return false
}

// computeAge returns the time since a process started; start is in ticks after the boot.
func computeAge(start uint64) time.Duration {
	return probe.SinceBoot() - time.Duration(start)*(time.Second/probe.ClockTicks)
}

// init keeps the blocked calls on the first thread. If another thread hangs, the killed process
// loses its name and a later run cannot recognize it.
func init() {
	if len(os.Args) > 1 && os.Args[0] == wire.WorkerName && (os.Args[1] == StatesName || os.Args[1] == PortsName) {
		runtime.LockOSThread()
	}
}

// PrintStates is the main function of that process. Its standard output has only the answer; the
// output of C libraries is redirected.
func PrintStates(root, library, dirs string) int {
	fd, err := unix.Dup(1)
	if err != nil || unix.Dup3(2, 1, 0) != nil {
		return 1
	}
	out := os.NewFile(uintptr(fd), "answer")
	host := probe.NewHost(root)
	probe.SetLibraries(host, map[string]string{probe.SettingNVML: library, probe.SettingLibraryDirs: dirs})
	n, err := nvml.Ask(host, gpu.StateGroups, func(string) {})
	if err != nil {
		return 1
	}
	if json.NewEncoder(out).Encode(gpu.StatesOf(n)) != nil {
		return 1
	}
	return 0
}
