// Package imports_test shows that the packages import in one direction only, and
// that the linter refuses an import against it.
package imports_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/nhc-gpu/nhc-gpu"

// The packages themselves, wherever Go is.
func TestPackages(t *testing.T) {
	t.Parallel()
	list := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "./cmd/...", "./checks/...", "./conf/...", "./slurm/...")
	list.Dir = "../.."
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(strings.ReplaceAll(line, module+"/", ""))
		if _, known := may[words[0]]; !known {
			t.Errorf("%s: nobody has said what it may import", words[0])
			continue
		}
		seen++
		all := imports(words[0])
		for _, to := range words[1:] {
			if allowed, ours := all[to]; ours && !allowed {
				t.Errorf("%s imports %s", words[0], to)
			}
		}
	}
	if seen != len(may) {
		t.Errorf("%d packages, want the %d that are named here", seen, len(may))
	}
}

func TestDirections(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("golangci-lint"); err != nil {
		t.Skip("no golangci-lint in PATH")
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), "module "+module+"\n\ngo 1.26\n")
	config, err := os.ReadFile("../../.golangci.yml")
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, ".golangci.yml"), string(config))
	for from := range may {
		write(t, filepath.Join(dir, from, "p.go"), "package p\n")
		for to := range imports(from) {
			// as an external test, so that no two of them are an import cycle
			text := "package p_test\n\nimport _ \"" + module + "/" + to + "\"\n"
			if to == "os/exec" {
				text = "package p\n\nimport _ \"os/exec\"\n"
			}
			write(t, filepath.Join(dir, fileName(from, to)), text)
		}
	}

	lint := exec.Command("golangci-lint", "run", "--allow-parallel-runners", "--enable-only=depguard", "--max-issues-per-linter=0", "--max-same-issues=0",
		"--output.text.print-issued-lines=false", "./...")
	lint.Dir = dir
	lint.Env = append(os.Environ(), "GOFLAGS=")
	out, err := lint.CombinedOutput()
	if err == nil {
		t.Fatal("nothing is refused")
	}
	for from := range may {
		for to, want := range imports(from) {
			if got := !strings.Contains("\n"+string(out), "\n"+fileName(from, to)+":"); got != want {
				t.Errorf("%s may import %s: got %v, want %v", from, to, got, want)
			}
		}
	}
	if t.Failed() {
		t.Logf("golangci-lint says\n%s", out)
	}
}

// may says who imports whom. Whatever is missing is refused.
var may = map[string][]string{
	"conf":                   {"conf/match"},
	"conf/match":             {},
	"checks/probe":           {"os/exec"},
	"checks":                 {"checks/probe", "conf/match"},
	"checks/plan":            {"checks", "conf", "conf/match"},
	"checks/run":             {"checks", "checks/plan", "checks/probe", "os/exec"},
	"checks/verdict":         {"checks"},
	"checks/session":         {"checks", "checks/plan", "checks/verdict", "conf", "slurm"},
	"checks/session/setting": {"checks", "checks/probe", "checks/run", "conf"},
	"checks/session/sink":    {"checks/run", "checks/verdict", "checks/session/setting", "conf"},
	"checks/session/node":    {"checks", "checks/plan", "checks/probe", "checks/run", "checks/verdict", "checks/session", "checks/session/setting", "checks/session/sink", "conf", "slurm"},
	"slurm":                  {"checks", "checks/verdict"},
	"cmd/nhc-gpu": {"conf", "conf/match", "checks", "checks/probe", "checks/plan", "checks/run", "checks/verdict", "checks/session",
		"checks/session/setting", "checks/session/sink", "checks/session/node", "slurm",
		"cmd/nhc-gpu/internal/console", "cmd/nhc-gpu/internal/genconf", "cmd/nhc-gpu/internal/topo", "cmd/nhc-gpu/internal/wrap"},
	"cmd/nhc-gpu/internal/console": {"checks", "checks/run", "checks/verdict"},
	"cmd/nhc-gpu/internal/genconf": {"conf", "conf/match", "checks", "checks/probe", "checks/plan", "checks/run", "checks/session", "cmd/nhc-gpu/internal/console"},
	"cmd/nhc-gpu/internal/topo":    {"checks", "checks/run", "cmd/nhc-gpu/internal/console"},
	"cmd/nhc-gpu/internal/wrap":    {"checks", "checks/run", "checks/verdict", "cmd/nhc-gpu/internal/console"},
}

// imports are all that a package could import, and whether it may. The compiler keeps
// internal packages from others than cmd/nhc-gpu's.
func imports(from string) map[string]bool {
	all := map[string]bool{"os/exec": slices.Contains(may[from], "os/exec")}
	for to := range may {
		if to != from && to != "cmd/nhc-gpu" && (strings.HasPrefix(from, "cmd/") || !strings.Contains(to, "/internal/")) {
			all[to] = slices.Contains(may[from], to)
		}
	}
	return all
}

func fileName(from, to string) string {
	name := "imports_" + strings.ReplaceAll(to, "/", "_")
	if to != "os/exec" {
		name += "_test"
	}
	return from + "/" + name + ".go"
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// Each package of the program costs memory and time at every start of it, by what it sets
// up: none comes in by accident. Those that Go keeps to itself are left out.
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
		return !strings.Contains(first, ".") && strings.Contains(p+"/", "internal/") || first == "vendor"
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
