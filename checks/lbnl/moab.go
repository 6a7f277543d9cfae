package lbnl

import (
	"context"
	"errors"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// moabSched runs "mdiag -S -v" and checks the version of Moab's scheduler and its
// alerts. The variable MDIAG_CMD replaces the command mdiag.
//
//	login* || check_moab_sched -t 20 -v 7.2.9 -a '*'
type moabSched struct {
	Alert   string   `opt:"a" toml:"alert"`   // match string for the alerts to report
	Version string   `opt:"v" toml:"version"` // match string for the version
	Match   []string `opt:"m"`                // compared with quotes around it, as in LBNL NHC: never matches
	Limit   string   `opt:"t" toml:"timeout"` // time limit in whole seconds
	Surplus []string `arg:"*"`                // ignored, as in LBNL NHC
}

// moabRM runs "mdiag -R -v", which lists Moab's resource managers: the command
// must succeed. The check ignores their states, as LBNL NHC does. The variable
// MDIAG_CMD replaces the command mdiag.
//
//	login* || check_moab_rm -t 20
type moabRM struct {
	Match   []string `opt:"m"`                // compared with quotes around it, as in LBNL NHC: never matches
	Limit   string   `opt:"t" toml:"timeout"` // time limit in whole seconds
	Surplus []string `arg:"*"`                // ignored, as in LBNL NHC
}

// moabTorque runs "qmgr -c 'print server'": scheduling must be enabled on the
// TORQUE server.
//
//	login* || check_moab_torque
type moabTorque struct {
	Match   []string `opt:"m"`                // compared with quotes around it, as in LBNL NHC: never matches
	Limit   string   `opt:"t" toml:"timeout"` // time limit in whole seconds
	Surplus []string `arg:"*"`                // ignored, as in LBNL NHC
}

func init() {
	checks.Register(checks.Info{
		Name:     "check_moab_sched",
		Usage:    "[-t SECONDS] [-a ALERT] [-v VERSION]",
		Summary:  "Moab's scheduler answers and has no alert",
		Lane:     checks.Cmd,
		New:      func() checks.Check { return &moabSched{Limit: defaultLimit} },
		BadUsage: checks.UsageOf("check_moab_sched"),
		Do: func() map[string]string {
			return map[string]string{
				"moab.version": "Compare the output of mdiag -S -v with the version in nhc.conf, and correct the older one.",
				"moab.alert":   "Read the alert: run mdiag -S -v, and see moab.log on Moab's server.",
			}
		},
		Vars: map[string]string{"MDIAG_CMD": "mdiag"},
	})
	checks.Register(checks.Info{
		Name:     "check_moab_rm",
		Usage:    "[-t SECONDS]",
		Summary:  "Moab lists its resource managers",
		Lane:     checks.Cmd,
		New:      func() checks.Check { return &moabRM{Limit: defaultLimit} },
		BadUsage: checks.UsageOf("check_moab_rm"),
		Vars:     map[string]string{"MDIAG_CMD": "mdiag"},
	})
	checks.Register(checks.Info{
		Name:     "check_moab_torque",
		Usage:    "[-t SECONDS]",
		Summary:  "the TORQUE server answers and scheduling is enabled",
		Lane:     checks.Cmd,
		New:      func() checks.Check { return &moabTorque{Limit: defaultLimit} },
		BadUsage: checks.UsageOf("check_moab_torque"),
		Do: func() map[string]string {
			return map[string]string{
				"moab.torque.idle": "Enable scheduling unless it was disabled on purpose: qmgr -c 'set server scheduling = True'. TORQUE starts no jobs until then.",
			}
		},
	})
}

// moabVersion finds the version in mdiag -S; it does not match a version with a last number of
// two digits, as in LBNL NHC.
var (
	moabVersion      = checks.Lazily(`Version:[[:space:]]+([0-9]+\.[0-9]+\.[0-9])[[:space:]]+`)
	moabAlert        = checks.Lazily(`ALERT:[[:space:]]+(.*)$`)
	torqueScheduling = checks.Lazily(`set server scheduling = ([A-Za-z0-9]+)`)
)

func (c *moabSched) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	const name = "check_moab_sched"
	findings, lines := moabOutput(ctx, env, name, c.Limit, c.Match, append(mdiagCommand(env), "-S", "-v"))
	if len(findings) > 0 {
		return findings
	}
	match := env.Matcher(&findings)
	for _, line := range lines {
		if m := moabVersion().FindStringSubmatch(line); m != nil && c.Version != "" {
			if match(m[1], c.Version) {
				continue
			}
			return append(findings, checks.Finding{
				Code:     "moab.version",
				Severity: checks.Fail,
				Want:     c.Version,
				Got:      m[1],
			}.Phrase(name, "Moab version %s != expected version %s", m[1], c.Version))
		}
		if m := moabAlert().FindStringSubmatch(line); m != nil && match(m[1], c.Alert) {
			return append(findings, checks.Finding{
				Code:     "moab.alert",
				Severity: checks.Fail,
				Want:     "no alert that matches " + c.Alert,
				Got:      m[1],
			}.Phrase(name, "Moab Alert:  %s", m[1]))
		}
	}
	return findings
}

func (c *moabRM) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	findings, _ := moabOutput(ctx, env, "check_moab_rm", c.Limit, c.Match, append(mdiagCommand(env), "-R", "-v"))
	return findings
}

func (c *moabTorque) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	const name = "check_moab_torque"
	findings, lines := moabOutput(ctx, env, name, c.Limit, c.Match, []string{"qmgr", "-c", "print server"})
	if len(findings) > 0 {
		return findings
	}
	for _, line := range lines {
		m := torqueScheduling().FindStringSubmatch(line)
		if m == nil || m[1] == "True" {
			continue
		}
		return []checks.Finding{checks.Finding{
			Code:     "moab.torque.idle",
			Severity: checks.Fail,
			Want:     "True",
			Got:      m[1],
		}.Phrase(name, "Scheduling not active (set to %q) in TORQUE configuration", m[1])}
	}
	return nil
}

// mdiagCommand returns MDIAG_CMD, split into words.
func mdiagCommand(env *checks.Env) []string { return strings.Fields(env.Setting("MDIAG_CMD", "mdiag")) }

// moabOutput runs a command with check_cmd_output, as LBNL NHC does. LBNL NHC does not quote
// the arguments: a blank in a match string ends the options, and the quotes around the match
// string are compared as well.
func moabOutput(ctx context.Context, env *checks.Env, name, limit string, match, argv []string) ([]checks.Finding, []string) {
	if strings.TrimSpace(limit) == "" {
		limit = defaultLimit
	}
	words := append([]string{"-t"}, strings.Fields(limit)...)
	words = append(words, "-C", name)
	for _, m := range match {
		words = append(words, strings.Fields(`-m "`+m+`"`)...)
	}
	c := cmdOutput{Limit: defaultLimit, Name: "check_cmd_output"}
	if err := checks.Bind(&c, append(words, argv...)); err != nil {
		if bad, ok := errors.AsType[*checks.UsageError](err); ok {
			return []checks.Finding{checks.WrongOption(name, bad)}, nil
		}
		return checks.Unreadable(err), nil
	}
	findings, output := c.examine(ctx, env)
	return findings, outputLines(output)
}
