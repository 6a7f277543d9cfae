package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// choose finds the nodes of the sweep.
func (s *sweeper) choose(ctx context.Context) error {
	all, err := s.m.nodes(ctx)
	if err != nil {
		return err
	}
	if !s.Root && s.Job == "" {
		if err := s.m.usable(ctx, all); err != nil {
			return err
		}
	}
	sel, err := s.readSelection(ctx)
	if err != nil {
		return err
	}
	chosen, err := sel.Select(all)
	if err != nil {
		return err
	}
	var usable []slurm.SweepNode
	busy := false
	for _, n := range chosen {
		why := ""
		switch {
		case s.Job != "":
		case s.Idle && !n.IsIdle():
			why = "not idle (" + n.State.Text + ")"
			busy = busy || n.State.Class == slurm.InService
		default:
			why = n.Usable(s.Maintenance, s.Reservation != "")
		}
		if why != "" {
			s.exclude(n.Name, "excluded", why)
			continue
		}
		usable = append(usable, n)
	}
	s.take(usable, all)
	if len(s.nodes) == 0 {
		err := fmt.Errorf("none of %d nodes can be tested: %s", len(chosen), firstWhy(s.away))
		if busy && len(usable) == 0 {
			err = gaveWayError{err}
		}
		return err
	}
	if s.record == nil {
		return nil
	}
	s.record.Meta.Nodes = s.nodes
	return s.record.saveMeta()
}

// readSelection asks Slurm for the nodes of the reservation that the options name, and for those of the job in which
// this process runs; that job becomes the job of the sweep.
func (s *sweeper) readSelection(ctx context.Context) (slurm.Selection, error) {
	sel := slurm.Selection{Nodes: s.Nodes, Partition: s.Partition, State: s.NodeState, Feature: s.Feature}
	if s.Reservation != "" {
		reserved, err := s.m.reservations(ctx)
		if err != nil {
			return sel, err
		}
		list, ok := reserved[s.Reservation]
		if !ok {
			return sel, fmt.Errorf("unknown to Slurm: reservation %s", s.Reservation)
		}
		sel.Reserved, sel.IsReserved = list, true
	}
	if s.Job != "" {
		j, err := s.m.job(ctx, s.Job)
		if err != nil {
			return sel, err
		}
		s.job = s.Job
		if len(sel.Nodes) == 0 {
			sel.Nodes = j.Nodes
		} else {
			sel.Nodes = slices.DeleteFunc(slices.Clone(sel.Nodes), func(n string) bool { return !slices.Contains(j.Nodes, n) })
		}
		if len(sel.Nodes) == 0 {
			return sel, fmt.Errorf("job %s has none of the nodes", s.Job)
		}
	}
	return sel, nil
}

// take takes the nodes for the sweep that are in one partition, since a job has only one: that of the
// options, or the one with most of the nodes.
func (s *sweeper) take(usable, all []slurm.SweepNode) {
	if s.part = s.Partition; s.part == "" && s.Job == "" {
		limited := s.Time
		if s.Root {
			limited = 0
		}
		s.part = slurm.MostOpen(usable, limited)
	}
	for _, n := range usable {
		switch {
		case s.Job != "" || slices.Contains(n.Partitions, s.part):
			if s.Maintenance && n.IsDrained() {
				s.held[n.Name] = n.Reason
			}
			s.nodes = append(s.nodes, n.Name)
		case len(n.Open) == 0:
			s.exclude(n.Name, "excluded", "none of its partitions starts jobs of this user: "+cmp.Or(strings.Join(n.Partitions, ", "), "it has none"))
		default:
			s.exclude(n.Name, "excluded", fmt.Sprintf("not in partition %s, which has most of the nodes: test it with --partition %s", s.part, n.Open[0].Name))
		}
	}
	s.others = []string{}
	for _, n := range all {
		if slices.Contains(n.Partitions, s.part) && !slices.Contains(s.nodes, n.Name) {
			s.others = append(s.others, n.Name)
		}
	}
}

// Look returns the nodes that a sweep would test, and those that it would not. It changes nothing.
func Look(ctx context.Context, o Options) (nodes []sweep.Node, away []sweep.NodeReport, err error) {
	o.Log = func(string, ...any) {}
	s := &sweeper{Options: o, m: newManager(o.Settings, o.Env), away: map[string]sweep.NodeReport{}, held: map[string]string{}}
	if err := s.choose(ctx); err != nil {
		return nil, nil, err
	}
	s.leaves = s.m.leaves(ctx)
	if s.beside, err = s.m.nodesOfOthers(ctx, s.job); err != nil {
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

// jobName is the name of the job that is allocated: a repair finds the job by it.
func (s *sweeper) jobName() string { return slurm.ReservationPrefix + s.record.Meta.ID }

// obtain gets the nodes: those of the job in which this process runs, or those of a new one.
func (s *sweeper) obtain(ctx context.Context) error {
	if s.Job != "" {
		return nil
	}
	a := slurm.Allocation{
		Name: s.jobName(), Nodes: s.nodes, Time: s.Time, Partition: s.part, QOS: s.QOS, Account: s.Account, Reservation: s.Reservation,
	}
	wait := s.Queue
	if s.Idle {
		a.Immediate = 30 * time.Second
		wait = a.Immediate // after which salloc ends by itself
	}
	if s.Maintenance {
		a.Reservation = slurm.ReservationPrefix + s.record.Meta.ID
		s.keeper = &maintenance{debts: debts{nodes: map[string]string{}}, keeper: s.m, write: func(e entry) error { return s.record.appendLine(journalFile, e) }}
		if err := s.keeper.begin(a.Reservation, s.nodes, s.held); err != nil {
			return err
		}
	}
	s.own = true
	s.record.Meta.Job, s.record.Meta.Own = "", true // if this process is killed meanwhile
	if err := s.record.saveMeta(); err != nil {
		return err
	}
	job, err := s.allocate(ctx, &a, wait)
	for try := 1; try < 3 && s.Idle && err != nil && ctx.Err() == nil; try++ {
		s.Log("%v: looking again for idle nodes", err) // a job was faster, or a node cannot be had although it is idle
		if err := s.m.cancelOwn(job, s.jobName()); err != nil {
			return err
		}
		s.nodes, s.away = nil, map[string]sweep.NodeReport{}
		if err := s.choose(ctx); err != nil {
			return err
		}
		a.Nodes, a.Others, a.Partition = s.nodes, s.others, s.part
		job, err = s.allocate(ctx, &a, wait)
	}
	if job != "" {
		s.job, s.record.Meta.Job = job, job
		if s.keeper != nil {
			err = errors.Join(err, s.keeper.note(entry{Job: job}))
		}
		err = errors.Join(err, s.record.saveMeta())
	}
	return err
}

// readJob reads the job, and excludes the nodes that Slurm has not given to it.
func (s *sweeper) readJob(ctx context.Context) (err error) {
	if s.granted, err = s.m.job(ctx, s.job); err != nil {
		return err
	}
	for _, name := range s.remaining() {
		if !slices.Contains(s.granted.Nodes, name) {
			s.exclude(name, "excluded", "idle, but Slurm does not allocate it now: see its reservations, and the limits of partition "+s.part)
		}
	}
	return nil
}

// allocate waits for nodes, without those whose slurmd stops answering meanwhile. With PrologFlags=Alloc
// such a node would delay the others for as long as salloc waits: Slurm 22.05 removes it from the job when
// SlurmdTimeout is over, and still waits for its prolog.
func (s *sweeper) allocate(ctx context.Context, a *slurm.Allocation, wait time.Duration) (job string, err error) {
	for end := time.Now().Add(wait); ; wait = max(0, time.Until(end)) {
		trying, stop := context.WithCancelCause(ctx)
		silent := make(chan map[string]string, 1)
		go func() {
			found := s.awaitSilent(trying, a.Nodes)
			if len(found) > 0 {
				stop(errors.New("slurmd does not answer on node " + slurm.FoldHostlist(slices.Sorted(maps.Keys(found)))))
			}
			silent <- found
		}()
		job, err = s.m.allocate(trying, *a, wait)
		stop(nil)
		found := <-silent
		if err == nil || len(found) == 0 || ctx.Err() != nil {
			return job, err
		}
		cancel := s.m.cancel
		if job == "" { // salloc was ended before it had printed the number
			cancel = func(string) error { return s.m.cancelOwn("", a.Name) }
		}
		if bad := cancel(job); bad != nil {
			return job, errors.Join(err, bad) // undo tries again
		}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			s.exclude(name, "frozen", found[name])
		}
		if a.Others != nil {
			a.Others = slices.Concat(a.Others, slices.Collect(maps.Keys(found)))
		}
		if a.Nodes = s.remaining(); len(a.Nodes) == 0 {
			return "", err
		}
	}
}

// awaitSilent waits until the slurmd of some nodes does not answer, and returns those nodes and why they
// are not tested; none if ctx ends first.
func (s *sweeper) awaitSilent(ctx context.Context, names []string) map[string]string {
	tick := time.NewTicker(s.limits.look)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		all, err := s.m.nodes(ctx)
		if err != nil {
			continue // the next look, or salloc itself, has the answer
		}
		silent := map[string]string{}
		for _, n := range all {
			if why := n.Silent(); why != "" && slices.Contains(names, n.Name) {
				silent[n.Name] = why
			}
		}
		if len(silent) > 0 {
			return silent
		}
	}
}
