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

// A process that a check starts, possibly an ordinary user's program, inherits a descriptor that is
// not close-on-exec. So a system call that creates one must have the flag CLOEXEC. Package os
// does that itself.
func TestDescriptorsAreCloseOnExec(t *testing.T) {
	t.Parallel()
	makes := map[string]bool{
		"Open": true, "Openat": true, "Openat2": true, "Creat": true, "Socket": true, "Socketpair": true, "Accept": true, "Accept4": true, "Pipe": true, "Pipe2": true,
		"MemfdCreate": true, "EpollCreate": true, "EpollCreate1": true, "Eventfd": true, "InotifyInit": true, "InotifyInit1": true, "Dup": true, "Dup2": true, "Dup3": true,
		"TimerfdCreate": true, "PerfEventOpen": true, "Recvmsg": true,
	}
	mayNot := map[string]string{
		"BecomeShell": "gives bash its descriptors, which bash marks",
		"PrintPorts":  "is the main function of a process that starts no other",
		"PrintStates": "is the main function of a process that starts no other",
	}
	found := 0
	for _, dir := range []string{"cmd", "conf", "slurm", "checks"} {
		root := filepath.Join("..", "..", dir)
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, decl := range file.Decls {
				fn, ok := decl.(*ast.FuncDecl)
				if !ok || fn.Body == nil || mayNot[fn.Name.Name] != "" {
					continue
				}
				marked := map[string]bool{} // variables whose value has the flag
				ast.Inspect(fn.Body, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.ValueSpec:
						for i, value := range n.Values {
							marked[n.Names[i].Name] = hasCloexec(value, marked)
						}
					case *ast.AssignStmt:
						id, ok := n.Lhs[0].(*ast.Ident)
						if _, call := n.Rhs[0].(*ast.CallExpr); ok && !call {
							marked[id.Name] = n.Tok == token.OR_ASSIGN && marked[id.Name] || hasCloexec(n.Rhs[0], marked)
						}
					case *ast.CallExpr:
						sel, ok := n.Fun.(*ast.SelectorExpr)
						if !ok || !makes[sel.Sel.Name] {
							return true
						}
						if pkg, ok := sel.X.(*ast.Ident); !ok || pkg.Name != "unix" && pkg.Name != "syscall" {
							return true
						}
						found++
						if !hasCloexec(n, marked) {
							t.Errorf("%s:%d: %s without CLOEXEC", path, set.Position(n.Pos()).Line, sel.Sel.Name)
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
	if found < 10 {
		t.Errorf("found %d calls that make a descriptor, want more", found)
	}
}

// hasCloexec reports whether a flag CLOEXEC, or a variable that has it, is in an expression.
func hasCloexec(expr ast.Node, marked map[string]bool) (has bool) {
	ast.Inspect(expr, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			has = has || strings.HasSuffix(n.Sel.Name, "_CLOEXEC")
		case *ast.Ident:
			has = has || marked[n.Name]
		}
		return !has
	})
	return has
}
