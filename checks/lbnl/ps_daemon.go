package lbnl

import (
	"context"
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// psDaemon checks that a process runs. The glob DAEMON is searched for anywhere in the command
// lines of all processes; ARGS is appended to it after a blank. OWNER is compared with the name of
// the process's user.
//
//	node* || check_ps_daemon sshd root
type psDaemon struct {
	Daemon  string   `arg:"1" toml:"daemon"` // glob for a part of the command line
	Owner   string   `arg:"2" toml:"owner"`  // the name of the process's user
	Args    string   `arg:"3" toml:"args"`   // appended to the glob after a blank
	Surplus []string `arg:"*"`               // ignored, as in LBNL NHC
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_ps_daemon",
		Usage:   "DAEMON [OWNER [ARGS]]",
		Summary: "a process runs",
		Lane:    checks.Local,
		New:     func() checks.Check { return &psDaemon{} },
		Do: func() map[string]string {
			return map[string]string{
				"ps.daemon.down": "Start the daemon, and read its log to find out why it ended.",
			}
		},
	})
}

func (c *psDaemon) Run(_ context.Context, env *checks.Env) []checks.Finding {
	procs, err := probe.Processes(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	pattern := c.Daemon
	if c.Args != "" {
		pattern += " " + c.Args
	}
	var doubt []checks.Finding
	for _, p := range procs {
		if found := match.Find(p.Args, pattern); !found && !mayRun(env, p, pattern) || c.Owner != "" && checks.OwnerOf(env, p) != c.Owner {
			continue
		} else if found {
			env.Fact("%s runs as process %d", pattern, p.PID)
			return nil
		}
		if doubt == nil {
			doubt = []checks.Finding{unread(env, "check_ps_daemon", p)}
		}
	}
	if doubt != nil {
		return doubt
	}
	return []checks.Finding{{
		Code:     "ps.daemon.down",
		Severity: checks.Fail,
		Device:   checks.Device{Kind: "process", Name: pattern},
		Message:  fmt.Sprintf("check_ps_daemon:  Process %s %snot running", pattern, checks.Before("owned by ", c.Owner, " ")),
		Want:     "running",
		Got:      "not running",
	}}
}
