package lbnl

import (
	"fmt"
	"maps"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// busyNode returns a node with two programs of users, one of the system, one of a user without
// account, and eight ranks, one of them busy.
func busyNode() map[string]string {
	procs := []checktest.UseProc{
		{PID: 1, Args: "/sbin/init"},
		{PID: 90, Parent: 1, UID: 5001, Args: "bash job.sh"},
		{PID: 100, Parent: 90, UID: 5001, Args: "wrf.exe -np 96", Ticks: 505000, RSS: 2 << 20, VSZ: 4 << 20},
		{PID: 101, Parent: 1, UID: 5002, Args: "/opt/bin/idle.exe a b", Ticks: 6800, RSS: 1536000, VSZ: 1536 << 10},
		{PID: 102, Parent: 1, UID: 120, Args: "sysd", Ticks: 970000, RSS: 50 << 20, VSZ: 60000000},
		{PID: 103, UID: 6789, Args: "noname", Ticks: 5},
	}
	for i := range 8 {
		p := checktest.UseProc{PID: 200 + i, Parent: 102, UID: 5002, Args: fmt.Sprintf("rank %d", i), Ticks: 100}
		if i == 5 {
			p.Ticks, p.RSS, p.VSZ = 1234567, 100<<20, 200<<20
		}
		procs = append(procs, p)
	}
	return checktest.UseNode(procs...)
}

// onBusy returns a scenario on busyNode.
func onBusy(name string, words []string, want ...checks.Finding) checktest.Scenario {
	return checktest.Scenario{Name: name, Words: words, Want: want, Files: busyNode(), Tools: []string{"bash"}, Vars: map[string]string{"PWD": "/"}}
}

// uses returns the failure about a process; text follows the process ID.
func uses(code, program, text, limit, got string) checks.Finding {
	names := map[string]string{"cpu": "check_ps_cpu", "mem": "check_ps_mem", "physmem": "check_ps_physmem", "time": "check_ps_time"}
	return checks.Finding{
		Code: "ps." + code + ".high", Severity: checks.Fail, Device: checks.Device{Kind: "process", Name: program},
		Message: fmt.Sprintf("%s:  Process \"%s\" %s", names[code], program, text), Want: "less than " + limit, Got: got,
	}
}

// wrf and idle have reached a limit of CPU.
func wrf(limit, more string) checks.Finding {
	return uses("cpu", "wrf.exe", "(100) of alice using 50.5% CPU (limit "+limit+")"+more, limit, "50.5%")
}

func rank(limit, more string) checks.Finding {
	return uses("cpu", "rank", "(205) of bob using 123% CPU (limit "+limit+")"+more, limit, "123%")
}

// warned turns a failure into a warning.
func warned(f checks.Finding, more string) checks.Finding {
	f.Severity = checks.Warn
	f.Message += more
	return f
}

// counting returns the failure of a check that reports all processes.
func counting(f checks.Finding, n int) checks.Finding {
	f.Message += fmt.Sprintf(" (last of %d)", n)
	f.Status = n
	return f
}

const userRoot = "!root"

func TestPSCPU(t *testing.T) { checktest.Run(t, "check_ps_cpu") }

var _ = checktest.Table("check_ps_cpu", func(string) (list []checktest.Scenario) {
	list = append(list,
		onBusy("below", checktest.Of("-m", "wrf.exe", "51")),
		onBusy("the fraction of the use does not count", checktest.Of("-m", "wrf*", "50.1%")).OrTable(map[string]any{"match": "wrf*", "limit": "50.1%"}),
		onBusy("the system is left alone", checktest.Of("-m", "sysd", "90")),
		onBusy("no such process", checktest.Of("-f", "-m", "wrf.exe", "-u", userRoot, "0")).
			OrTable(map[string]any{"full_match": true, "match": "wrf.exe", "user": userRoot, "limit": int64(0)}),
		onBusy("no such user", checktest.Of("-u", "nosuch", "0")),

		onBusy("reached", checktest.Of("50"), wrf("50%", "")),
		onBusy("percentage, surplus words", checktest.Of("-u", "5001", "50%", "x", "y"), wrf("50%", "")),
		onBusy("fraction", checktest.Of("-u", "alice", "49.9"), wrf("49.9%", "")),
		onBusy("octal", checktest.Of("-u", "alice", "062"), wrf("062%", "")),
		onBusy("one of eight", checktest.Of("-m", "rank", "2"), rank("2%", "")),
		onBusy("whole line", checktest.Of("-f", "-m", "* 96", "1"),
			uses("cpu", "wrf.exe -np 96", "(100) of alice using 50.5% CPU (limit 1%)", "1%", "50.5%")),
		onBusy("all users", checktest.Of("-A", "-u", "ntpsec", "90"), uses("cpu", "sysd", "(102) of ntpsec using 97.0% CPU (limit 90%)", "90%", "97.0%")).
			OrTable(map[string]any{"all_users": true, "user": "ntpsec", "limit": "90"}),
		onBusy("a uid without account asks for no owner", checktest.Of("-u", "6789", "50"), wrf("50%", "")),
		onBusy("no account", checktest.Of("-m", "noname", "0"), uses("cpu", "noname", "(103) of  using 0.0% CPU (limit 0%)", "0%", "0.0%")),
		onBusy("not fatal", checktest.Of("-l", "-s", "-0", "50"), warned(wrf("50%", ""), " (non-fatal)")),
		onBusy("all processes", checktest.Of("-a", "50"), warned(wrf("50%", ""), " (1)"), warned(rank("50%", ""), " (2)"), counting(rank("50%", ""), 2)).
			OrTable(map[string]any{"all_processes": true, "limit": "50"}),
		onBusy("all processes, not fatal", checktest.Of("-0a", "50"),
			warned(wrf("50%", ""), " (1)"), warned(rank("50%", ""), " (2)"), warned(rank("50%", ""), " (non-fatal)")).
			OrTable(map[string]any{"nonfatal": true, "all_processes": true, "limit": "50"}),
		onBusy("all processes, none", checktest.Of("-a", "200")),
	)
	withMax := func(value string, s checktest.Scenario) checktest.Scenario {
		s.Vars = maps.Clone(s.Vars)
		s.Vars["MAX_SYS_UID"] = value
		return s
	}
	missing := func(file string, s checktest.Scenario) checktest.Scenario {
		delete(s.Files, file)
		return s
	}
	list = append(list,
		withMax("5001", onBusy("MAX_SYS_UID", checktest.Of("50"), rank("50%", ""))),
		withMax("119", onBusy("MAX_SYS_UID below the system's users", checktest.Of("90"), uses("cpu", "sysd", "(102) of ntpsec using 97.0% CPU (limit 90%)", "90%", "97.0%"))),
		withMax("many", onBusy("MAX_SYS_UID is no number", checktest.Of("90"), checktest.ValueFinding("check_ps_cpu", "MAX_SYS_UID", "many", "a uid"))),
		missing("etc/login.defs", onBusy("no login.defs", checktest.Of("90"), uses("cpu", "sysd", "(102) of ntpsec using 97.0% CPU (limit 90%)", "90%", "97.0%"))),
	)
	return list
})

var _ = checktest.Table("check_ps_cpu", func(string) (list []checktest.Scenario) {
	log := func(text string) map[string]string { return map[string]string{"log": text} }
	list = append(list,
		onBusy("action", checktest.Of("-e", "echo $0 act >> log", "-u", "alice", "50"), wrf("50%", "")).Leaving(log("/bin/bash act\n")).
			OrTable(map[string]any{"run": "echo $0 act >> log", "user": "alice", "limit": "50"}),
		onBusy("no action without need", checktest.Of("-e", "echo act >> log", "-k", "-K", "-r", "5", "200")).Leaving(log("")),
		onBusy("action for each", checktest.Of("-a", "-e", "echo act >> log", "-m", "/rank|wrf/", "50"),
			warned(wrf("50%", ""), " (1)"), warned(rank("50%", ""), " (2)"), counting(rank("50%", ""), 2)).Leaving(log("act\nact\n")),
		// A simulated node has no process to kill or renice.
		onBusy("kill comes before renice", checktest.Of("-k", "-r", "5", "50"), wrf("50%", "; killed")).Leaving(nil).
			OrTable(map[string]any{"kill": true, "renice": int64(5), "limit": "50"}),
		onBusy("renice", checktest.Of("-r", "5", "50"), wrf("50%", "; reniced +5")).Leaving(nil),
		onBusy("renice down", checktest.Of("-r", "-5", "50"), wrf("50%", "; reniced -5")).Leaving(nil),
		onBusy("renice all", checktest.Of("-a", "-r", "5", "50"), warned(wrf("50%", "; reniced +5"), " (1)"),
			warned(rank("50%", "; reniced ++5"), " (2)"), counting(rank("50%", "; reniced ++5"), 2)).Leaving(nil),
		onBusy("renice to nonsense", checktest.Of("-r", "low", "50"), checks.Finding{Code: "ps.action.failed", Severity: checks.Warn,
			Message: `check_ps_cpu:  renice process ID 100: "low" is not a nice value`}, wrf("50%", "; reniced +low")).Leaving(nil),
		onBusy("kill the parent", checktest.Of("-K", "50"), wrf("50%", "; killed parent 90")).Leaving(nil).
			OrTable(map[string]any{"kill_parent": true, "limit": "50"}),
		onBusy("the parent is process 1", checktest.Of("-kK", "-m", "*idle.exe", "0"), uses("cpu", "/opt/bin/idle.exe",
			"(101) of bob using 0.6% CPU (limit 0%); killed; parent 1 not killed (PPID is 1)", "0%", "0.6%")).Leaving(nil),
		onBusy("the parent is somebody else's", checktest.Of("-K", "-m", "rank", "2"), rank("2%", "; parent 102 not killed (owner mismatch)")).Leaving(nil),
		onBusy("the parent is not to be seen", checktest.Of("-K", "-m", "noname", "0"), uses("cpu", "noname",
			"(103) of  using 0.0% CPU (limit 0%); parent 0 not killed (owner mismatch)", "0%", "0.0%")).Leaving(nil),
	)
	const required = "check_ps_cpu:  Syntax error:  CPU utilization limit required."
	for _, limit := range []string{"", "%", "abc", "5%%", "1.5.2", "12x", "1..5", "1,5", "0x10", "08", "."} {
		list = append(list, onBusy("limit "+limit, checktest.Of("-k", "-e", "echo act >> log", limit), checktest.UsageFinding(required, "")).Leaving(log("")))
	}
	list = append(list,
		onBusy("no limit", nil, checktest.UsageFinding(required, "")),
		onBusy("unknown option", checktest.Of("-5"), checktest.UsageFinding("check_ps_cpu:  Invalid option:  -5", "one of -m -f -u -A -a -0 -e -k -K -r -l -s")),
		onBusy("option without its argument", checktest.Of("-u"), checktest.UsageFinding("check_ps_cpu:  Option -u requires an argument.", "")),
	)
	return list
})

var _ = checktest.Table("check_ps_cpu", func(string) []checktest.Scenario {
	garbage := busyNode()
	garbage["proc/100/stat"] = "100 (wrf.exe"
	delete(garbage, "proc/205/stat")
	return []checktest.Scenario{
		{Name: "no /proc", Broken: true, Words: checktest.Of("50"), Want: []checks.Finding{checktest.Unknown("read /proc/uptime: no such file or directory")}},
		{Name: "no processes to be seen", Broken: true, Words: checktest.Of("-A", "50"), Files: map[string]string{"proc": ""},
			Want: []checks.Finding{checktest.Unknown("read /proc/uptime: not a directory")}},
		{Name: "garbage", Broken: true, Words: checktest.Of("-m", "/rank|wrf/", "-u", userRoot, "2"), Files: garbage,
			Want: []checks.Finding{checktest.Unknown("parse /proc/100/stat: invalid argument")}},
		{Name: "a file for login.defs cannot be read", Broken: true, Words: checktest.Of("50"),
			Files: map[string]string{"etc/login.defs/": ""}, Want: []checks.Finding{checktest.Unknown("read /etc/login.defs: is a directory")}},
	}
})
