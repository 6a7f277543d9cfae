package cuda

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// The embedded programs were compiled from the sources in the same directory: make ptx has written the sums of
// both. This needs no clang.
func TestPTXIsUpToDate(t *testing.T) {
	t.Parallel()
	sums, err := os.ReadFile("kernels/sha256sums")
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir("kernels")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		if f.Name() == "sha256sums" {
			continue
		}
		data, err := os.ReadFile(filepath.Join("kernels", f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%x  %s", sha256.Sum256(data), f.Name()))
	}
	want := slices.DeleteFunc(strings.Split(string(sums), "\n"), func(line string) bool { return line == "" })
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" || len(got) < 10 {
		t.Errorf("not the files that make ptx has compiled: run it (-sums +files):\n%s", diff)
	}
}

// The embedded programs are clang's output for the sources. Another version of clang creates other
// programs, so only the Makefile's version can be compared.
func TestPTXIsOfItsSource(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"clang-14", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("no " + tool + " in PATH")
		}
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("kernels")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("make", "-s", "ptx", "KERNELS="+dir)
	cmd.Dir = "../../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	list, err := filepath.Glob("kernels/*.cu")
	if err != nil || len(list) == 0 {
		t.Fatalf("no sources of kernels: %v", err)
	}
	for _, source := range list {
		name := strings.TrimSuffix(filepath.Base(source), ".cu") + ".ptx"
		want, errWant := os.ReadFile(filepath.Join(dir, name))
		got, err := fs.ReadFile(kernels, "kernels/"+name)
		if err != nil || errWant != nil || string(got) != string(want) {
			t.Errorf("%s: its .ptx is out of date (%v, %v): make ptx", source, err, errWant)
		}
	}
}

// No program requires more than the oldest GPU and driver that it is for.
func TestPTXIsForOldDrivers(t *testing.T) {
	t.Parallel()
	newer := map[string]string{"gemm70": "6.3\n.target sm_70", "gemm80": "7.0\n.target sm_80", "gemm89": "8.4\n.target sm_89"}
	list, err := fs.Glob(kernels, "kernels/*.ptx")
	if err != nil || len(list) == 0 {
		t.Fatalf("no kernels: %v", err)
	}
	for _, name := range list {
		text, err := fs.ReadFile(kernels, name)
		if err != nil {
			t.Fatal(err)
		}
		want := newer[strings.TrimSuffix(filepath.Base(name), ".ptx")]
		if want == "" {
			want = "6.0\n.target sm_70"
		}
		if !strings.Contains(string(text), "\n.version "+want+"\n") {
			t.Errorf("%s: not of PTX %q", name, want)
		}
	}
}

// The kernels that multiply matrices compute the correct product on a CPU that simulates tensor
// cores as the PTX ISA describes them. This does not show the result on a GPU.
func TestTilesMultiply(t *testing.T) {
	t.Parallel()
	need.Program(t, "gcc")
	for sm, kernels := range map[string][]string{"70": {"gemm_f64", "gemm_f32", "gemm_f16_wmma"}, "80": {"gemm_f16", "gemm_bf16", "gemm_tf32"}, "89": {"gemm_e4m3"}} {
		t.Run(sm, func(t *testing.T) {
			t.Parallel()
			const source = "../../../tests/fakecuda/tiles"
			program := filepath.Join(t.TempDir(), "tiles")
			out, err := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-Wno-unused", "-Werror", "-DGEMM_SM="+sm, "-I"+source, "-Ikernels",
				"-o", program, source+"/main.c", "-lm").CombinedOutput()
			if err != nil {
				t.Fatalf("gcc: %v\n%s", err, out)
			}
			out, err = exec.Command(program).CombinedOutput()
			want := strings.Join(kernels, ": 0 wrong\n") + ": 0 wrong\n"
			if err != nil || string(out) != want {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
