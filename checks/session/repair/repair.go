// Package repair carries out remedies on a node that nhc-gpu has drained.
package repair

import (
	"context"
	"errors"
	"fmt"
	"log/syslog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/remedy"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Repair is a remedy of a node.
type Repair struct {
	*node.Node
	Rows    []conf.Remedy // the remedies that the site permits
	Program string        // the path of this program
	Words   []string      // settings of its command line: NAME=value

	Last   *event.Event  // of the last health check
	Record remedy.Record // as it is stored

	spread, restoreLimit time.Duration // the constants; tests do not wait
}

// New returns the repair of a node by the events and the record that are stored; see [Repair].
func New(n *node.Node, rows []conf.Remedy, program string, words []string) (*Repair, error) {
	r := &Repair{Node: n, Rows: rows, Program: program, Words: words, spread: spread, restoreLimit: restoreLimit}
	return r, r.look()
}

// look reads the last event and the record.
func (r *Repair) look() error {
	list, err := outputs.Last(r.Node)
	if err != nil {
		return err
	}
	r.Last = nil
	for _, e := range list {
		if e.Context == conf.HealthCheck && r.Last == nil {
			r.Last = e
		}
	}
	r.Record, err = node.Remedies(r.Node)
	return err
}

// longestRemedy bounds a remedy. None begins if a reservation for maintenance begins within that time.
const longestRemedy = 2 * time.Hour

// Choose returns the remedy that is due, and what speaks against it now. It changes nothing.
func (r *Repair) Choose(now time.Time) (next remedy.Next, against string, err error) {
	if rm := r.Set.Get("NHC_RM"); rm != "" && rm != "slurm" { // Slurm does not know its jobs
		return remedy.Next{Why: "the resource manager is " + rm + ": remedies require Slurm"}, "", nil
	}
	if r.Last == nil {
		return remedy.Next{Why: "no health check has run on this node"}, "", nil
	}
	if len(r.Record.Holds) > 0 { // a run that ends at the first failure does not come to the hold
		return remedy.Next{Why: r.Record.Holds[0].Finding().Message}, "", nil
	}
	next = remedy.Choose(r.Rows, r.platforms(), r.Last.Results, r.Record, now)
	if next.Why != "" && next.Holds == nil {
		return next, "", nil
	}
	facts := remedy.Facts{Age: now.Sub(r.Last.Time), OtherBoot: r.Last.Boot != slurm.BootID(), Observe: r.Set.Observes(), Drill: next.Drill && !r.drillsRemedy()}
	if facts.Observe || facts.Drill { // the memory has drains that were not sent
		return next, facts.Against(next.Do, next.Command != nil), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 6*slurm.DefaultDeadline)
	defer cancel()
	limits := slurm.Guard{RepairPartition: r.Guard.RepairPartition, RepairCluster: r.Guard.RepairCluster}
	p, err := slurm.AskPatient(ctx, r.Controller(), limits, longestRemedy, next.Drill)
	if err != nil {
		return next, "", err
	}
	facts.Ours, facts.State, facts.Reason, facts.Order = p.Ours, p.Node.State.Text, p.Node.Reason, p.Node.State.Order
	facts.Empty, facts.Jobs = len(p.Jobs) == 0, strings.Join(p.Jobs, ", ")
	facts.Maintenance, facts.Repair, facts.NoReboot = p.Maintenance, p.Full, p.NoReboot
	facts.Forgetful = !r.Record.Survived(slurm.BootID())
	return next, facts.Against(next.Do, next.Command != nil), nil
}

// drillsRemedy reports whether the drill that is under way is one of the remedy, too.
func (r *Repair) drillsRemedy() bool {
	d := r.Drill()
	return d != nil && d.Remedy
}

// platforms returns the names of the platforms of the node's GPUs.
func (r *Repair) platforms() (names []string) {
	if !slices.ContainsFunc(r.Rows, func(row conf.Remedy) bool { return row.Platforms != nil }) {
		return nil
	}
	groups, err := r.PlatformGroups()
	if err != nil {
		r.Warn(fmt.Errorf("find the platform for the remedies: %w", err))
	}
	for i := range groups {
		if p := groups[i].Platform; p != nil {
			names = append(names, p.Name)
		}
	}
	return names
}

// spread is the longest wait before a remedy: Slurm can start the health checks of all nodes in the same
// moment, and each counts the others that are in repair.
const spread = 10 * time.Second

// Run goes on with the remedy that is under way, or carries out the one that is due, and returns its
// result in one line. While it acts no health check of slurmd runs: that could return the node, and
// would open its GPUs.
func (r *Repair) Run(now time.Time) (did string, err error) {
	if err := r.restore(); err != nil { // an earlier process has ended in the middle
		r.Warn(err)
	}
	if open := r.Record.Open(); len(open) > 0 {
		return r.finish(open, now)
	}
	if len(r.Record.Holds) > 0 { // the drain can be newer than the hold
		if err := slurm.AddToReason(r.Ctx, r.Controller(), slurm.HeldForRMA); err != nil && !errors.Is(err, slurm.ErrNotOurs) {
			return "", err
		}
	}
	next, against, err := r.Choose(now)
	if did := waits(&next, against); err != nil || did != "" {
		return did, err
	}
	time.Sleep(rand.N(r.spread))
	release, err := node.HoldRuns(r.Node)
	if err != nil {
		return "", err
	}
	defer release()
	if err := r.look(); err != nil { // the fault can be gone
		return "", err
	}
	next, against, err = r.Choose(time.Now()) // a person or a job can have come
	if did := waits(&next, against); err != nil || did != "" {
		return did, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), longestRemedy)
	defer cancel()
	if next.Holds != nil {
		return r.hold(ctx, next.Holds, next.Why)
	}
	boot := next.Do == conf.RebootNode && next.Command == nil // Slurm notes it
	if !boot {
		if err := slurm.NoteRepair(ctx, r.Controller(), next.Do); err != nil {
			return "", err
		}
	}
	r.Record.Begin(&next, slurm.BootID(), time.Now())
	if err := node.KeepRemedies(r.Node, r.Record, remedy.CanBoot(next.Do, next.Command != nil)); err != nil { // without the record the tries would never end
		return "", errors.Join(err, slurm.AddToReason(ctx, r.Controller(), ""))
	}
	r.report("%s for %s: begins", next.Do, names(next.Faults))
	err = r.act(ctx, &next)
	switch {
	case err != nil && (!boot || !errors.As(err, new(slurm.UnansweredError))):
		return r.end(ctx, r.Record.Open(), err)
	case err != nil: // slurmctld can have accepted it
		err = errors.Join(err, r.setUnanswered(true))
		fallthrough
	case boots(next.Do):
		return fmt.Sprintf("%s for %s: waits for the boot", next.Do, names(next.Faults)), err
	}
	release()
	return r.finish(r.Record.Open(), now)
}

// waits returns why there is no remedy now, "" if there is one.
func waits(next *remedy.Next, against string) string {
	switch {
	case next.Why != "" && next.Holds == nil:
		return "no remedy: " + next.Why
	case against != "" && next.Holds != nil:
		return "no remedy: " + against
	case against != "":
		return fmt.Sprintf("%s waits: %s", next.Do, against)
	}
	return ""
}

// hold ends the tries: only a person returns the node.
func (r *Repair) hold(ctx context.Context, holds []remedy.Hold, why string) (did string, err error) {
	if err := slurm.AddToReason(ctx, r.Controller(), slurm.HeldForRMA); err != nil {
		return "", err // the next health check tries again
	}
	r.Record.Holds = append(r.Record.Holds, holds...)
	if err := node.KeepRemedies(r.Node, r.Record, false); err != nil {
		r.Warn(err)
	}
	return r.report("%s: %s", slurm.HeldForRMA, why), nil
}

// boots reports whether a remedy ends with a boot.
func boots(do string) bool { return do == conf.RebootNode || do == conf.PowerCycle }

func names(faults []remedy.Fault) string {
	var list []string
	for _, f := range faults {
		list = append(list, f.String())
	}
	return strings.Join(list, ", ")
}

// row returns the site's remedy of an attempt; if it has been removed, one without further checks.
func (r *Repair) row(a *remedy.Attempt) conf.Remedy {
	for _, row := range r.Rows {
		if row.Name == a.Name && row.Do == a.Do {
			return row
		}
	}
	return conf.Remedy{Do: a.Do, Timeout: longestRemedy}
}

// act carries out a remedy.
func (r *Repair) act(ctx context.Context, next *remedy.Next) error {
	ctx, cancel := context.WithTimeout(ctx, next.Timeout)
	defer cancel()
	switch {
	case next.Command != nil:
		_, err := r.run(ctx, next.Command, append(r.Last.Line(), '\n'))
		return err
	case next.Do == conf.RebootNode:
		return slurm.Reboot(ctx, r.Controller())
	case next.Do == conf.ResetGPU:
		return r.resetGPUs(ctx, next)
	}
	for _, service := range next.Services {
		if _, err := r.run(ctx, []string{"systemctl", "restart", service}, nil); err != nil {
			return err
		}
	}
	return nil
}

// finish judges attempts: a remedy that ends with a boot waits for it, then a run of the checks must no
// longer find the faults, and the lines that the site names must pass.
func (r *Repair) finish(open []*remedy.Attempt, now time.Time) (did string, err error) {
	first := open[0]
	row := r.row(first)
	ctx, cancel := context.WithTimeout(context.Background(), longestRemedy)
	defer cancel()
	age := now.Sub(first.Begin)
	if boots(first.Do) && first.Boot == slurm.BootID() {
		return r.awaitBoot(ctx, open, row, age)
	}
	found, err := r.check(ctx)
	if err == nil {
		err = remedy.StillThere(found, open)
	}
	switch {
	case remedy.AskAgain(err, age, row.Timeout):
		return fmt.Sprintf("%s for %s: %v", first.Do, first.Fault, err), nil
	case err != nil:
		return r.end(ctx, open, err)
	}
	for _, line := range row.Verify {
		if _, err := r.self(ctx, []string{"-e", line}); err != nil {
			return r.holdFor(ctx, open, line+" failed after "+first.Do, err)
		}
	}
	return r.end(ctx, open, nil)
}

// setUnanswered records whether it is unknown if Slurm has the request of a reboot.
func (r *Repair) setUnanswered(unanswered bool) error {
	for _, a := range r.Record.Open() {
		a.Unanswered = unanswered
	}
	return node.KeepRemedies(r.Node, r.Record, false)
}

// awaitBoot goes on waiting for a boot, until it takes too long. If Slurm no longer has the request,
// probably since a person has cancelled it, no other follows. A request that Slurm has never had has failed.
func (r *Repair) awaitBoot(ctx context.Context, open []*remedy.Attempt, row conf.Remedy, age time.Duration) (did string, err error) {
	first := open[0]
	if first.Do == conf.RebootNode && row.Command == nil && age > cancelledAfter {
		p, err := r.Controller().Read(ctx)
		down := p.State.Class == slurm.Down || strings.HasPrefix(p.State.Text, "DOWN") // a drain outranks it
		gone := err == nil && p.State.Order == "" && !down && p.State.Class != slurm.Unknown
		switch {
		case gone && first.Unanswered:
			return r.end(ctx, open, errors.New("the request got no answer, and Slurm does not have it"))
		case err == nil && p.State.Order != "" && first.Unanswered:
			if err := r.setUnanswered(false); err != nil {
				r.Warn(err)
			}
		case gone:
			failed := fmt.Errorf("it is no longer requested: the node is %s", p.State.Text)
			if first.Drill { // its fault was never there
				return r.end(ctx, open, failed)
			}
			return r.holdFor(ctx, open, "the requested reboot is gone: a person has cancelled it, or slurmctld has lost it", failed)
		}
	}
	if age < row.Timeout {
		return fmt.Sprintf("%s for %s: waits for the boot since %s", first.Do, first.Fault, age.Round(time.Second)), nil
	}
	return r.end(ctx, open, fmt.Errorf("no boot within %s", row.Timeout))
}

// cancelledAfter is how long Slurm may not show a reboot that was asked for. After that it counts as cancelled.
const cancelledAfter = 10 * time.Second

// holdFor ends attempts with an error, and holds the node for another cause than too many tries.
func (r *Repair) holdFor(ctx context.Context, open []*remedy.Attempt, why string, failed error) (did string, err error) {
	hold := remedy.Hold{Fault: open[0].Fault, Since: time.Now().UTC().Truncate(time.Second), Why: why}
	_, err = r.hold(ctx, []remedy.Hold{hold}, why)
	if err != nil { // nothing else would keep the node out of service
		r.Record.Holds = append(r.Record.Holds, hold)
	}
	if errors.Is(err, slurm.ErrNotOurs) { // the next health check drains it for the hold
		err = nil
	}
	did, end := r.end(ctx, open, failed)
	return did, errors.Join(err, end)
}

// self runs this program with options, the settings of the command line, and further settings.
func (r *Repair) self(ctx context.Context, options []string, words ...string) (run.Output, error) {
	return r.run(ctx, slices.Concat([]string{r.Program}, options, r.Words, words), nil)
}

// check runs the checks of the node, which marks nothing, and returns its event.
func (r *Repair) check(ctx context.Context) (*event.Event, error) {
	began := time.Now()
	if _, err := r.self(ctx, []string{"-a"}, "MARK_OFFLINE=0"); err != nil && !errors.As(err, new(*failure)) {
		return nil, err
	}
	list, err := outputs.Last(r.Node)
	for _, e := range list {
		if e.Context == conf.Manual && !e.Time.Before(began.Truncate(time.Second)) {
			return e, nil
		}
	}
	return nil, remedy.UnknownError{Err: errors.Join(errors.New("the checks after it left no result"), err)}
}

// end stores the result of attempts. After success a health check returns the node.
func (r *Repair) end(ctx context.Context, open []*remedy.Attempt, failed error) (did string, err error) {
	var faults []remedy.Fault
	do := open[0].Do
	if len(r.Record.Holds) == 0 {
		if err = slurm.AddToReason(ctx, r.Controller(), ""); errors.Is(err, slurm.ErrNotOurs) {
			err = nil
		}
	}
	for _, a := range open {
		if a.Done = true; failed != nil {
			a.Error = failed.Error()
		}
		faults = append(faults, a.Fault)
	}
	if open[0].Drill { // the fault was never there
		err = errors.Join(err, r.KeepDrill(nil))
	}
	err = errors.Join(err, node.KeepRemedies(r.Node, r.Record, false))
	if failed != nil {
		return r.report("%s for %s: failed: %v", do, names(faults), failed), err
	}
	did = r.report("%s for %s: the checks pass", do, names(faults))
	if _, checked := r.self(ctx, nil); checked != nil {
		err = errors.Join(err, fmt.Errorf("the health check after %s: %w", do, checked))
	}
	return did, err
}

// report writes to the history and to syslog, and returns the text.
func (r *Repair) report(format string, args ...any) string {
	text := fmt.Sprintf(format, args...)
	outputs.Note(r.Node, event.Remedied, "remedy "+text)
	_ = sink.SyslogAs(syslog.LOG_NOTICE, r.Set.Get("NAME"), []string{"Remedy " + text})
	return text
}

// run runs a command. The error of one that fails has the last line of its output.
func (r *Repair) run(ctx context.Context, argv []string, input []byte) (run.Output, error) {
	o, err := r.Pool.Exec(ctx, argv, r.Set.Environ(), input)
	words := strings.Join(argv, " ")
	switch {
	case err != nil:
		err = fmt.Errorf("run %s: %w", words, err)
	case o.TimedOut:
		err = fmt.Errorf("run %s: no end in time", words)
	case o.Status != 0:
		err = &failure{words, o}
	}
	return o, err
}

// failure is the error of a command that ran and failed.
type failure struct {
	words string
	run.Output
}

func (f *failure) Error() string {
	lines := strings.Split(strings.TrimSpace(string(f.Stdout)+"\n"+string(f.Stderr)), "\n")
	return fmt.Sprintf("run %s: exit status %d%s", f.words, f.Status, checks.Before(": ", lines[len(lines)-1], ""))
}
