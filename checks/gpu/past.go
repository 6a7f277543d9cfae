package gpu

import (
	"errors"
	"io/fs"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// What checks of GPUs know from an earlier run: counters, by which they judge how
// fast something grows, and how often in a row something was seen, since an
// instant is no proof.

// gpuPast is what a check keeps of each GPU.
type gpuPast[T any] struct {
	Taken time.Time    `json:"taken"`
	GPUs  map[string]T `json:"gpus"` // by UUID
}

// memory is what a check remembers, and what it is to remember.
type memory[T any] struct {
	check, name string
	past        gpuPast[T]
	next        gpuPast[T]
	elapsed     time.Duration // since the past was taken; 0: there is none that can be used
	recent      bool          // the past is too recent to be used, and stays
	forgetful   bool          // nothing is kept at all
	findings    []checks.Finding
}

// recallGPU reads what the check has kept.
func recallGPU[T any](env *checks.Env, check, name string, now time.Time) *memory[T] {
	m := &memory[T]{check: check, name: name, next: gpuPast[T]{Taken: now, GPUs: map[string]T{}}}
	err := env.Recall(name, &m.past)
	switch {
	case err == nil:
	case errors.Is(err, probe.ErrNoMemory):
		m.forgetful = true
	case !errors.Is(err, fs.ErrNotExist):
		m.past = gpuPast[T]{}
		m.findings = []checks.Finding{checks.Finding{Code: "gpu.past", Severity: checks.Warn}.Describe(check, "%v", err)}
	}
	switch elapsed := now.Sub(m.past.Taken); {
	case m.past.Taken.IsZero() || elapsed < 0: // none, or a clock that was set back
	case elapsed < checks.MinPast:
		m.recent = true
	default:
		m.elapsed = elapsed
	}
	return m
}

// of is what is known of a GPU: then, if that can be compared with now.
func (m *memory[T]) of(g *nvml.GPU) (then T, known bool) {
	then, known = m.past.GPUs[g.UUID.Value]
	return then, known && g.UUID.Known && m.elapsed > 0
}

// store keeps what is to be known next time.
func (m *memory[T]) store(env *checks.Env) []checks.Finding {
	if m.recent {
		return m.findings
	}
	delete(m.next.GPUs, "") // of GPUs without UUID, which could be any
	return append(m.findings, checks.KeepForLater(env, m.check, m.name, m.next)...)
}

// perMinute is how fast a counter has grown. One that was reset begins at 0.
func perMinute(then, now uint64, elapsed time.Duration) float64 {
	if now < then {
		then = 0
	}
	return float64(now-then) / elapsed.Minutes()
}

// inARow is how often something has to be seen in runs one after the other
// before it fails a GPU.
const inARow = 3
