package sweep

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Conclude sets Skipped if no test of a stage that has ended could run, and Unproven if no suspect does
// not mean that its nodes are healthy: most or all tests have failed, or something that was asked for did
// not run. By default a stage may lack its hardware.
func (s *StageReport) Conclude(asked bool, nodes []Node) {
	passed, ran, faults, unable := false, false, map[Fault]int{}, ""
	for i := range s.Results {
		switch r := &s.Results[i]; r.Fault {
		case FaultNone:
			passed, ran = true, true
		case FaultUnable:
			unable = cmpText(unable, oneLine("", r.Text))
		default:
			ran = true
			faults[r.Fault]++
		}
	}
	if s.Skipped == "" && !ran {
		if s.Skipped = oneLine("no test could run", unable); s.Rounds == 0 {
			s.Skipped = "the nodes have nothing that it tests"
		}
		asked = asked || !lacks(s.Stage, nodes)
	}
	wide := slices.IndexFunc(s.Fleet, func(d Distribution) bool { return d.wide() != "" || d.splits() && alike(nodes, d.Plane) })
	switch {
	case wide >= 0 && (s.Skipped == "" || s.Rounds == 0):
		d := &s.Fleet[wide]
		s.Unproven = strings.TrimSpace(fmt.Sprintf("%s %s", cmpText(d.Op, string(d.Kind)), d.Plane)) + ": " + cmpText(d.wide(), d.Remark)
	case s.Skipped != "" && asked:
		s.Unproven = "it did not run: " + s.Skipped
	case s.Skipped != "":
	case !passed && len(s.Suspects) == 0:
		s.Unproven = "no test has passed: " + faultText(commonestFault(faults))
	}
}

// unproven returns why a stage says nothing about a plane or a rail, "" if it does: what concerns one of them hides
// nothing about the others.
func (s *StageReport) unproven(plane string) string {
	if s.Unproven == "" || plane == "" {
		return s.Unproven
	}
	other := false
	for i := range s.Fleet {
		if d := &s.Fleet[i]; d.wide() != "" || d.splits() {
			if d.Plane == "" || d.Plane == plane {
				return s.Unproven
			}
			other = true
		}
	}
	if other {
		return ""
	}
	return s.Unproven
}

// Says reports whether a stage says something about its nodes: a test has passed, on a plane or a rail about which it
// does.
func (s *StageReport) Says() bool {
	return s.Skipped == "" && (s.Unproven == "" || slices.ContainsFunc(s.Results, func(r Result) bool {
		return r.Fault == FaultNone && s.unproven(r.Task.Plane) == ""
	}))
}

// wide returns the fault of the whole fleet, "" if there is none. A remark without values is about single
// nodes.
func (d *Distribution) wide() string {
	if d.Note == "" && d.Count > 0 {
		return d.Remark
	}
	return d.Note
}

// splits reports whether tests between parts of the cluster fail.
func (d *Distribution) splits() bool { return strings.HasPrefix(d.Remark, separate) }

// alike reports whether nodes have the same model, and the same subnet on a plane: then separate networks
// do not explain that some do not reach each other.
func alike(nodes []Node, plane string) bool {
	models, subnets := map[string]bool{}, map[netip.Prefix]bool{}
	for _, n := range nodes {
		models[n.Model] = true
		for _, p := range n.Planes {
			if subnet, shared := p.subnet(); shared && p.In(plane) {
				subnets[subnet] = true
			}
		}
	}
	return len(models) <= 1 && len(subnets) <= 1
}

// lacks reports whether too few nodes have the hardware that a stage tests.
func lacks(stage Stage, nodes []Node) bool {
	having, need := 0, 2
	if stage == StageNode {
		need = 1
	}
	for _, n := range nodes {
		has := true
		switch stage {
		case StageNode, StagePairs, StageGroups:
			has = n.GPUs > 0
		case StageRDMA:
			has = slices.ContainsFunc(n.Rails, func(r Rail) bool { return r.Left == "" })
		case StageTCP:
			has = len(n.Planes) > 0
		case StageReach:
		}
		if has {
			having++
		}
	}
	return having < need
}

// Untested returns the nodes of a list on which no test has run, and why.
func (r *Report) Untested(nodes []string) map[string]string {
	why, tested := map[string]string{}, map[string]bool{}
	otherwise := ""
	for i := range r.Stages {
		s := &r.Stages[i]
		otherwise = cmpText(otherwise, s.Skipped)
		for j := range s.Results {
			x := &s.Results[j]
			for _, n := range x.Task.Nodes {
				switch x.Fault {
				case FaultUnable:
					why[n] = cmpText(why[n], oneLine("no test could run on it", x.Text))
				case FaultLost: // another node of the test
				default:
					tested[n] = true
				}
			}
		}
	}
	untested := map[string]string{}
	for _, n := range nodes {
		if !tested[n] {
			untested[n] = cmpText(cmpText(why[n], otherwise), "the sweep has ended before")
		}
	}
	return untested
}
