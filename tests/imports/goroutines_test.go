package imports_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// A panic in a bare goroutine ends the program with Go's own status, and slurmd drains the node. So
// the supervisor starts its goroutines by run.Go. A panic may end a worker; its supervisor reports
// that.
func TestGoroutinesAreStartedByTheHelper(t *testing.T) {
	t.Parallel()
	const helper = "checks/run/goroutine.go"
	files, helpers := 0, 0
	root := filepath.Join("..", "..")
	for _, dir := range []string{"cmd", "conf", "slurm", "checks/run", "checks/plan", "checks/verdict", "checks/session"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(filepath.Base(path), "worker") {
				return err
			}
			files++
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if stmt, ok := n.(*ast.GoStmt); ok {
					if name == helper {
						helpers++
					} else {
						t.Errorf("%s:%d: a bare goroutine, want run.Go", name, set.Position(stmt.Pos()).Line)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 50 || helpers != 1 {
		t.Errorf("looked at %d files and found %d helpers", files, helpers)
	}
}
