package tier

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestTiers(t *testing.T) {
	for value, want := range map[string][2]bool{"": {}, "all": {true, false}, "long": {true, true}, "other": {}} {
		t.Setenv(setting, value)
		for i, mark := range []func(testing.TB){All, Long} {
			ran := false
			t.Run("", func(t *testing.T) {
				mark(t)
				ran = true
			})
			if ran != want[i] {
				t.Errorf("%s=%s: mark %d runs its test: %v, want %v", setting, value, i, ran, want[i])
			}
		}
	}
}

// TestMarksAreFound refuses a mark that marked.sh does not find: outside of a test function, or
// after statements other than a call of t.Parallel.
func TestMarksAreFound(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			test := fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test")
			ast.Inspect(fn, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok && isMark(call) && (!test || !inHead(fn.Body, call)) {
					t.Errorf("%s: call it in the first two lines of a test function", set.Position(call.Pos()))
				}
				return true
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func isMark(call *ast.CallExpr) bool {
	of, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) != 1 {
		return false
	}
	pkg, ok := of.X.(*ast.Ident)
	return ok && pkg.Name == "tier" && (of.Sel.Name == "All" || of.Sel.Name == "Long")
}

func inHead(body *ast.BlockStmt, call *ast.CallExpr) bool {
	for _, s := range body.List[:min(2, len(body.List))] {
		if e, ok := s.(*ast.ExprStmt); ok && e.X == call {
			return true
		}
	}
	return false
}

// TestMarkedStartsLongWaitsFirst runs marked.sh with echo instead of go.
func TestMarkedStartsLongWaitsFirst(t *testing.T) {
	t.Parallel()
	for mark, first := range map[string]string{"All": "./cmd/nhc-gpu ./tests/monitor ./tests/slurm ", "Long": "./tests/slurm "} {
		cmd := exec.Command("./marked.sh", mark, "-v")
		cmd.Env = append(os.Environ(), "GO=echo")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		_, packages, _ := strings.Cut(string(out), " -v ")
		if !strings.HasPrefix(packages, first) || !strings.Contains(packages, " ./tests/packaging ") {
			t.Errorf("%s starts %s, want %s first, and the others", mark, packages, first)
		}
	}
}
