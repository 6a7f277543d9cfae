package lbnl

import (
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// onMoab returns a scenario with an mdiag that accepts only the expected arguments.
func onMoab(name, arguments, output string, words []string, want ...checks.Finding) checktest.Scenario {
	s := onTool(name, "mdiag", `[ "$*" = "`+arguments+`" ] || exit 9; cat {root}/out`, want...)
	s.Files["out"], s.Words = output, words
	return s
}

const moabText = "Moab Server running on srv\n  Version: 7.2.9   Revision: 9\n  ALERT:  node down\n\nLoad OK\n"

func TestMoabSched(t *testing.T) { checktest.Run(t, "check_moab_sched") }

var _ = checktest.Table("check_moab_sched", func(name string) (list []checktest.Scenario) {
	const command = "mdiag -S -v"
	on := func(what string, words []string, want ...checks.Finding) checktest.Scenario {
		return onMoab(what, "-S -v", moabText, words, want...)
	}
	alert := func(expr, text string) checks.Finding {
		return checks.Finding{Code: "moab.alert", Severity: checks.Fail, Message: name + ":  Moab Alert:  " + text, Want: "no alert that matches " + expr, Got: text}
	}
	version := func(expr string) checks.Finding {
		return checks.Finding{Code: "moab.version", Severity: checks.Fail, Message: name + ":  Moab version 7.2.9 != expected version " + expr, Want: expr, Got: "7.2.9"}
	}
	status := func(command, text, got string) checks.Finding {
		return cmdFinding("cmd.status", command, name+`:  `+text+` returned by "`+command+`".`, "0", got)
	}
	list = append(list,
		on("answers", nil).OrTable(map[string]any{}),
		on("the right version", checktest.Of("-v", "7.2.*", "-t", "8", "more")),
		on("all of it", checktest.Of("-t", "8", "-v", "7.2.9", "-a", "/licence/")).
			OrTable(map[string]any{"timeout": int64(8), "version": "7.2.9", "alert": "/licence/"}),
		on("time as by default", checktest.Of("-t", "")),
		onMoab("last number of two digits", "-S -v", "Version: 7.2.10 Revision\n", checktest.Of("-v", "1.0.0")),
		onMoab("version at the end of a line", "-S -v", "Version: 7.2.9\n", checktest.Of("-v", "1.0.0")),
		onTool("other command", "md", `[ "$*" = "-x -S -v" ]`).UnderVars(map[string]string{"MDIAG_CMD": "/bin/md  -x"}),

		on("another version", checktest.Of("-v", "7.3.*"), version("7.3.*")),
		on("a version it must not have", checktest.Of("-v", "!7.2.9"), version("!7.2.9")),
		on("alert", checktest.Of("-a", "*down"), alert("*down", "node down")),
		on("any alert", checktest.Of("-a", "*"), alert("*", "node down")),
		onMoab("empty alert", "-S -v", "x\nALERT: \n", nil, alert("", "")),
		on("version comes first", checktest.Of("-a", "*", "-v", "1"), version("1")),
		on("match string", checktest.Of("-m", "Load OK"), status(`OK" mdiag -S -v`, "127", `127: run OK": file does not exist`)),
		on("match string of one word", checktest.Of("-m", "*Load*"),
			outputMissing(command, `"*Load*"`, name+`:  ""*Load*"" failed to match "`+command+`" output.`)),
		on("negated match string", checktest.Of("-m", "!*Load*"),
			outputMissing(command, `"!*Load*"`, name+`:  ""!*Load*"" failed to match "`+command+`" output.`)),
		on("option in a match string", checktest.Of("-m", "a -z"), checktest.UsageFinding(name+":  Invalid option:  -z", "one of -e -m -M -r -t -C -O")),
		onTool("status", "mdiag", "echo 'ALERT: x'; exit 2", status(command, "2", "2")),
		plusTools(onTool("timeout", "mdiag", "sleep 20", cmdFinding("cmd.timeout", command, name+`:  TIMEOUT after 1s for "`+command+`"; subprocess terminated.`, "0", "143")).
			Saying("-t", "1"), "sleep"),
	)
	list = append(list,
		on("longer than the run", checktest.Of("-t", "31"), checktest.UsageFinding(name+":  Command timeout 31 exceeds NHC timeout 30", "")).In(30*time.Second),
		on("time is no number", checktest.Of("-t", "5s"), cmdValue(name, "timeout", "5s", "whole seconds")),
		on("unknown option", checktest.Of("-q"), checktest.UsageFinding(name+":  Invalid option:  -q", "one of -a -v -m -t")),
		on("option without its argument", checktest.Of("-v"), checktest.UsageFinding(name+":  Option -v requires an argument.", "")),

		checktest.Scenario{Name: "no Moab", Want: []checks.Finding{status(command, "127", "127: run mdiag: file does not exist")}},
		onMoab("garbage", "-S -v", "\x00\xff\nVersion: 1.2\nALERT:\nALERT: \xff\n", checktest.Of("-v", "7.2.9", "-a", "x")).OnBroken(),
	)
	return list
})

// plusTools adds programs of this machine to a scenario.
func plusTools(s checktest.Scenario, tools ...string) checktest.Scenario {
	s.Tools = append(s.Tools, tools...)
	return s
}

func TestMoabRM(t *testing.T) { checktest.Run(t, "check_moab_rm") }

var _ = checktest.Table("check_moab_rm", func(name string) []checktest.Scenario {
	const command = "mdiag -R -v"
	down := "RM[base]  State: Active\nRM[x]  State: Down\n"
	return []checktest.Scenario{
		onMoab("answers, whatever the states", "-R -v", down, nil).OrTable(map[string]any{}),
		onMoab("time", "-R -v", down, checktest.Of("-t", "8")).OrTable(map[string]any{"timeout": "8"}),
		onTool("status", "mdiag", "exit 2", cmdFinding("cmd.status", command, name+`:  2 returned by "`+command+`".`, "0", "2")),
		onMoab("match string", "-R -v", down, checktest.Of("-m", "/RM/"),
			outputMissing(command, `"/RM/"`, name+`:  ""/RM/"" failed to match "`+command+`" output.`)),
		onMoab("two match strings", "-R -v", down, checktest.Of("-m", "/RM/", "-m", "x"),
			outputMissing(command, `"/RM/"`, name+`:  ""/RM/"" failed to match "`+command+`" output (2/2 patterns failed).`)),
		onMoab("unknown option", "-R -v", down, checktest.Of("-a", "x"), checktest.UsageFinding(name+":  Invalid option:  -a", "one of -m -t")),
		{Name: "no Moab", Want: []checks.Finding{
			cmdFinding("cmd.status", command, name+`:  127 returned by "`+command+`".`, "0", "127: run mdiag: file does not exist")}},
		onMoab("garbage", "-R -v", "\x00\xff", nil).OnBroken(),
	}
})

func TestMoabTorque(t *testing.T) { checktest.Run(t, "check_moab_torque") }

var _ = checktest.Table("check_moab_torque", func(name string) []checktest.Scenario {
	const command = "qmgr -c print server"
	on := func(what, output string, words []string, want ...checks.Finding) checktest.Scenario {
		s := onTool(what, "qmgr", `[ "$#$2" = "2print server" ] || exit 9; cat {root}/out`, want...)
		s.Files["out"], s.Words = output, words
		return s
	}
	idle := func(value string) checks.Finding {
		return checks.Finding{Code: "moab.torque.idle", Severity: checks.Fail, Want: "True", Got: value,
			Message: name + `:  Scheduling not active (set to "` + value + `") in TORQUE configuration`}
	}
	return []checktest.Scenario{
		on("schedules", "#\nset server scheduling = True\nset server acl_hosts = srv\n", nil).OrTable(map[string]any{}),
		on("time", "", checktest.Of("-t", "8")).OrTable(map[string]any{"timeout": int64(8)}),
		on("idle", "#\n set server scheduling = False\n", nil, idle("False")),
		on("other case", "set server scheduling = true\n", nil, idle("true")),
		on("match string", "x\n", checktest.Of("-m", "x"),
			outputMissing(command, `"x"`, name+`:  ""x"" failed to match "`+command+`" output.`)),
		onTool("status", "qmgr", "exit 3", cmdFinding("cmd.status", command, name+`:  3 returned by "`+command+`".`, "0", "3")),
		on("option without its argument", "", checktest.Of("-m"), checktest.UsageFinding(name+":  Option -m requires an argument.", "")),
		{Name: "no TORQUE", Want: []checks.Finding{
			cmdFinding("cmd.status", command, name+`:  127 returned by "`+command+`".`, "0", "127: run qmgr: file does not exist")}},
		on("garbage", "set server scheduling = \xff\n\x00", nil).OnBroken(),
	}
})
