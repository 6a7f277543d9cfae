package sweep

import (
	"slices"
	"time"
)

// Forecast is an estimate of a stage before it begins. The confirmation of suspects is not part of it.
type Forecast struct {
	Stage   Stage         `json:"stage"`
	Rounds  int           `json:"rounds"`
	Tests   int           `json:"tests"` // of the first round
	About   time.Duration `json:"about"`
	Skipped string        `json:"skipped,omitempty"` // why it will not run
}

// What a test takes besides its measurements, and a check altogether: judgement. Measured rounds replace
// them as soon as there are some.
const (
	aboutStart = 2 * time.Second
	aboutCheck = time.Minute
)

// loadsGPU reports whether the tests of a kind load GPUs.
func (k Kind) loadsGPU() bool { return k == KindCheck || k == KindNCCL }

// mostSpread bounds how long the GPU tests of a round take to begin after the first round of a stage.
const mostSpread = 10 * time.Second

// Starts returns when the tests of a round begin, after the begin of the round. The power of a rack must
// not rise at once: in the first round of a stage GPU work begins on at most perSecond nodes in a second,
// 0 for all. Each later round begins after a pause of seconds, and within mostSpread: otherwise the
// rounds of thousands of nodes would take minutes each.
func Starts(tasks []Task, perSecond int, first bool) []time.Duration {
	starts := make([]time.Duration, len(tasks))
	nodes := 0
	for i, t := range tasks {
		if perSecond > 0 && t.Kind.loadsGPU() {
			starts[i] = time.Duration(nodes) * time.Second / time.Duration(perSecond)
			nodes += len(t.Nodes)
		}
	}
	if perSecond <= 0 || first {
		return starts
	}
	if spread := time.Duration(nodes) * time.Second / time.Duration(perSecond); spread > mostSpread {
		for i := range starts {
			starts[i] = time.Duration(float64(starts[i]) * float64(mostSpread) / float64(spread))
		}
	}
	return starts
}

// Foresee estimates a stage by the first round of its plan, and perSecond of [Starts]. The plan cannot be
// used afterwards.
func Foresee(stage Stage, p Plan, perSecond int) Forecast {
	tasks := p.Next()
	if len(tasks) == 0 {
		return Forecast{Stage: stage, Skipped: "nothing to test"}
	}
	f := Forecast{Stage: stage, Rounds: 1 + p.Left(), Tests: len(tasks)}
	longest := time.Duration(0)
	for _, t := range tasks {
		longest = max(longest, aboutStart+time.Duration(max(1, t.Repeats))*t.Time)
		if t.Kind == KindCheck {
			longest = max(longest, aboutCheck)
		}
	}
	first, later := slices.Max(Starts(tasks, perSecond, true)), slices.Max(Starts(tasks, perSecond, false))
	f.About = first + longest + time.Duration(f.Rounds-1)*(later+longest)
	return f
}

// Unfit returns why a stage cannot test a number of nodes, "" if it can.
func Unfit(stage Stage, nodes int) string {
	switch {
	case nodes == 0:
		return "no node is left to test"
	case nodes == 1 && stage != StageNode:
		return "it needs two nodes"
	}
	return ""
}
