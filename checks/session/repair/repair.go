// Package repair carries out remedies on a node that nhc-gpu has drained.
package repair

import (
	"context"
	"errors"
	"fmt"
	"log/syslog"
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
	Rows []conf.Remedy // what the site permits
	Self string        // the path of this program

	Last   *event.Event  // of the last health check
	Record remedy.Record // as it is stored
}

// New returns the repair of a node by the events and the record that are stored.
func New(n *node.Node, rows []conf.Remedy, self string) (*Repair, error) {
	r := &Repair{Node: n, Rows: rows, Self: self}
	list, err := outputs.Last(n)
	if err != nil {
		return nil, err
	}
	for _, e := range list {
		if (e.Context == conf.HealthCheck || e.Context == conf.Manual) && r.Last == nil {
			r.Last = e
		}
	}
	r.Record, err = node.Remedies(n)
	return r, err
}

// maintenance is how long before a reservation for maintenance no remedy begins: longer than the
// longest remedy.
const maintenance = 2 * time.Hour

// Choose returns the remedy that is due, and what speaks against it now. It changes nothing.
func (r *Repair) Choose(now time.Time) (next remedy.Next, against string, err error) {
	if r.Last == nil {
		return remedy.Next{Why: "no health check has run on this node"}, "", nil
	}
	next = remedy.Choose(r.Rows, r.platforms(), r.Last.Results, r.Record, now)
	if next.Why != "" {
		return next, "", nil
	}
	facts := remedy.Facts{Age: now.Sub(r.Last.Time), OtherBoot: r.Last.Boot != slurm.BootID(), Observe: r.Set.Observes(), Drill: next.Drill}
	if facts.Observe || facts.Drill { // the memory has drains that were not sent
		return next, facts.Against(next.Do, next.Command != nil), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 6*slurm.DefaultDeadline)
	defer cancel()
	p, err := slurm.AskPatient(ctx, r.Controller(), maintenance)
	if err != nil {
		return next, "", err
	}
	facts.Ours, facts.State, facts.Reason, facts.Order = p.Ours, p.Node.State.Text, p.Node.Reason, p.Node.State.Order
	facts.Empty, facts.Jobs = len(p.Jobs) == 0, strings.Join(p.Jobs, ", ")
	facts.Maintenance, facts.Repair, facts.NoReboot = p.Maintenance, p.Full, p.NoReboot
	return next, facts.Against(next.Do, next.Command != nil), nil
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

// Run goes on with the remedy that is under way, or carries out the one that is due, and returns what
// it did in one line.
func (r *Repair) Run(now time.Time) (did string, err error) {
	if err := r.restore(); err != nil { // an earlier process has ended in the middle
		r.Warn(err)
	}
	if open := r.Record.Open(); len(open) > 0 {
		return r.finish(open, now)
	}
	next, against, err := r.Choose(now)
	switch {
	case err != nil:
		return "", err
	case next.Holds != nil && !next.Drill:
		r.Record.Holds = append(r.Record.Holds, next.Holds...)
		err := node.KeepRemedies(r.Node, r.Record)
		ctx, cancel := context.WithTimeout(context.Background(), maintenance)
		defer cancel()
		if noted := slurm.AddToReason(ctx, r.Controller(), slurm.HeldForRMA); !errors.Is(noted, slurm.ErrNotOurs) {
			err = errors.Join(err, noted)
		}
		return r.report("%s: %s", slurm.HeldForRMA, next.Why), err
	case next.Why != "":
		return "no remedy: " + next.Why, nil
	case against != "":
		return fmt.Sprintf("%s waits: %s", next.Do, against), nil
	}
	r.Record.Begin(next.Name, next.Do, next.Faults, slurm.BootID(), now)
	if err := node.KeepRemedies(r.Node, r.Record); err != nil {
		return "", err // without the record the tries would never end
	}
	r.report("%s for %s: begins", next.Do, names(next.Faults))
	if err := r.act(&next); err != nil {
		return r.end(r.Record.Open(), err)
	}
	if boots(next.Do) {
		return fmt.Sprintf("%s for %s: waits for the boot", next.Do, names(next.Faults)), nil
	}
	return r.finish(r.Record.Open(), now)
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
	return conf.Remedy{Do: a.Do, Timeout: maintenance}
}

// act carries out a remedy.
func (r *Repair) act(next *remedy.Next) error {
	ctx, cancel := context.WithTimeout(context.Background(), next.Timeout)
	defer cancel()
	if next.Do == conf.RebootNode && next.Command == nil {
		return slurm.Reboot(ctx, r.Controller(), next.Verify != nil)
	}
	if err := slurm.NoteRepair(ctx, r.Controller(), next.Do); err != nil {
		return err
	}
	switch {
	case next.Command != nil:
		return r.exec(ctx, next.Command, append(r.Last.Line(), '\n'))
	case next.Do == conf.ResetGPU:
		return r.resetGPUs(ctx, next)
	default:
		for _, service := range next.Services {
			if err := r.exec(ctx, []string{"systemctl", "restart", service}, nil); err != nil {
				return err
			}
		}
		return nil
	}
}

// finish judges attempts: a remedy that ends with a boot waits for it, then the checks that found the
// faults, and those that the site names, must pass.
func (r *Repair) finish(open []*remedy.Attempt, now time.Time) (did string, err error) {
	first := open[0]
	row := r.row(first)
	if boots(first.Do) && first.Boot == slurm.BootID() {
		if age := now.Sub(first.Begin); age < row.Timeout {
			return fmt.Sprintf("%s for %s: waits for the boot since %s", first.Do, first.Fault, age.Round(time.Second)), nil
		}
		return r.end(open, fmt.Errorf("no boot within %s", row.Timeout))
	}
	lines := slices.Clone(row.Verify)
	for _, a := range open {
		if a.Line != "" && !slices.Contains(lines, a.Line) {
			lines = append(lines, a.Line)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), maintenance)
	defer cancel()
	for _, line := range lines {
		if out, err := r.output(ctx, []string{r.Self, "-e", line}, nil); err != nil {
			return r.end(open, fmt.Errorf("afterwards %s: %w%s", line, err, checks.Before(": ", out, "")))
		}
	}
	return r.end(open, nil)
}

// end stores the result of attempts. After success a health check returns the node.
func (r *Repair) end(open []*remedy.Attempt, failed error) (did string, err error) {
	var faults []remedy.Fault
	do := open[0].Do
	for _, a := range open {
		if a.Done = true; failed != nil {
			a.Error = failed.Error()
		}
		faults = append(faults, a.Fault)
	}
	err = node.KeepRemedies(r.Node, r.Record)
	ctx, cancel := context.WithTimeout(context.Background(), maintenance)
	defer cancel()
	if noted := slurm.AddToReason(ctx, r.Controller(), ""); !errors.Is(noted, slurm.ErrNotOurs) {
		err = errors.Join(err, noted)
	}
	if failed != nil {
		return r.report("%s for %s: failed: %v", do, names(faults), failed), err
	}
	did = r.report("%s for %s: the checks pass", do, names(faults))
	if _, checked := r.output(ctx, []string{r.Self}, nil); checked != nil {
		err = errors.Join(err, fmt.Errorf("the health check after %s: %w", do, checked))
	}
	return did, err
}

// report writes to the history and to syslog, and returns the text.
func (r *Repair) report(format string, args ...any) string {
	text := fmt.Sprintf(format, args...)
	outputs.Note(r.Node, event.Remedied, "remedy "+text)
	sink.SyslogAs(syslog.LOG_NOTICE, r.Set.Get("NAME"), []string{"Remedy " + text})
	return text
}

// exec runs a command and returns an error with the end of its output if it fails.
func (r *Repair) exec(ctx context.Context, argv []string, input []byte) error {
	out, err := r.output(ctx, argv, input)
	if err != nil {
		return fmt.Errorf("%w%s", err, checks.Before(": ", out, ""))
	}
	return nil
}

// output runs a command and returns the last line of its output.
func (r *Repair) output(ctx context.Context, argv []string, input []byte) (last string, err error) {
	o, err := r.Pool.Exec(ctx, argv, r.Set.Environ(), input)
	words := strings.Join(argv, " ")
	lines := strings.Split(strings.TrimSpace(string(o.Stdout)+"\n"+string(o.Stderr)), "\n")
	switch last = lines[len(lines)-1]; {
	case err != nil:
		return "", fmt.Errorf("run %s: %w", words, err)
	case o.TimedOut:
		return last, fmt.Errorf("run %s: no end in time", words)
	case o.Status != 0:
		return last, &failure{words, o}
	}
	return last, nil
}

// failure is the error of a command that ran and failed.
type failure struct {
	words string
	run.Output
}

func (f *failure) Error() string { return fmt.Sprintf("run %s: exit status %d", f.words, f.Status) }
