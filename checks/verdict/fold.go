// Package verdict folds the results of a run, in the order of its plan, into
// what LBNL NHC would have said and done: the lines of its log, its standard
// output and syslog, whether the node is taken out of service, the exit status.
// It is a pure state machine: it says what is to be done, others do it.
package verdict

import (
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Dest is where an event goes.
type Dest int

// The destinations. Log is LBNL's standard output after LOGFILE has been
// applied to it; Out is the standard output the program was started with.
const (
	Log Dest = iota
	Out
	Syslog
	Offline // take the node out of service; Text is the message
	Online  // return the node to service
	Result  // what a detached run leaves behind; Text is "STATUS MESSAGE"
)

// Event is one thing to be done.
type Event struct {
	To   Dest
	Text string
}

// Settings steer the fold. A check line may change them in mid-run.
type Settings struct {
	Name    string // NAME, in every text and the syslog tag
	Silent  bool   // -q
	Verbose bool   // -v
	Stamp   bool   // TS: a time stamp before every line; put there by whoever writes it
	All     bool   // -a: go on after a failure
	Forked  bool   // -f
	Apart   bool   // lines run in processes of their own: NHC_CHECK_FORKED is anything but 0
	Eval    bool   // -e: one line, nothing is marked
	Logged  bool   // there is a LOGFILE: errors go to standard output, too
	Mark    bool   // MARK_OFFLINE is 1 and NHC_RM is set
	Detach  bool   // this is the background half of detached mode
	Late    bool   // with All: the node is marked when the run ends, for the worst failure
}

// Fold is the state of a run's verdict.
type Fold struct {
	Settings
	queue    []string // syslog lines not yet sent
	check    string   // the line whose turn it is
	forked   bool     // that line runs in a process of its own
	died     int      // how often the line died in the main shell
	subDied  *failure // the first death in a subshell of the line
	tainted  bool     // a check has died whose line passed
	failures int
	unknowns int
	findings []checks.Finding
	wholes   Wholes
	failed   []checks.Finding
	called   []checks.Finding // of checks that the line has called from bash
	advised  map[string]bool  // advice that syslog has
	blamed   int
	message  string // the reason of the node
	marked   bool   // the node has been marked
	left     bool   // the first failure has been left as the result
	over     bool
	exit     int
}

type failure struct {
	status  int
	message string
	heard   bool // its log line is where the log is
}

// ExitUnknown is the exit status of a run in which something could not be told
// and nothing failed. LBNL NHC has no such status.
const ExitUnknown = 3

var assignment = checks.Lazily(`( |^)(export )?[A-Za-z_][A-Za-z0-9_]*=[^ =]`)

// InPlace says whether -f runs a line in the main shell all the same: it looks
// like an assignment.
func InPlace(line string) bool { return assignment().MatchString(line) }

// Forks says whether -f runs a line in a process of its own.
func (f *Fold) Forks(line string) bool { return f.Apart && !InPlace(line) }

// Start opens the run.
func (f *Fold) Start() []Event { return f.verbose("Node Health Check starting.") }

func (f *Fold) verbose(text string) []Event {
	if !f.Verbose {
		return nil
	}
	return []Event{{Log, text}}
}

func (f *Fold) log(text string) []Event {
	if f.Silent {
		return nil
	}
	return []Event{{Log, text}}
}

// Begin opens a step. pid is the process of a forked line.
func (f *Fold) Begin(line string, pid int) []Event {
	f.check, f.died, f.subDied, f.forked = line, 0, nil, f.Forks(line)
	f.called = nil
	if f.Eval {
		return nil
	}
	text := `Running check:  "` + line + `"`
	if f.forked {
		text += fmt.Sprintf(" (forked PID %d)", pid)
	}
	return f.verbose(text)
}

// Findings takes the findings of a native step, in their order.
func (f *Fold) Findings(list []checks.Finding) (events []Event) {
	list = f.wholes.Take(list)
	for _, x := range list { // first of all, since a failure may end the run
		if x.Aside() {
			events = append(events, f.log(x.Message)...)
		}
	}
	var failed []checks.Finding
	for _, x := range list {
		f.findings = append(f.findings, x)
		if x.Aside() {
			continue
		}
		if detail := x.Detail(); detail != "" {
			f.Queue(detail)
		}
		switch x.Severity {
		case checks.OK, checks.Skip: // what an active test has measured, why a check does not apply
			if x.Message != "" {
				events = append(events, f.verbose(x.Message)...)
			}
		case checks.Warn:
			if x.Syslog {
				f.Queue(x.Message)
				continue
			}
			if x.Loud {
				f.Queue(x.Message)
			}
			events = append(events, f.log(x.Message)...)
		case checks.Unknown:
			events = append(events, f.unknown(x.Message)...)
		default:
			events = append(events, f.log(f.errorText(x.Message))...)
			failed = append(failed, x)
		}
	}
	if len(failed) > 0 {
		events = append(events, f.fail(statusOf(failed[0]), failed...)...)
	}
	return events
}

func statusOf(x checks.Finding) int { return max(x.Status, 1) }

func (f *Fold) errorText(message string) string {
	return "ERROR:  " + f.Name + ":  Health check failed:  " + message
}

// unknown reports what could not be told: loudly, but it fails nothing.
func (f *Fold) unknown(message string) []Event {
	f.unknowns++
	text := "ERROR:  " + f.Name + ":  Health check unknown:  " + message
	events := append(f.log(text), f.Flush()...)
	events = append(events, Event{Syslog, "Health check unknown:  " + message})
	if f.Logged && !f.Silent {
		events = append(events, Event{Out, text})
	}
	return events
}

// die is all that follows the log line of a failure that is no finding, or that of a
// check which bash has called.
func (f *Fold) die(status int, message string) []Event {
	return f.fail(status, f.known(message, status))
}

// known returns the finding of that message which the line's checks have reported, or one
// that is nothing but the message.
func (f *Fold) known(message string, status int) checks.Finding {
	for _, x := range f.called {
		if x.Message == message && x.Severity == checks.Fail {
			return x
		}
	}
	return checks.Finding{Severity: checks.Fail, Message: message, Status: status}
}

// Called takes note of what a check has found that the line called from bash.
func (f *Fold) Called(list []checks.Finding) { f.called = append(f.called, list...) }

// fail is all that follows the log lines of the failures of one step.
func (f *Fold) fail(status int, list ...checks.Finding) []Event {
	again := f.over && len(f.failed) > 0 // what ends badly after a failure is no news of the node
	f.failed = append(f.failed, list...)
	events := f.Flush()
	for _, x := range list {
		events = append(events, Event{Syslog, "Health check failed:  " + x.Message})
		events = append(events, f.advice(x)...)
	}
	if f.failures == 0 && !again {
		events = append(events, f.mark()...)
	}
	if f.Detach && !f.left {
		f.left = true
		events = append(events, Event{Result, fmt.Sprintf("%d %s", status, list[0].Message)})
	}
	if f.Logged && !f.Silent && !f.Detach {
		for _, x := range list {
			events = append(events, Event{Out, f.errorText(x.Message)})
		}
	}
	if f.All {
		f.failures += len(list)
		return events
	}
	f.finish(status)
	return events
}

// advice is what to do about a failure, once for each code: syslog has no column for it.
func (f *Fold) advice(x checks.Finding) []Event {
	do := checks.WhatToDo(x.Code)
	if x.Check == "" || do == "" || f.advised[x.Code] {
		return nil
	}
	if f.advised == nil {
		f.advised = map[string]bool{}
	}
	f.advised[x.Code] = true
	if action := x.Remedy.Words(); action != "" {
		do = action + ": " + do
	}
	return []Event{{Syslog, fmt.Sprintf("Advice [%s]:  %s", x.Code, do)}}
}

// mark takes the node out of service for the worst failure so far, unless that is for the
// end of the run.
func (f *Fold) mark() []Event {
	if !f.Mark || f.Eval || f.marked || f.Late && f.All && !f.over {
		return nil
	}
	return f.Blame(Worst(f.failed))
}

// late marks the node at the end of the run.
func (f *Fold) late() []Event {
	if len(f.failed) == 0 {
		return nil
	}
	late := f.Late
	f.Late = false
	events := f.mark()
	f.Late = late
	return events
}

// finish ends the run with a status as the shell counts them.
func (f *Fold) finish(status int) {
	f.over = true
	if f.Forked && (!f.forked || f.Eval) {
		status += 100
	}
	f.exit = status & 0xff
}

// Exited takes the status of a line that ended the shell: "exit 0" ends the run
// in silence, any other status is a failure that ends it, also with -a.
func (f *Fold) Exited(status int) []Event {
	if f.over {
		return nil
	}
	var events []Event
	switch {
	case f.Eval:
		f.finish(0)
		f.exit = status & 0xff
		return nil
	case f.died > 0 || f.subDied != nil:
		// The death has been reported; the shell ended because of it.
	case status != 0:
		events = f.plainFailure(status)
	}
	f.over, f.exit = true, status&0xff
	return events
}

// Expired is the end of a run by TIMEOUT, also with -a. why is added to the
// text if the line could not be killed.
func (f *Fold) Expired(why string) []Event { return f.Abort(142, f.ExpiredText(why)) }

// ExpiredText is the text of that failure.
func (f *Fold) ExpiredText(why string) string {
	text := "Script timed out."
	if f.check != "" {
		text = `Script timed out while executing "` + f.check + `".`
	}
	if why != "" {
		text += "  " + why
	}
	return text
}

// Abort ends the run with a failure that is not one of a check, also with -a.
func (f *Fold) Abort(status int, message string) []Event {
	events := f.log(f.errorText(message))
	all := f.All
	f.All, f.forked = false, false
	events = append(events, f.die(status, message)...)
	if all { // where -f adds nothing
		f.exit = status & 0xff
	}
	f.All = all
	return events
}

// Quit is the end of a run without a word: a script of the site has left.
func (f *Fold) Quit(status int) { f.over, f.exit = true, status&0xff }

// Queue keeps a syslog line until something flushes it. There is no empty line to
// begin with.
func (f *Fold) Queue(text string) {
	if text != "" || len(f.queue) > 0 {
		f.queue = append(f.queue, text)
	}
}

// Flush sends the queued syslog lines.
func (f *Fold) Flush() (events []Event) {
	for _, q := range f.queue {
		events = append(events, Event{Syslog, q})
	}
	f.queue = nil
	return events
}

// Over says whether the run has ended before its plan.
func (f *Fold) Over() bool { return f.over }

// Failed says whether anything failed.
func (f *Fold) Failed() bool { return f.failures > 0 || f.over && f.exit != 0 }

// LastMessage is the reason for which the node was marked.
func (f *Fold) LastMessage() string { return f.message }

// List is every finding so far.
func (f *Fold) List() []checks.Finding { return f.findings }

// Failures is every failure so far. One of a shell line, or of the run itself, is
// a finding without a code.
func (f *Fold) Failures() []checks.Finding { return f.failed }

// Blame takes the node out of service for the failure of that number.
func (f *Fold) Blame(failure int) []Event {
	f.blamed, f.marked = failure, true
	f.message = Reason(f.failed[failure], len(f.failed)-1)
	return []Event{{Offline, f.message}}
}

// Blamed is the number of the failure that [Fold.Blame] was told.
func (f *Fold) Blamed() int { return f.blamed }

// Finish closes the run and gives its exit status. took is how long it took,
// in whole seconds.
func (f *Fold) Finish(took int) (events []Event, exit int) {
	f.check = ""
	if f.Late {
		events = f.late()
	}
	switch {
	case f.over:
		return events, f.exit
	case f.Eval && f.unknowns > 0:
		return append(events, f.Flush()...), ExitUnknown
	case f.Eval:
		return nil, 0
	}
	for _, text := range f.wholes.Texts() {
		events = append(events, f.log(text)...)
	}
	switch {
	case f.failures > 0:
		text := fmt.Sprintf("%d health checks failed.", f.failures)
		line := "ERROR:  " + f.Name + ":  " + text
		if f.Logged && !f.Silent {
			events = append(events, Event{Out, line})
		}
		events = append(events, f.log(line)...)
		events = append(append(events, f.Flush()...), Event{Syslog, text})
		return events, min(f.failures, 255)
	case f.unknowns > 0:
		return append(events, f.Flush()...), ExitUnknown
	}
	if f.Mark && !f.tainted {
		events = append(events, Event{To: Online})
	}
	events = append(events, f.verbose(fmt.Sprintf("Node Health Check completed successfully (%ds).", took))...)
	return append(events, f.Flush()...), 0
}
