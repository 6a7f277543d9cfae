// Package sweeppage shows the report of a sweep: as text for a terminal, as an HTML page, and as
// events. It is pure.
package sweeppage

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
)

// States of a node in a report, see [sweep.NodeReport].
const (
	tested   = "tested"
	suspect  = "suspect"
	excluded = "excluded"
	dead     = "dead"
	frozen   = "frozen"
	refused  = "refused"
)

// untested are the states of nodes that a sweep has not tested to its end, the most urgent first.
var untested = []string{dead, frozen, refused, excluded}

// number returns a value with three significant digits, without an exponent.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a >= 99.95 || a == 0:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.9995:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case a >= 0.001:
		return strconv.FormatFloat(v, 'f', 3, 64)
	}
	return strconv.FormatFloat(v, 'f', 6, 64)
}

// thousands returns a number with commas: 12,480.
func thousands(n int) string {
	text := strconv.Itoa(n)
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// counted returns a number with the name of the things: "2 nodes".
func counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return thousands(n) + " " + thing
}

const clock = "2006-01-02 15:04"

// moment returns a time in UTC, to the minute.
func moment(t time.Time) string { return t.UTC().Format(clock) }

// certainty returns a confidence in percent. It is never rounded up to certainty.
func certainty(c float64) string {
	switch {
	case c >= 1:
		return "100 %"
	case c > 0.999:
		return "over 99.9 %"
	case c > 0.99:
		return strconv.FormatFloat(math.Floor(c*1000)/10, 'f', 1, 64) + " %"
	}
	return strconv.FormatFloat(math.Floor(c*100), 'f', 0, 64) + " %"
}

// nameOf returns the name of the suspect part: "gpu017, rail mlx5_3:1, receives".
func nameOf(s *sweep.Suspect) string {
	parts := []string{cmp.Or(s.Node, "the cluster")}
	switch {
	case len(s.Leaves) == 1:
		parts[0] = "leaf switch " + s.Leaves[0]
	case len(s.Leaves) > 0:
		parts[0] = "between leaf switches " + strings.Join(s.Leaves, " and ")
	case s.Peer != "":
		parts[0] = "between " + s.Node + " and " + s.Peer
	}
	if s.GPU != nil {
		parts = append(parts, fmt.Sprintf("gpu%d", *s.GPU))
	}
	if s.Plane != "" {
		parts = append(parts, planeWord(s.Stage)+" "+s.Plane)
	}
	if len(s.Ops) > 0 {
		parts = append(parts, strings.Join(s.Ops, " and "))
	}
	switch s.Way {
	case "":
	case "sends", "receives":
		if s.Peer == "" && len(s.Leaves) == 0 {
			parts = append(parts, "when it "+s.Way)
			break
		}
		parts = append(parts, "when "+cmp.Or(s.Node, "the first")+" "+s.Way)
	default:
		parts = append(parts, s.Way)
	}
	return strings.Join(parts, ", ")
}

// planeWord returns the name of the networks of a stage: RDMA has rails, TCP has planes.
func planeWord(stage sweep.Stage) string {
	if stage == sweep.StageReach || stage == sweep.StageTCP {
		return "plane"
	}
	return "rail"
}

// measured returns the number of a suspect with the expectation; "" if it has none.
func measured(s *sweep.Suspect) string {
	if s.Unit == "" || s.Value == 0 && s.Expect == 0 {
		return ""
	}
	text := fmt.Sprintf("%s %s, expected %s %s", number(s.Value), s.Unit, number(s.Expect), s.Unit)
	if s.Expect <= 0 {
		return text
	}
	if share := s.Value / s.Expect; share < 2 {
		return text + fmt.Sprintf(" (%.0f %%)", 100*share)
	}
	return text + fmt.Sprintf(" (%s times)", number(s.Value/s.Expect))
}

// evidence returns how sure a suspicion is, and by what.
func evidence(s *sweep.Suspect, room int) string {
	text := certainty(s.Confidence) + " certain"
	if s.Doubt {
		text = "in doubt, " + text
	}
	if s.Looks > 0 {
		text += " after " + counted(s.Looks, "test")
	}
	if len(s.Partners) > 0 {
		text += " with " + few(s.Partners, room)
	}
	return text
}

// kindWord returns what a distribution is about: "stream", "all_reduce".
func kindWord(kind sweep.Kind, op string) string {
	if op != "" && (kind == sweep.KindNCCL || kind == sweep.KindCheck) {
		return op
	}
	return string(kind)
}

// unitOf returns the unit of the values of a kind.
func unitOf(kind sweep.Kind) string {
	switch kind {
	case sweep.KindEcho, sweep.KindConnect, sweep.KindName:
		return "ms"
	case sweep.KindStream, sweep.KindRing, sweep.KindWrite:
		return "Gb/s"
	case sweep.KindLatency:
		return "us"
	case sweep.KindNCCL:
		return "GB/s"
	}
	return ""
}

// spread returns the relative width of a distribution, percent.
func spread(d *sweep.Distribution) string {
	if d.Median == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f %%", 100*d.Sigma/math.Abs(d.Median))
}

// place returns the part of the cluster that a distribution is about: "eth0, H100, one leaf".
func place(d *sweep.Distribution) string {
	far := map[string]string{"leaf": "in one leaf", "spine": "through the spine"}[d.Far]
	return strings.Join(slices.DeleteFunc([]string{d.Plane, d.Model, far}, func(s string) bool { return s == "" }), ", ")
}

// nodesIn returns the names of the nodes in some states.
func nodesIn(r *sweep.Report, states ...string) (names []string) {
	for i := range r.Nodes {
		if slices.Contains(states, r.Nodes[i].State) {
			names = append(names, r.Nodes[i].Name)
		}
	}
	return names
}

// alike are nodes that were not tested for the same reason.
type alike struct {
	state, why, held, after string
	names                   []string
}

// groupNodes groups nodes by state and reason, the most urgent first.
func groupNodes(r *sweep.Report, of func(*sweep.NodeReport) bool) (groups []*alike) {
	byKey := map[[4]string]*alike{}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if !of(n) {
			continue
		}
		key := [4]string{n.State, n.Why, n.Held, n.After}
		g := byKey[key]
		if g == nil {
			g = &alike{n.State, n.Why, n.Held, n.After, nil}
			byKey[key], groups = g, append(groups, g)
		}
		g.names = append(g.names, n.Name)
	}
	slices.SortStableFunc(groups, func(a, b *alike) int {
		return cmp.Or(cmp.Compare(slices.Index(untested, a.state), slices.Index(untested, b.state)), cmp.Compare(len(b.names), len(a.names)))
	})
	return groups
}

func isUntested(n *sweep.NodeReport) bool { return slices.Contains(untested, n.State) }
func wasDrained(n *sweep.NodeReport) bool { return n.Held != "" || n.After != "" }

// unwritten returns a line for the suspect nodes whose own history lacks the finding, by reason.
func unwritten(r *sweep.Report) (list []string) {
	var order []string
	nodes := map[string][]string{}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if n.History == "" || n.History == sweep.Written {
			continue
		}
		why := strings.TrimPrefix(n.History, "node "+n.Name+": ")
		if nodes[why] == nil {
			order = append(order, why)
		}
		nodes[why] = append(nodes[why], n.Name)
	}
	for _, why := range order {
		list = append(list, fmt.Sprintf("The finding is not in the node's own history, only in this report: %s (%s).", few(nodes[why], mostNames), why))
	}
	return list
}

// notes returns what a reader must know to judge the numbers.
func notes(r *sweep.Report) (list []string) {
	beside, unable, order := 0, map[string]int{}, []string(nil)
	for i := range r.Stages {
		for _, d := range r.Stages[i].Fleet {
			for _, text := range []string{d.Note, d.Remark} {
				if text != "" {
					list = append(list, strings.TrimSpace(fmt.Sprintf("%s %s %s", d.Stage, kindWord(d.Kind, d.Op), place(&d)))+": "+text)
				}
			}
		}
		for j := range r.Stages[i].Results {
			t := &r.Stages[i].Results[j]
			if t.Beside {
				beside++
			}
			if t.Fault == sweep.FaultUnable {
				why := string(r.Stages[i].Stage) + ": " + cmp.Or(t.Text, "no reason was given")
				if unable[why]++; unable[why] == 1 {
					order = append(order, why)
				}
			}
		}
	}
	if beside > 0 {
		list = append(list, fmt.Sprintf("%s ran beside other jobs, or where others could run. Their traffic lowers the numbers: only repeated measurements count there.", counted(beside, "test")))
	}
	const most = 5
	for i, why := range order {
		if i == most {
			list = append(list, fmt.Sprintf("%s more of such reasons: see --json.", thousands(len(order)-most)))
			break
		}
		list = append(list, fmt.Sprintf("%s could not run: %s", counted(unable[why], "test"), why))
	}
	list = append(list, unwritten(r)...)
	for _, at := range r.Continued {
		list = append(list, "It was continued at "+moment(at)+" UTC.")
	}
	if r.Interrupted != "" && len(r.Stages) > 0 {
		list = append(list, "The sweep was interrupted: nodes without a finding are not proven healthy.", "To continue it: nhc-gpu sweep --continue "+r.ID)
	}
	return list
}

// verdict returns the result in one sentence, with the stages that have none.
func verdict(r *sweep.Report) string {
	var without, skipped []string
	for i := range r.Stages {
		switch s := &r.Stages[i]; {
		case s.Unproven != "":
			without = append(without, string(s.Stage))
		case s.Skipped != "":
			skipped = append(skipped, string(s.Stage))
		}
	}
	text := accused(r)
	if len(without) > 0 {
		text += "; no verdict by " + strings.Join(without, ", ")
	}
	if len(skipped) > 0 {
		text += "; not run: " + strings.Join(skipped, ", ")
	}
	return text
}

// unproven returns the stages that say nothing about their nodes, and why.
func unproven(r *sweep.Report) (list []string) {
	for i := range r.Stages {
		if s := &r.Stages[i]; s.Unproven != "" {
			list = append(list, fmt.Sprintf("%s: %s", s.Stage, s.Unproven))
		}
	}
	return list
}

// accused returns how many suspects there are.
func accused(r *sweep.Report) string {
	done := len(nodesIn(r, tested, suspect))
	switch {
	case done > 0:
	case slices.ContainsFunc(r.Stages, func(g sweep.StageReport) bool { return g.Rounds > 0 }):
		return "no node was tested by all stages"
	default:
		return "no node was tested"
	}
	among := " among " + counted(done, "node")
	doubts := 0
	for i := range r.Suspects {
		if r.Suspects[i].Doubt {
			doubts++
		}
	}
	switch sure := len(r.Suspects) - doubts; {
	case len(r.Suspects) == 0 && r.Interrupted != "":
		return "no suspect yet" + among
	case len(r.Suspects) == 0:
		return "no suspect" + among
	case doubts == 0:
		return counted(sure, "suspect") + among
	case sure == 0:
		return counted(doubts, "suspect") + " in doubt" + among
	default:
		return fmt.Sprintf("%s, and %s in doubt,%s", counted(sure, "suspect"), thousands(doubts), among)
	}
}

// span returns when a sweep ran, and for how long.
func span(r *sweep.Report) string {
	if r.Ended.IsZero() {
		return moment(r.Began) + " UTC, no end recorded"
	}
	layout := "15:04"
	if r.Began.UTC().YearDay() != r.Ended.UTC().YearDay() {
		layout = clock
	}
	return fmt.Sprintf("%s to %s UTC, %s", moment(r.Began), r.Ended.UTC().Format(layout), checks.Lasted(r.Ended.Sub(r.Began)))
}

// origin returns where a sweep ran: cluster, job, version.
func origin(r *sweep.Report) string {
	var parts []string
	if r.Cluster != "" {
		parts = append(parts, "cluster "+r.Cluster)
	}
	if r.Job != "" {
		parts = append(parts, "job "+r.Job)
	}
	return strings.Join(append(parts, "nhc-gpu "+cmp.Or(r.Version, "of an unknown version")), ", ")
}
