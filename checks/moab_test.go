package checks

import (
	"testing"
	"time"
)

// onMoab is a node whose mdiag knows the arguments it is called with.
func onMoab(name, arguments, output string, words []string, want ...Finding) scenario {
	s := onTool(name, "mdiag", `[ "$*" = "`+arguments+`" ] || exit 9; cat {root}/out`, want...)
	s.files["out"], s.words = output, words
	return s
}

const moabText = "Moab Server running on srv\n  Version: 7.2.9   Revision: 9\n  ALERT:  node down\n\nLoad OK\n"

func TestMoabSched(t *testing.T) { testCheck(t, "check_moab_sched") }

var _ = table("check_moab_sched", func(name string) (list []scenario) {
	const command = "mdiag -S -v"
	on := func(what string, words []string, want ...Finding) scenario {
		return onMoab(what, "-S -v", moabText, words, want...)
	}
	alert := func(expr, text string) Finding {
		return Finding{Code: "moab.alert", Severity: Fail, Message: name + ":  Moab Alert:  " + text, Want: "no alert that matches " + expr, Got: text}
	}
	version := func(expr string) Finding {
		return Finding{Code: "moab.version", Severity: Fail, Message: name + ":  Moab version 7.2.9 != expected version " + expr, Want: expr, Got: "7.2.9"}
	}
	status := func(command, text, got string) Finding {
		return cmdFinding("cmd.status", command, name+`:  `+text+` returned by "`+command+`".`, "0", got)
	}
	list = append(list,
		on("answers", nil).orTable(map[string]any{}),
		on("the right version", of("-v", "7.2.*", "-t", "8", "more")),
		on("all of it", of("-t", "8", "-v", "7.2.9", "-a", "/licence/")).
			orTable(map[string]any{"timeout": int64(8), "version": "7.2.9", "alert": "/licence/"}),
		on("time as by default", of("-t", "")),
		onMoab("last number of two digits", "-S -v", "Version: 7.2.10 Revision\n", of("-v", "1.0.0")),
		onMoab("version at the end of a line", "-S -v", "Version: 7.2.9\n", of("-v", "1.0.0")),
		onTool("other command", "md", `[ "$*" = "-x -S -v" ]`).underVars(map[string]string{"MDIAG_CMD": "/bin/md  -x"}),

		on("another version", of("-v", "7.3.*"), version("7.3.*")),
		on("a version it must not have", of("-v", "!7.2.9"), version("!7.2.9")),
		on("alert", of("-a", "*down"), alert("*down", "node down")),
		on("any alert", of("-a", "*"), alert("*", "node down")),
		onMoab("empty alert", "-S -v", "x\nALERT: \n", nil, alert("", "")),
		on("version comes first", of("-a", "*", "-v", "1"), version("1")),
		on("match string", of("-m", "Load OK"), status(`OK" mdiag -S -v`, "127", `127: run OK": file does not exist`)),
		on("match string of one word", of("-m", "*Load*"),
			outputMissing(command, `"*Load*"`, name+`:  ""*Load*"" failed to match "`+command+`" output.`)),
		on("negated match string", of("-m", "!*Load*"),
			outputMissing(command, `"!*Load*"`, name+`:  ""!*Load*"" failed to match "`+command+`" output.`)),
		on("option in a match string", of("-m", "a -z"), usageFinding(name+":  Invalid option:  -z", "one of -e -m -M -r -t -C -O")),
		onTool("status", "mdiag", "echo 'ALERT: x'; exit 2", status(command, "2", "2")),
		onTool("timeout", "mdiag", "sleep 20", cmdFinding("cmd.timeout", command, name+`:  TIMEOUT after 1s for "`+command+`"; subprocess terminated.`, "0", "143")).
			saying("-t", "1").plusTools("sleep"),
	)
	list = append(list,
		on("longer than the run", of("-t", "31"), usageFinding(name+":  Command timeout 31 exceeds NHC timeout 30", "")).in(30*time.Second),
		on("time is no number", of("-t", "5s"), cmdValue(name, "timeout", "5s", "whole seconds")),
		on("unknown option", of("-q"), usageFinding(name+":  Invalid option:  -q", "one of -a -v -m -t")),
		on("option without its argument", of("-v"), usageFinding(name+":  Option -v requires an argument.", "")),

		scenario{name: "no Moab", want: []Finding{status(command, "127", "127: run mdiag: file does not exist")}},
		onMoab("garbage", "-S -v", "\x00\xff\nVersion: 1.2\nALERT:\nALERT: \xff\n", of("-v", "7.2.9", "-a", "x")).onBroken(),
	)
	return list
})

// plusTools gives a scenario more programs of this machine.
func (s scenario) plusTools(tools ...string) scenario {
	s.tools = append(s.tools, tools...)
	return s
}

func TestMoabRM(t *testing.T) { testCheck(t, "check_moab_rm") }

var _ = table("check_moab_rm", func(name string) []scenario {
	const command = "mdiag -R -v"
	down := "RM[base]  State: Active\nRM[x]  State: Down\n"
	return []scenario{
		onMoab("answers, whatever the states", "-R -v", down, nil).orTable(map[string]any{}),
		onMoab("time", "-R -v", down, of("-t", "8")).orTable(map[string]any{"timeout": "8"}),
		onTool("status", "mdiag", "exit 2", cmdFinding("cmd.status", command, name+`:  2 returned by "`+command+`".`, "0", "2")),
		onMoab("match string", "-R -v", down, of("-m", "/RM/"),
			outputMissing(command, `"/RM/"`, name+`:  ""/RM/"" failed to match "`+command+`" output.`)),
		onMoab("two match strings", "-R -v", down, of("-m", "/RM/", "-m", "x"),
			outputMissing(command, `"/RM/"`, name+`:  ""/RM/"" failed to match "`+command+`" output (2/2 patterns failed).`)),
		onMoab("unknown option", "-R -v", down, of("-a", "x"), usageFinding(name+":  Invalid option:  -a", "one of -m -t")),
		{name: "no Moab", want: []Finding{
			cmdFinding("cmd.status", command, name+`:  127 returned by "`+command+`".`, "0", "127: run mdiag: file does not exist")}},
		onMoab("garbage", "-R -v", "\x00\xff", nil).onBroken(),
	}
})

func TestMoabTorque(t *testing.T) { testCheck(t, "check_moab_torque") }

var _ = table("check_moab_torque", func(name string) []scenario {
	const command = "qmgr -c print server"
	on := func(what, output string, words []string, want ...Finding) scenario {
		s := onTool(what, "qmgr", `[ "$#$2" = "2print server" ] || exit 9; cat {root}/out`, want...)
		s.files["out"], s.words = output, words
		return s
	}
	idle := func(value string) Finding {
		return Finding{Code: "moab.torque.idle", Severity: Fail, Want: "True", Got: value,
			Message: name + `:  Scheduling not active (set to "` + value + `") in TORQUE configuration`}
	}
	return []scenario{
		on("schedules", "#\nset server scheduling = True\nset server acl_hosts = srv\n", nil).orTable(map[string]any{}),
		on("time", "", of("-t", "8")).orTable(map[string]any{"timeout": int64(8)}),
		on("idle", "#\n set server scheduling = False\n", nil, idle("False")),
		on("other case", "set server scheduling = true\n", nil, idle("true")),
		on("match string", "x\n", of("-m", "x"),
			outputMissing(command, `"x"`, name+`:  ""x"" failed to match "`+command+`" output.`)),
		onTool("status", "qmgr", "exit 3", cmdFinding("cmd.status", command, name+`:  3 returned by "`+command+`".`, "0", "3")),
		on("option without its argument", "", of("-m"), usageFinding(name+":  Option -m requires an argument.", "")),
		{name: "no TORQUE", want: []Finding{
			cmdFinding("cmd.status", command, name+`:  127 returned by "`+command+`".`, "0", "127: run qmgr: file does not exist")}},
		on("garbage", "set server scheduling = \xff\n\x00", nil).onBroken(),
	}
})
