package lbnl

import (
	"context"
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// psBlacklist checks that a process does not run. The glob DAEMON is searched for anywhere in the
// command lines of all processes; ARGS is appended to it after a blank. OWNER is a match string for
// the name of the process's user.
//
//	node* || check_ps_blacklist telnetd !root
type psBlacklist struct {
	Daemon  string   `arg:"1" toml:"daemon"` // glob for a part of the command line
	Owner   string   `arg:"2" toml:"owner"`  // match string for the user; default: any user
	Args    string   `arg:"3" toml:"args"`   // appended to the glob after a blank
	Surplus []string `arg:"*"`               // ignored, as in LBNL NHC
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_ps_blacklist",
		Usage:   "DAEMON [OWNER [ARGS]]",
		Summary: "a process does not run",
		Lane:    checks.Local,
		New:     func() checks.Check { return &psBlacklist{} },
		Do: func() map[string]string {
			return map[string]string{
				"ps.blacklist.running": "Find out who started the process, and end it: the line forbids it.",
			}
		},
	})
}

func (c *psBlacklist) Run(_ context.Context, env *checks.Env) []checks.Finding {
	procs, err := probe.Processes(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	pattern := c.Daemon
	if c.Args != "" {
		pattern += " " + c.Args
	}
	var findings, doubt []checks.Finding
	matches := env.Matcher(&findings)
	for _, p := range procs {
		found := match.Find(p.Args, pattern)
		if !found && !p.Unread || c.Owner != "" && !matches(checks.OwnerOf(env, p), c.Owner) {
			continue
		}
		if !found { // it may be the one: the pattern can match any argument
			if doubt == nil {
				doubt = []checks.Finding{unread(env, "check_ps_blacklist", p)}
			}
			continue
		}
		return append(findings, checks.Finding{
			Code:     "ps.blacklist.running",
			Severity: checks.Fail,
			Device:   checks.Device{Kind: "process", Name: pattern},
			Message:  fmt.Sprintf("check_ps_blacklist:  Process %s %srunning", pattern, checks.Before("owned by ", c.Owner, " ")),
			Want:     "not running",
			Got:      fmt.Sprintf("process ID %d", p.PID),
		})
	}
	return append(findings, doubt...)
}
