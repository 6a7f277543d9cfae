package conf

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Sources reads the same lines as Parse.
func TestSourcesAreTheLines(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	const letters = "ab |\\\\\n\n\r#\x00é"
	for range 20000 {
		data := make([]byte, random.IntN(20))
		for i := range data {
			data[i] = letters[random.IntN(len(letters))]
		}
		type line struct {
			Line int
			Text string
		}
		var want, got []line
		for r := newLineReader(data); r.more(); {
			n := r.line
			want = append(want, line{n, r.read()})
		}
		for _, s := range Sources("f", data) {
			got = append(got, line{s.Pos.Line, s.Text})
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%q (-want +got):\n%s", data, diff)
		}
	}
}

func TestPlace(t *testing.T) {
	t.Parallel()
	s := Sources("f", []byte("# é\n* || é\\x \\\n  y\r\n* || z"))
	if len(s) != 3 || s[1].Text != "* || éx   y" || !s[1].CR || len(s[1].Joined) != 1 || len(s[1].Eaten) != 1 {
		t.Fatalf("%+v", s)
	}
	for offset, want := range map[int]place{0: {2, 1}, 5: {2, 6}, 6: {2, 6}, 7: {2, 7}, 11: {3, 3}, 12: {3, 4}} {
		if line, column := s[1].Place(offset); line != want.line || column != want.column {
			t.Errorf("%d: %d:%d, want %v", offset, line, column, want)
		}
	}
	if line, column := s[2].Place(99); line != 4 || column != 7 {
		t.Errorf("the end is at %d:%d", line, column)
	}
}
