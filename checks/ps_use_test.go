package checks

import (
	"fmt"
	"maps"
	"testing"
)

// busyNode has two programs of users, one of the system, one whose user has no
// account, and eight ranks of which one is busy.
func busyNode() map[string]string {
	procs := []useProc{
		{pid: 1, args: "/sbin/init"},
		{pid: 90, parent: 1, uid: 5001, args: "bash job.sh"},
		{pid: 100, parent: 90, uid: 5001, args: "wrf.exe -np 96", ticks: 505000, rss: 2 << 20, vsz: 4 << 20},
		{pid: 101, parent: 1, uid: 5002, args: "/opt/bin/idle.exe a b", ticks: 6800, rss: 1536000, vsz: 1536 << 10},
		{pid: 102, parent: 1, uid: 120, args: "sysd", ticks: 970000, rss: 50 << 20, vsz: 60000000},
		{pid: 103, uid: 6789, args: "noname", ticks: 5},
	}
	for i := range 8 {
		p := useProc{pid: 200 + i, parent: 102, uid: 5002, args: fmt.Sprintf("rank %d", i), ticks: 100}
		if i == 5 {
			p.ticks, p.rss, p.vsz = 1234567, 100<<20, 200<<20
		}
		procs = append(procs, p)
	}
	return useNode(procs...)
}

// onBusy is a line on that node.
func onBusy(name string, words []string, want ...Finding) scenario {
	return scenario{name: name, words: words, want: want, files: busyNode(), tools: []string{"bash"}, vars: map[string]string{"PWD": "/"}}
}

// uses is what a check says of a process; text follows the process ID.
func uses(code, program, text, limit, got string) Finding {
	names := map[string]string{"cpu": "check_ps_cpu", "mem": "check_ps_mem", "physmem": "check_ps_physmem", "time": "check_ps_time"}
	return Finding{
		Code: "ps." + code + ".high", Severity: Fail, Device: Device{Kind: "process", Name: program},
		Message: fmt.Sprintf("%s:  Process \"%s\" %s", names[code], program, text), Want: "less than " + limit, Got: got,
	}
}

// wrf and idle have reached a limit of CPU.
func wrf(limit, more string) Finding {
	return uses("cpu", "wrf.exe", "(100) of alice using 50.5% CPU (limit "+limit+")"+more, limit, "50.5%")
}

func rank(limit, more string) Finding {
	return uses("cpu", "rank", "(205) of bob using 123% CPU (limit "+limit+")"+more, limit, "123%")
}

// warned makes a finding one that is only said.
func warned(f Finding, more string) Finding {
	f.Severity = Warn
	f.Message += more
	return f
}

// counting is the failure of a check that reports all processes.
func counting(f Finding, n int) Finding {
	f.Message += fmt.Sprintf(" (last of %d)", n)
	f.Status = n
	return f
}

const userRoot = "!root"

func TestPSCPU(t *testing.T) { testCheck(t, "check_ps_cpu") }

var _ = table("check_ps_cpu", func(string) (list []scenario) {
	list = append(list,
		onBusy("below", of("-m", "wrf.exe", "51")),
		onBusy("the fraction of the use does not count", of("-m", "wrf*", "50.1%")).orTable(map[string]any{"match": "wrf*", "limit": "50.1%"}),
		onBusy("the system is left alone", of("-m", "sysd", "90")),
		onBusy("no such process", of("-f", "-m", "wrf.exe", "-u", userRoot, "0")).
			orTable(map[string]any{"full_match": true, "match": "wrf.exe", "user": userRoot, "limit": int64(0)}),
		onBusy("no such user", of("-u", "nosuch", "0")),

		onBusy("reached", of("50"), wrf("50%", "")),
		onBusy("percentage, surplus words", of("-u", "5001", "50%", "x", "y"), wrf("50%", "")),
		onBusy("fraction", of("-u", "alice", "49.9"), wrf("49.9%", "")),
		onBusy("octal", of("-u", "alice", "062"), wrf("062%", "")),
		onBusy("one of eight", of("-m", "rank", "2"), rank("2%", "")),
		onBusy("whole line", of("-f", "-m", "* 96", "1"),
			uses("cpu", "wrf.exe -np 96", "(100) of alice using 50.5% CPU (limit 1%)", "1%", "50.5%")),
		onBusy("all users", of("-A", "-u", "ntpsec", "90"), uses("cpu", "sysd", "(102) of ntpsec using 97.0% CPU (limit 90%)", "90%", "97.0%")).
			orTable(map[string]any{"all_users": true, "user": "ntpsec", "limit": "90"}),
		onBusy("a uid without account asks for no owner", of("-u", "6789", "50"), wrf("50%", "")),
		onBusy("no account", of("-m", "noname", "0"), uses("cpu", "noname", "(103) of  using 0.0% CPU (limit 0%)", "0%", "0.0%")),
		onBusy("not fatal", of("-l", "-s", "-0", "50"), warned(wrf("50%", ""), " (non-fatal)")),
		onBusy("all processes", of("-a", "50"), warned(wrf("50%", ""), " (1)"), warned(rank("50%", ""), " (2)"), counting(rank("50%", ""), 2)).
			orTable(map[string]any{"all_processes": true, "limit": "50"}),
		onBusy("all processes, not fatal", of("-0a", "50"),
			warned(wrf("50%", ""), " (1)"), warned(rank("50%", ""), " (2)"), warned(rank("50%", ""), " (non-fatal)")).
			orTable(map[string]any{"nonfatal": true, "all_processes": true, "limit": "50"}),
		onBusy("all processes, none", of("-a", "200")),
	)
	withMax := func(value string, s scenario) scenario {
		s.vars = maps.Clone(s.vars)
		s.vars["MAX_SYS_UID"] = value
		return s
	}
	missing := func(file string, s scenario) scenario {
		delete(s.files, file)
		return s
	}
	list = append(list,
		withMax("5001", onBusy("MAX_SYS_UID", of("50"), rank("50%", ""))),
		withMax("119", onBusy("MAX_SYS_UID below the system's users", of("90"), uses("cpu", "sysd", "(102) of ntpsec using 97.0% CPU (limit 90%)", "90%", "97.0%"))),
		withMax("many", onBusy("MAX_SYS_UID is no number", of("90"), valueFinding("check_ps_cpu", "MAX_SYS_UID", "many", "a uid"))),
		missing("etc/login.defs", onBusy("no login.defs", of("90"), uses("cpu", "sysd", "(102) of ntpsec using 97.0% CPU (limit 90%)", "90%", "97.0%"))),
	)
	return list
})

var _ = table("check_ps_cpu", func(string) (list []scenario) {
	log := func(text string) map[string]string { return map[string]string{"log": text} }
	list = append(list,
		onBusy("action", of("-e", "echo $0 act >> log", "-u", "alice", "50"), wrf("50%", "")).leaving(log("/bin/bash act\n")).
			orTable(map[string]any{"action": "echo $0 act >> log", "user": "alice", "limit": "50"}),
		onBusy("no action without need", of("-e", "echo act >> log", "-k", "-K", "-r", "5", "200")).leaving(log("")),
		onBusy("action for each", of("-a", "-e", "echo act >> log", "-m", "/rank|wrf/", "50"),
			warned(wrf("50%", ""), " (1)"), warned(rank("50%", ""), " (2)"), counting(rank("50%", ""), 2)).leaving(log("act\nact\n")),
		// Nothing can be killed or reniced on a node of files.
		onBusy("kill comes before renice", of("-k", "-r", "5", "50"), wrf("50%", "; killed")).leaving(nil).
			orTable(map[string]any{"kill": true, "renice": int64(5), "limit": "50"}),
		onBusy("renice", of("-r", "5", "50"), wrf("50%", "; reniced +5")).leaving(nil),
		onBusy("renice down", of("-r", "-5", "50"), wrf("50%", "; reniced -5")).leaving(nil),
		onBusy("renice all", of("-a", "-r", "5", "50"), warned(wrf("50%", "; reniced +5"), " (1)"),
			warned(rank("50%", "; reniced ++5"), " (2)"), counting(rank("50%", "; reniced ++5"), 2)).leaving(nil),
		onBusy("renice to nonsense", of("-r", "low", "50"), Finding{Code: "ps.action.failed", Severity: Warn,
			Message: `check_ps_cpu:  renice process ID 100: "low" is no nice value`}, wrf("50%", "; reniced +low")).leaving(nil),
		onBusy("kill the parent", of("-K", "50"), wrf("50%", "; killed parent 90")).leaving(nil).
			orTable(map[string]any{"kill_parent": true, "limit": "50"}),
		onBusy("the parent is process 1", of("-kK", "-m", "*idle.exe", "0"), uses("cpu", "/opt/bin/idle.exe",
			"(101) of bob using 0.6% CPU (limit 0%); killed; parent 1 not killed (PPID is 1)", "0%", "0.6%")).leaving(nil),
		onBusy("the parent is somebody else's", of("-K", "-m", "rank", "2"), rank("2%", "; parent 102 not killed (owner mismatch)")).leaving(nil),
		onBusy("the parent is not to be seen", of("-K", "-m", "noname", "0"), uses("cpu", "noname",
			"(103) of  using 0.0% CPU (limit 0%); parent 0 not killed (owner mismatch)", "0%", "0.0%")).leaving(nil),
	)
	const required = "check_ps_cpu:  Syntax error:  CPU utilization limit required."
	for _, limit := range []string{"", "%", "abc", "5%%", "1.5.2", "12x", "1..5", "1,5", "0x10", "08", "."} {
		list = append(list, onBusy("limit "+limit, of("-k", "-e", "echo act >> log", limit), usageFinding(required, "")).leaving(log("")))
	}
	list = append(list,
		onBusy("no limit", nil, usageFinding(required, "")),
		onBusy("unknown option", of("-5"), usageFinding("check_ps_cpu:  Invalid option:  -5", "one of -m -f -u -A -a -0 -e -k -K -r -l -s")),
		onBusy("option without its argument", of("-u"), usageFinding("check_ps_cpu:  Option -u requires an argument.", "")),
	)
	return list
})

var _ = table("check_ps_cpu", func(string) []scenario {
	garbage := busyNode()
	garbage["proc/100/stat"] = "100 (wrf.exe"
	delete(garbage, "proc/205/stat")
	return []scenario{
		{name: "no /proc", broken: true, words: of("50"), want: []Finding{unknown("read /proc/uptime: no such file or directory")}},
		{name: "no processes to be seen", broken: true, words: of("-A", "50"), files: map[string]string{"proc": ""},
			want: []Finding{unknown("read /proc/uptime: not a directory")}},
		{name: "garbage", broken: true, words: of("-m", "/rank|wrf/", "-u", userRoot, "2"), files: garbage,
			want: []Finding{unknown("parse /proc/100/stat: invalid argument")}},
		{name: "a file for login.defs cannot be read", broken: true, words: of("50"),
			files: map[string]string{"etc/login.defs/": ""}, want: []Finding{unknown("read /etc/login.defs: is a directory")}},
	}
})
