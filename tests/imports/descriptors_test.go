package imports_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A process that a check starts, possibly an ordinary user's program, inherits a descriptor that is
// not close-on-exec. So a function that creates one by a system call must use CLOEXEC. Package os
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
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, text, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for _, decl := range file.Decls {
				fn, ok := decl.(*ast.FuncDecl)
				if !ok || fn.Body == nil || mayNot[fn.Name.Name] != "" {
					continue
				}
				marked := strings.Contains(string(text[set.Position(fn.Pos()).Offset:set.Position(fn.End()).Offset]), "CLOEXEC")
				ast.Inspect(fn.Body, func(n ast.Node) bool {
					call, ok := n.(*ast.CallExpr)
					if !ok {
						return true
					}
					sel, ok := call.Fun.(*ast.SelectorExpr)
					if !ok || !makes[sel.Sel.Name] {
						return true
					}
					if pkg, ok := sel.X.(*ast.Ident); !ok || pkg.Name != "unix" && pkg.Name != "syscall" {
						return true
					}
					found++
					if !marked {
						t.Errorf("%s:%d: %s.%s without CLOEXEC", path, set.Position(call.Pos()).Line, "unix", sel.Sel.Name)
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
