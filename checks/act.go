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
// describe: "kill process 4711 (sleep) of alice". A check must call Acts directly
// before each action (kill, mount, restart, remove, mkdir, -e). In a dry run Acts records
// the text and returns false, and the report shows
// "not done: would kill process 4711 (sleep) of alice".
func (e *Env) Acts(format string, args ...any) bool {
	if !e.DryRun {
		return true
	}
	e.held = append(e.held, fmt.Sprintf(format, args...))
	return false
}

// Held returns the actions that a dry run did not carry out, in order.
func (e *Env) Held() []string { return e.held }

// HeldCode is the code of a finding about an action that a dry run did not carry out. Its severity is
// [Skip]: the finding does not judge the node.
const HeldCode = "act.held"

// Aside reports whether a finding is a note about an action or a command. Such a note
// always goes to the log and is not a result of the check.
func (f Finding) Aside() bool { return f.Code == HeldCode || f.Code == StderrCode }

// NotDone returns a finding for each action in [Env.Held], and for each line that
// [Env.SaidBy] recorded.
func (e *Env) NotDone() (findings []Finding) {
	for _, line := range e.said {
		findings = append(findings, Finding{Code: StderrCode, Severity: OK, Message: line})
	}
	for _, action := range e.held {
		findings = append(findings, Finding{Code: HeldCode, Severity: Skip, Message: "not done: would " + action})
	}
	return findings
}

// ProcessText describes a process: "process 4711 (sleep) of alice".
func (e *Env) ProcessText(p probe.Process) string {
	return fmt.Sprintf("process %d (%.40s) of %s", p.PID, filepath.Base(p.Command()), OwnerOrUID(e, p))
}

// byHand is the suffix of the files where a dry run stores its data.
const byHand = ".by-hand"

// Remember stores v for later runs, as [probe.Host.Keep] does. A dry run does not
// overwrite data of the health check: the next health check must still report everything
// since its previous run. If the health check has stored nothing under this name, a dry run
// stores v under a name of its own.
func (e *Env) Remember(name string, v any) error {
	if !e.DryRun {
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

// Recall reads data that an earlier run stored with [Env.Remember].
func (e *Env) Recall(name string, v any) error {
	err := e.Host.Recall(name, v)
	if e.DryRun && errors.Is(err, fs.ErrNotExist) {
		err = e.Host.Recall(name+byHand, v)
	}
	return err
}

// Spawn starts an action in the background. text is the action as written in the
// configuration. acted is false if the run carries out no actions. The check does not depend
// on the action's success.
func (e *Env) Spawn(ctx context.Context, text string, c probe.Command) (acted bool) {
	if !e.Acts("run %s", text) {
		return false
	}
	e.At("run %s", strings.Join(c.Argv, " "))
	said, _ := e.Host.Spawn(ctx, c)
	e.SaidBy(text, said)
	return true
}

// Do runs an action, waits for it and returns its status. Processes that the action starts
// keep running. acted is false if the run carries out no actions.
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
// error. The finding goes to the log and does not judge the node.
const StderrCode = "cmd.stderr"

// SaidBy records the last line of a command's standard error.
func (e *Env) SaidBy(command, line string) {
	if line != "" {
		e.said = append(e.said, fmt.Sprintf("stderr of \"%s\": %s", command, line))
	}
}

// KillProcess sends SIGKILL to a process and does not wait for its end. A process that has
// already ended counts as killed. KillProcess returns false in a dry run, and if the
// process must not be killed.
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

// KillUser kills a process that must not run here, unless it belongs to a job that has a
// slurmstepd on this node: the job adopted the process (pam_slurm_adopt), or the job is newer
// than Slurm's answer.
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

// ActionFailed returns a finding about an action that failed. LBNL NHC shows such a failure
// only by the command's standard error.
func ActionFailed(check, format string, args ...any) Finding {
	return Finding{Code: "ps.action.failed", Severity: Warn}.Phrase(check, format, args...)
}

// DoActionFailed is the advice on that finding.
const DoActionFailed = "The action failed, or nhc-gpu spared the process; the message gives the reason. To do it anyway, do it by hand as root."

// KeepForLater stores data for later runs. A run without root's rights stores nothing,
// which is not a finding.
func KeepForLater(env *Env, check, name string, v any) []Finding {
	err := env.Remember(name, v)
	if err == nil || errors.Is(err, probe.ErrNoMemory) {
		return nil
	}
	return []Finding{Finding{Code: "gpu.past", Severity: Warn}.Describe(check, "%v", err)}
}
