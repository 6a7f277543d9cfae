// Package outputs keeps the event of a run for later runs, and passes it to the outputs of the site.
package outputs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// The history of a node is a journal of its changes. It has at most 1,000 of them or those of 30 days,
// whichever is less: [History] drops the others, and the size of the journal bounds the files.
const (
	historyJournal = "history"
	historyMost    = 1 << 20 // bytes, in each of two files
	historyChanges = 1000
	HistoryAge     = 30 * 24 * time.Hour
)

// RunPrefix is the beginning of the names under which the last event of each context is kept.
const RunPrefix = "run-"

// The time limits of outputs.
const (
	limit   = time.Second            // of each output; around a job, which waits, of all together
	least   = 50 * time.Millisecond  // of each output at the end of the time
	reserve = 350 * time.Millisecond // of the limit, for the end of a command and the last event
	whole   = 57 * time.Second       // of a health check: slurmd ends it after 60

	shortest = 200 * time.Millisecond // less is no time for a command
)

// textMode lets node_exporter read the metrics, which name no user, process or file. The other files
// are readable by root and a group.
const textMode = 0o644

// Run is the kind of a run, by what its result says about the node.
type Run int

// The kinds of runs. OfNode runs the configuration of the node, as slurmd or a timer starts it. Other
// runs another file of the site, by -n: the active tests. Trial runs a file that a person names.
const (
	OfNode Run = iota
	Other
	Trial
)

// Deliver keeps the event and passes it to the outputs. It comes after the verdict has been carried
// out: an output that fails costs a warning, is counted in the next event, and changes nothing else.
// Only root has a memory, and only its runs have outputs.
func Deliver(n *node.Node, o conf.Output, run Run, e *event.Event) {
	if !n.Remembers() {
		return
	}
	e.Trim()
	if o.Privacy {
		e = e.Private()
	}
	d := delivery{n: n, Output: o, event: e, run: run, end: endOf(n, time.Now())}
	d.separate()
	archive := ""
	old, err := d.last()
	if d.fail("history", err); err == nil {
		d.remembers = true
		e.Compare(old)
		if run != Trial && !n.Role.AroundJob() {
			d.endSilences(old)
		}
		if !n.Role.AroundJob() { // the job waits: the next health check keeps the evidence
			archive, e.Evidence = archiveOf(e, old, n.Set.Past)
		}
	}
	d.send(d.requests(old)...)
	d.syslog()
	d.command()
	lost := archive != "" && !d.keepEvidence(archive)
	if d.remembers && (lost || !slices.Equal(e.Outputs, d.failed)) {
		e.Outputs = d.failed
		kept := *d.kept(old)
		if lost {
			loseArchive(&kept, old)
		}
		if !d.end.IsZero() {
			d.end = d.end.Add(reserve)
		}
		d.send(d.keep(&kept))
	}
}

// Label returns the name of a node for its metrics, "" if it is that of its host: several slurmd can
// share a host.
func Label(n *node.Node) string {
	host := n.Set.Get("HOSTNAME")
	if short, _, _ := strings.Cut(host, "."); n.Name == host || n.Name == short {
		return ""
	}
	return n.Name
}

// separate names the files of a node after it if its metrics have a label.
func (d *delivery) separate() {
	if d.label = Label(d.n); d.label == "" {
		return
	}
	for _, path := range []*string{&d.Textfile, &d.JSONL} {
		if ext := filepath.Ext(*path); *path != "" {
			*path = strings.TrimSuffix(*path, ext) + "." + d.n.Name + ext
		}
	}
}

// endOf returns when the time of a run for outputs is over, zero for never.
func endOf(n *node.Node, now time.Time) (end time.Time) {
	switch {
	case n.Role.AroundJob():
		end = now.Add(limit - reserve)
		if b := n.Budget.End.Add(limit - reserve); n.Budget.Limited() && b.Before(end) {
			end = b
		}
	case n.Background:
		end = now.Add(whole)
	case n.Unattended():
		end = n.Budget.Began.Add(whole)
	}
	return end
}

type delivery struct {
	conf.Output

	n     *node.Node
	run   Run
	event *event.Event
	label string    // the name of the node, if the host has another one
	end   time.Time // when the time for outputs is over, zero for never

	remembers bool // the memory of the node can be used
	failed    []event.Failure
	gone      []event.Result // accepted findings that are not kept: their silences have ended, or another finding stands for them
}

// output is a request of an output.
type output struct {
	name string
	*wire.Request
}

// left returns the time that an output has.
func (d *delivery) left(limit time.Duration) time.Duration {
	if d.end.IsZero() {
		return limit
	}
	return min(limit, max(time.Until(d.end), least))
}

// last returns the event that is kept of this context, nil if there is none, or a damaged one. For a run
// of the monitor it omits the faults that a later health check no longer found. An error means that writing would
// fail, too, and that the time limit may be spent.
func (d *delivery) last() (old *event.Event, err error) {
	name := RunPrefix + d.event.Context
	if !d.event.Part {
		of, err := d.recall(name)
		return of[name], err
	}
	of, err := d.recall(RunPrefix)
	if of == nil && err == nil { // in a silence, in which only single records can be known
		of = map[string]*event.Event{}
		for _, one := range []string{name, RunPrefix + conf.HealthCheck, RunPrefix + conf.Manual} {
			known, err := d.recall(one)
			if err != nil {
				return nil, err
			}
			maps.Copy(of, known)
		}
	}
	if old = of[name]; old != nil {
		old = old.Unless(of[RunPrefix+conf.HealthCheck], d.event.Time).Unless(of[RunPrefix+conf.Manual], d.event.Time) // nhc-gpu.timer makes the latter
	}
	return old, err
}

// recall returns the kept events whose names have a prefix, nil in a silence. It ignores damaged ones.
func (d *delivery) recall(prefix string) (map[string]*event.Event, error) {
	q := &wire.Request{Op: wire.OpRecall, Name: prefix, Line: "read the last event"}
	resp, err := d.n.Pool.Call(context.WithoutCancel(d.n.Ctx), checks.Local, q, d.left(limit)).AnswerTo(q.Line)
	if errors.Is(err, run.ErrSilent) {
		return nil, nil // this event begins the history, until the records answer
	}
	if err != nil {
		return nil, err
	}
	of := map[string]*event.Event{}
	for _, r := range resp.Records {
		if e, err := event.Parse(r.Data); err == nil && r.Err == "" {
			of[r.Name] = e
		}
	}
	return of, nil
}

// kept returns the event to keep, by the one before it.
func (d *delivery) kept(old *event.Event) *event.Event {
	e := d.event
	if e.Part && old != nil {
		e = e.Join(old)
	}
	if d.run != OfNode {
		e = e.OfOther(d.run == Trial)
	}
	e = e.Carry(old, d.gone)
	if d.Privacy && len(e.Accepted) > 0 { // then it is a copy
		e.Accepted = e.Private().Accepted
	}
	return e
}

func (d *delivery) keep(e *event.Event) output {
	return output{"history", &wire.Request{Op: wire.OpKeep, Name: RunPrefix + e.Context, Data: e.Line(), Line: "write the last event"}}
}

func (d *delivery) note(e *event.Event) output {
	return output{"history", &wire.Request{Op: wire.OpNote, Name: historyJournal, Most: historyMost, Data: e.Short().Line(), Line: "write the history"}}
}

// requests returns the requests that write the last event, the history and the files, and to the
// journal of systemd. old is the event of the run before.
func (d *delivery) requests(old *event.Event) (list []output) {
	if d.remembers {
		list = append(list, d.keep(d.kept(old)))
	}
	if d.remembers && len(d.event.Changed) > 0 {
		list = append(list, d.note(d.event))
	}
	if d.Textfile != "" && !d.n.Role.AroundJob() && d.run == OfNode { // the metrics describe the node
		list = append(list, output{"textfile", &wire.Request{Op: wire.OpPut, Path: d.Textfile, Mode: textMode, Data: d.event.Prometheus(d.Autopilot, d.label), Line: "write " + d.Textfile}})
	}
	if d.Journald {
		var entries []wire.Entry
		for _, entry := range d.event.Journal(d.n.Set.Get("NAME")) {
			entries = append(entries, wire.Entry(entry))
		}
		list = append(list, output{"journald", &wire.Request{Op: wire.OpJournal, Entries: entries, Line: "write to the journal"}})
	}
	if d.JSONL != "" {
		list = append(list, output{"jsonl", &wire.Request{Op: wire.OpAppend, Path: d.JSONL, Most: d.JSONLMax, Data: append(d.event.Line(), '\n'), Line: "write " + d.JSONL}})
	}
	return list
}

// send has the local worker carry out the requests of outputs. It replaces a worker that hangs, and
// skips an output for as long as a process of an earlier run hangs in it.
func (d *delivery) send(list ...output) {
	names, reqs := map[*wire.Request]string{}, make([]*wire.Request, 0, len(list))
	for _, o := range list {
		names[o.Request], reqs = o.name, append(reqs, o.Request)
	}
	limit := func(*wire.Request) time.Duration { return d.left(limit) }
	d.n.Pool.Do(context.WithoutCancel(d.n.Ctx), checks.Local, reqs, limit, func(q *wire.Request, o run.Outcome) { d.fail(names[q], o.FailureIn(q.Line)) })
}

func (d *delivery) fail(name string, err error) {
	if err == nil {
		return
	}
	d.failed = append(d.failed, event.Failure{Output: name})
	if !d.Privacy {
		d.failed[len(d.failed)-1].Error = err.Error()
	}
	d.n.Warn(fmt.Errorf("output %s: %w", name, err))
}

func (d *delivery) syslog() {
	if d.Syslog {
		d.fail("syslog", sink.Records(d.event.Syslog(d.n.Set.Get("NAME"), d.SyslogID, os.Getpid()), d.left(limit)))
	}
}

// commandDue reports whether the site's command gets the event.
func (d *delivery) commandDue() bool {
	if len(d.Command) == 0 || d.run == Trial {
		return false
	}
	changed := len(d.event.Changed) > 0 || !d.remembers && d.event.Verdict == checks.Fail
	return d.CommandOn == conf.Always || changed && (d.CommandOn == conf.OnChange || d.event.Verdict == checks.Fail)
}

// command gives the event to the site's command, if it is due.
func (d *delivery) command() {
	if !d.commandDue() {
		return
	}
	argv := d.Command
	timeout := d.left(d.CommandTimeout)
	if timeout < shortest {
		d.fail("command", fmt.Errorf("run %s: no time is left", argv[0]))
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	out, err := d.n.Pool.Exec(ctx, argv, d.n.Set.Environ(), append(d.event.Line(), '\n'))
	switch {
	case err == nil && out.TimedOut:
		err = fmt.Errorf("no end within %s", timeout.Round(10*time.Millisecond))
	case err != nil && ctx.Err() != nil: // nor did its worker end in time
		err = fmt.Errorf("no end within %s: %w", timeout.Round(10*time.Millisecond), err)
	case err == nil && out.Status != 0:
		err = fmt.Errorf("exit status %d", out.Status)
	}
	if err != nil {
		d.fail("command", fmt.Errorf("run %s: %w", argv[0], err))
	}
}

// endSilences ends the silences of findings that are gone, if they have no date. Runs of another
// configuration end none: they do not run the checks of nhc.conf. A finding that runs of another context have
// accepted, too, is not gone until they pass.
func (d *delivery) endSilences(old *event.Event) {
	ended, passed := d.event.Gone(old, d.run == Other)
	if d.run == Other {
		d.gone = passed
	}
	if len(ended) == 0 {
		return
	}
	others, err := d.recall(RunPrefix)
	if err != nil {
		return // the next run tries again
	}
	delete(others, RunPrefix+d.event.Context)
	for _, r := range ended {
		elsewhere := false
		for _, e := range others {
			elsewhere = elsewhere || e.Accepts(&r, d.run != Other)
		}
		if elsewhere != (d.run == Other) {
			continue
		}
		if d.run == OfNode {
			if err := d.n.EndGone(r.Code, r.Line, r.Device); err != nil {
				d.n.Warn(fmt.Errorf("end the silence of %s: %w", r.Code, err))
				continue // the next run tries again
			}
		}
		d.gone = append(d.gone, r)
	}
}

// Note adds a person's action to the history of the node. kind is the kind of the change.
func Note(n *node.Node, kind, what string) {
	e := &event.Event{
		Schema: event.Schema, Node: n.Name, Time: time.Now().UTC().Truncate(time.Millisecond), Context: n.Role.String(), Mode: Mode(n),
		Message: what, Results: []event.Result{}, Changed: []string{kind},
	}
	d := delivery{n: n, event: e}
	d.send(d.note(e))
}

// Add adds an event that is not of a run of this node to its history.
func Add(n *node.Node, o conf.Output, e *event.Event) error {
	if !n.Remembers() {
		return errors.New("only root has a history, and not of a recorded node")
	}
	e.Trim()
	if o.Privacy {
		e = e.Private()
	}
	d := delivery{n: n, event: e}
	q := d.note(e).Request
	_, err := n.Pool.Call(n.Ctx, checks.Local, q, 2*limit).AnswerTo(q.Line)
	return err
}

// Mode returns whether decisions of the run are carried out.
func Mode(n *node.Node) string {
	if n.Set.Observes() {
		return conf.Observe
	}
	return conf.Enforce
}

// Last returns the last event of each context, the newest first.
func Last(n *node.Node) (list []*event.Event, err error) {
	q := &wire.Request{Op: wire.OpRecall, Name: RunPrefix, Line: "read the last events"}
	resp, err := n.Pool.Call(n.Ctx, checks.Local, q, 2*limit).AnswerTo(q.Line)
	if err != nil {
		return nil, err
	}
	for _, r := range resp.Records {
		e, err := event.Parse(r.Data)
		if r.Err != "" || err != nil {
			n.Warn(fmt.Errorf("the event %s is damaged", r.Name))
			continue
		}
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b *event.Event) int { return b.Time.Compare(a.Time) })
	return list, nil
}

// History returns the changes of the node, the oldest first.
func History(n *node.Node, now time.Time) (list []*event.Event, err error) {
	q := &wire.Request{Op: wire.OpNotes, Name: historyJournal, Most: historyMost, Line: "read the history"}
	resp, err := n.Pool.Call(n.Ctx, checks.Local, q, 2*limit).AnswerTo(q.Line)
	if err != nil {
		return nil, err
	}
	return recent(resp.Lines, now), nil
}

// recent returns the changes that the history keeps, the oldest first.
func recent(lines [][]byte, now time.Time) (list []*event.Event) {
	for _, line := range lines {
		if !json.Valid(line) { // cut off when the disk was full
			continue
		}
		if e, err := event.Parse(line); err == nil && now.Sub(e.Time) <= HistoryAge {
			list = append(list, e)
		}
	}
	slices.SortStableFunc(list, func(a, b *event.Event) int { return a.Time.Compare(b.Time) }) // a spare directory comes last
	return list[max(0, len(list)-historyChanges):]
}
