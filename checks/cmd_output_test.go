package checks

import (
	"testing"
	"time"
)

// cmdFinding is what a command check says about a command; text stands behind
// the name of the check.
func cmdFinding(code, command, text, want, got string) Finding {
	return Finding{
		Code: code, Severity: Fail, Device: Device{Kind: "command", Name: command}, Want: want, Got: got, Message: text}
}

// onLine is a scenario of a command, which runs on this machine.
func onLine(name string, words []string, want ...Finding) scenario {
	return scenario{name: name, words: words, want: want, live: true, acts: true}
}

func cmdValue(check, what, word, want string) Finding {
	return Finding{Code: "config.value", Severity: Fail, Remedy: FixConfig, Want: want, Got: word,
		Message: check + `:  Invalid ` + what + ` "` + word + `"; want ` + want + "."}
}

func outputStatus(command, text, want, got string) Finding {
	return cmdFinding("cmd.status", command, "check_cmd_output:  "+text+` returned by "`+command+`".`, want, got)
}

func outputFound(command, expr, line, text string) Finding {
	return cmdFinding("cmd.output.found", command, text, "no line that matches "+expr, line)
}

func outputMissing(command, expr, text string) Finding {
	return cmdFinding("cmd.output.missing", command, text, "a line that matches "+expr, "")
}

// arrayFinding is what an array of the shell gets.
func arrayFinding(name, lines string) Finding {
	return Finding{Code: ArrayCode, Device: Device{Kind: "variable", Name: name}, Got: lines}
}

// outputScript prints empty lines and a zero byte, too.
var outputScript = map[string]string{"p": "#!/bin/sh\nprintf 'one\\n\\n\\nbad line\\n\\0\\n'\n"}

func TestCmdOutput(t *testing.T) { testCheck(t, "check_cmd_output") }

var _ = table("check_cmd_output", func(string) []scenario {
	return []scenario{
		onLine("no patterns", of("true")).orTable(map[string]any{"argv": []any{"true"}}),
		onLine("split at blanks", of("-m", "hello world", "-e", "echo hello   world")).
			orTable(map[string]any{"match": "hello world", "command": "echo hello   world"}),
		onLine("quotes are nothing special", of("-m", "'a b'", "-e", "echo 'a b'")),
		onLine("no pipes", of("-m", "a | cat", "-e", "echo a | cat")),
		onLine("the extra empty line", of("-m", "/^$/", "echo", "one")),
		onLine("lines for the shell", of("-O", "VAR", "printf", `a\n\nb  c\n`), arrayFinding("VAR", "a\nb  c")),
		onLine("not for a variable", of("-O", "V[0]", "true")),
		onLine("all of several", of("-m", "a", "-m", "!c", "-m", "/b/", "printf", `b\na\n`)),
		onLine("wanted status", of("-t", "60", "-r", "3", "-m", "out", "sh", "-c", "echo out; exit 3")).
			orTable(map[string]any{"timeout": int64(60), "status": int64(3), "match": "out", "argv": []any{"sh", "-c", "echo out; exit 3"}}),
		onLine("wanted signal", of("-r", "137", "sh", "-c", "kill -9 $$")),
		onLine("relative program", of("-m", "one", "./p")).inRoot(outputScript),
	}
})

var _ = table("check_cmd_output", func(string) []scenario {
	const name = "check_cmd_output:  "
	return []scenario{
		onLine("found", of("-m", "!/bad/", "{root}/p"),
			outputFound("{root}/p", "/bad/", "bad line", name+`"/bad/" matched at line 2 of "{root}/p".`)).inRoot(outputScript),
		onLine("the extra line must not be there", of("-m", "!*", "true"), outputFound("true", "*", "", name+`"*" matched at line 1 of "true".`)),
		onLine("missing", of("-m", "/x/", "echo", "q"), outputMissing("echo q", "/x/", name+`"/x/" failed to match "echo q" output.`)),
		onLine("one of two missing", of("-m", "q", "-m", "/x/", "echo", "q"),
			outputMissing("echo q", "/x/", name+`"/x/" failed to match "echo q" output (1/2 patterns failed).`)),
		onLine("both missing", of("-m", "/y/", "-m", "/x/", "echo", "q"),
			outputMissing("echo q", "/y/", name+`"/y/" failed to match "echo q" output (2/2 patterns failed).`)),
		onLine("status", of("sh", "-c", "exit 3"), outputStatus("sh -c exit 3", "3", "0", "3")),
		onLine("another status than wanted", of("-r", "3", "false"), outputStatus("false", "1 (expected 3)", "3", "1")),
		onLine("status comes before missing", of("-m", "/x/", "sh", "-c", "echo q; exit 2"), outputStatus("sh -c echo q; exit 2", "2", "0", "2")),
		onLine("found comes before status", of("-m", "!/q/", "sh", "-c", "echo q; exit 2"),
			outputFound("sh -c echo q; exit 2", "/q/", "q", name+`"/q/" matched at line 1 of "sh -c echo q; exit 2".`)),
		onLine("killed", of("sh", "-c", "kill -9 $$"), outputStatus("sh -c kill -9 $$", "137", "0", "137")),
		onLine("not found", of("/no/such/program", "-x"),
			outputStatus("/no/such/program -x", "127", "0", "127: run /no/such/program: no such file or directory")),
		onLine("builtins are no programs", of("-e", "exit 3"), outputStatus("exit 3", "127", "0", "127: run exit: file does not exist")),
		onLine("own name and messages", of("-C", "my_check", "-M", "saw %m at %l of %c: %L", "-m", "!/bad/", "sh", "-c", "echo a; echo 'bad $\"`'"),
			outputFound("sh -c echo a; echo 'bad $\"`'", "/bad/", "bad $\"`", "my_check:  saw /bad/ at 2 of sh -c echo a; echo 'bad $\"`': bad .")),
		onLine("one pattern leaves %f alone", of("-M", "(%f)", "-m", "x", "echo", "q"), outputMissing("echo q", "x", name+"(%f).")),
		onLine("no name", of("-C", "", "-m", "x", "echo", "q"), outputMissing("echo q", "x", `:  "x" failed to match "echo q" output.`)),
		onLine("messages by position", of("-M", "", "-M", "want %m from %c (%f)", "-m", "q", "-m", "/x2/", "echo", "q"),
			outputMissing("echo q", "/x2/", name+"want /x2/ from echo q (1/2).")).
			orTable(map[string]any{"message": []any{"", "want %m from %c (%f)"}, "match": []any{"q", "/x2/"}, "argv": []any{"echo", "q"}}),
		onLine("timeout", of("-t", "1", "-m", "ready", "sh", "-c", "echo ready; exec sleep 20"),
			cmdFinding("cmd.timeout", "sh -c echo ready; exec sleep 20",
				name+`TIMEOUT after 1s for "sh -c echo ready; exec sleep 20"; subprocess terminated.`, "0", "143")),
	}
})

var _ = table("check_cmd_output", func(string) []scenario {
	const name = "check_cmd_output:  "
	return []scenario{
		onLine("no command", of("-m", "x", ""), usageFinding(name+"Syntax error:  No command specified", "")),
		onLine("longer than the run", of("-t", "31", "true"), usageFinding(name+"Command timeout 31 exceeds NHC timeout 30", "")).in(30 * time.Second),
		onLine("default longer than the run", of("true"), usageFinding(name+"Command timeout 5 exceeds NHC timeout 3", "")).in(3 * time.Second),
		onLine("as long as the run", of("-t", "3", "true")).in(3 * time.Second),
		onLine("more messages than patterns", of("-M", "a", "-M", "b", "-m", "x", "true"),
			usageFinding(name+"Message count (1) must not exceed match string count (0).", "")),
		onLine("timeout is no number", of("-t", "5s", "true"), cmdValue("check_cmd_output", "timeout", "5s", "whole seconds")),
		onLine("status is no number", of("-r", "1.5", "true"), cmdValue("check_cmd_output", "exit status", "1.5", "a whole number")),
		onLine("unknown option under another name", of("-C", "my_check", "-q", "true"),
			usageFinding("my_check:  Invalid option:  -q", "one of -e -m -M -r -t -C -O")),
		onLine("unknown option", of("-q", "true"), usageFinding(name+"Invalid option:  -q", "one of -e -m -M -r -t -C -O")),
		onLine("option without its argument", of("-m"), usageFinding(name+"Option -m requires an argument.", "")),

		onLine("garbage", of("-m", "!/abc/", "head", "-c", "100000", "/dev/zero")).onBroken(),
		onLine("too much output", of("-m", "!/abc/", "-t", "60", "head", "-c", "5000000", "/dev/zero"), Finding{
			Code: "cmd.output.long", Severity: Unknown, Device: Device{Kind: "command", Name: "head -c 5000000 /dev/zero"},
			Message: name + `output of "head -c 5000000 /dev/zero" is longer than 4194304 bytes`}).onBroken(),
	}
})
