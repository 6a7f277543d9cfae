package rank

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/shell"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep/wire"
)

func init() {
	kinds[sweep.KindCheck] = func(n *node) kind { return &check{node: n} }
}

// check runs one line of nhc.conf on each node of the task, in a child process. It neither drains
// nor resumes the node.
type check struct {
	*node
	argv []string
}

const maxReport = 4 << 20 // bytes, of JSON

func (c *check) prepare(_ context.Context, p *wire.Prepare) wire.Ready {
	words, err := shell.Fields(p.Task.Op, func(string) string { return "" })
	if err != nil || len(words) == 0 {
		return refuse(fmt.Errorf("%q is not a check", p.Task.Op))
	}
	c.argv = append([]string{"nhc-gpu", "check", "--json"}, words...)
	return wire.Ready{}
}

func (c *check) run(ctx context.Context, _ *wire.Run) sweep.Result {
	x := c.again(ctx, c.argv, nil, maxReport)
	line := strings.Join(c.argv[3:], " ")
	switch {
	case x.Err != nil:
		return sweep.Result{Fault: sweep.FaultError, Text: fmt.Sprintf("%s: %v", line, x.Err)}
	case x.TimedOut:
		text := line + ": it has not ended within its time limit"
		if x.Stuck {
			text += ", and hangs in the kernel"
		}
		return sweep.Result{Fault: sweep.FaultSilent, Text: text, Blame: []string{c.Name}}
	}
	results, err := parseReport(x.Output)
	if err != nil || len(results) == 0 {
		text := fmt.Sprintf("%s: exit status %d", line, x.Status)
		if said, _, _ := strings.Cut(string(x.Errors), "\n"); said != "" {
			text += ": " + probe.OneLine(said)
		}
		return sweep.Result{Fault: sweep.FaultUnable, Text: text}
	}
	return c.judge(results)
}

// judge makes the results of a check the result of its task. A check that could not be evaluated has not
// passed, and neither has one that was skipped.
func (c *check) judge(results []sweep.CheckResult) sweep.Result {
	r := sweep.Result{Checks: results}
	passed := slices.ContainsFunc(results, func(x sweep.CheckResult) bool { return x.Severity == "ok" || x.Severity == "warn" })
	for _, x := range results {
		text := x.Message
		if !strings.HasPrefix(text, "check_") { // LBNL NHC's own texts name the check
			text = x.Check + ": " + text
		}
		switch {
		case x.Severity == "fail" && r.Fault != sweep.FaultCheck:
			r.Fault, r.Text, r.Blame = sweep.FaultCheck, text, []string{c.Name}
		case r.Fault == sweep.FaultNone && (x.Severity == "unknown" || x.Severity == "skip" && !passed):
			r.Fault, r.Text = sweep.FaultUnable, text
		}
	}
	return r
}

func (c *check) stop() {} // the context has ended the child

// parseReport reads the JSON of nhc-gpu check: docs/reference/run.md.
func parseReport(data []byte) ([]sweep.CheckResult, error) {
	var report struct {
		Results []struct {
			Result, Check, Code, Message, Fact string
			Device                             struct{ Name, PCI string }
		}
	}
	if err := json.Unmarshal(data, &report); err != nil {
		return nil, fmt.Errorf("read the report of a check: %w", err)
	}
	var list []sweep.CheckResult
	for _, r := range report.Results {
		text := r.Message
		if text == "" {
			text = r.Fact
		}
		list = append(list, sweep.CheckResult{Check: r.Check, Severity: r.Result, Code: r.Code, Device: strings.TrimSpace(r.Device.Name + " " + r.Device.PCI), Message: text})
	}
	return list, nil
}
