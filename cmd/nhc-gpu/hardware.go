package main

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cpu"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/inventory"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
)

// presetHardware sets the variables that LBNL NHC's check_hw_* leave behind for
// the lines below them, where a line speaks of one: the sample configuration has
// check_ps_loadavg $((2*HW_CORES)). A worker reads them.
func (r *oneRun) presetHardware(conf []byte) {
	if !bytes.Contains(conf, []byte("HW_")) {
		return
	}
	var cpus cpu.CPUs // an unreadable figure is 0, as in LBNL NHC
	var memory probe.Memory
	reqs := []*run.Request{
		{Op: run.OpHave, Name: string(inventory.PartCPU), Line: "count the processors"},
		{Op: run.OpHave, Name: string(inventory.PartMemory), Line: "read the size of the memory"},
	}
	r.Pool.SetVars(r.Set.WorkerVars()) // HOSTROOT
	r.Pool.Do(r.Ctx, checks.Local, reqs, func(*run.Request) time.Duration { return r.Budget.Reading(time.Now()) }, func(q *run.Request, o run.Outcome) {
		resp, err := o.AnswerTo(q.Line)
		switch {
		case err != nil:
			r.Warn(fmt.Errorf("%w: HW_* are 0", err))
		case resp.Have.Value != nil && q == reqs[0]:
			cpus = resp.Have.Value.CPUs
		case resp.Have.Value != nil:
			memory = resp.Have.Value.Memory
		}
	})
	var text strings.Builder
	for name, value := range map[string]uint64{
		"HW_SOCKETS": uint64(cpus.Sockets), "HW_CORES": uint64(cpus.Cores), "HW_THREADS": uint64(cpus.Threads),
		"HW_RAM_TOTAL": memory.Total, "HW_RAM_FREE": memory.Free,
		"HW_SWAP_TOTAL": memory.SwapTotal, "HW_SWAP_FREE": memory.SwapFree,
	} {
		old := r.Set.Get(name) // 0 where bash has read the library of scripts
		if old != "" && old != "0" || !bytes.Contains(conf, []byte(name)) {
			continue
		}
		number := strconv.FormatUint(value, 10)
		r.Set.Put(name, number, false)
		text.WriteString(name + "=" + number + "\n")
	}
	if r.shell != nil && r.dressed { // it has been told the settings before
		if err := r.shell.Set(text.String(), r.Budget.End); err != nil {
			r.Warn(err)
		}
	}
}
