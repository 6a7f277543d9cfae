package checks

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// tables are the scenarios of each check, in the order of the files that have them.
var tables = map[string][]scenarioTable{}

type scenarioTable struct {
	at   string // file and line
	list func() []scenario
}

// table adds scenarios to those of a check, made when a test first asks for them. Each
// table stands in a package variable: var _ = table(...).
func table(check string, list func(check string) []scenario) (added bool) {
	_, file, line, _ := runtime.Caller(1)
	t := scenarioTable{fmt.Sprintf("%s:%06d", file, line), sync.OnceValue(func() []scenario { return list(check) })}
	i, _ := slices.BinarySearchFunc(tables[check], t, func(a, b scenarioTable) int { return strings.Compare(a.at, b.at) })
	tables[check] = slices.Insert(tables[check], i, t)
	return true
}

func scenariosOf(check string) (list []scenario) {
	for _, t := range tables[check] {
		list = append(list, t.list()...)
	}
	return list
}

// testCheck runs all scenarios of a check. [checkTables] wants one test of each
// check that does nothing else.
func testCheck(t *testing.T, check string) {
	t.Helper()
	t.Parallel()
	for _, s := range scenariosOf(check) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.run(t, check)
		})
	}
}

// testsOfChecks are the tests func TestX(t *testing.T) { testCheck(t, "check_x") }, by check.
func testsOfChecks(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testOfCheck.FindAllStringSubmatch(string(text), -1) {
			tests[m[2]] = m[1]
		}
	}
	return tests
}

var testOfCheck = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\) +{ testCheck\(t, "(\w+)"\) }$`)
