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

// Every process of a run would compile an expression in a package variable at its start:
// checks.Lazily compiles it when it is first needed.
func TestRegexpsAreCompiledLate(t *testing.T) {
	t.Parallel()
	files, found := 0, 0
	root := filepath.Join("..", "..")
	for _, dir := range []string{"cmd", "conf", "slurm", "checks"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/checktest/") { // only tests link checktest
				return err
			}
			files++
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, decl := range file.Decls {
				ast.Inspect(decl, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.FuncDecl, *ast.FuncLit: // run when they are called
						found++
						return false
					case *ast.CallExpr:
						if f, ok := n.Fun.(*ast.SelectorExpr); ok && (f.Sel.Name == "MustCompile" || f.Sel.Name == "MustCompilePOSIX") {
							t.Errorf("%s: an expression that is compiled at the start, want checks.Lazily", set.Position(n.Pos()))
						}
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
	if files < 300 || found < 1000 {
		t.Errorf("looked at %d files with %d functions", files, found)
	}
}
