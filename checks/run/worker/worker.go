// Package worker is the half of the program that may block. It runs checks and commands, and reads
// and writes files, at the supervisor's request.
package worker

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/active"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/inventory"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/run/process"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/topology"
)

// longLived is the age of a worker above which it gives back the memory that its start needed.
const longLived = 20 * time.Second

// Serve is the main function of a worker process. It answers requests until its supervisor closes
// the descriptor, and exits at once when that happens. root is the node's root directory; platforms
// parses the site's profiles, from the file and the text in [wire.Vars]. The result is the exit
// status for os.Exit.
func Serve(root string, platforms func(file string, data []byte) checks.PlatformOf) int {
	unix.CloseOnExec(wire.RequestFd) // a command that continues must not hold the descriptor
	unix.CloseOnExec(wire.ResponseFd)
	unix.CloseOnExec(wire.PageFd)
	w := &worker{
		page: wire.OpenPage(wire.PageFd),
		host: newGuardedHost(root),
		out:  os.NewFile(wire.ResponseFd, "responses"),
		logs: map[string]openedLog{},

		platforms: platforms,
	}
	time.AfterFunc(longLived, process.Rest)
	requests := make(chan *wire.Request, 256)
	var busy atomic.Bool
	go func() {
		var guarded *process.Guarded
		in := bufio.NewReaderSize(os.NewFile(wire.RequestFd, "requests"), 64<<10)
		for {
			req := new(wire.Request)
			err := wire.Read(in, math.MaxUint32, req)
			if errors.Is(err, wire.ErrMessage) {
				fmt.Fprintf(os.Stderr, "read request: %v\n", err)
				os.Exit(2)
			}
			if err != nil {
				// The supervisor has finished or died, so no process needs the remaining work.
				guarded.EndOrphaned()
				if busy.Load() {
					process.EndOthers(&busy)
				}
				process.EndForked()
				os.Exit(0)
			}
			if req.Op == wire.OpGuard {
				guarded = req.Guard
				continue
			}
			requests <- req
		}
	}()
	for req := range requests {
		busy.Store(req.Op != wire.OpOpen && req.Op != wire.OpLock) // only its supervisor can use a lock: nothing to wait for
		resp := w.answer(req)
		busy.Store(false)
		resp.ID, resp.Spent, resp.Worn = req.ID, w.host.Blocked(), resp.Worn || cuda.Worn()
		if calls := w.host.Unanswered(); !resp.Spent { // else the step itself hangs
			resp.Spent, resp.Stuck = len(calls) > 0, append(calls, w.host.SilentCalls()...)
		}
		if err := w.host.Silence(); err != nil {
			resp.Silence = err.Error()
		}
		resp.Locked = probe.LockedCalls()
		w.send(resp)
		if resp.Worn {
			break
		}
	}
	process.EndForked()
	return 0
}

func (w *worker) send(resp *wire.Response) {
	message, err := wire.Append(nil, resp)
	if err == nil && len(message) > wire.MaxMessage && len(resp.Findings) > 0 {
		message, err = fit(resp)
	}
	if err != nil {
		message, _ = wire.Append(nil, &wire.Response{ID: resp.ID, Err: "encode answer: " + err.Error()})
	}
	if _, err := w.out.Write(message); err != nil {
		os.Exit(0) // the supervisor no longer reads
	}
}

// fit returns a message of an answer whose findings are too large for the supervisor: their texts are
// cut, and the least severe ones are dropped. A failure must not be hidden by its size.
func fit(resp *wire.Response) (message []byte, err error) {
	slices.SortStableFunc(resp.Findings, func(a, b checks.Finding) int { return int(b.Severity) - int(a.Severity) })
	for i := range resp.Findings {
		f := &resp.Findings[i]
		for _, text := range []*string{&f.Message, &f.Device.Name, &f.Want, &f.Got} {
			*text = checks.Short(*text)
		}
	}
	for {
		message, err = wire.Append(nil, resp)
		if err != nil || len(message) <= wire.MaxMessage || len(resp.Findings) == 0 {
			return message, err
		}
		resp.Findings = resp.Findings[:len(resp.Findings)/2]
	}
}

func (w *worker) answer(req *wire.Request) (resp *wire.Response) {
	start := time.Now()
	if req.Vars != nil {
		w.setVars(*req.Vars)
	}
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "panic: %v\n%s", p, debug.Stack())
			resp = &wire.Response{Err: fmt.Sprintf("internal error: %v", p)}
		}
		resp.Took = time.Since(start)
	}()
	switch req.Op {
	case wire.OpCheck, wire.OpLast:
		return w.check(req)
	case wire.OpRead:
		return readFile(req.Path)
	case wire.OpAppend:
		return appendFile(w, req)
	case wire.OpExec:
		return w.exec(req)
	case wire.OpFind:
		return find(req.Args)
	case wire.OpList:
		return ListScripts(req.Path, wire.FileTable(wire.LBNLFiles))
	case wire.OpTake:
		return take(req.Path)
	case wire.OpPut:
		return put(req.Path, req.Data, req.Mode, req.MakeDir)
	case wire.OpEvidence:
		return keepEvidence(w.env(req, w.vars.Plain), req)
	case wire.OpJournal:
		return journal(req.Entries)
	case wire.OpFacts:
		return &wire.Response{Facts: w.facts(req)}
	case wire.OpHave:
		return w.have(req)
	case wire.OpTopo:
		return &wire.Response{Topo: topology.AskTopology(w.env(req, w.vars.Plain))}
	case wire.OpParts:
		return listParts(w.env(req, w.vars.Plain), req)
	case wire.OpPart:
		return describePart(w.env(req, w.vars.Plain), req)
	case wire.OpSlurm:
		return w.slurm(req)
	case wire.OpNodes:
		names, err := jobscan.SlurmNodes(w.host, req.Path, req.Name)
		if err != nil {
			return &wire.Response{Err: err.Error()}
		}
		return &wire.Response{Names: names}
	case wire.OpCreate:
		return create(req.Path, req.Data)
	case wire.OpGPUs:
		return w.driverGPUs(req)
	case wire.OpCount:
		return w.count(req)
	case wire.OpJobs:
		return w.listJobs()
	case wire.OpKeep, wire.OpFix, wire.OpRecall, wire.OpForget, wire.OpNote, wire.OpNotes:
		return w.record(req)
	case wire.OpOpen, wire.OpLoad, wire.OpSave, wire.OpLock, wire.OpUnlock, wire.OpStuck:
		return state(w, req)
	case wire.OpAsk:
		return answerPerson(w, req)
	case wire.OpWatch:
		return watch(w, req)
	case wire.OpPrograms:
		return findPrograms(req.Path, req.Args)
	default:
		return &wire.Response{Err: fmt.Sprintf("unknown operation %q", req.Op)}
	}
}

// useAllCPUs gives an active test, which computes, the threads and the memory that this program
// saves elsewhere.
func useAllCPUs() {
	runtime.GOMAXPROCS(runtime.NumCPU())
	debug.SetMemoryLimit(math.MaxInt64)
	debug.SetGCPercent(100)
}

func (w *worker) check(req *wire.Request) *wire.Response {
	info, ok := checks.Lookup(req.Name)
	if !ok {
		return &wire.Response{Err: fmt.Sprintf("no check is called %q", req.Name)}
	}
	c := info.New()
	if err := checks.BindLine(c, req.Args, req.Table); err != nil {
		return &wire.Response{Err: err.Error()}
	}
	vars := w.vars.Plain
	if len(req.Over) > 0 {
		vars = maps.Clone(vars)
		maps.Copy(vars, req.Over)
		if root, ok := req.Over["HOSTROOT"]; ok {
			w.lookAt(root)
		}
	}
	env := w.env(req, vars)
	ctx := context.Background()
	if d := req.Within(info); d > 0 {
		ctx = checks.WithDeadline(ctx, time.Now().Add(d))
	}
	if req.Op == wire.OpCheck {
		if info.Active {
			useAllCPUs()
		}
		findings := checks.Look(ctx, env, req.Name, c)
		checks.Locate(ctx, env, findings)
		return &wire.Response{Findings: append(append(findings, checks.LockedProcesses(env, req.Name)...), env.NotDone()...), Fact: env.Facts()}
	}
	test, ok := c.(checks.Bounded)
	if !ok {
		return &wire.Response{Err: req.Name + " is no active test"}
	}
	resp := &wire.Response{}
	resp.Findings, resp.Known = active.Fresh(env, req.Name, test, req.Only)
	return resp
}

// facts describes the node as far as the library of a lane knows it.
func (w *worker) facts(req *wire.Request) []probe.Fact {
	switch checks.Lane(req.Name) {
	case checks.NVML:
		return inventory.DescribeNVML(w.host, w.doing(req))
	case checks.DCGM:
		return inventory.DescribeDCGM(w.host)
	default:
		return append(inventory.Describe(w.host), inventory.DescribeLibraries(context.Background(), w.host)...)
	}
}

// driverGPUs lists the GPUs that the driver uses by its files, none if it is not loaded. In the
// lane of NVML it lists the GPUs that NVML knows, with their MIG devices.
func (w *worker) driverGPUs(req *wire.Request) *wire.Response {
	if checks.Lane(req.Name) == checks.NVML {
		n, err := nvml.Ask(w.host, nvml.GroupMIG, w.doing(req))
		if err != nil {
			return &wire.Response{Err: err.Error()}
		}
		resp := &wire.Response{MIG: map[string][]string{}}
		for i := range n.GPUs {
			g := &n.GPUs[i]
			resp.MIG[g.PCI] = g.MIG.Value
			if err := cmp.Or(g.Err, g.MIG.Err); err != nil { // the device can be there
				resp.Doubts = append(resp.Doubts, fmt.Sprintf("%s: %v", checks.GPUDevice(g), err))
			}
		}
		return resp
	}
	views, err := nvidia.ReadGPUViews(w.host)
	if err != nil {
		return &wire.Response{Err: err.Error()}
	}
	return &wire.Response{GPUs: views.Used()}
}

func (w *worker) slurm(req *wire.Request) *wire.Response {
	g, err := jobscan.ReadGPUs(w.host, req.Path, req.Name)
	if err != nil {
		return &wire.Response{Err: err.Error()}
	}
	return &wire.Response{Slurm: &g}
}

// have reads one part of the node's inventory.
func (w *worker) have(req *wire.Request) *wire.Response {
	inv, err := inventory.Take(w.host, inventory.Part(req.Name), req.Path)
	if err != nil {
		return &wire.Response{Err: err.Error()}
	}
	return &wire.Response{Have: &inv}
}
