package conf

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

var (
	toStdout = LogTarget{Fd: 1, Opened: -1}
	toStderr = LogTarget{Fd: 2, Opened: -1}
)

// file returns a target in a file that the redirection with this index opens.
func file(path string, appends bool, opened int) LogTarget {
	return LogTarget{Path: path, Append: appends, Opened: opened}
}

func TestParseLog(t *testing.T) {
	t.Parallel()
	tests := []struct {
		spec     string
		out, err LogTarget
	}{
		{"-", toStdout, toStderr},
		{"", toStdout, toStderr},
		{"/x", file("/x", true, 0), file("/x", true, 0)},
		{"/dev/null", file("/dev/null", true, 0), file("/dev/null", true, 0)},
		{"$DIR/x", toStdout, toStderr}, // not a path: a command
		{">>$DIR/nhc.log 2>&1", file("/var/log/nhc.log", true, 0), file("/var/log/nhc.log", true, 0)},
		{"> /x 2>&1", file("/x", false, 0), file("/x", false, 0)},
		{"1>/x", file("/x", false, 0), toStderr},
		{">|/x", file("/x", false, 0), toStderr},
		{">/x 2>/y", file("/x", false, 0), file("/y", false, 1)},
		{">/x 2>/x", file("/x", false, 0), file("/x", false, 1)},
		{"2>/x", toStdout, file("/x", false, 0)},
		{"2>>/x", toStdout, file("/x", true, 0)},
		{"&>/x", file("/x", false, 0), file("/x", false, 0)},
		{"&>>/x", file("/x", true, 0), file("/x", true, 0)},
		{">&/x", file("/x", false, 0), file("/x", false, 0)},
		{"2>&1", toStdout, toStdout},
		{"1>&2", toStderr, toStderr},
		{">&2", toStderr, toStderr},
		{"2>&1 >/x", file("/x", false, 1), toStdout},
		{">/x >/y", file("/y", false, 1), toStderr},
		{"3>&1 1>&2 2>&3", toStderr, toStdout},
		{"3>>/x 2>&3", toStdout, file("/x", true, 0)},
		{`>>"$DIR/a b" 2>>'$DIR'`, file("/var/log/a b", true, 0), file("$DIR", true, 1)},
		{">>/a\\ b${NONE:-c}", file("/a bc", true, 0), toStderr},
		{"/a${NONE:-c}", file("/ac", true, 0), file("/ac", true, 0)},
	}
	for _, tt := range tests {
		t.Run(tt.spec, func(t *testing.T) {
			t.Parallel()
			l, err := ParseLog(tt.spec, knownValue)
			if tt.spec == "$DIR/x" {
				if !errors.Is(err, ErrNotRedirection) {
					t.Errorf("got %v, want ErrNotRedirection", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if l.None != (tt.spec == "-") {
				t.Errorf("None = %v", l.None)
			}
			if diff := cmp.Diff([]LogTarget{tt.out, tt.err}, []LogTarget{l.Stdout(), l.Stderr()}); diff != "" {
				t.Errorf("stdout and stderr (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseLogErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		spec, want string
		word       bool // ErrNotRedirection
	}{
		{"nhc.log", `log "nhc.log": not a redirection, want >>file, 2>&1 or the like`, true},
		{">>/x tee", "not a redirection", true},
		{"/a b", "not a redirection", true},
		{"A=1", "not a redirection", true},
		{">/x; >/y", "not a redirection", true},
		{">/x &", "not a redirection", true},
		{">", `log ">": `, false},
		{">/x 2>&3", "2>&3: want the number of an open descriptor", false},
		{"2>&-", "2>&-: want the number of an open descriptor", false},
		{"2>&/x", "2>&/x: want the number of an open descriptor", false},
		{"</x", "redirection <, want one of output", false},
		{"<>/x", "redirection <>, want one of output", false},
		{"<<<x", "redirection <<<, want one of output", false},
		{"{fd}>/x", "descriptor {fd}, want 1 to 9", false},
		{"0>/x", "descriptor 0, want 1 to 9", false},
		{"99>/x", "descriptor 99, want 1 to 9", false},
		{">$NONE", "no file name after >", false},
		{">>/x$(date)", "file name after >>: needs a shell", false},
		{">>~/x", `file name after >>: "~/x" needs a shell`, false},
		{"> >(logger)", "file name after >: needs a shell", false},
	}
	for _, tt := range tests {
		t.Run(tt.spec, func(t *testing.T) {
			t.Parallel()
			l, err := ParseLog(tt.spec, knownValue)
			if err == nil || !strings.Contains(err.Error(), tt.want) || errors.Is(err, ErrNotRedirection) != tt.word {
				t.Errorf("got %+v, %v; want error with %q", l, err, tt.want)
			}
		})
	}
}

// TestParseLogAgainstBash compares with the targets of standard output and standard error in
// bash's exec.
func TestParseLogAgainstBash(t *testing.T) {
	t.Parallel()
	bash := need.Program(t, "bash")
	for _, spec := range []string{
		">>x 2>&1", ">x", "2>x", ">x 2>y", ">x 2>>y", "&>x", "&>>x", ">&x", "2>&1", ">&2", "2>&1 >x", ">x 2>&1 >y", "3>&1 1>&2 2>&3", ">'a b'", ">x 1>>y 2>&1", "3>x 2>&3 >y",
	} {
		t.Run(spec, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			cmd := exec.CommandContext(t.Context(), bash, "-c", "exec "+spec+"; echo out; echo err >&2")
			cmd.Dir = dir
			var out, errOut strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &errOut
			if err := cmd.Run(); err != nil {
				t.Fatal(err)
			}
			l, err := ParseLog(spec, knownValue)
			if err != nil {
				t.Fatal(err)
			}
			for text, target := range map[string]LogTarget{"out\n": l.Stdout(), "err\n": l.Stderr()} {
				got := map[int]string{1: out.String(), 2: errOut.String()}[target.Fd]
				if target.Path != "" {
					data, err := os.ReadFile(filepath.Join(dir, target.Path))
					if err != nil {
						t.Error(err)
					}
					got = string(data)
				}
				if !strings.Contains(got, text) {
					t.Errorf("%q is not in %+v, but %q", text, target, got)
				}
			}
		})
	}
}

func FuzzParseLog(f *testing.F) {
	for _, seed := range []string{">>/x 2>&1", "&>x", "/x", ">|\"$A\" 3>&1", "-"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		l, err := ParseLog(spec, knownValue)
		if err != nil {
			return
		}
		for _, target := range []LogTarget{l.Stdout(), l.Stderr()} {
			if target.Path == "" && target.Fd != 1 && target.Fd != 2 || target.Path != "" && l.Redirects[target.Opened].Path != target.Path {
				t.Fatalf("%q: %+v of %+v", spec, target, l)
			}
		}
	})
}
