package lbnl

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

func TestPSBlacklist(t *testing.T) { checktest.Run(t, "check_ps_blacklist") }

var _ = checktest.Table("check_ps_blacklist", func(string) []checktest.Scenario {
	node := psNode()
	running := func(pattern, owner string, pid int) []checks.Finding {
		return []checks.Finding{{
			Code: "ps.blacklist.running", Severity: checks.Fail, Device: checks.Device{Kind: "process", Name: pattern}, Want: "not running",
			Message: "check_ps_blacklist:  Process " + pattern + " " + owner + "running", Got: fmt.Sprintf("process ID %d", pid)}}
	}
	const badRange = "mcheck_range:  Range not in pdsh syntax:  x y"
	return []checktest.Scenario{
		{Name: "not there", Files: node, Words: checktest.Of("telnetd"), Table: map[string]any{"daemon": "telnetd"}},
		{Name: "another owner", Files: node, Words: checktest.Of("wrf.exe", "!alice"), Table: map[string]any{"daemon": "wrf.exe", "owner": "!alice"}},
		{Name: "other arguments", Files: node, Words: checktest.Of("wrf.exe", "", "-np 95"), Table: map[string]any{"daemon": "wrf.exe", "args": "-np 95"}},
		{Name: "a dead rank has no arguments", Files: node, Words: checktest.Of("rank 5")},
		{Name: "no name", Files: node},
		{Name: "there", Files: node, Words: checktest.Of("bserver"), Want: running("bserver", "", 100)},
		{Name: "owner", Files: node, Words: checktest.Of("wrf.exe", "al*"), Want: running("wrf.exe", "owned by al* ", 102)},
		{Name: "owner is not root", Files: node, Words: checktest.Of("wrf.exe", "!root"), Want: running("wrf.exe", "owned by !root ", 102)},
		{Name: "arguments, surplus words", Files: node, Words: checktest.Of("crond", "root", "-n", "x"), Want: running("crond -n", "owned by root ", 101)},
		{Name: "glob", Files: node, Words: checktest.Of("wrf?exe*96"), Want: running("wrf?exe*96", "", 102)},
		{Name: "no account", Files: node, Words: checktest.Of("noname", "!?*"), Want: running("noname", "owned by !?* ", 104)},
		{Name: "one of eight", Files: node, Words: checktest.Of("/opt/bin/rank 6"), Want: running("/opt/bin/rank 6", "", 206)},
		{Name: "bad range", Files: node, Words: checktest.Of("wrf.exe", "{x y}"),
			Want: []checks.Finding{{Code: "config.match", Severity: checks.Warn, Message: badRange, Remedy: checks.FixConfig}}},
		{Name: "no /proc", Broken: true, Words: checktest.Of("telnetd"), Want: []checks.Finding{checktest.Unknown("read /proc: no such file or directory")}},
		{Name: "garbage", Broken: true, Words: checktest.Of("telnetd"), Files: map[string]string{
			"proc/7/status": "\xff\x00", "proc/8/status/": "", "proc/9/cmdline": "telnetd\x00"}},
	}
})
