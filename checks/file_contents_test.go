package checks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// contentsNode has files of lines.
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

func onContents(name string, words []string, want ...Finding) scenario {
	return scenario{name: name, words: words, files: contentsNode, want: want}
}

func contentsFinding(code, file, text, want, got string) Finding {
	return Finding{Code: "file.contents." + code, Severity: Fail, Device: Device{Kind: "file", Name: file}, Want: want, Got: got,
		Message: `check_file_contents:  File "` + file + `" ` + text}
}

func lineMissing(file, expr, got string) Finding {
	return contentsFinding("missing", file, `failed to match "`+expr+`".`, "a line that matches "+expr, got)
}

func lineFound(file, number, expr, got string) Finding {
	return contentsFinding("found", file, "line "+number+` matches "`+expr+`".`, "no line that matches "+expr, got)
}

func someMissing(file, share, expr, got string) Finding {
	return contentsFinding("missing", file, "matched "+share+` patterns.  First failed match:  "`+expr+`".`, "a line that matches "+expr, got)
}

func TestFileContents(t *testing.T) { testCheck(t, "check_file_contents") }

var _ = table("check_file_contents", func(string) []scenario {
	return []scenario{
		onContents("globs match whole lines", of("/etc/c", "server *", "*ntp?", "last = [0-9]")).
			orTable(map[string]any{"file": "/etc/c", "match": []any{"server *", "*ntp?", "last = [0-9]"}}),
		onContents("expressions match parts", of("/etc/c", "/erver/", `/foo\(bar\)/`)),
		onContents("blanks and backslashes are removed", of("/etc/c", "indented value", "backslash", "/^$/", "")),
		onContents("last line without newline", of("/etc/c", "no newline")),
		onContents("absent", of("/etc/c", "!/absent/", "!nothing*")),
		onContents("not every line is another", of("/etc/c", "!!*")),
		onContents("one line serves two", of("/etc/c", "/server/", "*")),
		onContents("joined lines", of("/two", "a   b", "c  ", " d", `e\`)),
		onContents("a file that ends in a backslash", of("/open", "a", "b")),
		onContents("no zero bytes, but carriage returns", of("/nul", "xy\r", "z")),
		onContents("relative", of("etc/c", "server*")).inside("/"),
		onContents("nothing wanted", of("/none")),
		onContents("no words", of()),
		onContents("no line is invented", of("/one", "!/^$/")),
		onContents("missing file, nothing wanted of it", of("/none", "!/x/")),
		onContents("directory", of("/d", "!/x/")),

		onContents("part of a line", of("/etc/c", "server"), lineMissing("/etc/c", "server", "")),
		onContents("empty file", of("/e", ""), lineMissing("/e", "", "")),
		onContents("must not be there", of("/etc/c", "/server/", "!/^last/"), lineFound("/etc/c", "6", "/^last/", "last = 1")),
		onContents("joined lines count once", of("/two", "!c*"), lineFound("/two", "2", "c*", "c  ")),
		onContents("last line without newline must not be there", of("/etc/c", "!no*"), lineFound("/etc/c", "8", "no*", "no newline")),
		onContents("one of three", of("/etc/c", "/server/", "/server/", "/nope/"), someMissing("/etc/c", "2/3", "/nope/", "")),
		onContents("negated ones count as matched", of("/etc/c", "!/x1/", "/x2/", "/x3/"), someMissing("/etc/c", "1/3", "/x2/", "")),
		onContents("not a valid expression", of("/etc/c", "/(/"), lineMissing("/etc/c", "/(/", "")),
		onContents("bad range", of("/one", "{n[1}"),
			Finding{Code: "config.match", Severity: Warn, Remedy: FixConfig, Message: "mcheck_range:  Range not in pdsh syntax:  n[1"},
			lineMissing("/one", "{n[1}", "")),

		onContents("missing file", of("/none", "/x/"), lineMissing("/none", "/x/", "read /none: no such file or directory")).onBroken(),
		onContents("missing file, two patterns", of("/none", "!/x/", "/y/"),
			someMissing("/none", "1/2", "/y/", "read /none: no such file or directory")).onBroken(),
		onContents("no name", of("", "/x/"), lineMissing("", "/x/", "read : no such file or directory")).onBroken(),
		onContents("directory with something wanted", of("/d", "x"), lineMissing("/d", "x", "read /d: is a directory")).onBroken(),
		onContents("link to itself, something wanted", of("/loop", "x"),
			lineMissing("/loop", "x", "read /loop: too many levels of symbolic links")).looping().onBroken(),
		onContents("link to itself, something not", of("/loop", "!x"),
			unreadableFile("/loop: too many levels of symbolic links")).looping().onBroken(),
		onContents("endless line", of("/line", "!y"),
			unreadableFile("/line: no lines to be had: a line of more than 1048576 bytes")).onBroken(),
		onContents("endlessly joined lines", of("/long", "y"),
			unreadableFile("/long: no lines to be had: backslashes join more than 1048576 bytes")).onBroken(),
	}
})

// inside gives a scenario a working directory.
func (s scenario) inside(dir string) scenario {
	s.vars = map[string]string{"PWD": dir}
	return s
}

func (s scenario) looping() scenario {
	s.links = map[string]string{"loop": "loop"}
	return s
}

func unreadableFile(text string) Finding {
	return Finding{Code: "probe.unreadable", Severity: Unknown, Message: "check_file_contents:  read " + text}
}

// TestContentsOfPipe holds that a FIFO without a writer is told from an empty
// file, and waits for nobody.
func TestContentsOfPipe(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(root, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := &Env{Host: probe.NewHost(root)}
	c := &fileContents{File: "/fifo", Match: []string{"ready", "!bad"}}
	const silent = "check_file_contents:  read /fifo: no lines to be had: a FIFO that nobody writes to"
	if got := c.Run(t.Context(), env); len(got) != 1 || got[0].Severity != Unknown || got[0].Message != silent {
		t.Errorf("nobody writes: %+v", got)
	}
	// A pipe that is open for both never ends; what it has said counts.
	w, err := os.OpenFile(filepath.Join(root, "fifo"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.WriteString("not yet\nbad\n"); err != nil {
		t.Fatal(err)
	}
	if got := c.Run(t.Context(), env); len(got) != 1 || got[0].Code != "file.contents.found" {
		t.Errorf("the writer stays: %+v", got)
	}
}

// FuzzContents compares what becomes of a text with what bash's read does to it
// where that is simple: lines without backslashes and zero bytes are trimmed.
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
			m.raw([]byte(raw))
		}
		if m.joining {
			m.line()
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
