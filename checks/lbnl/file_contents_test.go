package lbnl

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// contentsNode has the files that the scenarios read.
var contentsNode = map[string]string{
	"etc/c": "# comment\nserver ntp1\n  indented value\t\nback\\slash\n\nlast = 1\nfoo(bar) [x] $HOME\nno newline",
	"e":     "",
	"d/":    "",
	"one":   "one\n",
	"two":   "a \\\n  b\nc \\ \n\\ d\ne\\\\",
	"nul":   "x\x00y\r\nz",
	"open":  "a\nb\\",
	"line":  strings.Repeat("x", 2<<20),
	"long":  strings.Repeat("x\\\n", 1<<20+1),
}

func onContents(name string, words []string, want ...checks.Finding) checktest.Scenario {
	return checktest.Scenario{Name: name, Words: words, Files: contentsNode, Want: want}
}

func contentsFinding(code, file, text, want, got string) checks.Finding {
	return checks.Finding{Code: "file.contents." + code, Severity: checks.Fail, Device: checks.Device{Kind: "file", Name: file}, Want: want, Got: got,
		Message: `check_file_contents:  File "` + file + `" ` + text}
}

func lineMissing(file, expr, got string) checks.Finding {
	return contentsFinding("missing", file, `failed to match "`+expr+`".`, "a line that matches "+expr, got)
}

func lineFound(file, number, expr, got string) checks.Finding {
	return contentsFinding("found", file, "line "+number+` matches "`+expr+`".`, "no line that matches "+expr, got)
}

func someMissing(file, share, expr, got string) checks.Finding {
	return contentsFinding("missing", file, "matched "+share+` patterns.  First failed match:  "`+expr+`".`, "a line that matches "+expr, got)
}

func TestFileContents(t *testing.T) { checktest.Run(t, "check_file_contents") }

var _ = checktest.Table("check_file_contents", func(string) []checktest.Scenario {
	return []checktest.Scenario{
		onContents("globs match whole lines", checktest.Of("/etc/c", "server *", "*ntp?", "last = [0-9]")).
			OrTable(map[string]any{"file": "/etc/c", "match": []any{"server *", "*ntp?", "last = [0-9]"}}),
		onContents("expressions match parts", checktest.Of("/etc/c", "/erver/", `/foo\(bar\)/`)),
		onContents("blanks and backslashes are removed", checktest.Of("/etc/c", "indented value", "backslash", "/^$/", "")),
		onContents("last line without newline", checktest.Of("/etc/c", "no newline")),
		onContents("absent", checktest.Of("/etc/c", "!/absent/", "!nothing*")),
		onContents("double negation", checktest.Of("/etc/c", "!!*")),
		onContents("one line matches two", checktest.Of("/etc/c", "/server/", "*")),
		onContents("joined lines", checktest.Of("/two", "a   b", "c  ", " d", `e\`)),
		onContents("a file that ends in a backslash", checktest.Of("/open", "a", "b")),
		onContents("no zero bytes, but carriage returns", checktest.Of("/nul", "xy\r", "z")),
		inside(onContents("relative", checktest.Of("etc/c", "server*")), "/"),
		onContents("no match strings", checktest.Of("/none")),
		onContents("no arguments", checktest.Of()),
		onContents("no line is invented", checktest.Of("/one", "!/^$/")),
		onContents("missing file, only a negated match string", checktest.Of("/none", "!/x/")),
		onContents("directory", checktest.Of("/d", "!/x/")),

		onContents("part of a line", checktest.Of("/etc/c", "server"), lineMissing("/etc/c", "server", "")),
		onContents("empty file", checktest.Of("/e", ""), lineMissing("/e", "", "")),
		onContents("must not be there", checktest.Of("/etc/c", "/server/", "!/^last/"), lineFound("/etc/c", "6", "/^last/", "last = 1")),
		onContents("joined lines count once", checktest.Of("/two", "!c*"), lineFound("/two", "2", "c*", "c  ")),
		onContents("last line without newline must not be there", checktest.Of("/etc/c", "!no*"), lineFound("/etc/c", "8", "no*", "no newline")),
		onContents("one of three", checktest.Of("/etc/c", "/server/", "/server/", "/nope/"), someMissing("/etc/c", "2/3", "/nope/", "")),
		onContents("negated ones count as matched", checktest.Of("/etc/c", "!/x1/", "/x2/", "/x3/"), someMissing("/etc/c", "1/3", "/x2/", "")),
		onContents("not a valid expression", checktest.Of("/etc/c", "/(/"), lineMissing("/etc/c", "/(/", "")),
		onContents("bad range", checktest.Of("/one", "{n[1}"),
			checks.Finding{Code: "config.match", Severity: checks.Warn, Remedy: checks.FixConfig, Message: "mcheck_range:  Range not in pdsh syntax:  n[1"},
			lineMissing("/one", "{n[1}", "")),

		onContents("missing file", checktest.Of("/none", "/x/"), lineMissing("/none", "/x/", "read /none: no such file or directory")).OnBroken(),
		onContents("missing file, two patterns", checktest.Of("/none", "!/x/", "/y/"),
			someMissing("/none", "1/2", "/y/", "read /none: no such file or directory")).OnBroken(),
		onContents("no name", checktest.Of("", "/x/"), lineMissing("", "/x/", "read : no such file or directory")).OnBroken(),
		onContents("directory, required line", checktest.Of("/d", "x"), lineMissing("/d", "x", "read /d: is a directory")).OnBroken(),
		looping(onContents("link to itself, required line", checktest.Of("/loop", "x"),
			lineMissing("/loop", "x", "read /loop: too many levels of symbolic links"))).OnBroken(),
		looping(onContents("link to itself, negated", checktest.Of("/loop", "!x"),
			unreadableFile("/loop: too many levels of symbolic links"))).OnBroken(),
		onContents("endless line", checktest.Of("/line", "!y"),
			unreadableFile("/line: no lines: a line of more than 1048576 bytes")).OnBroken(),
		onContents("endlessly joined lines", checktest.Of("/long", "y"),
			unreadableFile("/long: no lines: backslashes join more than 1048576 bytes")).OnBroken(),
	}
})

// inside sets the working directory of a scenario.
func inside(s checktest.Scenario, dir string) checktest.Scenario {
	s.Vars = map[string]string{"PWD": dir}
	return s
}

func looping(s checktest.Scenario) checktest.Scenario {
	s.Links = map[string]string{"loop": "loop"}
	return s
}

func unreadableFile(text string) checks.Finding {
	return checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "check_file_contents:  read " + text}
}

// TestContentsOfPipe shows that a FIFO without a writer gives no result, unlike an empty file,
// and that the check does not wait for a writer.
func TestContentsOfPipe(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(root, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := &checks.Env{Host: probe.NewHost(root)}
	c := &fileContents{File: "/fifo", Match: []string{"ready", "!bad"}}
	const silent = "check_file_contents:  read /fifo: no lines: a FIFO without a writer"
	if got := c.Run(t.Context(), env); len(got) != 1 || got[0].Severity != checks.Unknown || got[0].Message != silent {
		t.Errorf("no writer: %+v", got)
	}
	// A FIFO that is open for reading and writing never ends; the lines that it has returned count.
	w, err := os.OpenFile(filepath.Join(root, "fifo"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.WriteString("not yet\nbad\n"); err != nil {
		t.Fatal(err)
	}
	if got := c.Run(t.Context(), env); len(got) != 1 || got[0].Code != "file.contents.found" {
		t.Errorf("a writer that does not close the FIFO: %+v", got)
	}
}

// FuzzContents compares the lines with those of bash's read for texts without backslashes and
// zero bytes: read only trims them.
func FuzzContents(f *testing.F) {
	f.Add("a\n b \n\nc")
	f.Add("\\\n\\ \\\\\n\x00\\")
	f.Fuzz(func(t *testing.T, text string) {
		var lines []string
		m := contentsMatch{
			fileContents: &fileContents{Match: []string{"never"}},
			found:        make([]bool, 1),
			match: func(s, _ string) bool {
				lines = append(lines, s)
				return false
			},
		}
		for raw := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
			m.add([]byte(raw))
		}
		if m.joining {
			m.compare()
		}
		if len(lines) != m.number || strings.Contains(strings.Join(lines, ""), "\x00") {
			t.Errorf("%q: lines %q, counted %d", text, lines, m.number)
		}
		if strings.ContainsAny(text, "\\\x00") {
			return
		}
		for i, raw := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
			if want := strings.Trim(raw, " \t"); i >= len(lines) || lines[i] != want {
				t.Fatalf("%q: lines %q, want %q as number %d", text, lines, want, i)
			}
		}
	})
}
