package lbnl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// act does to a process that has reached its limit what the line asks for, and
// returns what is to be said about it.
func (r *useRun) act(ctx context.Context, procs []probe.Process, p probe.Process) (said string) {
	if r.Action != "" {
		r.env.Spawn(ctx, r.Action, r.env.Shell(r.Action))
	}
	switch {
	case r.Kill:
		if checks.KillProcess(r.env, r.kind.String(), p, &r.findings) {
			said = "; killed"
		}
	case r.Renice != "":
		said = r.renice(p)
	}
	if r.KillParent {
		said += r.killParent(procs, p)
	}
	return said
}

// renice gives a process the nice value, and says so in the words of renice(1).
func (r *useRun) renice(p probe.Process) (said string) {
	if !strings.HasPrefix(r.reniced, "-") { // one more plus sign each time, as in LBNL NHC
		r.reniced = "+" + r.reniced
	}
	said = "; reniced " + r.reniced
	nice, err := strconv.Atoi(strings.TrimLeft(r.Renice, " \t"))
	if err != nil {
		r.findings = append(r.findings, checks.ActionFailed(r.kind.String(), "renice process ID %d: \"%s\" is no nice value", p.PID, r.Renice))
		return said
	}
	if !r.env.Acts("renice %s to %d", r.env.ProcessText(p), nice) {
		return ""
	}
	r.env.At("renice %d", p.PID)
	before, after, err := probe.Renice(r.env.Host, p, nice)
	switch {
	case errors.Is(err, os.ErrProcessDone):
	case err != nil:
		r.findings = append(r.findings, checks.ActionFailed(r.kind.String(), "renice process ID %d: %v", p.PID, err))
	default:
		r.findings = append(r.findings, checks.Finding{
			Code:     r.kind.code(),
			Severity: checks.Warn,
			Device:   checks.Device{Kind: "process", Name: p.Command()},
			Message:  fmt.Sprintf("%d (process ID) old priority %d, new priority %d", p.PID, before, after),
		})
	}
	return said
}

// killParent kills the parent of a process, unless that is process 1 or belongs
// to somebody else.
func (r *useRun) killParent(procs []probe.Process, p probe.Process) (said string) {
	u, err := probe.ReadUsage(r.env.Host, p)
	if err != nil {
		return ""
	}
	parent, known := processOf(procs, u.Parent)
	switch {
	case u.Parent == 1:
		return "; parent 1 not killed (PPID is 1)"
	case !known || parent.UID != p.UID:
		return fmt.Sprintf("; parent %d not killed (owner mismatch)", u.Parent)
	}
	if !checks.KillProcess(r.env, r.kind.String(), parent, &r.findings) {
		return ""
	}
	return fmt.Sprintf("; killed parent %d", u.Parent)
}

// processOf finds a process in the list of [probe.Processes].
func processOf(procs []probe.Process, pid int) (probe.Process, bool) {
	i, ok := slices.BinarySearchFunc(procs, pid, func(p probe.Process, pid int) int { return p.PID - pid })
	if !ok {
		return probe.Process{}, false
	}
	return procs[i], true
}
