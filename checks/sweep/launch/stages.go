package launch

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
)

// stages runs the stages, one after the other.
func (s *sweeper) stages(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	s.losses = &losses{hub: s.hub, m: s.m, job: s.job, limit: 2*s.message + 5*time.Second, began: time.Now(), stepEnd: s.stepEnd, known: map[string]sweep.Loss{}}
	var nodes []sweep.Node
	for _, n := range s.hub.start() {
		nodes = append(nodes, s.describe(n))
	}
	for _, name := range s.remaining() {
		if !slices.ContainsFunc(nodes, func(n sweep.Node) bool { return n.Name == name }) {
			s.exclude(name, "dead", "its rank has ended")
		}
	}
	saved, err := s.record.lines()
	if err != nil {
		return fmt.Errorf("read the results of sweep %s: %w", s.record.Meta.ID, err)
	}
	e := &engine{
		hub: s.hub, ready: s.limits.ready, slack: s.limits.slack, ramp: s.Ramp,
		absent: map[string]string{}, beside: s.beside,
	}
	s.clock = newClock(&s.Options, s.fit(nodes))
	for _, stage := range s.Stages {
		if ctx.Err() != nil {
			break
		}
		fit := s.fit(nodes)
		if slices.Contains(s.OnGPUs, stage) {
			fit = slices.DeleteFunc(fit, func(n sweep.Node) bool { return n.Closed > 0 })
		}
		if err := s.stage(ctx, e, stage, fit, saved); err != nil {
			return err
		}
	}
	s.losses.examine(ctx, nil) // those that were in no test when they were lost
	if ctx.Err() != nil {
		s.report.Interrupted = context.Cause(ctx).Error()
	}
	s.keepHistories(ctx, e)
	return nil
}

// stepEnd returns how the step of a node has ended, "" if that is unknown.
func (s *sweeper) stepEnd(node string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped[node]
}

// onGPUs returns the stages of this sweep that need all GPUs of a node.
func (s *sweeper) onGPUs() (words []string) {
	for _, stage := range s.Stages {
		if slices.Contains(s.OnGPUs, stage) {
			words = append(words, string(stage))
		}
	}
	return words
}

// whyClosed returns why the stages that need GPUs exclude a node.
func (s *sweeper) whyClosed(n sweep.Node) string {
	return fmt.Sprintf("not tested by %s: job %s can use %d of its %d GPUs: give the job all of them (--exclusive, and with --gres all that gres.conf has)",
		strings.Join(s.onGPUs(), ", "), s.job, n.GPUs-n.Closed, n.GPUs)
}

// fit returns the nodes that no stage has excluded, without the planes on which they are not reached:
// each test there would last until its limit, and say the same.
func (s *sweeper) fit(nodes []sweep.Node) (fit []sweep.Node) {
	ended := map[string]string{}
	s.hub.look(func() {
		maps.Copy(ended, s.hub.lost)
		maps.Copy(ended, s.hub.byes)
	})
	for _, n := range nodes {
		bad := slices.ContainsFunc(s.report.Suspects, func(x sweep.Suspect) bool {
			return x.Node == n.Name && !x.Doubt && x.Peer == "" && x.Plane == ""
		})
		if !bad && ended[n.Name] == "" {
			n.Planes = slices.DeleteFunc(slices.Clone(n.Planes), func(p sweep.Plane) bool { return s.unreached(n.Name, p) })
			fit = append(fit, n)
		}
	}
	return fit
}

// unreached reports whether stage reach accuses a node of a plane that loses data, or has no connection.
func (s *sweeper) unreached(node string, p sweep.Plane) bool {
	return slices.ContainsFunc(s.report.Suspects, func(x sweep.Suspect) bool {
		return x.Node == node && x.Peer == "" && !x.Doubt && p.In(x.Plane) && (x.Code == "sweep.reach.loss" || x.Code == "sweep.reach.connect")
	})
}

// stageRun is a stage under way.
type stageRun struct {
	s     *sweeper
	e     *engine
	plan  sweep.Plan
	nodes []sweep.Node // of the plan
	saved []line       // of this stage, from an earlier process
	rep   sweep.StageReport
}

// stage runs a stage. The rounds that an interrupted sweep has finished are not run again.
func (s *sweeper) stage(ctx context.Context, e *engine, stage sweep.Stage, nodes []sweep.Node, saved []line) error {
	r := &stageRun{s: s, e: e, nodes: nodes, rep: sweep.StageReport{Stage: stage, Began: time.Now().UTC()}}
	r.saved = slices.DeleteFunc(slices.Clone(saved), func(l line) bool { return l.Stage != stage })
	defer clear(e.absent)
	if err := r.fixNodes(); err != nil {
		return err
	}
	if r.rep.Skipped = sweep.Unfit(stage, len(r.nodes)); r.rep.Skipped != "" {
		r.rep.Conclude(s.Asked, r.nodes)
		s.report.Stages = append(s.report.Stages, r.rep)
		return nil
	}
	var err error
	if r.plan, err = s.Plan(stage, r.nodes, s.Seed, s.last+1); err != nil {
		return fmt.Errorf("plan stage %s: %w", stage, err)
	}
	e.first = true
	for {
		tasks, ok := s.next(ctx, r.plan)
		if !ok {
			s.Log("stage %s: the planning of round %d does not end", stage, r.rep.Rounds+1)
			s.report.Stages = append(s.report.Stages, r.rep)
			return nil
		}
		if len(tasks) == 0 {
			r.conclude(true)
			return nil
		}
		complete, err := r.round(ctx, tasks)
		if err != nil {
			return err
		}
		if !complete {
			r.conclude(false)
			return nil
		}
	}
}

// fixNodes records the nodes of a stage that begins. The plan depends on them: a stage that goes on after an
// interruption takes the recorded ones, and no task runs on those that have gone since.
func (r *stageRun) fixNodes() error {
	if i := slices.IndexFunc(r.saved, func(l line) bool { return len(l.Nodes) > 0 }); i >= 0 {
		here := r.nodes
		r.rep.Began, r.nodes = r.saved[i].Began, r.saved[i].Nodes
		for _, n := range r.nodes {
			if !slices.ContainsFunc(here, func(h sweep.Node) bool { return h.Name == n.Name }) {
				r.e.absent[n.Name] = "it was there before the interruption, and is not now"
			}
		}
		return nil
	}
	if len(r.nodes) == 0 {
		return nil
	}
	stage, began := r.rep.Stage, r.rep.Began
	return r.write(line{Stage: stage, Began: began, Nodes: r.nodes, At: began, About: r.s.clock.left(stage, r.s.clock.rounds(stage))})
}

// write appends a line to the results of the sweep.
func (r *stageRun) write(l line) error {
	if err := r.s.record.appendLine(resultsFile, l); err != nil {
		return fmt.Errorf("write the results: %w", err)
	}
	return nil
}

// round takes the results of the next round from an earlier process, or carries the round out and records it.
// complete is false if ctx ends first: the round is run again if the sweep is continued.
func (r *stageRun) round(ctx context.Context, tasks []sweep.Task) (complete bool, err error) {
	for i := range tasks {
		r.s.last = max(r.s.last, tasks[i].ID)
	}
	results, done := resume(r.saved, r.rep.Stage, r.rep.Rounds+1)
	if !done {
		if ctx.Err() != nil {
			return false, nil
		}
		results = r.carryOut(ctx, tasks)
		for i := range results {
			results[i].Summarize()
		}
		if ctx.Err() != nil {
			r.rep.Results = append(r.rep.Results, results...)
			r.s.cutOff[r.rep.Stage] = results
			return false, nil
		}
		if err := r.write(line{
			Stage: r.rep.Stage, Round: r.rep.Rounds + 1, Tasks: len(tasks), Results: results,
			At: time.Now().UTC(), About: r.s.clock.left(r.rep.Stage, r.plan.Left()),
		}); err != nil {
			return false, err
		}
	}
	r.plan.Take(results)
	r.rep.Rounds++
	r.rep.Results = append(r.rep.Results, results...)
	return true, nil
}

// carryOut carries out the tasks of a round: it shows their progress, measures how long they take, and finds out
// why nodes were lost.
func (r *stageRun) carryOut(ctx context.Context, tasks []sweep.Task) []sweep.Result {
	s, began := r.s, time.Now()
	p := Progress{
		Stage: r.rep.Stage, Round: r.rep.Rounds + 1, Left: r.plan.Left(), Tasks: len(tasks), Nodes: len(r.nodes),
		Suspects: len(s.report.Suspects) + len(r.plan.Suspects()), About: s.clock.left(r.rep.Stage, 1+r.plan.Left()),
	}
	s.tell(p)
	r.e.told = func(result sweep.Result, left int) {
		now := p
		now.Ended, now.Result, now.About = len(tasks)-left, &result, max(p.About-time.Since(began), 0)
		s.tell(now)
	}
	first := r.e.first
	results := r.e.round(ctx, tasks)
	took := time.Since(began)
	if first { // the next rounds begin faster
		took -= slices.Max(sweep.Starts(tasks, s.Ramp, true)) - slices.Max(sweep.Starts(tasks, s.Ramp, false))
	}
	s.clock.measure(took)
	lost := func(x sweep.Result) bool { return x.Fault == sweep.FaultLost || x.Fault == sweep.FaultSilent }
	if len(results) < len(tasks) || slices.ContainsFunc(results, lost) {
		s.over(ctx)
		s.losses.examine(ctx, results)
	}
	return results
}

// conclude adds the stage to the report of the sweep. finished is false if the sweep was interrupted in it.
func (r *stageRun) conclude(finished bool) {
	report := r.s.report
	r.rep.Fleet, r.rep.Suspects = r.plan.Fleet(), r.plan.Suspects()
	if finished {
		r.rep.Ended = time.Now().UTC()
		r.rep.Conclude(r.s.Asked, r.nodes)
	}
	report.Stages = append(report.Stages, r.rep)
	report.Suspects = append(report.Suspects, r.rep.Suspects...)
	slices.SortStableFunc(report.Suspects, func(a, b sweep.Suspect) int { return cmp.Compare(b.Confidence, a.Confidence) })
}

// next returns the next round of a plan. ok is false if the plan goes on after the end of the sweep: it
// must not be used any more.
func (s *sweeper) next(ctx context.Context, plan sweep.Plan) (tasks []sweep.Task, ok bool) {
	planned := make(chan []sweep.Task, 1)
	go func() { planned <- plan.Next() }()
	select {
	case tasks = <-planned:
		return tasks, true
	case <-ctx.Done():
	}
	select {
	case tasks = <-planned:
		return tasks, true
	case <-time.After(s.limits.plan):
		return nil, false
	}
}

// resume returns the results of a finished round.
func resume(saved []line, stage sweep.Stage, round int) ([]sweep.Result, bool) {
	for _, l := range saved {
		if l.Stage == stage && l.Round == round {
			return l.Results, true
		}
	}
	return nil, false
}

func (s *sweeper) tell(p Progress) {
	if s.Progress != nil {
		s.Progress(p)
	}
}

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
