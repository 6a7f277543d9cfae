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
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
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
	Stage  sweep.Stage
	Round  int // from 1
	Left   int // rounds after this one, an estimate
	Tasks  int // of this round
	Ended  int // of them
	Nodes  int
	Result *sweep.Result // of the task that has just ended
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

	hub    *hub
	ticket []byte
	last   int // ID of the last task
	steps  sync.WaitGroup
	cut    context.CancelFunc // ends the steps

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
	s := &sweeper{Options: o, m: newManager(o.Settings, o.Env), away: map[string]sweep.NodeReport{}, held: map[string]string{}, stopped: map[string]string{}, frozen: map[string]string{}}
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
	if err := s.obtain(ctx); err != nil {
		return err
	}
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
	defer listener.Close()
	stepping, cut := context.WithCancel(context.WithoutCancel(ctx))
	s.cut = cut
	defer cut()
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
			return fmt.Errorf("Slurm knows no reservation %s", s.Reservation)
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

// probe starts a step that does nothing. A frozen slurmd would end each step that has its node, 2 x
// MessageTimeout after the others have begun.
func (s *sweeper) probe(ctx context.Context) error {
	names := s.remaining()
	limit := 2*s.message + 5*time.Second
	var wg sync.WaitGroup
	answered := make([]bool, 0)
	var mu sync.Mutex
	failed := map[string]string{}
	said := ""
	for chunk := range slices.Chunk(names, slurm.MostStepNodes) {
		wg.Go(func() {
			x := s.m.step(ctx, s.job, chunk, limit, nil, "true")
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(failed, slurm.ParseLaunchFailures(x.Errors))
			answered = append(answered, x.Status == 0 && !x.TimedOut && x.Err == nil)
			if x.Err != nil {
				said = x.Err.Error()
			} else if x.Status != 0 {
				said = lastLine(x.Errors)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil // gather returns the reason
	}
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		s.exclude(name, "frozen", "its slurmd starts nothing: "+failed[name])
	}
	if !slices.Contains(answered, true) && len(failed) == 0 {
		s.Log("the probe step failed: %s", said) // the steps of the nodes show which of them are to blame
	}
	if len(s.remaining()) == 0 {
		return errNoRank
	}
	return nil
}

// listen opens the port for the ranks, and makes their ticket.
func (s *sweeper) listen() (*wire.Listener, error) {
	s.hub = newHub(s.remaining(), s.Log)
	l, err := wire.Listen(wire.Config{Version: s.Version, Silence: s.limits.silence, Admit: s.hub.admit})
	if err != nil {
		return nil, err
	}
	t := l.Ticket()
	t.Addresses, err = addresses(l.Port())
	t.Limit = s.Time
	if s.own {
		t.Job = s.job
	}
	if err == nil {
		s.ticket, err = t.Line()
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	go s.hub.serve(l)
	return l, nil
}

// addresses returns the addresses at which ranks may reach this process: all but the loopback, or that if
// there are no others.
func addresses(port int) (list []string, err error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of this host: %w", err)
	}
	var loop []string
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil || prefix.Addr().IsLinkLocalUnicast() {
			continue
		}
		text := net.JoinHostPort(prefix.Addr().String(), strconv.Itoa(port))
		if prefix.Addr().IsLoopback() {
			loop = append(loop, text)
		} else {
			list = append(list, text)
		}
	}
	if list == nil {
		list = loop
	}
	return list, nil
}

// startRanks starts the steps of the ranks: one for each node, or for 64 of many.
func (s *sweeper) startRanks(ctx context.Context) {
	names := s.remaining()
	size := 1
	if len(names) > slurm.MostStepNodes {
		size = slurm.MostStepNodes
	}
	for chunk := range slices.Chunk(names, size) {
		s.steps.Go(func() { s.runStep(ctx, slices.Clone(chunk)) })
	}
}

// runStep runs the step of some nodes until it ends. If Slurm ends it because one of several nodes is
// frozen, it starts again without that node.
func (s *sweeper) runStep(ctx context.Context, names []string) {
	for {
		x := s.m.step(ctx, s.job, names, s.Time+time.Minute, s.ticket, s.Program...)
		if ctx.Err() != nil {
			return
		}
		failed := slurm.ParseLaunchFailures(x.Errors)
		for name, why := range failed {
			s.exclude(name, "frozen", "its slurmd starts nothing: "+why)
		}
		rest := slices.DeleteFunc(slices.Clone(names), func(n string) bool { _, bad := failed[n]; return bad })
		if len(rest) > 0 && len(failed) > 0 && s.forgiving() {
			names = rest
			continue
		}
		why := s.whyEnded(x.Status, x.Errors, x.Err)
		s.mu.Lock()
		for _, n := range rest {
			s.stopped[n] = why
		}
		s.mu.Unlock()
		s.hub.look(s.hub.notify)
		return
	}
}

func (s *sweeper) forgiving() (yes bool) {
	s.hub.look(func() { yes = s.hub.forgiving && !s.hub.ended })
	return yes
}

// whyEnded describes the end of a step.
func (s *sweeper) whyEnded(status int, errs []byte, err error) string {
	text := string(errs)
	program := s.Program[0]
	switch {
	case err != nil:
		return "start srun: " + err.Error()
	case strings.Contains(text, "No such file or directory") && strings.Contains(text, program):
		return fmt.Sprintf("there is no %s: install nhc-gpu at the same path on all nodes", program)
	case strings.Contains(text, "Permission denied") && strings.Contains(text, program):
		return fmt.Sprintf("%s cannot be run: Permission denied", program)
	}
	return fmt.Sprintf("its step ended with exit status %d: %s", status, lastLine(errs))
}

// refusal begins the reason in the message of a rank that was refused.
const refusal = "refuses this rank: "

// gather waits until each node has a rank, or is out of the sweep.
func (s *sweeper) gather(ctx context.Context) error {
	limit := time.NewTimer(2*s.message + 40*time.Second)
	defer limit.Stop()
	over := false
	for {
		var waiting, here []string
		changed := s.hub.look(func() {
			for _, n := range s.remaining() {
				s.mu.Lock()
				stopped := s.stopped[n]
				s.mu.Unlock()
				switch {
				case s.hub.peers[n] != nil:
					here = append(here, n)
				case s.hub.refused[n] != "":
					s.exclude(n, "refused", s.hub.refused[n])
				case strings.Contains(stopped, refusal):
					_, why, _ := strings.Cut(stopped, refusal)
					s.exclude(n, "refused", why)
				case stopped != "":
					s.exclude(n, "excluded", stopped)
				default:
					waiting = append(waiting, n)
				}
			}
		})
		switch {
		case len(waiting) > 0 && !over:
		case len(here) == 0:
			return fmt.Errorf("%w: %s", errNoRank, cmp.Or(firstWhy(s.snapshot()), "none has answered"))
		default:
			for _, n := range waiting {
				s.exclude(n, "dead", "its rank has not reported")
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return nil // stages returns at once
		case <-limit.C:
			over = true
		case <-changed:
		}
	}
}

func (s *sweeper) snapshot() map[string]sweep.NodeReport {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.away)
}

// heed ends the sweep when Slurm ends its job, or asks it to give way.
func (s *sweeper) heed(ctx context.Context) {
	for {
		changed := s.hub.look(func() {})
		if s.over(ctx) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// over ends the sweep if no rank is left, or if ranks are lost because Slurm ends the job: each gets
// SIGTERM then, and reports it.
func (s *sweeper) over(ctx context.Context) bool {
	var byes, lost, here int
	s.hub.look(func() { byes, lost, here = len(s.hub.byes), len(s.hub.lost), len(s.hub.peers) })
	if here > 0 && byes == 0 && lost == 0 {
		return false
	}
	why := "Slurm has ended a rank: the sweep gives way"
	if byes == 0 || !s.Idle { // else there is no time to ask
		why = s.m.gone(ctx, s.job)
	}
	if why == "" && here == 0 {
		why = "no rank is left"
	}
	if why == "" {
		return false
	}
	s.interrupt(errors.New(why))
	return true
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
		r.Nodes = append(r.Nodes, n)
	}
	r.Ended = time.Now().UTC().Truncate(time.Millisecond)
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
