package checks

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// actions are what some checks of processes do about a finding, in their order:
// log, syslog, die (fail, which ends the check), kill, and ignore (no more
// actions). Other words mean nothing.
type actions []string

// actionsOf are the words of the configuration; without any it is die.
func actionsOf(words []string) actions {
	if a := strings.Fields(strings.Join(words, " ")); len(a) > 0 {
		return a
	}
	return actions{"die"}
}

func (a actions) kills() bool { return slices.Contains(a, "kill") }

// take carries out the actions on f, whose severity they determine. It says
// whether the check has failed and is over.
func (a actions) take(f Finding, kill func()) (findings []Finding, over bool) {
	for _, word := range a {
		g := f
		g.Severity = Warn
		switch word {
		case "log":
			findings = append(findings, g)
		case "syslog":
			g.Syslog = true
			findings = append(findings, g)
		case "die":
			g.Severity = Fail
			return append(findings, g), true
		case "kill":
			kill()
		case "ignore":
			return findings, false
		}
	}
	return findings, false
}

// kill ends a process with SIGKILL. Its end is not waited for. One that has
// ended already is as good as killed.
func (e *Env) kill(check string, p probe.Process, notes *[]Finding) {
	e.At("kill %d", p.PID)
	if err := e.Host.Kill(p); err != nil && !errors.Is(err, os.ErrProcessDone) {
		*notes = append(*notes, actionFailed(fmt.Sprintf("%s:  kill process ID %d: %v", check, p.PID, err)))
	}
}

// actionFailed says that something was to be done and could not be. LBNL NHC
// leaves that to the command's own words on the standard error.
func actionFailed(message string) Finding {
	return Finding{Code: "ps.action.failed", Severity: Warn, Message: message}
}

// doActionFailed is what to do about it.
const doActionFailed = "nhc-gpu could not do what the line asks for: do it by hand. It needs to run as root."
