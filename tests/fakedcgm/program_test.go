package fakedcgm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/fakedcgm"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

var program string

func TestMain(m *testing.M) { os.Exit(built.Main(m, &program, "gcc")) }

// node is a node of files with eight H100, with a fake NVML and DCGM.
type node struct{ dir, nvml, dcgm, address string }

func newNode(t *testing.T, lines ...string) node {
	t.Helper()
	n := node{dir: t.TempDir()}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	n.nvml, err = fakenvml.Place(filepath.Join(n.dir, "nvml"), fakenvml.Scenario(fakenvml.H100, 8))
	must(err)
	n.dcgm, err = fakedcgm.Place(filepath.Join(n.dir, "dcgm"), lines...)
	must(err)
	files := fakenvml.Files(fakenvml.H100, 8)
	files["proc/sys/kernel/random/boot_id"] = "11111111-2222-3333-4444-555555555555\n"
	must(fakenvml.Write(filepath.Join(n.dir, "root"), files))
	address, closing, err := fakedcgm.Listen()
	must(err)
	n.address = address
	t.Cleanup(func() { _ = closing() })
	return n
}

var noise = regexp.MustCompile(`(?m)^(\d{8} \d\d:\d\d:\d\d )?(\[slurm\] )?`)

// run runs lines of nhc.conf on the node, and returns the output.
func (n node) run(t *testing.T, conf string, words ...string) (out string, took time.Duration) {
	t.Helper()
	file := filepath.Join(n.dir, "nhc.conf")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	argv := append(words, "-c", file, "LOGFILE=-", "MARK_OFFLINE=0", "HOSTROOT="+filepath.Join(n.dir, "root"), "NVML_LIBRARY="+n.nvml,
		"DCGM_LIBRARY="+n.dcgm, "DCGM_ADDRESS="+n.address)
	cmd := exec.CommandContext(ctx, program, argv...)
	name := built.NodeName(n.dir) // one run at a time for each node name
	cmd.Env = []string{"SLURMD_NODENAME=" + name}
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
	return strings.TrimSpace(noise.ReplaceAllString(text.String(), "")), time.Since(began)
}

const watched = "watched -1"

func TestProgram(t *testing.T) {
	t.Parallel()
	const health, diag = "* || check_dcgm_health\n", "* || check_dcgm_diag 1 -t 20\n"
	pass := []string{"reversed"}
	for i := range 8 {
		pass = append(pass, fmt.Sprintf("result memory 1 %d 0", i))
	}
	for _, c := range []struct {
		name, conf string
		lines      []string
		want       string // a part of the output; "": no output
	}{
		{"healthy", health, []string{watched}, ""},
		{"one of eight", health, []string{watched, "reversed", "incident 1 4 16 20 4 Detected 2 volatile double-bit ECC error(s) in GPU 4."},
			"check_dcgm_health:  gpu3 0000:13:00.0: DCGM_FR_VOLATILE_DBE_DETECTED (4), memory: Detected 2 volatile double-bit ECC error(s) in GPU 4."},
		{"a disputed threshold", health, []string{watched, "incident 1 3 1 20 3 replays"}, "check_dcgm_health:  gpu3 0000:13:00.0: DCGM_FR_PCI_REPLAY_RATE (3), PCIe: replays"},
		{"the engine hangs", health, []string{"hang dcgmHealthGet"}, "check_dcgm_health:  cannot ask nv-hostengine at "},
		{"the library crashes", health, []string{"crash dcgmHealthCheck"}, "Health check unknown:  check_dcgm_health:  no result: its worker died in dcgmHealthCheck"},
		{"the driver hangs below an engine of its own", "* || export DCGM_MODE=embedded\n" + health, []string{"hang dcgmStartEmbedded"}, "check_dcgm_health:  hung (in dcgmStartEmbedded"},
		{"an error", health, []string{"error dcgmHealthCheck -3"}, "dcgmHealthCheck: Generic unspecified error (DCGM error -3)"},
		{"a diagnostic passes", diag, pass, ""},
		{"a diagnostic of one of eight fails", diag, append(slices.Clone(pass), "result pcie 1 4 3", "note pcie 1 4 58 A memory mismatch"),
			"check_dcgm_diag:  gpu3 0000:13:00.0: DCGM_FR_MEMORY_MISMATCH (58), test pcie: A memory mismatch"},
		{"garbage of a diagnostic", diag, []string{"garbage"}, "check_dcgm_diag:  gpu0 0000:10:00.0: DCGM has no result for it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, c.lines...)
			out, _ := n.run(t, c.conf)
			if c.want == "" && out != "" || !strings.Contains(out, c.want) {
				t.Errorf("it printed:\n%s\nwant %q", out, c.want)
			}
		})
	}
}

// A run waits for an engine that hangs only once. The hang alone fails nothing, and does not delay
// the lines after it.
func TestHangIsNoFailure(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hang dcgmConnect_v2")
	out, took := n.run(t, "* || check_dcgm_health\n* || check_dcgm_health -s m\n* || check_gpu_count 8\n* || check_file_test -f /no/such\n", "-a")
	for _, want := range []string{"dcgmConnect: no answer within 8s", "/no/such"} {
		if !strings.Contains(out, want) {
			t.Errorf("it printed:\n%s\nwant %q", out, want)
		}
	}
	if strings.Contains(out, "ERROR") && strings.Contains(out, "ERROR:  nhc:  Health check failed:  check_dcgm_health") || took > 15*time.Second {
		t.Errorf("after %v:\n%s", took, out)
	}
}

// A healthy engine with watches gets seven calls, and no change.
func TestHealthIsCheap(t *testing.T) {
	t.Parallel()
	n := newNode(t, "watched 3539") // dcgmi health -s a
	if out, _ := n.run(t, "* || check_dcgm_health\n"); out != "" {
		t.Errorf("it printed:\n%s", out)
	}
	calls := slices.DeleteFunc(fakedcgm.Calls(filepath.Dir(n.dcgm)), func(c string) bool { return strings.HasPrefix(c, "address ") })
	want := []string{"dcgmInit", "dcgmConnect_v2", "dcgmGetEntityGroupEntities", "dcgmHealthGet", "dcgmHealthCheck", "dcgmDisconnect", "dcgmShutdown"}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}
