// Package verdict combines the results of a run, in the order of its plan, as LBNL NHC would:
// into the lines of its log, its standard output and syslog, the decision to drain the node,
// and the exit status. It is a pure state machine: it returns events, and others act on them.
package verdict

import (
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Dest is where an event goes.
type Dest int

// The destinations. Log is LBNL's standard output after LOGFILE is applied. Out is the standard
// output of the program at its start.
const (
	Log Dest = iota
	Out
	Syslog
	Offline // drain the node; Text is the message
	Online  // resume the node
	Result  // the result of a detached run; Text is "STATUS MESSAGE"
)

// Event is one action for the caller.
type Event struct {
	To   Dest
	Text string
}

// Settings control the fold. A check line can change them during the run.
type Settings struct {
	Name    string // NAME, in every text and the syslog tag
	Silent  bool   // -q
	Verbose bool   // -v
	All     bool   // -a: continue after a failure
	Forked  bool   // -f
	Apart   bool   // each line runs in a separate process: NHC_CHECK_FORKED is not 0
	Eval    bool   // -e: run one line, do not mark the node
	Logged  bool   // LOGFILE is set: errors also go to standard output
	Mark    bool   // MARK_OFFLINE is 1 and NHC_RM is set
	Detach  bool   // this is the background half of detached mode
	Late    bool   // with All: mark the node at the end of the run, for the worst failure
}

// Fold is the state of a run's verdict.
type Fold struct {
	Settings
	queue    []string // syslog lines that are not sent yet
	check    string   // the present line
	forked   bool     // the present line runs in a separate process
	died     int      // how often the line died in the main shell
	subDied  *failure // the first death in a subshell of the line
	tainted  bool     // a check died although its line passed
	failures int
	unknowns int
	findings []checks.Finding
	wholes   Wholes
	failed   []checks.Finding
	called   []checks.Finding // findings of checks that the line called from bash
	advised  map[string]bool  // codes with the advice that went to syslog
	blamed   int
	message  string // the drain reason
	marked   bool   // the node has been marked
	left     bool   // the first failure has been written as the result
	over     bool
	exit     int
}

type failure struct {
	status  int
	message string
	heard   bool // its line is in the log
}

// ExitUnknown is the exit status of a run with a check that could not be evaluated and none
// failed. LBNL NHC has no such status.
const ExitUnknown = 3

var assignment = checks.Lazily(`( |^)(export )?[A-Za-z_][A-Za-z0-9_]*=[^ =]`)

// InPlace reports whether -f runs a line in the main shell nevertheless: it looks like an
// assignment.
func InPlace(line string) bool { return assignment().MatchString(line) }

// Forks reports whether -f runs a line in a separate process.
func (f *Fold) Forks(line string) bool { return f.Apart && !InPlace(line) }

// Start begins the run.
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

// Begin begins a step. pid is the process of a forked line.
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

// Found takes the findings of a native step, in order.
func (f *Fold) Found(list []checks.Finding) (events []Event) {
	list = f.wholes.Take(list)
	for _, x := range list { // before everything else: a failure can end the run
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
		case checks.OK, checks.Skip: // the measurement of an active test, or why a check does not apply
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
			events = append(events, f.reportUnknown(x.Message)...)
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

// reportUnknown reports a check that could not be evaluated, without failing the run.
func (f *Fold) reportUnknown(message string) []Event {
	f.unknowns++
	text := "ERROR:  " + f.Name + ":  Health check unknown:  " + message
	events := append(f.log(text), f.Flush()...)
	events = append(events, Event{Syslog, "Health check unknown:  " + message})
	if f.Logged && !f.Silent {
		events = append(events, Event{Out, text})
	}
	return events
}

// die returns the events after the log line of a failure without a finding, or of a check that
// bash called.
func (f *Fold) die(status int, message string) []Event {
	return f.fail(status, f.findCalled(message, status))
}

// findCalled returns the finding with this message that the line's checks have reported, or a new
// one with only the message.
func (f *Fold) findCalled(message string, status int) checks.Finding {
	for _, x := range f.called {
		if x.Message == message && x.Severity == checks.Fail {
			return x
		}
	}
	return checks.Finding{Severity: checks.Fail, Message: message, Status: status}
}

// Called records the findings of a check that the line called from bash.
func (f *Fold) Called(list []checks.Finding) { f.called = append(f.called, list...) }

// fail returns the events after the log lines of one step's failures.
func (f *Fold) fail(status int, list ...checks.Finding) []Event {
	again := f.over && len(f.failed) > 0 // a bad end after a failure is not a new fault of the node
	f.failed = append(f.failed, list...)
	events := f.Flush()
	for _, x := range list {
		events = append(events, Event{Syslog, "Health check failed:  " + x.Message})
		events = append(events, f.advise(x)...)
	}
	return append(events, f.conclude(status, status, again, list)...)
}

// conclude marks the node for failures that are in f.failed, writes their result and their text, and
// ends the run without -a. code is the status of the failure, which differs from that of the line if the line
// goes on after a death in a subshell. again means that the run has failed before.
func (f *Fold) conclude(status, code int, again bool, list []checks.Finding) (events []Event) {
	if f.failures == 0 && !again {
		events = append(events, f.mark()...)
	}
	if f.Detach && !f.left {
		f.left = true
		events = append(events, Event{Result, fmt.Sprintf("%d %s", code, list[0].Message)})
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

// advise returns the advice on a failure, once for each code, for syslog.
func (f *Fold) advise(x checks.Finding) []Event {
	do := x.Advice()
	if x.Check == "" || do == "" || f.advised[x.Code+do] {
		return nil
	}
	if f.advised == nil {
		f.advised = map[string]bool{}
	}
	f.advised[x.Code+do] = true
	if action := x.Remedy.Words(); action != "" {
		do = action + ": " + do
	}
	if x.Drill {
		do = checks.DrillMark + do
	}
	return []Event{{Syslog, fmt.Sprintf("Advice [%s]:  %s", x.Code, do)}}
}

// mark drains the node for the worst failure so far, unless that happens at the end of the
// run.
func (f *Fold) mark() []Event {
	if !f.Mark || f.Eval || f.marked || f.Late && f.All && !f.over {
		return nil
	}
	return f.Blame(Worst(f.failed))
}

// markLate drains the node at the end of the run.
func (f *Fold) markLate() []Event {
	if len(f.failed) == 0 {
		return nil
	}
	late := f.Late
	f.Late = false
	events := f.mark()
	f.Late = late
	return events
}

// finish ends the run with a shell's exit status.
func (f *Fold) finish(status int) {
	f.over = true
	if f.Forked && (!f.forked || f.Eval) {
		status += 100
	}
	f.exit = status & 0xff
}

// Exited takes the status of a line that ended the shell: "exit 0" ends the run
// silently, any other status is a failure that ends it, also with -a.
func (f *Fold) Exited(status int) []Event {
	if f.over {
		return nil
	}
	var events []Event
	switch {
	case f.subDied != nil:
		events = f.endSubshell(status)
	case f.Eval || f.died > 0 || status == 0: // a death has been reported; the shell ended because of it
	default:
		events = f.failPlain(status)
	}
	f.Quit(status)
	return events
}

// Expired ends a run at its TIMEOUT, also with -a. why is added to the text if the line could
// not be killed.
func (f *Fold) Expired(why string) []Event { return f.Abort(142, f.ExpiredText(why)) }

// ExpiredText returns the text of that failure.
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

// Abort ends the run with a failure that does not come from a check, also with -a.
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

// Quit ends the run without a message: a script of the site exited.
func (f *Fold) Quit(status int) { f.over, f.exit = true, status&0xff }

// Queue keeps a syslog line until [Fold.Flush]. It ignores empty lines at the beginning.
func (f *Fold) Queue(text string) {
	if text != "" || len(f.queue) > 0 {
		f.queue = append(f.queue, text)
	}
}

// Flush returns the queued syslog lines as events.
func (f *Fold) Flush() (events []Event) {
	for _, q := range f.queue {
		events = append(events, Event{Syslog, q})
	}
	f.queue = nil
	return events
}

// Over reports whether the run ended before its plan.
func (f *Fold) Over() bool { return f.over }

// Failed reports whether anything failed.
func (f *Fold) Failed() bool { return f.failures > 0 || f.over && f.exit != 0 }

// LastMessage returns the reason of the node's mark.
func (f *Fold) LastMessage() string { return f.message }

// Findings returns all findings so far.
func (f *Fold) Findings() []checks.Finding { return f.findings }

// Failures returns all failures so far. A failure of a shell line or of the run itself is a
// finding without a code.
func (f *Fold) Failures() []checks.Finding { return f.failed }

// Blame drains the node for the failure with this index.
func (f *Fold) Blame(failure int) []Event {
	f.blamed, f.marked = failure, true
	f.message = Reason(f.failed[failure], len(f.failed)-1)
	return []Event{{Offline, f.message}}
}

// Blamed returns the index that was passed to [Fold.Blame].
func (f *Fold) Blamed() int { return f.blamed }

// Finish ends the run and returns its exit status. took is its duration in seconds.
func (f *Fold) Finish(took int) (events []Event, exit int) {
	f.check = ""
	if f.Late {
		events = f.markLate()
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
