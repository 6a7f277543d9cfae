package imports_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// most is how many files of a package may refer to each other in a cycle: no part of such a cycle
// can move to another package.
const most = 10

// TestCycles counts the files of the largest cycle of each package. A file refers to another one if
// it uses an identifier that is declared there.
func TestCycles(t *testing.T) {
	t.Parallel()
	packages, err := checkPackages()
	if err != nil {
		t.Fatal(err)
	}
	looked := 0
	for name, p := range packages {
		looked++
		t.Run(name, func(t *testing.T) {
			cycle := largestCycle(p.references())
			t.Logf("%d files: %s", len(cycle), strings.Join(cycle, " "))
			if len(cycle) > most {
				t.Errorf("%d files of %s refer to each other in a cycle, want at most %d: move what is misplaced", len(cycle), name, most)
			}
		})
	}
	if looked < 50 {
		t.Errorf("looked at %d packages", looked)
	}
}

// listed is a package as go list describes it.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles, CgoFiles       []string
}

// listPackages returns this project's packages and all that they import.
var listPackages = sync.OnceValues(func() (map[string]*listed, error) {
	list := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,CgoFiles", "./cmd/nhc-gpu")
	list.Dir = "../.."
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	packages := map[string]*listed{}
	for in := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(listed)
		if err := in.Decode(p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, err
		}
		packages[p.ImportPath] = p
	}
})

// checked is a package with the types of its identifiers.
type checked struct {
	files []*ast.File
	set   *token.FileSet
	pkg   *types.Package
	info  *types.Info
}

// checkPackages returns the types of this project's packages, without their tests.
var checkPackages = sync.OnceValues(func() (map[string]*checked, error) {
	packages, err := listPackages()
	if err != nil {
		return nil, err
	}
	read := func(path string) (io.ReadCloser, error) {
		if p := packages[path]; p != nil {
			return os.Open(p.Export)
		}
		return nil, errors.New(path + " is not listed")
	}
	all := map[string]*checked{}
	for name, p := range packages {
		name, ours := strings.CutPrefix(name, module+"/")
		if !ours {
			continue
		}
		c := &checked{set: token.NewFileSet(), info: &types.Info{Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}}
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
			file, err := parser.ParseFile(c.set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			c.files = append(c.files, file)
		}
		config := types.Config{Importer: importer.ForCompiler(c.set, "gc", read), FakeImportC: true}
		if c.pkg, err = config.Check(p.ImportPath, c.set, c.files, c.info); err != nil {
			return nil, err
		}
		all[name] = c
	}
	return all, nil
})

// references returns the files of a package, each with those that it refers to.
func (c *checked) references() map[string]map[string]bool {
	refs := map[string]map[string]bool{}
	for _, file := range c.files {
		refs[filepath.Base(c.set.Position(file.Pos()).Filename)] = map[string]bool{}
	}
	for id, obj := range c.info.Uses {
		if obj.Pkg() != c.pkg {
			continue
		}
		from, to := filepath.Base(c.set.Position(id.Pos()).Filename), filepath.Base(c.set.Position(obj.Pos()).Filename)
		if _, ours := refs[to]; ours && from != to {
			refs[from][to] = true
		}
	}
	return refs
}

// largestCycle returns the files of the largest set whose files all reach each other, by Tarjan's
// algorithm; none if there is no cycle.
func largestCycle(refs map[string]map[string]bool) (largest []string) {
	index, low, on := map[string]int{}, map[string]int{}, map[string]bool{}
	var stack []string
	var visit func(string)
	visit = func(file string) {
		index[file] = len(index) + 1
		low[file] = index[file]
		stack, on[file] = append(stack, file), true
		for to := range refs[file] {
			if index[to] == 0 {
				visit(to)
				low[file] = min(low[file], low[to])
			} else if on[to] {
				low[file] = min(low[file], index[to])
			}
		}
		if low[file] != index[file] {
			return
		}
		at := slices.Index(stack, file)
		if cycle := slices.Clone(stack[at:]); len(cycle) > max(1, len(largest)) {
			largest = cycle
		}
		for _, f := range stack[at:] {
			on[f] = false
		}
		stack = stack[:at]
	}
	for _, file := range slices.Sorted(maps.Keys(refs)) {
		if index[file] == 0 {
			visit(file)
		}
	}
	slices.Sort(largest)
	return largest
}

// mostFiles is how many files may contain the methods of one type, so that a subject is in one
// place.
const mostFiles = 4

// TestMethodsStandTogether counts the files with methods of each type.
func TestMethodsStandTogether(t *testing.T) {
	t.Parallel()
	packages, err := listPackages()
	if err != nil {
		t.Fatal(err)
	}
	types := 0
	for name, p := range packages {
		name, ours := strings.CutPrefix(name, module+"/")
		if !ours {
			continue
		}
		files := map[string][]string{}
		for _, file := range slices.Concat(p.GoFiles, p.CgoFiles) {
			parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range parsed.Decls {
				if of := receiver(d); of != "" && !slices.Contains(files[of], file) {
					files[of] = append(files[of], file)
				}
			}
		}
		for of, list := range files {
			if types++; len(list) > mostFiles {
				t.Errorf("%s: methods of %s stand in %d files, want at most %d: %s", name, of, len(list), mostFiles, strings.Join(list, " "))
			}
		}
	}
	if types < 50 {
		t.Errorf("%d types have methods", types)
	}
}

// receiver returns the type of a method's receiver, "" if the declaration is not a method.
func receiver(d ast.Decl) string {
	fn, ok := d.(*ast.FuncDecl)
	if !ok || fn.Recv == nil {
		return ""
	}
	of := fn.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	switch generic := of.(type) {
	case *ast.IndexExpr:
		of = generic.X
	case *ast.IndexListExpr:
		of = generic.X
	}
	if id, ok := of.(*ast.Ident); ok {
		return id.Name
	}
	return ""
}
