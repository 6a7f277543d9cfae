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

// The log of Xids is read by the local worker, which must never load NVML: a
// driver that hangs is what the log is about. Where it has found something, a
// process of its own asks the driver how the GPUs are now; one that does not
// answer leaves the log to speak for itself.

// StatesName is the first word of a process that prints what the driver says.
const StatesName = "states"

// statesLimit bounds the question to the driver. NVML answers within a second
// on a node that works, also where no process keeps the driver awake.
const statesLimit = 4 * time.Second

// statesWithin is that in a run of so long, 0 for ever: the check that asks has half
// of it, and something to say where there is no answer.
func statesWithin(timeout time.Duration) time.Duration {
	if timeout <= 0 {
		return statesLimit
	}
	return min(statesLimit, timeout*2/5)
}

// gpuStates asks the driver, at most once a run. nil: nobody knows.
func gpuStates(ctx context.Context, w *worker, vars map[string]string, limit time.Duration) []checks.GPUState {
	if w.states != nil || olderThan(StatesName, statesLimit+time.Second) {
		return w.states
	}
	w.states = []checks.GPUState{}
	if nvml.MayStart(w.host) != nil {
		return w.states
	}
	host := probe.NewHost("/") // also where the checks look at another node
	x := host.Run(ctx, probe.Command{
		Argv:    []string{wire.WorkerName, StatesName, w.root, vars[probe.SettingNVML], vars[probe.SettingLibraryDirs]},
		Program: "/proc/self/exe", Timeout: limit, Output: 1 << 20,
	})
	if x.Status != 0 || json.Unmarshal(x.Output, &w.states) != nil {
		w.states = []checks.GPUState{}
	}
	return w.states
}

// olderThan says whether a process of this name of an earlier run still hangs: another would
// only hang beside it. One that is younger belongs to a run that is asking now,
// one of somebody else is none of ours.
func olderThan(name string, age time.Duration) bool {
	procs, err := probe.Processes(probe.NewHost("/"))
	if err != nil {
		return true
	}
	for _, p := range procs {
		if p.UID != uint32(os.Geteuid()) || !strings.HasPrefix(p.Args, wire.WorkerName+" "+name) || !probe.OwnAccord(probe.NewHost("/"), p.PID) {
			continue
		}
		if st, err := process.ReadStat(p.PID); err == nil && sinceStart(st.Start) > age {
			return true
		}
	}
	return false
}

// sinceStart is how long ago a process was started, in ticks after the boot.
func sinceStart(start uint64) time.Duration {
	var up unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) // it always can
	return time.Duration(up.Nano()) - time.Duration(start)*(time.Second/probe.ClockTicks)
}

// init keeps what hangs on the first thread: a killed process of which another one
// hangs has no name any more by which a later run would know it.
func init() {
	if len(os.Args) > 1 && os.Args[0] == wire.WorkerName && (os.Args[1] == StatesName || os.Args[1] == PortsName) {
		runtime.LockOSThread()
	}
}

// PrintStates is the main function of that process. Its standard output is for
// the answer alone: a C library may print, too, and does so elsewhere.
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
