package launch

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
)

// noteLimit is how long a node may take to add an event to its history. All nodes together have twice
// that.
const noteLimit = 10 * time.Second

// keepHistories has each suspect node add its event to its own history, and notes in the report which
// history lacks it: then the report is its only record. Histories are root's, and ranks are root's only
// in a sweep of root. After an interruption nothing is written: others wait for the nodes, and the sweep
// can be continued.
func (s *sweeper) keepHistories(ctx context.Context, e *engine) {
	if !s.Root || s.Events == nil || len(s.report.Suspects) == 0 {
		return
	}
	s.report.Job, s.report.Ended = s.job, time.Now().UTC().Truncate(time.Millisecond)
	events := s.Events(s.report)
	ctx, cancel := context.WithTimeout(ctx, 2*noteLimit)
	defer cancel()
	var tasks []sweep.Task
	for _, node := range slices.Sorted(maps.Keys(events)) {
		s.history[node] = "the sweep was interrupted"
		if s.report.Interrupted == "" {
			s.history[node] = "no answer within " + (2 * noteLimit).String()
			s.last++
			tasks = append(tasks, sweep.Task{ID: s.last, Kind: sweep.KindNote, Nodes: []string{node}, Op: string(events[node]), Limit: noteLimit})
		}
	}
	e.told = nil
	for _, r := range e.round(ctx, tasks) {
		node := r.Task.Nodes[0]
		s.history[node] = r.Text
		if r.Fault == sweep.FaultNone {
			s.history[node] = sweep.Written
		}
	}
	for _, t := range tasks {
		if node := t.Nodes[0]; s.history[node] != sweep.Written {
			s.Log("node %s: its own history lacks the finding: %s", node, s.history[node])
		}
	}
}
