// Package newcheck adds a check to a copy of the program as CONTRIBUTING.md describes.
package newcheck

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// A check is one file and its test, a row of checks/codes.toml for each of its codes, and two files
// that commands rewrite. A family is a package, and a line in checks/all. No other file is edited.
func TestAddACheck(t *testing.T) {
	tier.All(t)
	dir := scratch(t)
	archive, err := txtar.ParseFile("testdata/tape_ready.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range archive.Files {
		path, how := filepath.Join(dir, f.Name), os.O_CREATE|os.O_EXCL|os.O_WRONLY
		if f.Name == "checks/codes.toml" {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			words, rest, ok := bytes.Cut(data, []byte("\n[same]\n"))
			if !ok {
				t.Fatal("codes.toml has no table of codes that are the same")
			}
			f.Data, how = bytes.Join([][]byte{words, []byte("\n"), f.Data, []byte("\n[same]\n"), rest, []byte("\"tape.offline\" = \"none\"\n")}, nil), os.O_TRUNC|os.O_WRONLY
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		file, err := os.OpenFile(path, how, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.Write(f.Data); err != nil {
			t.Fatal(err)
		}
		file.Close()
	}
	list := filepath.Join(dir, "checks/all/all.go")
	text, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	const last = "\n)\n"
	if err := os.WriteFile(list, bytes.Replace(text, []byte(last), []byte("\n\t_ \"github.com/nhc-gpu/nhc-gpu/checks/tape\""+last), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	writes := ""
	goRun := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("go", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "NHC_GPU_WRITE="+writes)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
		}
		return string(out)
	}
	writes = "docs"
	goRun("test", "-count=1", "./checks/tape", "./checks/all", "-run", "^(TestFamily|TestDocs)$")
	writes = ""
	goRun("test", "-count=1", "./cmd/nhc-gpu", "-run", "TestScript/golden$|TestManPages$", "-u")
	goRun("vet", "./checks/...")
	goRun("test", "-count=1", "./checks", "./checks/tape", "./checks/all")
	goRun("build", "-buildvcs=false", "-ldflags=-extldflags=-Wl,-z,lazy", "-o", "nhc-gpu", "./cmd/nhc-gpu")
	for _, c := range []struct {
		drive, want string
		exit        int
	}{{"st0", "", 0}, {"st1", "check_tape_ready:  st1: state, want running, got offline", 1}} {
		conf := filepath.Join(dir, "nhc.conf")
		if err := os.WriteFile(conf, []byte("* || check_tape_ready "+c.drive+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(filepath.Join(dir, "nhc-gpu"), "-c", conf, "LOGFILE=-", "MARK_OFFLINE=0", "HOSTROOT="+filepath.Join(dir, "node"))
		cmd.Env = []string{"SLURMD_NODENAME=newcheck"}
		t.Cleanup(func() { _ = os.RemoveAll("/run/nhc-gpu/newcheck") })
		out, _ := cmd.CombinedOutput()
		if exit := cmd.ProcessState.ExitCode(); exit != c.exit || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: exit status %d, want %d and %q\n%s", c.drive, exit, c.exit, c.want, out)
		}
	}
}

// scratch copies the project's Go code and its embedded files.
func scratch(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"go.mod", "go.sum", "checks", "cmd", "conf", "slurm", "docs", "man", "tests"} {
		if out, err := exec.Command("cp", "-r", filepath.Join("../..", name), dir).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return dir
}
