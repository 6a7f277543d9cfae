package checks

import (
	"fmt"
	"strings"
	"testing"
)

// psNode is a node with a few processes, among them eight ranks of which one
// is a zombie.
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

func TestPSDaemon(t *testing.T) { testCheck(t, "check_ps_daemon") }

var _ = table("check_ps_daemon", func(string) []scenario {
	down := func(pattern, text string) []Finding {
		return []Finding{{
			Code: "ps.daemon.down", Severity: Fail, Device: Device{Kind: "process", Name: pattern}, Want: "running", Got: "not running",
			Message: "check_ps_daemon:  Process " + text + "not running"}}
	}
	node := psNode()
	return []scenario{
		{name: "by name", files: node, words: of("dbserverd"), table: map[string]any{"daemon": "dbserverd"}},
		{name: "inside a path", files: node, words: of("crond", "root"), table: map[string]any{"daemon": "crond", "owner": "root"}},
		{name: "part of a name", files: node, words: of("bserver", "", "", "more")},
		{name: "arguments", files: node, words: of("crond", "", "-n -x"), table: map[string]any{"daemon": "crond", "args": "-n -x"}},
		{name: "owner", files: node, words: of("wrf.exe", "alice")},
		{name: "glob", files: node, words: of("dbse??erd*1000")},
		{name: "bracket expression", files: node, words: of("[dbserv]")},
		{name: "kernel thread", files: node, words: of("kthreadd")},
		{name: "one of eight is enough", files: node, words: of("/opt/bin/rank", "alice", "6")},

		{name: "absent", files: node, words: of("sshd"), want: down("sshd", "sshd ")},
		{name: "another owner", files: node, words: of("dbserverd", "alice"), want: down("dbserverd", "dbserverd owned by alice ")},
		{name: "owner by number", files: node, words: of("wrf.exe", "5001"), want: down("wrf.exe", "wrf.exe owned by 5001 ")},
		{name: "owner without account", files: node, words: of("noname", "6789"), want: down("noname", "noname owned by 6789 ")},
		{name: "other arguments", files: node, words: of("dbserverd", "root", "1001"), want: down("dbserverd 1001", "dbserverd 1001 owned by root ")},
		{name: "the one of eight that has died", files: node, words: of("/opt/bin/rank", "alice", "5"),
			want: down("/opt/bin/rank 5", "/opt/bin/rank 5 owned by alice ")},
		{name: "no name", files: node, want: down("", " ")},

		{name: "no /proc", broken: true, words: of("sshd"), want: []Finding{{
			Code: "probe.unreadable", Severity: Unknown, Message: "read /proc: no such file or directory"}}},
		{name: "garbage", broken: true, words: of("sshd"), want: down("sshd", "sshd "), files: map[string]string{
			"proc/7/status": "\xff\x00", "proc/8/status/": "", "proc/9/cmdline": "sshd\x00"}},
	}
})
