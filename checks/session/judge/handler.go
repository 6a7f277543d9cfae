package judge

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/session/open"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// hearer receives the messages of the shell. Those about settings are for [open.Bash].
type hearer struct {
	*Judge
	*open.Bash
}

// Output passes on the output of the shell or its children.
func (j *hearer) Output(fd int, data []byte) {
	if fd == 1 && j.ToJSON && j.Collector != nil && j.Collector.Keep(data) {
		return
	}
	w := j.n.Out
	if fd == 2 || j.ToJSON {
		w = j.n.Errs
	}
	_, _ = w.Write(data)
}

// Leaving judges a line that ends the shell.
func (j *hearer) Leaving(status int) (helper bool, text, message string) {
	helper, text = j.emitUntilHelper(j.fold.Exited(status))
	j.n.Log.Flush()
	return helper, text, j.fold.LastMessage()
}

// Die judges the death of a check in the shell.
func (j *hearer) Die(status, message string, subshell, heard bool) (helper bool, text string) {
	return j.emitUntilHelper(j.fold.Died(status, message, subshell, heard))
}

// Forked records the process of a line that runs in the background (-f).
func (j *hearer) Forked(pid int) { j.forked(pid) }

// Died emits the remaining events after the site's helper has ended.
func (j *hearer) Died() { j.died() }

// Syslog queues a line.
func (j *hearer) Syslog(text string) { j.fold.Queue(text) }

// Flush sends the queued lines.
func (j *hearer) Flush() { j.emit(j.fold.Flush()) }

// Changed reports that a check line has changed a setting.
func (j *hearer) Changed() { j.changed() }

// Quit ends the run with the status of a script of the site.
func (j *hearer) Quit(status int) {
	if !j.fold.Over() {
		j.fold.Quit(status)
	}
}

// Call runs a check that a shell line calls.
func (j *hearer) Call(dir, line string, words []string) run.NativeReply {
	info, ok := checks.Lookup(words[0])
	if !ok {
		return fails("nhc:  no check is called " + words[0])
	}
	step := &plan.Step{Name: info.Name, Text: line, Lane: info.Lane, Active: info.Active, Class: info.Class(), Policy: j.files.Config.Of(info.Name, info.Class())}
	if in := step.Policy.Contexts; in != nil && j.files.Context() != "" && !slices.Contains(in, j.files.Context()) {
		j.unanswered.Omit(j.current, info.Name)
		return run.NativeReply{}
	}
	c := info.New()
	if err := checks.Bind(c, words[1:]); err != nil {
		return j.badUsage(step, info, err)
	}
	if node.WantsSlurm(info, c) {
		j.n.AskSlurm()
	}
	vars := j.n.Set.WorkerVars()
	vars.Plain = maps.Clone(vars.Plain)
	vars.Plain["PWD"] = dir
	j.n.Pool.SetVars(vars)
	req := &wire.Request{Op: wire.OpCheck, Name: info.Name, Args: words[1:], Line: line, Timeout: j.files.Timeout()}
	if test, ok := c.(checks.Bounded); ok {
		step.Bound, step.MaxAge = test.Bound(), test.Freshness()
		step.OnlyOld = step.MaxAge > 0 && j.n.Set.Job != nil && !j.n.Set.Job.Ended
	}
	result := j.Engine(nil).One(j.n.Ctx, step, req, plan.StepTimeout(info, c, j.files.Timeout()))
	list := j.judgeCall(step, result.Findings)
	j.n.Pool.SetVars(j.n.Set.WorkerVars())
	if j.n.Ctx.Err() != nil {
		return fails("") // the line is being ended
	}
	return j.reply(list)
}

// reply returns to bash the remaining findings of a called check.
func (j *hearer) reply(list []checks.Finding) run.NativeReply {
	return run.NativeReply{Findings: j.keepSyslog(j.keepUnknown(list))}
}

// judgeCall applies policies and silences to the findings of a check that bash has called.
func (j *hearer) judgeCall(s *plan.Step, list []checks.Finding) []checks.Finding {
	list = j.Soften(s, list)
	if s.Active || slices.ContainsFunc(list, func(f checks.Finding) bool { return checks.NotYet(f.Code) }) {
		j.unanswered.Note(j.current, list)
	}
	list = j.apply(s, list)
	for _, f := range list {
		if f.Severity == checks.Fail && ruleOf(j.files.Config, s, f).Action == conf.Drain {
			j.spared = append(j.spared, f.Message)
		}
	}
	j.fold.Called(list)
	if j.Collector != nil {
		j.Collector.CalledBy(list)
	}
	return list
}

func fails(message string) run.NativeReply {
	return run.NativeReply{Findings: []checks.Finding{{Severity: checks.Fail, Message: message}}}
}

func (j *hearer) badUsage(s *plan.Step, info checks.Info, err error) run.NativeReply {
	var usage *checks.UsageError
	if errors.As(err, &usage) && info.BadUsage != nil {
		return j.reply(j.judgeCall(s, []checks.Finding{info.BadUsage(s.Text, usage)}))
	}
	f := checks.Finding{Code: "config.usage", Severity: checks.Unknown, Message: fmt.Sprintf("%s:  %v; usage: %s %s", info.Name, err, info.Name, info.Usage)}
	return run.NativeReply{Findings: j.keepUnknown([]checks.Finding{f})}
}

// keepUnknown keeps findings of checks that could not be evaluated, that a person has accepted, or that
// a policy holds back: for the shell they are not failures, and they must not drain the node.
func (j *hearer) keepUnknown(list []checks.Finding) (rest []checks.Finding) {
	for _, f := range list {
		if f.Severity == checks.Unknown || f.Silenced != nil || f.Held != "" {
			j.emit(j.fold.Found([]checks.Finding{f}))
			continue
		}
		rest = append(rest, f)
	}
	return rest
}

// keepSyslog queues findings for syslog; a failure of the same check sends them.
func (j *hearer) keepSyslog(list []checks.Finding) (rest []checks.Finding) {
	for _, f := range list {
		if f.Severity == checks.Warn && (f.Syslog || f.Loud) {
			j.fold.Queue(f.Message)
		}
		if f.Severity == checks.Warn && f.Syslog {
			continue
		}
		rest = append(rest, f)
	}
	return rest
}

// Match judges a range list for mcheck_range.
func (j *hearer) Match(s, expr string) (reply run.NativeReply) {
	m := match.Matcher{Warn: func(text string) {
		reply.Findings = append(reply.Findings, checks.Finding{Severity: checks.Warn, Message: text})
	}}
	if ok, err := m.Match(s, expr); err != nil || !ok {
		reply.Findings = append(reply.Findings, checks.Finding{Severity: checks.Fail, Status: 1})
	}
	return reply
}
