package launch

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// obtain gets the nodes: those of the job in which this process runs, or those of a new one.
func (s *sweeper) obtain(ctx context.Context) error {
	if s.Job != "" {
		return nil
	}
	a := slurm.Allocation{
		Name: "nhc-gpu-sweep", Nodes: s.nodes, Time: s.Time, Partition: s.Partition, QOS: s.QOS, Account: s.Account, Reservation: s.Reservation,
	}
	wait := s.Queue
	if s.Idle {
		a.Immediate = 30 * time.Second
		wait = a.Immediate
	}
	if s.Maintenance {
		a.Reservation = slurm.ReservationPrefix + s.record.Meta.ID
		s.keeper = &maintenance{debts: debts{nodes: map[string]string{}}, keeper: s.m, write: func(e entry) error { return s.record.appendLine(journalFile, e) }}
		if err := s.keeper.begin(a.Reservation, s.nodes, s.held); err != nil {
			return err
		}
	}
	job, err := s.allocate(ctx, &a, wait)
	for try := 1; try < 3 && s.Idle && err != nil && job == "" && ctx.Err() == nil; try++ {
		s.Log("%v: looking again for idle nodes", err) // a job was faster
		s.nodes, s.away = nil, map[string]sweep.NodeReport{}
		if err := s.choose(ctx); err != nil {
			return err
		}
		a.Nodes = s.nodes
		job, err = s.allocate(ctx, &a, wait)
	}
	if job != "" {
		s.job, s.own = job, true
		s.record.Meta.Job, s.record.Meta.Own = job, true
		if s.keeper != nil {
			err = errors.Join(err, s.keeper.note(entry{Job: job}))
		}
		err = errors.Join(err, s.record.saveMeta())
	}
	return err
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
		if job != "" {
			err = errors.Join(err, s.m.cancel(job))
		}
		for _, name := range slices.Sorted(maps.Keys(found)) {
			s.exclude(name, "frozen", found[name])
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
