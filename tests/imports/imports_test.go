// Package imports_test shows that the packages import in one direction only, and that the linter
// has the same rules.
package imports_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/nhc-gpu/nhc-gpu"

// anyFamily has the packages that each family may import; "checks/probe/*" are all packages below
// it.
var anyFamily = []string{"checks", "checks/gpustate", "checks/probe", "checks/probe/*", "conf/match"}

// may has the project's packages, and os/exec, that a package may import. Everything else is
// refused, and unused entries are removed. "checks/*" are the families without an entry, for
// example a new one.
var may = map[string][]string{
	"conf":                           {"conf/tomltext", "conf/spell"},
	"conf/spell":                     {},
	"conf/tomltext":                  {},
	"conf/match":                     {},
	"checks/probe":                   {"os/exec"},
	"checks/probe/*":                 {"checks/probe", "os/exec"},
	"checks/probe/cpu":               {"checks/probe", "checks/probe/pci", "os/exec"},
	"checks/probe/cuda":              {"checks/probe", "checks/probe/nvidia", "checks/probe/pci", "os/exec"},
	"checks/probe/inventory":         {"checks/probe", "checks/probe/cpu", "checks/probe/disk", "checks/probe/hostengine", "checks/probe/network", "checks/probe/nvidia", "checks/probe/nvml", "checks/probe/pci", "checks/probe/rdma", "os/exec"},
	"checks/probe/network":           {"checks/probe", "checks/probe/pci", "os/exec"},
	"checks/probe/nvidia":            {"checks/probe", "checks/probe/pci", "os/exec"},
	"checks/probe/nvml":              {"checks/probe", "checks/probe/nvidia", "os/exec"},
	"checks/probe/rdma":              {"checks/probe", "checks/probe/network", "checks/probe/pci", "os/exec"},
	"checks":                         {"checks/probe", "checks/probe/*", "conf/match", "conf/tomltext", "conf/spell"},
	"checks/gpustate":                {"checks", "checks/probe", "checks/probe/*"},
	"checks/*":                       anyFamily,
	"checks/active":                  slices.Concat(anyFamily, []string{"checks/dcgm", "checks/fabric", "checks/gpu", "checks/pcie", "checks/topology"}),
	"checks/fabric":                  slices.Concat(anyFamily, []string{"checks/pcie"}),
	"checks/xid":                     slices.Concat(anyFamily, []string{"conf/spell"}),
	"checks/gpu":                     slices.Concat(anyFamily, []string{"checks/pcie", "checks/xid"}),
	"checks/jobs":                    slices.Concat(anyFamily, []string{"checks/fabric", "checks/gpu", "checks/monitor", "checks/monitor/flight"}),
	"checks/sweep":                   {"checks/sweep/eas", "conf/spell"},
	"checks/sweep/eas":               {"conf/spell"},
	"checks/topology":                slices.Concat(anyFamily, []string{"checks/fabric", "checks/pcie"}),
	"checks/explain":                 {"checks", "checks/fabric", "checks/monitor", "checks/policy", "checks/xid", "conf", "conf/spell"},
	"checks/selftest":                {"checks", "checks/probe", "checks/probe/*"},
	"checks/checktest":               {"checks", "checks/gpustate", "checks/probe", "checks/probe/*", "checks/selftest", "os/exec", "tests/*"},
	"checks/all":                     {"checks/*"},
	"checks/policy":                  {"checks", "checks/event", "conf"},
	"checks/monitor":                 {"checks"},
	"checks/monitor/flight":          {},
	"checks/remedy":                  {"checks", "checks/event", "conf"},
	"checks/plan":                    {"checks", "checks/monitor", "conf", "conf/match", "conf/spell"},
	"checks/run/process":             {"checks"},
	"checks/run/wire":                {"checks", "checks/active", "checks/topology", "checks/probe", "checks/probe/*", "checks/run/process"},
	"checks/run/worker":              {"checks", "checks/active", "checks/explain", "checks/fabric", "checks/gpu", "checks/gpustate", "checks/jobs", "checks/monitor", "checks/monitor/flight", "checks/probe", "checks/probe/*", "checks/run/process", "checks/run/wire", "checks/topology", "checks/xid"},
	"checks/run/runtest":             {"checks/run/wire"},
	"checks/run":                     {"checks", "checks/plan", "checks/probe", "checks/run/process", "checks/run/wire", "os/exec"},
	"checks/verdict":                 {"checks"},
	"checks/sweep/launch":            {"checks/probe", "checks/sweep", "checks/sweep/wire", "slurm"},
	"checks/sweep/wire":              {"checks/sweep"},
	"checks/sweep/rank":              {"checks", "checks/fabric", "checks/probe", "checks/probe/*", "checks/sweep", "checks/sweep/wire"},
	"checks/event":                   {"checks"},
	"checks/session":                 {"checks", "checks/monitor", "checks/plan", "checks/policy", "checks/verdict", "conf", "slurm"},
	"checks/session/setting":         {"checks", "checks/probe", "checks/probe/*", "checks/run/wire", "conf"},
	"checks/session/sink":            {"checks/run", "checks/run/wire", "checks/verdict", "checks/session/setting", "conf"},
	"checks/session/node":            {"checks", "checks/event", "checks/gpu", "checks/plan", "checks/remedy", "checks/probe/*", "checks/run", "checks/run/wire", "checks/verdict", "checks/session", "checks/session/setting", "checks/session/sink", "conf", "slurm"},
	"checks/session/open":            {"checks", "checks/monitor", "checks/plan", "checks/probe", "checks/probe/*", "checks/run", "checks/run/wire", "checks/verdict", "checks/session", "checks/session/setting", "checks/session/node", "conf", "conf/match", "slurm"},
	"checks/session/job":             {"checks", "checks/plan", "checks/probe", "checks/probe/evidence", "checks/run", "checks/run/wire", "checks/session", "checks/session/node", "conf", "slurm"},
	"checks/session/outputs":         {"checks", "checks/event", "checks/probe/*", "checks/run", "checks/run/wire", "checks/verdict", "checks/session/node", "checks/session/sink", "conf"},
	"checks/session/repair":          {"checks", "checks/event", "checks/remedy", "checks/run", "checks/session/node", "checks/session/outputs", "checks/session/sink", "conf", "slurm"},
	"checks/session/sessiontest":     {"checks", "checks/run", "checks/run/wire", "checks/run/worker", "checks/session", "checks/session/node", "checks/session/setting", "checks/session/sink", "slurm", "tests/*"},
	"checks/session/judge":           {"conf/spell", "checks", "checks/event", "checks/monitor", "checks/plan", "checks/policy", "checks/remedy", "checks/run", "checks/run/wire", "checks/verdict", "checks/session", "checks/session/job", "checks/session/node", "checks/session/open", "checks/session/outputs", "checks/session/setting", "checks/session/sink", "conf", "conf/match", "slurm"},
	"slurm":                          {"checks"},
	"cmd/nhc-gpu":                    {"checks", "checks/all", "checks/run", "checks/run/wire", "checks/run/worker", "checks/session", "checks/session/node", "checks/session/setting", "checks/session/sink", "checks/verdict", "slurm", "cmd/nhc-gpu/internal/*", "conf/spell"},
	"cmd/nhc-gpu/internal/console":   {"checks", "checks/plan", "checks/run", "checks/verdict"},
	"cmd/nhc-gpu/internal/lint":      {"checks", "checks/dcgm", "checks/fabric", "checks/plan", "checks/policy", "checks/run", "checks/run/wire", "checks/session", "checks/session/open", "checks/session/setting", "checks/xid", "conf", "conf/match", "slurm", "cmd/nhc-gpu/internal/console", "conf/spell"},
	"cmd/nhc-gpu/internal/selftest":  {"checks", "checks/run", "checks/run/wire", "checks/selftest", "checks/session", "cmd/nhc-gpu/internal/console", "cmd/nhc-gpu/internal/options", "conf/spell"},
	"cmd/nhc-gpu/internal/options":   {"checks", "checks/session/setting", "slurm", "cmd/nhc-gpu/internal/console", "conf/spell"},
	"cmd/nhc-gpu/internal/health":    {"checks", "checks/run", "checks/run/wire", "checks/verdict", "checks/session", "checks/session/judge", "checks/session/node", "checks/session/open", "checks/session/sink", "conf/match", "slurm", "cmd/nhc-gpu/internal/console", "cmd/nhc-gpu/internal/options"},
	"cmd/nhc-gpu/internal/report":    {"checks", "checks/event", "checks/plan", "checks/verdict", "checks/session", "checks/session/judge", "checks/session/outputs", "conf", "conf/spell", "slurm", "cmd/nhc-gpu/internal/console", "cmd/nhc-gpu/internal/health", "cmd/nhc-gpu/internal/options"},
	"cmd/nhc-gpu/internal/ask":       {"checks", "checks/event", "checks/monitor", "checks/monitor/flight", "checks/plan", "checks/policy", "checks/remedy", "checks/session/repair", "conf", "checks/run", "checks/run/process", "checks/run/wire", "checks/selftest", "checks/session", "checks/topology", "checks/session/node", "checks/session/outputs", "checks/session/sink", "slurm", "cmd/nhc-gpu/internal/console", "cmd/nhc-gpu/internal/health", "cmd/nhc-gpu/internal/options", "cmd/nhc-gpu/internal/page", "cmd/nhc-gpu/internal/report", "conf/spell"},
	"cmd/nhc-gpu/internal/platforms": {"conf", "cmd/nhc-gpu/internal/console", "cmd/nhc-gpu/internal/options", "cmd/nhc-gpu/internal/report", "conf/spell"},
	"cmd/nhc-gpu/internal/baseline":  {"checks", "checks/active", "checks/plan", "checks/run/wire", "checks/verdict", "checks/session/node", "cmd/nhc-gpu/internal/console", "cmd/nhc-gpu/internal/health", "cmd/nhc-gpu/internal/options", "cmd/nhc-gpu/internal/report"},
	"cmd/nhc-gpu/internal/genconf":   {"conf", "conf/match", "checks", "checks/fabric", "checks/probe", "checks/probe/*", "checks/plan", "checks/run", "checks/run/wire", "checks/session", "checks/session/node", "cmd/nhc-gpu/internal/console", "cmd/nhc-gpu/internal/health", "cmd/nhc-gpu/internal/lint", "cmd/nhc-gpu/internal/options", "cmd/nhc-gpu/internal/report", "conf/spell"},
	"cmd/nhc-gpu/internal/page":      {"checks", "checks/monitor/flight", "checks/event"},
	"cmd/nhc-gpu/internal/sweep":     {"checks", "checks/event", "checks/run", "checks/session/node", "checks/session/outputs", "checks/sweep", "checks/sweep/launch", "checks/sweep/rank", "conf/spell", "slurm", "cmd/nhc-gpu/internal/console", "cmd/nhc-gpu/internal/health", "cmd/nhc-gpu/internal/options", "cmd/nhc-gpu/internal/report", "cmd/nhc-gpu/internal/sweeppage"},
	"cmd/nhc-gpu/internal/sweeppage": {"checks", "checks/event", "checks/sweep", "cmd/nhc-gpu/internal/page"},
	"cmd/nhc-gpu/internal/topo":      {"checks", "checks/run", "checks/run/wire", "checks/topology", "cmd/nhc-gpu/internal/console", "cmd/nhc-gpu/internal/options"},
	"cmd/nhc-gpu/internal/wrap":      {"checks", "checks/run", "checks/verdict", "cmd/nhc-gpu/internal/console"},
}

// allowed returns the packages that a package may import, nil without an entry.
func allowed(from string) []string {
	if list, ok := may[from]; ok {
		return list
	}
	return may[path.Dir(from)+"/*"]
}

// TestPackages compares the imports of the project's packages with the table. docs/design.md shows each of them.
func TestPackages(t *testing.T) {
	t.Parallel()
	list := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "./cmd/...", "./checks/...", "./conf/...", "./slurm/...")
	list.Dir = "../.."
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		from := strings.TrimPrefix(words[0], module+"/")
		list := allowed(from)
		if list == nil {
			t.Errorf("%s: nothing says what it may import", from)
			continue
		}
		seen[from], seen[path.Dir(from)+"/*"] = true, true
		if _, named := may[from]; named {
			for _, to := range list {
				all := strings.HasSuffix(to, "*") || slices.Contains(anyFamily, to) && path.Dir(from) == "checks"
				if !all && to != "os/exec" && !slices.Contains(words, module+"/"+to) && !strings.HasPrefix(to, "tests/") {
					t.Errorf("%s does not import %s: take it out of the table", from, to)
				}
			}
		}
		for _, to := range words[1:] {
			to, ours := strings.CutPrefix(to, module+"/")
			if (ours || to == "os/exec") && !slices.Contains(list, to) && !slices.Contains(list, path.Dir(to)+"/*") {
				t.Errorf("%s imports %s", from, to)
			}
		}
	}
	for from := range may {
		if !seen[from] {
			t.Errorf("there is no package %s", from)
		}
	}
	page, err := os.ReadFile("../../docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ = bytes.Cut(page, []byte("\n## The packages\n"))
	picture, rest, _ := bytes.Cut(page, []byte("\n| package | holds |\n"))
	table := bytes.Join(regexp.MustCompile(`(?m)^\| [^|]* \|`).FindAll(rest, -1), []byte("\n"))
	for from := range seen {
		name := regexp.MustCompile(`\b` + regexp.QuoteMeta(path.Base(from)) + `\b`)
		if !strings.HasSuffix(from, "*") && (!name.Match(table) || !strings.HasSuffix(from, "test") && !name.Match(picture)) {
			t.Errorf("docs/design.md has no %s in its picture, or in its table", from)
		}
	}
}

// These delimit the linter's rules in its configuration.
const (
	rulesBegin = "      rules: # written by NHC_GPU_WRITE=imports go test ./tests/imports -run Rules\n"
	rulesEnd   = "    # The process that slurmd starts touches no path"
)

// TestRules compares the linter's rules with the table, so that an editor shows a wrong import at
// once.
func TestRules(t *testing.T) {
	t.Parallel()
	const file = "../../.golangci.yml"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok1 := strings.Cut(string(data), rulesBegin)
	got, tail, ok2 := strings.Cut(rest, rulesEnd)
	if !ok1 || !ok2 {
		t.Fatalf("%s: no rules between %q and %q", file, rulesBegin, rulesEnd)
	}
	want := rules()
	if os.Getenv("NHC_GPU_WRITE") == "imports" {
		if err := os.WriteFile(file, []byte(head+rulesBegin+want+rulesEnd+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// rules returns the rules of depguard.
func rules() string {
	var text strings.Builder
	var starts []string // processes
	for _, from := range slices.Sorted(maps.Keys(may)) {
		files := []string{"**/" + from + "/*.go", "!$test"}
		if dir, all := strings.CutSuffix(from, "/*"); all {
			for _, other := range slices.Sorted(maps.Keys(may)) {
				if path.Dir(other) == dir && other != from {
					files = append(files, "!**/"+other+"/*.go")
				}
			}
		}
		allow := []string{}
		for _, to := range may[from] {
			switch {
			case slices.ContainsFunc(may[from], func(all string) bool {
				return len(all) < len(to) && strings.HasSuffix(all, "/*") && strings.HasPrefix(to, all[:len(all)-1])
			}):
				// the linter looks at the nearest prefix alone
			case to == "os/exec":
				starts = append(starts, "!"+files[0])
			case strings.HasSuffix(to, "/*"):
				allow = append(allow, module+"/"+strings.TrimSuffix(to, "*"))
			default:
				allow = append(allow, module+"/"+to+"$")
			}
		}
		name := strings.NewReplacer("cmd/nhc-gpu/internal/", "", "/*", "", "/", "-").Replace(from)
		if strings.HasSuffix(from, "/*") {
			name = "any-" + name
		}
		fmt.Fprintf(&text, "        %s:\n          list-mode: lax\n          files: [%s]\n", name, quoted(files))
		if len(allow) > 0 {
			fmt.Fprintf(&text, "          allow: [%s]\n", quoted(allow))
		}
		fmt.Fprintf(&text, "          deny:\n            - {pkg: %s, desc: see the table in tests/imports}\n", module)
	}
	fmt.Fprintf(&text, "        processes:\n          list-mode: lax\n          files: [%s]\n          deny:\n            - {pkg: os/exec, desc: see the table in tests/imports}\n",
		quoted(slices.Concat([]string{"!$test", "!**/tests/**"}, starts)))
	return text.String()
}

func quoted(list []string) string {
	words := make([]string, len(list))
	for i, w := range list {
		words[i] = strconv.Quote(w)
	}
	return strings.Join(words, ", ")
}

// Each package of the program costs memory and time at every start for its initialization, so none
// is added by accident. The list omits the project's own packages and Go's internal ones.
func TestPackagesOfTheProgram(t *testing.T) {
	t.Parallel()
	list := exec.Command("go", "list", "-deps", "./cmd/nhc-gpu")
	list.Dir = "../.."
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	want, err := os.ReadFile("testdata/packages.txt")
	if err != nil {
		t.Fatal(err)
	}
	known, got := strings.Fields(string(want)), strings.Fields(string(out))
	got = slices.DeleteFunc(got, func(p string) bool {
		first, _, _ := strings.Cut(p, "/")
		return strings.HasPrefix(p, module+"/") || !strings.Contains(first, ".") && strings.Contains(p+"/", "internal/") || first == "vendor"
	})
	for _, p := range got {
		if !slices.Contains(known, p) {
			t.Errorf("%s is new in the program: if that is on purpose, add it to testdata/packages.txt", p)
		}
	}
	for _, p := range known {
		if !slices.Contains(got, p) {
			t.Errorf("%s is no longer in the program: take it out of testdata/packages.txt", p)
		}
	}
}
