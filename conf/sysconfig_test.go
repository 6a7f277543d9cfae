package conf

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"mvdan.cc/sh/v3/syntax"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

func TestParseSysconfig(t *testing.T) {
	t.Parallel()
	v := func(name, value string) Assign { return Assign{Name: name, Value: value} }
	tests := []struct {
		name, data string
		want       []Assign
	}{
		{"empty", "", nil},
		{"comments", "# c\n\n  # d\n", nil},
		{"plain", "A=1\nB=b # c\nC=\n D=x;E=y\nF=1 G=2\n", []Assign{v("A", "1"), v("B", "b"), v("C", ""), v("D", "x"), v("E", "y"), v("F", "1"), v("G", "2")}},
		{"no newline at the end", "A=1", []Assign{v("A", "1")}},
		{"quotes", `A='a $HOST' B="b \$ \" \\ \x" C=a\ b\$c D=""'x'`, []Assign{v("A", "a $HOST"), v("B", `b $ " \ \x`), v("C", "a b$c"), v("D", "x")}},
		{"lines in quotes", "A='a\nb'\nB=a\\\nb\nC=\"a\\\nb\"\n", []Assign{v("A", "a\nb"), v("B", "ab"), v("C", "ab")}},
		{"variables", `A=$HOST B="${HOST}x" C=${NONE} D="$TWO" E=$TWO`, []Assign{v("A", "node01"), v("B", "node01x"), v("C", ""), v("D", "a b"), v("E", "a b")}},
		{"defaults", `A=${HOST:-x} B=${NONE:-x$HOST} C=${EMPTY:-x} D=${EMPTY-x} E=${NONE-} F="${NONE:-x y}" G=${NONE:-'a b'}`,
			[]Assign{v("A", "node01"), v("B", "xnode01"), v("C", "x"), v("D", ""), v("E", ""), v("F", "x y"), v("G", "a b")}},
		{"later lines see earlier ones", "A=1\nA=$A$A\nB=$A\nunset A\nC=$A.\n", []Assign{v("A", "1"), v("A", "11"), v("B", "11"), {Name: "A", Unset: true}, v("C", ".")}},
		{"export", "export A=1 B='x y'\nA=2\nC=3\nexport C\nexport HOST\n", []Assign{
			{Name: "A", Value: "1", Export: true}, {Name: "B", Value: "x y", Export: true}, {Name: "A", Value: "2", Export: true},
			v("C", "3"), {Name: "C", Value: "3", Export: true}, {Name: "HOST", Value: "node01", Export: true},
		}},
		{"export expands first", "A=1\nexport A=2 B=$A C=\"$B\"\nA=3 B=$A\n", []Assign{
			v("A", "1"), {Name: "A", Value: "2", Export: true}, {Name: "B", Value: "1", Export: true}, {Name: "C", Export: true},
			{Name: "A", Value: "3", Export: true}, {Name: "B", Value: "3", Export: true},
		}},
		{"export before a value", "export N\nN=1\nunset N\nN=2\n", []Assign{{Name: "N", Value: "1", Export: true}, {Name: "N", Unset: true}, v("N", "2")}},
		{"unset", "unset HOST TWO\nA=$HOST\n", []Assign{{Name: "HOST", Unset: true}, {Name: "TWO", Unset: true}, v("A", "")}},
		{"arrays", "A=( '@@' \"<$HOST>\" c )\nB=()\nC=(\n a # x\n b\n)\nD=$A E=$B.\n", []Assign{
			{Name: "A", IsArray: true, Array: []string{"@@", "<node01>", "c"}}, {Name: "B", IsArray: true, Array: []string{}},
			{Name: "C", IsArray: true, Array: []string{"a", "b"}}, v("D", "@@"), v("E", "."),
		}},
		{"what only looks special", `A=* B=a[b] C={a,b} D=a~ E=x#y F=a:b`, []Assign{v("A", "*"), v("B", "a[b]"), v("C", "{a,b}"), v("D", "a~"), v("E", "x#y"), v("F", "a:b")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, needShell, err := ParseSysconfig("t", []byte(tt.data), knownLookup)
			if needShell || err != nil {
				t.Fatalf("needShell %v, error %v", needShell, err)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.IgnoreFields(Assign{}, "Pos")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseSysconfigPositions(t *testing.T) {
	t.Parallel()
	got, _, err := ParseSysconfig("/etc/default/nhc", []byte("# c\nA=1\n\nexport B=2 \\\n C=3\nunset A\n"), knownLookup)
	if err != nil {
		t.Fatal(err)
	}
	var positions []string
	for _, a := range got {
		positions = append(positions, a.Pos.String()+" "+a.Name)
	}
	want := []string{"/etc/default/nhc:2 A", "/etc/default/nhc:4 B", "/etc/default/nhc:5 C", "/etc/default/nhc:6 A"}
	if diff := cmp.Diff(want, positions); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestParseSysconfigShell: files that require bash.
func TestParseSysconfigShell(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"if [ -f /x ]; then A=1; fi", "echo hi", "A=1 echo hi", "A=1 &", "! A=1", "A=1 >/x", "f() { :; }", ". /etc/x", ": ${A:=1}",
		"A=$(hostname)", "A=`hostname`", "A=$((1+1))", "A=<(x)", "A=$'a\\tb'", `A=$"a"`, "A=~/x", "A=a:~root", "export A=~",
		"A=$1", "A=$?", "A=${#HOST}", "A=${!HOST}", "A=${HOST#n}", "A=${HOST:1}", "A=${HOST/n/m}", "A=${HOST[0]}", "A=${HOST:=x}", "A=${HOST:?x}", "A=${HOST:+x}", "A=${HOST^^}",
		`A="${NONE:-"x"}"`, `A="${NONE:-'x'}"`, "A=$RANDOM", "A=$HOSTNAME", "A=${PATH:-x}", "UID=1", "unset SECONDS",
		"A+=1", "A[1]=2", "A=([1]=x)", "A=($HOST)", "A=(*)", "A=({a,b})", "A=(~)", "declare A=1", "readonly A=1", "local A",
		"export -n A", "export $HOST", "export", "export A={a,b}", "unset -f x", "unset A[1]", "unset $HOST", "A='", "A=(", "fi", "A=1\r\n",
	} {
		assigns, needShell, err := ParseSysconfig("t", []byte("B=1\n"+text), knownLookup)
		if !needShell || err != nil || assigns != nil {
			t.Errorf("%q: got %v, needShell %v, error %v", text, assigns, needShell, err)
		}
	}
}

func TestParseSysconfigErrors(t *testing.T) {
	t.Parallel()
	for name, data := range map[string][]byte{"binary": []byte("\x7fELF"), "too long": make([]byte, MaxSize+1)} {
		_, needShell, err := ParseSysconfig("t", data, knownLookup)
		if needShell || err == nil || !strings.HasPrefix(err.Error(), "t: ") {
			t.Errorf("%s: needShell %v, error %v", name, needShell, err)
		}
	}
}

// TestParseSysconfigAgainstBash lets bash source random files and compares the
// variables.
func TestParseSysconfigAgainstBash(t *testing.T) {
	t.Parallel()
	bash := need.Program(t, "bash")
	pieces := strings.Fields(`a b " ' \ $A ${A} ${B:-x} ${C-y} "$A" ' ' \$ # * {a,b} ~ : = "" $ [x] (`)
	r := rand.New(rand.NewPCG(1, 2))
	var files []string
	for range 1000 {
		var b strings.Builder
		for range 1 + r.IntN(4) {
			b.WriteString([]string{"", "export "}[r.IntN(2)] + []string{"A", "B", "C"}[r.IntN(3)] + "=")
			for range r.IntN(4) {
				b.WriteString(pieces[r.IntN(len(pieces))])
			}
			b.WriteByte('\n')
		}
		files = append(files, b.String())
	}

	cmd := exec.CommandContext(t.Context(), bash, "-c", `
		while IFS= read -r -d "" file; do
			( trap 'printf "%s\0" "${A-unset}" "${B-unset}" "${C-unset}"' EXIT; eval "$file" )
		done 2>/dev/null
		true`)
	cmd.Env = []string{}
	cmd.Stdin = strings.NewReader(strings.Join(files, "\x00") + "\x00")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	values := strings.Split(string(out), "\x00")
	compared := 0
	for i, file := range files {
		assigns, needShell, err := ParseSysconfig("t", []byte(file), func(string) (string, bool) { return "", false })
		if err != nil {
			t.Fatal(err)
		}
		if needShell {
			continue
		}
		compared++
		now := map[string]string{"A": "unset", "B": "unset", "C": "unset"}
		for _, a := range assigns {
			now[a.Name] = a.Value
		}
		got := fmt.Sprintf("%q", []string{now["A"], now["B"], now["C"]})
		if want := fmt.Sprintf("%q", values[3*i:3*i+3]); got != want {
			t.Errorf("%q: got %s, bash has %s", file, got, want)
		}
	}
	if compared < len(files)/4 {
		t.Errorf("only %d of %d files compared", compared, len(files))
	}
}

func FuzzParseSysconfig(f *testing.F) {
	for _, seed := range []string{"A=1\n", "export A=${B:-\"c\"}", "A=( a 'b' )\nunset A", "A=a\\\nb"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		assigns, needShell, err := ParseSysconfig("t", data, knownLookup)
		if (needShell || err != nil) && assigns != nil {
			t.Fatalf("%v beside needShell %v, error %v", assigns, needShell, err)
		}
		for _, a := range assigns {
			if !syntax.ValidName(a.Name) || a.Pos.Line < 1 {
				t.Fatalf("%+v", a)
			}
		}
	})
}

func TestModeIn(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, mode string }{
		{"", ""},
		{"MODE=observe\n", "observe"},
		{"# MODE=observe\n", ""},
		{"X=1\n  export MODE=observe  \n", "observe"},
		{"MODE=observe\nMODE=enforce", "enforce"},
		{"MODE=enforce; MODE=observe\n", "observe"},
		{"MODE=observe   # until December\n", "observe"},
		{"MODE=enforce # not observe\n", "enforce"},
		{"X=1 MODE='observe'\n", "observe"},
		{"MODE=\"observe\"; export MODE\n", "observe"},
		{"MODE=\n", ""},
		{"MODE=observe\nunset MODE\n", ""},
		{"MODE=watch\n", "watch"}, // an error later
		{"MODE=${OTHER:-observe}\n", "observe"},
		{"MODE=observe\nMODE=$MODE\n", "observe"},
		{"MODES=observe\nDETACHED_MODE=1\n", ""},
		{"DETACHED_MODE=$(echo 1)\n", ""},

		// Only bash can evaluate these.
		{"X=$(date)\nMODE=enforce # not observe\n", "enforce"},
		{"X=$(date)\nMODE='enforce'; export MODE\n[ \"$MODE\" = x ] && X=1\n", "enforce"},
		{"if true; then\nMODE='observe'\nfi\n", "observe"},
		{"if [ -e F ]; then MODE=observe; else MODE=enforce; fi\n", "observe"},
		{"if [ -e F ]\nthen\n\tMODE=observe\nelse\n\tMODE=enforce\nfi\n", "observe"},
		{"[ -e F ] && MODE=enforce || MODE=watch\n", "watch"},
		{"case $(hostname) in a) export MODE=\"observe\";; *) MODE=enforce;; esac\n", "observe"},
		{"MODE=enforce\nMODE=$(cat /etc/mode)\n", "observe"},
		{"X=$(date); MODE=$X\n", "observe"},
		{"MODE+=enforce\n", "observe"},
		{": ${MODE:=enforce}\n", "observe"},
		{"read MODE </etc/mode\n", "observe"},
		{"eval \"$X\"\n", "observe"},
		{". /etc/site\n", "observe"},
		{"X=$(date)\nMODE=enforce\nif\n", "observe"},
		{"X=1\nif\n", ""},
		{"X=$(date)\nMODE=enforce\nlogger \"MODE $MODE\"; echo 'MODE' MODE\n", "enforce"},
		{"X=$(date)\nMODE=enforce\nunset MODE\n", ""},
		{"X=$(date)\nMODE=enforce\nunset \"MODE\"\n", ""},
		{"export \"MODE=observe\"\n", "observe"},
		{"declare 'MODE=observe'\n", "observe"},
		{"for MODE in observe; do :; done\n", "observe"},
		{"read \"MODE\" </etc/mode\n", "observe"},
		{"builtin read MODE </etc/mode\n", "observe"},
		{"MODE=enforce\ncommand . /etc/site\n", "observe"},
		{"X=$(date)\nMODE=enforce\nY=${MODE:-observe}\n", "enforce"},
		{"MODE=enforce\nprintf -v MODE x\n", "observe"},
	} {
		mode, err := ModeIn("nhc", []byte(tt.text), func(string) (string, bool) { return "", false })
		if err != nil || mode != tt.mode {
			t.Errorf("%q: %q, %v; want %q", tt.text, mode, err, tt.mode)
		}
	}
	if _, err := ModeIn("nhc", []byte("MODE=enforce\n\x00\xff\xfe"), nil); err == nil {
		t.Error("a binary file has a mode")
	}
}
