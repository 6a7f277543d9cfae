package checks

import (
	"context"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// What the checks have in common that judge what a vendor's tool says of the
// hardware: where its name comes from, and what is left of its output.

// Setting is a variable that LBNL NHC fills with a default while it loads. A line
// of nhc.conf may empty it after that, so an empty variable is not a missing one.
func (e *Env) Setting(name, preset string) string {
	if v, ok := e.Vars[name]; ok {
		return v
	}
	if v := e.Host.Getenv(name); v != "" {
		return v
	}
	return preset
}

// Words are a command and its arguments out of two such variables, split at
// blanks. There may be none.
func (e *Env) Words(program, preset, args, presetArgs string) []string {
	return append(strings.Fields(e.Setting(program, preset)), strings.Fields(e.Setting(args, presetArgs))...)
}

// RunTool runs a command, once in a run if key is not empty, and at most as long
// as the run itself may last. No command at all succeeds, as in a shell.
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

// MaxReport is how much of a tool's output is kept for the log, in bytes.
const MaxReport = 256 << 10

// What a shell makes of a command's end.
const (
	NotFound = 127
	KilledBy = 128 // plus the number of the signal
)

// OutputText is an output as the shell's $(...) has it: without zero bytes and
// without newlines at the end.
func OutputText(output []byte) string {
	return strings.TrimRight(strings.ReplaceAll(string(output), "\x00", ""), "\n")
}
