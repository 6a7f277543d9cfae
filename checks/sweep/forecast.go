package sweep

import "time"

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

// Foresee estimates a stage by the first round of its plan. The plan cannot be used afterwards.
func Foresee(stage Stage, p Plan) Forecast {
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
	f.About = time.Duration(f.Rounds) * longest
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
