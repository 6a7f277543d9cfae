package conf

import (
	"os/exec"
	"strings"
	"testing"

	"mvdan.cc/sh/v3/syntax"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// ParseBash accepts what bash accepts, and finds the same commands.
func TestParseBash(t *testing.T) {
	t.Parallel()
	bash := need.Program(t, "bash")
	for text, calls := range map[string]string{
		`!(grep -q a b)`:                      "!grep",
		`! !(a)`:                              "a",
		`!(grep ")" "a b" | wc)`:              "!grep wc",
		`if !(a); then b; else !(c "d)"); fi`: "!a b !c",
		`a && !(b) || !( c; !(d) )`:           "a !b !c !d",
		`x=$(!(a)) b`:                         "b !a",
		`[[ a == !(b|c) ]] && d`:              "d",
		`[[ $(!(a)) == @(b|c) && -n 1 ]]`:     "!a",
		`echo ${x//+(b)/Z} "!(a)"`:            "echo",
		`echo "!(a" ")"; !(b ")")`:            "echo !b",
		`!(a) b`:                              "error",
		`A=1 !(a)`:                            "error",
		`check_x !(a)`:                        "error",
		`check_x @(a|b)`:                      "error",
		`+(a)`:                                "error",
		`case a in !(b)) c ;; esac`:           "error",
		`for x in *(a); do b; done`:           "error",
		`x=+(a)`:                              "error",
		`!(a`:                                 "error",
		`echo "`:                              "error",
	} {
		err := exec.Command(bash, "-n", "-c", text).Run()
		file, failed := ParseBash(text, false)
		if (err != nil) != (failed != nil) || (failed != nil) != (calls == "error") {
			t.Errorf("%s: %v, bash has %v", text, failed, err)
		}
		if failed != nil {
			continue
		}
		var got []string
		syntax.Walk(file, func(n syntax.Node) bool {
			switch n := n.(type) {
			case *syntax.Stmt:
				if n.Negated {
					got = append(got, "!")
				}
			case *syntax.CallExpr:
				if len(n.Args) > 0 {
					got = append(got, n.Args[0].Lit()+" ")
				}
			}
			return true
		})
		if all := strings.TrimSpace(strings.Join(got, "")); all != calls {
			t.Errorf("%s: %s, want %s", text, all, calls)
		}
	}
	for text, extglob := range map[string]bool{"shopt -s extglob; case a in\n!(b)) c ;; esac": false, "case a in !(b)) c ;; esac": true} {
		if _, err := ParseBash(text, extglob); err != nil {
			t.Error(err)
		}
	}
}
