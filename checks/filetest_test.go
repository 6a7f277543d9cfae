package checks

import (
	"fmt"
	"testing"
)

// onFiles is a node with a directory /t, where the shell lines before have gone.
func onFiles(name string, words []string, want ...Finding) scenario {
	return scenario{
		name: name, words: words, want: want, tools: []string{"bash"},
		files: map[string]string{"t/reg": "x", "t/empty": "", "t/dir/": "", "t/with space": "x", "t/a*": "x", "t/$x": "x", "home/me/.ok": "x"},
		links: map[string]string{"t/link": "reg", "t/dangling": "nowhere"},
		vars:  map[string]string{"PWD": "/t", "HOME": "/home/me", "T": "/t", "TWO": "/t/reg /t/reg", "EMPTY": ""},
	}
}

// returned is the failure of one operator on one file.
func returned(op, file string, status int) Finding {
	f := Finding{Code: "file.test", Severity: Fail, Device: Device{Kind: "file", Name: file}, Want: op, Got: "not " + op,
		Message: fmt.Sprintf("check_file_test:  %s %s returned %d.", op, file, status)}
	if status == 0 {
		f.Want, f.Got = f.Got, f.Want
	}
	return f
}

func TestFileTest(t *testing.T) { testCheck(t, "check_file_test") }

var _ = table("check_file_test", func(string) []scenario {
	return []scenario{
		onFiles("one", of("-f", "/t/reg")).orTable(map[string]any{"test": "f", "files": "/t/reg"}),
		onFiles("several", of("/t/reg", "-e", "-f", "/t/empty", "-r")).
			orTable(map[string]any{"test": "efr", "files": []any{"/t/reg", "/t/empty"}}),
		onFiles("link", of("-L", "-h", "/t/link", "/t/dangling")),
		onFiles("relative", of("-s", "reg")),
		onFiles("negated", of("-!", "-f", "/t/reg", "/t/dir")).
			orTable(map[string]any{"negate": true, "test": "f", "files": []any{"/t/reg", "/t/dir"}}),
		onFiles("quoted blank", of("-f", `"/t/with space"`, `'/t/with space'`, `/t/with\ space`)),
		onFiles("home directory", of("-e", "~/.ok", "${HOME}/.ok", `"$HOME/.ok"`)),
		onFiles("variables", of("-f", "$T/reg", "${T}/reg", `"$T"/reg`)),
		onFiles("no wildcards", of("-f", "/t/a*")),
		onFiles("an empty word is one argument of test", of("-e", "")),
		onFiles("an unset variable is, too", of("-e", "$EMPTY")),
		onFiles("a dollar sign in single quotes", of("-f", "'/t/$x'", `/t/\$x`)),
		onFiles("two tests in one, by bash", of("-e", "{root}/t/reg -a -d {root}/t/dir")),
		onFiles("default value, by bash", of("-d", "${NONE:-/usr}")),
	}
})

var _ = table("check_file_test", func(string) []scenario {
	const syntax = "check_file_test:  Syntax error:  "
	const letters = "one letter of abcdefghkprstuwxOGLSN"
	return []scenario{
		onFiles("not there", of("-e", "/t/none"), returned("-e", "/t/none", 1)),
		onFiles("dangling link", of("-e", "/t/dangling"), returned("-e", "/t/dangling", 1)),
		onFiles("empty file", of("-s", "/t/reg", "/t/empty"), returned("-s", "/t/empty", 1)),
		onFiles("operators before files", of("-d", "-x", "/t/dir", "/t/reg"), returned("-d", "/t/reg", 1)),
		onFiles("wildcards match nothing", of("-e", "/t/*"), returned("-e", "/t/*", 1)),
		onFiles("blank", of("-f", "/t/with space"), returned("-f", "/t/with space", 2)),
		onFiles("comparison, by bash", of("-e", "= x"), returned("-e", "= x", 1)),
		onFiles("two tests in one, one is false", of("-e", "{root}/t/reg -a -d {root}/t/reg"), returned("-e", "{root}/t/reg -a -d {root}/t/reg", 1)),
		onFiles("a dash too many", of("-e", "/t/reg -x"), returned("-e", "/t/reg -x", 2)),
		onFiles("variable with a blank", of("-f", "$TWO"), returned("-f", "$TWO", 2)),
		onFiles("quoted variable with a blank", of("-f", `"$TWO"`), returned("-f", `"$TWO"`, 1)),
		onFiles("empty quotes", of("-e", `""`), returned("-e", `""`, 1)),
		onFiles("command, by bash", of("-d", "`echo /no/such`"), returned("-d", "`echo /no/such`", 1)),
		onFiles("negated, all hold", of("-!", "-e", "-f", "/t/reg", "/t/link"), returned("-f", "/t/link", 0)),

		onFiles("no words", of(), usageFinding(syntax+"Missing parameters.", "")),
		onFiles("no operator", of("/t/reg"), usageFinding(syntax+"Missing parameters.", "")),
		onFiles("no file", of("-r", "-!"), usageFinding(syntax+"Missing parameters.", "")),
		onFiles("two letters", of("-rw", "/t/reg"), usageFinding(syntax+`Invalid/unsupported operator "-rw".`, letters)),
		onFiles("unknown letter", of("-z", "/t/reg"), usageFinding(syntax+`Invalid/unsupported operator "-z".`, letters)),
		{name: "no tree", broken: true, words: of("-e", "/t/reg"), want: []Finding{returned("-e", "/t/reg", 1)}},
		{name: "a file for a directory", broken: true, words: of("-e", "/t/reg"), files: map[string]string{"t": ""},
			want: []Finding{returned("-e", "/t/reg", 1)}},
	}
})

func TestMissingOperand(t *testing.T) {
	t.Parallel()
	f := badOperator("", &UsageError{Kind: MissingWord, Want: "a name"})
	if want := "check_file_test:  Syntax error:  missing argument, want a name"; f.Message != want {
		t.Errorf("got %q, want %q", f.Message, want)
	}
}
