package checks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
)

// Acts reports whether the run carries out the action that the arguments
// describe: "kill process 4711 (sleep) of alice". Every action of a check (kill,
// mount, restart, remove, mkdir, -e) asks here directly before it acts. A run
// that holds its actions notes the text instead, and the report shows it as
// "not done: would kill process 4711 (sleep) of alice".
func (e *Env) Acts(format string, args ...any) bool {
	if !e.Hold {
		return true
	}
	e.held = append(e.held, fmt.Sprintf(format, args...))
	return false
}

// Held returns the actions that a run with Hold did not carry out, in order.
func (e *Env) Held() []string { return e.held }

// HeldCode is the code of a finding about an action that a run with Hold did not
// carry out. Its severity is [Skip]: it says nothing about the node.
const HeldCode = "act.held"

// Aside reports whether a finding is a note about an action or a command, which the
// log always has, and not a result of the check.
func (f Finding) Aside() bool { return f.Code == HeldCode || f.Code == StderrCode }

// NotDone returns a finding for each action that [Env.Held] lists, and for each line
// that [Env.SaidBy] has noted.
func (e *Env) NotDone() (findings []Finding) {
	for _, line := range e.said {
		findings = append(findings, Finding{Code: StderrCode, Severity: OK, Message: line})
	}
	for _, action := range e.held {
		findings = append(findings, Finding{Code: HeldCode, Severity: Skip, Message: "not done: would " + action})
	}
	return findings
}

// ProcessText names a process in the text of an action: process 4711 (sleep) of alice.
func (e *Env) ProcessText(p probe.Process) string {
	return fmt.Sprintf("process %d (%.40s) of %s", p.PID, filepath.Base(p.Command()), OwnerOrUID(e, p))
}

// byHand is added to the name of what a run with Hold keeps for later runs.
const byHand = ".by-hand"

// Remember keeps v for later runs, as [probe.Host.Keep] does. A run with Hold
// leaves what the health check has kept as it is, so that the next health check
// reports all that has happened since the last one; where no health check has
// kept anything it keeps v apart, for later runs with Hold.
func (e *Env) Remember(name string, v any) error {
	if !e.Hold {
		return e.Host.Keep(name, v)
	}
	switch err := e.Host.Recall(name, new(json.RawMessage)); {
	case errors.Is(err, fs.ErrNotExist):
		return e.Host.Keep(name+byHand, v)
	case errors.Is(err, probe.ErrNoMemory):
		return err
	}
	return nil
}

// Recall reads what an earlier run has kept by [Env.Remember].
func (e *Env) Recall(name string, v any) error {
	err := e.Host.Recall(name, v)
	if e.Hold && errors.Is(err, fs.ErrNotExist) {
		err = e.Host.Recall(name+byHand, v)
	}
	return err
}

// Spawn runs an action in the background; text is the action as the
// configuration has it. spawn reports whether the run carries out actions:
// the check does not depend on the action's success.
func (e *Env) Spawn(ctx context.Context, text string, c probe.Command) (acted bool) {
	if !e.Acts("run %s", text) {
		return false
	}
	e.At("run %s", strings.Join(c.Argv, " "))
	said, _ := e.Host.Spawn(ctx, c)
	e.SaidBy(text, said)
	return true
}

// Do runs an action, waits for it and returns its status. What the action
// starts lives on. acted is false in a run that carries out no actions.
func (e *Env) Do(ctx context.Context, text string, c probe.Command) (status int, acted bool) {
	if !e.Acts("run %s", text) {
		return 0, false
	}
	e.At("run %s", strings.Join(c.Argv, " "))
	c.Lasting, c.Said = true, true
	x := e.Host.Run(ctx, c)
	e.SaidBy(text, x.Said)
	return x.Status, true
}

// StderrCode is the code of a finding with the last line of a command's standard
// error. The finding goes to the log, and says nothing about the node.
const StderrCode = "cmd.stderr"

// SaidBy notes the last line of a command's standard error.
func (e *Env) SaidBy(command, line string) {
	if line != "" {
		e.said = append(e.said, fmt.Sprintf("stderr of \"%s\": %s", command, line))
	}
}

// KillProcess sends SIGKILL to a process and does not wait for its end. A process that has
// ended already counts as killed. It returns false if the run holds its actions, or
// the process is spared.
func KillProcess(env *Env, check string, p probe.Process, notes *[]Finding) bool {
	if why := probe.Spared(env.Host, p.PID); why != "" {
		*notes = append(*notes, ActionFailed(check, "process ID %d not killed: %s", p.PID, why))
		return false
	}
	if !env.Acts("kill %s", env.ProcessText(p)) {
		return false
	}
	env.At("kill %d", p.PID)
	if err := probe.Kill(env.Host, p); err != nil && !errors.Is(err, os.ErrProcessDone) {
		*notes = append(*notes, ActionFailed(check, "kill process ID %d: %v", p.PID, err))
	}
	return true
}

// KillUser ends a process that must not be here, unless it belongs to a job that
// has a slurmstepd on this node: it was adopted by the job (pam_slurm_adopt), or
// Slurm's answer is older than the job.
func KillUser(env *Env, check string, p probe.Process, notes *[]Finding) {
	job, err := jobscan.RunningJobOf(env.Host, p.PID)
	switch {
	case err != nil:
		*notes = append(*notes, ActionFailed(check, "process ID %d not killed: %v", p.PID, err))
	case job != "":
		*notes = append(*notes, ActionFailed(check, "process ID %d not killed: it belongs to job %s, which runs here", p.PID, job))
	default:
		KillProcess(env, check, p, notes)
	}
}

// ActionFailed returns a finding about an action that failed. In LBNL NHC only the
// command's standard error shows that.
func ActionFailed(check, format string, args ...any) Finding {
	return Finding{Code: "ps.action.failed", Severity: Warn}.Phrase(check, format, args...)
}

// DoActionFailed is the advice for it.
const DoActionFailed = "The action failed, or nhc-gpu spared the process; the message gives the reason. To do it anyway, do it by hand as root."

// KeepForLater writes what later runs need. A run of somebody else than root keeps
// nothing, which is no finding.
func KeepForLater(env *Env, check, name string, v any) []Finding {
	err := env.Remember(name, v)
	if err == nil || errors.Is(err, probe.ErrNoMemory) {
		return nil
	}
	return []Finding{Finding{Code: "gpu.past", Severity: Warn}.Describe(check, "%v", err)}
}
