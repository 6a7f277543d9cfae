package fakecuda_test

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
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

var program string

func TestMain(m *testing.M) { os.Exit(built.Main(m, &program, "gcc")) }

// node is a node of files with eight H100, its NVML and its CUDA.
type node struct{ dir, nvml, cuda string }

func newNode(t *testing.T, lines ...string) node {
	t.Helper()
	n := node{dir: t.TempDir()}
	var err error
	if n.nvml, err = fakenvml.Place(n.dir, fakenvml.Scenario(fakenvml.H100, 8)); err != nil {
		t.Fatal(err)
	}
	if n.cuda, err = fakecuda.Place(n.dir, fakecuda.Scenario(8, append([]string{"* memory = 2097152"}, lines...)...)); err != nil {
		t.Fatal(err)
	}
	files := fakenvml.Files(fakenvml.H100, 8)
	files["proc/meminfo"] = "MemTotal: 1056764928 kB\nMemFree: 1000000000 kB\n"
	files["proc/sys/kernel/random/boot_id"] = "this\n"
	if err := fakenvml.Write(filepath.Join(n.dir, "root"), files); err != nil {
		t.Fatal(err)
	}
	return n
}

// run runs a configuration on the node, and returns the output.
func (n node) run(t *testing.T, conf string, words ...string) (out string, took time.Duration) {
	t.Helper()
	file := filepath.Join(n.dir, "nhc.conf")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	argv := append(words, "-c", file, "LOGFILE=-", "MARK_OFFLINE=0", "HOSTROOT="+filepath.Join(n.dir, "root"), "NVML_LIBRARY="+n.nvml, "CUDA_LIBRARY="+n.cuda)
	cmd := exec.CommandContext(ctx, program, argv...)
	name := built.NodeName(n.dir)
	cmd.Env = []string{"SLURMD_NODENAME=" + name, "CUDA_VISIBLE_DEVICES=7"}
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
	return text.String(), time.Since(began)
}

// holders returns the processes that have mapped the node's CUDA library.
func (n node) holders(t *testing.T) (list []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/maps")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(n.cuda)) {
			list = append(list, path)
		}
	}
	return list
}

func (n node) leavesNobody(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for len(n.holders(t)) > 0 {
		if time.Now().After(deadline) {
			t.Errorf("still there: %v", n.holders(t))
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// all are the tests that need only CUDA, small enough for a node with 2 MiB per GPU.
const all = "* || check_gpu_bandwidth -b 64K 48 335\n* || check_gpu_membw -b 64K 2500\n* || check_gpu_memtest\n"

func TestHealthyNode(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if out, _ := n.run(t, all, "-t", "120"); out != "" {
		t.Errorf("a healthy node:\n%s", out)
	}
	n.leavesNobody(t)
}

// If MIG splits a GPU, drivers before R570 show the others only on request.
func TestMIGHidesOthers(t *testing.T) {
	t.Parallel()
	n := newNode(t, "- mig = 7")
	var err error
	if n.nvml, err = fakenvml.Place(n.dir, fakenvml.Scenario(fakenvml.H100, 8, "7 nvmlDeviceGetMigMode = 1 1")); err != nil {
		t.Fatal(err)
	}
	out, _ := n.run(t, "* || check_gpu_bandwidth -b 64K 48 335\n* || check_gpu_launch\n", "-v", "-a", "-t", "120")
	if strings.Contains(out, "CUDA does not list it") || strings.Count(out, "gpu7 0000:17:00.0: skipped: MIG splits it") != 2 || !strings.Contains(out, "gpu6 55.0") {
		t.Errorf("seven whole GPUs:\n%s", out)
	}
}

// A fault of the driver on one GPU of eight causes a finding with the correct text, and no process
// is left.
func TestFaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ line, conf, want string }{
		"hang in a launch": {"3 cuLaunchKernel daxpy after 5 hang", "check_gpu_membw -b 64K -t 4",
			"check_gpu_membw:  gpu3 0000:13:00.0: hung (in gpu3: bandwidth of its memory: cuLaunchKernel(3): process "},
		"hang, while others go on": {"3 cuMemAlloc after 1 hang", "check_gpu_memtest -t 4", "check_gpu_memtest:  gpu3 0000:13:00.0: hung (in "},
		"other numbers": {"* cuDeviceGetUuid error 1\n3 cuDeviceGetPCIBusId = 0000:14:00.0\n4 cuDeviceGetPCIBusId = 0000:13:00.0\n3 cuLaunchKernel daxpy after 5 hang", "check_gpu_membw -b 64K -t 4",
			"check_gpu_membw:  gpu4 0000:14:00.0: hung (in gpu4: bandwidth of its memory: cuLaunchKernel(3): process "},
		"crash": {"3 cuMemcpyHtoDAsync after 5 crash", "check_gpu_bandwidth -b 64K",
			"check_gpu_bandwidth:  no result: its worker died in gpu3: copy from the host: cuMemcpyHtoDAsync(3) of gpu3 0000:13:00.0: "},
		"exit":           {"3 cuDevicePrimaryCtxRetain exit 7", "check_gpu_bandwidth -b 64K", "its worker died in open 8 GPUs: cuDevicePrimaryCtxRetain("},
		"slow":           {"3 h2d = 21", "check_gpu_bandwidth -b 64K 48", "check_gpu_bandwidth:  gpu3 0000:13:00.0: copy from the host, want at least 48.0 GB/s, got 21.0 GB/s"},
		"a wrong bit":    {"3 stuck = 0x1234 5 1", "check_gpu_memtest", "check_gpu_memtest:  gpu3 0000:13:00.0: wrong words in memory, pattern 0x00000000, want none, got 1 wrong word: at offset 0x1034"},
		"ECC":            {"3 cuStreamQuery after 9 error 214", "check_gpu_membw -b 64K", "check_gpu_membw:  gpu3 0000:13:00.0: bandwidth of its memory: cuStreamQuery(3): CUDA_ERROR_ECC_UNCORRECTABLE (CUDA error 214)"},
		"hang in cuInit": {"- cuInit hang", "check_gpu_membw -b 64K -t 4", "check_gpu_membw:  hung (in cuInit: process "},
		"work never ends": {"3 cuStreamQuery after 9 error 600", "check_gpu_membw -b 64K -t 10",
			"check_gpu_membw:  gpu3 0000:13:00.0: bandwidth of its memory: work does not end; done on 7 other GPUs, want an end within 2.5s"},
		"no work ends": {"* cuStreamQuery after 9 error 600", "check_gpu_membw -b 64K -t 2", "check_gpu_membw:  stopped: time limit reached, want at most 2s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, c.line)
			out, took := n.run(t, "* || "+c.conf+"\n", "-a", "-t", "60")
			if !strings.Contains(out, c.want) || took > 30*time.Second {
				t.Errorf("after %v, want %q, got\n%s", took, c.want, out)
			}
			n.leavesNobody(t)
		})
	}
}
