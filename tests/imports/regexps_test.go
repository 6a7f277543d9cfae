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

// Every process of a run would compile an expression in a package variable, or in an init, at its
// start: checks.Lazily compiles it when it is first needed.
func TestRegexpsAreCompiledLate(t *testing.T) {
	t.Parallel()
	files, found := map[string]*ast.File{}, 0
	set := token.NewFileSet()
	for _, dir := range []string{"cmd", "conf", "slurm", "checks"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "/checktest/") { // only tests link checktest
				return err
			}
			files[path], err = parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	compiles := map[string]bool{"regexp.Compile": true, "regexp.CompilePOSIX": true, "regexp.MustCompile": true, "regexp.MustCompilePOSIX": true}
	compiled := func(file *ast.File, part ast.Node) (list []token.Pos) {
		for _, call := range callsOf(part) {
			if compiles[nameOf(file, call)] {
				list = append(list, call.Pos())
			}
		}
		return list
	}
	for had := 0; had != len(compiles); { // functions that call one of them
		had = len(compiles)
		for _, file := range files {
			for _, decl := range file.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Body != nil && len(compiled(file, fn.Body)) > 0 {
					compiles[file.Name.Name+"."+fn.Name.Name] = true
				}
			}
		}
	}
	for _, file := range files {
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok {
				if found++; fn.Recv != nil || fn.Name.Name != "init" { // runs when it is called
					continue
				}
			}
			for _, pos := range compiled(file, decl) {
				t.Errorf("%s: an expression that is compiled at the start, want checks.Lazily", set.Position(pos))
			}
		}
	}
	if len(files) < 300 || found < 1000 || len(compiles) < 6 {
		t.Errorf("looked at %d files with %d functions; %d compile", len(files), found, len(compiles))
	}
}

// callsOf returns the calls of a part of a file, except those of a function that it only defines.
func callsOf(part ast.Node) (list []*ast.CallExpr) {
	ast.Inspect(part, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			list = append(list, call)
			if now, ok := call.Fun.(*ast.FuncLit); ok {
				list = append(list, callsOf(now.Body)...)
			}
		}
		_, later := n.(*ast.FuncLit)
		return !later
	})
	return list
}

// nameOf returns a called function as package.Name, "" for others.
func nameOf(file *ast.File, call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return file.Name.Name + "." + f.Name
	case *ast.SelectorExpr:
		if pkg, ok := f.X.(*ast.Ident); ok {
			return pkg.Name + "." + f.Sel.Name
		}
	}
	return ""
}
