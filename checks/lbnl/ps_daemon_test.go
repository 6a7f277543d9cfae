package lbnl

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// psNode returns a node with a few processes, among them eight ranks, one of them a zombie.
func psNode() map[string]string {
	files := map[string]string{"etc/passwd": "root:x:0:0::/root:/bin/sh\nalice:x:5001:100::/:/bin/sh\nntpsec:x:120:120::/:/bin/false\n"}
	process := func(pid, uid int, name, state string, args ...string) {
		dir := fmt.Sprintf("proc/%d/", pid)
		memory := ""
		if len(args) > 0 {
			memory = "VmSize:\t1000 kB\n"
		}
		files[dir+"status"] = fmt.Sprintf("Name:\t%s\nState:\t%s\nUid:\t%[3]d\t%[3]d\t%[3]d\t%[3]d\n%s", name, state, uid, memory)
		files[dir+"cmdline"] = strings.Join(args, "\x00") + "\x00"
	}
	process(1, 0, "systemd", "S (sleeping)", "/sbin/init")
	process(2, 0, "kthreadd", "S (sleeping)")
	process(100, 0, "dbserverd", "S (sleeping)", "dbserverd", "1000")
	process(101, 0, "crond", "S (sleeping)", "/usr/sbin/crond", "-n", " -x ")
	process(102, 5001, "wrf.exe", "R (running)", "wrf.exe", "-np", "96")
	process(103, 120, "ntpd", "S (sleeping)", "ntpd")
	process(104, 6789, "noname", "S (sleeping)", "noname")
	for i := range 8 {
		if i == 5 {
			process(200+i, 5001, "rank", "Z (zombie)")
			continue
		}
		process(200+i, 5001, "rank", "S (sleeping)", "/opt/bin/rank", fmt.Sprint(i))
	}
	return files
}

func TestPSDaemon(t *testing.T) { checktest.Run(t, "check_ps_daemon") }

var _ = checktest.Table("check_ps_daemon", func(string) []checktest.Scenario {
	down := func(pattern, text string) []checks.Finding {
		return []checks.Finding{{
			Code: "ps.daemon.down", Severity: checks.Fail, Device: checks.Device{Kind: "process", Name: pattern}, Want: "running", Got: "not running",
			Message: "check_ps_daemon:  Process " + text + "not running"}}
	}
	node := psNode()
	return []checktest.Scenario{
		{Name: "by name", Files: node, Words: checktest.Of("dbserverd"), Table: map[string]any{"daemon": "dbserverd"}},
		{Name: "inside a path", Files: node, Words: checktest.Of("crond", "root"), Table: map[string]any{"daemon": "crond", "owner": "root"}},
		{Name: "part of a name", Files: node, Words: checktest.Of("bserver", "", "", "more")},
		{Name: "arguments", Files: node, Words: checktest.Of("crond", "", "-n -x"), Table: map[string]any{"daemon": "crond", "args": "-n -x"}},
		{Name: "owner", Files: node, Words: checktest.Of("wrf.exe", "alice")},
		{Name: "glob", Files: node, Words: checktest.Of("dbse??erd*1000")},
		{Name: "bracket expression", Files: node, Words: checktest.Of("[dbserv]")},
		{Name: "kernel thread", Files: node, Words: checktest.Of("kthreadd")},
		{Name: "one of eight is enough", Files: node, Words: checktest.Of("/opt/bin/rank", "alice", "6")},

		{Name: "absent", Files: node, Words: checktest.Of("sshd"), Want: down("sshd", "sshd ")},
		{Name: "another owner", Files: node, Words: checktest.Of("dbserverd", "alice"), Want: down("dbserverd", "dbserverd owned by alice ")},
		{Name: "owner by number", Files: node, Words: checktest.Of("wrf.exe", "5001"), Want: down("wrf.exe", "wrf.exe owned by 5001 ")},
		{Name: "owner without account", Files: node, Words: checktest.Of("noname", "6789"), Want: down("noname", "noname owned by 6789 ")},
		{Name: "other arguments", Files: node, Words: checktest.Of("dbserverd", "root", "1001"), Want: down("dbserverd 1001", "dbserverd 1001 owned by root ")},
		{Name: "the one of eight that has died", Files: node, Words: checktest.Of("/opt/bin/rank", "alice", "5"),
			Want: down("/opt/bin/rank 5", "/opt/bin/rank 5 owned by alice ")},
		{Name: "no name", Files: node, Want: down("", " ")},

		{Name: "no /proc", Broken: true, Words: checktest.Of("sshd"), Want: []checks.Finding{{
			Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /proc: no such file or directory"}}},
		{Name: "garbage", Broken: true, Words: checktest.Of("sshd"), Want: down("sshd", "sshd "), Files: map[string]string{
			"proc/7/status": "\xff\x00", "proc/8/status/": "", "proc/9/cmdline": "sshd\x00"}},
	}
})
