package fakesys_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// The whole program on whole nodes, run after run.

var program string

func TestMain(m *testing.M) { os.Exit(built.Main(m, &program)) }

// fabricLines are all checks of the fabric that need no driver of GPUs.
const fabricLines = `
* || check_ib_ports
* || check_ib_errors
* || check_ib_link_flapping
* || check_ib_pkey 0xffff
* || check_ib_gid
* || check_ib_firmware
* || check_ib_pcie
* || check_ib_modules
* || check_ib_count
* || check_eth_link
* || check_net_route -d default
* || check_pcie nvme
* || check_pcie_aer
* || check_nvme_count 8
* || check_nvme
* || check_hw_topology
`

// machine is a node whose time goes on from run to run.
type machine struct {
	*fakesys.Node
	t    *testing.T
	dir  string
	root string
	up   int // seconds
}

func newMachine(t *testing.T, n *fakesys.Node) *machine {
	t.Helper()
	m := &machine{Node: n, t: t, dir: t.TempDir(), up: 323045}
	m.root = filepath.Join(m.dir, "root")
	n.Files["dev/kmsg"] = "6,1,1000000,-;Linux version\n"
	if err := n.Write(m.root); err != nil {
		t.Fatal(err)
	}
	return m
}

// write changes a file of a device on the node.
func (m *machine) write(device, file, content string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.root, m.Dir(device), file), []byte(content+"\n"), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// run runs a configuration some time later, and gives what was printed.
func (m *machine) run(after time.Duration, conf string, words ...string) string {
	m.t.Helper()
	m.up += int(after / time.Second)
	file := filepath.Join(m.dir, "nhc.conf")
	for path, text := range map[string]string{file: conf, filepath.Join(m.root, "proc/uptime"): fmt.Sprintf("%d.00 1.00\n", m.up)} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			m.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	defer cancel()
	name := "fakesys-" + strings.ReplaceAll(strings.Trim(m.dir, "/"), "/", "-") // one run a node at a time
	cmd := exec.CommandContext(ctx, program, append([]string{"-a", "-c", file, "LOGFILE=-", "MARK_OFFLINE=0", "HOSTROOT=" + m.root}, words...)...)
	cmd.Env = []string{"SLURMD_NODENAME=" + name}
	if os.Geteuid() == 0 {
		m.t.Cleanup(func() { _ = os.RemoveAll("/run/nhc-gpu/" + name) })
	}
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	exited := new(exec.ExitError)
	if err := cmd.Run(); err != nil && !errors.As(err, &exited) {
		m.t.Fatalf("%v\n%s", err, text.String())
	}
	return text.String()
}

// A healthy node is healthy however often it is asked.
func TestHealthyNodes(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]*fakesys.Node{
		"dgx-h100": fakesys.DGXH100(), "dgx-h200": fakesys.DGXH200(), "dgx-a100": fakesys.DGXA100(), "hgx-b200": fakesys.HGXB200(), "nd-h100-v5": fakesys.NDH100v5(),
		"gb200": fakesys.GB200(), "cx8": fakesys.CX8(), "roce": fakesys.RoCE(), "ethernet": fakesys.EthernetOnly(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t, n)
			lines := fabricLines
			if name == "gb200" { // it has no disk
				lines = strings.ReplaceAll(lines, "* || check_nvme_count 8\n", "")
			}
			for range 3 {
				if out := m.run(5*time.Minute, lines); strings.Contains(out, "ERROR") || strings.Contains(out, "WARN") {
					t.Errorf("a healthy node is not:\n%s", out)
				}
			}
		})
	}
}

// One ill device among eight is named, by the check that it concerns.
func TestOneIll(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*fakesys.Node)
		want   string
	}{
		"port down":   {func(n *fakesys.Node) { n.Down("mlx5_3") }, "check_ib_ports:  mlx5_3:1 0000:23:00.0: "},
		"half rate":   {func(n *fakesys.Node) { n.HalfRate("mlx5_3") }, "check_ib_ports:  mlx5_3:1 0000:23:00.0: "},
		"eight lanes": {func(n *fakesys.Node) { n.HalfWidth(fakesys.HCAAddress(3)) }, "check_ib_pcie:  mlx5_3 0000:23:00.0: "},
		"a dead disk": {func(n *fakesys.Node) { n.Set("nvme3", "state", "dead") }, "check_nvme:  nvme3 0000:43:00.0: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := fakesys.DGXH100()
			c.change(n)
			out := newMachine(t, n).run(0, fabricLines)
			if !strings.Contains(out, "Health check failed:  "+c.want) {
				t.Errorf("no failure %q:\n%s", c.want, out)
			}
			for line := range strings.Lines(out) {
				if strings.Contains(line, "Health check") && !strings.Contains(line, "0000:23:00.0") && !strings.Contains(line, "0000:43:00.0") {
					t.Errorf("another device: %s", line)
				}
			}
		})
	}
}

// A link that goes down for a moment now and then is found, is not forgotten by the
// next run, and is when it has been quiet for long enough.
func TestFlap(t *testing.T) {
	t.Parallel()
	m := newMachine(t, fakesys.DGXH100())
	const line = "* || check_ib_link_flapping\n"
	m.run(0, line)
	out := ""
	for i := range 6 {
		m.write("mlx5_3", "ports/1/counters/link_downed", fmt.Sprint(i+1))
		out = m.run(20*time.Minute, line)
	}
	if !strings.Contains(out, "check_ib_link_flapping:  mlx5_3:1 0000:23:00.0: ") || !strings.Contains(out, "failed") {
		t.Errorf("six times in two hours, and no failure:\n%s", out)
	}
	if out = m.run(5*time.Minute, line); !strings.Contains(out, "failed") {
		t.Errorf("forgotten by the next run:\n%s", out)
	}
	if out = m.run(25*time.Hour, line); strings.Contains(out, "failed") {
		t.Errorf("not over after a day of quiet:\n%s", out)
	}
}

// A second line about the same devices, and a run right after another, judge what the
// first has judged.
func TestErrorsOfLinksTwice(t *testing.T) {
	t.Parallel()
	m := newMachine(t, fakesys.DGXH100())
	const strict = "* || check_pcie_aer -r 100 infiniband\n"
	const lines = "* || check_pcie_aer\n" + strict
	m.run(0, lines)
	m.run(5*time.Minute, lines)
	m.write("0000:23:00.0", "aer_dev_correctable", "RxErr 5000\nTOTAL_ERR_COR 5000")
	const want = "corrected PCIe errors (RxErr 5000), link partner 0000:63:01.0, want at most 100 a minute"
	if out := m.run(5*time.Minute, lines); !strings.Contains(out, "failed:  check_pcie_aer:  mlx5_3 0000:23:00.0: "+want+", got 1000.0") {
		t.Errorf("the second line:\n%s", out)
	}
	if out := m.run(10*time.Second, strict); !strings.Contains(out, want) {
		t.Errorf("a run right after:\n%s", out)
	}
	if out := m.run(5*time.Minute, lines); strings.Contains(out, "corrected") {
		t.Errorf("not over:\n%s", out)
	}
}

// A file of /sys that blocks is named, and keeps nothing else from being judged.
func TestHangingFile(t *testing.T) {
	t.Parallel()
	m := newMachine(t, fakesys.DGXH100().Set("nvme3", "state", "dead"))
	path := filepath.Join(m.root, m.Port("mlx5_3"), "state")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	out := m.run(0, fabricLines, "TIMEOUT=30")
	if took := time.Since(began); took > 25*time.Second { // it blocks one line of many
		t.Errorf("took %v", took)
	}
	for _, want := range []string{
		"failed:  check_ib_ports:  hung (in read /sys/class/infiniband/mlx5_3: ",
		"unknown:  check_ib_errors:  mlx5_3: could not tell: read /sys/class/infiniband/mlx5_3: not asked: it has just blocked another check",
		"failed:  check_nvme:  nvme3 0000:43:00.0: ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no word of %q:\n%s", want, out)
		}
	}
}
