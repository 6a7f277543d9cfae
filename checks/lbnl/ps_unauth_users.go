package lbnl

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// psUnauthUsers checks that every process belongs to a system user (uid up to MAX_SYS_UID), a
// user in NHC_AUTH_USERS, or a user with a job on this node by squeue or TORQUE's job files.
// ACTIONS are log, syslog, kill, die or ignore, in their order, for each other process; the
// default is die, which ends the check. Blanks or commas separate the values of an option. The
// check kills no process if the resource manager did not answer. JOBUSERS, or a function of the
// site, decides in place of the resource manager.
//
//	node* || check_ps_unauth_users -n munge log syslog
type psUnauthUsers struct {
	IgnoreCommands []string `opt:"c" toml:"ignore_commands"` // first words of command lines to skip
	IgnoreUIDs     []string `opt:"u" toml:"ignore_uids"`     // uids to skip
	IgnoreUsers    []string `opt:"n" toml:"ignore_users"`    // users to skip
	IgnorePIDs     []string `opt:"p" toml:"ignore_pids"`     // process IDs to skip
	Actions        []string `arg:"*" toml:"actions"`         // log, syslog, die, kill, ignore
}

const userActionsUsage = "[-c COMMAND] [-u UID] [-n USER] [-p PID] ... [log|syslog|die|kill|ignore ...]"

func init() {
	checks.Register(checks.Info{
		Name:     "check_ps_unauth_users",
		Usage:    userActionsUsage,
		Summary:  "only users with jobs have processes",
		Lane:     checks.Cmd, // squeue
		New:      func() checks.Check { return &psUnauthUsers{} },
		Acts:     func(c checks.Check) bool { return actionsOf(c.(*psUnauthUsers).Actions).kills() },
		BadUsage: checks.UsageOf("check_ps_unauth_users"),
		Do: func() map[string]string {
			return map[string]string{
				"ps.user.unauthorized": "End the user's processes, or find the job that left them behind.",
				"ps.user.killed":       "No action: the line requests the kill.",
				"ps.users.unknown":     "Check whether slurmctld answers: scontrol ping. Until it does, the check cannot determine which users may have processes here.",
				"ps.action.failed":     checks.DoActionFailed,
			}
		},
		Vars: map[string]string{"NHC_AUTH_USERS": "root nobody", "MAX_SYS_UID": "", "LOGIN_DEFS_SRC": "/etc/login.defs", "SQUEUE_CMD": "/usr/bin/squeue", "SQUEUE_NODE": "", "SQUEUE_FMT_ARGS": "--noheader -o %u", "PBS_SERVER_HOME": "/var/spool/torque", "JOBFILE_PATH": ""},
	})
}

// subject is a process with its command and user as messages print them.
type subject struct {
	probe.Process
	command string
	user    string // or the uid, if it has no account
}

func subjectOf(env *checks.Env, p probe.Process) subject {
	return subject{Process: p, command: p.Command(), user: checks.OwnerOrUID(env, p)}
}

func (c *psUnauthUsers) Run(ctx context.Context, env *checks.Env) (findings []checks.Finding) {
	const name = "check_ps_unauth_users"
	lists := ignored{commands(c.IgnoreCommands), values(c.IgnoreUIDs...), values(c.IgnoreUsers...), values(c.IgnorePIDs...)}
	procs, err := probe.Processes(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	system, failed := checks.MaxSystemUID(env, name)
	if failed != nil {
		return failed
	}
	todo := actionsOf(c.Actions)
	// The shell sends these before the check, see __nhc_unauth_users: users or their uids, and uids.
	allowed, seen := env.Arrays["NHC_ALLOWED_USERS"], env.Arrays["NHC_SEEN_USERS"]
	var doubt *probe.Process
	for _, p := range procs {
		if int64(p.UID) <= system {
			continue
		}
		s, uid := subjectOf(env, p), fmt.Sprint(p.UID)
		if lists.has(s) || slices.Contains(allowed, uid) || len(seen) > 0 && !slices.Contains(seen, uid) {
			continue
		}
		users := &jobUsers{names: allowed}
		if len(allowed)+len(seen) == 0 {
			users = findJobUsers(ctx, env)
		}
		if slices.Contains(users.names, s.user) {
			continue
		}
		if users.mute {
			return append(findings, usersUnknown(name, users.doubt))
		}
		if p.Unread && len(lists.commands) > 0 { // which may have its command
			doubt = cmp.Or(doubt, &p)
			continue
		}
		taken, over := todo.take(s.finding("ps.user.unauthorized", name, "unauthorized"), func() {
			if users.doubt == "" {
				findings = append(findings, s.kill(env, "ps.user.killed", name, "unauthorized")...)
			} else if f := usersUnknown(name, users.doubt); !slices.Contains(findings, f) {
				findings = append(findings, f)
			}
		})
		findings = append(findings, taken...)
		if over {
			return findings
		}
	}
	if doubt != nil {
		findings = append(findings, unread(env, name, *doubt))
	}
	return findings
}

// usersUnknown reports that the owners of jobs are unknown.
func usersUnknown(check, why string) checks.Finding {
	return checks.Finding{
		Code:     "ps.users.unknown",
		Severity: checks.Unknown,
		Message:  fmt.Sprintf("%s:  not checked: the owners of this node's jobs are unknown: %s", check, why),
		Got:      why,
	}
}

// finding reports a process that must not be here.
func (s subject) finding(code, check, state string) checks.Finding {
	command := checks.Short(s.command)
	return checks.Finding{
		Code:    code,
		Device:  checks.Device{Kind: "process", Name: command},
		Message: fmt.Sprintf("%s:  %s's \"%s\" process is %s. (PID %d)", check, s.user, command, state, s.PID),
		Got:     s.user,
	}
}

// kill ends the process. The finding is OK, since LBNL NHC prints nothing about it.
func (s subject) kill(env *checks.Env, code, check, state string) (findings []checks.Finding) {
	checks.KillUser(env, check, s.Process, &findings)
	if findings == nil && !env.DryRun {
		f := s.finding(code, check, state+" and was killed")
		f.Severity = checks.OK
		findings = []checks.Finding{f}
	}
	return findings
}
