package lbnl

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// onFiles returns a scenario of a node with a directory /t, which is the working directory.
func onFiles(name string, words []string, want ...checks.Finding) checktest.Scenario {
	return checktest.Scenario{
		Name: name, Words: words, Want: want, Tools: []string{"bash"},
		Files: map[string]string{"t/reg": "x", "t/empty": "", "t/dir/": "", "t/with space": "x", "t/a*": "x", "t/$x": "x", "home/me/.ok": "x"},
		Links: map[string]string{"t/link": "reg", "t/dangling": "nowhere"},
		Vars:  map[string]string{"PWD": "/t", "HOME": "/home/me", "T": "/t", "TWO": "/t/reg /t/reg", "EMPTY": ""},
	}
}

// returned returns the finding of one operator that fails for one file.
func returned(op, file string, status int) checks.Finding {
	f := checks.Finding{Code: "file.test", Severity: checks.Fail, Device: checks.Device{Kind: "file", Name: file}, Want: op, Got: "not " + op,
		Message: fmt.Sprintf("check_file_test:  %s %s returned %d.", op, file, status)}
	if status == 0 {
		f.Want, f.Got = f.Got, f.Want
	}
	return f
}

func TestFileTest(t *testing.T) { checktest.Run(t, "check_file_test") }

var _ = checktest.Table("check_file_test", func(string) []checktest.Scenario {
	return []checktest.Scenario{
		onFiles("one", checktest.Of("-f", "/t/reg")).OrTable(map[string]any{"test": "f", "files": "/t/reg"}),
		onFiles("several", checktest.Of("/t/reg", "-e", "-f", "/t/empty", "-r")).
			OrTable(map[string]any{"test": "efr", "files": []any{"/t/reg", "/t/empty"}}),
		onFiles("link", checktest.Of("-L", "-h", "/t/link", "/t/dangling")),
		onFiles("relative", checktest.Of("-s", "reg")),
		onFiles("negated", checktest.Of("-!", "-f", "/t/reg", "/t/dir")).
			OrTable(map[string]any{"negate": true, "test": "f", "files": []any{"/t/reg", "/t/dir"}}),
		onFiles("quoted blank", checktest.Of("-f", `"/t/with space"`, `'/t/with space'`, `/t/with\ space`)),
		onFiles("home directory", checktest.Of("-e", "~/.ok", "${HOME}/.ok", `"$HOME/.ok"`)),
		onFiles("variables", checktest.Of("-f", "$T/reg", "${T}/reg", `"$T"/reg`)),
		onFiles("no wildcards", checktest.Of("-f", "/t/a*")),
		onFiles("an empty word is one argument of test", checktest.Of("-e", "")),
		onFiles("an unset variable is, too", checktest.Of("-e", "$EMPTY")),
		onFiles("a dollar sign in single quotes", checktest.Of("-f", "'/t/$x'", `/t/\$x`)),
		onFiles("two tests in one, by bash", checktest.Of("-e", "{root}/t/reg -a -d {root}/t/dir")),
		onFiles("default value, by bash", checktest.Of("-d", "${NONE:-/usr}")),
	}
})

var _ = checktest.Table("check_file_test", func(string) []checktest.Scenario {
	const syntax = "check_file_test:  Syntax error:  "
	const letters = "one letter of abcdefghkprstuwxOGLSN"
	return []checktest.Scenario{
		onFiles("not there", checktest.Of("-e", "/t/none"), returned("-e", "/t/none", 1)),
		onFiles("dangling link", checktest.Of("-e", "/t/dangling"), returned("-e", "/t/dangling", 1)),
		onFiles("empty file", checktest.Of("-s", "/t/reg", "/t/empty"), returned("-s", "/t/empty", 1)),
		onFiles("operators before files", checktest.Of("-d", "-x", "/t/dir", "/t/reg"), returned("-d", "/t/reg", 1)),
		onFiles("wildcards match nothing", checktest.Of("-e", "/t/*"), returned("-e", "/t/*", 1)),
		onFiles("blank", checktest.Of("-f", "/t/with space"), returned("-f", "/t/with space", 2)),
		onFiles("comparison, by bash", checktest.Of("-e", "= x"), returned("-e", "= x", 1)),
		onFiles("two tests in one, one is false", checktest.Of("-e", "{root}/t/reg -a -d {root}/t/reg"), returned("-e", "{root}/t/reg -a -d {root}/t/reg", 1)),
		onFiles("too many arguments", checktest.Of("-e", "/t/reg -x"), returned("-e", "/t/reg -x", 2)),
		onFiles("variable with a blank", checktest.Of("-f", "$TWO"), returned("-f", "$TWO", 2)),
		onFiles("quoted variable with a blank", checktest.Of("-f", `"$TWO"`), returned("-f", `"$TWO"`, 1)),
		onFiles("empty quotes", checktest.Of("-e", `""`), returned("-e", `""`, 1)),
		onFiles("command, by bash", checktest.Of("-d", "`echo /no/such`"), returned("-d", "`echo /no/such`", 1)),
		onFiles("negated, all hold", checktest.Of("-!", "-e", "-f", "/t/reg", "/t/link"), returned("-f", "/t/link", 0)),

		onFiles("no arguments", checktest.Of(), checktest.UsageFinding(syntax+"Missing parameters.", "")),
		onFiles("no operator", checktest.Of("/t/reg"), checktest.UsageFinding(syntax+"Missing parameters.", "")),
		onFiles("no file", checktest.Of("-r", "-!"), checktest.UsageFinding(syntax+"Missing parameters.", "")),
		onFiles("two letters", checktest.Of("-rw", "/t/reg"), checktest.UsageFinding(syntax+`Invalid/unsupported operator "-rw".`, letters)),
		onFiles("unknown letter", checktest.Of("-z", "/t/reg"), checktest.UsageFinding(syntax+`Invalid/unsupported operator "-z".`, letters)),
		{Name: "no tree", Broken: true, Words: checktest.Of("-e", "/t/reg"), Want: []checks.Finding{returned("-e", "/t/reg", 1)}},
		{Name: "a file for a directory", Broken: true, Words: checktest.Of("-e", "/t/reg"), Files: map[string]string{"t": ""},
			Want: []checks.Finding{returned("-e", "/t/reg", 1)}},
	}
})

func TestMissingOperand(t *testing.T) {
	t.Parallel()
	f := badOperator("", &checks.UsageError{Kind: checks.MissingWord, Want: "a name"})
	if want := "check_file_test:  Syntax error:  missing argument, want a name"; f.Message != want {
		t.Errorf("got %q, want %q", f.Message, want)
	}
}
