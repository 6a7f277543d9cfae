package sweep

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// nodePlan runs checks on each node alone, in batches. A failing check is a fact about its node: it
// needs no partner and no confirmation, unless most nodes fail it the same way.
type nodePlan struct {
	f     *fleet
	o     PlanOptions
	batch int       // begin of the present batch
	size  int       // of a batch
	line  int       // the next line of the batch
	again []nodeRun // those without a result
	sent  map[int]nodeRun
	bad   []badRun
	able  []int // by line: nodes that could run it
	cant  []nodeRun
}

type nodeRun struct {
	node  int32
	line  int
	tries int
	text  string // of the fault
}

// badRun is a failure of a line on a node.
type badRun struct {
	nodeRun
	way     string // how it failed: the check and the code, or the fault
	suspect Suspect
}

func newNodePlan(f *fleet, o PlanOptions) *nodePlan {
	size := o.Batch
	if size == 0 {
		size = len(f.nodes)
	}
	return &nodePlan{f: f, o: o, size: size, sent: map[int]nodeRun{}, able: make([]int, len(o.Lines))}
}

// Next implements Plan.
func (p *nodePlan) Next() (tasks []Task) {
	for p.batch < len(p.f.nodes) && len(tasks) == 0 {
		end := min(p.batch+p.size, len(p.f.nodes))
		if p.line < len(p.o.Lines) {
			for i := int32(p.batch); i < int32(end); i++ {
				tasks = p.add(tasks, nodeRun{node: i, line: p.line})
			}
			p.line++
			continue
		}
		runs := p.again
		p.again = nil
		for _, r := range runs {
			tasks = p.add(tasks, r)
		}
		if len(tasks) == 0 && len(p.again) == 0 {
			p.batch, p.line = end, 0
		}
	}
	return tasks
}

// add adds the task of a run. A node has one task in a round: a second one waits.
func (p *nodePlan) add(tasks []Task, r nodeRun) []Task {
	if !p.f.tested(r.node) {
		return tasks
	}
	name := p.f.name(r.node)
	if slices.ContainsFunc(tasks, func(t Task) bool { return r.tries > 0 && t.Nodes[0] == name }) {
		p.again = append(p.again, r)
		return tasks
	}
	t := Task{ID: p.f.nextID(), Stage: StageNode, Kind: KindCheck, Nodes: []string{name}, Op: p.o.Lines[r.line], Limit: p.o.CheckLimit}
	p.sent[t.ID] = r
	return append(tasks, t)
}

// Take implements Plan.
func (p *nodePlan) Take(results []Result) {
	slices.SortFunc(results, byID)
	settle(p.sent, results, p.judge, p.retry)
}

func (p *nodePlan) retry(r nodeRun) {
	if r.tries++; r.tries < maxTries {
		p.again = append(p.again, r)
	}
}

func (p *nodePlan) judge(run nodeRun, r Result) {
	line := p.o.Lines[run.line]
	switch {
	case p.f.kill(r):
		return
	case r.Fault == FaultUnable:
		if isSkipped(r.Checks) {
			return
		}
		if run.text = r.Text; run.tries > 0 {
			p.cant = append(p.cant, run)
			return
		}
		p.retry(run)
		return
	case r.Fault == FaultLost:
		p.retry(run)
		return
	}
	found := slices.ContainsFunc(r.Checks, func(c CheckResult) bool { return c.Severity == "fail" })
	if !found && r.Fault != FaultNone && r.Fault != FaultCheck && run.tries == 0 { // it hung or crashed: once more
		p.retry(run)
		return
	}
	p.able[run.line]++
	for _, c := range r.Checks {
		if c.Severity != "fail" {
			continue
		}
		text := oneLine(c.Check, c.Message)
		if c.Device != "" && !strings.Contains(c.Message, c.Device) {
			text = oneLine(c.Check, c.Device+": "+c.Message)
		}
		p.suspect(run, r, oneLine(c.Check, c.Code), text, gpuOf(c.Device))
	}
	if !found && r.Fault != FaultNone {
		p.suspect(run, r, string(r.Fault), ofLine(line, cmpText(r.Text, faultText(r.Fault))), nil)
	}
}

// isSkipped reports whether a check does not apply to a node, which is no doubt about the node.
func isSkipped(results []CheckResult) bool {
	return len(results) > 0 && !slices.ContainsFunc(results, func(c CheckResult) bool { return c.Severity != "skip" })
}

func (p *nodePlan) suspect(run nodeRun, r Result, way, text string, gpu *int) {
	s := Suspect{
		Node: p.f.name(run.node), GPU: gpu, Stage: StageNode, Kind: KindCheck, Code: "sweep.node.check",
		Ops: []string{p.o.Lines[run.line]}, Looks: run.tries + 1, Confidence: checkConfidence,
	}
	if r.Beside {
		s.Doubt, s.Confidence = true, doubtConfidence
		text += " (another job can have run on the node)"
	}
	p.bad = append(p.bad, badRun{run, way, s.explain(text)})
}

// lineWay is a way in which a line fails.
type lineWay struct {
	line int
	way  string
}

// leastWide is the number of nodes that must fail the same way before it is the whole fleet.
const leastWide = 3

// wide returns the ways in which most nodes that can run a line fail it, and how many do: then it is
// the line, or something that the nodes share.
func (p *nodePlan) wide() map[lineWay]int {
	nodes := map[lineWay]map[int32]bool{}
	for _, b := range p.bad {
		key := lineWay{b.line, b.way}
		if nodes[key] == nil {
			nodes[key] = map[int32]bool{}
		}
		nodes[key][b.node] = true
	}
	wide := map[lineWay]int{}
	for key, failed := range nodes {
		if n := len(failed); n >= leastWide && 2*n > p.able[key.line] {
			wide[key] = n
		}
	}
	return wide
}

// Suspects implements Plan.
func (p *nodePlan) Suspects() []Suspect {
	all, wide := p.f.lostSuspects(), p.wide()
	for _, b := range p.bad {
		if wide[lineWay{b.line, b.way}] == 0 {
			all = append(all, b.suspect)
		}
	}
	for _, run := range p.cant {
		if 2*p.able[run.line] < len(p.f.nodes) {
			continue // most nodes cannot run it
		}
		s := Suspect{
			Node: p.f.name(run.node), Stage: StageNode, Kind: KindCheck, Code: "sweep.node.unable",
			Ops: []string{p.o.Lines[run.line]}, Looks: run.tries + 1, Confidence: doubtConfidence, Doubt: true,
		}
		all = append(all, s.explain(ofLine(p.o.Lines[run.line], cmpText(run.text, "cannot run here"))+fmt.Sprintf("; %d nodes can", p.able[run.line])))
	}
	sortSuspects(all)
	return all
}

// Fleet implements Plan. Checks have no values: it returns the lines that most nodes fail or cannot run. If
// no line has run at all, [StageReport.Conclude] says so.
func (p *nodePlan) Fleet() (all []Distribution) {
	wide := p.wide()
	for _, b := range p.bad {
		if n := wide[lineWay{b.line, b.way}]; n > 0 {
			delete(wide, lineWay{b.line, b.way})
			all = append(all, Distribution{
				Stage: StageNode, Kind: KindCheck, Op: p.o.Lines[b.line],
				Note: fmt.Sprintf("most nodes fail: %d of %d, such as %s: %s", n, p.able[b.line], b.suspect.Node, b.suspect.Text),
			})
		}
	}
	if !slices.ContainsFunc(p.able, func(n int) bool { return n > 0 }) {
		return all
	}
	cannot := map[int][]nodeRun{}
	for _, run := range p.cant {
		cannot[run.line] = append(cannot[run.line], run)
	}
	for _, l := range slices.Sorted(maps.Keys(cannot)) {
		if n := len(cannot[l]); 2*p.able[l] < len(p.f.nodes) {
			first := cannot[l][0]
			all = append(all, Distribution{
				Stage: StageNode, Kind: KindCheck, Op: p.o.Lines[l],
				Note: fmt.Sprintf("%d of %d nodes cannot run it, such as %s: %s", n, len(p.f.nodes), p.f.name(first.node), cmpText(oneLine("", first.text), "no reason was given")),
			})
		}
	}
	return all
}

// Left implements Plan.
func (p *nodePlan) Left() int {
	if p.batch >= len(p.f.nodes) {
		return 0
	}
	later := (len(p.f.nodes) - p.batch - 1) / p.size
	left := later*len(p.o.Lines) + len(p.o.Lines) - p.line
	if len(p.again) > 0 {
		left++
	}
	return left
}

var gpuName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^gpu([0-9]+)\b`) })

// gpuOf returns the number of the GPU that a device names: "gpu3 0000:c1:00.0"; nil if it is another
// device.
func gpuOf(device string) *int {
	m := gpuName().FindStringSubmatch(device)
	if m == nil {
		return nil
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		return nil
	}
	return &n
}

// ofLine names the line of a text, unless the text begins with its check.
func ofLine(line, text string) string {
	check, _, _ := strings.Cut(line, " ")
	if strings.HasPrefix(text, check) {
		return oneLine("", text)
	}
	return oneLine(line, text)
}
