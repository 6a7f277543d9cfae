package checks

import (
	"context"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// This file holds the parts that checks of a vendor's tool share: the settings with its name,
// and the handling of its output.

// Setting returns a variable that LBNL NHC sets to a default when it loads. A line of nhc.conf
// can empty it later, so an empty variable is not a missing one.
func (e *Env) Setting(name, preset string) string {
	if v, ok := e.Vars[name]; ok {
		return v
	}
	if v := e.Host.Getenv(name); v != "" {
		return v
	}
	return preset
}

// Words returns a command and its arguments from two such variables, split at blanks. The
// result can be empty.
func (e *Env) Words(program, preset, args, presetArgs string) []string {
	return append(strings.Fields(e.Setting(program, preset)), strings.Fields(e.Setting(args, presetArgs))...)
}

// RunTool runs a command, at most as long as the run itself may last. If key is not empty, the
// command runs once in a run. An empty command succeeds, as in a shell.
func (e *Env) RunTool(ctx context.Context, key string, c probe.Command) probe.Exit {
	if len(c.Argv) == 0 {
		return probe.Exit{}
	}
	e.At("run %s", strings.Join(c.Argv, " "))
	if key == "" {
		return e.Host.Run(ctx, c)
	}
	return e.Host.RunOnce(ctx, key, c)
}

// MaxReport is the maximum of a tool's output in the log, in bytes.
const MaxReport = 256 << 10

// OutputText returns an output as the shell's $(...) does: without zero bytes and trailing
// newlines.
func OutputText(output []byte) string {
	return strings.TrimRight(strings.ReplaceAll(string(output), "\x00", ""), "\n")
}
