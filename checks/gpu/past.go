package gpu

import (
	"errors"
	"io/fs"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// The state that checks of GPUs keep between runs: counters, to judge how fast they grow, and the
// number of consecutive runs with a symptom, since one observation proves nothing.

// gpuPast is the state of all GPUs that a check keeps.
type gpuPast[T any] struct {
	Taken time.Time    `json:"taken"`
	GPUs  map[string]T `json:"gpus"` // by UUID
}

// memory is the state of the last run and that of this run.
type memory[T any] struct {
	check, name string
	past        gpuPast[T]
	next        gpuPast[T]
	elapsed     time.Duration // since the last run; 0: the past is missing or not usable
	recent      bool          // the past is too recent to be used, and is kept
	findings    []checks.Finding
}

// recallGPU reads the state of the last run.
func recallGPU[T any](env *checks.Env, check, name string, now time.Time) *memory[T] {
	m := &memory[T]{check: check, name: name, next: gpuPast[T]{Taken: now, GPUs: map[string]T{}}}
	err := env.Recall(name, &m.past)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, probe.ErrNoMemory) { // a node can have no place for state
		m.past = gpuPast[T]{}
		m.findings = []checks.Finding{checks.Finding{Code: "gpu.past", Severity: checks.Warn}.Describe(check, "%v", err)}
	}
	switch elapsed := now.Sub(m.past.Taken); {
	case m.past.Taken.IsZero() || elapsed < 0: // no past, or the clock was set back
	case elapsed < checks.MinPast:
		m.recent = true
	default:
		m.elapsed = elapsed
	}
	return m
}

// of returns the state of a GPU in the last run, and whether it can be compared with now.
func (m *memory[T]) of(g *nvml.GPU) (then T, known bool) { return m.under(g, g.UUID.Value) }

// under is the same for a state that is stored under another name than the UUID.
func (m *memory[T]) under(g *nvml.GPU, name string) (then T, known bool) {
	then, known = m.past.GPUs[name]
	return then, known && g.UUID.Known && m.elapsed > 0
}

// store saves the state of this run for the next one.
func (m *memory[T]) store(env *checks.Env) []checks.Finding {
	if m.recent {
		return m.findings
	}
	delete(m.next.GPUs, "") // a GPU without UUID could be any
	return append(m.findings, checks.KeepForLater(env, m.check, m.name, m.next)...)
}

// perMinute returns how fast a counter has grown. A counter that was reset starts at 0.
func perMinute(then, now uint64, elapsed time.Duration) float64 {
	if now < then {
		then = 0
	}
	return float64(now-then) / elapsed.Minutes()
}

// inARow is the number of consecutive runs with a symptom after which a GPU fails.
const inARow = 3
