package run

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"runtime"
	"runtime/debug"
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
	"github.com/nhc-gpu/nhc-gpu/checks/topology"
)

// Worker is the main function of a worker process: it answers requests until
// its supervisor closes the descriptor, and leaves at once when that happens.
// root is the node's root directory; platforms reads the site's profiles, of which
// [Vars] has file and text. The exit status is for os.Exit.
func Worker(root string, platforms func(file string, data []byte) checks.PlatformOf) int {
	unix.CloseOnExec(requestFd) // a command that lives on must not hold them
	unix.CloseOnExec(responseFd)
	unix.CloseOnExec(pageFd)
	w := &worker{
		page: openPage(pageFd),
		host: guarded(root),
		out:  os.NewFile(responseFd, "responses"),
		logs: map[string]openedLog{},

		platforms: platforms,
	}
	requests := make(chan *Request, 256)
	var busy atomic.Bool
	go func() {
		var guarded *Guarded
		in := bufio.NewReaderSize(os.NewFile(requestFd, "requests"), 64<<10)
		for {
			line, err := in.ReadBytes('\n')
			if err != nil {
				// The supervisor is done, or dead: whatever runs here is of no
				// use to anybody now.
				guarded.endOrphaned()
				if busy.Load() {
					endOthers(&busy)
				}
				os.Exit(0)
			}
			req := new(Request)
			if err := json.Unmarshal(line, req); err != nil {
				fmt.Fprintf(os.Stderr, "read request: %v\n", err)
				os.Exit(2)
			}
			if req.Op == OpGuard {
				guarded = req.Guard
				continue
			}
			requests <- req
		}
	}()
	for req := range requests {
		busy.Store(true)
		resp := w.answer(req)
		busy.Store(false)
		resp.ID, resp.Spent, resp.Worn = req.ID, w.host.Blocked(), cuda.Worn()
		if calls := w.host.Unanswered(); len(calls) > 0 && !resp.Spent {
			resp.Spent, resp.Stuck = true, calls
		}
		w.send(resp)
		if resp.Worn {
			return 0
		}
	}
	return 0
}

func (w *worker) send(resp *Response) {
	line, err := json.Marshal(resp)
	if err != nil {
		line, _ = json.Marshal(&Response{ID: resp.ID, Err: "encode answer: " + err.Error()})
	}
	if _, err := w.out.Write(append(line, '\n')); err != nil {
		os.Exit(0) // nobody reads any more
	}
}

func (w *worker) answer(req *Request) (resp *Response) {
	start := time.Now()
	if req.Vars != nil {
		w.tell(*req.Vars)
	}
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "panic: %v\n%s", p, debug.Stack())
			resp = &Response{Err: fmt.Sprintf("internal error: %v", p)}
		}
		resp.Took = time.Since(start)
	}()
	switch req.Op {
	case OpCheck, OpLast:
		return w.check(req)
	case OpRead:
		return readFile(req.Path)
	case OpAppend:
		return w.append(req)
	case OpExec:
		return w.exec(req)
	case OpFind:
		return find(req.Args)
	case OpList:
		return listScripts(req.Path, fileTable(lbnlFiles))
	case OpTake:
		return take(req.Path)
	case OpPut:
		return put(req.Path, req.Data, req.MakeDir)
	case OpFacts:
		return &Response{Facts: w.facts(req)}
	case OpHave:
		return w.have(req)
	case OpTopo:
		return &Response{Topo: Only[topology.Topology]{Value: topology.AskTopology(w.env(req, w.vars.Plain))}}
	case OpSlurm:
		return w.slurm(req)
	case OpNodes:
		names, err := jobscan.SlurmNodes(w.host, req.Path, req.Name)
		if err != nil {
			return &Response{Err: err.Error()}
		}
		return &Response{Jobs: names}
	case OpCreate:
		return create(req.Path, req.Data)
	case OpGPUs:
		return w.driverGPUs(req)
	case OpCount:
		return w.count(req)
	case OpJobs:
		return w.jobs()
	case OpKeep, OpRecall, OpForget, OpNote, OpNotes:
		return w.record(req)
	case OpOpen, OpLoad, OpSave, OpLock, OpUnlock, OpBury:
		return state(req)
	case OpAsk:
		return w.ask(req)
	case OpPrograms:
		return programs(req.Path)
	default:
		return &Response{Err: fmt.Sprintf("unknown operation %q", req.Op)}
	}
}

// useAllCPUs gives an active test, which computes, the threads and the memory that this
// program does without elsewhere.
func useAllCPUs() {
	runtime.GOMAXPROCS(runtime.NumCPU())
	debug.SetMemoryLimit(math.MaxInt64)
	debug.SetGCPercent(100)
}

func (w *worker) check(req *Request) *Response {
	info, ok := checks.Lookup(req.Name)
	if !ok {
		return &Response{Err: fmt.Sprintf("no check is called %q", req.Name)}
	}
	c := info.New()
	var err error
	if req.Table != nil {
		err = checks.BindTable(c, req.Table)
	} else {
		err = checks.Bind(c, req.Args)
	}
	if err != nil {
		return &Response{Err: err.Error()}
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
	if d := req.within(info); d > 0 {
		ctx = checks.WithDeadline(ctx, time.Now().Add(d))
	}
	if req.Op == OpCheck {
		if info.Active {
			useAllCPUs()
		}
		findings := checks.Look(ctx, env, req.Name, c)
		checks.Locate(ctx, env, findings)
		return &Response{Findings: append(findings, env.NotDone()...)}
	}
	test, ok := c.(checks.Bounded)
	if !ok {
		return &Response{Err: req.Name + " is no active test"}
	}
	resp := &Response{}
	resp.Findings, resp.Known = active.Fresh(env, req.Name, test, req.Only)
	return resp
}

// facts describes the node as far as the library of a lane tells.
func (w *worker) facts(req *Request) []probe.Fact {
	switch checks.Lane(req.Name) {
	case checks.NVML:
		return inventory.DescribeNVML(w.host, w.doing(req))
	case checks.DCGM:
		return inventory.DescribeDCGM(w.host)
	default:
		return append(inventory.Describe(w.host), inventory.DescribeLibraries(w.host, context.Background())...)
	}
}

// driverGPUs are the GPUs by the files of the driver. A driver that is not loaded
// has none. In the lane of NVML they are those that it knows, with their MIG devices.
func (w *worker) driverGPUs(req *Request) *Response {
	if checks.Lane(req.Name) == checks.NVML {
		n, err := nvml.Ask(w.host, nvml.GroupMIG, w.doing(req))
		if err != nil {
			return &Response{Err: err.Error()}
		}
		resp := &Response{MIG: map[string][]string{}}
		for i := range n.GPUs {
			resp.MIG[n.GPUs[i].PCI] = n.GPUs[i].MIG.Value
		}
		return resp
	}
	views, err := nvidia.ReadGPUViews(w.host)
	if err != nil {
		return &Response{Err: err.Error()}
	}
	return &Response{GPUs: views.Driver}
}

func (w *worker) slurm(req *Request) *Response {
	g, err := jobscan.ReadGPUs(w.host, req.Path, req.Name)
	if err != nil {
		return &Response{Err: err.Error()}
	}
	return &Response{Slurm: Only[jobscan.SlurmGPUs]{Value: &g}}
}

// have reads one part of the node's inventory.
func (w *worker) have(req *Request) *Response {
	inv, err := inventory.Take(w.host, inventory.Part(req.Name), req.Path)
	if err != nil {
		return &Response{Err: err.Error()}
	}
	return &Response{Have: Only[inventory.Inventory]{Value: &inv}}
}
