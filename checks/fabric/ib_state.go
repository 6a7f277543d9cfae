package fabric

import (
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// The kernel's names of the states of a port.

// unknownPhase is the kernel's own text for a physical state without a name, such as Omni-Path's.
const unknownPhase = "<unknown>"

// portPhases describes the physical states, by the second word of the kernel's text.
var portPhases = map[string]string{
	"Sleep":             "the link is asleep",
	checks.IBTraining:   "the link is training",
	"LinkErrorRecovery": "the link is recovering from errors",
	"Phy":               "the link is under test",
	checks.IBLinkUp:     "the link is up, but the port is not ACTIVE",
}

// statesOf returns the states of a port as far as they are known: DOWN Polling.
func statesOf(p *rdma.IBPort) string { return strings.TrimSpace(p.State + " " + p.Phys) }

// isGarbled reports whether the states of a port are unknown, and neither alone shows that the port is down.
func isGarbled(p *rdma.IBPort) bool {
	_, known := portPhases[p.Phys]
	known = known || p.Phys == checks.IBPolling || p.Phys == checks.IBDisabled
	switch {
	case !isPortState(p.State):
		return !known || p.Phys == checks.IBLinkUp
	case p.Phys == "":
		return !slices.Contains([]string{checks.IBDown, checks.IBInit, checks.IBArmed}, p.State)
	}
	return !known && p.State == checks.IBActive && p.Phys != unknownPhase
}

// isPortState reports whether a word is the kernel's name of a port's state.
func isPortState(word string) bool {
	return slices.Contains([]string{checks.IBDown, checks.IBInit, checks.IBArmed, checks.IBActive, "ACTIVE_DEFER", "NOP"}, word)
}
