package checks

import (
	"testing"
	"time"
)

// kernelLog is a dmesg that prints what a kernel might.
const kernelLog = `#!/bin/sh
echo '[    0.000000] Linux version 6.1'
echo '[   12.345678] EDAC MC0: 1 CE memory read error'
echo '[   20.000000] nvidia loaded'
`

// onDmesg is a node with that dmesg, or another one.
func onDmesg(name string, words []string, want ...Finding) scenario {
	return scenario{name: name, words: words, want: want, acts: true,
		files: map[string]string{"usr/bin/dmesg": kernelLog}, tools: []string{"sh"}, vars: map[string]string{"PWD": "/"}}
}

func (s scenario) printing(script string) scenario {
	s.files = map[string]string{"usr/bin/dmesg": "#!/bin/sh\n" + script}
	return s
}

func TestCmdDmesg(t *testing.T) { testCheck(t, "check_cmd_dmesg") }

var _ = table("check_cmd_dmesg", func(string) []scenario {
	const name = "check_cmd_dmesg:  "
	return []scenario{
		onDmesg("present and absent", of("-m", "!/Xid/", "-m", "*Linux version*")).
			orTable(map[string]any{"match": []any{"!/Xid/", "*Linux version*"}}),
		onDmesg("nothing wanted", of()),
		onDmesg("empty options", of("-e", "", "-r", "", "-t", "")),
		onDmesg("wanted status", of("-r", "1", "-t", "60")).printing("exit 1\n").orTable(map[string]any{"status": int64(1), "timeout": int64(60)}),
		onDmesg("another command", of("-e", "/usr/bin/dmesg -k", "-m", "/nvidia/")),
		onDmesg("lines for the shell", of("-O", "VAR"), arrayFinding("VAR", "a\nb")).printing("echo a; echo; echo b\n"),
		onDmesg("another command, word by word", of("-m", "/nvidia/", "/usr/bin/dmesg", "-k")),

		onDmesg("found", of("-m", "!/EDAC/"), outputFound("dmesg", "/EDAC/", "[   12.345678] EDAC MC0: 1 CE memory read error",
			name+`"/EDAC/" matched at line 2 of "dmesg".`)),
		onDmesg("missing", of("-m", "/Xid/"), outputMissing("dmesg", "/Xid/", name+`"/Xid/" failed to match "dmesg" output.`)),
		onDmesg("one of two missing", of("-m", "/Xid/", "-m", "/nvidia/"),
			outputMissing("dmesg", "/Xid/", name+`"/Xid/" failed to match "dmesg" output (1/2 patterns failed).`)),
		onDmesg("own message", of("-m", "!/EDAC/", "-M", "memory error: %L"), outputFound("dmesg", "/EDAC/",
			"[   12.345678] EDAC MC0: 1 CE memory read error", name+"memory error: [   12.345678] EDAC MC0: 1 CE memory read error.")).
			orTable(map[string]any{"match": "!/EDAC/", "message": "memory error: %L"}),
		onDmesg("more messages than patterns", of("-M", "x"),
			usageFinding(name+"Message count (0) must not exceed match string count (0).", "")),
		onDmesg("status", of(), cmdFinding("cmd.status", "dmesg", name+`1 returned by "dmesg".`, "0", "1")).printing("exit 1\n"),
		onDmesg("another status than wanted", of("-r", "2"),
			cmdFinding("cmd.status", "dmesg", name+`1 (expected 2) returned by "dmesg".`, "2", "1")).printing("exit 1\n"),
		onDmesg("timeout", of("-t", "1"), cmdFinding("cmd.timeout", "dmesg", name+`TIMEOUT after 1s for "dmesg"; subprocess terminated.`, "0", "143")).
			printing("exec sleep 20\n"),
		onDmesg("longer than the run", of("-t", "31"), usageFinding(name+"Command timeout 31 exceeds NHC timeout 30", "")).in(30 * time.Second),
		onDmesg("unknown option", of("-q"), usageFinding(name+"Invalid option:  -q", "one of -m -M -r -t -e -O")),
		onDmesg("-C is not for users", of("-C", "x"), usageFinding(name+"Invalid option:  -C", "one of -m -M -r -t -e -O")),
		onDmesg("option without its argument", of("-m"), usageFinding(name+"Option -m requires an argument.", "")),
		onDmesg("timeout is no number", of("-t", "soon"), cmdValue("check_cmd_dmesg", "timeout", "soon", "whole seconds")),

		onDmesg("rubbish", of("-m", "!/Xid/")).printing(`printf '\000\377\n\n'` + "\n").onBroken(),
		{name: "no dmesg", broken: true, acts: true, words: of("-m", "/x/"),
			want: []Finding{cmdFinding("cmd.status", "dmesg", name+`127 returned by "dmesg".`, "0", "127: run dmesg: file does not exist")}},
	}
})
