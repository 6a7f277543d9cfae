package xid

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// recoveryActions are the values of NVML's nvmlDeviceGpuRecoveryAction_t and of Xid 154.
var recoveryActions = [...]struct {
	class  checks.XidClass
	remedy checks.Remedy
	asks   string
}{
	{checks.XidIgnore, checks.NoRemedy, "nothing"},
	{checks.XidReset, checks.ResetGPU, "a GPU reset"},
	{checks.XidReboot, checks.RebootNode, "a reboot of the node"},
	{checks.XidWatch, checks.NoRemedy, "an end of peer-to-peer traffic (drain P2P)"}, // the driver goes on without a reset
	{checks.XidReset, checks.ResetGPU, "a GPU reset after its jobs have ended"},
	{checks.XidWatch, checks.CheckFabric, "a recovery of the IMEX domain"}, // its cause can be on another node
	{checks.XidReset, checks.ResetGPU, "a reset of the bus"},
	{checks.XidReboot, checks.RebootNode, "a reboot of the system"},
}

// explainAction returns the meaning of a recovery action. An unknown one asks for a reboot.
func explainAction(n int) (class checks.XidClass, remedy checks.Remedy, asks string) {
	if n == -1 {
		return checks.XidWatch, checks.NoRemedy, "an unreadable action"
	}
	if n < 0 || n >= len(recoveryActions) {
		return checks.XidReboot, checks.RebootNode, fmt.Sprintf("action %#x, which this version of nhc-gpu does not know", n)
	}
	a := recoveryActions[n]
	return a.class, a.remedy, a.asks
}

// parseRecoveryAction returns the new action of "GPU recovery action changed from 0x0 (None) to 0x2 (Node
// Reboot Required)", -1 if it has none, and whether the change shows a reset: None follows an action that
// needs one. The driver ends Drain P2P and a recovery of the IMEX domain without a reset.
func parseRecoveryAction(text string) (action int, wasReset bool) {
	_, change, _ := strings.Cut(text, "recovery action changed from ")
	before, after, ok := strings.Cut(change, " to 0x")
	if !ok {
		return -1, false
	}
	action = parseHex(after)
	was, _, _ := explainAction(parseHex(strings.TrimPrefix(before, "0x")))
	return action, action == 0 && was.Drains()
}

// parseHex returns the hexadecimal number that a text begins with, -1 if there is none.
func parseHex(text string) int {
	end := 0
	for end < len(text) && checks.IsHex(text[end]) {
		end++
	}
	n, err := strconv.ParseUint(text[:end], 16, 31)
	if err != nil {
		return -1
	}
	return int(n)
}
