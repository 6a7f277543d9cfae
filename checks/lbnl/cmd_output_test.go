package lbnl

import (
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// cmdFinding returns the finding of a check that runs a command; text is the whole message.
func cmdFinding(code, command, text, want, got string) checks.Finding {
	return checks.Finding{
		Code: code, Severity: checks.Fail, Device: checks.Device{Kind: "command", Name: command}, Want: want, Got: got, Message: text}
}

// onLine returns a scenario whose command runs on this machine.
func onLine(name string, words []string, want ...checks.Finding) checktest.Scenario {
	return checktest.Scenario{Name: name, Words: words, Want: want, Live: true, Acts: true}
}

func cmdValue(check, what, word, want string) checks.Finding {
	return checks.Finding{Code: "config.value", Severity: checks.Fail, Remedy: checks.FixConfig, Want: want, Got: word,
		Message: check + `:  Invalid ` + what + ` "` + word + `"; want ` + want + "."}
}

func outputStatus(command, text, want, got string) checks.Finding {
	return cmdFinding("cmd.status", command, "check_cmd_output:  "+text+` returned by "`+command+`".`, want, got)
}

func outputFound(command, expr, line, text string) checks.Finding {
	return cmdFinding("cmd.output.found", command, text, "no line that matches "+expr, line)
}

func outputMissing(command, expr, text string) checks.Finding {
	return cmdFinding("cmd.output.missing", command, text, "a line that matches "+expr, "")
}

// arrayFinding returns the finding that sets a shell array.
func arrayFinding(name, lines string) checks.Finding {
	return checks.Finding{Code: checks.ArrayCode, Device: checks.Device{Kind: "variable", Name: name}, Got: lines}
}

// outputScript also prints empty lines and a zero byte.
var outputScript = map[string]string{"p": "#!/bin/sh\nprintf 'one\\n\\n\\nbad line\\n\\0\\n'\n"}

func TestCmdOutput(t *testing.T) { checktest.Run(t, "check_cmd_output") }

var _ = checktest.Table("check_cmd_output", func(string) []checktest.Scenario {
	return []checktest.Scenario{
		onLine("no patterns", checktest.Of("true")).OrTable(map[string]any{"argv": []any{"true"}}),
		onLine("split at blanks", checktest.Of("-m", "hello world", "-e", "echo hello   world")).
			OrTable(map[string]any{"match": "hello world", "command": "echo hello   world"}),
		onLine("quotes have no effect", checktest.Of("-m", "'a b'", "-e", "echo 'a b'")),
		onLine("no pipes", checktest.Of("-m", "a | cat", "-e", "echo a | cat")),
		onLine("the extra empty line", checktest.Of("-m", "/^$/", "echo", "one")),
		onLine("lines for the shell", checktest.Of("-O", "VAR", "printf", `a\n\nb  c\n`), arrayFinding("VAR", "a\nb  c")),
		onLine("not a variable name", checktest.Of("-O", "V[0]", "true")),
		onLine("all of several", checktest.Of("-m", "a", "-m", "!c", "-m", "/b/", "printf", `b\na\n`)),
		onLine("expected status", checktest.Of("-t", "60", "-r", "3", "-m", "out", "sh", "-c", "echo out; exit 3")).
			OrTable(map[string]any{"timeout": int64(60), "status": int64(3), "match": "out", "argv": []any{"sh", "-c", "echo out; exit 3"}}),
		onLine("expected signal", checktest.Of("-r", "137", "sh", "-c", "kill -9 $$")),
		inRoot(onLine("relative program", checktest.Of("-m", "one", "./p")), outputScript),
	}
})

var _ = checktest.Table("check_cmd_output", func(string) []checktest.Scenario {
	const name = "check_cmd_output:  "
	return []checktest.Scenario{
		inRoot(onLine("found", checktest.Of("-m", "!/bad/", "{root}/p"),
			outputFound("{root}/p", "/bad/", "bad line", name+`"/bad/" matched at line 2 of "{root}/p".`)), outputScript),
		onLine("the extra line is forbidden", checktest.Of("-m", "!*", "true"), outputFound("true", "*", "", name+`"*" matched at line 1 of "true".`)),
		onLine("missing", checktest.Of("-m", "/x/", "echo", "q"), outputMissing("echo q", "/x/", name+`"/x/" failed to match "echo q" output.`)),
		onLine("one of two missing", checktest.Of("-m", "q", "-m", "/x/", "echo", "q"),
			outputMissing("echo q", "/x/", name+`"/x/" failed to match "echo q" output (1/2 patterns failed).`)),
		onLine("both missing", checktest.Of("-m", "/y/", "-m", "/x/", "echo", "q"),
			outputMissing("echo q", "/y/", name+`"/y/" failed to match "echo q" output (2/2 patterns failed).`)),
		onLine("status", checktest.Of("sh", "-c", "exit 3"), outputStatus("sh -c exit 3", "3", "0", "3")),
		onLine("unexpected status", checktest.Of("-r", "3", "false"), outputStatus("false", "1 (expected 3)", "3", "1")),
		onLine("status comes before missing", checktest.Of("-m", "/x/", "sh", "-c", "echo q; exit 2"), outputStatus("sh -c echo q; exit 2", "2", "0", "2")),
		onLine("found precedes status", checktest.Of("-m", "!/q/", "sh", "-c", "echo q; exit 2"),
			outputFound("sh -c echo q; exit 2", "/q/", "q", name+`"/q/" matched at line 1 of "sh -c echo q; exit 2".`)),
		onLine("killed", checktest.Of("sh", "-c", "kill -9 $$"), outputStatus("sh -c kill -9 $$", "137", "0", "137")),
		onLine("not found", checktest.Of("/no/such/program", "-x"),
			outputStatus("/no/such/program -x", "127", "0", "127: run /no/such/program: no such file or directory")),
		onLine("builtins are no programs", checktest.Of("-e", "exit 3"), outputStatus("exit 3", "127", "0", "127: run exit: file does not exist")),
		onLine("own name and messages", checktest.Of("-C", "my_check", "-M", "saw %m at %l of %c: %L", "-m", "!/bad/", "sh", "-c", "echo a; echo 'bad $\"`'"),
			outputFound("sh -c echo a; echo 'bad $\"`'", "/bad/", "bad $\"`", "my_check:  saw /bad/ at 2 of sh -c echo a; echo 'bad $\"`': bad .")),
		onLine("one pattern leaves %f alone", checktest.Of("-M", "(%f)", "-m", "x", "echo", "q"), outputMissing("echo q", "x", name+"(%f).")),
		onLine("no name", checktest.Of("-C", "", "-m", "x", "echo", "q"), outputMissing("echo q", "x", `:  "x" failed to match "echo q" output.`)),
		onLine("messages by position", checktest.Of("-M", "", "-M", "want %m from %c (%f)", "-m", "q", "-m", "/x2/", "echo", "q"),
			outputMissing("echo q", "/x2/", name+"want /x2/ from echo q (1/2).")).
			OrTable(map[string]any{"message": []any{"", "want %m from %c (%f)"}, "match": []any{"q", "/x2/"}, "argv": []any{"echo", "q"}}),
		onLine("timeout", checktest.Of("-t", "1", "-m", "ready", "sh", "-c", "echo ready; exec sleep 20"),
			cmdFinding("cmd.timeout", "sh -c echo ready; exec sleep 20",
				name+`TIMEOUT after 1s for "sh -c echo ready; exec sleep 20"; subprocess terminated.`, "0", "143")),
	}
})

var _ = checktest.Table("check_cmd_output", func(string) []checktest.Scenario {
	const name = "check_cmd_output:  "
	return []checktest.Scenario{
		onLine("no command", checktest.Of("-m", "x", ""), checktest.UsageFinding(name+"Syntax error:  No command specified", "")),
		onLine("longer than the run", checktest.Of("-t", "31", "true"), checktest.UsageFinding(name+"Command timeout 31 exceeds NHC timeout 30", "")).In(30 * time.Second),
		onLine("default longer than the run", checktest.Of("true"), checktest.UsageFinding(name+"Command timeout 5 exceeds NHC timeout 3", "")).In(3 * time.Second),
		onLine("as long as the run", checktest.Of("-t", "3", "true")).In(3 * time.Second),
		onLine("more messages than patterns", checktest.Of("-M", "a", "-M", "b", "-m", "x", "true"),
			checktest.UsageFinding(name+"Message count (1) must not exceed match string count (0).", "")),
		onLine("timeout is no number", checktest.Of("-t", "5s", "true"), cmdValue("check_cmd_output", "timeout", "5s", "whole seconds")),
		onLine("status is no number", checktest.Of("-r", "1.5", "true"), cmdValue("check_cmd_output", "exit status", "1.5", "a whole number")),
		onLine("unknown option under another name", checktest.Of("-C", "my_check", "-q", "true"),
			checktest.UsageFinding("my_check:  Invalid option:  -q", "one of -e -m -M -r -t -C -O")),
		onLine("unknown option", checktest.Of("-q", "true"), checktest.UsageFinding(name+"Invalid option:  -q", "one of -e -m -M -r -t -C -O")),
		onLine("option without its argument", checktest.Of("-m"), checktest.UsageFinding(name+"Option -m requires an argument.", "")),

		onLine("garbage", checktest.Of("-m", "!/abc/", "head", "-c", "100000", "/dev/zero")).OnBroken(),
		onLine("too much output", checktest.Of("-m", "!/abc/", "-t", "60", "head", "-c", "5000000", "/dev/zero"), checks.Finding{
			Code: "cmd.output.long", Severity: checks.Unknown, Device: checks.Device{Kind: "command", Name: "head -c 5000000 /dev/zero"},
			Message: name + `output of "head -c 5000000 /dev/zero" is longer than 4194304 bytes`}).OnBroken(),
	}
})
