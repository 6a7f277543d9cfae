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
		if job != "" {
			if err := s.m.cancelOwn(job, s.jobName()); err != nil {
				return err
			}
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
		if job != "" {
			if bad := s.m.cancel(job); bad != nil {
				return job, errors.Join(err, bad) // undo tries again
			}
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
