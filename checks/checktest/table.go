package checktest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// tables holds the scenarios of each check, in the order of their files.
var tables = map[string][]scenarioTable{}

type scenarioTable struct {
	at   string // file and line
	list func() []Scenario
}

// Table adds scenarios to a check. list runs when a test first needs them. Declare each table
// as a package variable: var _ = checktest.Table(...).
func Table(check string, list func(check string) []Scenario) (added bool) {
	_, file, line, _ := runtime.Caller(1)
	t := scenarioTable{fmt.Sprintf("%s:%06d", file, line), sync.OnceValue(func() []Scenario { return list(check) })}
	i, _ := slices.BinarySearchFunc(tables[check], t, func(a, b scenarioTable) int { return strings.Compare(a.at, b.at) })
	tables[check] = slices.Insert(tables[check], i, t)
	return true
}

func scenariosOf(check string) (list []Scenario) {
	for _, t := range tables[check] {
		list = append(list, t.list()...)
	}
	return list
}

// Run runs all scenarios of a check. [checkTables] requires one test of each check that only
// calls Run.
func Run(t *testing.T, check string) {
	t.Helper()
	t.Parallel()
	for _, s := range scenariosOf(check) {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			s.Run(t, check)
		})
	}
}

// testsOfChecks returns the tests func TestX(t *testing.T) { checktest.Run(t, "check_x") }, by check.
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
		for _, m := range testOfCheck().FindAllStringSubmatch(string(text), -1) {
			tests[m[2]] = m[1]
		}
	}
	return tests
}

var testOfCheck = checks.Lazily(`(?m)^func (Test\w+)\(t \*testing\.T\) +{\s*checktest\.Run\(t, "(\w+)"\)\s*}$`)
