package match

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// script reads triples of lines (language, string, expression) and writes the exit status of bash's
// own test for each: 0 is a match, 2 an invalid expression.
const script = `
shopt -s extglob
while IFS= read -r lang && IFS= read -r s && IFS= read -r expr; do
	case $lang in
	glob) [[ $s == $expr ]] ;;
	find) [[ ${s//$expr} != "$s" ]] ;;
	ere)  [[ $s =~ $expr ]] ;;
	esac
	echo $?
done`

// question is a triple for the script.
type question struct{ lang, s, expr string }

func (q question) ours() bool {
	switch q.lang {
	case "glob":
		return Glob(q.s, q.expr)
	case "find":
		return Find(q.s, q.expr)
	default:
		ok, err := runERE(q.s, q.expr)
		return ok && err == nil
	}
}

// In some cases bash contradicts its manual, and match follows the manual: after a * bash does
// not try an extended pattern at the end of the string (*@(a|) does not match "x"), and
// ${s//pattern} first tries *pattern* as a shortcut, which is wrong if that changes the pattern or if
// the pattern has no fixed length because of an unclosed bracket.
var (
	starThenGroup  = regexp.MustCompile(`\*[@+!?*]*\(`)
	brokenShortcut = regexp.MustCompile(`^\?*[@+!?*]?\(|\\\*$|\[[^]]*[*(]`)
)

func (q question) bashIsWrong() bool {
	return starThenGroup.MatchString(q.expr) || q.lang == "find" && brokenShortcut.MatchString(q.expr)
}

// ask lets one bash process answer all questions in a locale.
func ask(t *testing.T, locale string, questions []question) []bool {
	t.Helper()
	bash := need.Program(t, "bash")
	var in bytes.Buffer
	for _, q := range questions {
		fmt.Fprintf(&in, "%s\n%s\n%s\n", q.lang, q.s, q.expr)
	}
	cmd := exec.CommandContext(t.Context(), bash, "-c", script)
	cmd.Env = []string{"LC_ALL=" + locale}
	cmd.Stdin = &in
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("bash: %v", err)
	}
	answers := strings.Fields(string(out))
	if len(answers) != len(questions) {
		t.Fatalf("bash gave %d answers to %d questions", len(answers), len(questions))
	}
	yes := make([]bool, len(answers))
	for i, a := range answers {
		yes[i] = a == "0"
	}
	return yes
}

// pick joins at most most random pieces.
func pick(r *rand.Rand, pieces string, most int) string {
	list := strings.Fields(pieces)
	var b strings.Builder
	for range r.IntN(most + 1) {
		b.WriteString(list[r.IntN(len(list))])
	}
	return b.String()
}

func TestMatchAgainstBash(t *testing.T) {
	t.Parallel()
	const (
		strs  = `a b c ab n1 _ - . / ( ) | ] [ * ? ! \`
		globs = `a b c ab n1 ? * * [ab] [!a] [^-b] [a-c] []a] [a\]] [[:alpha:]_] [[:nope:]a] [c-a] \* \\ \a / . - ( ) | [ ] ! ^
			@(a|b) ?(a) *(ab|c) +(a|b) !(a) !(a|b*) !(*b) @(a|!(b)) +(*(a)b) @() @( +( !( | ) )`
		eres = `a b c ab n1 . .* ^ $ ^a b$ [ab] [^a] [a-c] []a] [^]a] [[:alpha:]] [[:nope:]] [[.-.]a] [[=a=]] [-a] [a-] [--0] [a-c-e]
			[a\] (a|b) (a|) () (^) ($) (a*)* * + ? {2} {1,2} {,1} {1,} {2,1} {} {a a{2} ( ) | \. \w \W \b \B \< \> \s \S
			ab* \* \( \y \' / - _ \` + "\\`"
	)
	r := rand.New(rand.NewPCG(1, 2))
	var questions []question
	for range 3000 {
		questions = append(questions,
			question{"glob", pick(r, strs, 4), pick(r, globs, 4)},
			question{"find", pick(r, strs, 4), pick(r, globs, 3)},
			question{"ere", pick(r, strs, 4), pick(r, eres, 5)})
	}
	compare(t, questions, ask(t, "C", questions))
}

// TestMatchAgainstBashUTF8 compares characters of several bytes.
func TestMatchAgainstBashUTF8(t *testing.T) {
	t.Parallel()
	const (
		strs  = `a ü € ö 😀 -`
		globs = `a ü € ? * [ü€] [!ü] [ä-ü] @(a|€) \ü`
		eres  = `a ü € . [ü€] [^ü] (a|€) ü* €{2} ^ $`
	)
	r := rand.New(rand.NewPCG(3, 4))
	questions := []question{{"glob", "ü", "?"}}
	for range 500 {
		questions = append(questions,
			question{"glob", pick(r, strs, 4), pick(r, globs, 4)},
			question{"ere", pick(r, strs, 4), pick(r, eres, 4)})
	}
	answers := ask(t, "C.UTF-8", questions)
	if !answers[0] {
		need.Skip(t, "this machine has no C.UTF-8 locale")
	}
	compare(t, questions, answers)
}

func compare(t *testing.T, questions []question, answers []bool) {
	t.Helper()
	compared := 0
	for i, q := range questions {
		if q.bashIsWrong() {
			continue
		}
		compared++
		if got := q.ours(); got != answers[i] {
			t.Errorf("%s %q on %q: got %v, bash says %v", q.lang, q.expr, q.s, got, answers[i])
		}
	}
	if compared < len(questions)/2 {
		t.Errorf("only %d of %d questions compared", compared, len(questions))
	}
}
