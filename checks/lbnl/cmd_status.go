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

// cmdStatus runs a command and checks its exit status, 0 if no other is
// wanted. What the command prints is thrown away. After -t seconds, 5 if not
// given, it is ended with SIGALRM and SIGTERM. No command at all passes.
//
//	node* || check_cmd_status -t 10 -r 1 grep -q quarantined /etc/motd
type cmdStatus struct {
	Command string   `toml:"command"`         // split at blanks, without quotes
	Words   []string `arg:"*" toml:"argv"`    // the command word by word
	Status  string   `opt:"r" toml:"status"`  // the exit status that is wanted
	Limit   string   `opt:"t" toml:"timeout"` // whole seconds
	Name    string   `opt:"C"`                // stands for check_cmd_status in the messages
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
				"cmd.status":  "Run the command by hand, as root and with PATH=/sbin:/usr/sbin:/bin:/usr/bin; 127 means that it was not found.",
				"cmd.timeout": "The command did not come back and was ended: run it by hand. What it waits for (a server, a device) is the fault, or -t is too short.",
			}
		},
	})
}

// Runs is the command that this check runs.
func (c *cmdStatus) Runs() string {
	if len(c.Words) == 0 {
		return ""
	}
	return c.Words[0]
}

// CalledAs is the name that stands in the messages.
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
	if f := run.prepare(env); f != nil {
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

// builtins are commands of bash that are not programs, or not the same.
var builtins = []string{
	".", ":", "[", "alias", "builtin", "cd", "command", "declare", "eval", "exec", "exit", "export", "false", "hash",
	"kill", "let", "printf", "read", "set", "shopt", "source", "test", "trap", "true", "type", "ulimit", "umask", "unset",
}

// defaultLimit is how long a command may take if the check does not say, in seconds.
const defaultLimit = "5"

// commandRun is what check_cmd_output and check_cmd_status have in common:
// time and status of one command.
type commandRun struct {
	check   string        // the name in the messages
	text    string        // the command in the messages
	status  string        // wanted exit status as written; "" stands for 0
	limit   string        // seconds as written; "" stands for 5
	want    int           // status, read
	timeout time.Duration // limit, read
}

// prepare reads the numbers and says what is wrong with them.
func (r *commandRun) prepare(env *checks.Env) *checks.Finding {
	want, ok := checks.ParseInteger(r.status)
	if !ok {
		f := checks.WrongValue(r.check, "exit status", r.status, "a whole number")
		return &f
	}
	if r.limit == "" {
		r.limit = defaultLimit
	}
	seconds, ok := checks.ParseInteger(r.limit)
	if !ok || seconds > int64(longest/time.Second) {
		f := checks.WrongValue(r.check, "timeout", r.limit, "whole seconds")
		return &f
	}
	if all := int64(env.Timeout / time.Second); all > 0 && seconds > all {
		f := checks.Usage(fmt.Sprintf("%s:  Command timeout %s exceeds NHC timeout %d", r.check, r.limit, all), "")
		return &f
	}
	r.want = int(want)
	r.timeout = max(time.Duration(seconds)*time.Second, 1) // 0 is over at once
	return nil
}

// longest is more than any command check needs.
const longest = 24 * time.Hour

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
	// Ended by force counts as a timeout, too; it has no text of its own.
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
