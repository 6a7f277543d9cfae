package sweeppage

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/page"
)

// Context is the context of the events of a sweep.
const Context = "sweep"

// Check is the name that stands for a check in the events of a sweep.
const Check = "sweep"

// Events returns an event for each node that has a suspicion, in natural order. A node that is suspect
// alone fails; one on which a test cannot run is unknown. Where there is doubt, and where two nodes are
// slow only with each other, the nodes have a warning: the fault can be between them. Two leaf switches
// belong to no node.
//
// The mode is observe: a sweep only reports. The caller sets Mode and Slurm of nodes that it drains.
func Events(r *sweep.Report) (list []*event.Event) {
	byNode := map[string]*event.Event{}
	for i := range r.Suspects {
		s := &r.Suspects[i]
		for _, node := range []string{s.Node, s.Peer} {
			if node == "" {
				continue
			}
			e := byNode[node]
			if e == nil {
				e = newEvent(r, node)
				byNode[node], list = e, append(list, e)
			}
			e.Results = append(e.Results, resultOf(r, s))
		}
	}
	slices.SortFunc(list, func(a, b *event.Event) int { return page.CompareNames(a.Node, b.Node) })
	for _, e := range list {
		e.Judge()
		if e.Verdict == checks.Fail {
			e.Exit = 1
		}
		e.Trim()
	}
	return list
}

func newEvent(r *sweep.Report, node string) *event.Event {
	end := r.Ended
	if end.IsZero() {
		end = r.Began
	}
	return &event.Event{
		Schema: event.Schema, Version: r.Version, Node: node, Time: end.UTC().Truncate(time.Millisecond), Context: Context, Mode: "observe", Job: r.Job,
		Milliseconds: event.Milliseconds(end.Sub(r.Began)), Results: []event.Result{}, Message: "sweep " + r.ID,
	}
}

func resultOf(r *sweep.Report, s *sweep.Suspect) event.Result {
	f := checks.Finding{Code: s.Code, Severity: checks.Fail}
	switch {
	case strings.HasSuffix(s.Code, ".unable"):
		f.Severity = checks.Unknown
	case s.Doubt || s.Peer != "":
		f.Severity = checks.Warn
	}
	x := event.Result{
		Check: Check, Line: strings.Join(r.Command, " "), Code: s.Code, Severity: f.Severity, Device: deviceOf(s), Remedy: checks.RemedyOf(f),
		Message: nameOf(s) + ": " + s.Text,
	}
	if s.Unit != "" && (s.Value != 0 || s.Expect != 0) {
		x.Want, x.Got = number(s.Expect)+" "+s.Unit, number(s.Value)+" "+s.Unit
	}
	return x
}

// deviceOf returns the device of a suspicion, as the checks of a node name it.
func deviceOf(s *sweep.Suspect) checks.Device {
	switch {
	case s.GPU != nil:
		return checks.Device{Kind: "gpu", Name: "gpu" + strconv.Itoa(*s.GPU)}
	case s.Plane == "":
		return checks.Device{}
	case planeWord(s.Stage) == "plane":
		return checks.Device{Kind: "netdev", Name: s.Plane}
	}
	return checks.Device{Kind: "port", Name: s.Plane}
}

// Drain returns the drain reason of a node without the prefix of all reasons: "sweep slow RDMA mlx5_3:1
// [sweep.rdma.slow]". The fault comes first: sinfo -R shows 20 characters. It returns "" for a node
// that a sweep does not accuse.
func Drain(e *event.Event) string {
	for i := range e.Results {
		x := &e.Results[i]
		if x.Severity != checks.Fail {
			continue
		}
		parts := []string{Check, checks.Words(x.Code), x.Device.Name, "[" + x.Code + "]"}
		return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), " ")
	}
	return ""
}
