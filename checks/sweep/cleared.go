package sweep

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// stagesOf are the stages that find a fault, by the second word of its code.
var stagesOf = map[string][]Stage{
	"node": {StageNode}, "reach": {StageReach}, "tcp": {StageTCP}, "rdma": {StageRDMA}, "nccl": {StagePairs, StageGroups},
}

// Accusal is a fault that a sweep has found on a node, with the tests that must pass before it is gone.
type Accusal struct {
	Node   string   `json:"node"`
	Code   string   `json:"code"`
	Device string   `json:"device,omitempty"` // as a drain reason names it: a plane, a rail or a GPU
	Stage  Stage    `json:"stage,omitempty"`  // "": unknown
	Kind   Kind     `json:"kind,omitempty"`   // "": unknown
	Planes []string `json:"planes,omitempty"` // those of the fault; none: unknown
	Ops    []string `json:"ops,omitempty"`    // lines of nhc.conf, or collectives; none: unknown, or the kind has none
}

// Accusals returns the faults for which a sweep accuses single nodes without doubt.
func (r *Report) Accusals() []Accusal {
	list := []Accusal{}
	var tests func(*Suspect) []*Task
	for i := range r.Suspects {
		s := &r.Suspects[i]
		if s.Node == "" || s.Peer != "" || s.Doubt {
			continue
		}
		a := Accusal{Node: s.Node, Code: s.Code, Device: s.Plane, Stage: s.Stage, Kind: s.Kind, Ops: s.Ops}
		if s.GPU != nil {
			a.Device = "gpu" + strconv.Itoa(*s.GPU)
		}
		if s.Plane != "" {
			a.Planes = []string{s.Plane}
		} else if s.Kind != KindCheck && s.Code != lostCode { // on all planes that were tested
			if tests == nil {
				tests = r.tests()
			}
			planes := map[string]bool{}
			for _, t := range tests(s) {
				planes[t.Plane] = true
			}
			a.Planes = slices.Sorted(maps.Keys(planes))
		}
		list = append(list, a)
	}
	return list
}

// Drained is a node that a sweep had drained.
type Drained struct {
	Node, Leaf   string
	Code, Device string            // of the reason
	Faults       []Accusal         // of the node, from the reports of the sweeps that found them
	Held         map[string]string // the nodes that were drained before this sweep: they prove nothing about each other
}

// Cleared returns why a sweep that has run to its end does not show that the faults of a node are gone; "" if
// it does.
func (r *Report) Cleared(d *Drained) string {
	if x := slices.IndexFunc(r.Suspects, func(s Suspect) bool { return s.names(d) }); x >= 0 {
		return "suspect: " + r.Suspects[x].Text
	}
	faults := d.Faults
	if !slices.ContainsFunc(faults, func(a Accusal) bool { return a.Code == d.Code && a.Device == d.Device }) {
		known, why := d.ofReason()
		if why != "" {
			return why
		}
		faults = slices.Concat(known, faults)
	}
	for i := range faults {
		if why := r.lacks(d, &faults[i]); why != "" {
			return why
		}
	}
	return ""
}

// noCheck means that a fault of a check is known by the drain reason only.
const noCheck = "no report has the check that had failed"

// ofReason returns what the reason alone says about the fault: any stage with its code can have found it.
func (d *Drained) ofReason() (list []Accusal, why string) {
	words := strings.Split(d.Code, ".")
	switch {
	case len(words) != 3 || words[0] != "sweep" || stagesOf[words[1]] == nil:
		return nil, fmt.Sprintf("%q is not a fault that a sweep finds", d.Code)
	case d.Code == lostCode:
		return []Accusal{{Code: d.Code}}, ""
	case words[1] == "node":
		return nil, noCheck
	}
	for _, stage := range stagesOf[words[1]] {
		a := Accusal{Code: d.Code, Stage: stage}
		if d.Device != "" && words[1] != "nccl" { // a GPU is no plane
			a.Planes = []string{d.Device}
		}
		list = append(list, a)
	}
	return list, ""
}

// lacks returns why a sweep does not show that a fault of a node is gone, "" if it does.
func (r *Report) lacks(d *Drained, a *Accusal) string {
	var results []Result
	ran := false
	for i := range r.Stages {
		st := &r.Stages[i]
		its := a.Stage == "" || st.Stage == a.Stage
		if !its && a.Code != lostCode || st.Skipped != "" || st.Rounds == 0 {
			continue
		}
		if why := a.unproven(st); why != "" {
			return fmt.Sprintf("stage %s has no verdict: %s", st.Stage, why)
		}
		if x := slices.IndexFunc(st.Fleet, func(f Distribution) bool { return slices.Contains(strings.Split(f.Nodes, ","), d.Node) }); x >= 0 {
			return fmt.Sprintf("stage %s has a remark about the node: %s", st.Stage, st.Fleet[x].Remark)
		}
		if its {
			ran, results = true, append(results, st.Results...)
		}
	}
	switch {
	case !ran && a.Stage == "":
		return "no stage has run"
	case !ran:
		return fmt.Sprintf("stage %s has not run", a.Stage)
	case a.Code == lostCode && !slices.ContainsFunc(results, d.passed):
		return "no test has passed on it"
	case a.Code == lostCode:
		return ""
	case a.Stage == StageNode:
		return d.checked(a, results)
	}
	return d.paired(a, results)
}

// unproven returns why a stage says nothing about the planes of a fault, "" if it does. After the loss of a node any
// of its planes counts.
func (a *Accusal) unproven(st *StageReport) string {
	switch {
	case a.Code == lostCode && st.Says():
		return ""
	case a.Code == lostCode || len(a.Planes) == 0:
		return st.Unproven
	}
	for _, plane := range a.Planes {
		if why := st.unproven(plane); why != "" {
			return why
		}
	}
	return ""
}

// names reports whether a suspicion is, or may be, about a node.
func (s *Suspect) names(d *Drained) bool {
	return s.Node == d.Node || s.Peer == d.Node || s.Doubt && slices.Contains(s.Partners, d.Node) || slices.Contains(s.Leaves, d.Leaf)
}

// passed reports whether a test has passed on the node.
func (d *Drained) passed(x Result) bool {
	return x.Fault == FaultNone && slices.Contains(x.Task.Nodes, d.Node)
}

// checked is lacks for the checks of the node alone.
func (d *Drained) checked(a *Accusal, results []Result) string {
	if len(a.Ops) == 0 {
		return noCheck
	}
	for _, line := range a.Ops {
		if !slices.ContainsFunc(results, func(x Result) bool { return x.Task.Kind == KindCheck && x.Task.Op == line && d.passed(x) }) {
			return "not run: " + line
		}
	}
	return ""
}

// paired is lacks for tests with other nodes. As many as confirm a suspicion must have passed each of them
// with it.
func (d *Drained) paired(a *Accusal, results []Result) string {
	type test struct{ plane, op string }
	partners := map[test]map[string]bool{}
	for _, x := range results {
		if len(x.Task.Nodes) < 2 || x.Fault == FaultUnable || a.Kind != "" && x.Task.Kind != a.Kind {
			continue
		}
		t := test{plane: x.Task.Plane}
		if len(a.Ops) > 0 {
			t.op = x.Task.label()
		}
		if partners[t] == nil {
			partners[t] = map[string]bool{}
		}
		if !d.passed(x) || x.Lost > 0 {
			continue
		}
		for _, n := range x.Task.Nodes {
			if _, held := d.Held[n]; n != d.Node && !held {
				partners[t][n] = true
			}
		}
	}
	planes, ops := a.Planes, a.Ops
	if len(planes) == 0 {
		for t := range partners {
			planes = append(planes, t.plane)
		}
		slices.Sort(planes)
	}
	if len(ops) == 0 {
		ops = []string{""}
	}
	want := int(limitOf("looks"))
	for _, plane := range planes {
		for _, op := range ops {
			n := len(partners[test{plane, op}])
			if n >= want {
				continue
			}
			where := ""
			if plane != "" {
				where = "on " + plane + " "
			}
			if op != "" {
				where += "by " + op + " "
			}
			return fmt.Sprintf("tested %swith %d nodes that were in service, want %d", where, n, want)
		}
	}
	if len(planes) == 0 {
		return "not tested with another node"
	}
	return ""
}
