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
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/tests/built"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// These tests run the whole program on whole nodes, run after run.

var program string

func TestMain(m *testing.M) { os.Exit(built.Main(m, &program)) }

// fabricLines are all checks of the fabric that do not need the driver of GPUs.
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

// machine is a node whose time advances from run to run.
type machine struct {
	*fakesys.Node
	t    *testing.T
	dir  string
	root string
	up   int // seconds

	number int64
	status int // of the last run
}

// machines counts them.
var machines atomic.Int64

func newMachine(t *testing.T, n *fakesys.Node) *machine {
	t.Helper()
	m := &machine{Node: n, t: t, dir: t.TempDir(), number: machines.Add(1)}
	if _, err := fmt.Sscanf(n.Files["proc/uptime"], "%d", &m.up); err != nil {
		t.Fatal(err)
	}
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

// run runs a configuration some time later, and returns the output.
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
	name := fmt.Sprintf("fakesys-%d-%d", os.Getpid(), m.number) // one run at a time for each node name
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
	m.status = cmd.ProcessState.ExitCode()
	return text.String()
}

// kindLines are the checks of the fabric that are suitable for any node.
const kindLines = `
* || check_ib_ports
* || check_ib_errors
* || check_ib_link_flapping
* || check_ib_pkey
* || check_ib_gid
* || check_ib_firmware
* || check_ib_pcie
* || check_ib_modules
* || check_ib_count
* || check_eth_link
* || check_pcie
* || check_pcie_aer
* || check_nvme
* || check_hw_topology
`

// A healthy node passes every run without any output.
func TestHealthyNodes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"dgx-h100", "azure nd-h100-v5", "gb200 tray", "booting, no subnet manager yet"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newMachine(t, fakesys.Kinds()[name]).healthy(1)
		})
	}
}

// The same applies to every kind of node, three times each, and with the file that genconf writes
// there.
func TestHealthyKinds(t *testing.T) {
	tier.All(t)
	t.Parallel()
	kinds := fakesys.Kinds()
	if len(kinds) < 40 {
		t.Errorf("%d kinds, want 40", len(kinds))
	}
	for name, n := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newMachine(t, n).healthy(3)
		})
	}
}

// healthy checks that the checks of the fabric and the file that genconf writes have no output, and
// that each run passes.
func (m *machine) healthy(times int) {
	m.t.Helper()
	for i := range times {
		if out := m.run(20*time.Second, kindLines); out != "" || m.status != 0 {
			m.t.Errorf("run %d: status %d, want no output:\n%s", i+1, m.status, out)
		}
	}
	conf := m.genconf()
	for i := range times {
		if out := m.run(20*time.Second, conf); out != "" || m.status != 0 {
			m.t.Errorf("run %d of genconf's file: status %d, want no output:\n%s", i+1, m.status, out)
		}
	}
}

// genconf returns the file that genconf writes on the node.
func (m *machine) genconf() string {
	m.t.Helper()
	cmd := exec.CommandContext(m.t.Context(), program, "genconf", "-c", "-", "-H", "*", "HOSTROOT="+m.root)
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	conf, err := cmd.Output()
	if err != nil {
		m.t.Fatalf("genconf: %v", err)
	}
	return string(conf)
}

// genconf writes a check that finds a fault, with a comment about the fault, and no check about a
// port that the checks ignore.
func TestGenconfOfFaults(t *testing.T) {
	t.Parallel()
	n := fakesys.Kinds()["azure nd-h100-v5"].Down("mlx5_ib3").Set(fakesys.NVMeAddress(4), "current_link_width", "2")
	conf := newMachine(t, n).genconf()
	for _, want := range []string{
		"\n# this line found a fault, check_ib_ports:  mlx5_ib3:1 0000:23:00.0: link down, want ACTIVE LinkUp, got DOWN Polling:\n * || check_ib_ports\n",
		": PCIe width, want x4, got x2:\n * || check_pcie\n",
		"\n * || check_ib_ports -r 400 mlx5_ib0:1 mlx5_ib1:1 mlx5_ib2:1 mlx5_ib4:1 ",
		"\n# no line for port mlx5_ib3:1, which is not in use: DOWN, Polling\n",
		"\n# no line for ports that carry no traffic of jobs (the default route): mlx5_an0:1\n",
		"\n * || check_ib_count\n", "\n * || check_ib_modules\n", "\n * || check_ib_firmware\n", "\n * || check_ib_gid\n", "\n * || check_ib_errors\n",
		"\n * || check_ib_link_flapping\n", "\n * || check_ib_pcie\n", "\n * || check_pcie_aer\n", "\n * || check_hw_topology\n", "\n * || check_net_route\n", "\n * || check_net_dns\n",
	} {
		if !strings.Contains(conf, want) {
			t.Errorf("no %q in:\n%s", want, conf)
		}
	}
	if strings.Contains(conf, "-r 100 ") {
		t.Errorf("a line for a port of the front end:\n%s", conf)
	}
}

// One faulty device among eight is named by the check for it.
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

// A link that goes down occasionally is found; the next run does not forget it, and a later one
// does after a long enough quiet time.
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

// A second line about the same devices, and a run soon after another, have the same verdict as the
// first.
func TestErrorsOfLinksTwice(t *testing.T) {
	t.Parallel()
	m := newMachine(t, fakesys.DGXH100())
	const strict = "* || check_pcie_aer -r 100 infiniband\n"
	const lines = "* || check_pcie_aer\n" + strict
	m.run(0, lines)
	m.run(5*time.Minute, lines)
	m.write("0000:23:00.0", "aer_dev_correctable", "RxErr 5000\nTOTAL_ERR_COR 5000")
	const want = "corrected PCIe errors (RxErr 5000), link partner 0000:63:01.0, want at most 100 per minute"
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

// A file of /sys that blocks is named, and does not affect other verdicts.
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
		"unknown:  check_ib_errors:  mlx5_3: cannot be read: read /sys/class/infiniband/mlx5_3: skipped: this device already blocked another check",
		"failed:  check_nvme:  nvme3 0000:43:00.0: ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no word of %q:\n%s", want, out)
		}
	}
}

// A faulty port is reported with its slot, the far end of its cable, and its module. If the driver
// hangs while it is being read, the report comes in time without them.
func TestPlaceOfABadPort(t *testing.T) {
	t.Parallel()
	n := fakesys.RoCE().Down("rocep3s0")
	n.Files["sys/bus/pci/slots/7/address"] = "0000:23:00\n"
	n.Files["etc/nhc/cabling"] = "0xb83fd20300c51a03,1 leaf03 port 13\n"
	page := make([]byte, 256)
	page[0], page[147] = 0x11, 0xa0 // QSFP28, copper
	copy(page[148:], "NVIDIA          ")
	copy(page[168:], "MCP1650-V001E30 ")
	copy(page[196:], "MT2214VS01234   ")
	n.Files["recorded/module/eth13"] = string(page)
	m := newMachine(t, n)
	const lines, want = "* || check_ib_ports\n", "got DOWN Disabled (slot 7, to leaf03 port 13)\n"
	if out := m.run(0, lines); !strings.Contains(out, want) {
		t.Errorf("no place:\n%s", out)
	}
	report := exec.CommandContext(t.Context(), program, "--check", "--json", "-c", filepath.Join(m.dir, "nhc.conf"), "HOSTROOT="+m.root)
	out, _ := report.Output() // exits with the status of the finding
	for _, want := range []string{`"slot":"7"`, `"far_end":"leaf03 port 13"`, `"netdev":"eth13"`, `"vendor":"NVIDIA"`, `"part":"MCP1650-V001E30"`, `"serial":"MT2214VS01234"`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %s:\n%s", want, out)
		}
	}
	path := filepath.Join(m.root, "recorded/module/eth13")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if out := m.run(time.Minute, lines, "TIMEOUT=30"); !strings.Contains(out, want) {
		t.Errorf("the driver hangs:\n%s", out)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}
