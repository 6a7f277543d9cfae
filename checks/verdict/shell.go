package verdict

import (
	"fmt"
	"strconv"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Died takes a death in the shell, which has written its log line itself. One in
// a subshell, or in a part of a pipeline, counts when the line has ended. heard is
// false if a command substitution has caught its log line.
func (f *Fold) Died(status, message string, subshell, heard bool) []Event {
	n, err := strconv.Atoi(status)
	if err != nil {
		n = 2 // exit with a word that is no number
	}
	if subshell && !f.forked {
		if f.subDied == nil {
			f.subDied = &failure{n, message, heard}
		}
		f.Queue("Health check failed:  " + message)
		return nil
	}
	f.died++
	return f.die(n, message)
}

// Ended takes the status of a shell line that left the shell alive.
func (f *Fold) Ended(status int) []Event {
	if f.subDied != nil {
		if status != 0 || f.All {
			return f.subFailed(status)
		}
		return f.swallowed()
	}
	switch {
	case status == 0 || f.over:
		return nil
	case f.Eval: // with -a a line may go on after a death
		f.Quit(status)
		return nil
	case f.died > 0:
		return nil
	}
	return f.plainFailure(status)
}

// Missed takes the status of a shell line that left the shell alive, and failed because it calls
// a command that does not exist. That says nothing about the node.
func (f *Fold) Missed(status int, command string) []Event {
	if f.subDied != nil || f.died > 0 || f.over || f.Eval {
		return f.Ended(status)
	}
	return f.Findings([]checks.Finding{{
		Code: "config.command", Severity: checks.Unknown, Remedy: checks.FixConfig,
		Message: fmt.Sprintf("Check %s returned %d:  there is no command %q", f.check, status, command),
	}})
}

// Broken takes a line whose shell was lost in the middle of it. A death in a subshell is
// a failure all the same: the shell was told of it before.
func (f *Fold) Broken(x checks.Finding) (events []Event) {
	if f.subDied != nil && !f.over {
		events = f.subFailed(1)
	}
	if f.over {
		return events
	}
	return append(events, f.Findings([]checks.Finding{x})...)
}

// swallowed is a death in a subshell whose line passes: "check_x | tee f", or
// X=$(check_x). The run goes on, as in LBNL NHC, but a check has said that the
// node is bad: it is marked, and not resumed by this run.
func (f *Fold) swallowed() []Event {
	events := f.Flush()
	if f.tainted {
		return events
	}
	f.tainted = true
	f.failed = append(f.failed, f.known(f.subDied.message, f.subDied.status))
	if f.failures == 0 {
		events = append(events, f.mark()...)
	}
	return events
}

// subFailed completes a death in a subshell, whose log line is written already
// unless nobody has heard it.
func (f *Fold) subFailed(status int) (events []Event) {
	f.failed = append(f.failed, f.known(f.subDied.message, f.subDied.status))
	if !f.subDied.heard {
		events = f.log(f.errorText(f.subDied.message))
	}
	events = append(events, f.Flush()...)
	if f.failures == 0 {
		events = append(events, f.mark()...)
	}
	if f.Logged && !f.Silent {
		events = append(events, Event{Out, f.errorText(f.subDied.message)})
	}
	if f.All {
		f.failures++
		return events
	}
	f.finish(status)
	return events
}

// plainFailure is a line that failed without a death of its own.
func (f *Fold) plainFailure(status int) []Event {
	message := fmt.Sprintf("Check %s returned %d", f.check, status)
	events := f.log("Node Health Check failed.  " + message)
	events = append(events, f.log(f.errorText(message))...)
	code := status
	if f.forked && f.Forked && code <= 100 {
		code += 100
	}
	return append(events, f.die(code, message)...)
}
