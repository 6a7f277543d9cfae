package lbnl

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// A process whose command line cannot be read is known by its name of 15 bytes. It may be the one that a line
// is about: then the check neither fails nor acts.
func TestUnreadProcesses(t *testing.T) {
	const first = 1 << 28
	files := map[string]string{"etc/passwd": "root:x:0:0::/root:/bin/sh\nalice:x:5001:100::/:/bin/sh\n"}
	var calls []string
	process := func(pid, uid, parent int, name string, locked bool, args ...string) {
		dir := fmt.Sprintf("proc/%d/", pid)
		files[dir+"stat"] = fmt.Sprintf("%d (%s) S %d 1 1 0 -1 0 0 0 0 0 900 0 0 0 20 0 1 0 %d 90000000 0 0 0\n", pid, name, parent, pid)
		files[dir+"status"] = fmt.Sprintf("Name:\t%s\nState:\tS\nUid:\t%[2]d\t%[2]d\t%[2]d\t%[2]d\nVmSize:\t1 kB\n", name, uid)
		files[dir+"cmdline"] = strings.Join(args, "\x00") + "\x00"
		if locked {
			calls = append(calls, fmt.Sprintf("read the memory of process %d, started at %d, of uid %d", pid, pid, uid))
		}
	}
	process(1, 0, 0, "systemd", false, "/sbin/init")
	process(first, 0, 1, "averyverylongda", true)
	process(first+1, 0, 1, "python3", true)
	process(first+2, 0, 1, "crond", false, "/usr/sbin/crond")
	process(first+3, 5001, 1, "telnetd", true)
	process(first+4, 5001, first+1, "a.out", false, "./a.out")
	h := probe.NewHost(probetest.Tree(t, files))
	h.SetStuck(calls)
	unknown := func(check string, pid int, name, user string) string {
		return fmt.Sprintf("%s:  not checked: the command line of process %d (%s) of user %s cannot be read", check, pid, name, user)
	}
	const daemon, service, black, unauth, line = "check_ps_daemon", "check_ps_service", "check_ps_blacklist", "check_ps_unauth_users", "check_ps_userproc_lineage"
	named := func(check string) string { return unknown(check, first, "averyverylongda", "root") }
	for _, c := range []struct {
		check checks.Check
		want  string // "" if it passes
	}{
		{&psDaemon{Daemon: "/usr/sbin/averyverylongdaemon", Owner: "root"}, named(daemon)},
		{&psDaemon{Daemon: "averyverylongd", Owner: "root"}, ""},
		{&psDaemon{Daemon: "firewalld"}, unknown(daemon, first+1, "python3", "root")},
		{&psDaemon{Daemon: "averyverylongdaemon", Owner: "alice"}, daemon + ":  Process averyverylongdaemon owned by alice not running"},
		{&psDaemon{Daemon: "crond"}, ""},
		{&psService{Service: []string{"averyverylongdaemon"}, Start: true, Owner: "root"}, named(service)},
		{&psService{Service: []string{"averyverylongdaemon"}, Kill: true}, named(service)},
		{&psService{Service: []string{"long"}, Daemon: "averyverylongdaemon", Match: "*/averyverylongdaemon", Restart: true}, named(service)},
		{&psService{Service: []string{"averyverylongdaemon"}, Owner: "alice"}, service + ":  Service averyverylongdaemon (process averyverylongdaemon) owned by alice not running"},
		{&psService{Service: []string{"crond"}, Start: true}, ""},
		{&psBlacklist{Daemon: "telnetd"}, black + ":  Process telnetd running"},
		{&psBlacklist{Daemon: "telnetd", Owner: "alice", Args: "-debug"}, unknown(black, first+3, "telnetd", "alice")},
		{&psBlacklist{Daemon: "in.rshd", Owner: "alice"}, unknown(black, first+3, "telnetd", "alice")},
		{&psBlacklist{Daemon: "in.rshd"}, unknown(black, first, "averyverylongda", "root")},
		{&psBlacklist{Daemon: "in.rshd", Owner: "!root"}, unknown(black, first+3, "telnetd", "alice")},
		{&psBlacklist{Daemon: "in.rshd", Owner: "bob"}, ""},
		{&psBlacklist{Daemon: "telnetd", Owner: "bob", Args: "-debug"}, ""},
		{&psUnauthUsers{IgnoreCommands: []string{"/usr/sbin/telnetd", "./a.out"}, Actions: []string{"kill", "die"}}, unknown(unauth, first+3, "telnetd", "alice")},
		{&psUnauthUsers{IgnoreCommands: []string{"telnetd", "./a.out"}}, ""},
		{&psUnauthUsers{}, unauth + ":  alice's \"telnetd\" process is unauthorized. (PID 268435459)"},
		{&psLineage{IgnoreCommands: []string{"telnetd"}, Actions: []string{"kill", "die"}}, unknown(line, first+1, "python3", "root")},
		{&psLineage{IgnoreUIDs: []string{"4"}, IgnoreCommands: []string{"/usr/sbin/telnetd"}, IgnorePIDs: []string{fmt.Sprint(first + 4)}}, unknown(line, first+3, "telnetd", "alice")},
		{&psUse{kind: useTime, Limit: "1s", Match: "!/^\\/usr/", Owner: "alice"}, "check_ps_time:  Process \"./a.out\" (268435460) of alice has consumed"},
		{&psUse{kind: useTime, Limit: "1s", Match: "/usr/*", Kill: true}, unknown("check_ps_time", first+3, "telnetd", "alice")},
	} {
		env := &checks.Env{Host: h, DryRun: true, Vars: map[string]string{"NHC_RM": "slurm", "NHC_AUTH_USERS": "root", "SQUEUE_CMD": "/bin/true", "NHC_CHECK_FORKED": "1", "MAX_SYS_UID": "999"}}
		var got []string
		for _, f := range c.check.Run(t.Context(), env) {
			got = append(got, f.Message)
		}
		if text := strings.Join(got, "; "); c.want == "" && got != nil || !strings.Contains(text, c.want) {
			t.Errorf("%+v: %q, want %q", c.check, text, c.want)
		}
		if held := env.NotDone(); held != nil {
			t.Errorf("%+v: %+v, want no action", c.check, held)
		}
	}
}
