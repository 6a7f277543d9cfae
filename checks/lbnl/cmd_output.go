package lbnl

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// cmdOutput runs a command and compares the lines of its output with match strings. Each match
// string must match at least one line; a negated one (!) must match no line. The exit status must
// be the expected one (default 0). The check ignores empty lines, and adds one at the end. After
// -t seconds (default 5) it ends the command with SIGTERM.
//
// -M sets the message for the match string in the same position. In the message, %m is the match
// string, %c the command, %l the number of the line, %L its text, and %f how many of the match
// strings failed: 1/2.
//
//	node* || check_cmd_output -m '!/DEGRADED/' -e 'storcli /c0 show'
type cmdOutput struct {
	Command  string   `opt:"e" toml:"command"` // the command, split at blanks; quotes have no effect
	Words    []string `arg:"*" toml:"argv"`    // the command as separate arguments; -e takes precedence over it
	Match    []string `opt:"m" toml:"match"`   // match strings
	Message  []string `opt:"M" toml:"message"` // failure messages, in the order of the options -m
	Status   string   `opt:"r" toml:"status"`  // the expected exit status
	Limit    string   `opt:"t" toml:"timeout"` // time limit in whole seconds
	Name     string   `opt:"C"`                // replaces check_cmd_output in the messages
	Variable string   `opt:"O"`                // shell array that receives the lines of the output
}

func init() {
	checks.Register(checks.Info{
		Name:     "check_cmd_output",
		Usage:    "[-t SECONDS] [-r STATUS] [-m MATCH [-M MESSAGE]] ... {-e COMMAND | COMMAND [ARG ...]}",
		Summary:  "a command's output contains all required lines and no forbidden line",
		Lane:     checks.Cmd,
		New:      func() checks.Check { return &cmdOutput{Limit: defaultLimit, Name: "check_cmd_output"} },
		Acts:     func(checks.Check) bool { return true },
		BadUsage: checks.UsageOf("check_cmd_output"),
		Do: func() map[string]string {
			return map[string]string{
				"cmd.output.found":   "Run the command by hand and read its full output: it prints a line that must not be there.",
				"cmd.output.missing": "Run the command by hand: it does not print a required line. After an update a tool can print other texts.",
				"cmd.output.long":    "Make the command print less: the check reads at most 4 MiB of its output.",
			}
		},
	})
}

// maxOutput is the largest output of a command that the check reads, in bytes.
const maxOutput = 4 << 20

func (c *cmdOutput) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	findings, _ := c.examine(ctx, env)
	return findings
}

// examine also returns the output, for checks that examine it further. If there are no findings,
// the command has run and its output is correct so far.
func (c *cmdOutput) examine(ctx context.Context, env *checks.Env) (findings []checks.Finding, output []byte) {
	argv, text := c.Words, strings.Join(c.Words, " ")
	if c.Command != "" {
		argv, text = strings.Fields(c.Command), c.Command
	}
	run := commandRun{check: c.Name, text: text, status: c.Status, limit: c.Limit}
	if strings.Join(argv, " ") == "" {
		return []checks.Finding{checks.Usage(run.check+":  Syntax error:  No command specified", "")}, nil
	}
	if f := run.parse(env); f != nil {
		return []checks.Finding{*f}, nil
	}
	if len(c.Message) > len(c.Match) {
		// LBNL NHC divides both numbers by two.
		return []checks.Finding{checks.Usage(fmt.Sprintf("%s:  Message count (%d) must not exceed match string count (%d).",
			run.check, len(c.Message)/2, len(c.Match)/2), "")}, nil
	}
	cmd := env.Command(argv...)
	cmd.Timeout, cmd.Output, cmd.Said = run.timeout, maxOutput, true
	env.At("run %s", run.text)
	x := env.Host.Run(ctx, cmd)
	m := outputMatch{cmdOutput: c, run: &run, match: env.Matcher(&findings)}
	judged := m.judge(x) // also adds to findings
	if checks.Worst(judged) >= checks.Unknown {
		env.SaidBy(run.text, x.Said)
	}
	return slices.Concat(c.exportLines(x), findings, judged), x.Output
}

// Sets returns the name of the shell variable that this check sets.
func (c *cmdOutput) Sets() string { return c.Variable }

// CalledAs returns the name of the check in the messages.
func (c *cmdOutput) CalledAs() string { return c.Name }

// exportLines passes the lines of the output to the shell.
func (c *cmdOutput) exportLines(x probe.Exit) []checks.Finding {
	if checks.NameLength(c.Variable) != len(c.Variable) || c.Variable == "" {
		return nil
	}
	lines := outputLines(x.Output)
	return []checks.Finding{{
		Code: checks.ArrayCode, Severity: checks.OK, Device: checks.Device{Kind: "variable", Name: c.Variable}, Got: strings.Join(lines[:len(lines)-1], "\n"),
	}}
}

// outputLines returns the lines to compare. As in LBNL NHC, zero bytes and empty lines are lost
// (by the command substitution), and an empty line follows the last one (the loop runs once too
// often).
func outputLines(output []byte) []string {
	var lines []string
	for line := range bytes.Lines(bytes.ReplaceAll(output, []byte{0}, nil)) {
		if line = bytes.TrimSuffix(line, []byte("\n")); len(line) > 0 {
			lines = append(lines, string(line))
		}
	}
	return append(lines, "")
}

// outputMatch compares the output of one run with the match strings.
type outputMatch struct {
	*cmdOutput
	run   *commandRun
	match func(s, expr string) bool
}

// judge reports the first fault, in this order: a forbidden line, a wrong exit status, a missing
// line.
func (m *outputMatch) judge(x probe.Exit) []checks.Finding {
	found := make([]bool, len(m.Match))
	for n, line := range outputLines(x.Output) {
		for i, expr := range m.Match {
			if unwanted, negated := strings.CutPrefix(expr, "!"); negated {
				found[i] = true
				if m.match(line, unwanted) {
					return []checks.Finding{m.reportFound(i, n+1, line)}
				}
			} else if !found[i] {
				found[i] = m.match(line, expr)
			}
		}
	}
	if findings := m.run.judge(x); findings != nil {
		return findings
	}
	if x.Truncated && len(m.Match) > 0 {
		return []checks.Finding{{
			Code:     "cmd.output.long",
			Severity: checks.Unknown,
			Device:   checks.Device{Kind: "command", Name: m.run.text},
			Message:  fmt.Sprintf("%s:  output of \"%s\" is longer than %d bytes", m.run.check, m.run.text, maxOutput),
		}}
	}
	return m.reportMissing(found)
}

func (m *outputMatch) reportFound(i, number int, line string) checks.Finding {
	expr := m.Match[i][1:]
	return checks.Finding{
		Code:     "cmd.output.found",
		Severity: checks.Fail,
		Device:   checks.Device{Kind: "command", Name: m.run.text},
		Message: m.render(i, `"%m" matched at line %l of "%c"`,
			"%m", expr,
			"%l", strconv.Itoa(number),
			"%L", strings.NewReplacer(`"`, "", "`", "", "$", "").Replace(line),
			"%c", m.run.text),
		Want: "no line that matches " + expr,
		Got:  line,
	}
}

// reportMissing reports the first match string that no line matches.
func (m *outputMatch) reportMissing(found []bool) []checks.Finding {
	first, failed := -1, 0
	for i, ok := range found {
		if ok {
			continue
		}
		if failed++; first < 0 {
			first = i
		}
	}
	if failed == 0 {
		return nil
	}
	text, values := `"%m" failed to match "%c" output`, []string{"%m", m.Match[first], "%c", m.run.text}
	if len(found) > 1 { // with one match string LBNL NHC does not replace %f in a custom message
		text += " (%f patterns failed)"
		values = append(values, "%f", fmt.Sprintf("%d/%d", failed, len(found)))
	}
	return []checks.Finding{{
		Code:     "cmd.output.missing",
		Severity: checks.Fail,
		Device:   checks.Device{Kind: "command", Name: m.run.text},
		Message:  m.render(first, text, values...),
		Want:     "a line that matches " + m.Match[first],
	}}
}

// render returns the message for a match string: the custom one of -M, otherwise text.
func (m *outputMatch) render(i int, text string, values ...string) string {
	if i < len(m.Message) && m.Message[i] != "" {
		text = m.Message[i]
	}
	return m.run.check + ":  " + strings.NewReplacer(values...).Replace(text) + "."
}
