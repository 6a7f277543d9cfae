package genconf

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// oddNames are possible names of mount points, sources and devices.
var oddNames = []string{
	"/home", "/a b", "/a  b", "/a   b ", " ", "  ", "/it's", `/say "x"`, `/back\slash`, `/end\`, `\\\`, "/$HOME", "/`id`", "/$(id)", "/*", "/[a-z]?",
	"/a||b", "||", "/#x", "#x", "-f", "!x", "!", "/re/", "/", "{a1,b2}", "{}", "@(a|b)", "+(x)", "a;b", "a&b|c<d>e", "~", "~root", "/tab\there", "\t\t",
	"/new\nline", "/cr\r", "/bell\a", "/del\x7f", "/é ü", "/bad\xff\xfeutf8", "/x\uFFFDy", "a=b", "'", "''", `'\''`, "nfs1:/export/a b", "10.0.0.1@o2ib:/scratch",
	"a'  'b", "(x)", "x  \\", "",
}

// lineReader reads a line as LBNL NHC does: read without -r; the check is the text behind the
// first "||"; eval without quotes.
const lineReader = `
set -f
show() { printf '%s\0' "$@"; }
while read LINE; do
	CHECK="${LINE#*||}"
	eval show $CHECK
done`

func TestWordsSurviveBash(t *testing.T) {
	t.Parallel()
	bash := need.Program(t, "bash")
	var in strings.Builder
	for _, w := range oddNames {
		in.WriteString(confLine("node*", shellWord(w)+" -f "+shellWord(w)))
	}
	cmd := exec.CommandContext(t.Context(), bash, "-c", lineReader)
	cmd.Env = []string{"LC_ALL=C.UTF-8", "HOME=/wrong"}
	cmd.Stdin = strings.NewReader(in.String())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, w := range oddNames {
		want = append(want, w, "-f", w)
	}
	got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("words (-want +got):\n%s", diff)
	}
}

// TestWordsSurviveUs reads lines as this program does. TestWordsSurviveBash has the lines that only
// bash can read.
func TestWordsSurviveUs(t *testing.T) {
	t.Parallel()
	for _, w := range oddNames {
		text := confLine("*", "check_fs_mount -f "+shellWord(w))
		lines, warnings, err := conf.Parse("x", []byte(text))
		if err != nil || len(lines) != 1 || len(warnings) > 0 {
			t.Errorf("%q: %q: %v, %v, %v", w, text, lines, warnings, err)
			continue
		}
		s := plan.Build(lines, plan.Options{}).Steps[0]
		if s.Kind == plan.ShellLine {
			if !strings.Contains(text, "$'") {
				t.Errorf("%q: %q needs a shell: %s", w, text, s.Why)
			}
			continue
		}
		if diff := cmp.Diff([]string{"-f", w}, s.Args); diff != "" {
			t.Errorf("%q: %q (-want +got):\n%s", w, text, diff)
		}
	}
}

func TestLiteralMatch(t *testing.T) {
	t.Parallel()
	var m match.Matcher
	for _, s := range oddNames {
		for _, other := range oddNames {
			got, err := m.Match(other, literalMatch(s))
			if err != nil || got != (s == other) {
				t.Errorf("Match(%q, %q) = %v, %v", other, literalMatch(s), got, err)
			}
		}
	}
}

func FuzzShellWord(f *testing.F) {
	for _, w := range oddNames {
		f.Add(w)
	}
	f.Fuzz(func(t *testing.T, w string) {
		if strings.Contains(w, "\x00") { // no name in a file system has one
			return
		}
		text := confLine("*", "check_fs_mount -f "+shellWord(w))
		if bytes.ContainsFunc([]byte(strings.TrimSuffix(text, "\n")), isControl) {
			t.Fatalf("%q: control characters in %q", w, text)
		}
		lines, _, err := conf.Parse("x", []byte(text))
		if err != nil || len(lines) != 1 {
			t.Fatalf("%q: %q is read as %q, %v", w, text, lines, err)
		}
		s := plan.Build(lines, plan.Options{}).Steps[0]
		if s.Kind != plan.ShellLine && !cmp.Equal(s.Args, []string{"-f", w}) {
			t.Fatalf("%q: %q is read as %q", w, text, s.Args)
		}
	})
}

func TestSheet(t *testing.T) {
	t.Parallel()
	var s sheet
	s.comment("text with a \\ and a \n in it")
	s.heading("Some checks")
	if !s.check("check_hw_eth", "lo") || s.check("check_nosuch", "x") {
		t.Error("a line for an unknown check, or no line for a known one")
	}
	s.check("check_hw_eth", "eth0")
	s.about("another %s", "network interface")
	s.lines[len(s.lines)-1].found = "gone"
	s.suggest("check_hw_eth", `back\slash`)
	s.lines = append(s.lines, sheetLine{check: "check_hw_eth x", why: "gone"})
	s.warn("odd %s", "thing")
	want := `# text with a ? and a ? in it

#######################################################################
###
### Some checks
###
# a network interface exists
 n\\.x || check_hw_eth lo
# another network interface
# this line found a fault, gone:
 n\\.x || check_hw_eth eth0
# n\\.x || check_hw_eth 'back\\slash'
# not written, gone:
# n\\.x || check_hw_eth x
# odd thing
`
	if diff := cmp.Diff(want, s.render(`n\.x`)); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"odd thing"}, s.warnings); diff != "" {
		t.Errorf("warnings (-want +got):\n%s", diff)
	}
}
