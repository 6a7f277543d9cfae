package gpu

import (
	"errors"
	"io/fs"
	"strings"
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

	// Unread has, by UUID and counter, when a counter was last read, if the run at Taken could not read it: zero if it
	// was never read. The counter "" stands for all others.
	Unread map[string]map[string]time.Time `json:"unread,omitempty"`
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

// readAt returns when a counter was read last.
func (m *memory[T]) readAt(name, counter string) time.Time {
	for _, of := range []string{counter, ""} {
		if at, unread := m.past.Unread[name][of]; unread {
			return at
		}
	}
	return m.past.Taken
}

func (m *memory[T]) noteUnread(name, counter string, at time.Time) {
	if m.next.Unread == nil {
		m.next.Unread = map[string]map[string]time.Time{}
	}
	if m.next.Unread[name] == nil {
		m.next.Unread[name] = map[string]time.Time{}
	}
	m.next.Unread[name][counter] = at
}

// counter returns the value of a counter for the next run, and its growth since it was last read. then is its value in
// the past, which counts if compare is true. A counter that was reset starts at 0. One without a reading has not
// grown, and keeps its past.
func (m *memory[T]) counter(
	g *nvml.GPU, counter string, now nvml.Reading[uint64], then uint64, compare bool,
) (value uint64, grown checks.Growth) {
	name, at := g.UUID.Value, time.Time{}
	if compare {
		at = m.readAt(name, counter)
	}
	switch {
	case !now.Known && at.IsZero():
		m.noteUnread(name, counter, at)
		return 0, grown
	case !now.Known:
		m.noteUnread(name, counter, at)
		return then, grown
	case at.IsZero():
		return now.Value, grown
	}
	over := m.next.Taken.Sub(at)
	return now.Value, checks.Growth{N: checks.GrownFrom(then, now.Value, 64), Over: over, Known: over > 0}
}

// keep keeps the state of a GPU that this run could not read.
func (m *memory[T]) keep(g *nvml.GPU) {
	if !g.UUID.Known || m.elapsed == 0 {
		return
	}
	for name, then := range m.past.GPUs {
		if name != g.UUID.Value && !strings.HasPrefix(name, g.UUID.Value+" ") {
			continue
		}
		m.next.GPUs[name] = then
		for counter, at := range m.past.Unread[g.UUID.Value] {
			m.noteUnread(g.UUID.Value, counter, at)
		}
		m.noteUnread(g.UUID.Value, "", m.readAt(g.UUID.Value, ""))
	}
}

// store saves the state of this run for the next one.
func (m *memory[T]) store(s *GPUs) []checks.Finding {
	if m.recent {
		return m.findings
	}
	for i := range s.NVML.GPUs {
		if g := &s.NVML.GPUs[i]; g.Err != nil {
			m.keep(g)
		}
	}
	delete(m.next.GPUs, "") // a GPU without UUID could be any
	delete(m.next.Unread, "")
	return append(m.findings, checks.KeepForLater(s.Env, m.check, m.name, m.next)...)
}

// inARow is the number of consecutive runs with a symptom after which a GPU fails.
const inARow = 3
