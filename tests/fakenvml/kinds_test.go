package fakenvml_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// A healthy node of every kind causes no output: with the file that genconf has written there, with
// all checks of GPUs without a number (which they take from the platform's profile), and with
// --check without a configuration. Each runs three times, five minutes apart.
func TestHealthyKinds(t *testing.T) {
	t.Parallel()
	healthyKinds(t, true)
}

// The same of all kinds.
func TestAllHealthyKinds(t *testing.T) {
	tier.All(t)
	healthyKinds(t, false)
}

func healthyKinds(t *testing.T, quick bool) {
	t.Helper()
	kinds, err := fakenvml.Kinds()
	if err != nil {
		t.Fatal(err)
	}
	if len(kinds) < 40 {
		t.Errorf("%d kinds", len(kinds))
	}
	for _, k := range kinds {
		if quick && !k.Quick {
			continue
		}
		t.Run(strings.ReplaceAll(k.Name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			m := newKind(t, &k)
			m.generated(t)
			m.numberless(t)
			m.unconfigured(t)
		})
	}
}

// The line finds a fault of one GPU on each kind of node, with a text that a healthy node of the
// kind never causes.
func TestFaultsOfKinds(t *testing.T) {
	t.Parallel()
	kinds, err := fakenvml.Kinds()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ kind, line, check, want string }{
		{"8 L40S, idle, and no bit says so", "1 nvmlDeviceGetCurrPcieLinkWidth = 8", "check_gpu_pcie", "failed:  check_gpu_pcie:  gpu1 0000:11:00.0: PCIe width, want x16, got x8"},
		{"DGX-1, 8 V100", "1 nvmlDeviceGetCurrPcieLinkWidth = 4", "check_gpu_pcie", "failed:  check_gpu_pcie:  gpu1 0000:11:00.0: PCIe width, want x16, got x4"},
		{"DGX H100 at work, at its power cap", "1 nvmlDeviceGetCurrPcieLinkGeneration = 1", "check_gpu_pcie", "check_gpu_pcie:  gpu1 0000:11:00.0: PCIe generation under load, in 3 consecutive runs, want 5, got 1"},
		{"DGX A100", "1 nvmlDeviceGetEccMode = 0 0", "check_gpu_ecc", "failed:  check_gpu_ecc:  gpu1 0000:11:00.0: ECC, want on, got off"},
		{"8 A100 40GB of an old driver, at work", "1 nvmlDeviceGetEccMode = 0 0", "check_gpu_ecc", "failed:  check_gpu_ecc:  gpu1 0000:11:00.0: ECC, want on, got off"},
		{"DGX H100", "1 nvmlDeviceGetVbiosVersion = 96.00.89.00.01", "check_gpu_vbios", "check_gpu_vbios:  gpu1 0000:11:00.0: VBIOS differs from that of the others"},
		{"DGX H100", "1 nvmlDeviceGetComputeMode = 2", "check_gpu_mode", "failed:  check_gpu_mode:  gpu1 0000:11:00.0: no program can use the GPU"},
		{"GH200, its memory full of page cache", "0 nvmlDeviceGetMemoryInfo = 103079215104 3079215104 100000000000", "check_gpu_procs", "check_gpu_procs:  gpu0 0000:10:00.0: memory in use without a process"},
	} {
		at := slices.IndexFunc(kinds, func(k fakenvml.Kind) bool { return k.Name == c.kind })
		if at < 0 {
			t.Fatalf("no kind %q", c.kind)
		}
		k := kinds[at]
		k.Lines = append(slices.Clone(k.Lines), c.line)
		t.Run(c.check+"_on_"+strings.ReplaceAll(c.kind, " ", "_"), func(t *testing.T) {
			t.Parallel()
			m := newKind(t, &k)
			var last string
			for range 3 {
				out, errs := m.start(t, "-a", "-e", c.check, "LOGFILE=-", "MARK_OFFLINE=0")
				last = out + errs
				m.age(t)
			}
			if !strings.Contains(last, c.want) {
				t.Errorf("want %q, got:\n%s", c.want, last)
			}
		})
	}
}

// skips are the reasons why genconf excludes a check of GPUs on a healthy node: nothing to judge,
// or persistence mode is off.
var skips = regexp.MustCompile(`not supported by these GPUs|do not have an NVLink fabric|no two GPUs of one model|MIG is on|persistence mode|container has no access to the kernel`)

// generated writes a file by genconf, and runs it.
func (m *kindNode) generated(t *testing.T) {
	t.Helper()
	sheet, _ := m.start(t, "genconf", "-c", "-")
	conf := filepath.Join(m.dir, "nhc.conf")
	if err := os.WriteFile(conf, []byte(sheet), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, left := range regexp.MustCompile(`(?m)^# not written, (check_gpu_\S*:.*)`).FindAllStringSubmatch(sheet, -1) {
		if !skips.MatchString(left[1]) {
			t.Errorf("genconf: %s", left[0])
		}
	}
	if !strings.Contains(sheet, fmt.Sprintf(" || check_gpu_count %d\n", m.kind.GPUs+len(m.kind.Also))) || !strings.Contains(sheet, "check_gpu_clocks") {
		t.Errorf("genconf wrote:\n%s", sheet)
	}
	m.thrice(t, "genconf's own file", "-a", "-c", conf)
}

// numberless runs all checks of GPUs.
func (m *kindNode) numberless(t *testing.T) {
	t.Helper()
	conf := filepath.Join(m.dir, "all.conf")
	lines := strings.Replace(gpuLines, "* || check_file_test -f /other/lane", "* || check_pcie\n* || check_pcie_aer\n* || check_hw_topology", 1)
	if m.kind.Has("volatile") {
		lines = strings.Replace(lines, "* || check_gpu_persistence\n", "", 1)
	}
	if err := os.WriteFile(conf, []byte(lines), 0o644); err != nil {
		t.Fatal(err)
	}
	m.thrice(t, "all checks", "-a", "-c", conf)
}

// thrice expects no output of three runs.
func (m *kindNode) thrice(t *testing.T, what string, words ...string) {
	t.Helper()
	m.forget(t)
	for i := range 3 {
		out, errs := m.start(t, append(words, "LOGFILE=-", "MARK_OFFLINE=0")...)
		if out+errs != "" {
			t.Errorf("%s, run %d:\n%s%s", what, i+1, out, errs)
		}
		m.age(t)
	}
}

// unconfigured checks the output of --check about GPUs and the PCI bus.
func (m *kindNode) unconfigured(t *testing.T) {
	t.Helper()
	m.forget(t)
	for i := range 3 {
		out, errs := m.start(t, "--check", "--json", "NAME=none-of-"+filepath.Base(m.dir))
		var report struct {
			Results []struct{ Check, Result, Message string } `json:"results"`
		}
		if err := json.Unmarshal([]byte(out), &report); err != nil {
			t.Fatalf("%v\n%s%s", err, out, errs)
		}
		seen := 0
		for _, row := range report.Results {
			if !strings.Contains(row.Check, "gpu") && !strings.Contains(row.Check, "pcie") && !strings.Contains(row.Check, "topology") {
				continue
			}
			if seen++; row.Result != "ok" && row.Result != "skip" {
				t.Errorf("--check, run %d: %s %s", i+1, row.Result, row.Message)
			}
		}
		if seen < 15 {
			t.Errorf("--check, run %d: only %d checks of GPUs:\n%s", i+1, seen, out)
		}
		m.age(t)
	}
}

// kindNode is a node of a kind.
type kindNode struct {
	kind           *fakenvml.Kind
	dir, root, lib string
	program        string
}

func newKind(t *testing.T, k *fakenvml.Kind) *kindNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "nhc-gpu-kind-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := &kindNode{kind: k, dir: dir, root: filepath.Join(dir, "root"), program: program}
	if err := os.Chmod(dir, 0o755); err != nil { // so that the ordinary user can read it
		t.Fatal(err)
	}
	if m.lib, err = fakenvml.Place(dir, k.Scenario(), k.Lacks()...); err != nil {
		t.Fatal(err)
	}
	if err := k.Node().Write(m.root); err != nil {
		t.Fatal(err)
	}
	if k.Has("user") && os.Geteuid() == 0 {
		m.program = filepath.Join(dir, "nhc-gpu")
		data, err := os.ReadFile(program)
		if err == nil {
			err = built.WriteProgram(m.program, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// start runs the program on the node.
func (m *kindNode) start(t *testing.T, words ...string) (out, errs string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	name := built.NodeName(m.dir)
	cmd := exec.CommandContext(ctx, m.program, append(words, "HOSTROOT="+m.root, "NVML_LIBRARY="+m.lib)...)
	cmd.Env = []string{"SLURMD_NODENAME=" + name}
	cmd.Dir = "/"
	if os.Geteuid() == 0 {
		t.Cleanup(func() { _ = os.RemoveAll("/run/nhc-gpu/" + name) })
		if m.kind.Has("user") {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		}
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	return stdout.String(), stderr.String()
}

// age makes all kept files five minutes older.
func (m *kindNode) age(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(m.root, "var/lib/nhc-gpu/*/*.json"))
	if err != nil {
		t.Fatal(err)
	}
	taken := regexp.MustCompile(`"taken": ?"([^"]+)"`)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		older := taken.ReplaceAllFunc(data, func(text []byte) []byte {
			at, err := time.Parse(time.RFC3339Nano, string(taken.FindSubmatch(text)[1]))
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			return fmt.Appendf(nil, `"taken":%q`, at.Add(-5*time.Minute).Format(time.RFC3339Nano))
		})
		if err := os.WriteFile(file, older, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// forget removes the kept files, and resets the library's count of runs.
func (m *kindNode) forget(t *testing.T) {
	t.Helper()
	for _, dir := range []string{filepath.Join(m.root, "var"), filepath.Join(m.dir, "nvml.runs")} {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}
