package checks

import (
	"fmt"
	"testing"
)

func TestPSBlacklist(t *testing.T) { testCheck(t, "check_ps_blacklist") }

var _ = table("check_ps_blacklist", func(string) []scenario {
	node := psNode()
	running := func(pattern, owner string, pid int) []Finding {
		return []Finding{{
			Code: "ps.blacklist.running", Severity: Fail, Device: Device{Kind: "process", Name: pattern}, Want: "not running",
			Message: "check_ps_blacklist:  Process " + pattern + " " + owner + "running", Got: fmt.Sprintf("process ID %d", pid)}}
	}
	const badRange = "mcheck_range:  Range not in pdsh syntax:  x y"
	return []scenario{
		{name: "not there", files: node, words: of("telnetd"), table: map[string]any{"daemon": "telnetd"}},
		{name: "another owner", files: node, words: of("wrf.exe", "!alice"), table: map[string]any{"daemon": "wrf.exe", "owner": "!alice"}},
		{name: "other arguments", files: node, words: of("wrf.exe", "", "-np 95"), table: map[string]any{"daemon": "wrf.exe", "args": "-np 95"}},
		{name: "a dead rank has no arguments", files: node, words: of("rank 5")},
		{name: "no name", files: node},
		{name: "there", files: node, words: of("bserver"), want: running("bserver", "", 100)},
		{name: "owner", files: node, words: of("wrf.exe", "al*"), want: running("wrf.exe", "owned by al* ", 102)},
		{name: "owner is not root", files: node, words: of("wrf.exe", "!root"), want: running("wrf.exe", "owned by !root ", 102)},
		{name: "arguments, surplus words", files: node, words: of("crond", "root", "-n", "x"), want: running("crond -n", "owned by root ", 101)},
		{name: "glob", files: node, words: of("wrf?exe*96"), want: running("wrf?exe*96", "", 102)},
		{name: "no account", files: node, words: of("noname", "!?*"), want: running("noname", "owned by !?* ", 104)},
		{name: "one of eight", files: node, words: of("/opt/bin/rank 6"), want: running("/opt/bin/rank 6", "", 206)},
		{name: "bad range", files: node, words: of("wrf.exe", "{x y}"),
			want: []Finding{{Code: "config.match", Severity: Warn, Message: badRange, Remedy: FixConfig}}},
		{name: "no /proc", broken: true, words: of("telnetd"), want: []Finding{unknown("read /proc: no such file or directory")}},
		{name: "garbage", broken: true, words: of("telnetd"), files: map[string]string{
			"proc/7/status": "\xff\x00", "proc/8/status/": "", "proc/9/cmdline": "telnetd\x00"}},
	}
})
