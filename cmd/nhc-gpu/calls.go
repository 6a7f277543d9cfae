package main

import (
	"errors"
	"fmt"
	"maps"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// Call runs a check that a shell line calls.
func (o *observer) Call(dir, line string, words []string) run.NativeReply {
	info, ok := checks.Lookup(words[0])
	if !ok {
		return fails("nhc:  no check is called " + words[0])
	}
	c := info.New()
	if err := checks.Bind(c, words[1:]); err != nil {
		return o.badUsage(info, line, err)
	}
	if node.WantsSlurm(info, c) {
		o.AskSlurm()
	}
	vars := o.Set.WorkerVars()
	vars.Plain = maps.Clone(vars.Plain)
	vars.Plain["PWD"] = dir
	o.Pool.SetVars(vars)
	req := &run.Request{Op: run.OpCheck, Name: info.Name, Args: words[1:], Line: line, Timeout: o.timeout()}
	step := &plan.Step{Name: info.Name, Text: line, Lane: info.Lane, Active: info.Active}
	if test, ok := c.(checks.Bounded); ok {
		step.Bound, step.MaxAge = test.Bound(), test.Freshness()
		step.OnlyOld = step.MaxAge > 0 && o.Set.Job != nil && !o.Set.Job.Ended
	}
	e := &run.Engine{Pool: o.Pool, Deadline: o.Budget.End, Timeout: o.timeout}
	result := e.One(o.Ctx, step, req, plan.StepTimeout(info, c, o.timeout()))
	list := result.Findings
	if info.Active {
		o.unanswered.Note(o.current, list, result.Earlier)
	}
	o.fold.f.Called(list)
	if o.table != nil {
		o.table.called = append(o.table.called, list...)
	}
	o.Pool.SetVars(o.Set.WorkerVars())
	if o.Ctx.Err() != nil {
		return fails("") // the line is about to be ended
	}
	return run.NativeReply{Findings: o.keepSyslog(o.keepUnknown(list))}
}

func fails(message string) run.NativeReply {
	return run.NativeReply{Findings: []checks.Finding{{Severity: checks.Fail, Message: message}}}
}

func (o *observer) badUsage(info checks.Info, line string, err error) run.NativeReply {
	var usage *checks.UsageError
	if errors.As(err, &usage) && info.BadUsage != nil {
		return run.NativeReply{Findings: []checks.Finding{info.BadUsage(line, usage)}}
	}
	f := checks.Finding{Code: "config.usage", Severity: checks.Unknown, Message: fmt.Sprintf("%s:  %v; usage: %s %s", info.Name, err, info.Name, info.Usage)}
	return run.NativeReply{Findings: o.keepUnknown([]checks.Finding{f})}
}

// keepUnknown reports here what could not be told: for the shell it is no
// failure, and it must not drain the node.
func (o *observer) keepUnknown(list []checks.Finding) (rest []checks.Finding) {
	for _, f := range list {
		if f.Severity == checks.Unknown {
			o.emit(o.fold.f.Findings([]checks.Finding{f}))
			continue
		}
		rest = append(rest, f)
	}
	return rest
}

// keepSyslog queues what is for syslog; a failure of the same check sends it.
func (o *observer) keepSyslog(list []checks.Finding) (rest []checks.Finding) {
	for _, f := range list {
		if f.Severity == checks.Warn && (f.Syslog || f.Loud) {
			o.fold.f.Queue(f.Message)
		}
		if f.Severity == checks.Warn && f.Syslog {
			continue
		}
		rest = append(rest, f)
	}
	return rest
}

// Match judges a range list for mcheck_range.
func (o *observer) Match(s, expr string) (reply run.NativeReply) {
	m := match.Matcher{Warn: func(text string) {
		reply.Findings = append(reply.Findings, checks.Finding{Severity: checks.Warn, Message: text})
	}}
	if ok, err := m.Match(s, expr); err != nil || !ok {
		reply.Findings = append(reply.Findings, checks.Finding{Severity: checks.Fail, Status: 1})
	}
	return reply
}
