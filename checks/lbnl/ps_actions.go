package lbnl

import (
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
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
