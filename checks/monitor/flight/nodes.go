package flight

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// Compare compares the nodes of a job: a table with the means of the last minute, and which node and GPU is last.
// missing are the nodes that did not answer.
func Compare(job string, nodes map[string]*Extract, missing []string) string {
	var b strings.Builder
	names := slices.Sorted(maps.Keys(nodes))
	out := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(out, "node\tGPUs\tbusy\ttensor\tpower\tlowest\tclock\tNVLink\tports\tfindings\n")
	for _, node := range names {
		e := nodes[node]
		gpus := e.names(false)
		cell := func(devices []string, name Name, pick func([]float32) float32) string {
			var list []float32
			if e.Seconds != nil {
				w := e.Window(e.Seconds).Tail(shown)
				for _, d := range devices {
					if v, count := average(w.Of(d, name)); count > 0 {
						list = append(list, v)
					}
				}
			}
			if len(list) == 0 {
				return "-"
			}
			return strings.TrimSpace(fmt.Sprintf("%.0f %s", pick(list), units[name]))
		}
		middle := func(list []float32) float32 { v, _ := average(list); return v }
		codes := []string{}
		for _, n := range e.Findings {
			codes = append(codes, n.Code)
		}
		if len(codes) == 0 {
			codes = []string{"none"}
		}
		fmt.Fprintf(out, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", node, len(gpus), cell(gpus, Busy, middle), cell(gpus, Tensor, middle), cell(gpus, Power, middle),
			cell(gpus, Power, slices.Min[[]float32]), cell(gpus, Clock, middle), cell(gpus, NVLink, middle), cell(e.names(true), Data, middle), strings.Join(slices.Compact(codes), " "))
	}
	out.Flush()
	for _, line := range Last(job, nodes, missing) {
		b.WriteString(line + "\n")
	}
	return b.String()
}

// Last says which node and GPU holds the others up: the detectors run over the GPUs of all nodes as over those of
// one, in the time for which all nodes have samples of the job. If nodes are missing, or have no samples, the others
// may wait for them.
func Last(job string, nodes map[string]*Extract, missing []string) (lines []string) {
	w := NewWindow(0, Seconds-1)
	shortest := Seconds
	var gpus []string
	whole, judged := true, true
	of := map[string][]string{} // GPUs by node
	names := slices.Sorted(maps.Keys(nodes))
	for _, node := range names {
		e := nodes[node]
		if e.Seconds == nil {
			continue
		}
		e.into(w, e.Seconds, node+" ")
		shortest = min(shortest, e.Seconds.Len)
		for _, gpu := range e.names(false) {
			of[node] = append(of[node], node+" "+gpu)
		}
		gpus = append(gpus, of[node]...)
		whole = whole && e.All
		if why := Unjudged(e.Window(e.Seconds), Job{ID: e.Job, Partial: e.Partial}); why != "" {
			judged = false
			lines = append(lines, fmt.Sprintf("%s: the job is not judged for a hang: %s", node, why))
		}
		for _, n := range e.Findings {
			lines = append(lines, fmt.Sprintf("%s: %s, for %d s [%s]", node, n.Text, n.For, n.Code))
		}
	}
	w = w.Tail(uint32(shortest))
	unheard := slices.Sorted(slices.Values(missing))
	for _, node := range names {
		if len(of[node]) == 0 {
			unheard = append(unheard, node)
		}
	}
	others, hint := "the other nodes", ""
	if len(unheard) > 0 {
		others = "the other nodes with samples"
		hint = "; there are no samples of " + strings.Join(unheard[:min(len(unheard), 4)], ", ")
		if more := len(unheard) - 4; more > 0 {
			hint += fmt.Sprintf(" and %d more", more)
		}
		hint += ": look there first"
	}
	all := Job{ID: job, GPUs: gpus, All: whole, OneNode: len(unheard) == 0} // then the window has all of them
	detectors := []func(*Window, Job) []Verdict{straggler, throttle, silentPort}
	if judged {
		if late := lateNode(w, of, others); late != "" {
			return append(lines, "last: "+late+hint)
		}
		detectors = slices.Insert(detectors, 0, hang)
	}
	for _, detect := range detectors {
		found := detect(w, all)
		if len(found) == 0 {
			continue
		}
		v := found[0]
		switch {
		case v.AllWait() && hint != "":
			return append(lines, fmt.Sprintf("all %d GPUs of %d nodes wait%s", len(v.Devices), len(of), hint))
		case v.AllWait():
			return append(lines, fmt.Sprintf("all %d GPUs of %d nodes wait, and none stands out: see NCCL's RAS (docs/monitor.md)", len(v.Devices), len(of)))
		}
		where := strings.Join(v.Devices[:min(len(v.Devices), 4)], ", ")
		return append(lines, fmt.Sprintf("last: %s: %s, want %s, got %s [%s]", where, v.Message, v.Want, v.Got, v.Code)+hint)
	}
	return append(lines, "no node and no GPU stands out"+hint)
}

// lateNode returns the one node whose GPUs do not wait while those of all others do, "" for none.
func lateNode(w *Window, of map[string][]string, others string) string {
	t := tail(w, "hang.seconds")
	if t == nil || len(of) < 2 {
		return ""
	}
	late, waiting := "", 0
	for node, gpus := range of {
		spinning := 0
		for _, gpu := range gpus {
			if spins(t, gpu) {
				spinning++
			}
		}
		switch {
		case spinning == len(gpus):
			waiting += spinning
		case late != "":
			return ""
		default:
			late = node
		}
	}
	if late == "" || waiting == 0 {
		return ""
	}
	var parts []string
	for _, gpu := range of[late] {
		if !spins(t, gpu) {
			parts = append(parts, strings.TrimPrefix(gpu, late+" ")+" "+strings.TrimPrefix(w.LastWork(gpu), "and its GPU "))
		}
	}
	return fmt.Sprintf("node %s: the %d GPUs of %s wait, and on it %s", late, waiting, others, strings.Join(parts[:min(len(parts), 4)], ", "))
}
