package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Limits of calls to Slurm.
const (
	askLimit  = 30 * time.Second // a question to slurmctld; on its own, scontrol gives up after 9 s, see manager.limit
	readLimit = 64 << 20         // bytes of an answer: sinfo prints 100 bytes a node and partition
	saidLimit = 256 << 10        // bytes of the messages of srun and salloc
)

// manager starts Slurm's commands, each under a deadline.
type manager struct {
	host     *probe.Host
	settings slurm.Settings
	user     string // of the reservations
	net      time.Duration
	limit    time.Duration // of a call
	start    time.Duration // how long the nodes of an allocation may take to be ready
	log      func(format string, args ...any)
	silent   time.Duration // how long Slurm has done nothing that it was asked to do
}

// newManager returns a manager. Commands, and the ranks that they start, get nothing of this process's
// environment but the settings of Slurm and what keep names.
func newManager(settings slurm.Settings, keep []string) *manager {
	h := probe.NewHost("")
	h.SetEnviron(slices.Concat(settings.Environ(), keep))
	return &manager{host: h, settings: settings, limit: askLimit, start: startLimit}
}

// ask runs a command and returns its output.
func (m *manager) ask(ctx context.Context, what string, argv []string, bad error) ([]byte, error) {
	if bad != nil {
		return nil, fmt.Errorf("%s: %w", what, bad)
	}
	x := m.host.Run(ctx, probe.Command{Argv: argv, Timeout: m.limit, Output: readLimit, Errors: saidLimit})
	switch {
	case x.Err != nil:
		return nil, fmt.Errorf("%s: %w", what, x.Err)
	case x.TimedOut && ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %s did not answer: %w", what, argv[0], context.Cause(ctx))
	case x.TimedOut:
		return nil, fmt.Errorf("%s: %s did not answer within %s", what, argv[0], m.limit)
	case x.Status != 0:
		return nil, fmt.Errorf("%s: %s: exit status %d: %s", what, argv[0], x.Status, lastLine(x.Errors, x.Output))
	case x.Truncated:
		return nil, fmt.Errorf("%s: %s printed more than %d bytes", what, argv[0], readLimit)
	}
	return x.Output, nil
}

// lastLine returns the last line of a command's messages, printable.
func lastLine(texts ...[]byte) string {
	for _, t := range texts {
		lines := strings.Split(strings.TrimSpace(string(t)), "\n")
		if last := lines[len(lines)-1]; last != "" {
			return printable(last)
		}
	}
	return "no message"
}

func printable(text string) string {
	text = strings.NewReplacer("\n", " ", "\r", " ", "\t", " ").Replace(text)
	return strings.TrimSpace(probe.Shorten(probe.OneLine(text), 300))
}

func (m *manager) nodes(ctx context.Context) ([]slurm.SweepNode, error) {
	argv, err := m.settings.SweepNodesArgv()
	out, err := m.ask(ctx, "list the nodes", argv, err)
	if err != nil {
		return nil, err
	}
	return slurm.ParseSweepNodes(out)
}

// usable removes the partitions that this user cannot use.
func (m *manager) usable(ctx context.Context, nodes []slurm.SweepNode) error {
	argv, err := m.settings.PartitionsArgv()
	out, err := m.ask(ctx, "list the partitions", argv, err)
	if err != nil {
		return err
	}
	names := strings.Fields(string(out))
	for i := range nodes {
		nodes[i].Open = slices.DeleteFunc(nodes[i].Open, func(p slurm.Partition) bool { return !slices.Contains(names, p.Name) })
	}
	return nil
}

// leaves returns the leaf switch of each node. Without a topology, or an answer, it returns none.
func (m *manager) leaves(ctx context.Context) map[string]string {
	argv, err := m.settings.TopologyArgv()
	out, err := m.ask(ctx, "read the topology", argv, err)
	if err != nil {
		return nil
	}
	return slurm.ParseTopology(out)
}

// nodesOfOthers returns the nodes with other jobs than this one.
func (m *manager) nodesOfOthers(ctx context.Context, job string) (map[string]bool, error) {
	out, err := m.ask(ctx, "list the jobs", m.settings.RunningArgv(), nil)
	if err != nil {
		return nil, err
	}
	return slurm.ParseRunning(out, job), nil
}

func (m *manager) reservations(ctx context.Context) (map[string][]string, error) {
	argv, err := m.settings.ReservationsArgv()
	out, err := m.ask(ctx, "list the reservations", argv, err)
	if err != nil {
		return nil, err
	}
	return slurm.ParseReservations(out), nil
}

// defaultMessageTimeout is Slurm's own.
const defaultMessageTimeout = 10 * time.Second

// config returns the name of the cluster, MessageTimeout, and the time limit of a prolog, 0 without one.
// srun gives up a node after twice MessageTimeout.
func (m *manager) config(ctx context.Context) (cluster string, timeout, prolog time.Duration, err error) {
	argv, err := m.settings.ConfigArgv()
	out, err := m.ask(ctx, "read the configuration of Slurm", argv, err)
	if err != nil {
		return "", 0, 0, err
	}
	conf, err := slurm.ParseConfig(out)
	if err != nil {
		return "", 0, 0, err
	}
	limit := func(key string, otherwise time.Duration) time.Duration {
		if d, ok, err := conf.Seconds(key); err == nil && ok && d <= 10*time.Minute {
			return d
		}
		return otherwise
	}
	if len(conf.Values("Prolog")) > 0 {
		prolog = limit("PrologTimeout", limit("PrologEpilogTimeout", 0))
	}
	return conf.Value("ClusterName"), limit("MessageTimeout", defaultMessageTimeout), prolog, nil
}

func (m *manager) job(ctx context.Context, job string) (slurm.SweepJob, error) {
	argv, err := m.settings.JobArgv(job)
	out, err := m.ask(ctx, "read job "+job, argv, err)
	if err != nil {
		return slurm.SweepJob{}, err
	}
	return slurm.ParseSweepJob(out)
}

// startLimit is how long the nodes of an allocation may take to be ready: with PrologFlags=Alloc all of them
// wait for a slurmd that does not answer, and slurmctld notices after SlurmdTimeout, 5 minutes.
const startLimit = 6 * time.Minute

// gaveWayError means that jobs have the nodes.
type gaveWayError struct{ error }

// allocate waits for nodes. It returns the job with an error, too, if there may be one.
func (m *manager) allocate(ctx context.Context, a slurm.Allocation, wait time.Duration) (job string, err error) {
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	late := time.AfterFunc(wait+m.limit, stop) // salloc asks slurmctld first
	defer late.Stop()
	starting := false
	x := m.host.Run(waiting, probe.Command{
		Argv: m.settings.AllocateArgv(a), Timeout: wait + m.limit + m.start, Errors: saidLimit, Signals: []unix.Signal{unix.SIGTERM}, Grace: 3 * time.Second,
		Heard: func(said []byte) {
			if _, granted := slurm.ParseAllocated(said); granted && !starting {
				starting = true
				late.Reset(m.start)
			}
		},
	})
	job, granted := slurm.ParseAllocated(x.Errors)
	what := fmt.Sprintf("allocate %d nodes", len(a.Nodes))
	switch {
	case x.Err != nil:
		err = fmt.Errorf("%s: %w", what, x.Err)
	case x.TimedOut && ctx.Err() != nil:
		err = fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case x.TimedOut && granted:
		err = fmt.Errorf("%s: job %s has them, but they are not ready after %s: %s", what, job, m.start, lastLine(x.Errors))
	case x.TimedOut:
		err = fmt.Errorf("%s: they are not free after %s", what, wait)
	case x.Status != 0:
		err = fmt.Errorf("%s: salloc: exit status %d: %s", what, x.Status, lastLine(x.Errors))
	case !granted:
		err = fmt.Errorf("%s: salloc names no job: %s", what, lastLine(x.Errors))
	}
	if err != nil && job != "" && !granted && ctx.Err() == nil {
		err = gaveWayError{err}
	}
	return job, err
}

// step runs a program on nodes of a job until it has ended.
func (m *manager) step(ctx context.Context, job string, nodes []string, gpus slurm.StepGPUs, limit time.Duration, stdin []byte, heard func([]byte), program ...string) probe.Exit {
	return m.host.Run(ctx, probe.Command{
		Argv: m.settings.StepArgv(job, nodes, gpus, program...), Stdin: stdin, Timeout: limit, Errors: saidLimit, Heard: heard, Output: saidLimit, Grace: time.Second,
	})
}

// reserve, release, resume, drain and cancel are the steps of a maintenance. They use a context of
// their own: they must be done when a signal ends the sweep, too.

// drainedNet is how long the reservation of drained nodes lasts if it is never deleted. When it ends,
// Slurm uses the nodes again.
const drainedNet = 7 * 24 * time.Hour

func (m *manager) reserve(name string, nodes []string, drained bool) error {
	d := m.net
	if drained {
		d = max(d, drainedNet)
	}
	argv, err := m.settings.ReserveArgv(name, m.user, nodes, d)
	_, err = m.ask(context.Background(), "make reservation "+name, argv, err)
	return err
}

// tries and pause bound the repetition of a step that slurmctld refuses for a while.
const (
	tries = 20
	pause = time.Second
)

func (m *manager) release(name string) error {
	argv, err := m.settings.UnreserveArgv(name)
	if err != nil {
		return err
	}
	return m.insist(func() error {
		for range 2 {
			all, err := m.reservations(context.Background())
			if err != nil {
				return err
			}
			if _, ok := all[name]; !ok {
				return nil
			}
			if _, err = m.ask(context.Background(), "delete reservation "+name, argv, nil); err != nil {
				return err // it is in use until the job has ended
			}
		}
		return fmt.Errorf("delete reservation %s: it is still there", name)
	})
}

func (m *manager) resume(node string) error {
	argv, err := m.settings.PutIntoServiceArgv(node)
	_, err = m.ask(context.Background(), "put node "+node+" into service", argv, err)
	return err
}

// drain drains a node again. A reason that someone else has set since stays, and so does that of a health check
// whose node was drained by a health check: it resumes the node after the fault that it knows. A node that Slurm
// does not know any more gets no job.
func (m *manager) drain(node, reason string) (instead string, err error) {
	err = m.insist(func() error {
		list, err := m.nodes(context.Background())
		if err != nil {
			return err
		}
		at := slices.IndexFunc(list, func(n slurm.SweepNode) bool { return n.Name == node })
		if at >= 0 && list[at].Drains() {
			now := list[at].Reason
			switch {
			case now == reason:
				return nil
			case now != "" && !slurm.Ours(now), now != "" && !slurm.BySweep(now) && slurm.ByCheck(reason):
				instead = "drained meanwhile: " + now
				return nil
			}
		}
		argv, err := m.settings.RestoreArgv(node, reason)
		_, err = m.ask(context.Background(), "drain node "+node, argv, err)
		if at < 0 && slurm.NoSuchNode(err) {
			instead = "not drained again: Slurm does not know it any more"
			m.tell("node %s is %s", node, instead)
			return nil
		}
		return err
	})
	return instead, err
}

// drained returns the nodes that are drained, and the reasons.
func (m *manager) drained() (reasons map[string]string, err error) {
	err = m.insist(func() error {
		list, err := m.nodes(context.Background())
		reasons = map[string]string{}
		for _, n := range list {
			if n.Drains() {
				reasons[n.Name] = cmp.Or(n.Reason, "no reason")
			}
		}
		return err
	})
	return reasons, err
}

func (m *manager) tell(format string, args ...any) {
	if m.log != nil {
		m.log(format, args...)
	}
}

// errSilent means that slurmctld has done for a long time nothing that it was asked to do.
var errSilent = errors.New("it is asked no more")

// insist repeats a step until slurmctld accepts it. A person can wait for it, and there is a step for each node:
// while slurmctld does nothing, steps are tried once after 4 limits, and not at all after 8.
func (m *manager) insist(step func() error) (err error) {
	if m.silent > 8*m.limit {
		return fmt.Errorf("slurmctld has done nothing for %s: %w", m.silent.Round(time.Second), errSilent)
	}
	told := false
	for i := range tries {
		began := time.Now()
		if i > 0 {
			time.Sleep(pause)
		}
		if err = step(); err == nil {
			m.silent = 0
			break
		}
		if m.silent += time.Since(began); m.silent > 4*m.limit {
			break
		}
		if !told && m.silent > 2*pause {
			told = true
			m.tell("%v: trying again", err)
		}
	}
	return err
}

// cancel ends a job and waits until its processes have gone.
func (m *manager) cancel(job string) error {
	return m.insist(func() error {
		_, err := m.ask(context.Background(), "cancel job "+job, m.settings.CancelArgv(job), nil)
		if slurm.NoSuchJob(err) {
			return nil
		}
		return err
	})
}

// cancelOwn ends the job of a sweep. Another job can have its number by now. Without a number, because
// salloc has not printed it, it ends all jobs with the name.
func (m *manager) cancelOwn(job, name string) error {
	if job == "" {
		var out []byte
		err := m.insist(func() (err error) {
			out, err = m.ask(context.Background(), "list the jobs named "+name, m.settings.NamedArgv(name), nil)
			return err
		})
		for number := range strings.FieldsSeq(string(out)) {
			err = errors.Join(err, m.cancel(number))
		}
		return err
	}
	j, err := m.job(context.Background(), job)
	switch {
	case slurm.NoSuchJob(err):
		return nil
	case err != nil:
		return err
	case j.Name != name || j.Ended():
		return nil
	}
	return m.cancel(job)
}

// gone returns why a job does not run any more, "" if it does.
func (m *manager) gone(ctx context.Context, job string) string {
	j, err := m.job(ctx, job)
	switch {
	case slurm.NoSuchJob(err):
		return "the job is gone"
	case err != nil:
		return ""
	case j.Preempted:
		return "Slurm preempts job " + job
	case j.Ended(), j.State == "COMPLETING":
		return fmt.Sprintf("job %s is %s", job, strings.ToLower(cmp.Or(j.State, "gone")))
	}
	return ""
}

var errNoRank = errors.New("no node has a rank")
