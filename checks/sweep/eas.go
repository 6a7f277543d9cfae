package sweep

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep/eas"
)

// EAS carries out the check items of a service description of EAS.
type EAS struct{ eas.File }

// easItem is how a sweep carries out a check item.
type easItem struct {
	name  string
	stage Stage
	kind  Kind
	op    string // a collective, or a line of nhc.conf
	nodes int    // that run it together; 0: all
}

// easItems has the items of sanity_check. A name with _1 or _2 is of one or two nodes, others are of
// all.
var easItems = []easItem{
	{"gemm_flops", StageNode, KindCheck, "check_gpu_gemm", 1},
	{"kernel_launch", StageNode, KindCheck, "check_gpu_launch", 1},
	{"all_reduce_1", StageNode, KindCheck, "check_nccl all_reduce", 1},
	{"comp_comm_overlap", StageNode, KindCheck, "check_comp_comm_overlap", 1},
	{"all_reduce_2", StagePairs, KindNCCL, "all_reduce", 2},
	{"all_to_all_2", StagePairs, KindNCCL, "all_to_all", 2},
	{"all_gather_2", StagePairs, KindNCCL, "all_gather", 2},
	{"multi_all_reduce_2", StagePairs, KindNCCL, "multi_all_reduce", 2},
	{"all_reduce", StageGroups, KindNCCL, "all_reduce", 0},
	{"all_to_all", StageGroups, KindNCCL, "all_to_all", 0},
	{"all_gather", StageGroups, KindNCCL, "all_gather", 0},
	{"multi_all_reduce", StageGroups, KindNCCL, "multi_all_reduce", 0},
	{"pytorch_gloo_2", StageTCP, KindRing, "", 2},
	{"network_connectivity", StageReach, KindEcho, "", 2},
}

// The results of a check item.
const (
	EASSucceeded = "Succeeded"
	EASFailed    = "Failed"
	EASWatched   = "Watched" // c4d: a sweep does not run it
)

// ParseEAS reads a service description, see [eas.Parse].
func ParseEAS(data []byte) (*EAS, error) {
	file, err := eas.Parse(data, easNames())
	if err != nil {
		return nil, err
	}
	return &EAS{*file}, nil
}

func easNames() (names []string) {
	for _, item := range easItems {
		names = append(names, item.name)
	}
	return names
}

// items returns the items of sanity_check in the order of the file.
func (e *EAS) items() (items []easItem) {
	for _, name := range e.Sanity.Benchmarks {
		i := slices.IndexFunc(easItems, func(item easItem) bool { return item.name == name })
		items = append(items, easItems[i])
	}
	return items
}

// Stages returns the stages that carry the check items out.
func (e *EAS) Stages() (stages []Stage) {
	items := e.items()
	for _, s := range Stages {
		if slices.ContainsFunc(items, func(i easItem) bool { return i.stage == s }) {
			stages = append(stages, s)
		}
	}
	return stages
}

// Options sets the options of a stage so that it carries out the check items, and nothing else.
func (e *EAS) Options(stage Stage, o PlanOptions) PlanOptions {
	o.Lines, o.Ops = nil, nil
	for _, item := range e.items() {
		switch {
		case item.stage != stage:
		case stage == StageNode:
			o.Lines = append(o.Lines, item.op)
		case stage == StagePairs || stage == StageGroups:
			o.Ops = append(o.Ops, item.op)
		}
	}
	switch stage {
	case StageReach:
		o.Ends = true
	case StageTCP:
		o.NoStream, o.RingSizes = true, []int{2}
	case StageGroups:
		o.GroupSizes = []int{0}
	case StageNode, StageRDMA, StagePairs:
	}
	return o
}

// Results returns the result of each check item, from the stages of a sweep.
func (e *EAS) Results(stages []StageReport) []EASResult {
	var all []EASResult
	for _, item := range e.items() {
		all = append(all, item.result(stages))
	}
	for _, name := range e.Runtime.Benchmarks {
		all = append(all, EASResult{Name: name, Result: EASWatched, Text: "a running job is watched by nhc-gpu monitor, not by a sweep"})
	}
	return all
}

func (i easItem) result(stages []StageReport) EASResult {
	r := EASResult{Name: i.name, Result: EASFailed}
	at := slices.IndexFunc(stages, func(s StageReport) bool { return s.Stage == i.stage })
	if at < 0 {
		r.Text = "not run"
		return r
	}
	s := &stages[at]
	var suspects []string
	for _, x := range s.Suspects {
		if i.concerns(x) {
			suspects = append(suspects, easSuspect(x))
		}
	}
	t := i.tally(s.Results)
	switch {
	case len(suspects) > 0:
		r.Text = strings.Join(suspects, "; ")
	case t.done == 0 && s.Skipped != "":
		r.Text = "not run: " + s.Skipped
	case s.Skipped == "" && s.Ended.IsZero():
		r.Text = "the sweep has ended before"
	case t.done == 0 && t.faults > 0:
		r.Text = "not run: " + cmpText(t.why, "no node can run it")
	case t.done == 0:
		r.Text = "not run"
	case len(t.unable) > 0:
		r.Text = fmt.Sprintf("not run on %s: %s", strings.Join(t.unable, ", "), t.why)
	default:
		r.Result, r.Text = i.judgeFleet(s)
	}
	return r
}

// easTally has the tests of an item in a stage.
type easTally struct {
	done   int      // tests that have run
	faults int      // tests that could not, or have lost a node
	why    string   // of the first of them
	unable []string // nodes on which the item has not run
}

// tally counts the tests of an item. The last test of a node decides whether it is unable. A node that was lost in
// the test of any item is unable, too, unless it has passed this one: the stage goes on without it.
func (i easItem) tally(results []Result) (t easTally) {
	unable, passed, lost := map[string]bool{}, map[string]bool{}, map[string]string{}
	for _, x := range results {
		if x.Fault == FaultLost {
			for _, node := range x.Blame {
				lost[node] = x.Text
			}
		}
		if !i.runs(x.Task) {
			continue
		}
		if x.Fault == FaultNone {
			for _, node := range x.Task.Nodes {
				passed[node] = true
			}
		}
		if x.Fault == FaultUnable || x.Fault == FaultLost {
			t.faults++
			t.why = cmpText(t.why, x.Text)
		} else {
			t.done++
		}
		switch {
		case x.Fault == FaultLost: // those that Slurm does not reach are suspects, the others have run no test to its end
			for _, node := range x.Blame {
				unable[node] = true
			}
		case i.kind == KindCheck:
			unable[x.Task.Nodes[0]] = x.Fault == FaultUnable
		}
	}
	for _, node := range slices.Sorted(maps.Keys(lost)) {
		if !passed[node] {
			unable[node], t.why = true, cmpText(t.why, lost[node])
		}
	}
	maps.DeleteFunc(unable, func(_ string, is bool) bool { return !is })
	t.unable = slices.Sorted(maps.Keys(unable))
	return t
}

// judgeFleet returns the result of an item that has run without a suspect. The values of all nodes together can
// still show a fault.
func (i easItem) judgeFleet(s *StageReport) (result, text string) {
	result = EASSucceeded
	if without := i.without(s.Suspects); len(without) > 0 {
		text = "without " + strings.Join(without, ", ") + ", suspected by an earlier test of the stage"
	}
	for _, d := range s.Fleet {
		switch {
		case d.Kind == i.kind && (i.op == "" || strings.HasPrefix(d.Op, i.op)) && d.Note != "":
			result, text = EASFailed, d.Note
		case d.splits() && i.runs(Task{Stage: s.Stage, Kind: d.Kind, Op: d.Op}):
			result, text = EASFailed, d.Remark
		}
	}
	return result, text
}

// without lists the nodes that a group test no longer includes.
func (i easItem) without(suspects []Suspect) (nodes []string) {
	for _, s := range suspects {
		if i.stage == StageGroups && s.Node != "" && !s.Doubt && !slices.Contains(nodes, s.Node) {
			nodes = append(nodes, s.Node)
		}
	}
	return nodes
}

// runs reports whether a task belongs to an item.
func (i easItem) runs(t Task) bool {
	switch i.kind {
	case KindCheck, KindNCCL:
		return t.Kind == i.kind && t.Op == i.op
	case KindRing:
		return t.Kind == i.kind
	default:
		return t.Stage == i.stage
	}
}

// concerns reports whether a suspect is one of an item.
func (i easItem) concerns(s Suspect) bool {
	switch {
	case s.Code == lostCode:
		return true
	case i.kind == KindCheck || i.kind == KindNCCL:
		return s.Kind == i.kind && slices.ContainsFunc(s.Ops, func(op string) bool { return op == i.op || op == i.op+" without P2P" })
	case i.kind == KindRing:
		return s.Kind == i.kind
	}
	return true
}

// easSuspect writes a suspect in one line.
func easSuspect(s Suspect) string {
	name := s.Node
	if len(s.Leaves) > 0 {
		name = "leaf " + strings.Join(s.Leaves, " and ")
	}
	if s.Doubt {
		return name + " (not certain): " + s.Text
	}
	return name + ": " + s.Text
}
