package checktest

import (
	_ "github.com/nhc-gpu/nhc-gpu/checks/gpustate" // reports states of GPUs after every check

	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Family tests the checks of the calling package. With NHC_GPU_WRITE=docs it writes their
// sections of docs/reference/checks instead, with NHC_GPU_WRITE=selftests their files in
// checks/selftest.
func Family(t *testing.T) {
	t.Helper()
	own := checksOf(t, callerPackage())
	switch os.Getenv(WriteSetting) {
	case "docs":
		writeSections(t, own)
		writeReference(t, own)
	case "selftests":
		writeSelftests(t, own)
	default:
		runEach(t, own, []familyTest{
			{"Tables", checkTables}, {"Scenarios", checkScenarios}, {"OneOfEight", checkOneOfEight}, {"Advice", checkAdvice}, {"DryRun", checkDryRun},
			{"Remedies", checkRemedies}, {"Codes", checkCodes}, {"Docs", checkSections}, {"Reference", checkReference},
		})
	}
}

// FamilyAll runs the slow tests of a family.
func FamilyAll(t *testing.T) {
	t.Helper()
	if os.Getenv(WriteSetting) != "" {
		t.Skip("TestFamily writes")
	}
	runEach(t, checksOf(t, callerPackage()), []familyTest{
		{"Selftests", checkSelftests}, {"SelftestIsWritten", checkSelftestIsWritten}, {"SelftestOneOfEight", checkSelftestOneOfEight},
		{"SelftestIsTheUnitTests", checkSelftestIsTheUnitTests}, {"Reach", checkReach},
	})
}

// WriteSetting is the environment variable that makes the tests write a file instead of
// comparing it.
const WriteSetting = "NHC_GPU_WRITE"

type familyTest struct {
	name  string
	check func(t *testing.T, own []string)
}

func runEach(t *testing.T, own []string, tests []familyTest) {
	t.Helper()
	t.Parallel()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.check(t, own)
		})
	}
}

// callerPackage returns the path of the package whose test called the calling function.
func callerPackage() string {
	pc := make([]uintptr, 1)
	runtime.Callers(3, pc)
	frame, _ := runtime.CallersFrames(pc).Next()
	base := strings.LastIndexByte(frame.Function, '/') + 1
	name, _, _ := strings.Cut(frame.Function[base:], ".")
	return frame.Function[:base] + strings.TrimSuffix(name, "_test")
}

// checksOf returns the checks whose types a package declares, sorted.
func checksOf(t *testing.T, pkg string) []string {
	t.Helper()
	own := slices.DeleteFunc(checks.Names(), func(name string) bool { return typeOf(name).PkgPath() != pkg })
	if len(own) == 0 {
		t.Fatalf("no check is of %s", pkg)
	}
	return own
}

// typeOf returns the struct of a check.
func typeOf(name string) reflect.Type {
	info, _ := checks.Lookup(name)
	return reflect.TypeOf(info.New()).Elem()
}

// FromRoot returns the path of a file of the project.
func FromRoot(t *testing.T, name string) string {
	t.Helper()
	root, err := os.Getwd()
	for err == nil {
		if _, err = os.Stat(filepath.Join(root, "go.mod")); err == nil {
			return filepath.Join(root, name)
		}
		if up := filepath.Dir(root); up != root {
			root, err = up, nil
		}
	}
	t.Fatal(err)
	return ""
}

// isUnsupported reports whether a check can never run.
func isUnsupported(name string) bool {
	info, _ := checks.Lookup(name)
	u, ok := info.New().(interface{ Unsupported() string })
	return ok && u.Unsupported() != ""
}

// checkTables rejects a table of scenarios that no test runs by the name of its check, and a
// table whose check is in another package.
func checkTables(t *testing.T, own []string) {
	var want []string
	for _, name := range own {
		if tables[name] != nil {
			want = append(want, name)
		}
	}
	for name := range tables {
		if !slices.Contains(own, name) {
			t.Errorf("%s: its scenarios are in another package than the check", name)
		}
	}
	var got []string
	for name := range testsOfChecks(t) {
		got = append(got, name)
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("checks with tables, and those of checktest.Run(t, \"check_...\") (-want +got):\n%s", diff)
	}
}

// checkScenarios rejects a check without scenarios that show it pass, fail, and handle a broken
// node.
func checkScenarios(t *testing.T, own []string) {
	for _, name := range own {
		if isUnsupported(name) {
			continue // see TestUnsupported
		}
		var passes, fails, breaks bool
		for _, s := range scenariosOf(name) {
			worst := checks.Worst(s.Want)
			passes = passes || !s.Broken && worst <= checks.Warn
			fails = fails || !s.Broken && worst == checks.Fail
			breaks = breaks || s.Broken
		}
		if !passes || !fails || !breaks {
			t.Errorf("%s: scenarios for pass: %v, fail: %v, broken node: %v; want all three", name, passes, fails, breaks)
		}
	}
}

// checkOneOfEight rejects a check of GPUs without a scenario where it fails for one bad GPU
// of eight and names that GPU.
func checkOneOfEight(t *testing.T, own []string) {
	for _, name := range own {
		if info, _ := checks.Lookup(name); info.Lane != checks.NVML {
			continue
		}
		found := slices.ContainsFunc(scenariosOf(name), func(s Scenario) bool {
			return s.NVML != nil && len(s.NVML.GPUs) == 8 && len(s.Want) == 1 && s.Want[0].Severity == checks.Fail &&
				s.Want[0].Device.Name == "gpu3" && strings.Contains(s.Want[0].Message, s.Want[0].Device.PCI)
		})
		if !found {
			t.Errorf("%s: no scenario where only gpu3 of eight GPUs fails", name)
		}
	}
}

// checkAdvice rejects findings without advice, and advice on codes that no scenario shows.
func checkAdvice(t *testing.T, own []string) {
	seen := map[string]bool{}
	for _, name := range own {
		for _, s := range scenariosOf(name) {
			for _, f := range s.Want {
				seen[f.Code] = true
				if checks.WhatToDo(f.Code) == "" && f.Code != checks.ArrayCode {
					t.Errorf("%s: %s: no Info.Do has advice on the code %q", name, s.Name, f.Code)
				}
			}
		}
	}
	for _, name := range own {
		info, _ := checks.Lookup(name)
		for code := range info.Advice() {
			if !seen[code] && (!info.Active || !strings.HasSuffix(code, ".baseline")) { // a test of package active shows these
				t.Errorf("%s: Info.Do has the code %q, which no scenario shows", name, code)
			}
		}
	}
}

// Codes is checks/codes.toml.
type Codes struct {
	Words  map[string]string        `toml:"words"`
	Remedy map[string]checks.Remedy `toml:"remedy"`
	Same   map[string]string        `toml:"same"`
}

// ReadCodes reads checks/codes.toml.
func ReadCodes(t *testing.T) (table Codes) {
	t.Helper()
	meta, err := toml.DecodeFile(FromRoot(t, "checks/codes.toml"), &table)
	if err != nil || len(meta.Undecoded()) > 0 {
		t.Fatalf("codes.toml: %v, unknown keys %v", err, meta.Undecoded())
	}
	return table
}

// RowOf returns the row of a code: its own, or that of its family (with a star), or "".
func (c Codes) RowOf(code string) string {
	if _, ok := c.Words[code]; ok {
		return code
	}
	for i := strings.LastIndexByte(code, '.'); i > 0; i = strings.LastIndexByte(code[:i], '.') {
		if _, ok := c.Words[code[:i]+".*"]; ok {
			return code[:i] + ".*"
		}
	}
	return ""
}

// IsRemedy reports whether a remedy is in the list.
func IsRemedy(r checks.Remedy) bool { return r == checks.NoRemedy || r.Words() != "" }

// checkCodes rejects a code of our own checks without a text in codes.toml.
func checkCodes(t *testing.T, own []string) {
	table := ReadCodes(t)
	for _, name := range own {
		if checks.OfLBNL(name) {
			continue
		}
		for _, s := range scenariosOf(name) {
			for _, f := range s.Want {
				if table.RowOf(f.Code) == "" {
					t.Errorf("%s: %s: %s has no row in codes.toml", name, s.Name, f.Code)
				}
			}
		}
	}
}

// checkRemedies rejects a failing finding of our own checks without a remedy, and a remedy that
// is not in the list.
func checkRemedies(t *testing.T, own []string) {
	table := ReadCodes(t)
	for _, name := range own {
		if checks.OfLBNL(name) {
			continue
		}
		for _, s := range scenariosOf(name) {
			for _, f := range s.Want {
				if !IsRemedy(f.Remedy) {
					t.Errorf("%s: %s: remedy %q is not in the list", name, s.Name, f.Remedy)
				}
				if f.Remedy == checks.ReseatOrRMA && repairsLess(f) {
					t.Errorf("%s: %s: the remedy of %s is %s, and its advice begins with less: %s", name, s.Name, f.Code, f.Remedy, f.Advice())
				}
				if f.Severity != checks.Fail || f.Remedy != checks.NoRemedy || strings.HasPrefix(f.Code, "dcgm.fr.") { // a site can change the class of these
					continue
				}
				if _, ok := table.Remedy[f.Code]; !ok {
					t.Errorf("%s: %s: %s fails without a remedy: give the finding one, or codes.toml", name, s.Name, f.Code)
				}
			}
		}
	}
}

var (
	lesser  = regexp.MustCompile(`(?i)(^|[.,:;] |then |or )(power the node off|power-cycle|reboot|watch it)\b`)
	replace = regexp.MustCompile(`(?i)\b(reseat|replac|diagnostic)`)
)

// repairsLess reports whether the advice on a finding names a reboot before the replacement of the part: people order
// parts on the remedy alone. An Xid has the advice of its class, which its scenarios do not show.
func repairsLess(f checks.Finding) bool {
	do := f.Advice()
	less, more := lesser.FindStringIndex(do), replace.FindStringIndex(do)
	return !strings.HasPrefix(f.Code, "gpu.xid.") && !strings.HasPrefix(f.Code, "gpu.sxid.") && less != nil && (more == nil || less[0] < more[0])
}

// observesByCommand lists the checks whose [checks.Info.Acts] is true because they run
// a program of the site. The program is the check, not an action on what it found.
var observesByCommand = []string{"check_cmd_dmesg", "check_cmd_output", "check_cmd_status", "check_net_ping"}

// checkDryRun runs every scenario of a check that acts as a dry run. The files of the node
// must not change, and at least one scenario of each struct of checks must report an action
// that was not carried out.
func checkDryRun(t *testing.T, own []string) {
	held := map[reflect.Type]int{}
	for _, name := range own {
		info, _ := checks.Lookup(name)
		if info.Acts == nil || slices.Contains(observesByCommand, name) || tables[name] == nil {
			continue
		}
		held[typeOf(name)] += 0 // also without such a scenario

		if name == "check_job_leftovers" { // see TestDryRunSparesLeftovers
			held[typeOf(name)]++
		}
		for _, s := range scenariosOf(name) {
			if s.Acts {
				held[typeOf(name)] += len(s.runDry(t, name))
			}
		}
	}
	for kind, n := range held {
		if n == 0 {
			t.Errorf("%v: no scenario holds an action", kind)
		}
	}
}

// runDry runs a scenario as a dry run and returns the actions that were not carried out.
func (s Scenario) runDry(t *testing.T, name string) []string {
	t.Helper()
	root, words, env := s.prepare(t, name)
	env.DryRun = true
	before := snapshot(t, root)
	s.bindAndRun(t, name, words, env)
	if diff := cmp.Diff(before, snapshot(t, root)); diff != "" {
		t.Errorf("%s changed the node (-before +after):\n%s", env.Line, diff)
	}
	return env.Held()
}

// snapshot describes every file below a directory: mode, modification time and content. It
// omits the data that checks keep for later runs.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Name() == "past" && d.IsDir() {
			return fs.SkipDir
		}
		if data, _ := os.ReadFile(path); strings.HasPrefix(string(data), "squeue ") {
			return nil // the fake squeue's own log
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		switch {
		case d.Type().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %s %q", info.ModTime(), data)
		case d.Type() == fs.ModeSymlink:
			target, _ := os.Readlink(path)
			text += " -> " + target
		}
		files[strings.TrimPrefix(path, dir)] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
