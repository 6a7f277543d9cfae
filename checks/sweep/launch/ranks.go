package launch

import (
	"cmp"
	"context"
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

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// probe starts a step that does nothing. A frozen slurmd would end each step that has its node, 2 x
// MessageTimeout after the others have begun.
func (s *sweeper) probe(ctx context.Context) error {
	names := s.remaining()
	limit := 2*s.message + s.prolog + 5*time.Second
	var wg sync.WaitGroup
	answered := false
	var mu sync.Mutex
	failed := map[string]string{}
	said := ""
	for chunk := range slices.Chunk(names, slurm.MostStepNodes) {
		wg.Go(func() {
			x := s.m.step(ctx, s.job, chunk, slurm.StepGPUs{}, limit, nil, nil, "true")
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(failed, slurm.ParseLaunchFailures(x.Errors))
			answered = answered || x.Status == 0 && !x.TimedOut && x.Err == nil
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
	if !answered && len(failed) == 0 {
		s.Log("the probe step failed: %s", said) // the steps of the nodes show which of them are to blame
	}
	if len(s.remaining()) == 0 {
		return errNoRank
	}
	return nil
}

// listen opens the port for the ranks, and makes their ticket.
func (s *sweeper) listen() (*wire.Listener, error) {
	s.hub = newHub(s.remaining(), s.limits.silence, s.Log)
	l, err := wire.Listen(wire.Config{Version: s.Version, Silence: s.limits.silence, Admit: s.hub.admit})
	if err != nil {
		return nil, err
	}
	t := l.Ticket()
	t.Addresses, err = addresses(l.Port())
	t.Limit = s.Time + late
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

// late is how long after the end of the sweep's time a rank ends, if this process has not ended it.
const late = time.Minute

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

// startRanks starts the steps of the ranks: one for each node, or for up to 64 of many with the same
// number of GPUs.
func (s *sweeper) startRanks(ctx context.Context) {
	names := s.remaining()
	size := 1
	if len(names) > slurm.MostStepNodes {
		size = slurm.MostStepNodes
	}
	j := &s.granted
	alike := map[int][]string{}
	for _, n := range names {
		alike[j.GPUs[n]] = append(alike[j.GPUs[n]], n)
	}
	for count, group := range alike {
		others := slices.DeleteFunc(slices.Clone(j.Nodes), func(n string) bool { return j.GPUs[n] == count })
		gpus := slurm.StepGPUs{Each: count, Others: others, PerTask: len(others) > 0}
		for chunk := range slices.Chunk(group, size) {
			s.steps.Go(func() { s.runStep(ctx, slices.Clone(chunk), gpus) })
		}
	}
}

// refusedGPUs matches what srun prints if Slurm gives a step no GPUs.
var refusedGPUs = probe.Lazily(`(?i)generic resource|\bGRES\b`)

// runStep runs the step of some nodes until it ends. If Slurm ends it because one of several nodes is
// frozen, it starts again without that node. If Slurm refuses the GPUs, it asks the other way, and then
// for none: each rank reports how many it can open.
func (s *sweeper) runStep(ctx context.Context, names []string, gpus slurm.StepGPUs) {
	for other := false; ; {
		running, end := context.WithCancel(ctx)
		x := s.m.step(ctx, s.job, names, gpus, s.Time+2*late, s.ticket, s.hear(running, names), s.Program...)
		end()
		if ctx.Err() != nil {
			return
		}
		if gpus.Each > 0 && x.Status != 0 && refusedGPUs().Match(x.Errors) && s.forgiving() {
			if !other {
				gpus.PerTask, other = !gpus.PerTask, true
				continue
			}
			s.Log("node %s: Slurm gives the test no GPUs: %s", slurm.FoldHostlist(names), lastLine(x.Errors))
			gpus = slurm.StepGPUs{}
			continue
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
		why := cmp.Or(s.missing(string(x.Errors)), fmt.Sprintf("its step ended with exit status %d: %s", x.Status, lastLine(x.Errors)))
		if x.Err != nil {
			why = "start srun: " + x.Err.Error()
		}
		s.stop(rest, why)
		return
	}
}

func (s *sweeper) forgiving() (yes bool) {
	s.hub.look(func() { yes = s.hub.forgiving && !s.hub.ended })
	return yes
}

// disabled matches what srun prints while it cannot start a step yet.
var disabled = probe.Lazily(`(?m)^srun: .*step creation .*retrying.*$`)

// lastWords is how long what a process has written may come after the message of its end.
const lastWords = 2 * time.Second

// hear returns what reads the messages of srun while a step runs, until ctx ends: a large step goes on
// without the nodes whose process has ended.
func (s *sweeper) hear(ctx context.Context, names []string) func(errs []byte) {
	return func(errs []byte) {
		if len(slurm.ParseLaunchFailures(errs)) > 0 {
			return // Slurm ends all of the step, which starts again
		}
		ends := slurm.ParseTaskEnds(errs)
		waits := disabled().Find(errs)
		s.mu.Lock()
		for _, n := range names {
			switch e := ends[n]; {
			case e.Said != "":
				s.stopped[n] = cmp.Or(s.missing(e.Said), "its process ended: "+printable(e.Said))
			case e.How != "":
				time.AfterFunc(lastWords, func() {
					if ctx.Err() == nil {
						s.stop([]string{n}, "its process ended: "+printable(e.How))
					}
				})
			case waits != nil:
				s.unsure[n] = "its step does not start: " + printable(string(waits))
			}
		}
		s.mu.Unlock()
		s.hub.look(s.hub.notify)
	}
}

// stop notes why the ranks of nodes do not come, unless a reason is known.
func (s *sweeper) stop(names []string, why string) {
	s.mu.Lock()
	for _, n := range names {
		s.stopped[n] = cmp.Or(s.stopped[n], why)
	}
	s.mu.Unlock()
	s.hub.look(s.hub.notify)
}

// missing returns that the program does not exist or cannot be run, "" if a message says nothing of it.
func (s *sweeper) missing(text string) string {
	program := s.Program[0]
	switch {
	case strings.Contains(text, "No such file or directory") && strings.Contains(text, program):
		return fmt.Sprintf("there is no %s: install nhc-gpu at the same path on all nodes", program)
	case strings.Contains(text, "Permission denied") && strings.Contains(text, program):
		return fmt.Sprintf("%s cannot be run: Permission denied", program)
	}
	return ""
}

// refusal begins the reason in the message of a rank that was refused.
const refusal = "refuses this rank: "

// gather waits until each node has a rank, or is out of the sweep.
func (s *sweeper) gather(ctx context.Context) error {
	limit := time.NewTimer(2*s.message + s.prolog + 40*time.Second)
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
			why := cmp.Or(firstWhy(s.snapshot()), "none has answered")
			if gone := s.m.gone(ctx, s.job); gone != "" { // Slurm has ended the job while the ranks started
				s.report.Interrupted, why = gone, gone
			}
			return fmt.Errorf("%w: %s", errNoRank, why)
		default:
			for _, n := range waiting {
				s.mu.Lock()
				why := s.unsure[n]
				s.mu.Unlock()
				if why != "" {
					s.exclude(n, "excluded", why)
				} else {
					s.exclude(n, "dead", "its rank has not reported")
				}
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

// over ends the sweep if no rank is left, if this process was stopped, or if ranks are lost because Slurm
// ends the job: each gets SIGTERM then, and reports it.
func (s *sweeper) over(ctx context.Context) bool {
	var byes, lost, here int
	var why string
	s.hub.look(func() {
		s.hub.wake()
		byes, lost, here, why = len(s.hub.byes), len(s.hub.lost), len(s.hub.peers), s.hub.stopped
	})
	switch {
	case why != "":
	case here > 0 && byes == 0 && lost == 0:
		return false
	case byes > 0 && s.Idle: // there is no time to ask
		why = "Slurm has ended a rank: the sweep gives way"
	default:
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
