package match

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMatch(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, s string
		yes, no string // expressions, separated by spaces
	}{
		{"literals and wildcards", "node01", "node01 * node* *01 n?de0? node0[0-9] node0[!2-9] **", "node NODE01 node0 ?ode node01? x*"},
		{"extglob", "node01", "@(node01|foo) +(n|o|d|e|0|1) ?(x)node01 *(node)01 node@(01|02)", "node@(02|03) *(zzz) ?(node01)x"},
		{"nothing is expanded", "node01", "!$HOSTNAME", "$HOSTNAME `hostname` ~ \"node01\" 'node01'"},
		{"a single delimiter is plain text", "node01", "!{node01", "{node01 node01} /node01 node01/"},
		{"one exclamation mark negates", "node01", "!foo !!x !!node01 ! !(x) !node0[2-9]", "!node01 !* !@(node01)"},
		{"expression without delimiters", "node 01", "node?01 /e.0/", "node01 {node}"},
		{"regular expression, anywhere", "node01", `/^node/ /01$/ /^node0[0-9]$/ /node(01|02)/ /[[:digit:]]+/ /^[a-z]+[0-9]{2}$/ /o.e/ /^a|node/ !/foo/`,
			"/foo/ /^NODE/ /^.{5}$/ /^(a|b)/"},
		{"regular expression, delimiters and quotes", "node01", `// /.*/ /node?x*01/`, `/"node"/ /'node01'/ /no/de/ /^$/ /^\(node\)/ /$HOSTNAME/`},
		{"regular expression, backslashes", "n001.cc2", `/^n001.cc2$/ /^n001\.cc2$/ /\.cc2/ /.cc3|\w/ /\bcc2\b/ /\<cc2\>/ /\W/`, `/\.cc3/ /\<c2/ /\Bn001/ /\s/`},
		{"invalid regular expressions match nothing", "node01", `/a**/ !/[/ /)|n/`, `/[/ /(/ /*a/ /a{2/ /+/ /)/ /[[:foo:]]/ /a\/ /n{2,1}/ /(n|*)/`},
		{"host name without a name", "", "* !x /^$/", "?* node01 {node[0-5]} !* !"},
		{"no blank is special", " ", "* ?", "!*"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var m Matcher
			for i, list := range []string{tt.yes, tt.no} {
				for expr := range strings.FieldsSeq(list) {
					got, err := m.Match(tt.s, expr)
					if want := i == 0; got != want || err != nil {
						t.Errorf("Match(%q, %q) = %v, %v; want %v", tt.s, expr, got, err, want)
					}
				}
			}
		})
	}
}

func TestMatchExternal(t *testing.T) {
	t.Parallel()
	var ran []string
	m := Matcher{
		External: Externals([]string{"@@", "<>", "", "()"}, []string{"m1 %h %m", "m2 -x %m %m", "never"}),
		Run: func(e External, s, expr string) bool {
			command := e.Line(s, expr)
			ran = append(ran, command)
			return strings.Contains(command, "yes")
		},
	}
	tests := []struct {
		expr string
		want bool
	}{
		{"@node01 yes@", true}, {"!@yes@", false}, {"<yes>", true}, {"<no>", false}, {"!<no>", true},
		{"(yes)", false}, {"@@", false}, {"<>", false}, {"<yes@", false}, {"!!@yes@", true}, {`@a "b" $c@`, false},
	}
	for _, tt := range tests {
		got, err := m.Match("node01", tt.expr)
		if got != tt.want || err != nil {
			t.Errorf("Match(%q) = %v, %v; want %v", tt.expr, got, err, tt.want)
		}
	}
	want := []string{
		`m1 "node01" "node01 yes"`, `m1 "node01" "yes"`, `m2 -x "yes" "yes"`, `m2 -x "no" "no"`, `m2 -x "no" "no"`, "",
		`m1 "node01" ""`, `m2 -x "" ""`, `m1 "node01" "a "b" $c"`,
	}
	if diff := cmp.Diff(want, ran); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}

	m.Run = nil
	if got, err := m.Match("node01", "@yes@"); got || err != nil {
		t.Errorf("without Run: got %v, %v; want no match", got, err)
	}
}

func TestMatchErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, expr string
		want       error
	}{
		{"lone slash", "/", ErrExpansion},
		{"lone slash, negated", "!/", ErrExpansion},
		{"lone external delimiter", "@", ErrExpansion},
		{"back-reference", `/(n)\1/`, ErrBackref},
		{"back-reference without a group is only invalid", `/n\1/`, nil},
		{"long glob", strings.Repeat("n", MaxExpr+1), ErrTooLarge},
		{"deep glob", strings.Repeat("@(", 2000) + strings.Repeat(")", 2000), ErrTooLarge},
		{"deep regular expression", "/" + strings.Repeat("(", 2000) + strings.Repeat(")", 2000) + "/", ErrTooLarge},
		{"repeats of repeats", "/(a{100}){11}/", ErrTooLarge},
		{"as many repeats as allowed", "/(a{100}){10}/", nil},
		{"long ranges are fine", "{" + strings.Repeat("n1,", MaxExpr) + "}", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := Matcher{External: []External{{Delim: "@@"}}}
			got, err := m.Match("node01", tt.expr)
			if got || !errors.Is(err, tt.want) {
				t.Errorf("got %v, %v; want false, %v", got, err, tt.want)
			}
			if err != nil && len(err.Error()) > 200 {
				t.Errorf("message of %d bytes", len(err.Error()))
			}
		})
	}
}

func TestValid(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]bool{
		"*": true, "[": true, "!{n[01-16],login}": true, "/^n0[12]$/": true, "": true, "/": true, "{n1,}": true,
		"/n(/": false, "!/n[/": false, "/^n[/": false, "!/^abc**[z/": false, "{n1,n[1-}": false, "{n*}": false,
	} {
		if err := Valid(expr); (err == nil) != want {
			t.Errorf("Valid(%q): %v", expr, err)
		}
	}
}

func TestGlob(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, s, yes, no string }{
		{"slash and dot are ordinary", ".a/b", "* ?a* .a?b *[/]*", "a*"},
		{"brackets", "a]b-c", `*[]]* *[a\]]b* *[b-]c a[!a]b?c a[^[:alnum:]]b-c *[[:alpha:]]`, "*[]a-b]-b*x a[]b]c"},
		{"brackets without an end", "[ab", `[ab [a* \[ab [[]ab`, "[ab]"},
		{"escapes", `a*\`, `a\*\\ a\*\ \a?\`, `a\*`},
		{"negated lists", "ab", "!(a|b) !(a)* a!(a) !(!(ab)) !()", "!(ab) !(a*) !(*)"},
		{"lists in lists", "aabbb", "+(a|+(b)) *(*(a)b)b +(@(a|b))", "+(a|bb) *(!(a|b))aa"},
		{"a list without an end is text", "+(a", "+(a", "?(a +(b"},
		{"bytes that are no UTF-8", "a\xffb", "a?b a[!x]b a*", "a??b"},
		{"characters of several bytes", "gr\u00fcn", "gr?n gr[\u00fc]n gr[!a]n", "gr??n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for i, list := range []string{tt.yes, tt.no} {
				for pattern := range strings.FieldsSeq(list) {
					if got, want := Glob(tt.s, pattern), i == 0; got != want {
						t.Errorf("Glob(%q, %q) = %v", tt.s, pattern, got)
					}
				}
			}
		})
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	const s = "/usr/sbin/slurmd -D [x]"
	for pattern, want := range map[string]bool{
		"slurmd": true, "slurmd -D": true, "s*d": true, "[x]": true, "[qz]": false, "?(q)": false, "*": true,
		"": false, "slurmctld": false, `\[x`: true, "!(*)": false, "+(b)in": true,
	} {
		if got := Find(s, pattern); got != want {
			t.Errorf("Find(%q) = %v", pattern, got)
		}
	}
	if Find("", "*") {
		t.Error("found something in nothing")
	}
}
