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
	Asked  bool          // the stages are not those of every sweep: each must say something
	OnGPUs []sweep.Stage // those that need all GPUs of a node
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
	plan     time.Duration // for the plan of a round, after the end of the sweep
	room     int64         // bytes that a node's results take
}

var usual = limits{silence: 10 * time.Second, ready: 60 * time.Second, slack: 10 * time.Second, farewell: 1500 * time.Millisecond, ask: askLimit, look: 15 * time.Second, plan: 5 * time.Second, room: roomPerNode}

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
	prolog  time.Duration // its limit
	job     string
	own     bool              // the job is allocated for the sweep, or may be
	held    map[string]string // drained nodes of a maintenance, and their reasons
	keep    map[string]bool   // those that stay in service
	unclear map[string]string // why others do not that a sweep had drained
	nodes   []string
	part    string   // the partition of the job; "" with a job of others
	others  []string // nodes of it that are not tested
	granted slurm.SweepJob
	away    map[string]sweep.NodeReport // nodes that cannot be tested
	leaves  map[string]string
	beside  map[string]bool
	keeper  *maintenance

	hub     *hub
	ticket  []byte
	clock   *clock
	last    int                            // ID of the last task
	losses  *losses                        // nil before the stages
	history map[string]string              // of suspect nodes: see [sweep.NodeReport]
	cutOff  map[sweep.Stage][]sweep.Result // of rounds that the end of the sweep has cut off
	steps   sync.WaitGroup
	cut     context.CancelFunc // ends the steps

	interrupt context.CancelCauseFunc // ends the stages

	mu      sync.Mutex
	stopped map[string]string // nodes whose step or task has ended before their rank said anything, and why
	unsure  map[string]string // why the step of nodes does not start yet
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
	s := &sweeper{Options: o, m: newManager(o.Settings, o.Env), away: map[string]sweep.NodeReport{}, held: map[string]string{}, keep: map[string]bool{}, unclear: map[string]string{}, history: map[string]string{}, cutOff: map[sweep.Stage][]sweep.Result{}, stopped: map[string]string{}, unsure: map[string]string{}}
	s.m.user, s.m.net, s.m.log, s.m.limit = o.User, o.Time+o.Queue+startLimit+10*time.Minute, o.Log, o.limits.ask
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
	defer prune(o.State, kept, keptBytes)
	s.report = &sweep.Report{
		Schema: 1, Version: o.Version, ID: s.record.Meta.ID, Began: s.record.Meta.Began, Command: s.record.Meta.Command,
		Continued: s.record.Meta.Continued, Nodes: []sweep.NodeReport{}, Stages: []sweep.StageReport{}, Suspects: []sweep.Suspect{},
	}
	err := s.test(ctx)
	if gaveWay := (gaveWayError{}); s.Idle && errors.As(err, &gaveWay) {
		s.report.Interrupted, err = err.Error(), nil
	}
	if undo := s.undo(); undo != nil {
		err = errors.Join(err, undo)
	}
	s.finish(ctx)
	return s.report, errors.Join(err, s.record.saveReport(s.report, s.cutOff))
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
	if s.cluster, s.message, s.prolog, err = s.m.config(ctx); err != nil {
		return err
	}
	if err := s.choose(ctx); err != nil {
		return err
	}
	if s.Maintenance {
		if err := checkRoom(s.State, len(s.nodes), s.limits.room); err != nil {
			return err
		}
	}
	s.tell(Progress{Doing: "wait for the nodes", Nodes: len(s.nodes)})
	if err := s.obtain(ctx); err != nil {
		return err
	}
	if err := s.readJob(ctx); err != nil {
		return err
	}
	end := time.Now().Add(s.Time)
	s.tell(Progress{Doing: "start the ranks", Nodes: len(s.nodes)})
	s.leaves = s.m.leaves(ctx)
	if s.beside, err = s.m.nodesOfOthers(ctx, s.job); err != nil {
		s.Log("%v: measurements beside other jobs are not marked", err)
	}
	if s.granted.Shares { // a job can come in each moment, and Slurm can hide it (PrivateData=jobs)
		s.beside = map[string]bool{}
		for _, n := range s.nodes {
			s.beside[n] = true
		}
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
	limit := time.AfterFunc(time.Until(end), func() { s.interrupt(errTime) })
	defer limit.Stop()
	go s.heed(ctx)
	return s.stages(ctx)
}

// errTime means that a sweep has had its time.
var errTime = errors.New("the time limit of the sweep is over")

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
	switch {
	case s.own && s.job == "":
		err = s.m.cancelOwn("", s.jobName())
	case s.own && (s.keeper == nil || s.keeper.job == ""): // the journal may not have it
		err = s.m.cancel(s.job)
	}
	if s.keeper != nil {
		err = errors.Join(err, s.keeper.end(s.passed()))
	}
	if s.own && err == nil {
		s.record.Meta.Own = false
		err = s.record.saveMeta()
	}
	if s.cut != nil {
		s.cut()
		s.steps.Wait()
	}
	return err
}

// passed finds the nodes that --resume leaves in service: a sweep had drained them, and this one shows that
// their fault is gone.
func (s *sweeper) passed() map[string]bool {
	if !s.Resume {
		return nil
	}
	away, gone := s.snapshot(), map[string]string{}
	if s.hub != nil {
		s.hub.look(func() {
			maps.Copy(gone, s.hub.byes)
			maps.Copy(gone, s.hub.lost)
		})
	}
	earlier := sync.OnceValue(func() []Summary {
		list, _ := List(s.State)
		return list
	})
	for name, reason := range s.held {
		if !slurm.BySweep(reason) {
			continue
		}
		why := cmp.Or(away[name].Why, gone[name])
		if why == "" && !s.complete() {
			why = "not all stages have run to their end"
		}
		if why == "" {
			code := slurm.ReasonCode(reason)
			device := slurm.SweepDevice(code, reason)
			why = s.report.Cleared(&sweep.Drained{
				Node: name, Leaf: s.leaves[name], Code: code, Device: device, Held: s.held, Faults: faultsOf(earlier(), name, code, device),
			})
		}
		s.keep[name] = why == ""
		s.unclear[name] = why
	}
	return s.keep
}

// faultsOf returns the faults for which sweeps accuse a node: from the last one that accuses it back to the one
// that found the fault of the drain. Between them sweeps can have found further faults, for which a drained node
// is not drained again.
func faultsOf(list []Summary, node, code, device string) (faults []sweep.Accusal) {
	last := 0 // the number of faults of the last sweep that accuses the node
	for i := range list {
		if list[i].Running {
			continue
		}
		found := false
		for _, a := range list[i].Accused {
			if a.Node == node {
				faults = append(faults, a)
				found = found || a.Code == code && a.Device == device
			}
		}
		if found {
			return faults
		}
		last = cmp.Or(last, len(faults))
	}
	return faults[:last] // the others can be those of drains that have ended
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
	away, ends := s.snapshot(), s.readEnds()
	for _, name := range slices.Sorted(maps.Keys(joinKeys(away, s.nodes))) {
		n, out := away[name]
		if !out {
			n = s.judgeNode(name, &ends)
		}
		s.addDrain(&n)
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

// rankEnds is what the launcher knows about the nodes when their ranks have ended, by name.
type rankEnds struct {
	known      map[string]sweep.Node // nodes that had a rank, as it has described them
	lost, byes map[string]string     // why a rank was lost, or others have ended it
	untested   map[string]string     // nodes that no stage has tested, and why
}

func (s *sweeper) readEnds() rankEnds {
	ends := rankEnds{known: map[string]sweep.Node{}, lost: map[string]string{}, byes: map[string]string{}, untested: s.report.Untested(s.nodes)}
	if s.hub != nil {
		s.hub.look(func() {
			maps.Copy(ends.lost, s.hub.lost)
			maps.Copy(ends.byes, s.hub.byes)
			for name, p := range s.hub.known {
				ends.known[name] = s.describe(p.node)
			}
		})
	}
	return ends
}

// judgeNode reports on a node that was part of the sweep until its end. If several things can be said about it,
// the gravest counts.
func (s *sweeper) judgeNode(name string, ends *rankEnds) sweep.NodeReport {
	node, ok := ends.known[name]
	if !ok {
		return sweep.NodeReport{Node: sweep.Node{Name: name}, State: "excluded", Why: "the sweep has ended before"}
	}
	n := sweep.NodeReport{Node: node, State: "tested"}
	r := s.report
	suspect := slices.IndexFunc(r.Suspects, func(x sweep.Suspect) bool { return x.Node == name && !x.Doubt })
	switch why := cmp.Or(ends.lost[name], ends.byes[name]); {
	case ends.lost[name] != "":
		loss := s.losses.known[name]
		n.State, n.Why = "dead", cmp.Or(loss.Text, why)
		if loss.Responds {
			n.State = "excluded"
		}
	case suspect >= 0:
		n.State, n.Why = "suspect", r.Suspects[suspect].Text
	case n.Closed > 0 && len(s.onGPUs()) > 0:
		n.State, n.Why = "excluded", s.whyClosed(n.Node)
	case why != "" && r.Interrupted == "":
		n.State, n.Why = "excluded", "its rank was ended before the sweep: "+why
	case ends.untested[name] != "":
		n.State, n.Why = "excluded", ends.untested[name]
	}
	return n
}

// addDrain adds to the report on a node how it was drained before the maintenance, and whether it is drained again.
func (s *sweeper) addDrain(n *sweep.NodeReport) {
	reason, ok := s.held[n.Name]
	if !ok {
		return
	}
	n.Held = cmp.Or(reason, "no reason")
	n.After = "drained again, with the same reason"
	if why := s.unclear[n.Name]; why != "" {
		n.After += ": " + why
	}
	if s.keeper != nil && s.keeper.instead[n.Name] != "" {
		n.After = s.keeper.instead[n.Name]
	} else if s.keep[n.Name] {
		n.After = "in service: it passes"
	} else if s.keeper != nil && s.keeper.nodes[n.Name] != "" {
		n.After = "not drained again: nhc-gpu sweep --repair"
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
