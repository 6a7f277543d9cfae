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

// A floor can be set for every test that measures: the test's name in the sources is in
// conf.FloorTests.
func TestEveryMeasureMayHaveAFloor(t *testing.T) {
	t.Parallel()
	seen, words := findMeasured(t)
	for _, op := range findWords(t, "../probe/cuda/ncclop.go", `\bName: "(\w+)"`) {
		for _, name := range []string{op, "multi_" + op, op + "_no_p2p", "multi_" + op + "_no_p2p"} {
			seen[name], words[name] = true, true
		}
	}
	for name := range seen {
		if _, ok := conf.FloorTests()[name]; !ok {
			t.Errorf("a check measures %q, of which no floor can be given: conf.FloorTests lacks it", name)
		}
	}
	for name := range conf.FloorTests() {
		if !words[name] {
			t.Errorf("conf.FloorTests has %q, which no check measures", name)
		}
	}
	for _, name := range findWords(t, "../active/active.toml", `(?m)^test = "(\w+)"`) {
		if _, ok := conf.FloorTests()[name]; !ok {
			t.Errorf("active.toml has %q, which is no test", name)
		}
	}
}

// findWords returns the matches of an expression in a file.
func findWords(t *testing.T, file, expression string) (list []string) {
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

// findMeasured returns the texts that the sources assign to the field Test of a measure, and all
// their words.
func findMeasured(t *testing.T) (names, words map[string]bool) {
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

// testOf returns the value that a node assigns to a field Test, by name in a struct or as the
// first in an assignment; nil if it assigns none.
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
