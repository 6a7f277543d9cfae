package sweep

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

// item is a check item of an EAS file: what it is here.
type item struct {
	stage sweep.Stage
	line  string // of nhc.conf, in stage node
	op    string // a collective, in stages pairs and groups
	ring  int    // nodes of a ring over TCP; 0: all
	ends  bool   // only with the head and the tail of the list
}

// items are the check items, by their names in an EAS file. Those that end in _2 are between two nodes,
// in _1 on one node, and the others on all nodes at once.
var items = map[string]item{
	"gemm_flops":           {stage: sweep.StageNode, line: "check_gpu_gemm"},
	"kernel_launch":        {stage: sweep.StageNode, line: "check_gpu_launch"},
	"all_reduce_1":         {stage: sweep.StageNode, line: "check_nccl all_reduce"},
	"comp_comm_overlap":    {stage: sweep.StageNode, line: "check_comp_comm_overlap"},
	"network_connectivity": {stage: sweep.StageReach, ends: true},
	"pytorch_gloo_2":       {stage: sweep.StageTCP, ring: 2},
	"pytorch_gloo":         {stage: sweep.StageTCP},
	"all_reduce_2":         {stage: sweep.StagePairs, op: "all_reduce"},
	"all_to_all_2":         {stage: sweep.StagePairs, op: "all_to_all"},
	"all_gather_2":         {stage: sweep.StagePairs, op: "all_gather"},
	"multi_all_reduce_2":   {stage: sweep.StagePairs, op: "multi_all_reduce"},
	"all_reduce":           {stage: sweep.StageGroups, op: "all_reduce"},
	"all_to_all":           {stage: sweep.StageGroups, op: "all_to_all"},
	"all_gather":           {stage: sweep.StageGroups, op: "all_gather"},
	"multi_all_reduce":     {stage: sweep.StageGroups, op: "multi_all_reduce"},
}

// eas is an EAS file.
type eas struct {
	items  []string
	limit  time.Duration // of all checks; 0: none
	action string        // what EAS does about a failure
	notes  []string      // what of it is not done here
}

// parseEAS parses an EAS file: {"aimaster": {"sanity_check": {...}}}, or the inner object alone.
func parseEAS(data []byte) (e eas, err error) {
	type checkList struct {
		Action string      `json:"fail_action"`
		Items  string      `json:"micro_benchmarks"`
		Limit  json.Number `json:"timeout"` // minutes
	}
	type master struct {
		Sanity  *checkList `json:"sanity_check"`
		Runtime *checkList `json:"runtime_check"`
	}
	var file struct {
		master
		Master *master `json:"aimaster"`
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&file); err != nil {
		return e, fmt.Errorf("want an object of JSON: %w", err)
	}
	m := &file.master
	if file.Master != nil {
		m = file.Master
	}
	if m.Sanity == nil {
		return e, errors.New("it has no sanity_check")
	}
	e.action = m.Sanity.Action
	if m.Sanity.Limit != "" {
		minutes, err := m.Sanity.Limit.Float64()
		if err != nil || minutes <= 0 || minutes > 7*24*60 {
			return e, fmt.Errorf("timeout %s: want minutes, from 1 to 10080", m.Sanity.Limit)
		}
		e.limit = time.Duration(minutes * float64(time.Minute))
	}
	var known []string
	for name := range items {
		known = append(known, name)
	}
	for name := range strings.SplitSeq(m.Sanity.Items, ",") {
		name = strings.ToLower(strings.TrimSpace(name))
		if name == "" || slices.Contains(e.items, name) {
			continue
		}
		if _, ok := items[name]; !ok {
			return e, fmt.Errorf("there is no check item %q%s", name, spell.DidYouMean(name, known))
		}
		e.items = append(e.items, name)
	}
	if len(e.items) == 0 {
		return e, errors.New("micro_benchmarks of sanity_check is empty: want names separated by commas, as gemm_flops,all_reduce_2")
	}
	if m.Runtime != nil && m.Runtime.Items != "" {
		e.notes = append(e.notes, fmt.Sprintf("runtime_check (%s) is about running jobs: nhc-gpu monitor watches them", m.Runtime.Items))
	}
	if e.action != "" {
		e.notes = append(e.notes, fmt.Sprintf("fail_action %q is not carried out: --drain drains the suspects", e.action))
	}
	return e, nil
}

// stages returns the stages that have items, in order.
func (e *eas) stages() (list []sweep.Stage) {
	for _, s := range sweep.Stages {
		if slices.ContainsFunc(e.items, func(name string) bool { return items[name].stage == s }) {
			list = append(list, s)
		}
	}
	return list
}

// apply sets what a stage tests.
func (e *eas) apply(stage sweep.Stage, o *sweep.PlanOptions) {
	for _, name := range e.items {
		i := items[name]
		if i.stage != stage {
			continue
		}
		switch stage {
		case sweep.StageNode:
			o.Lines = append(o.Lines, i.line)
		case sweep.StageReach:
			o.Ends = i.ends
		case sweep.StageTCP:
			o.NoStream = true
			o.RingSizes = append(o.RingSizes, i.ring)
		case sweep.StagePairs:
			o.Ops = append(o.Ops, i.op)
		case sweep.StageGroups:
			o.Ops, o.GroupSizes = append(o.Ops, i.op), []int{0}
		}
	}
}

// The results of an item.
const (
	succeeded = "Succeeded"
	failed    = "Failed"
)

// judge returns the result of each item. An item that could not be tested has failed, with the reason.
func (e *eas) judge(r *sweep.Report) (list []sweep.EASResult) {
	for _, name := range e.items {
		res := sweep.EASResult{Name: name, Result: failed}
		if res.Text = items[name].failure(r); res.Text == "" {
			res.Result = succeeded
		}
		list = append(list, res)
	}
	return list
}

// failure returns why an item has failed, "" if it has not.
func (i item) failure(r *sweep.Report) string {
	at := slices.IndexFunc(r.Stages, func(s sweep.StageReport) bool { return s.Stage == i.stage })
	switch {
	case at < 0:
		return "not run: " + orElse(r.Interrupted, "no node could be tested")
	case r.Stages[at].Skipped != "":
		return "not run: " + r.Stages[at].Skipped
	case r.Stages[at].Ended.IsZero():
		return "not finished: " + orElse(r.Interrupted, "the sweep has ended before")
	}
	stage := &r.Stages[at]
	for _, s := range stage.Suspects {
		if i.concerns(s.Ops) {
			return s.Text
		}
	}
	ran, unable := 0, ""
	for _, x := range stage.Results {
		if !i.isOf(&x.Task) {
			continue
		}
		if x.Fault == sweep.FaultUnable {
			unable = x.Text
		} else {
			ran++
		}
	}
	if ran == 0 {
		return "not run: " + orElse(unable, "no node has what it tests")
	}
	return ""
}

// concerns reports whether a suspicion that some collectives or checks show is one of the item.
func (i item) concerns(ops []string) bool {
	return len(ops) == 0 || i.op == "" && i.line == "" || slices.Contains(ops, i.op) || i.line != "" && slices.Contains(ops, i.line) ||
		i.line != "" && slices.Contains(ops, strings.Fields(i.line)[0])
}

// isOf reports whether a task is one of the item.
func (i item) isOf(t *sweep.Task) bool {
	switch i.stage {
	case sweep.StageNode:
		return t.Op == i.line
	case sweep.StageTCP:
		return t.Kind == sweep.KindRing && (i.ring == 0 && len(t.Nodes) > 2 || len(t.Nodes) == i.ring || i.ring == 0)
	case sweep.StagePairs, sweep.StageGroups:
		return t.Op == i.op
	}
	return true
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}
