package imports_test

import (
	"go/types"
	"testing"
)

// A figure of a platform that no check reads has no effect, though the documents say that it is judged.
func TestFiguresAreRead(t *testing.T) {
	t.Parallel()
	packages, err := checkPackages()
	if err != nil {
		t.Fatal(err)
	}
	read := map[string]bool{}
	for _, p := range packages {
		for _, s := range p.info.Selections {
			of := s.Recv()
			if to, ok := of.(*types.Pointer); ok {
				of = to.Elem()
			}
			if of.String() == module+"/checks.Platform" {
				read[s.Obj().Name()] = true
			}
		}
	}
	platform := packages["checks"].pkg.Scope().Lookup("Platform").Type().Underlying().(*types.Struct)
	for f := range platform.Fields() {
		if !read[f.Name()] {
			t.Errorf("no code reads checks.Platform.%s", f.Name())
		}
	}
}
