package conf

import (
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// TestParseAgainstBash compares with bash's read on random text: each line as read returns it, cut
// at the first "||".
func TestParseAgainstBash(t *testing.T) {
	t.Parallel()
	bash := need.Program(t, "bash")
	pieces := []string{"a", "b", "*", " ", "\t", "|", "||", "||", "#", "\\", "\\\\", "\\\n", "\n", "\n", "ü"}
	r := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for range 20000 {
		b.WriteString(pieces[r.IntN(len(pieces))])
	}
	text := b.String() + "\n"

	cmd := exec.CommandContext(t.Context(), bash, "-c", `
		while read LINE; do
			case $LINE in *'||'*) printf '%s\n%s\n' "${LINE%%||*}" "${LINE#*||}" ;; esac
		done`)
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var want [][2]string
	fields := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	for i := 0; i+1 < len(fields); i += 2 {
		target, check := strings.Trim(fields[i], blanks), strings.Trim(fields[i+1], blanks)
		if target != "" && target[0] != '#' && check != "" {
			want = append(want, [2]string{target, check})
		}
	}

	lines, _, err := Parse("t", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var got [][2]string
	for _, l := range lines {
		got = append(got, [2]string{l.Target, l.Check})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-bash +got):\n%s", diff)
	}
	if len(want) < 100 {
		t.Errorf("only %d lines compared", len(want))
	}
}
