package imports_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// pathRules are the linter's rules for calls with a path.
type pathRules struct {
	calls        []*regexp.Regexp
	only, except []*regexp.Regexp // files: all of only and none of except
}

// readPathRules reads them from the linter's configuration, so that the linter and this test refuse
// the same calls. The message of a rule, and the text of an exclusion, is the line after it or the
// next but one.
func readPathRules(t *testing.T) (r pathRules) {
	t.Helper()
	text, err := os.ReadFile("../../.golangci.yml")
	if err != nil {
		t.Fatal(err)
	}
	read := func(pattern string) (list []*regexp.Regexp) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			list = append(list, regexp.MustCompile(m[1]))
		}
		return list
	}
	r.calls = read(`- pattern: (.+)\n +msg: [&*]path\b`)
	r.only = read(`- path-except: (.+)\n +linters: \[forbidigo\]\n +text: the supervisor touches no path\n`)
	r.except = append(read(`- path: (.+)\n +linters: \[forbidigo\]\n +text: the supervisor touches no path\n`), regexp.MustCompile(`_test\.go$`))
	if len(r.calls) != 5 || len(r.only) != 1 || len(r.except) != 3 {
		t.Fatalf("%d patterns, %d and %d scopes: this test does not understand .golangci.yml", len(r.calls), len(r.only), len(r.except))
	}
	return r
}

// govern reports whether the rules apply to a file of the repository.
func (r pathRules) govern(name string) bool {
	for _, p := range r.only {
		if !p.MatchString(name) {
			return false
		}
	}
	for _, p := range r.except {
		if p.MatchString(name) {
			return false
		}
	}
	return true
}

// refused returns the lines of a file with a call that is refused, and no reason for it. A package
// may have another name there.
func (r pathRules) refused(name string, text []byte) (lines []string, err error) {
	if !r.govern(name) {
		return nil, nil
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, text, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return nil, err
	}
	packages := map[string]string{}
	for _, i := range file.Imports {
		base := path.Base(strings.Trim(i.Path.Value, `"`))
		packages[base] = base
		if i.Name != nil {
			packages[i.Name.Name] = base
		}
	}
	reasons := map[int]bool{}
	for _, group := range file.Comments {
		for _, c := range group.List {
			if _, why, ok := strings.Cut(c.Text, "//nolint:forbidigo //"); ok && strings.TrimSpace(why) != "" {
				reasons[set.Position(c.Pos()).Line] = true
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		of, ok := sel.X.(*ast.Ident)
		if !ok || packages[of.Name] == "" {
			return true
		}
		call, line := packages[of.Name]+"."+sel.Sel.Name, set.Position(sel.Pos()).Line
		for _, p := range r.calls {
			if p.MatchString(call) && !reasons[line] {
				lines = append(lines, fmt.Sprintf("%s:%d: %s: the supervisor touches no path, a worker does", name, line, call))
			}
		}
		return true
	})
	return lines, nil
}

// No call with a path is wherever the process that slurmd starts could make it.
func TestPaths(t *testing.T) {
	t.Parallel()
	rules := readPathRules(t)
	root, files := filepath.Join("..", ".."), 0
	for _, dir := range []string{"cmd", "conf", "slurm", "checks"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(file string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(file, ".go") {
				return err
			}
			name, err := filepath.Rel(root, file)
			if err != nil {
				return err
			}
			if rules.govern(name) {
				files++
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			lines, err := rules.refused(name, text)
			for _, line := range lines {
				t.Error(line)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 150 {
		t.Errorf("looked at %d files", files)
	}
}

// Each kind of call is refused in each package of the supervisor, and nowhere else.
func TestPathsAreRefused(t *testing.T) {
	t.Parallel()
	rules := readPathRules(t)
	calls := []string{
		`os.Open("/x")`, `os.ReadFile("/x")`, `os.Stat("/x")`, `os.Lstat("/x")`, `os.Readlink("/x")`, `os.ReadDir("/x")`, `os.MkdirAll("/x", 0)`,
		`os.Rename("/x", "/y")`, `os.Remove("/x")`, `os.Getwd()`, `os.WriteFile("/x", nil, 0)`, `os.Chdir("/x")`, `os.CreateTemp("", "")`,
		`filepath.EvalSymlinks("/x")`, `filepath.Glob("/x")`, `filepath.Abs("x")`, `filepath.WalkDir("/x", nil)`,
		`syscall.Open("/x", 0, 0)`, `syscall.Stat("/x", nil)`, `syscall.Access("/x", 0)`, `net.Dial("unix", "/x")`, `user.Current()`,
		`files.Open("/x")`, `probe.NewHost("/")`, `_ = os.Open`,
	}
	text := `package p

import (
	"net"
	"os"
	files "os"
	"os/user"
	"path/filepath"
	"syscall"

	"` + module + `/checks/probe"
)

func f() {
	` + strings.Join(calls, "\n\t") + `
	os.Open("/proc/self/exe") //nolint:forbidigo // /proc/self
	os.Getenv(filepath.Base(os.Args[0]))
}
`
	for file, refused := range map[string]bool{
		"cmd/nhc-gpu/a.go": true, "cmd/nhc-gpu/internal/a/a.go": true, "conf/a.go": true, "conf/match/a.go": true, "slurm/a.go": true,
		"checks/a.go": true, "checks/plan/a.go": true, "checks/verdict/a.go": true, "checks/run/a.go": true, "checks/run/wire/a.go": true, "checks/session/node/a.go": true,
		"checks/event/a.go": true, "checks/policy/a.go": true, "checks/remedy/a.go": true, "checks/monitor/a.go": true,
		"cmd/nhc-gpu/a_test.go": false, "checks/a_test.go": false, "cmd/nhc-gpu/internal/wrap/a.go": false, "checks/run/worker/a.go": false,
		"checks/gpu/a.go": false, "checks/probe/a.go": false, "tests/fake/a.go": false,
	} {
		want := 0
		if refused {
			want = len(calls)
		}
		if lines, err := rules.refused(file, []byte(text)); err != nil || len(lines) != want {
			t.Errorf("%s: %d calls are refused, want %d of %d: %v\n%s", file, len(lines), want, len(calls), err, strings.Join(lines, "\n"))
		}
	}
}
