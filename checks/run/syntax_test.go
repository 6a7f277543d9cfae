package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestSyntaxError(t *testing.T) {
	t.Parallel()
	p := newTestPool(t, "")
	for text, want := range map[string]string{
		"":                                 "",
		"exit 1":                           "",
		"touch ran; echo 'a":               "line 1: unexpected EOF",
		"a() {\n  if true; then\n}\n":      "line 3: syntax error",
		"a() {\r\n  return 0\r\n}\r\n":     "line 1: syntax error",
		"a() { local -A b=([x]=1); }\n:\n": "",

		"shopt -s extglob\nX=${1//+(b)}\ncase $1 in !(a|b)) ;; esac\n": "",
		"case $1 in !(a|b)) ;; esac\n":                                 "line 1: syntax error",
		"shopt -s extglob\ncase $1 in !(a|b) ;; esac\n":                "line 2: syntax error",
	} {
		script := filepath.Join(t.TempDir(), "a.nhc")
		if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := SyntaxError(t.Context(), p, script, 10*time.Second)
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
