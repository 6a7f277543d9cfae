package lbnl

import (
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// kernelLog is a dmesg that prints typical messages of a kernel.
const kernelLog = `#!/bin/sh
echo '[    0.000000] Linux version 6.1'
echo '[   12.345678] EDAC MC0: 1 CE memory read error'
echo '[   20.000000] nvidia loaded'
`

// onDmesg returns a scenario of a node with that dmesg.
func onDmesg(name string, words []string, want ...checks.Finding) checktest.Scenario {
	return checktest.Scenario{Name: name, Words: words, Want: want, Acts: true,
		Files: map[string]string{"usr/bin/dmesg": kernelLog}, Tools: []string{"sh"}, Vars: map[string]string{"PWD": "/"}}
}

func printing(s checktest.Scenario, script string) checktest.Scenario {
	s.Files = map[string]string{"usr/bin/dmesg": "#!/bin/sh\n" + script}
	return s
}

func TestCmdDmesg(t *testing.T) { checktest.Run(t, "check_cmd_dmesg") }

var _ = checktest.Table("check_cmd_dmesg", func(string) []checktest.Scenario {
	const name = "check_cmd_dmesg:  "
	return []checktest.Scenario{
		onDmesg("present and absent", checktest.Of("-m", "!/Xid/", "-m", "*Linux version*")).
			OrTable(map[string]any{"match": []any{"!/Xid/", "*Linux version*"}}),
		onDmesg("no options", checktest.Of()),
		onDmesg("empty options", checktest.Of("-e", "", "-r", "", "-t", "")),
		printing(onDmesg("expected status", checktest.Of("-r", "1", "-t", "60")), "exit 1\n").OrTable(map[string]any{"status": int64(1), "timeout": int64(60)}),
		onDmesg("another command", checktest.Of("-e", "/usr/bin/dmesg -k", "-m", "/nvidia/")),
		printing(onDmesg("lines for the shell", checktest.Of("-O", "VAR"), arrayFinding("VAR", "a\nb")), "echo a; echo; echo b\n"),
		onDmesg("another command, word by word", checktest.Of("-m", "/nvidia/", "/usr/bin/dmesg", "-k")),

		onDmesg("found", checktest.Of("-m", "!/EDAC/"), outputFound("dmesg", "/EDAC/", "[   12.345678] EDAC MC0: 1 CE memory read error",
			name+`"/EDAC/" matched at line 2 of "dmesg".`)),
		onDmesg("missing", checktest.Of("-m", "/Xid/"), outputMissing("dmesg", "/Xid/", name+`"/Xid/" failed to match "dmesg" output.`)),
		onDmesg("one of two missing", checktest.Of("-m", "/Xid/", "-m", "/nvidia/"),
			outputMissing("dmesg", "/Xid/", name+`"/Xid/" failed to match "dmesg" output (1/2 patterns failed).`)),
		onDmesg("own message", checktest.Of("-m", "!/EDAC/", "-M", "memory error: %L"), outputFound("dmesg", "/EDAC/",
			"[   12.345678] EDAC MC0: 1 CE memory read error", name+"memory error: [   12.345678] EDAC MC0: 1 CE memory read error.")).
			OrTable(map[string]any{"match": "!/EDAC/", "message": "memory error: %L"}),
		onDmesg("more messages than patterns", checktest.Of("-M", "x"),
			checktest.UsageFinding(name+"Message count (0) must not exceed match string count (0).", "")),
		printing(onDmesg("status", checktest.Of(), cmdFinding("cmd.status", "dmesg", name+`1 returned by "dmesg".`, "0", "1")), "exit 1\n"),
		printing(onDmesg("unexpected status", checktest.Of("-r", "2"),
			cmdFinding("cmd.status", "dmesg", name+`1 (expected 2) returned by "dmesg".`, "2", "1")), "exit 1\n"),
		printing(onDmesg("timeout", checktest.Of("-t", "1"), cmdFinding("cmd.timeout", "dmesg", name+`TIMEOUT after 1s for "dmesg"; subprocess terminated.`, "0", "143")), "exec sleep 20\n"),
		onDmesg("longer than the run", checktest.Of("-t", "31"), checktest.UsageFinding(name+"Command timeout 31 exceeds NHC timeout 30", "")).In(30 * time.Second),
		onDmesg("unknown option", checktest.Of("-q"), checktest.UsageFinding(name+"Invalid option:  -q", "one of -m -M -r -t -e -O")),
		onDmesg("-C is not for users", checktest.Of("-C", "x"), checktest.UsageFinding(name+"Invalid option:  -C", "one of -m -M -r -t -e -O")),
		onDmesg("option without its argument", checktest.Of("-m"), checktest.UsageFinding(name+"Option -m requires an argument.", "")),
		onDmesg("timeout is no number", checktest.Of("-t", "soon"), cmdValue("check_cmd_dmesg", "timeout", "soon", "whole seconds")),

		printing(onDmesg("rubbish", checktest.Of("-m", "!/Xid/")), `printf '\000\377\n\n'`+"\n").OnBroken(),
		{Name: "no dmesg", Broken: true, Acts: true, Words: checktest.Of("-m", "/x/"),
			Want: []checks.Finding{cmdFinding("cmd.status", "dmesg", name+`127 returned by "dmesg".`, "0", "127: run dmesg: file does not exist")}},
	}
})
