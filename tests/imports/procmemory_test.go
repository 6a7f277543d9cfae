package imports_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// A user can make the kernel block every reader of cmdline, environ and maps of a process, and can make
// environ larger than the node's memory. So only [probe.ReadMemoryFile] and readMemory open these files:
// they give up in time, and read a bounded part.
func TestMemoryOfProcessesIsReadInTime(t *testing.T) {
	t.Parallel()
	file := regexp.MustCompile(`(^|/)(cmdline|environ|maps|smaps|smaps_rollup|numa_maps|pagemap)$`)
	readers := map[string]bool{"ReadMemoryFile": true, "readMemoryFile": true, "readMemory": true}
	mayNot := map[string]string{
		"/proc/cmdline":    "is the kernel's command line",
		"/proc/self/maps":  "is of this process",
		"/proc/self/smaps": "is of this process",
	}
	skip := map[string]string{
		"checktest": "makes nodes", "probetest": "makes processes",
		"procmemory.go": "has the readers", "shellio.go": "has a message of bash by that name",
	}
	found := 0
	for _, dir := range []string{"cmd", "conf", "slurm", "checks"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || skip[filepath.Base(path)] != "" || skip[filepath.Base(filepath.Dir(path))] != "" {
				return err
			}
			set := token.NewFileSet()
			parsed, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			good := map[ast.Node]bool{}
			ast.Inspect(parsed, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.ImportSpec:
					return false
				case *ast.CallExpr:
					name := ""
					switch fun := n.Fun.(type) {
					case *ast.Ident:
						name = fun.Name
					case *ast.SelectorExpr:
						name = fun.Sel.Name
					}
					for _, arg := range n.Args {
						good[arg] = readers[name]
					}
				case *ast.BasicLit:
					text, err := strconv.Unquote(n.Value)
					if n.Kind != token.STRING || err != nil || !file.MatchString(text) || mayNot[text] != "" {
						return true
					}
					if found++; !good[n] {
						t.Errorf("%s: %s is not read by ReadMemoryFile", set.Position(n.Pos()), n.Value)
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
	if found < 4 {
		t.Errorf("found %d files of processes, want more", found)
	}
}
