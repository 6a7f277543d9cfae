package imports_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A test that writes a program while another test starts a process cannot always run it ("text file
// busy"). So tests write programs by a function that prevents the start of processes meanwhile:
// built.WriteProgram, probetest.WriteProgram or checktest.WriteProgram.
func TestProgramsAreWrittenAlone(t *testing.T) {
	t.Parallel()
	writes := 0
	for _, dir := range []string{"cmd", "conf", "slurm", "checks", "tests"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") && (dir != "tests" || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "/built.go")) {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) != 3 {
					return true
				}
				f, ok := call.Fun.(*ast.SelectorExpr)
				if !ok || f.Sel.Name != "WriteFile" {
					return true
				}
				writes++
				mode, literal := call.Args[2].(*ast.BasicLit)
				if !literal {
					t.Errorf("%s: the mode of os.WriteFile is no number: this may be a program", set.Position(n.Pos()))
				} else if bits, err := strconv.ParseUint(mode.Value, 0, 32); err != nil || bits&0o111 != 0 {
					t.Errorf("%s: os.WriteFile writes a program, want WriteProgram", set.Position(n.Pos()))
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if writes < 100 {
		t.Errorf("looked at %d calls of os.WriteFile", writes)
	}
}
