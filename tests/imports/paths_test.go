package imports_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The linter refuses a call with a path wherever the process that slurmd starts could make it, and
// nowhere else.
func TestPaths(t *testing.T) {
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
	calls := []string{
		`os.Open("/x")`, `os.ReadFile("/x")`, `os.Stat("/x")`, `os.Lstat("/x")`, `os.Readlink("/x")`, `os.ReadDir("/x")`, `os.MkdirAll("/x", 0)`,
		`os.Rename("/x", "/y")`, `os.Remove("/x")`, `os.Getwd()`, `os.WriteFile("/x", nil, 0)`, `os.Chdir("/x")`, `os.CreateTemp("", "")`,
		`filepath.EvalSymlinks("/x")`, `filepath.Glob("/x")`, `filepath.Abs("x")`, `filepath.WalkDir("/x", nil)`,
		`syscall.Open("/x", 0, 0)`, `syscall.Stat("/x", nil)`, `syscall.Access("/x", 0)`, `net.Dial("unix", "/x")`, `user.Current()`,
	}
	want := map[string]bool{ // whether calls in such a file are refused
		"cmd/nhc-gpu/a.go": true, "conf/a.go": true, "slurm/a.go": true, "checks/plan/a.go": true, "checks/verdict/a.go": true, "checks/run/a.go": true,
		"cmd/nhc-gpu/a_test.go": false, "cmd/nhc-gpu/internal/a/a.go": true, "cmd/nhc-gpu/internal/wrap/a.go": false, "checks/run/worker/a.go": false, "checks/run/wire/a.go": true, "checks/gpu/a.go": false,
		"checks/a.go": false, "checks/probe/a.go": false, "tests/fake/a.go": false,
	}
	for file := range want {
		text := "package p\n\nimport (\n\t\"net\"\n\t\"os\"\n\t\"os/user\"\n\t\"path/filepath\"\n\t\"syscall\"\n)\n\nvar (\n\t_ = net.IPv4len\n\t_ = os.Args\n\t_ = filepath.Base\n\t_ = syscall.EIO\n)\n\nfunc init() {\n"
		for _, c := range calls {
			text += "\t" + c + "\n"
		}
		write(t, filepath.Join(dir, file), text+"}\n")
	}
	lint := exec.Command("golangci-lint", "run", "--allow-parallel-runners", "--enable-only=forbidigo", "--max-issues-per-linter=0", "--max-same-issues=0",
		"--output.text.print-issued-lines=false", "./...")
	lint.Dir = dir
	lint.Env = append(os.Environ(), "GOFLAGS=")
	out, _ := lint.CombinedOutput()
	for file, refused := range want {
		got := 0
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, file+":") && strings.Contains(line, "the supervisor touches no path") {
				got++
			}
		}
		if refused && got != len(calls) || !refused && got != 0 {
			t.Errorf("%s: %d calls are refused of %d, want all: %v", file, got, len(calls), refused)
		}
	}
	if t.Failed() {
		t.Logf("golangci-lint says\n%s", out)
	}
}
