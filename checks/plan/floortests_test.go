package plan

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/conf"
)

// A floor can be given of every test that measures: its name in the sources is one of
// conf.FloorTests.
func TestEveryMeasureMayHaveAFloor(t *testing.T) {
	t.Parallel()
	seen, words := measuredNames(t)
	for _, op := range wordsBehind(t, "../active/nccl_ops.go", `\bname: "(\w+)"`) {
		for _, name := range []string{op, "multi_" + op, op + "_no_p2p", "multi_" + op + "_no_p2p"} {
			seen[name], words[name] = true, true
		}
	}
	for name := range seen {
		if _, ok := conf.FloorTests[name]; !ok {
			t.Errorf("a check measures %q, of which no floor can be given: conf.FloorTests lacks it", name)
		}
	}
	for name := range conf.FloorTests {
		if !words[name] {
			t.Errorf("conf.FloorTests has %q, which no check measures", name)
		}
	}
	for _, name := range wordsBehind(t, "../active/active.toml", `(?m)^test = "(\w+)"`) {
		if _, ok := conf.FloorTests[name]; !ok {
			t.Errorf("active.toml has %q, which is no test", name)
		}
	}
}

// wordsBehind are what an expression finds in a file.
func wordsBehind(t *testing.T, file, expression string) (list []string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(expression).FindAllSubmatch(data, -1) {
		list = append(list, string(m[1]))
	}
	if len(list) < 6 {
		t.Fatalf("%s: found %v alone", file, list)
	}
	return list
}

// measuredNames are the words that the sources give as the Test of a measure, and all
// words of them.
func measuredNames(t *testing.T) (names, words map[string]bool) {
	t.Helper()
	names, words = map[string]bool{}, map[string]bool{}
	files, err := filepath.Glob("../active/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if text, ok := literal(n); ok {
				words[text] = true
			}
			if text, ok := literal(testOf(n)); ok {
				names[text] = true
			}
			return true
		})
	}
	if len(names) < 8 {
		t.Fatalf("found %v alone", names)
	}
	return names, words
}

// testOf is what a part of the sources puts into a field Test, by its name in a struct
// or by the first of an assignment; nil where it does not.
func testOf(n ast.Node) ast.Node {
	switch n := n.(type) {
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Test" {
			return n.Value
		}
	case *ast.AssignStmt:
		if field, ok := n.Lhs[0].(*ast.SelectorExpr); ok && field.Sel.Name == "Test" {
			return n.Rhs[0]
		}
	}
	return nil
}

func literal(n ast.Node) (string, bool) {
	word, ok := n.(*ast.BasicLit)
	if !ok || word.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(word.Value)
	return text, err == nil
}
