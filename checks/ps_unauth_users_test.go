package checks

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// usersNode has processes of the system, of alice, bob and a user without
// account, and a squeue that answers with the file of its name.
func usersNode() map[string]string {
	files := useNode(
		useProc{pid: 1, args: "/sbin/init"},
		useProc{pid: 100, uid: 5001, args: "wrf.exe -np 96"},
		useProc{pid: 101, uid: 5002, args: "python"},
		useProc{pid: 102, uid: 120, args: "ntpd"},
		useProc{pid: 103, uid: 6789, args: "noname"},
	)
	files["usr/bin/squeue"] = "#!/bin/sh\necho squeue \"$@\" >> {root}/log\ncat {root}/squeue 2>&-\ncat {root}/errors >&2 2>&-\n[ ! -f {root}/rc ] || exit $(cat {root}/rc)\n"
	return files
}

func onUsers(name string, words []string, want ...Finding) scenario {
	return scenario{name: name, words: words, want: want, files: usersNode(), vars: map[string]string{"PWD": "/", "HOSTNAME_S": "node01"}}
}

// with sets variables, and files if the name begins with a slash.
func (s scenario) with(pairs ...string) scenario {
	s.files, s.vars = maps.Clone(s.files), maps.Clone(s.vars)
	for pair := range slices.Chunk(pairs, 2) {
		if file, ok := strings.CutPrefix(pair[0], "/"); ok {
			s.files[file] = pair[1]
		} else {
			s.vars[pair[0]] = pair[1]
		}
	}
	return s
}

// queried are the questions that squeue has been asked.
func (s scenario) queried(lines string) scenario {
	s.leaves = map[string]string{"log": lines}
	return s
}

func unauthorized(pid int, user, command string) Finding {
	return Finding{Code: "ps.user.unauthorized", Severity: Fail, Device: Device{Kind: "process", Name: command}, Got: user,
		Message: fmt.Sprintf("check_ps_unauth_users:  %s's \"%s\" process is unauthorized. (PID %d)", user, command, pid)}
}

// wasKilled is what is known, but not said, after a process was killed.
func wasKilled(f Finding, code, state string) Finding {
	f.Code, f.Severity = code, OK
	f.Message = strings.Replace(f.Message, "is "+state, "is "+state+" and was killed", 1)
	return f
}

func toSyslog(f Finding) Finding {
	f.Severity, f.Syslog = Warn, true
	return f
}

func TestPSUnauthUsers(t *testing.T) { testCheck(t, "check_ps_unauth_users") }

var _ = table("check_ps_unauth_users", func(string) []scenario {
	alice, bob, none := unauthorized(100, "alice", "wrf.exe"), unauthorized(101, "bob", "python"), unauthorized(103, "6789", "noname")
	killed := func(f Finding) Finding { return wasKilled(f, "ps.user.killed", "unauthorized") }
	return []scenario{
		onUsers("nobody has jobs", nil, alice),
		onUsers("listed", of("-n", "alice", "-n", "bob", "-u", "6789")).
			orTable(map[string]any{"ignore_users": []any{"alice", "bob"}, "ignore_uids": int64(6789)}),
		onUsers("all lists", of("-c", "wrf.exe", "-u", "5002", "-p", "103")).
			orTable(map[string]any{"ignore_commands": "wrf.exe", "ignore_uids": "5002", "ignore_pids": int64(103)}),
		onUsers("a value may be a list", of("-n", "alice bob 6789")),
		onUsers("parts of values do not count", of("-c", "/usr/bin/python3:wrf.exe", "-u", "15001", "-n", "malice", "-p", "1001"), alice),
		onUsers("commas are no list", of("-n", "alice,bob"), alice),
		onUsers("the last one", of("-n", "alice", "-n", "bob"), none),
		onUsers("NHC_AUTH_USERS", nil, none).with("NHC_AUTH_USERS", "root bob alice"),
		onUsers("MAX_SYS_UID", nil, none).with("MAX_SYS_UID", "5002"),

		onUsers("log", of("log"), warned(alice, ""), warned(bob, ""), warned(none, "")).orTable(map[string]any{"actions": "log"}),
		onUsers("log syslog die", of("log", "syslog", "die"), warned(alice, ""), toSyslog(alice), alice).
			orTable(map[string]any{"actions": []any{"log", "syslog", "die"}}),
		onUsers("kill", of("kill"), killed(alice), killed(bob), killed(none)).leaving(nil).orTable(map[string]any{"actions": "kill"}),
		onUsers("pam_slurm_adopt: a job's process is not killed", of("kill"), Finding{Code: "ps.action.failed", Severity: Warn,
			Message: "check_ps_unauth_users:  process ID 100 not killed: it belongs to job 9, which runs here"}, killed(bob), killed(none)).
			with("/proc/100/cgroup", "0::/system.slice/slurmstepd.scope/job_9/step_extern\n", "/proc/101/cgroup", "0::/system.slice/slurmstepd.scope/job_8/step_0\n",
				"/proc/50/cmdline", "slurmstepd: [9.extern]\x00", "/proc/50/stat", "50 (slurmstepd) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 0 0 0 0 0\n",
				"/proc/50/status", "Name:\tslurmstepd\nState:\tS\nUid:\t0\t0\t0\t0\nVmSize:\t1 kB\n").leaving(nil),
		onUsers("die ends", of("log kill die"), killed(alice), warned(alice, ""), alice).leaving(nil),
		onUsers("nothing after die", of("die", "kill", "log"), alice).leaving(nil),
		onUsers("ignore ends the actions", of("syslog", "ignore", "die"), toSyslog(alice), toSyslog(bob), toSyslog(none)),
		onUsers("unknown action", of("shout")),
		onUsers("SYS_UID_MAX spares a daemon above UID_MIN", of("kill"), killed(none)).with("/etc/login.defs", "UID_MIN 500\nSYS_UID_MAX 5002\n").leaving(nil),

		onUsers("unknown option", of("-z"), usageFinding("check_ps_unauth_users:  Invalid option:  -z", "one of -c -u -n -p")),
		onUsers("no option behind the actions", of("kill", "-c"), killed(alice), killed(bob), killed(none)).leaving(nil),
		onUsers("option without its argument", of("-c"), usageFinding("check_ps_unauth_users:  Option -c requires an argument.", "")),
		onUsers("MAX_SYS_UID is no number", of("kill"), valueFinding("check_ps_unauth_users", "MAX_SYS_UID", "x", "a uid")).with("MAX_SYS_UID", "x").leaving(nil),
		{name: "no /proc", broken: true, want: []Finding{unknown("read /proc: no such file or directory")}},
		{name: "garbage", broken: true, files: map[string]string{"proc/7/status": "\xff\x00", "proc/9/cmdline": "x\x00"}},
	}
})

var _ = table("check_ps_unauth_users", func(string) (list []scenario) {
	alice, bob, none := unauthorized(100, "alice", "wrf.exe"), unauthorized(101, "bob", "python"), unauthorized(103, "6789", "noname")
	doubt := func(why string) Finding {
		return Finding{Code: "ps.users.unknown", Severity: Unknown, Got: why, Message: "check_ps_unauth_users:  could not tell who has jobs here: " + why}
	}
	slurm := func(name, queue string, words []string, want ...Finding) scenario {
		return onUsers(name, words, want...).with("NHC_RM", "slurm", "/squeue", queue).queried("squeue -w node01 --noheader -o %u\n")
	}
	list = append(list,
		slurm("Slurm", "alice\nbob\nbob\n 6789 \n", nil),
		slurm("Slurm: names are compared whole", "bobby\nbob\nmalice\n", of("log"), warned(alice, ""), warned(none, "")),
		slurm("Slurm fails", "", nil, alice).with("/rc", "1"),
		slurm("Slurm fails: nothing is killed", "bob\n", of("log", "kill"), doubt("/usr/bin/squeue ended with status 1"),
			warned(alice, ""), warned(none, "")).with("/rc", "1").leaving(nil),
		slurm("Slurm: slurmctld does not answer", "", nil, doubt("/usr/bin/squeue ended with status 1: slurm_load_jobs error: Unable to contact slurm controller (connect failure)")).
			with("/rc", "1", "/errors", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"),
		slurm("Slurm: squeue finds no slurm.conf", "", of("kill"), doubt("/usr/bin/squeue ended with status 1: squeue: fatal: Could not establish a configuration source")).
			with("/rc", "1", "/errors", "squeue: error: fetch_config: DNS SRV lookup failed\nsqueue: fatal: Could not establish a configuration source\n").leaving(nil),
		slurm("Slurm: a warning beside the answer", "alice\nbob\n6789\n", nil).with("/errors", "squeue: warning: old\n"),
		onUsers("Slurm: everything is the site's", of("-u", "6789"), alice).with("NHC_RM", "slurm", "/squeue", "bob\n",
			"SQUEUE_CMD", "/usr/bin/squeue -x", "SQUEUE_NODE", "-w n1,n2", "SQUEUE_FMT_ARGS", "-h").queried("squeue -x -w n1,n2 -h\n"),
		onUsers("Slurm: long host name", nil, alice).with("NHC_RM", "slurm", "HOSTNAME_S", "", "HOSTNAME", "n7.cluster").
			queried("squeue -w n7 --noheader -o %u\n"),
		onUsers("Slurm: no squeue", of("kill", "die"), doubt("/bin/squeue ended with status 127"), alice).
			with("NHC_RM", "slurm", "SQUEUE_CMD", "/bin/squeue").leaving(nil),
	)
	const jobs = "/var/spool/torque/mom_priv/jobs/"
	list = append(list,
		onUsers("TORQUE", of("-n", "6789")).with("NHC_RM", "pbs", jobs+"1.JB", "PBS_O_LOGNAME=alice\n", jobs+"2.JB", "<?xml?>\n<euser>bob</euser>\n"),
		onUsers("TORQUE: one user", of("-n", "6789"), alice).with("NHC_RM", "pbs", jobs+"1.JB", "PBS_O_LOGNAME=bob\n"),
		onUsers("TORQUE: a home of its own", of("-n", "6789"), alice).
			with("NHC_RM", "pbs", "PBS_SERVER_HOME", "/t", "/t/mom_priv/jobs/1.JB", "PBS_O_LOGNAME=bob\n"),
		onUsers("TORQUE: a path of its own", of("-n", "6789"), alice).with("NHC_RM", "pbs", "JOBFILE_PATH", "/j", "/j/1.JB", "PBS_O_LOGNAME=bob\n"),
		onUsers("TORQUE: where the lines have gone", of("-n", "6789"), alice).with("NHC_RM", "pbs", "PWD", "/w", "/w/jobs/1.JB", "PBS_O_LOGNAME=bob\n"),
		onUsers("TORQUE: no jobs", of("log"), warned(alice, ""), warned(bob, ""), warned(none, "")).with("NHC_RM", "pbs"),
		onUsers("TORQUE: job files that cannot be read", of("kill"), doubt("read /f: not a directory")).
			with("NHC_RM", "pbs", "JOBFILE_PATH", "/f", "/f", "").leaving(nil),
		onUsers("another resource manager", nil, alice).with("NHC_RM", "lsf"),
	)
	return list
})

// The resource manager is asked once, also if it does not answer: then nobody
// is accused of anything.
func TestJobUsersAreAskedForOnce(t *testing.T) {
	t.Parallel()
	s := onUsers("", nil).with("NHC_RM", "slurm", "/usr/bin/squeue", "#!/bin/sh\necho asked >> {root}/log\nexec sleep 60\n")
	root := s.build(t)
	env := &Env{Host: probe.NewHost(root), Vars: s.vars, Timeout: 8 * time.Second}
	for range 2 {
		start := time.Now()
		findings := (&psUnauthUsers{Actions: []string{"kill"}}).Run(t.Context(), env)
		want := []Finding{usersUnknown("check_ps_unauth_users", "/usr/bin/squeue gave no answer in 4s")}
		if diff := cmp.Diff(want, findings); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("took %v", took)
		}
	}
	awaitContent(t, root+"/log", "asked\n")
}
