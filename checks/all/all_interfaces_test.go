package all

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// TestOptionalMethods: a check with a method of an optional interface must implement that
// interface; otherwise Bind and others would silently ignore the method.
func TestOptionalMethods(t *testing.T) {
	t.Parallel()
	found := map[reflect.Type]int{}
	for _, of := range []reflect.Type{reflect.TypeFor[checks.Namer](), reflect.TypeFor[checks.Validator](), reflect.TypeFor[checks.LogReader](), reflect.TypeFor[checks.Bounded]()} {
		for _, name := range checks.Names() {
			info, _ := checks.Lookup(name)
			kind := reflect.TypeOf(info.New())
			for m := range of.Methods() {
				if _, has := kind.MethodByName(m.Name); has && m.Name != "Run" {
					found[of]++
					if !kind.Implements(of) {
						t.Errorf("%s has a method %s and is no %s", kind, m.Name, of)
					}
				}
			}
		}
		if found[of] == 0 {
			t.Errorf("no check is a %s", of)
		}
	}
}

// TestInterfacesAreExported rejects an interface with an unexported method: a check in another
// package cannot implement it, even with a method of the same name.
func TestInterfacesAreExported(t *testing.T) {
	t.Parallel()
	inFamily := []string{"readSite", "mounts"} // used only within the family of the type
	var files []string
	for _, dir := range families(t) {
		found, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(found) == 0 {
			t.Fatalf("no source in %s: %v", dir, err)
		}
		files = append(files, found...)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if i, ok := n.(*ast.InterfaceType); ok {
				for _, m := range i.Methods.List {
					if len(m.Names) > 0 && !m.Names[0].IsExported() && !slices.Contains(inFamily, m.Names[0].Name) {
						t.Errorf("%s: an interface with the unexported method %s", name, m.Names[0].Name)
					}
				}
			}
			return true
		})
	}
}
