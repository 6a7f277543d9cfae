package verdict

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Died takes a death in the shell, which has written the log line itself. A death in a subshell of
// the line, or in a part of a pipeline, counts when the line has ended. heard is false if a command
// substitution has caught the log line.
func (f *Fold) Died(status, message string, subshell, heard bool) []Event {
	n, err := strconv.Atoi(status)
	if err != nil {
		n = 2 // exit with an argument that is not a number
	}
	if subshell {
		if f.subDied == nil {
			f.subDied = &failure{n, message, heard}
		}
		f.Queue("Health check failed:  " + message)
		return nil
	}
	f.died++
	return f.die(n, message)
}

// Ended takes the status of a shell line after which the shell continues.
func (f *Fold) Ended(status int) []Event {
	switch {
	case f.subDied != nil:
		return f.endSubshell(status)
	case status == 0 || f.over:
		return nil
	case f.Eval: // with -a a line can continue after a death
		f.Quit(status)
		return nil
	case f.died > 0:
		return nil
	}
	return f.failPlain(status)
}

// Mistaken takes the status of a shell line that failed because of an error in the line. This is
// not a fault of the node.
func (f *Fold) Mistaken(status int, code, mistake string) []Event {
	if f.subDied != nil || f.died > 0 || f.over || f.Eval {
		return f.Ended(status)
	}
	return f.Found([]checks.Finding{{
		Code: code, Severity: checks.Unknown, Remedy: checks.FixConfig,
		Message: fmt.Sprintf("Check %s returned %d:  %s", f.check, status, mistake),
	}})
}

// Broken takes a line during which the shell was lost. A death in a subshell that the shell
// reported before is still a failure.
func (f *Fold) Broken(x checks.Finding) (events []Event) {
	if f.subDied != nil && !f.over {
		events = f.failSubshell(1)
	}
	if f.over {
		return events
	}
	return append(events, f.Found([]checks.Finding{x})...)
}

// endSubshell judges a death in a subshell when its line, or the shell, has ended.
func (f *Fold) endSubshell(status int) []Event {
	if status != 0 || f.All {
		return f.failSubshell(status)
	}
	return f.markSwallowed()
}

// markSwallowed handles a death in a subshell whose line passes: "check_x | tee f", or
// X=$(check_x). The run continues, as in LBNL NHC, but a check has found a fault: the node is
// marked, and this run does not resume it.
func (f *Fold) markSwallowed() []Event {
	events := f.Flush()
	if f.tainted {
		return events
	}
	f.tainted = true
	f.failed = append(f.failed, f.findCalled(f.subDied.message, f.subDied.status))
	if f.failures == 0 {
		events = append(events, f.mark()...)
	}
	return events
}

// failSubshell completes a death in a subshell. It writes the log line if a command
// substitution has caught it.
func (f *Fold) failSubshell(status int) (events []Event) {
	x := f.findCalled(f.subDied.message, f.subDied.status)
	f.failed = append(f.failed, x)
	if !f.subDied.heard {
		events = f.log(f.errorText(x.Message))
	}
	events = append(append(events, f.Flush()...), f.advise(x)...)
	return append(events, f.conclude(status, cmp.Or(f.subDied.status, status, 1), false, []checks.Finding{x})...)
}

// failPlain handles a line that failed without a death.
func (f *Fold) failPlain(status int) []Event {
	message := fmt.Sprintf("Check %s returned %d", f.check, status)
	events := f.log("Node Health Check failed.  " + message)
	events = append(events, f.log(f.errorText(message))...)
	code := status
	if f.forked && f.Forked && code <= 100 {
		code += 100
	}
	return append(events, f.die(code, message)...)
}
