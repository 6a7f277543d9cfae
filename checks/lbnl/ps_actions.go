package lbnl

import (
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// actions are the actions of a line on a finding, in their order: log, syslog, die (the check
// fails and ends), kill, and ignore (the actions after it are skipped). Other words are ignored.
type actions []string

// actionsOf parses the actions of a line; the default is die.
func actionsOf(words []string) actions {
	if a := strings.Fields(strings.Join(words, " ")); len(a) > 0 {
		return a
	}
	return actions{"die"}
}

func (a actions) kills() bool { return slices.Contains(a, "kill") }

// take carries out the actions on f, and sets its severity. over reports whether the check has
// failed and ends.
func (a actions) take(f checks.Finding, kill func()) (findings []checks.Finding, over bool) {
	for _, word := range a {
		g := f
		g.Severity = checks.Warn
		switch word {
		case "log":
			findings = append(findings, g)
		case "syslog":
			g.Syslog = true
			findings = append(findings, g)
		case "die":
			g.Severity = checks.Fail
			return append(findings, g), true
		case "kill":
			kill()
		case "ignore":
			return findings, false
		}
	}
	return findings, false
}
