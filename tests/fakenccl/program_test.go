package fakenccl_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/fakecuda"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenccl"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

var program string

func TestMain(m *testing.M) { os.Exit(built.Main(m, &program, "gcc")) }

// run runs a configuration on a node of eight GPUs, with lines for the fake libnccl and environment
// variables, and returns the output and the directory of the library.
func run(t *testing.T, conf, scenario string, environ ...string) (out, dir string, took time.Duration) {
	t.Helper()
	dir = t.TempDir()
	root := filepath.Join(dir, "root")
	must := func(lib string, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return lib
	}
	nvml := must(fakenvml.Place(dir, fakenvml.Scenario(fakenvml.H100, 8)))
	cuda := must(fakecuda.Place(dir, fakecuda.Scenario(8, "* memory = 2097152")))
	nccl := must(fakenccl.Place(dir, scenario))
	files := fakenvml.Files(fakenvml.H100, 8)
	files["proc/sys/kernel/random/boot_id"] = "11111111-2222-3333-4444-555555555555\n"
	must("", fakenvml.Write(root, files))
	file := filepath.Join(dir, "nhc.conf")
	must("", os.WriteFile(file, []byte(conf), 0o644))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-v", "-a", "-c", file, "LOGFILE=-", "MARK_OFFLINE=0", "TIMEOUT=60", "HOSTROOT="+root,
		"NVML_LIBRARY="+nvml, "CUDA_LIBRARY="+cuda, "NCCL_LIBRARY="+nccl)
	name := built.NodeName(dir) // one run at a time for each node name
	cmd.Env = append([]string{"SLURMD_NODENAME=" + name}, environ...)
	if os.Geteuid() == 0 {
		t.Cleanup(func() { _ = os.RemoveAll("/run/nhc-gpu/" + name) })
	}
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	began := time.Now()
	err := cmd.Run()
	if exited := new(exec.ExitError); err != nil && !errors.As(err, &exited) {
		t.Fatalf("%v\n%s", err, text.String())
	}
	return text.String(), dir, time.Since(began)
}

// noProcessLeft checks that no process is left that has loaded a library of a node.
func noProcessLeft(t *testing.T, dir string) {
	t.Helper()
	maps, _ := filepath.Glob("/proc/[0-9]*/maps")
	for _, m := range maps {
		if data, err := os.ReadFile(m); err == nil && bytes.Contains(data, []byte(dir)) {
			t.Errorf("%s has %s loaded", m, dir)
		}
	}
}

// TestTwoEnvironments runs two tests with different settings of NCCL, which reads them only once in
// a process.
func TestTwoEnvironments(t *testing.T) {
	t.Parallel()
	out, dir, _ := run(t, `
* || check_nccl -b 64K -t 10 --algo ring -w 490 all_reduce
* || check_nccl -b 64K -t 10 --algo tree -w 490 all_reduce
* || check_gpu_count 8
`, "", "NCCL_ALGO=nvls", "NCCL_P2P_DISABLE=1")
	for _, want := range []string{
		"check_nccl:  bus bandwidth of all_reduce, 64 KiB by ring, want at least 490.0 GB/s, got 480.1 GB/s",
		"check_nccl:  bus bandwidth of all_reduce, 64 KiB by tree, want at least 490.0 GB/s, got 480.1 GB/s",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "not run") {
		t.Error(out)
	}
	if env, err := fakenccl.Environment(dir); err != nil || strings.Contains(env, "P2P") || !strings.Contains(env, "NCCL_ALGO=tree\n") {
		t.Errorf("%v, the second was loaded with\n%s", err, env)
	}
	noProcessLeft(t, dir)
}

// TestHang makes an NCCL call hang, and checks that the call is named in time.
func TestHang(t *testing.T) {
	t.Parallel()
	for call, line := range map[string]string{"call ncclCommInitAll for 8 GPUs": "- ncclCommInitAll hang", "all_reduce of 64 KiB on 8 GPUs": "- ncclGroupEnd after 1 hang"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			out, dir, took := run(t, "* || check_nccl -b 64K -t 1 all_reduce\n", line)
			if !strings.Contains(out, call) || !strings.Contains(out, "check_nccl") || took > 40*time.Second {
				t.Errorf("after %v: no %q in\n%s", took, call, out)
			}
			noProcessLeft(t, dir)
		})
	}
}

// TestCrash makes NCCL crash.
func TestCrash(t *testing.T) {
	t.Parallel()
	out, dir, _ := run(t, "* || check_nccl -b 64K -t 10 all_reduce\n", "3 ncclAllReduce after 2 crash")
	if !strings.Contains(out, "all_reduce of 64 KiB on 8 GPUs") || !strings.Contains(out, "died") {
		t.Error(out)
	}
	noProcessLeft(t, dir)
}
