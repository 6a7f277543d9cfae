package conf

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// at returns a check line in the file "t".
func at(line int, target, check string) Line { return Line{Pos{"t", line}, target, check} }

func TestParse(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, data string
		want       []Line
	}{
		{"plain", "* || true\nnode01 || false\n", []Line{at(1, "*", "true"), at(2, "node01", "false")}},
		{"nothing", "", nil},
		{"comments and empty lines", "# c\n\n \t\n#* || x\n # c || x\n* || # x\n", []Line{at(6, "*", "# x")}},
		{"a # inside of a target", "*# || a\n* # x || b\n", []Line{at(1, "*#", "a"), at(2, "* # x", "b")}},
		{"no target or no check", "|| x\n* ||\n* || \t\n", nil},
		{"blanks around", "  {n[0-5]}   ||echo A\n\t{n1}\t||\techo  B\t \n", []Line{at(1, "{n[0-5]}", "echo A"), at(2, "{n1}", "echo  B")}},
		{"blanks inside stay", "* || echo \"a  b\"\n* || echo 'x\ty'\n", []Line{at(1, "*", `echo "a  b"`), at(2, "*", "echo 'x\ty'")}},
		{"the first || splits", "* || a || b\n/^a||b$/ || c\n", []Line{at(1, "*", "a || b"), at(2, "/^a", "b$/ || c")}},
		{"more than two bars", "* ||| x\n* |||| y\n/n|/ || B\n", []Line{at(1, "*", "| x"), at(2, "*", "|| y"), at(3, "/n|/", "B")}},
		{"one level of backslashes goes", "/n\\.c/ || echo \\$A \\\\ \\\\\\\\ \\\"\n/n\\\\.c/ || x\n/n\\\\\\.c/ || x\n",
			[]Line{at(1, "/n.c/", `echo $A \ \\ "`), at(2, `/n\.c/`, "x"), at(3, `/n\.c/`, "x")}},
		{"escaped bars split as well", `* \|\| x` + "\n", []Line{at(1, "*", "x")}},
		{"escaped blanks are blanks", "\\ * || x\\ \n", []Line{at(1, "*", "x")}},
		{"joined lines", "* || a \\\n  b \\\nc\n* || d\n", []Line{at(1, "*", "a   b c"), at(4, "*", "d")}},
		{"a joined comment swallows a line", "# c \\\n* || swallowed\n* || kept\n", []Line{at(3, "*", "kept")}},
		{"the second level of backslashes does not join", "* || a \\\\\n* || b\n", []Line{at(1, "*", `a \`), at(2, "*", "b")}},
		{"last line without newline", "* || a\n* || b", []Line{at(1, "*", "a"), at(2, "*", "b")}},
		{"last line that is joined", "* || a \\\n* || b", []Line{at(1, "*", "a * || b")}},
		{"lone backslash at the end", "* || a\n* || b \\", []Line{at(1, "*", "a"), at(2, "*", "b")}},
		{"backslash and newline at the end", "* || b \\\n", []Line{at(1, "*", "b")}},
		{"carriage returns", "# c\r\n  \r\n\r\n* || echo hi \r\n* ||\r\n* || a \\\r\n b\r\n* || c\r",
			[]Line{at(4, "*", "echo hi"), at(6, "*", "a  b"), at(8, "*", "c")}},
		{"carriage return inside of a line", "* || a\rb\n", []Line{at(1, "*", "a\rb")}},
		{"backslash, carriage return, end", "* || a\\\r", []Line{at(1, "*", "a")}},
		{"other alphabets", "n* || echo grüße\nnöde || x\n", []Line{at(1, "n*", "echo grüße"), at(2, "nöde", "x")}},
		{"NUL bytes far behind", "* || " + strings.Repeat("x", 9000) + "\x00y\n", []Line{at(1, "*", strings.Repeat("x", 9000)+"y")}},
		{"nothing is expanded", "$H || a `b` $(c)\n", []Line{at(1, "$H", "a `b` $(c)")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, warnings, err := Parse("t", []byte(tt.data))
			if err != nil || warnings != nil {
				t.Errorf("warnings %v, error %v", warnings, err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseWarnings(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, data string
		want       []Warning
	}{
		{"a command without a target", "export FOO=1\n* | echo one\n\n* || x\n", []Warning{
			{Pos{"t", 1}, `no "||" in "export FOO=1", want "target || check": not run`},
			{Pos{"t", 2}, `no "||" in "* | echo one", want "target || check": not run`},
		}},
		{"a lone star, a host name", "*\nnode01", []Warning{
			{Pos{"t", 1}, `no "||" in "*", want "target || check": not run`},
			{Pos{"t", 2}, `no "||" in "node01", want "target || check": not run`},
		}},
		{"long lines are cut", "# c\n" + strings.Repeat("n", 100), []Warning{
			{Pos{"t", 2}, `no "||" in "` + strings.Repeat("n", 80) + `...", want "target || check": not run`},
		}},
		{"byte order mark", "\ufeff* || x\n", []Warning{{Pos{"t", 1}, "a byte order mark is part of the first target, want none"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, got, err := Parse("t", []byte(tt.data))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	t.Parallel()
	const binary = `nhc.conf: binary data, want lines of "target || check"`
	tests := []struct {
		name string
		data []byte
		want string
	}{
		{"NUL", []byte("* || a\x00b\n"), binary},
		{"control character", []byte("* || a\x01b\n"), binary},
		{"UTF-16", []byte("\xff\xfe*\x00 \x00|\x00"), binary},
		{"program", []byte("\x7fELF\x02\x01"), binary},
		{"too long", make([]byte, MaxSize+1), "nhc.conf: 2097153 bytes, want at most 2097152"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			lines, _, err := Parse("nhc.conf", tt.data)
			if err == nil || err.Error() != tt.want || lines != nil {
				t.Errorf("got %v, %v; want error %s", lines, err, tt.want)
			}
		})
	}
	if lines, _, err := Parse("t", []byte("* || \tprintf '\x1b[1m'\v\f\n")); err != nil || len(lines) != 1 {
		t.Errorf("text with escapes: got %v, %v", lines, err)
	}
}

// TestParseLong: the largest possible file, as one line and as many.
func TestParseLong(t *testing.T) {
	t.Parallel()
	one := "* || " + strings.Repeat("x\\\n", (MaxSize-5)/3)
	if lines, _, err := Parse("t", []byte(one)); err != nil || len(lines) != 1 || len(lines[0].Check) != (MaxSize-5)/3 {
		t.Errorf("one line: got %d, %v", len(lines), err)
	}
	many := strings.Repeat("*||x\n", MaxSize/5)
	if lines, _, err := Parse("t", []byte(many)); err != nil || len(lines) != MaxSize/5 {
		t.Errorf("many lines: got %d, %v", len(lines), err)
	}
}

// TestExample: the example configuration has no warnings and shows every check of the first
// version.
func TestExample(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("examples/nhc.conf")
	if err != nil {
		t.Fatal(err)
	}
	lines, warnings, err := Parse("nhc.conf", data)
	if err != nil || len(warnings) > 0 {
		t.Errorf("warnings %v, error %v", warnings, err)
	}
	shown := map[string]bool{}
	for _, l := range lines {
		name, _, _ := strings.Cut(l.Check, " ")
		shown[name] = true
	}
	for _, name := range []string{
		"check_fs_mount_rw", "check_fs_mount", "check_file_test", "check_hw_cpuinfo", "check_hw_physmem", "check_hw_eth",
		"check_hw_ib", "check_ps_service", "check_ps_daemon", "check_cmd_output", "check_cmd_status",
	} {
		if !shown[name] {
			t.Errorf("no line with %s", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"* || a\n", "# c \\\r\n* || x", "a\\\\\\", "||", "\\|\\| \\\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		lines, warnings, err := Parse("t", data)
		if err != nil && (lines != nil || warnings != nil) {
			t.Fatalf("lines %v, warnings %v beside error %v", lines, warnings, err)
		}
		last := 0
		for _, l := range lines {
			if l.Target == "" || l.Check == "" || l.Target[0] == '#' || strings.Contains(l.Target, "||") || strings.ContainsAny(l.Target+l.Check, "\n\x00") {
				t.Fatalf("line %+v", l)
			}
			if l.Pos.Line <= last || l.Pos.Line > 1+strings.Count(string(data), "\n") {
				t.Fatalf("line %+v behind line %d", l, last)
			}
			last = l.Pos.Line
		}
	})
}
