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

// cmdOutput runs a command and compares the lines it prints with match strings:
// each must match some line, and a negated one (!) no line. Then its exit
// status must be right, 0 if no other is wanted. Empty lines are dropped, but
// one is added at the end. After -t seconds, 5 if not given, the command is
// ended with SIGTERM.
//
// A message given with -M stands for the match string of the same position. In
// it, %m is the match string, %c the command, %l and %L the number and the text
// of the line, %f how many match strings failed.
//
//	node* || check_cmd_output -m '!/DEGRADED/' -e 'storcli /c0 show'
type cmdOutput struct {
	Command  string   `opt:"e" toml:"command"` // split at blanks, without quotes
	Words    []string `arg:"*" toml:"argv"`    // the command if there is no -e
	Match    []string `opt:"m" toml:"match"`   // match strings
	Message  []string `opt:"M" toml:"message"` // texts of failure, in the order of Match
	Status   string   `opt:"r" toml:"status"`  // the exit status that is wanted
	Limit    string   `opt:"t" toml:"timeout"` // whole seconds
	Name     string   `opt:"C"`                // stands for check_cmd_output in the messages
	Variable string   `opt:"O"`                // the shell's array that gets the lines of the output
}

func init() {
	checks.Register(checks.Info{
		Name:     "check_cmd_output",
		Usage:    "[-t SECONDS] [-r STATUS] [-m MATCH [-M MESSAGE]] ... {-e COMMAND | COMMAND [ARG ...]}",
		Summary:  "a command prints what it should, and nothing it should not",
		Lane:     checks.Cmd,
		New:      func() checks.Check { return &cmdOutput{Limit: defaultLimit, Name: "check_cmd_output"} },
		Acts:     func(checks.Check) bool { return true },
		BadUsage: checks.UsageOf("check_cmd_output"),
		Do: func() map[string]string {
			return map[string]string{
				"cmd.output.found":   "The command reported what it must not: run it by hand and read the whole of its output.",
				"cmd.output.missing": "The command did not print what it should: run it by hand. A tool that was updated may word things differently.",
				"cmd.output.long":    "Let the command print less: only 4 MiB of its output are looked at.",
			}
		},
	})
}

// maxOutput is how much of a command's output is looked at, in bytes.
const maxOutput = 4 << 20

func (c *cmdOutput) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	findings, _ := c.examine(ctx, env)
	return findings
}

// examine also gives the output, for checks that look for more in it. Without
// findings the command has been run and its output is all right so far.
func (c *cmdOutput) examine(ctx context.Context, env *checks.Env) (findings []checks.Finding, output []byte) {
	argv, text := c.Words, strings.Join(c.Words, " ")
	if c.Command != "" {
		argv, text = strings.Fields(c.Command), c.Command
	}
	run := commandRun{check: c.Name, text: text, status: c.Status, limit: c.Limit}
	if strings.Join(argv, " ") == "" {
		return []checks.Finding{checks.Usage(run.check+":  Syntax error:  No command specified", "")}, nil
	}
	if f := run.prepare(env); f != nil {
		return []checks.Finding{*f}, nil
	}
	if len(c.Message) > len(c.Match) {
		// LBNL NHC halves both numbers.
		return []checks.Finding{checks.Usage(fmt.Sprintf("%s:  Message count (%d) must not exceed match string count (%d).",
			run.check, len(c.Message)/2, len(c.Match)/2), "")}, nil
	}
	cmd := env.Command(argv...)
	cmd.Timeout, cmd.Output, cmd.Said = run.timeout, maxOutput, true
	env.At("run %s", run.text)
	x := env.Host.Run(ctx, cmd)
	m := outputMatch{cmdOutput: c, run: &run, match: env.Matcher(&findings)}
	judged := m.judge(x) // fills findings, too
	if checks.Worst(judged) >= checks.Unknown {
		env.SaidBy(run.text, x.Said)
	}
	return slices.Concat(c.variable(x), findings, judged), x.Output
}

// Sets is the variable of the shell that this check sets.
func (c *cmdOutput) Sets() string { return c.Variable }

// CalledAs is the name that stands in the messages.
func (c *cmdOutput) CalledAs() string { return c.Name }

// variable hands the lines of the output to the shell.
func (c *cmdOutput) variable(x probe.Exit) []checks.Finding {
	if checks.NameLength(c.Variable) != len(c.Variable) || c.Variable == "" {
		return nil
	}
	lines := outputLines(x.Output)
	return []checks.Finding{{
		Code: checks.ArrayCode, Severity: checks.OK, Device: checks.Device{Kind: "variable", Name: c.Variable}, Got: strings.Join(lines[:len(lines)-1], "\n"),
	}}
}

// outputLines are the lines that are looked at: zero bytes and empty lines are
// lost in the reference's command substitution, and its loop runs one line too far.
func outputLines(output []byte) []string {
	var lines []string
	for line := range bytes.Lines(bytes.ReplaceAll(output, []byte{0}, nil)) {
		if line = bytes.TrimSuffix(line, []byte("\n")); len(line) > 0 {
			lines = append(lines, string(line))
		}
	}
	return append(lines, "")
}

// outputMatch compares one output with the match strings.
type outputMatch struct {
	*cmdOutput
	run   *commandRun
	match func(s, expr string) bool
}

// judge reports a line that must not be there, the exit status, and a line
// that is missing, in this order.
func (m *outputMatch) judge(x probe.Exit) []checks.Finding {
	found := make([]bool, len(m.Match))
	for n, line := range outputLines(x.Output) {
		for i, expr := range m.Match {
			if unwanted, negated := strings.CutPrefix(expr, "!"); negated {
				found[i] = true
				if m.match(line, unwanted) {
					return []checks.Finding{m.unwanted(i, n+1, line)}
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
	return m.missing(found)
}

func (m *outputMatch) unwanted(i, number int, line string) checks.Finding {
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

// missing reports the first match string that no line matched.
func (m *outputMatch) missing(found []bool) []checks.Finding {
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
	if len(found) > 1 { // with a single one a %f in the site's own text stays
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

// render is the message for a match string: the site's own or text.
func (m *outputMatch) render(i int, text string, values ...string) string {
	if i < len(m.Message) && m.Message[i] != "" {
		text = m.Message[i]
	}
	return m.run.check + ":  " + strings.NewReplacer(values...).Replace(text) + "."
}
