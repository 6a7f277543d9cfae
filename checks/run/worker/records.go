package worker

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/gpustate"
	"github.com/nhc-gpu/nhc-gpu/checks/jobs"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/xid"
)

// count reads the counters of devices: from the library in a vendor's lane, from the kernel in the
// local one. A file that cannot be read is a doubt.
func (w *worker) count(req *wire.Request) *wire.Response {
	env := w.env(req, w.vars.Plain)
	if checks.Lane(req.Name) == checks.NVML {
		n, err := nvml.Ask(w.host, jobs.CountGroups, w.doing(req))
		if err != nil {
			return &wire.Response{Doubts: []string{err.Error()}}
		}
		return &wire.Response{Counters: jobs.GPUCounters(n), Findings: gpustate.LostGPUs(env)}
	}
	resp := &wire.Response{}
	doubt := func(err error) {
		if err != nil {
			resp.Doubts = append(resp.Doubts, err.Error())
		}
	}
	var err error
	if req.Name != "xids" {
		resp.Counters, err = jobs.NodeCounters(w.host)
		doubt(err)
	}
	var mark checks.LogMark
	if req.Mark != nil {
		mark = *req.Mark
	}
	var end checks.LogMark
	resp.Xids, end, err = xid.Since(env, mark)
	doubt(err)
	if err == nil {
		resp.Mark = &end
	}
	return resp
}

// record reads or writes the records that runs leave for each other.
func (w *worker) record(req *wire.Request) *wire.Response {
	resp := &wire.Response{}
	var err error
	if req.Timeout > 0 { // the rest is for the spare directory
		w.host.SetUntil(time.Now().Add(req.Timeout * 4 / 5))
		defer w.host.SetUntil(time.Time{})
	}
	journal := probe.Journal{Name: req.Name, Most: req.Most}
	switch req.Op {
	case wire.OpKeep:
		keep := w.host.Keep
		if req.Whole {
			keep = w.host.KeepWhole
		}
		if err = keep(req.Name, json.RawMessage(req.Data)); errors.As(err, new(*probe.SpareError)) {
			resp.Kind = wire.Elsewhere
		}
	case wire.OpFix:
		err = w.host.KeepOnDisk(req.Name, json.RawMessage(req.Data))
	case wire.OpForget:
		err = probe.Forget(w.host, req.Name)
	case wire.OpNote:
		err = probe.AppendLine(w.host, journal, req.Data)
	case wire.OpNotes:
		resp.Lines, err = probe.JournalLines(w.host, journal)
	default:
		resp.Records, err = probe.Records(w.host, req.Name)
		if errors.Is(err, probe.ErrSilent) {
			resp.Kind = wire.Silent
			if slices.ContainsFunc(resp.Records, func(r probe.Record) bool { return r.Name == req.Name }) {
				err = nil // the record itself, of a spare directory, not only some of several
			}
		}
	}
	if err != nil {
		return &wire.Response{Kind: resp.Kind, Err: err.Error()}
	}
	return resp
}

// listJobs lists the jobs that have a slurmstepd on the node.
func (w *worker) listJobs() *wire.Response {
	running, err := jobscan.RunningJobs(w.host)
	if err != nil {
		return &wire.Response{Err: err.Error()}
	}
	return &wire.Response{Names: slices.Sorted(maps.Keys(running))}
}
