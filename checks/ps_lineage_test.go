package checks

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// onJobs is a line on a node with a job, something that has left it, and a
// process whose parent nobody sees.
func onJobs(name string, words []string, want ...Finding) scenario {
	files := useNode(
		useProc{pid: 1, args: "/sbin/init"},
		useProc{pid: 2, args: "[kthreadd]"},
		useProc{pid: 50, parent: 1, args: "slurmstepd: [12.0]"},
		useProc{pid: 51, parent: 50, uid: 5001, args: "shell"},
		useProc{pid: 52, parent: 51, uid: 5001, args: "a.out x"},
		useProc{pid: 60, parent: 1, uid: 120, args: "ntpd"},
		useProc{pid: 70, parent: 1, uid: 5002, args: "rogue slurmstepd"},
		useProc{pid: 71, uid: 6789, args: "outside"},
		useProc{pid: 72, parent: 4711, uid: 6789, args: "adopted"},
	)
	return scenario{name: name, words: words, want: want, files: files, vars: map[string]string{"NHC_RM": "slurm"}}
}

func rogue(pid int, user, command string) Finding {
	return Finding{Code: "ps.lineage.rogue", Severity: Fail, Device: Device{Kind: "process", Name: command}, Got: user,
		Message: fmt.Sprintf("check_ps_userproc_lineage:  %s's \"%s\" process is rogue. (PID %d)", user, command, pid)}
}

func TestPSUserProcLineage(t *testing.T) { testCheck(t, "check_ps_userproc_lineage") }

var _ = table("check_ps_userproc_lineage", func(string) (list []scenario) {
	bob, outside, shell := rogue(70, "bob", "rogue"), rogue(71, "6789", "outside"), rogue(51, "alice", "shell")
	killed := func(f Finding) Finding { return wasKilled(f, "ps.lineage.killed", "rogue") }
	noManager := Finding{Code: "ps.lineage.rm", Severity: Fail, Remedy: FixConfig,
		Message: "check_ps_userproc_lineage:  This check requires a supported resource manager (e.g., Slurm, TORQUE, SGE, LSF)"}
	list = append(list,
		onJobs("descendants", of("-n", "bob", "-u", "6789")).orTable(map[string]any{"ignore_users": "bob", "ignore_uids": int64(6789)}),
		onJobs("all lists", of("-c", "rogue", "-p", "71", "-n", "x")).
			orTable(map[string]any{"ignore_commands": "rogue", "ignore_pids": int64(71), "ignore_users": "x"}),
		onJobs("a rogue", nil, bob),
		onJobs("a slurmstepd of a user's making", of("-c", "rogue slurmstepd:", "-u", "6789"), shell).with("/proc/50/status", "Name:\tslurmstepd\nState:\tS\nUid:\t5001\t5001\t5001\t5001\nVmSize:\t1 kB\n"),
		onJobs("names are compared whole", of("-n", "bobby", "-c", "rogue.sh", "-u", "15002"), bob),
		onJobs("outside of every line of ancestors", of("-c", "rogue"), outside),
		onJobs("log syslog", of("log", "syslog"), warned(bob, ""), toSyslog(bob), warned(outside, ""), toSyslog(outside)).
			orTable(map[string]any{"actions": []any{"log", "syslog"}}),
		onJobs("log kill die", of("log", "kill", "die"), killed(bob), warned(bob, ""), bob).leaving(nil),
		onJobs("kill", of("kill"), killed(bob), killed(outside)).leaving(nil).orTable(map[string]any{"actions": "kill"}),
		onJobs("ignore", of("ignore", "die")),

		onJobs("NHC_AUTH_USERS", of("-u", "6789")).with("NHC_AUTH_USERS", "root,bob"),
		onJobs("a longer name in NHC_AUTH_USERS", nil, bob).with("NHC_AUTH_USERS", "bobby bob1 jimbob"),
		onJobs("MAX_SYS_UID", nil, outside).with("MAX_SYS_UID", "5002"),
		onJobs("RM_DAEMON_MATCH", nil, shell).with("RM_DAEMON_MATCH", `/\bmyrm\b/`),
		onJobs("RM_DAEMON_MATCH that every process descends from", of("-u", "6789")).with("RM_DAEMON_MATCH", "*init"),
		onJobs("the daemon's own processes", nil, shell).with("RM_DAEMON_MATCH", "/rogue|outside/"),
		onJobs("TORQUE", nil, shell).with("NHC_RM", "pbs"),
		onJobs("TORQUE's daemon", of("-c", "rogue outside")).with("NHC_RM", "pbs", "/proc/50/cmdline", "/usr/sbin/pbs_mom\x00"),
		onJobs("Grid Engine", of("-c", "rogue outside")).with("NHC_RM", "sge", "/proc/50/cmdline", "sge_shepherd-12\x00-bg\x00"),
		onJobs("LSF", of("-c", "rogue outside")).with("NHC_RM", "lsf", "/proc/50/cmdline", "/opt/lsf/res\x00"),
		onJobs("a manager of no known daemon", nil, shell).with("NHC_RM", "other"),
		onJobs("no resource manager", of("kill"), noManager).with("NHC_RM", "").leaving(nil),
		onJobs("none", nil, noManager).with("NHC_RM", "none"),

		onJobs("unknown option", of("-z"), usageFinding("check_ps_userproc_lineage:  Invalid option:  -z", "one of -c -u -n -p")),
		onJobs("option without its argument", of("-c"), usageFinding("check_ps_userproc_lineage:  Option -c requires an argument.", "")),
	)
	broken := func(s scenario) scenario {
		s.broken = true
		return s
	}
	list = append(list,
		broken(onJobs("garbage", of("-c", "outside"), unknown("parse /proc/51/stat: invalid argument"), bob).with("/proc/51/stat", "51 (")),
		scenario{name: "no /proc", broken: true, want: []Finding{unknown("read /proc: no such file or directory")}},
		broken(onJobs("login.defs cannot be read", nil, unknown("read /: is a directory")).with("LOGIN_DEFS_SRC", "/")),
	)
	return list
})

// What one line says of commands, uids and processes holds for the lines after
// it, what it says of users does not; and with -f nothing does.
func TestLineageListsPersist(t *testing.T) {
	t.Parallel()
	s := onJobs("", nil)
	root := s.build(t)
	for _, c := range []struct {
		forked string
		lines  []psLineage
		want   []int
	}{
		{"0", []psLineage{{}, {IgnoreCommands: []string{"rogue"}}, {IgnorePIDs: []string{"71"}}, {}}, []int{1, 1, 0, 0}},
		{"0", []psLineage{{IgnoreUIDs: []string{"6789"}}, {IgnoreUsers: []string{"bob"}}, {}}, []int{1, 0, 1}},
		{"1", []psLineage{{IgnoreCommands: []string{"rogue", "outside"}}, {}}, []int{0, 1}},
	} {
		env := &Env{Host: probe.NewHost(root), Vars: map[string]string{"NHC_RM": "slurm", "NHC_CHECK_FORKED": c.forked}}
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
