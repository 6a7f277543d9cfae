package lbnl

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// cmdStatus runs a command and compares its exit status with the expected one (default 0). It
// discards the output of the command. After -t seconds (default 5) it ends the command with
// SIGALRM and SIGTERM. Without a command the check passes.
//
//	node* || check_cmd_status -t 10 -r 1 grep -q quarantined /etc/motd
type cmdStatus struct {
	Command string   `toml:"command"`         // the command, split at blanks; quotes have no effect
	Words   []string `arg:"*" toml:"argv"`    // the command as separate arguments
	Status  string   `opt:"r" toml:"status"`  // the expected exit status
	Limit   string   `opt:"t" toml:"timeout"` // time limit in whole seconds
	Name    string   `opt:"C"`                // replaces check_cmd_status in the messages
}

func init() {
	checks.Register(checks.Info{
		Name:     "check_cmd_status",
		Usage:    "[-t SECONDS] [-r STATUS] COMMAND [ARG ...]",
		Summary:  "a command ends with the right exit status",
		Lane:     checks.Cmd,
		New:      func() checks.Check { return &cmdStatus{Limit: defaultLimit, Name: "check_cmd_status"} },
		Acts:     func(checks.Check) bool { return true },
		BadUsage: checks.UsageOf("check_cmd_status"),
		Do: func() map[string]string {
			return map[string]string{
				"cmd.status":  "Run the command by hand, as root and with PATH=/sbin:/usr/sbin:/bin:/usr/bin. Status 127 means that the command was not found.",
				"cmd.timeout": "Run the command by hand: it did not end in time and was terminated. Repair the server or device that it waits for, or raise the limit (-t).",
			}
		},
	})
}

// Runs returns the command that this check runs.
func (c *cmdStatus) Runs() string {
	if len(c.Words) == 0 {
		return ""
	}
	return c.Words[0]
}

// CalledAs returns the name of the check in the messages.
func (c *cmdStatus) CalledAs() string { return c.Name }

func (c *cmdStatus) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	argv := c.Words
	if c.Command != "" {
		argv = strings.Fields(c.Command)
	}
	run := commandRun{
		check:  c.Name,
		text:   strings.Join(argv, " "),
		status: c.Status,
		limit:  c.Limit,
	}
	if f := run.parse(env); f != nil {
		return []checks.Finding{*f}
	}
	if len(argv) == 0 {
		return run.judge(probe.Exit{})
	}
	cmd := env.Command(argv...)
	if slices.Contains(builtins, argv[0]) {
		cmd = env.Shell(`"$0" "$@"`, argv...)
	}
	cmd.Timeout = run.timeout
	cmd.Signals = []syscall.Signal{syscall.SIGALRM, syscall.SIGTERM}
	env.At("run %s", run.text)
	return run.judge(env.Host.Run(ctx, cmd))
}

// builtins are commands that exist only in bash, or that differ in bash from the program.
var builtins = []string{
	".", ":", "[", "alias", "builtin", "cd", "command", "declare", "eval", "exec", "exit", "export", "false", "hash",
	"kill", "let", "printf", "read", "set", "shopt", "source", "test", "trap", "true", "type", "ulimit", "umask", "unset",
}

// defaultLimit is the time limit of a command if the line sets none, in seconds.
const defaultLimit = "5"

// commandRun holds the time limit and the exit status of one command, for check_cmd_output and
// check_cmd_status.
type commandRun struct {
	check   string        // the name in the messages
	text    string        // the command in the messages
	status  string        // expected exit status as written; "" means 0
	limit   string        // seconds as written; "" means 5
	want    int           // status, parsed
	timeout time.Duration // limit, parsed
}

// parse reads the numbers and reports the first invalid one.
func (r *commandRun) parse(env *checks.Env) *checks.Finding {
	want, ok := checks.ParseInteger(r.status)
	if !ok {
		f := checks.WrongValue(r.check, "exit status", r.status, "a whole number")
		return &f
	}
	if r.limit == "" {
		r.limit = defaultLimit
	}
	seconds, ok := checks.ParseInteger(r.limit)
	if !ok || seconds > int64(maxLimit/time.Second) {
		f := checks.WrongValue(r.check, "timeout", r.limit, "whole seconds")
		return &f
	}
	all := int64(env.Timeout / time.Second)
	if text := env.Lookup("TIMEOUT"); text != "" { // slurmd can end the run earlier, and the command with it
		if n, ok := checks.ParseInteger(text); ok && (n == 0 || n > all) {
			all = n
		}
	}
	if all > 0 && seconds > all {
		f := checks.Usage(fmt.Sprintf("%s:  Command timeout %s exceeds NHC timeout %d", r.check, r.limit, all), "")
		return &f
	}
	r.want = int(want)
	r.timeout = max(time.Duration(seconds)*time.Second, 1) // 0 ends the command immediately
	return nil
}

// maxLimit is the longest time limit that a line can set.
const maxLimit = 24 * time.Hour

// judge compares the exit status.
func (r *commandRun) judge(x probe.Exit) []checks.Finding {
	if x.Status == r.want && !x.Stuck {
		return nil
	}
	f := checks.Finding{
		Code:     "cmd.status",
		Severity: checks.Fail,
		Device:   checks.Device{Kind: "command", Name: r.text},
		Want:     strconv.Itoa(r.want),
		Got:      strconv.Itoa(x.Status),
	}
	if x.Err != nil {
		f.Got += ": " + x.Err.Error()
	}
	// SIGKILL also counts as a timeout; LBNL NHC has no message of its own for it.
	if x.TimedOut && (x.Status == 128+int(syscall.SIGTERM) || x.Status == 128+int(syscall.SIGKILL)) {
		f.Code = "cmd.timeout"
		f.Message = fmt.Sprintf("%s:  TIMEOUT after %ss for \"%s\"; subprocess terminated.", r.check, r.limit, r.text)
		if x.Stuck {
			f.Got = "still there after SIGKILL"
		}
		return []checks.Finding{f}
	}
	f.Message = fmt.Sprintf("%s:  %d%s returned by \"%s\".", r.check, x.Status, checks.Before(" (expected ", r.status, ")"), r.text)
	return []checks.Finding{f}
}
