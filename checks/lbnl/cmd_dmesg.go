package lbnl

import (
	"context"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// cmdDmesg compares the kernel's messages with match strings, as check_cmd_output does with the
// output of any command. It runs dmesg, or another command if one is given.
//
// The kernel logs names that users choose (of processes, files and cgroups), even at the
// beginning of a line. Match the complete form of a message from its first byte: no such name can
// imitate it.
//
//	node* || check_cmd_dmesg -m '!/EDAC .* UE /' -m '!/Machine check/'
type cmdDmesg struct {
	Match    []string `opt:"m" toml:"match"`   // match strings; with ! no line must match
	Message  []string `opt:"M" toml:"message"` // failure messages, in the order of the options -m
	Status   string   `opt:"r" toml:"status"`  // the expected exit status
	Limit    string   `opt:"t" toml:"timeout"` // time limit in whole seconds
	Command  string   `opt:"e" toml:"command"` // the command instead of dmesg; split at blanks, quotes have no effect
	Words    []string `arg:"*" toml:"argv"`    // the command as separate arguments
	Variable string   `opt:"O"`                // shell array that receives the lines of the output
}

func init() {
	checks.Register(checks.Info{
		Name:     "check_cmd_dmesg",
		Usage:    "[-t SECONDS] [-r STATUS] [-m MATCH [-M MESSAGE]] ... [-e COMMAND | COMMAND [ARG ...]]",
		Summary:  "the kernel's messages contain all required lines and no forbidden line",
		Lane:     checks.Cmd,
		New:      func() checks.Check { return &cmdDmesg{Limit: defaultLimit} },
		Acts:     func(checks.Check) bool { return true },
		BadUsage: checks.UsageOf("check_cmd_dmesg"),
	})
}

// Sets returns the name of the shell variable that this check sets.
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
