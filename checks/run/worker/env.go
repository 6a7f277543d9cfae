package worker

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/gpustate"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// worker has the data that a worker process needs for more than one request.
type worker struct {
	host *probe.Host
	out  io.Writer
	page wire.Page
	logs map[string]openedLog

	vars      wire.Vars           // last received
	root      string              // of host
	states    []checks.GPUState   // see askStates
	ports     []checks.PortAnswer // see askPorts
	asked     map[string]bool
	watches   map[string]watcher // the sources of events that it listens to
	serves    bool               // see serveOwners
	notes     []string           // see note
	platforms func(file string, data []byte) checks.PlatformOf
}

// note reports something about a source with its next answer: the monitor prints it for the journal.
func (w *worker) note(format string, args ...any) {
	w.notes = append(w.notes, fmt.Sprintf(format, args...))
}

// setVars sets the variables of the run. Another root is another node.
func (w *worker) setVars(v wire.Vars) {
	w.vars = v
	w.lookAt(v.Root)
	w.prepareHost()
	probe.SetLibraries(w.host, v.Plain)
}

// lookAt changes to the node below a root: an assignment in a line of nhc.conf applies to the lines
// after it, even before the worker gets the new variables.
func (w *worker) lookAt(root string) {
	if root != w.root {
		w.host, w.root, w.states = newGuardedHost(root), root, nil
		w.ports, w.asked = nil, nil
		w.prepareHost()
	}
}

// prepareHost sets what reads of the node need of the variables.
func (w *worker) prepareHost() {
	w.host.SetPast(w.vars.Past, w.vars.Spare)
	w.host.SetState(w.vars.State)
	w.host.SetStuck(w.vars.Stuck)
}

// newGuardedHost returns the node below a root. Reading it never loads a driver that was unloaded.
func newGuardedHost(root string) *probe.Host {
	h := probe.NewHost(root)
	gpustate.GuardDriver(h)
	return h
}

// env returns the environment of a check.
func (w *worker) env(req *wire.Request, vars map[string]string) *checks.Env {
	probe.SetPasswd(w.host, vars["PASSWD_DATA_SRC"])
	probe.SetLibraries(w.host, vars)
	w.host.SetDoing(w.doing(req))
	w.host.SetEnviron(append(slices.Clip(w.vars.Environ), req.Env...))
	env := &checks.Env{
		Host:     w.host,
		Line:     req.Line,
		Timeout:  req.Timeout,
		Vars:     vars,
		Arrays:   w.vars.Arrays,
		Job:      w.vars.Job,
		Periodic: w.vars.Period,
		Learn:    w.vars.Learn,
		DryRun:   w.vars.DryRun,
		Part:     w.vars.Part,
		Doing:    w.doing(req),
		Slurm:    w.vars.Slurm,

		WantedGPUs: w.vars.WantedGPUs,
	}
	env.GPUStates = func() []checks.GPUState {
		env.At("ask NVML for the state of the GPUs")
		return askStates(context.Background(), w, vars, boundStates(req.Timeout))
	}
	env.AskPorts = func(ask []checks.PortAnswer, limit time.Duration) []checks.PortAnswer {
		return askPorts(context.Background(), w, ask, limit)
	}
	if w.platforms != nil {
		env.Platform = w.platforms(w.vars.ProfilesFile, w.vars.Profiles)
	}
	return env
}

// doing returns a function that announces the worker's next call for a request.
func (w *worker) doing(req *wire.Request) func(string) {
	return func(what string) { w.page.Write(req.ID, what) }
}
