package sweep

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// stagesOf are the stages that can show that a fault is gone, by the second word of its code.
var stagesOf = map[string][]Stage{
	"node": {StageNode}, "reach": {StageReach}, "tcp": {StageTCP}, "rdma": {StageRDMA}, "nccl": {StagePairs, StageGroups},
}

// Drained is a node that a sweep had drained.
type Drained struct {
	Node, Leaf   string
	Code, Device string            // of the reason
	Checks       func() []string   // lines of nhc.conf that had failed, if the code is that of a check
	Held         map[string]string // the nodes that were drained before this sweep: they prove nothing about each other
}

// Cleared returns why a sweep that has run to its end does not show that the fault of a node is gone; "" if
// it does.
func (r *Report) Cleared(d *Drained) string {
	if x := slices.IndexFunc(r.Suspects, func(s Suspect) bool { return s.names(d) }); x >= 0 {
		return "suspect: " + r.Suspects[x].Text
	}
	var stages []Stage
	word := ""
	if words := strings.Split(d.Code, "."); len(words) == 3 && words[0] == "sweep" {
		word = words[1]
		stages = stagesOf[word]
	}
	if d.Code == lostCode {
		stages = []Stage{StageNode, StageReach, StageTCP, StageRDMA, StagePairs, StageGroups}
	}
	var ran []StageReport
	for i := range r.Stages {
		st := &r.Stages[i]
		if !slices.Contains(stages, st.Stage) || st.Skipped != "" || st.Rounds == 0 {
			continue
		}
		if st.Unproven != "" {
			return fmt.Sprintf("stage %s has no verdict: %s", st.Stage, st.Unproven)
		}
		if x := slices.IndexFunc(st.Fleet, func(f Distribution) bool { return slices.Contains(strings.Split(f.Nodes, ","), d.Node) }); x >= 0 {
			return fmt.Sprintf("stage %s has a remark about the node: %s", st.Stage, st.Fleet[x].Remark)
		}
		ran = append(ran, *st)
	}
	switch {
	case len(stages) == 0:
		return fmt.Sprintf("%q is not a fault that a sweep finds", d.Code)
	case len(ran) == 0:
		return fmt.Sprintf("stage %s has not run", stages[0])
	case d.Code == lostCode && !slices.ContainsFunc(ran, d.passed):
		return "no test has passed on it"
	case d.Code == lostCode:
		return ""
	case word == "node":
		return d.checked(ran)
	}
	return d.paired(ran)
}

// names reports whether a suspicion is, or may be, about a node.
func (s *Suspect) names(d *Drained) bool {
	return s.Node == d.Node || s.Peer == d.Node || s.Doubt && slices.Contains(s.Partners, d.Node) || slices.Contains(s.Leaves, d.Leaf)
}

// passed reports whether a test of a stage has passed on the node.
func (d *Drained) passed(st StageReport) bool {
	return slices.ContainsFunc(st.Results, func(x Result) bool { return x.Fault == FaultNone && slices.Contains(x.Task.Nodes, d.Node) })
}

// checked is Cleared for the checks of the node alone.
func (d *Drained) checked(ran []StageReport) string {
	lines := d.Checks()
	if len(lines) == 0 {
		return "no report has the check that had failed"
	}
	passed := map[string]bool{}
	for _, st := range ran {
		for _, x := range st.Results {
			if x.Task.Kind == KindCheck && slices.Contains(x.Task.Nodes, d.Node) && x.Fault == FaultNone {
				passed[x.Task.Op] = true
			}
		}
	}
	for _, line := range lines {
		if !passed[line] {
			return "not run: " + line
		}
	}
	return ""
}

// paired is Cleared for tests with other nodes. As many as confirm a suspicion must have passed with it.
func (d *Drained) paired(ran []StageReport) string {
	partners := map[string]map[string]bool{} // by plane
	if d.Device != "" {
		partners[d.Device] = nil
	}
	for _, st := range ran {
		for _, x := range st.Results {
			plane := x.Task.Plane
			if len(x.Task.Nodes) < 2 || x.Fault == FaultUnable {
				continue
			}
			if partners[plane] == nil {
				partners[plane] = map[string]bool{}
			}
			if x.Fault != FaultNone || x.Lost > 0 || !slices.Contains(x.Task.Nodes, d.Node) {
				continue
			}
			for _, n := range x.Task.Nodes {
				if _, held := d.Held[n]; n != d.Node && !held {
					partners[plane][n] = true
				}
			}
		}
	}
	planes := slices.Sorted(maps.Keys(partners))
	if d.Device != "" {
		planes = slices.Insert(planes, 0, d.Device)
	}
	want := int(limitOf("looks"))
	for _, plane := range planes {
		if n := len(partners[plane]); n < want {
			if plane != "" {
				plane = "on " + plane + " "
			}
			return fmt.Sprintf("tested %swith %d nodes that were in service, want %d", plane, n, want)
		}
	}
	if len(partners) == 0 {
		return "not tested with another node"
	}
	return ""
}
