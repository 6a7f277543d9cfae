package docs

import (
	"fmt"
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

var (
	walkRow = regexp.MustCompile(`^\| (\d+)-(\d+) \| ([^|]*) \|`)
	named   = regexp.MustCompile("`(([a-z]+)\\.[A-Za-z.]+)`")
)

// Every function and type that the walk in docs/design.md names exists, and its numbers are right.
func TestWalk(t *testing.T) {
	t.Parallel()
	exists := map[string]bool{}
	eachFile(t, func(_ string, file *ast.File) {
		for name := range declared(file) {
			exists[name] = true
		}
	})
	_, walk, _ := strings.Cut(string(readPages(t)["docs/design.md"].text), "\n## The walk of a word\n")
	walk, _, _ = strings.Cut(walk, "\n## ")
	for _, m := range named.FindAllStringSubmatch(walk, -1) {
		if !exists[m[1]] {
			t.Errorf("there is no %s", m[1])
		}
	}
	all, pipes, functions, packages := 0, 0, map[string]bool{}, map[string]bool{}
	for line := range strings.Lines(walk) {
		row := walkRow.FindStringSubmatch(line)
		if row == nil {
			continue
		}
		first := all + 1
		for _, m := range named.FindAllStringSubmatch(row[3], -1) {
			all++
			functions[m[1]], packages[m[2]] = true, true
		}
		pipes += strings.Count(row[3], "pipe")
		if want := fmt.Sprintf("%d-%d", first, all); row[1]+"-"+row[2] != want {
			t.Errorf("row %s-%s has the functions %s", row[1], row[2], want)
		}
	}
	want := fmt.Sprintf("passed on %d times, by %d functions of %d packages, and crosses %d pipes", all-1, len(functions), len(packages), pipes)
	if !strings.Contains(strings.Join(strings.Fields(walk), " "), want) {
		t.Errorf("the text does not say: %s", want)
	}
}

// declared returns the functions and types of a file: "plan.Build", "run.Pool.Do", "plan.Step".
func declared(file *ast.File) map[string]bool {
	names := map[string]bool{}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			of := file.Name.Name + "."
			if d.Recv != nil {
				typ := d.Recv.List[0].Type
				if star, ok := typ.(*ast.StarExpr); ok {
					typ = star.X
				}
				if id, ok := typ.(*ast.Ident); ok {
					of += id.Name + "."
				}
			}
			names[of+d.Name.Name] = true
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok {
					names[file.Name.Name+"."+s.Name.Name] = true
				}
			}
		}
	}
	return names
}
