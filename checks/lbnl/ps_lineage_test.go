package lbnl

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// onJobs returns a scenario with a job, a process that has escaped from it, and a process with
// a parent that is not visible.
func onJobs(name string, words []string, want ...checks.Finding) checktest.Scenario {
	files := checktest.UseNode(
		checktest.UseProc{PID: 1, Args: "/sbin/init"},
		checktest.UseProc{PID: 2, Args: "[kthreadd]"},
		checktest.UseProc{PID: 50, Parent: 1, Args: "slurmstepd: [12.0]"},
		checktest.UseProc{PID: 51, Parent: 50, UID: 5001, Args: "shell"},
		checktest.UseProc{PID: 52, Parent: 51, UID: 5001, Args: "a.out x"},
		checktest.UseProc{PID: 60, Parent: 1, UID: 120, Args: "ntpd"},
		checktest.UseProc{PID: 70, Parent: 1, UID: 5002, Args: "rogue slurmstepd"},
		checktest.UseProc{PID: 71, UID: 6789, Args: "outside"},
		checktest.UseProc{PID: 72, Parent: 4711, UID: 6789, Args: "adopted"},
	)
	return checktest.Scenario{Name: name, Words: words, Want: want, Files: files, Vars: map[string]string{"NHC_RM": "slurm"}}
}

func rogue(pid int, user, command string) checks.Finding {
	return checks.Finding{Code: "ps.lineage.rogue", Severity: checks.Fail, Device: checks.Device{Kind: "process", Name: command}, Got: user,
		Message: fmt.Sprintf("check_ps_userproc_lineage:  %s's \"%s\" process is rogue. (PID %d)", user, command, pid)}
}

func TestPSUserProcLineage(t *testing.T) { checktest.Run(t, "check_ps_userproc_lineage") }

var _ = checktest.Table("check_ps_userproc_lineage", func(string) (list []checktest.Scenario) {
	bob, outside, shell := rogue(70, "bob", "rogue"), rogue(71, "6789", "outside"), rogue(51, "alice", "shell")
	killed := func(f checks.Finding) checks.Finding { return wasKilled(f, "ps.lineage.killed", "rogue") }
	noManager := checks.Finding{Code: "ps.lineage.rm", Severity: checks.Fail, Remedy: checks.FixConfig,
		Message: "check_ps_userproc_lineage:  This check requires a supported resource manager (e.g., Slurm, TORQUE, SGE, LSF)"}
	list = append(list,
		onJobs("descendants", checktest.Of("-n", "bob", "-u", "6789")).OrTable(map[string]any{"ignore_users": "bob", "ignore_uids": int64(6789)}),
		onJobs("all lists", checktest.Of("-c", "rogue", "-p", "71", "-n", "x")).
			OrTable(map[string]any{"ignore_commands": "rogue", "ignore_pids": int64(71), "ignore_users": "x"}),
		onJobs("commas separate users", checktest.Of("-n", "alice,bob", "-u", "1,6789", "kill")).Leaving(nil),
		onJobs("a rogue", nil, bob),
		with(onJobs("a slurmstepd of a user's making", checktest.Of("-c", "rogue slurmstepd:", "-u", "6789"), shell), "/proc/50/status", "Name:\tslurmstepd\nState:\tS\nUid:\t5001\t5001\t5001\t5001\nVmSize:\t1 kB\n"),
		onJobs("names are compared whole", checktest.Of("-n", "bobby", "-c", "rogue.sh", "-u", "15002"), bob),
		onJobs("outside of every line of ancestors", checktest.Of("-c", "rogue"), outside),
		onJobs("log syslog", checktest.Of("log", "syslog"), warned(bob, ""), toSyslog(bob), warned(outside, ""), toSyslog(outside)).
			OrTable(map[string]any{"actions": []any{"log", "syslog"}}),
		onJobs("log kill die", checktest.Of("log", "kill", "die"), killed(bob), warned(bob, ""), bob).Leaving(nil),
		onJobs("kill", checktest.Of("kill"), killed(bob), killed(outside)).Leaving(nil).OrTable(map[string]any{"actions": "kill"}),
		onJobs("ignore", checktest.Of("ignore", "die")),

		with(onJobs("NHC_AUTH_USERS", checktest.Of("-u", "6789")), "NHC_AUTH_USERS", "root,bob"),
		with(onJobs("a longer name in NHC_AUTH_USERS", nil, bob), "NHC_AUTH_USERS", "bobby bob1 jimbob"),
		with(onJobs("MAX_SYS_UID", nil, outside), "MAX_SYS_UID", "5002"),
		with(onJobs("RM_DAEMON_MATCH", nil, shell), "RM_DAEMON_MATCH", `/\bmyrm\b/`),
		with(onJobs("RM_DAEMON_MATCH that every process descends from", checktest.Of("-u", "6789")), "RM_DAEMON_MATCH", "*init"),
		with(onJobs("the daemon's own processes", nil, shell), "RM_DAEMON_MATCH", "/rogue|outside/"),
		with(onJobs("TORQUE", nil, shell), "NHC_RM", "pbs"),
		with(onJobs("TORQUE's daemon", checktest.Of("-c", "rogue outside")), "NHC_RM", "pbs", "/proc/50/cmdline", "/usr/sbin/pbs_mom\x00"),
		with(onJobs("Grid Engine", checktest.Of("-c", "rogue outside")), "NHC_RM", "sge", "/proc/50/cmdline", "sge_shepherd-12\x00-bg\x00"),
		with(onJobs("LSF", checktest.Of("-c", "rogue outside")), "NHC_RM", "lsf", "/proc/50/cmdline", "/opt/lsf/res\x00"),
		with(onJobs("a manager of no known daemon", nil, shell), "NHC_RM", "other"),
		with(onJobs("no resource manager", checktest.Of("kill"), noManager), "NHC_RM", "").Leaving(nil),
		with(onJobs("none", nil, noManager), "NHC_RM", "none"),

		onJobs("unknown option", checktest.Of("-z"), checktest.UsageFinding("check_ps_userproc_lineage:  Invalid option:  -z", "one of -c -u -n -p")),
		onJobs("option without its argument", checktest.Of("-c"), checktest.UsageFinding("check_ps_userproc_lineage:  Option -c requires an argument.", "")),
	)
	broken := func(s checktest.Scenario) checktest.Scenario {
		s.Broken = true
		return s
	}
	list = append(list,
		broken(with(onJobs("garbage", checktest.Of("-c", "outside"), checktest.Unknown("parse /proc/51/stat: invalid argument"), bob), "/proc/51/stat", "51 (")),
		checktest.Scenario{Name: "no /proc", Broken: true, Want: []checks.Finding{checktest.Unknown("read /proc: no such file or directory")}},
		broken(with(onJobs("login.defs cannot be read", nil, checktest.Unknown("read /: is a directory")), "LOGIN_DEFS_SRC", "/")),
	)
	return list
})

// Commands, uids and process IDs of one line hold for later lines; users do not. With -f nothing
// holds for later lines.
func TestLineageListsPersist(t *testing.T) {
	t.Parallel()
	s := onJobs("", nil)
	root := s.Build(t)
	for _, c := range []struct {
		forked string
		lines  []psLineage
		want   []int
	}{
		{"0", []psLineage{{}, {IgnoreCommands: []string{"rogue"}}, {IgnorePIDs: []string{"71"}}, {}}, []int{1, 1, 0, 0}},
		{"0", []psLineage{{IgnoreUIDs: []string{"6789"}}, {IgnoreUsers: []string{"bob"}}, {}}, []int{1, 0, 1}},
		{"1", []psLineage{{IgnoreCommands: []string{"rogue", "outside"}}, {}}, []int{0, 1}},
	} {
		env := &checks.Env{Host: probe.NewHost(root), Vars: map[string]string{"NHC_RM": "slurm", "NHC_CHECK_FORKED": c.forked}}
		var got []int
		for i := range c.lines {
			got = append(got, len(c.lines[i].Run(t.Context(), env)))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("forked %s: findings of each line (-want +got):\n%s", c.forked, diff)
		}
	}
}

func TestListed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		list, name string
		want       bool
	}{
		{"root nobody", "nobody", true}, {"root nobody", "root", true}, {"root,bob", "bob", true}, {"bob", "bob", true},
		{"bobby bob", "bob", true}, {"bobby", "bob", false}, {"jimbob", "bob", false}, {"x-bob-y", "bob", true},
		{"bob1 1bob", "bob", false}, {"", "bob", false}, {"bob", "", false}, {"aXb", "a.b", false}, {"aab ab", "ab", true},
	} {
		if got := listed(c.list, c.name); got != c.want {
			t.Errorf("listed(%q, %q) = %v", c.list, c.name, got)
		}
	}
}
