package all

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
)

// The tests of what all checks are together. They need every check, and no scenario of a
// unit test.

// TestDocs compares the head of docs/reference/checks, and its sections by name, with the registry;
// TestFamily compares the sections.
func TestDocs(t *testing.T) {
	t.Parallel()
	checktest.CheckPage(t)
}

// TestSelftestNodes compares the healthy nodes of checks/selftest, and its files by name,
// with the registry; TestFamilyAll compares the files.
func TestSelftestNodes(t *testing.T) {
	t.Parallel()
	checktest.CheckNodes(t)
}

// TestAdviceConflicts refuses two texts on one code.
func TestAdviceConflicts(t *testing.T) {
	t.Parallel()
	if codes := checks.AdviceConflicts(); codes != nil {
		t.Errorf("two checks have different advice on %v", codes)
	}
}

func TestNamesAreSorted(t *testing.T) {
	t.Parallel()
	if names := checks.Names(); len(names) == 0 || !slices.IsSorted(names) {
		t.Errorf("Names() = %v", names)
	}
}

// The keys of a [[check]] table that are not parameters must not be parameters of a check.
func TestKeys(t *testing.T) {
	t.Parallel()
	for _, name := range checks.Names() {
		info, _ := checks.Lookup(name)
		keys := checks.TagsOf(reflect.ValueOf(info.New()).Elem()).Tables
		for _, key := range []string{"name", "hosts", "contexts", "action"} {
			if _, taken := keys[key]; taken {
				t.Errorf("%s has the key %s", name, key)
			}
		}
	}
}

// TestOfLBNL compares the list with the functions of LBNL NHC's own files.
func TestOfLBNL(t *testing.T) {
	t.Parallel()
	files, err := os.ReadFile(checktest.FromRoot(t, "checks/run/wire/lbnlfiles.txt"))
	if err != nil {
		t.Fatal(err)
	}
	theirs := map[string]bool{}
	for w := range strings.FieldsSeq(string(files)) {
		theirs[w] = true
	}
	for _, name := range checks.Names() {
		want := theirs[name] || strings.HasPrefix(name, "check_all_fs_")
		if checks.OfLBNL(name) != want {
			t.Errorf("OfLBNL(%s) = %v, want %v", name, checks.OfLBNL(name), want)
		}
	}
}

// TestCodes holds the rows of codes.toml against the codes that there are.
func TestCodes(t *testing.T) {
	t.Parallel()
	table, codes, used := checktest.ReadCodes(t), ownCodes(t), map[string]bool{}
	for _, code := range slices.Sorted(maps.Keys(codes)) {
		row := table.RowOf(code)
		if row == "" {
			t.Errorf("%s (%s) has no row in codes.toml", code, codes[code])
		}
		used[row] = true
	}
	for code := range table.Words {
		if !used[code] && !isOfData(code) {
			t.Errorf("codes.toml: no check produces %s", code)
		}
	}
	for code, same := range table.Same { // the slurm package compares the words, too
		if checks.Words(code) != checks.Words(same) {
			t.Errorf("%s and %s are the same fault, with other words", code, same)
		}
	}
	for code, r := range table.Remedy {
		if !checktest.IsRemedy(r) && r != "none" || r == checks.NoRemedy {
			t.Errorf("codes.toml: %s: remedy %q is not in the list", code, r)
		}
		if table.RowOf(code) == "" {
			t.Errorf("codes.toml: %s has a remedy and no words", code)
		}
	}
}

// isOfData reports whether some [checks.Info.DoOf] has advice on a code, or on a number instead of
// its star.
func isOfData(code string) bool {
	for n := range 1000 {
		if checks.WhatToDo(strings.Replace(code, "*", strconv.Itoa(n), 1)) != "" {
			return true
		}
	}
	return false
}

// ownCodes are the codes that checks other than LBNL NHC's produce, with the file or the
// check that shows it: what checks declare, what their scenarios of the self-test find,
// and every code that stands in the source or in klog.toml.
func ownCodes(t *testing.T) map[string]string {
	t.Helper()
	codes, theirs := map[string]string{}, map[string]bool{}
	note := func(name, code string) {
		if checks.OfLBNL(name) {
			theirs[code] = true
		} else {
			codes[code] = name
		}
	}
	for _, name := range checks.Names() {
		info, _ := checks.Lookup(name)
		for code := range info.Advice() {
			note(name, code)
		}
	}
	scenarios, err := selftest.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scenarios {
		for _, w := range s.Want {
			note(s.Check, w.Code)
		}
	}
	for code := range checks.SharedAdvice() {
		codes[code] = "every check"
	}
	for _, dir := range []string{"checks", "cmd"} {
		if err := filepath.WalkDir(checktest.FromRoot(t, dir), func(file string, d fs.DirEntry, err error) error {
			var found []string
			switch {
			case err != nil:
				return err
			case d.Name() == "klog.toml":
				found = codesOfMessages(t, file)
			case filepath.Ext(file) == ".go" && !strings.HasSuffix(file, "_test.go"):
				found = codesIn(t, file)
			}
			for _, code := range found {
				if !theirs[code] && codes[code] == "" {
					codes[code] = file
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	return codes
}

// codesOfMessages are the codes of the kernel's messages that say something.
func codesOfMessages(t *testing.T, file string) (codes []string) {
	t.Helper()
	var table struct {
		Messages []struct{ Code, Class string } `toml:"message"`
	}
	if _, err := toml.DecodeFile(file, &table); err != nil || len(table.Messages) == 0 {
		t.Fatalf("%s: %v, %d messages", file, err, len(table.Messages))
	}
	for _, m := range table.Messages {
		if m.Class != "IGNORE" {
			codes = append(codes, m.Code)
		}
	}
	return codes
}

var isCode = regexp.MustCompile(`^[a-z]+(\.[a-z0-9_-]+)+$`)

// codesIn returns the whole codes that stand in a file as the Code of a finding.
func codesIn(t *testing.T, file string) (codes []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	note := func(e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if code, _ := strconv.Unquote(lit.Value); isCode.MatchString(code) {
				codes = append(codes, code)
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			if strings.EqualFold(checktest.TypeName(n.Type), "activeTest") {
				return false // whose code is the beginning of some
			}
		case *ast.KeyValueExpr:
			if id, ok := n.Key.(*ast.Ident); ok && id.Name == "Code" {
				note(n.Value)
			}
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if sel, ok := left.(*ast.SelectorExpr); ok && sel.Sel.Name == "Code" && i < len(n.Rhs) {
					note(n.Rhs[i])
				}
			}
		}
		return true
	})
	return codes
}
