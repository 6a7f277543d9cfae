package cuda

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenccl"
)

// ncclHost returns a host with a fake NCCL.
func ncclHost(t *testing.T, scenario string, missing ...string) (h *probe.Host, dir string) {
	t.Helper()
	dir = t.TempDir()
	lib, err := fakenccl.Place(dir, scenario, missing...)
	if err != nil {
		t.Fatal(err)
	}
	h = probe.NewHost(dir)
	probe.SetLibraries(h, map[string]string{probe.SettingNCCL: lib})
	return h, dir
}

// TestNCCLEnvironment checks that NCCL gets exactly the environment that a test requests.
func TestNCCLEnvironment(t *testing.T) {
	t.Setenv("NCCL_IB_DISABLE", "1")
	h, dir := ncclHost(t, "")
	settings := NCCLSettings{Algorithm: "ring", TopoFile: "/opt/topo.xml", NoP2P: true, GDR: true}
	n, err := OpenNCCL(h, settings, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	got, err := fakenccl.Environment(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := "NCCL_SOCKET_IFNAME=lo\nNCCL_CONF_FILE=/dev/null\nNCCL_COMM_BLOCKING=1\nNCCL_ALGO=ring\nNCCL_TOPO_FILE=/opt/topo.xml\n" +
		"NCCL_P2P_DISABLE=1\nNCCL_SHM_DISABLE=1\nNCCL_NVLS_ENABLE=0\nNCCL_NET_GDR_LEVEL=SYS\nNCCL_IB_PCI_RELAXED_ORDERING=1\nNCCL_DEBUG=INFO\nNCCL_DEBUG_SUBSYS=INIT,ENV,NET,TUNING\n"
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if n.Release() != "2.22.3" || !n.CanSend() || !Worn() {
		t.Errorf("release %s, can send %v, worn %v", n.Release(), n.CanSend(), Worn())
	}
	if again, err := OpenNCCL(h, settings, nil); again != n || err != nil {
		t.Errorf("asked again: %p, %v; want %p", again, err, n)
	}
	if _, err := OpenNCCL(h, NCCLSettings{}, nil); err == nil || !strings.Contains(err.Error(), "only once in a process") {
		t.Errorf("with other settings: %v", err)
	}
}

// Ranks on several nodes have settings of their own, and no call of NCCL blocks.
func TestNCCLEnvironmentAcross(t *testing.T) {
	t.Parallel()
	for want, s := range map[string]NCCLSettings{
		"":                         {},
		"NCCL_SOCKET_IFNAME==eth0": {Interface: "eth0"},
		"NCCL_IB_HCA==mlx5_0:1 NCCL_NET=IB NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NVLS_ENABLE=0": {HCA: "mlx5_0:1", Net: "IB", NoP2P: true},
	} {
		s.Across = true
		if got, want := strings.Join(s.Environ(), " "), strings.TrimSpace("NCCL_CONF_FILE=/dev/null NCCL_COMM_BLOCKING=0 NCCL_RAS_ENABLE=0 "+want); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// A release without communicators of several processes is refused; so is a call that fails.
func TestNCCLUniqueID(t *testing.T) {
	t.Parallel()
	h, _ := ncclHost(t, "", "ncclGetUniqueId")
	n, err := OpenNCCL(h, NCCLSettings{}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.UniqueID(); err == nil || !strings.HasSuffix(err.Error(), "has no communicators of several processes") {
		t.Error(err)
	}
	h, _ = ncclHost(t, "- ncclGetUniqueId error 2")
	if n, err = OpenNCCL(h, NCCLSettings{}, func(string) {}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.UniqueID(); err == nil || err.Error() != "ncclGetUniqueId: ncclSystemError (NCCL error 2)" {
		t.Error(err)
	}
	h, _ = ncclHost(t, "")
	if n, err = OpenNCCL(h, NCCLSettings{}, func(string) {}); err != nil {
		t.Fatal(err)
	}
	a, err := n.UniqueID()
	b, bad := n.UniqueID()
	if err != nil || bad != nil || a == b || a == (NCCLID{}) {
		t.Errorf("%v, %v: %x, %x", err, bad, a, b)
	}
}

// The structure of the configuration is that of C.
func TestNCCLConfig(t *testing.T) {
	t.Parallel()
	c := newNCCLConfig()
	if size := unsafe.Sizeof(*c); c.size != 24 || size != 24 || unsafe.Offsetof(c.magic) != 8 || unsafe.Offsetof(c.version) != 12 || unsafe.Offsetof(c.blocking) != 16 {
		t.Errorf("%d bytes: %+v", size, c)
	}
}

func TestNCCLWithout(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(t.TempDir())
	if _, err := OpenNCCL(h, NCCLSettings{}, func(string) {}); !errors.Is(err, probe.ErrNoLibrary) {
		t.Errorf("a recorded node: %v", err)
	}
	h = probe.NewHost(t.TempDir())
	probe.SetLibraries(h, map[string]string{probe.SettingNCCL: "/nonexistent/libnccl.so.2"})
	if _, err := OpenNCCL(h, NCCLSettings{}, func(string) {}); !errors.Is(err, probe.ErrNoLibrary) {
		t.Errorf("no file: %v", err)
	}
	text := filepath.Join(t.TempDir(), "libnccl.so.2")
	if err := os.WriteFile(text, []byte("not a library"), 0o644); err != nil {
		t.Fatal(err)
	}
	h = probe.NewHost("/")
	probe.SetLibraries(h, map[string]string{probe.SettingNCCL: text})
	if _, err := OpenNCCL(h, NCCLSettings{}, func(string) {}); err == nil || errors.Is(err, probe.ErrNoLibrary) || !strings.Contains(err.Error(), "file too short") && !strings.Contains(err.Error(), "invalid ELF header") {
		t.Errorf("a text: %v", err)
	}
	lacking, _ := ncclHost(t, "", "ncclGroupEnd")
	if _, err := OpenNCCL(lacking, NCCLSettings{}, func(string) {}); err == nil || !strings.HasSuffix(err.Error(), "it lacks the function ncclGroupEnd") {
		t.Errorf("without a function: %v", err)
	}
}

func TestNCCLErrors(t *testing.T) {
	t.Parallel()
	h, _ := ncclHost(t, "- ncclCommInitAll error 5\n- last = bad\\x01 luck")
	n, err := OpenNCCL(h, NCCLSettings{}, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	_, err = n.Comm([]int{0, 1})
	if got, want := err.Error(), `ncclCommInitAll: ncclInvalidUsage (NCCL error 5): bad\x01 luck`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for last, want := range map[string]int{
		"Cuda failure 719 'unspecified launch failure'":                   719,
		"init.cc:1 Cuda failure 'uncorrectable ECC error encountered'":    214,
		"Cuda failure 'CUDA driver version is insufficient for CUDA ...'": 0,
		"Call to bind failed": 0,
	} {
		e := &NCCLError{Code: ncclUnhandledCUDA, Last: last}
		if code, ok := e.CUDACode(); code != want || ok != (want != 0) {
			t.Errorf("%s: %d, %v", last, code, ok)
		}
		if code, ok := (&NCCLError{Code: 2, Last: last}).CUDACode(); ok {
			t.Errorf("%s: %d of an error of the system", last, code)
		}
	}
	log := "x NCCL WARN Cuda failure 719 'unspecified launch failure'\nx NCCL WARN Failed to CUDA calloc 512 bytes\n"
	if _, err := n.log.WriteString(log); err != nil {
		t.Fatal(err)
	}
	if code, ok := n.fail("ncclAllReduce", ncclUnhandledCUDA, 0).CUDACode(); !ok || code != 719 {
		t.Errorf("behind the error of CUDA is what came of it: %d, %v", code, ok)
	}
	if got, want := n.fail("ncclAllReduce", 2, 0).Last, "Failed to CUDA calloc 512 bytes"; got != want {
		t.Errorf("an error of the system: %s, want %s", got, want)
	}
	if err := n.log.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if got := n.fail("ncclX", 99, 0).Error(); got != `ncclX: unknown result (NCCL error 99): bad\x01 luck` {
		t.Error(got)
	}
}

func TestNCCLRelease(t *testing.T) {
	t.Parallel()
	for version, want := range map[int]string{2408: "2.4.8", 2708: "2.7.8", 2804: "2.8.4", 20906: "2.9.6", 22203: "2.22.3", 22809: "2.28.9"} {
		if got := (&NCCL{Version: version}).Release(); got != want {
			t.Errorf("%d: %s, want %s", version, got, want)
		}
	}
}

func TestParseNCCLLog(t *testing.T) {
	t.Parallel()
	got := parseNCCLLog([]byte(`
node1:16228:16228 [0] misc/cudawrap.cc:190 NCCL WARN Cuda failure 'out of memory'
node1:16228:16240 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP
node1:16228:16240 [3] NCCL INFO Using network IB
node1:16228:16241 [4] NCCL INFO Using network IB
[2026-01-02 03:04:05] node1:1:2 [0] NCCL INFO AllReduce: 1073741824 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}
node1:1:2 [0] NCCL INFO 65536 Bytes -> Algo 1 proto 2 time 41943.121094
node1:1:2 [0] NCCL INFO 65536 Bytes -> Algo 9 proto 2 time 1.0
node1:1:2 [0] NCCL INFO AllGather: 65536 Bytes -> Algo CollNetDirect proto SIMPLE
node1:1:2 [0] NCCL INFO NET/IB : No device found.
node1:1:2 [0] NCCL INFO NET/IB : No device found.
node1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA`))
	want := NCCLLog{Algorithms: []string{"nvls", "ring", "algorithm 9", "collnet_direct"}, Networks: []string{"IB"}, Warnings: []string{"Cuda failure 'out of memory'"}, Facts: []string{"NET/IB : No device found", "/GDRDMA"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !got.NoIB() || !got.GDR() || (NCCLLog{}).NoIB() || (NCCLLog{}).GDR() {
		t.Errorf("%+v", got)
	}
}

func TestNCCLFound(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	h := probe.NewHost(root)
	h.SetEnviron([]string{"NCCL_DEBUG=INFO", "HOME=/x", "NCCL_DEBUG=WARN", "XNCCL_A=1"})
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write("etc/nccl.conf", "# NCCL_A=1\nNCCL_B=2=3\r\nother\nOTHER=1\nNCCL_C=\n")
	write("root/.nccl.conf", "NCCL_D=\x01")
	got, err := NCCLFound(h)
	want := []NCCLSetting{
		{"NCCL_DEBUG", "WARN", NCCLEnvironment}, {"NCCL_B", "2=3", "/etc/nccl.conf"}, {"NCCL_C", "", "/etc/nccl.conf"}, {"NCCL_D", "?", "/root/.nccl.conf"},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if err := errors.Join(os.Remove(filepath.Join(root, "etc/nccl.conf")), os.Mkdir(filepath.Join(root, "etc/nccl.conf"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if got, err := NCCLFound(h); len(got) != 2 || err == nil {
		t.Errorf("%v, %v", got, err)
	}
}

func TestNCCLTopology(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	h := probe.NewHost(root)
	if _, err := ReadNCCLTopology(h, "/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for text, want := range map[string]string{
		`<?xml version="1.0"?><system version="1"><cpu><pci busid="FFFF:ff:01.0" class="0x060400"><pci busid="0001:0A:00.0" class="0x030200"/></pci></cpu></system>`: "0001:0a:00.0",
		`<system/>`:  "",
		`<graphs/>`:  "error: read /topo.xml: not a topology file of NCCL: <system> is missing",
		`<system>`:   "error: read /topo.xml: not XML: XML syntax error on line 1: unexpected EOF",
		"":           "error: read /topo.xml: not a topology file of NCCL: <system> is missing",
		"\x00\xff<a": "error: read /topo.xml: not XML: XML syntax error on line 1: illegal character code U+0000",
	} {
		if err := os.WriteFile(filepath.Join(root, "topo.xml"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		topo, err := ReadNCCLTopology(h, "/topo.xml")
		got := strings.Join(topo.GPUs, " ")
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
