package lbnl

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// psLineage checks that the processes of ordinary users descend from the daemon of the
// resource manager. Users up to MAX_SYS_UID and those in NHC_AUTH_USERS are skipped. The match
// string RM_DAEMON_MATCH finds the daemon; its default depends on NHC_RM. ACTIONS are log,
// syslog, kill, die or ignore, in their order, for each process that does not descend from it;
// the default is die, which ends the check. Blanks or commas separate the values of an option.
// Later lines with this check also skip the processes that -c, -u and -p name.
//
//	node* || check_ps_userproc_lineage -c /usr/lib/systemd/systemd log syslog kill
type psLineage struct {
	IgnoreCommands []string `opt:"c" toml:"ignore_commands"` // first words of command lines to skip
	IgnoreUIDs     []string `opt:"u" toml:"ignore_uids"`     // uids to skip
	IgnoreUsers    []string `opt:"n" toml:"ignore_users"`    // users to skip
	IgnorePIDs     []string `opt:"p" toml:"ignore_pids"`     // process IDs to skip
	Actions        []string `arg:"*" toml:"actions"`         // log, syslog, die, kill, ignore
}

const lineageName = "check_ps_userproc_lineage"

func init() {
	checks.Register(checks.Info{
		Name:     lineageName,
		Usage:    userActionsUsage,
		Summary:  "processes of users descend from the resource manager",
		Lane:     checks.Local,
		New:      func() checks.Check { return &psLineage{} },
		Acts:     func(c checks.Check) bool { return actionsOf(c.(*psLineage).Actions).kills() },
		BadUsage: checks.UsageOf(lineageName),
		Do: func() map[string]string {
			return map[string]string{
				"ps.lineage.rogue":  "Ask the user whether the process was left behind by a job or started from a login outside the resource manager, and end it.",
				"ps.lineage.killed": "No action: the line requests the kill.",
				"ps.lineage.rm":     "Set NHC_RM to slurm, pbs, sge or lsf, or remove the line.",
				"ps.action.failed":  checks.DoActionFailed,
			}
		},
		Vars: map[string]string{"NHC_AUTH_USERS": "root nobody", "MAX_SYS_UID": "", "LOGIN_DEFS_SRC": "/etc/login.defs", "SQUEUE_CMD": "/usr/bin/squeue", "SQUEUE_NODE": "", "SQUEUE_FMT_ARGS": "--noheader -o %u", "PBS_SERVER_HOME": "/var/spool/torque", "JOBFILE_PATH": "", "RM_DAEMON_MATCH": ""},
	})
}

// daemons are the processes that start jobs, by resource manager. The shepherds of Grid Engine
// survive a restart of their execd, so both count. Its daemons can run as an ordinary user. The
// other daemons run as root: a process of another user with that name does not count.
var daemons = [...]struct {
	manager, match string
	root           bool
}{
	{"pbs", `/\bpbs_mom\b/`, true},
	{"slurm", `/\bslurmstepd\b/`, true},
	{"sge", `/\bsge_(execd|shepherd)\b/`, false},
	{"lsf", `/\bres\b/`, true},
}

func (c *psLineage) Run(_ context.Context, env *checks.Env) []checks.Finding {
	lists := c.lists(env)
	procs, err := probe.Processes(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	manager := env.Lookup("NHC_RM")
	if manager == "" || manager == "none" {
		return []checks.Finding{checks.Finding{
			Code:     "ps.lineage.rm",
			Severity: checks.Fail,
			Remedy:   checks.FixConfig,
		}.Describe(lineageName, "This check requires a supported resource manager (e.g., Slurm, TORQUE, SGE, LSF)")}
	}
	system, failed := checks.MaxSystemUID(env, lineageName)
	if failed != nil {
		return failed
	}
	l := lineage{env: env, procs: procs, daemon: env.Lookup("RM_DAEMON_MATCH")}
	for _, d := range daemons {
		if l.daemon == "" && d.manager == manager {
			l.daemon, l.root = d.match, d.root
		}
	}
	l.match = env.Matcher(&l.findings)
	todo := actionsOf(c.Actions)
	for _, p := range procs {
		if int64(p.UID) <= system {
			continue
		}
		s := subjectOf(env, p)
		if lists.has(s) || listed(authUsers(env), s.user) || !l.rogue(p) {
			continue
		}
		if p.Unread && (len(lists.commands) > 0 || !l.root) { // it may have a command of the list, or be the daemon
			l.doubt = cmp.Or(l.doubt, &p)
			continue
		}
		taken, over := todo.take(s.finding("ps.lineage.rogue", lineageName, "rogue"), func() {
			l.findings = append(l.findings, s.kill(env, "ps.lineage.killed", lineageName, "rogue")...)
		})
		l.findings = append(l.findings, taken...)
		if over {
			return l.findings
		}
	}
	if l.doubt != nil {
		l.findings = append(l.findings, unread(env, lineageName, *l.doubt))
	}
	return l.findings
}

// lists returns the lists of this line plus, except for the users, those of earlier lines. A
// line that runs in its own process (nhc -f) leaves nothing to later lines, as in LBNL NHC.
func (c *psLineage) lists(env *checks.Env) ignored {
	kept := probe.Kept[ignored](env.Host, lineageName)
	lists := ignored{
		commands: slices.Concat(kept.commands, commands(c.IgnoreCommands)),
		uids:     slices.Concat(kept.uids, values(c.IgnoreUIDs...)),
		users:    values(c.IgnoreUsers...),
		pids:     slices.Concat(kept.pids, values(c.IgnorePIDs...)),
	}
	if env.Lookup("NHC_CHECK_FORKED") != "1" {
		kept.commands, kept.uids, kept.pids = lists.commands, lists.uids, lists.pids
	}
	return lists
}

// listed reports whether a list contains a name as a whole word: between characters that are
// neither letters nor digits.
func listed(list, name string) bool {
	for at := 0; name != ""; at++ {
		i := strings.Index(list[at:], name)
		if i < 0 {
			return false
		}
		at += i
		end := at + len(name)
		if (at == 0 || !alphanumeric(list[at-1])) && (end == len(list) || !alphanumeric(list[end])) {
			return true
		}
	}
	return false
}

func alphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// lineage follows processes to their ancestors.
type lineage struct {
	env      *checks.Env
	procs    []probe.Process
	daemon   string // match string
	root     bool   // the daemon runs as root
	match    func(s, expr string) bool
	findings []checks.Finding
	doubt    *probe.Process // its command line decides, and could not be read
}

// rogue reports whether a process neither is the daemon nor descends from it. It returns false
// for a process that has ended, or with ancestors that have changed since the processes were
// listed.
func (l *lineage) rogue(p probe.Process) bool {
	if !l.root && l.match(p.Command(), l.daemon) {
		return false
	}
	if l.daemon == "" {
		return true
	}
	for range l.procs {
		l.env.At("read the parent of process %d", p.PID)
		u, err := probe.ReadUsage(l.env.Host, p)
		if err != nil {
			l.note(err)
			return false
		}
		if u.Parent == 0 { // the parent is the kernel or outside of this PID namespace
			return true
		}
		parent, known := processOf(l.procs, u.Parent)
		if !known || l.match(parent.Args, l.daemon) && (!l.root || parent.UID == 0 && probe.RootsOwn(l.env.Host, parent.PID)) {
			return false
		}
		if parent.Unread && (!l.root || parent.UID == 0 && probe.RootsOwn(l.env.Host, parent.PID)) { // it may be the daemon
			l.doubt = cmp.Or(l.doubt, &parent)
			return false
		}
		if parent.PID == 1 {
			return true
		}
		p = parent
	}
	return false
}

// note records the error of a process that could not be checked.
func (l *lineage) note(err error) {
	if errors.Is(err, os.ErrProcessDone) {
		return
	}
	for _, f := range checks.Unreadable(err) {
		if !slices.Contains(l.findings, f) {
			l.findings = append(l.findings, f)
		}
	}
}
