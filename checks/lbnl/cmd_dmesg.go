package lbnl

import (
	"context"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// cmdDmesg compares the kernel's messages with match strings, as
// check_cmd_output does with what any command prints: it runs dmesg, or the
// command that is given in its place.
//
// The kernel logs names that users choose, of processes, files and cgroups, even at the
// begin of a line. Match the whole form, from its first byte: no name can have it.
//
//	node* || check_cmd_dmesg -m '!/EDAC .* UE /' -m '!/Machine check/'
type cmdDmesg struct {
	Match    []string `opt:"m" toml:"match"`   // match strings; with ! for what must not be there
	Message  []string `opt:"M" toml:"message"` // texts of failure, in the order of Match
	Status   string   `opt:"r" toml:"status"`  // the exit status that is wanted
	Limit    string   `opt:"t" toml:"timeout"` // whole seconds
	Command  string   `opt:"e" toml:"command"` // in place of dmesg; split at blanks, without quotes
	Words    []string `arg:"*" toml:"argv"`    // the same, word by word
	Variable string   `opt:"O"`                // the shell's array that gets the lines of the output
}

func init() {
	checks.Register(checks.Info{
		Name:     "check_cmd_dmesg",
		Usage:    "[-t SECONDS] [-r STATUS] [-m MATCH [-M MESSAGE]] ... [-e COMMAND | COMMAND [ARG ...]]",
		Summary:  "the kernel's messages hold what they should, and nothing they should not",
		Lane:     checks.Cmd,
		New:      func() checks.Check { return &cmdDmesg{Limit: defaultLimit} },
		Acts:     func(checks.Check) bool { return true },
		BadUsage: checks.UsageOf("check_cmd_dmesg"),
	})
}

// Sets is the variable of the shell that this check sets.
func (c *cmdDmesg) Sets() string { return c.Variable }

func (c *cmdDmesg) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	out := &cmdOutput{
		Command: c.Command,
		Words:   c.Words,
		Match:   c.Match,
		Message: c.Message,
		Status:  c.Status,
		Limit:   c.Limit,
		Name:    "check_cmd_dmesg",

		Variable: c.Variable,
	}
	if out.Command == "" && len(out.Words) == 0 {
		out.Command = "dmesg"
	}
	return out.Run(ctx, env)
}
