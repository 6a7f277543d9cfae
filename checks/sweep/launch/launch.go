// Package launch carries out a sweep: it allocates nodes through Slurm, starts a rank on each, has them
// run the tasks of the plans, and writes down what they find. It is the only part of a sweep that calls
// Slurm. Nothing in it waits without a limit: a node that hangs or dies is a result, and the others go
// on.
package launch

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Planner makes the plan of a stage. The tasks have IDs from first on.
type Planner func(stage sweep.Stage, nodes []sweep.Node, seed uint64, first int) (sweep.Plan, error)

// Options are those of a sweep.
type Options struct {
	Version string
	Command []string // as it was called, without the program
	Program []string // that the nodes run: nhc-gpu and its arguments
	State   string   // directory of all sweeps, see [StateDir]
	Root    bool
	User    string

	Settings slurm.Settings
	Env      []string // for the ranks, besides the settings of Slurm
	Job      string   // of this process, whose nodes are tested; "": nodes are allocated

	Nodes       []string // none: all that the other options choose
	Partition   string
	NodeState   string
	Reservation string
	Feature     string

	Idle        bool // only idle nodes; give way when asked
	QOS         string
	Account     string
	Maintenance bool
	Resume      bool // leave nodes in service that a sweep had drained and that pass

	Stages []sweep.Stage
	Plan   Planner
	Ramp   int // nodes that begin to load GPUs in a second
	Seed   uint64

	Time     time.Duration // hard limit of the job
	Queue    time.Duration // how long the job may wait for nodes
	Continue string        // ID of the sweep to continue

	Log      func(format string, args ...any)
	Progress func(Progress)
	// Events returns the events of the suspect nodes. Each node adds its own to its history.
	Events func(*sweep.Report) map[string][]byte
	// Act is called when the nodes are free again, before the report is saved: it drains suspects. The
	// report of an interrupted sweep has its reason.
	Act func(context.Context, *sweep.Report)

	limits limits
}

// limits are shorter in tests.
type limits struct {
	silence  time.Duration // after which a rank or a launcher counts as lost
	ready    time.Duration // for the preparation of a task
	slack    time.Duration // between the end of a task on the ranks and here
	farewell time.Duration // for ranks to end
	ask      time.Duration // for a question to Slurm
	look     time.Duration // between two looks at the nodes of an allocation
}

var usual = limits{silence: 10 * time.Second, ready: 60 * time.Second, slack: 10 * time.Second, farewell: 1500 * time.Millisecond, ask: askLimit, look: 15 * time.Second}

// Progress is how far a sweep is.
type Progress struct {
	Doing    string // before the first stage
	Stage    sweep.Stage
	Round    int // from 1
	Left     int // rounds after this one, an estimate
	Tasks    int // of this round
	Ended    int // of them
	Nodes    int
	Suspects int           // so far
	About    time.Duration // that the sweep still takes, an estimate
	Result   *sweep.Result // of the task that has just ended
}

// sweeper is a sweep under way.
type sweeper struct {
	Options
	m      *manager
	record *record
	report *sweep.Report

	cluster string
	message time.Duration // MessageTimeout
	job     string
	own     bool              // the job was allocated for the sweep
	held    map[string]string // drained nodes of a maintenance, and their reasons
	nodes   []string
	away    map[string]sweep.NodeReport // nodes that cannot be tested
	leaves  map[string]string
	beside  map[string]bool
	keeper  *maintenance

	hub     *hub
	ticket  []byte
	clock   *clock
	last    int               // ID of the last task
	history map[string]string // of suspect nodes: see [sweep.NodeReport]
	steps   sync.WaitGroup
	cut     context.CancelFunc // ends the steps

	interrupt context.CancelCauseFunc // ends the stages

	mu      sync.Mutex
	stopped map[string]string // nodes whose step has ended before their rank said anything
	frozen  map[string]string // nodes on which no step starts
}

// Run carries out a sweep. It returns an error if no node could be tested; the report of a sweep that was
// interrupted has the reason.
func Run(ctx context.Context, o Options) (*sweep.Report, error) {
	if o.limits == (limits{}) {
		o.limits = usual
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	s := &sweeper{Options: o, m: newManager(o.Settings, o.Env), away: map[string]sweep.NodeReport{}, held: map[string]string{}, history: map[string]string{}, stopped: map[string]string{}, frozen: map[string]string{}}
	s.m.user, s.m.net, s.m.log, s.m.limit = o.User, o.Time+10*time.Minute, o.Log, o.limits.ask
	if err := prepare(o.State); err != nil {
		return nil, err
	}
	if err := Repair(o); err != nil {
		if o.Maintenance {
			return nil, err
		}
		s.Log("%v", err)
	}
	if err := s.openRecord(); err != nil {
		return nil, err
	}
	defer s.record.close()
	defer prune(o.State, kept)
	s.report = &sweep.Report{
		Schema: 1, Version: o.Version, ID: s.record.Meta.ID, Began: s.record.Meta.Began, Command: s.record.Meta.Command,
		Continued: s.record.Meta.Continued, Nodes: []sweep.NodeReport{}, Stages: []sweep.StageReport{}, Suspects: []sweep.Suspect{},
	}
	err := s.test(ctx)
	if undo := s.undo(); undo != nil {
		err = errors.Join(err, undo)
	}
	s.finish(ctx)
	return s.report, errors.Join(err, s.record.save(reportFile, s.report))
}

// openRecord makes the directory of the sweep, or opens that of the one to continue.
func (s *sweeper) openRecord() (err error) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	if s.Continue != "" {
		if s.record, err = reopen(s.State, s.Continue); err != nil {
			return fmt.Errorf("continue sweep %s: %w", s.Continue, err)
		}
		s.Seed = s.record.Meta.Seed
		s.record.Meta.Continued = append(s.record.Meta.Continued, now)
		if s.record.Meta.Version != s.Version {
			s.record.close()
			return fmt.Errorf("continue sweep %s: it was begun by nhc-gpu %s, this is %s", s.Continue, s.record.Meta.Version, s.Version)
		}
		return s.record.saveMeta()
	}
	word := make([]byte, 2)
	_, _ = rand.Read(word)
	s.record, err = create(s.State, Meta{
		ID: now.Format("20060102-150405-") + hex.EncodeToString(word), Version: s.Version, Began: now, Command: s.Command, Seed: s.Seed,
	})
	return err
}

// test does everything that needs nodes.
func (s *sweeper) test(ctx context.Context) error {
	var err error
	if s.cluster, s.message, err = s.m.config(ctx); err != nil {
		return err
	}
	if err := s.choose(ctx); err != nil {
		return err
	}
	s.tell(Progress{Doing: "wait for the nodes", Nodes: len(s.nodes)})
	if err := s.obtain(ctx); err != nil {
		return err
	}
	s.tell(Progress{Doing: "start the ranks", Nodes: len(s.nodes)})
	s.leaves = s.m.leaves(ctx)
	if s.beside, err = s.m.busy(ctx, s.job); err != nil {
		s.Log("%v: measurements beside other jobs are not marked", err)
	}
	if err := s.probe(ctx); err != nil {
		return err
	}
	listener, err := s.listen()
	if err != nil {
		return err
	}
	stepping, cut := context.WithCancel(context.WithoutCancel(ctx))
	s.cut = func() { // undo calls it: the ranks must end by the last message, or they would count as dead
		cut()
		listener.Close()
	}
	s.startRanks(stepping)
	if err := s.gather(ctx); err != nil {
		return err
	}
	ctx, s.interrupt = context.WithCancelCause(ctx)
	defer s.interrupt(nil)
	go s.heed(ctx)
	return s.stages(ctx)
}

// choose finds the nodes of the sweep.
func (s *sweeper) choose(ctx context.Context) error {
	all, err := s.m.nodes(ctx)
	if err != nil {
		return err
	}
	sel := slurm.Selection{Nodes: s.Nodes, Partition: s.Partition, State: s.NodeState, Feature: s.Feature}
	if s.Reservation != "" {
		reserved, err := s.m.reservations(ctx)
		if err != nil {
			return err
		}
		list, ok := reserved[s.Reservation]
		if !ok {
			return fmt.Errorf("unknown to Slurm: reservation %s", s.Reservation)
		}
		sel.Reserved, sel.IsReserved = list, true
	}
	if s.Job != "" {
		j, err := s.m.job(ctx, s.Job)
		if err != nil {
			return err
		}
		s.job = s.Job
		if len(sel.Nodes) == 0 {
			sel.Nodes = j.Nodes
		} else {
			sel.Nodes = slices.DeleteFunc(slices.Clone(sel.Nodes), func(n string) bool { return !slices.Contains(j.Nodes, n) })
		}
		if len(sel.Nodes) == 0 {
			return fmt.Errorf("job %s has none of the nodes", s.Job)
		}
	}
	chosen, err := sel.Select(all)
	if err != nil {
		return err
	}
	for _, n := range chosen {
		why := ""
		switch {
		case s.Job != "":
		case s.Idle && !n.IsIdle():
			why = "not idle (" + n.State.Text + ")"
		default:
			why = n.Usable(s.Maintenance, s.Reservation != "")
		}
		if why != "" {
			s.exclude(n.Name, "excluded", why)
			continue
		}
		if s.Maintenance && n.IsDrained() {
			s.held[n.Name] = n.Reason
		}
		s.nodes = append(s.nodes, n.Name)
	}
	if len(s.nodes) == 0 {
		return fmt.Errorf("none of %d nodes can be tested: %s", len(chosen), firstWhy(s.away))
	}
	if s.record == nil {
		return nil
	}
	s.record.Meta.Nodes = s.nodes
	return s.record.saveMeta()
}

// Look returns the nodes that a sweep would test, and those that it would not. It changes nothing.
func Look(ctx context.Context, o Options) (nodes []sweep.Node, away []sweep.NodeReport, err error) {
	o.Log = func(string, ...any) {}
	s := &sweeper{Options: o, m: newManager(o.Settings, o.Env), away: map[string]sweep.NodeReport{}, held: map[string]string{}}
	if err := s.choose(ctx); err != nil {
		return nil, nil, err
	}
	s.leaves = s.m.leaves(ctx)
	if s.beside, err = s.m.busy(ctx, s.job); err != nil {
		return nil, nil, err
	}
	for _, n := range s.nodes {
		nodes = append(nodes, s.describe(sweep.Node{Name: n}))
	}
	for _, n := range slices.Sorted(maps.Keys(s.away)) {
		away = append(away, s.away[n])
	}
	return nodes, away, nil
}

func firstWhy(away map[string]sweep.NodeReport) string {
	for _, name := range slices.Sorted(maps.Keys(away)) {
		return "node " + name + ": " + away[name].Why
	}
	return ""
}

// exclude takes a node out of the sweep.
func (s *sweeper) exclude(name, state, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.away[name]; !ok {
		s.away[name] = sweep.NodeReport{Node: sweep.Node{Name: name}, State: state, Why: why}
		s.Log("node %s is not tested: %s", name, why)
	}
}

// remaining returns the nodes that are still part of the sweep.
func (s *sweeper) remaining() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		if _, away := s.away[n]; !away {
			names = append(names, n)
		}
	}
	return names
}

// undo ends the ranks and the job, and the maintenance.
func (s *sweeper) undo() (err error) {
	if s.hub != nil {
		s.hub.end("the sweep is over")
		done := make(chan struct{})
		go func() { s.steps.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(s.limits.farewell):
		}
	}
	if s.own && s.keeper == nil {
		err = s.m.cancel(s.job)
	}
	if s.keeper != nil {
		err = s.keeper.end(s.passed())
	}
	if s.cut != nil {
		s.cut()
		s.steps.Wait()
	}
	return err
}

// passed returns the nodes that --resume leaves in service: a sweep had drained them, and they have run
// through all stages without a suspicion.
func (s *sweeper) passed() map[string]bool {
	keep := map[string]bool{}
	if !s.Resume || !s.complete() {
		return keep
	}
	for name, reason := range s.held {
		_, away := s.snapshot()[name]
		lost := ""
		if s.hub != nil {
			s.hub.look(func() { lost = s.hub.lost[name] })
		}
		accused := slices.ContainsFunc(s.report.Suspects, func(x sweep.Suspect) bool { return x.Node == name || x.Peer == name })
		keep[name] = slurm.BySweep(reason) && !away && lost == "" && !accused
	}
	return keep
}

// complete reports whether all stages have run to their end.
func (s *sweeper) complete() bool {
	done := 0
	for i := range s.report.Stages {
		if st := &s.report.Stages[i]; !st.Ended.IsZero() && st.Skipped == "" && st.Rounds > 0 {
			done++
		} else if st.Skipped == "" {
			return false
		}
	}
	return done > 0
}

// finish completes the report.
func (s *sweeper) finish(ctx context.Context) {
	r := s.report
	r.Cluster, r.Job = s.cluster, s.job
	if ctx.Err() != nil && r.Interrupted == "" {
		r.Interrupted = context.Cause(ctx).Error()
	}
	keep := s.passed()
	lost := map[string]string{}
	known := map[string]sweep.Node{}
	if s.hub != nil {
		s.hub.look(func() {
			maps.Copy(lost, s.hub.lost)
			for name, p := range s.hub.known {
				known[name] = s.describe(p.node)
			}
		})
	}
	away := s.snapshot()
	for _, name := range slices.Sorted(maps.Keys(joinKeys(away, s.nodes))) {
		n, out := away[name]
		if !out {
			n = sweep.NodeReport{Node: sweep.Node{Name: name}, State: "tested"}
			if k, ok := known[name]; ok {
				n.Node = k
			} else {
				n.State, n.Why = "excluded", "the sweep has ended before"
			}
			if why := lost[name]; why != "" && n.State == "tested" {
				n.State, n.Why = "dead", why
			} else if i := slices.IndexFunc(r.Suspects, func(x sweep.Suspect) bool { return x.Node == name && !x.Doubt }); i >= 0 {
				n.State, n.Why = "suspect", r.Suspects[i].Text
			}
		}
		if reason, ok := s.held[name]; ok {
			n.Held = cmp.Or(reason, "no reason")
			n.After = "drained again, with the same reason"
			if keep[name] {
				n.After = "in service: it passes"
			} else if s.keeper != nil && s.keeper.nodes[name] != "" {
				n.After = "not drained again: nhc-gpu sweep --repair"
			}
		}
		n.History = s.history[name]
		r.Nodes = append(r.Nodes, n)
	}
	if r.Ended.IsZero() {
		r.Ended = time.Now().UTC().Truncate(time.Millisecond)
	}
	if s.Act != nil {
		s.Act(context.WithoutCancel(ctx), r)
	}
}

func joinKeys(away map[string]sweep.NodeReport, names []string) map[string]bool {
	all := map[string]bool{}
	for n := range away {
		all[n] = true
	}
	for _, n := range names {
		all[n] = true
	}
	return all
}

// describe adds to a node what Slurm knows of it.
func (s *sweeper) describe(n sweep.Node) sweep.Node {
	if leaf := s.leaves[n.Name]; leaf != "" {
		n.Leaf = leaf
	}
	n.Busy = s.beside[n.Name]
	return n
}

// Repair undoes what maintenances have left that were killed: it drains the nodes again that were
// drained, and deletes the reservations. It leaves sweeps alone that are under way.
func Repair(o Options) error {
	list, err := List(o.State)
	if err != nil {
		return fmt.Errorf("list the sweeps: %w", err)
	}
	m := newManager(o.Settings, o.Env)
	for _, x := range list {
		if !x.Unsettled {
			continue
		}
		r, bad := reopen(o.State, x.ID)
		if errors.Is(bad, ErrRunning) {
			continue
		}
		if bad != nil {
			err = errors.Join(err, bad)
			continue
		}
		if bad := r.repair(m); bad != nil {
			err = errors.Join(err, fmt.Errorf("repair sweep %s: %w", x.ID, bad))
		} else if o.Log != nil {
			o.Log("sweep %s was killed: its drained nodes are drained again", x.ID)
		}
		r.close()
	}
	return err
}

func (r *record) repair(k keeper) error {
	d, err := r.debts()
	m := &maintenance{debts: d, keeper: k, write: func(e entry) error { return r.appendLine(journalFile, e) }}
	return errors.Join(err, m.end(nil))
}
