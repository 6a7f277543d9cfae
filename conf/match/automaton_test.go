package match

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestLongStrings matches strings of a megabyte with expressions that take exponential time in a
// backtracking matcher. It fails by not ending.
func TestLongStrings(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	as := strings.Repeat("a", size)
	tests := []struct {
		name, s, expr string
		want          bool
	}{
		{"stars", as, "*a*a*a*a*a*a*a*a*a*b", false},
		{"nested repeats", as, "/^((a+)+)+$/", true},
		{"nested repeats, no match", as + "b", "/^((a*)*)*c/", false},
		{"choice of many places", as, "/(a|b)*a(a|b){20}c/", false},
		{"counted repeats", as, "/a.{100}c/", false},
		{"lists", as, "*(a|aa|aaa|+(a))b", false},
		{"negated lists", as, "!(*b*)!(!(a)*!(*c))", true},
		{"word edges", strings.Repeat("ab ", size/3), `/(\<a\w\>.)*c/`, false},
		{"not UTF-8", as + "\xff", "*\xff", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var m Matcher
			got, err := m.Match(tt.s, tt.expr)
			if got != tt.want || err != nil {
				t.Errorf("got %v, %v; want %v", got, err, tt.want)
			}
		})
	}
}

// TestStatesAreBounded: an automaton of 2^20 states deletes states, and still answers.
func TestStatesAreBounded(t *testing.T) {
	t.Parallel()
	a, err := program{expr: "(a|b)*a(a|b){20}$", lang: ere}.compile()
	if err != nil {
		t.Fatal(err)
	}
	var s strings.Builder
	for i, x := 0, uint32(1); i < 1<<13; i++ {
		x = x*1664525 + 1013904223
		s.WriteByte("ab"[x>>31])
	}
	s.WriteString("a" + strings.Repeat("b", 20))
	if !a.match(s.String()) {
		t.Error("no match")
	}
	if a.match(s.String() + "b") {
		t.Error("matches with one b too many")
	}
	if size := a.pool.size + a.remembered; size > 2*a.limit {
		t.Errorf("remembers %d, limit %d", size, a.limit)
	}
}

// FuzzMatch looks for expressions that panic, do not end or are not negated by a
// "!".
func FuzzMatch(f *testing.F) {
	for _, seed := range []string{"node01", "/^n(a|b)*$/", "{n[1-3,7]-ib,x}", "@x@", "!(a|b*)", "[[:alpha:]-]", "/a{2,3}/", "/", "/\\<a/"} {
		f.Add("node01", seed)
	}
	f.Fuzz(func(t *testing.T, s, expr string) {
		m := Matcher{External: []External{{"@@", "%h"}}, Run: func(_ External, s, _ string) bool { return len(s) > 5 }}
		yes, err := m.Match(s, expr)
		if strings.HasPrefix(expr, "!") {
			return
		}
		no, negatedErr := m.Match(s, "!"+expr)
		if (err == nil) != (negatedErr == nil) {
			t.Fatalf("%q: %v, but negated %v", expr, err, negatedErr)
		}
		if err == nil && yes == no {
			t.Fatalf("%q on %q: %v, negated %v", expr, s, yes, no)
		}
	})
}

func BenchmarkMatch(b *testing.B) {
	long := strings.Repeat("/usr/sbin/some-daemon --with=an-option ", 100)
	for _, bm := range []struct{ name, s, expr string }{
		{"glob", "node0123", "node*"},
		{"regexp", "node0123", "/^node0[0-9]+$/"},
		{"range", "node0123", "{node[0001-0100],node[0101-0200]}"},
		{"regexp 4k", long, "/some-other$/"},
		{"negated list 4k", long, "!(*other*)"},
	} {
		b.Run(bm.name, func(b *testing.B) {
			var m Matcher
			b.SetBytes(int64(len(bm.s)))
			for b.Loop() {
				if _, err := m.Match(bm.s, bm.expr); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		if _, err := (program{expr: "^node0[0-9]+(-ib)?$", lang: ere}).compile(); err != nil {
			b.Fatal(err)
		}
	}
}

// An expression with another beginning is ruled out, as for the lines of other nodes.
func TestRulesOut(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	text := func(alphabet string, most int) string {
		b := make([]byte, random.IntN(most+1))
		for i := range b {
			b[i] = alphabet[random.IntN(len(alphabet))]
		}
		return string(b)
	}
	out := 0
	for range 50000 {
		s, expr, lang := text("aab-", 4), text("aab-^*?+.[]$!@\xff", 5), language(random.IntN(3))
		if !lang.rulesOut(s, expr) {
			continue
		}
		out++
		a, err := program{expr: expr, lang: lang, bytes: true}.compile()
		if err == nil && a.match(s) {
			t.Errorf("%q fits %q (language %d)", s, expr, lang)
		}
		if errors.Is(err, ErrTooLarge) || errors.Is(err, ErrBackref) {
			t.Errorf("%q: %v is not told", expr, err)
		}
	}
	if out < 1000 {
		t.Errorf("%d are ruled out", out)
	}
	for _, expr := range []string{"gpu002", "cpu*", "gpu1[0-9]*"} {
		if !glob.rulesOut("gpu001", expr) {
			t.Errorf("%s is not ruled out", expr)
		}
	}
	if !ere.rulesOut("gpu001", "^cpu[0-9]+$") || ere.rulesOut("gpu001", "^gpu9*001") {
		t.Error("regular expressions")
	}
}
