package checks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// siteMatchers are external matchers that keep a record of what they were given.
func siteMatchers(t *testing.T) (env *Env, record string) {
	t.Helper()
	record = filepath.Join(t.TempDir(), "record")
	return &Env{
		Host: probe.NewHost("/"),
		Arrays: map[string][]string{
			"NHC_MCHECK_DELIM":   {"@@", "<>", "()"},
			"NHC_MCHECK_COMMAND": {"printf '[%s]' %h %m >> " + record + "; test %h = %m", "/no/such/matcher %h", "exit 0"},
		},
	}, record
}

func TestExternalMatchers(t *testing.T) {
	t.Parallel()
	env, record := siteMatchers(t)
	hit := filepath.Join(t.TempDir(), "hit")
	var notes []Finding
	match := env.Matcher(&notes)
	hostile := `"; touch ` + hit + `; $(touch ` + hit + `) ` + "`touch " + hit + "` '*"
	for _, tt := range []struct {
		s, expr string
		want    bool
	}{
		{"sshd", "@sshd@", true},
		{"sshd", "!@sshd@", false},
		{"sshd", "@slurmd@", false},
		{"sshd", "@sshd@", true}, // is not run again
		{"a b", "@a   b@", true},
		{"*", "@?@", false},
		{"", "@@", true},
		{hostile, "@x@", false},
		{"sshd", "<sshd>", false}, // not found
		{"sshd", "!<sshd>", true},
		{"sshd", "(x)", true},
		{"sshd", "ss@(h)d", true}, // a glob
	} {
		if got := match(tt.s, tt.expr); got != tt.want {
			t.Errorf("match(%q, %q) = %v, want %v", tt.s, tt.expr, got, tt.want)
		}
	}
	if len(notes) != 1 || notes[0].Severity != Unknown || notes[0].Message != `run external matcher "/no/such/matcher %h": not found` {
		t.Errorf("notes: %v", notes)
	}
	if _, err := os.Stat(hit); err == nil {
		t.Error("a string was run as a command")
	}
	got, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{"[sshd]", "[sshd]", "[sshd]", "[slurmd]", "[a b]", "[a b]", "[*]", "[?]", "[]", "[]", "[" + hostile + "]", "[x]"}, "")
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("what the matchers were given (-want +got):\n%s", diff)
	}
}

func TestExternalMatcherOfAPlainVariable(t *testing.T) {
	t.Parallel()
	env := &Env{Host: probe.NewHost("/"), Vars: map[string]string{"NHC_MCHECK_DELIM": "%%", "NHC_MCHECK_COMMAND": "test %h = %m"}}
	var notes []Finding
	match := env.Matcher(&notes)
	if !match("a", "%a%") || match("a", "%b%") || len(notes) > 0 {
		t.Errorf("%%a%% does not match a, or %%b%% does; notes: %v", notes)
	}
}

func TestExternalMatcherWithoutShell(t *testing.T) {
	t.Parallel()
	env, _ := siteMatchers(t)
	env.Host = probe.NewHost(t.TempDir())
	var notes []Finding
	if env.Matcher(&notes)("a", "(a)") {
		t.Error("matches without bash")
	}
	if len(notes) != 1 || notes[0].Severity != Unknown || !strings.Contains(notes[0].Message, `run external matcher "exit 0": `) {
		t.Errorf("notes: %v", notes)
	}
}
