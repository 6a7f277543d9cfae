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
)

// acts reports whether the run carries out the action that the arguments
// describe: "kill process 4711 (sleep) of alice". Every action of a check (kill,
// mount, restart, remove, mkdir, -e) asks here directly before it acts. A run
// that holds its actions notes the text instead, and the report shows it as
// "not done: would kill process 4711 (sleep) of alice".
func (e *Env) acts(format string, args ...any) bool {
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
// that [Env.saidBy] has noted.
func (e *Env) NotDone() (findings []Finding) {
	for _, line := range e.said {
		findings = append(findings, Finding{Code: StderrCode, Severity: OK, Message: line})
	}
	for _, action := range e.held {
		findings = append(findings, Finding{Code: HeldCode, Severity: Skip, Message: "not done: would " + action})
	}
	return findings
}

// processText names a process in the text of an action: process 4711 (sleep) of alice.
func (e *Env) processText(p probe.Process) string {
	return fmt.Sprintf("process %d (%.40s) of %s", p.PID, filepath.Base(p.Command()), ownerOrUID(e, p))
}

// byHand is added to the name of what a run with Hold keeps for later runs.
const byHand = ".by-hand"

// remember keeps v for later runs, as [probe.Host.Keep] does. A run with Hold
// leaves what the health check has kept as it is, so that the next health check
// reports all that has happened since the last one; where no health check has
// kept anything it keeps v apart, for later runs with Hold.
func (e *Env) remember(name string, v any) error {
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

// recall reads what an earlier run has kept by [Env.remember].
func (e *Env) recall(name string, v any) error {
	err := e.Host.Recall(name, v)
	if e.Hold && errors.Is(err, fs.ErrNotExist) {
		err = e.Host.Recall(name+byHand, v)
	}
	return err
}

// spawn runs an action in the background; text is the action as the
// configuration has it. spawn reports whether the run carries out actions:
// the check does not depend on the action's success.
func (e *Env) spawn(ctx context.Context, text string, c probe.Command) (acted bool) {
	if !e.acts("run %s", text) {
		return false
	}
	e.At("run %s", strings.Join(c.Argv, " "))
	said, _ := e.Host.Spawn(ctx, c)
	e.saidBy(text, said)
	return true
}

// do runs an action, waits for it and returns its status. What the action
// starts lives on. acted is false in a run that carries out no actions.
func (e *Env) do(ctx context.Context, text string, c probe.Command) (status int, acted bool) {
	if !e.acts("run %s", text) {
		return 0, false
	}
	e.At("run %s", strings.Join(c.Argv, " "))
	c.Lasting, c.Said = true, true
	x := e.Host.Run(ctx, c)
	e.saidBy(text, x.Said)
	return x.Status, true
}

// StderrCode is the code of a finding with the last line of a command's standard
// error. The finding goes to the log, and says nothing about the node.
const StderrCode = "cmd.stderr"

// saidBy notes the last line of a command's standard error.
func (e *Env) saidBy(command, line string) {
	if line != "" {
		e.said = append(e.said, fmt.Sprintf("stderr of \"%s\": %s", command, line))
	}
}

// killProcess sends SIGKILL to a process and does not wait for its end. A process that has
// ended already counts as killed. It returns false if the run holds its actions, or
// the process is spared.
func killProcess(env *Env, check string, p probe.Process, notes *[]Finding) bool {
	if why := env.Host.Spared(p.PID); why != "" {
		*notes = append(*notes, actionFailed(fmt.Sprintf("%s:  process ID %d not killed: %s", check, p.PID, why)))
		return false
	}
	if !env.acts("kill %s", env.processText(p)) {
		return false
	}
	env.At("kill %d", p.PID)
	if err := env.Host.Kill(p); err != nil && !errors.Is(err, os.ErrProcessDone) {
		*notes = append(*notes, actionFailed(fmt.Sprintf("%s:  kill process ID %d: %v", check, p.PID, err)))
	}
	return true
}

// killUser ends a process that must not be here, unless it belongs to a job that
// has a slurmstepd on this node: it was adopted by the job (pam_slurm_adopt), or
// Slurm's answer is older than the job.
func killUser(env *Env, check string, p probe.Process, notes *[]Finding) {
	job, err := env.Host.RunningJobOf(p.PID)
	switch {
	case err != nil:
		*notes = append(*notes, actionFailed(fmt.Sprintf("%s:  process ID %d not killed: %v", check, p.PID, err)))
	case job != "":
		*notes = append(*notes, actionFailed(fmt.Sprintf("%s:  process ID %d not killed: it belongs to job %s, which runs here", check, p.PID, job)))
	default:
		killProcess(env, check, p, notes)
	}
}

// actionFailed returns a finding about an action that failed. In LBNL NHC only the
// command's standard error shows that.
func actionFailed(message string) Finding {
	return Finding{Code: "ps.action.failed", Severity: Warn, Message: message}
}

// doActionFailed is the advice for it.
const doActionFailed = "The action failed, or nhc-gpu spared the process; the message gives the reason. To do it anyway, do it by hand as root."

// keepForLater writes what later runs need. A run of somebody else than root keeps
// nothing, which is no finding.
func keepForLater(env *Env, check, name string, v any) []Finding {
	err := env.remember(name, v)
	if err == nil || errors.Is(err, probe.ErrNoMemory) {
		return nil
	}
	return []Finding{{Code: "gpu.past", Severity: Warn, Message: check + ":  " + strings.ReplaceAll(err.Error(), "\n", "; ")}}
}
