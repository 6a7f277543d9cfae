package probe

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The embedded programs are what clang makes of the sources beside them. Another clang
// makes others, so that only the one of the Makefile can tell.
func TestPTXIsOfItsSource(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(makefile), "\nPTX_FLAGS = ")
	flags, _, _ := strings.Cut(rest, "\n")
	clang, err := exec.LookPath("clang-14")
	if err != nil {
		t.Skip("skip: no clang-14 in PATH")
	}
	list, err := filepath.Glob("kernels/*.cu")
	if err != nil || len(list) == 0 {
		t.Fatalf("no sources of kernels: %v", err)
	}
	for _, source := range list {
		cmd := exec.Command(clang, append(strings.Fields(flags), "-o", "-", filepath.Base(source))...)
		cmd.Dir = "kernels"
		cmd.Stderr = os.Stderr
		want, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		got, err := fs.ReadFile(kernels, strings.TrimSuffix(source, ".cu")+".ptx")
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: its .ptx is out of date (%v): make ptx", source, err)
		}
	}
}

// No program asks for more than the oldest GPU and driver have.
func TestPTXIsForOldDrivers(t *testing.T) {
	t.Parallel()
	list, err := fs.Glob(kernels, "kernels/*.ptx")
	if err != nil || len(list) == 0 {
		t.Fatalf("no kernels: %v", err)
	}
	for _, name := range list {
		text, err := fs.ReadFile(kernels, name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "\n.version 6.0\n.target sm_70\n") {
			t.Errorf("%s: not of PTX 6.0 for sm_70", name)
		}
	}
}
