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
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// scenario is one line of nhc.conf on a small node. "{root}" stands for the
// directory that holds the node, in words and files as in the wanted findings.
type scenario struct {
	name    string
	words   []string          // what stands behind the check's name
	files   map[string]string // the node's files; a name that ends in a slash is a directory
	links   map[string]string // the node's symbolic links
	tools   []string          // programs of this machine that the node has, too
	live    bool              // the check looks at this machine; files are only there
	vars    map[string]string // Env.Vars
	timeout time.Duration     // Env.Timeout
	table   map[string]any    // the TOML table that means the same as words
	acts    bool              // the bound check may change something
	broken  bool              // what the check reads is missing, unreadable or garbage
	want    []Finding
	leaves  map[string]string // what is in the node's files afterwards; "" is no such file
	past    string            // where on the node earlier runs have kept what they know; "": nowhere

	mtimes map[string]time.Time // when some of the files were last written

	nvml    *probe.NVML // what NVML says
	nvmlErr error       // why it says nothing

	platform *Platform        // of every GPU
	slurm    *probe.SlurmGPUs // what Slurm's configuration says

	job *SelftestJob // that the run is for

	// libraries puts fake libraries of vendors, or fake programs, into a directory, and
	// gives the variables of nhc.conf that name them.
	libraries func(t *testing.T, dir string) map[string]string

	dcgm func(h *probe.Host) // gives it a DCGM

	node     string // the healthy node of the self-test that files, links and nvml began as; "": see baseOf
	still    bool   // it matters which of eight devices is the one
	unitOnly bool   // not for the self-test: on a node that it has not
}

// of are the words behind the name of a check.
func of(words ...string) []string { return words }

// usageFinding is the failure of a check that was given the wrong words.
func usageFinding(message, want string) Finding {
	return Finding{Code: "config.usage", Severity: Fail, Remedy: FixConfig, Want: want, Message: message}
}

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

// testCheck runs all scenarios of a check. TestEveryTableIsRun wants one test of each
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
