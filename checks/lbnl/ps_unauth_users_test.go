package lbnl

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// usersNode returns a node with processes of the system, of alice, bob and a user without
// account, and a squeue that prints the file squeue.
func usersNode() map[string]string {
	files := checktest.UseNode(
		checktest.UseProc{PID: 1, Args: "/sbin/init"},
		checktest.UseProc{PID: 100, UID: 5001, Args: "wrf.exe -np 96"},
		checktest.UseProc{PID: 101, UID: 5002, Args: "python"},
		checktest.UseProc{PID: 102, UID: 120, Args: "ntpd"},
		checktest.UseProc{PID: 103, UID: 6789, Args: "noname"},
	)
	files["usr/bin/squeue"] = "#!/bin/sh\necho squeue \"$@\" >> {root}/log\ncat {root}/squeue 2>&-\ncat {root}/errors >&2 2>&-\n[ ! -f {root}/rc ] || exit $(cat {root}/rc)\n"
	return files
}

func onUsers(name string, words []string, want ...checks.Finding) checktest.Scenario {
	return checktest.Scenario{Name: name, Words: words, Want: want, Files: usersNode(), Vars: map[string]string{"PWD": "/", "HOSTNAME_S": "node01"}}
}

// with sets variables, and files if the name begins with a slash.
func with(s checktest.Scenario, pairs ...string) checktest.Scenario {
	s.Files, s.Vars = maps.Clone(s.Files), maps.Clone(s.Vars)
	for pair := range slices.Chunk(pairs, 2) {
		if file, ok := strings.CutPrefix(pair[0], "/"); ok {
			s.Files[file] = pair[1]
		} else {
			s.Vars[pair[0]] = pair[1]
		}
	}
	return s
}

// queried returns the recorded calls of squeue.
func queried(s checktest.Scenario, lines string) checktest.Scenario {
	s.Leaves = map[string]string{"log": lines}
	return s
}

func unauthorized(pid int, user, command string) checks.Finding {
	return checks.Finding{Code: "ps.user.unauthorized", Severity: checks.Fail, Device: checks.Device{Kind: "process", Name: command}, Got: user,
		Message: fmt.Sprintf("check_ps_unauth_users:  %s's \"%s\" process is unauthorized. (PID %d)", user, command, pid)}
}

// wasKilled returns the OK finding about a killed process.
func wasKilled(f checks.Finding, code, state string) checks.Finding {
	f.Code, f.Severity = code, checks.OK
	f.Message = strings.Replace(f.Message, "is "+state, "is "+state+" and was killed", 1)
	return f
}

func toSyslog(f checks.Finding) checks.Finding {
	f.Severity, f.Syslog = checks.Warn, true
	return f
}

func TestPSUnauthUsers(t *testing.T) { checktest.Run(t, "check_ps_unauth_users") }

var _ = checktest.Table("check_ps_unauth_users", func(string) []checktest.Scenario {
	alice, bob, none := unauthorized(100, "alice", "wrf.exe"), unauthorized(101, "bob", "python"), unauthorized(103, "6789", "noname")
	killed := func(f checks.Finding) checks.Finding { return wasKilled(f, "ps.user.killed", "unauthorized") }
	return []checktest.Scenario{
		onUsers("no user has jobs", nil, alice),
		onUsers("listed", checktest.Of("-n", "alice", "-n", "bob", "-u", "6789")).
			OrTable(map[string]any{"ignore_users": []any{"alice", "bob"}, "ignore_uids": int64(6789)}),
		onUsers("all lists", checktest.Of("-c", "wrf.exe", "-u", "5002", "-p", "103")).
			OrTable(map[string]any{"ignore_commands": "wrf.exe", "ignore_uids": "5002", "ignore_pids": int64(103)}),
		onUsers("a value may be a list", checktest.Of("-n", "alice bob 6789")),
		onUsers("parts of values do not count", checktest.Of("-c", "/usr/bin/python3:wrf.exe", "-u", "15001", "-n", "malice", "-p", "1001"), alice),
		onUsers("commas separate users", checktest.Of("-n", "alice,bob, 6789", "kill")).Leaving(nil),
		onUsers("commas separate uids", checktest.Of("-u", "5001,5002", "-n", "6789", "kill")).Leaving(nil),
		onUsers("commas separate process IDs", checktest.Of("-p", "100,101,103", "kill")).Leaving(nil),
		onUsers("commas separate commands", checktest.Of("-c", "wrf.exe,python,noname", "kill")).Leaving(nil),
		onUsers("characters that no user name has separate", checktest.Of("-n", "alice:bob;6789", "-u", "1|2", "kill")).Leaving(nil),
		onUsers("parts between commas do not count", checktest.Of("-n", "malice,alice2"), alice),
		onUsers("the last one", checktest.Of("-n", "alice", "-n", "bob"), none),
		with(onUsers("NHC_AUTH_USERS", nil, none), "NHC_AUTH_USERS", "root bob alice"),
		with(onUsers("NHC_AUTH_USERS with commas", checktest.Of("kill")), "NHC_AUTH_USERS", "root,bob,alice,6789").Leaving(nil),
		with(onUsers("MAX_SYS_UID", nil, none), "MAX_SYS_UID", "5002"),

		onUsers("log", checktest.Of("log"), warned(alice, ""), warned(bob, ""), warned(none, "")).OrTable(map[string]any{"actions": "log"}),
		onUsers("log syslog die", checktest.Of("log", "syslog", "die"), warned(alice, ""), toSyslog(alice), alice).
			OrTable(map[string]any{"actions": []any{"log", "syslog", "die"}}),
		onUsers("kill", checktest.Of("kill"), killed(alice), killed(bob), killed(none)).Leaving(nil).OrTable(map[string]any{"actions": "kill"}),
		with(onUsers("pam_slurm_adopt: a job's process is not killed", checktest.Of("kill"), checks.Finding{Code: "ps.action.failed", Severity: checks.Warn,
			Message: "check_ps_unauth_users:  process ID 100 not killed: it belongs to job 9, which runs here"}, killed(bob), killed(none)), "/proc/100/cgroup", "0::/system.slice/slurmstepd.scope/job_9/step_extern\n", "/proc/101/cgroup", "0::/system.slice/slurmstepd.scope/job_8/step_0\n",
			"/proc/50/cmdline", "slurmstepd: [9.extern]\x00", "/proc/50/stat", "50 (slurmstepd) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 0 0 0 0 0\n",
			"/proc/50/status", "Name:\tslurmstepd\nState:\tS\nUid:\t0\t0\t0\t0\nVmSize:\t1 kB\n").Leaving(nil),
		onUsers("die ends", checktest.Of("log kill die"), killed(alice), warned(alice, ""), alice).Leaving(nil),
		onUsers("nothing after die", checktest.Of("die", "kill", "log"), alice).Leaving(nil),
		onUsers("ignore ends the actions", checktest.Of("syslog", "ignore", "die"), toSyslog(alice), toSyslog(bob), toSyslog(none)),
		onUsers("unknown action", checktest.Of("shout")),
		with(onUsers("SYS_UID_MAX spares a daemon above UID_MIN", checktest.Of("kill"), killed(none)), "/etc/login.defs", "UID_MIN 500\nSYS_UID_MAX 5002\n").Leaving(nil),

		onUsers("unknown option", checktest.Of("-z"), checktest.UsageFinding("check_ps_unauth_users:  Invalid option:  -z", "one of -c -u -n -p")),
		onUsers("no option behind the actions", checktest.Of("kill", "-c"), killed(alice), killed(bob), killed(none)).Leaving(nil),
		onUsers("option without its argument", checktest.Of("-c"), checktest.UsageFinding("check_ps_unauth_users:  Option -c requires an argument.", "")),
		with(onUsers("MAX_SYS_UID is no number", checktest.Of("kill"), checktest.ValueFinding("check_ps_unauth_users", "MAX_SYS_UID", "x", "a uid")), "MAX_SYS_UID", "x").Leaving(nil),
		{Name: "no /proc", Broken: true, Want: []checks.Finding{checktest.Unknown("read /proc: no such file or directory")}},
		{Name: "garbage", Broken: true, Files: map[string]string{"proc/7/status": "\xff\x00", "proc/9/cmdline": "x\x00"}},
	}
})

var _ = checktest.Table("check_ps_unauth_users", func(string) (list []checktest.Scenario) {
	alice, bob, none := unauthorized(100, "alice", "wrf.exe"), unauthorized(101, "bob", "python"), unauthorized(103, "6789", "noname")
	doubt := func(why string) checks.Finding {
		return checks.Finding{Code: "ps.users.unknown", Severity: checks.Unknown, Got: why, Message: "check_ps_unauth_users:  not checked: the owners of this node's jobs are unknown: " + why}
	}
	slurm := func(name, queue string, words []string, want ...checks.Finding) checktest.Scenario {
		return queried(with(onUsers(name, words, want...), "NHC_RM", "slurm", "/squeue", queue), "squeue -w node01 --noheader -o %u\n")
	}
	list = append(list,
		slurm("Slurm", "alice\nbob\nbob\n 6789 \n", nil),
		slurm("Slurm: names are compared whole", "bobby\nbob\nmalice\n", checktest.Of("log"), warned(alice, ""), warned(none, "")),
		with(slurm("Slurm fails", "", nil, alice), "/rc", "1"),
		with(slurm("Slurm fails: nothing is killed", "bob\n", checktest.Of("log", "kill"), doubt("/usr/bin/squeue ended with status 1"),
			warned(alice, ""), warned(none, "")), "/rc", "1").Leaving(nil),
		with(slurm("Slurm: slurmctld does not answer", "", nil, doubt("/usr/bin/squeue ended with status 1: slurm_load_jobs error: Unable to contact slurm controller (connect failure)")), "/rc", "1", "/errors", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"),
		with(slurm("Slurm: squeue finds no slurm.conf", "", checktest.Of("kill"), doubt("/usr/bin/squeue ended with status 1: squeue: fatal: Could not establish a configuration source")), "/rc", "1", "/errors", "squeue: error: fetch_config: DNS SRV lookup failed\nsqueue: fatal: Could not establish a configuration source\n").Leaving(nil),
		with(slurm("Slurm: a warning beside the answer", "alice\nbob\n6789\n", nil), "/errors", "squeue: warning: old\n"),
		queried(with(onUsers("Slurm: everything is the site's", checktest.Of("-u", "6789"), alice), "NHC_RM", "slurm", "/squeue", "bob\n",
			"SQUEUE_CMD", "/usr/bin/squeue -x", "SQUEUE_NODE", "-w n1,n2", "SQUEUE_FMT_ARGS", "-h"), "squeue -x -w n1,n2 -h\n"),
		queried(with(onUsers("Slurm: long host name", nil, alice), "NHC_RM", "slurm", "HOSTNAME_S", "", "HOSTNAME", "n7.cluster"), "squeue -w n7 --noheader -o %u\n"),
		with(onUsers("Slurm: no squeue", checktest.Of("kill", "die"), doubt("/bin/squeue ended with status 127"), alice), "NHC_RM", "slurm", "SQUEUE_CMD", "/bin/squeue").Leaving(nil),
	)
	const jobs = "/var/spool/torque/mom_priv/jobs/"
	list = append(list,
		with(onUsers("TORQUE", checktest.Of("-n", "6789")), "NHC_RM", "pbs", jobs+"1.JB", "PBS_O_LOGNAME=alice\n", jobs+"2.JB", "<?xml?>\n<euser>bob</euser>\n"),
		with(onUsers("TORQUE: one user", checktest.Of("-n", "6789"), alice), "NHC_RM", "pbs", jobs+"1.JB", "PBS_O_LOGNAME=bob\n"),
		with(onUsers("TORQUE: a home of its own", checktest.Of("-n", "6789"), alice), "NHC_RM", "pbs", "PBS_SERVER_HOME", "/t", "/t/mom_priv/jobs/1.JB", "PBS_O_LOGNAME=bob\n"),
		with(onUsers("TORQUE: a path of its own", checktest.Of("-n", "6789"), alice), "NHC_RM", "pbs", "JOBFILE_PATH", "/j", "/j/1.JB", "PBS_O_LOGNAME=bob\n"),
		with(onUsers("TORQUE: where the lines have gone", checktest.Of("-n", "6789"), alice), "NHC_RM", "pbs", "PWD", "/w", "/w/jobs/1.JB", "PBS_O_LOGNAME=bob\n"),
		with(onUsers("TORQUE: no jobs", checktest.Of("log"), warned(alice, ""), warned(bob, ""), warned(none, "")), "NHC_RM", "pbs"),
		with(onUsers("TORQUE: job files that cannot be read", checktest.Of("kill"), doubt("read /f: not a directory")), "NHC_RM", "pbs", "JOBFILE_PATH", "/f", "/f", "").Leaving(nil),
		with(onUsers("another resource manager", nil, alice), "NHC_RM", "lsf"),
	)
	return list
})

// The resource manager is asked only once, even if it does not answer. Without an answer, no
// process is reported.
func TestJobUsersAreAskedForOnce(t *testing.T) {
	t.Parallel()
	s := with(onUsers("", nil), "NHC_RM", "slurm", "/usr/bin/squeue", "#!/bin/sh\necho asked >> {root}/log\nexec sleep 60\n")
	root := s.Build(t)
	env := &checks.Env{Host: probe.NewHost(root), Vars: s.Vars, Timeout: 8 * time.Second}
	for range 2 {
		start := time.Now()
		findings := (&psUnauthUsers{Actions: []string{"kill"}}).Run(t.Context(), env)
		want := []checks.Finding{usersUnknown("check_ps_unauth_users", "/usr/bin/squeue gave no answer in 4s")}
		if diff := cmp.Diff(want, findings); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("took %v", took)
		}
	}
	checktest.AwaitContent(t, root+"/log", "asked\n")
}
