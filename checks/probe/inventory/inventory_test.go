package inventory

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

func TestInventory(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		"proc/loadavg":       "3.50 2.00 1.00 1/100 4711\n",
		"proc/net/dev":       " face |bytes\n lo: 1\n eth0: 1\n eth0v1: 1\n docker0: 1\n bond0: 1\n eth0.17: 1\n eth0_0: 1\n ib0: 1\n ib0.8001: 1\n enxb03af2b6059f: 1\n usb0: 1\n sf0: 1\n eth9: 1\n enP53221s1: 1\n",
		"sys/bus/auxiliary/": "", "sys/bus/vmbus/": "", "sys/class/net/sf0/device/": "", "sys/class/net/eth9/device/": "", "sys/class/net/enP53221s1/device/": "",
		"sys/class/net/enxb03af2b6059f/device/": "", "sys/class/net/usb0/device/": "", "sys/bus/usb/": "", "sys/bus/pci/": "",
		"sys/class/net/eth0_0/device/": "", "sys/class/net/eth0_0/phys_port_name": "pf0vf0\n", "sys/class/net/ib0/device/": "", "sys/class/net/ib0/ifindex": "3\n", "sys/class/net/ib0/iflink": "3\n",
		"sys/class/net/ib0.8001/device/": "", "sys/class/net/ib0.8001/ifindex": "9\n", "sys/class/net/ib0.8001/iflink": "3\n",
		"sys/class/net/eth0/device/": "", "sys/class/net/eth0v1/device/physfn/": "", "sys/class/net/docker0/bridge/": "",
		"sys/class/net/bond0/bonding/": "", "proc/net/vlan/eth0.17": "", "sys/block/sda/": "",
		"sys/bus/pci/devices/0000:c1:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:c1:00.0/class": "0x030200\n",
		"sys/bus/pci/devices/0000:c2:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:c2:00.0/class": "0x068000\n",
		"sys/bus/pci/devices/0000:03:00.0/vendor": "0x15b3\n", "sys/bus/pci/devices/0000:03:00.0/class": "0x020700\n",
		"dev/nvidia0": "not a device", "proc/mounts": "tmpfs /a tmpfs rw 0 0\n",
		"sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n", "sys/class/infiniband/mlx5_0/ports/1/phys_state": "5: LinkUp\n",
	}))
	for name, bus := range map[string]string{"usb0": "usb", "eth0": "pci", "sf0": "auxiliary", "eth9": "vmbus", "enP53221s1": "pci"} {
		if err := os.Symlink("../../../../bus/"+bus, h.Path("/sys/class/net/"+name+"/device/subsystem")); err != nil {
			t.Fatal(err)
		}
	}
	for name, master := range map[string]string{"eth0": "bond0", "enP53221s1": "eth9"} {
		if err := os.Symlink("../"+master, h.Path("/sys/class/net/"+name+"/master")); err != nil {
			t.Fatal(err)
		}
	}
	for part, want := range map[Part]Inventory{
		PartLoad: {Load: 3.5},
		PartNet: {Links: []NetLink{
			{Name: "lo"}, {Name: "eth0"}, {Name: "eth0v1", Virtual: "only a virtual function behind it"},
			{Name: "docker0", Virtual: "no device behind it"}, {Name: "bond0"}, {Name: "eth0.17"},
			{Name: "eth0_0", Virtual: "made on another interface"}, {Name: "ib0"}, {Name: "ib0.8001", Virtual: "made on another interface"},
			{Name: "enxb03af2b6059f", Virtual: "named after its MAC address"}, {Name: "usb0", Virtual: "on USB, perhaps of the BMC"},
			{Name: "sf0", Virtual: "only a virtual function behind it"}, {Name: "eth9"}, {Name: "enP53221s1", Virtual: "only a virtual function behind it"},
		}},
		PartGPU:    {GPU: GPUFiles{PCI: []string{"0000:c1:00.0"}, Own: 1}},
		PartDisks:  {},
		PartMounts: {Mounts: []probe.Mount{{Source: "tmpfs", Point: "/a", Type: "tmpfs", Options: "rw"}}},
		PartIB: {Ports: []IBLink{{
			Name: "mlx5_0:1", State: "ACTIVE", Phys: "LinkUp", Err: "read /sys/class/infiniband/mlx5_0/ports/1/rate: no such file or directory",
		}}},
	} {
		got, err := Take(h, part, "")
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", part, err, diff)
		}
	}
	if _, err := Take(h, "nosuch", ""); err == nil {
		t.Error("no error for an unknown part")
	}
}

// Memory of NUMA nodes without CPUs: of GPUs on Grace, of CXL.
func TestInventoryFarMemory(t *testing.T) {
	t.Parallel()
	const node = "sys/devices/system/node/"
	files := map[string]string{"proc/meminfo": "MemTotal: 1500 kB\nMemFree: 1 kB\n"}
	for id, kB := range map[string]string{"0": "500", "1": "600", "2": "300", "10": "100"} {
		files[node+"node"+id+"/meminfo"] = "Node " + id + " MemTotal: " + kB + " kB\nNode " + id + " MemFree: 1 kB\n"
	}
	files[node+"has_cpu"], files[node+"has_memory"] = "0-1\n", "0-2,10\n"
	inv, err := Take(probe.NewHost(probetest.Tree(t, files)), PartMemory, "")
	if err != nil || inv.Memory.Total != 1500 || inv.Far != 400 || inv.GPUMemory {
		t.Errorf("%+v, far %d, of GPUs %v, %v", inv.Memory, inv.Far, inv.GPUMemory, err)
	}
	files["sys/bus/pci/devices/0009:01:00.0/vendor"], files["sys/bus/pci/devices/0009:01:00.0/class"] = "0x10de\n", "0x030200\n"
	files["proc/driver/nvidia/gpus/0009:01:00.0/numa_status"] = "Node:\t2\nStatus:\tonline\n"
	if inv, err = Take(probe.NewHost(probetest.Tree(t, files)), PartMemory, ""); err != nil || !inv.GPUMemory {
		t.Errorf("memory of a GPU: %v, %v", inv.GPUMemory, err)
	}
	delete(files, node+"has_memory")
	if inv, err = Take(probe.NewHost(probetest.Tree(t, files)), PartMemory, ""); err != nil || inv.Far != 0 {
		t.Errorf("a kernel without NUMA: far %d, %v", inv.Far, err)
	}
}

// Mount points that the node's configuration names; a line of /etc/fstab can be a comment.
func TestInventoryConfigured(t *testing.T) {
	t.Parallel()
	inv, err := Take(probe.NewHost(probetest.Tree(t, map[string]string{
		"proc/mounts":                                 "nfs1:/data /data nfs4 rw 0 0\n",
		"etc/fstab":                                   "# SOURCE POINT TYPE\n#nfs1:/old /old nfs\nnfs1:/data/a\\040b\t/data/a\\040b/ nfs4 rw 0 0\nUUID=17 none swap sw 0 0\n",
		"etc/systemd/system/data-projects.mount":      "[Unit]\nDescription=x\n[Mount]\nWhat=nfs1:/data/projects\nWhere = /data/projects\n",
		"etc/systemd/system/data-x.automount":         "[Automount]\nWhere=/data/x\n",
		"usr/lib/systemd/system/dev-hugepages.mount":  "[Mount]\nWhere=/dev/hugepages\n",
		"usr/lib/systemd/system/data-projects.mount/": "",
	})), PartMounts, "")
	if diff := cmp.Diff([]string{"/data/a b", "none", "/data/projects", "/dev/hugepages"}, inv.Configured); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestInventoryOfNothing(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{"proc/loadavg": "nan\n", "etc/": ""}))
	for part, want := range map[Part]string{
		PartCPU:    "read /proc/cpuinfo: no such file or directory",
		PartMemory: "read /proc/meminfo: no such file or directory",
		PartLoad:   `read /proc/loadavg: "nan" is not a load average`,
		PartNet:    "read /proc/net/dev: no such file or directory",
		PartGPU:    "read /dev: no such file or directory",
		PartDisks:  "read /sys/block: no such file or directory",
		PartMounts: "read /proc/mounts: no such file or directory",
		PartSpace:  "stat /nosuch: no such file or directory",
	} {
		if _, err := Take(h, part, "/nosuch"); probetest.Message(err) != want {
			t.Errorf("%s: %v, want %s", part, err, want)
		}
	}
}

// TestInventoryDevices checks the device nodes and their order.
func TestInventoryDevices(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{
		"dev/nvidia-uvm": "", "dev/nvidia01": "", "sys/block/nvme0n1/": "", "sys/block/nvme0c0n1/": "", "sys/block/nvme1n1/": "", "bin/nvidia-smi": "",
		"sys/block/nvme0n1/device/transport": "pcie\n", "sys/block/nvme2n1/device/nvme2/transport": "pcie\n",
		"sys/block/nvme3n1/device/transport": "tcp\n", "sys/block/nvme4n1/device/nvme4/transport": "rdma\n",
		"sys/block/nvme5n1/device/transport": "pcie\n", "sys/block/nvme5n1/device/model": "Amazon Elastic Block Store              \n",
	}))
	for name, kind := range map[string]uint32{
		"nvidia0": unix.S_IFCHR, "nvidia10": unix.S_IFCHR, "nvidia2": unix.S_IFCHR, "nvidiactl": unix.S_IFCHR, "nvme0n1": unix.S_IFBLK, "nvme1n1": unix.S_IFCHR,
		"nvme2n1": unix.S_IFBLK, "nvme3n1": unix.S_IFBLK, "nvme4n1": unix.S_IFBLK, "nvme5n1": unix.S_IFBLK,
	} {
		need.Root(t, "device nodes")
		if err := unix.Mknod(h.Path("/dev/"+name), kind|0o600, int(unix.Mkdev(1, 3))); err != nil {
			need.Skip(t, "cannot make device nodes: %v", err)
		}
	}
	got, err := Take(h, PartGPU, "")
	want := GPUFiles{Nodes: []string{"/dev/nvidia0", "/dev/nvidia2", "/dev/nvidia10"}, SMI: h.Path("/bin/nvidia-smi")}
	if diff := cmp.Diff(want, got.GPU); diff != "" || err != nil {
		t.Errorf("GPUs: %v (-want +got):\n%s", err, diff)
	}
	disks, err := Take(h, PartDisks, "")
	if diff := cmp.Diff([]string{"nvme0n1", "nvme2n1"}, disks.Disks); diff != "" || err != nil {
		t.Errorf("disks: %v (-want +got):\n%s", err, diff)
	}
}

func TestInventorySpace(t *testing.T) {
	t.Parallel()
	h := probe.NewHost(probetest.Tree(t, map[string]string{"dir/file": "x", "statfs": "/dir 4096 100 50 50 10 5\n"}))
	s, err := Take(h, PartSpace, "/dir")
	if err != nil || !s.Space.Dir || s.Space.Space != (probe.Amounts{Total: 400, Used: 200, Free: 200, Percent: 50}) || s.Space.Inodes.Percent != 50 {
		t.Errorf("a directory: %+v, %v", s.Space, err)
	}
	f, err := Take(h, PartSpace, "/dir/file")
	if err != nil || f.Space.Dir || f.Space.Device != s.Space.Device {
		t.Errorf("a file: %+v, %v", f.Space, err)
	}
}

func TestParseCgroup(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]struct {
		unit string
		own  bool
	}{
		"0::/system.slice/ssh.service\n":                             {"ssh", true},
		"0::/system.slice/system-opensm.slice/opensm@1.service\n":    {"opensm@1", true},
		"0::/system.slice/systemd-udevd.service/udev\n":              {"systemd-udevd", true},
		"2:cpu:/\n1:name=systemd:/system.slice/cron.service\n0::/\n": {"cron", true},
		"3:memory:/slurm/uid_0/job_17\n0::/\n":                       {"", false},
		"9:memory:/slurm/uid_1000/job_77/step_0/task_0\n4:freezer:/slurm/uid_1000/job_77/step_0\n1:name=systemd:/system.slice/slurmd.service\n": {"", false},
		"9:memory:/slurm_gpu001/uid_0/job_77\n1:name=systemd:/system.slice/slurmd.service\n":                                                    {"", false},
		"9:memory:/system.slice/slurmd.service\n4:freezer:/slurm\n1:name=systemd:/system.slice/slurmd.service\n":                                {"slurmd", true},
		"0::/\n":           {"", true},
		"":                 {"", true},
		"0::/init.scope\n": {"", false},
		"0::/user.slice/user-1000.slice/session-3.scope\n":                   {"", false},
		"0::/system.slice/docker-0123.scope\n":                               {"", false},
		"0::/system.slice/slurmstepd.scope/job_17/step_0/user/task_0\n":      {"", false},
		"0::/system.slice/slurmd.service/job_17\n":                           {"slurmd", false},
		"0::/system.slice/containerd.service/kubepods-burst.slice/cri-x.y\n": {"containerd", false},
		"0::/kubepods.slice/x.scope\n":                                       {"", false},
		"0::/machine.slice/libpod-1.scope/container\n":                       {"", false},
		"garbage\n::\n0:::\n":                                                {"", false},
	} {
		unit, own := parseCgroup([]byte(data))
		if own != want.own || own && unit != want.unit {
			t.Errorf("parseCgroup(%q) = %q, %v, want %q, %v", data, unit, own, want.unit, want.own)
		}
	}
}

func FuzzParseCgroup(f *testing.F) {
	f.Add([]byte("0::/system.slice/ssh.service\n"))
	f.Add([]byte("1:name=systemd:/system.slice//\n0::/"))
	f.Fuzz(func(t *testing.T, data []byte) {
		unit, own := parseCgroup(data)
		if own && (strings.Contains(unit, "/") || strings.Contains(unit, "\n")) {
			t.Errorf("%q: unit %q", data, unit)
		}
	})
}

// Which services run after a boot, on Ubuntu 24.04 (ssh), Debian (rpcbind) and a host of libvirt.
func TestServicesOnDemand(t *testing.T) {
	t.Parallel()
	const status = "Name:\tx\nState:\tS\nUid:\t0\t0\t0\t0\nVmSize:\t1 kB\n"
	const etc, lib = "etc/systemd/system/", "usr/lib/systemd/system/"
	files := map[string]string{
		etc + "sockets.target.wants/ssh.socket": "", etc + "ssh.service.requires/ssh.socket": "",
		etc + "sockets.target.wants/rpcbind.socket": "", etc + "multi-user.target.wants/rpcbind.service": "",
		lib + "sockets.target.wants/systemd-journald.socket": "", lib + "sysinit.target.wants/systemd-journald.service": "",
		etc + "sockets.target.wants/libvirtd.socket": "", etc + "multi-user.target.wants/libvirtd.service": "",
		etc + "multi-user.target.wants/cron.service": "", lib + "ssh.socket": "", lib + "cron.socket": "",
		etc + "sockets.target.wants/sshd.socket": "", lib + "rpc-statd.service": "", lib + "rdma-ndd.service": "",
	}
	want := map[string]bool{
		"ssh": true, "rpcbind": false, "systemd-journald": false, "libvirtd": true, "cron": false, "sshd@2-10.0.0.1:22-10.0.0.2:5": true,
		"rpc-statd": true, "nvidia-imex": true, "nvidia-dcgm": true, "rdma-ndd": false,
	}
	pid := 10
	for unit := range want {
		dir := fmt.Sprintf("proc/%d/", pid)
		args := "/usr/sbin/" + unit
		if unit == "libvirtd" {
			args += "\x00--timeout\x00120"
		}
		files[dir+"cmdline"], files[dir+"status"], files[dir+"cgroup"] = args+"\x00", status, "0::/system.slice/"+unit+".service\n"
		pid++
	}
	inv, err := Take(probe.NewHost(probetest.Tree(t, files)), PartServices, "")
	if err != nil || len(inv.Services) != len(want) {
		t.Fatalf("%+v, %v", inv.Services, err)
	}
	for _, s := range inv.Services {
		if s.OnDemand != want[s.Unit] {
			t.Errorf("%s: on demand %v, want %v", s.Unit, s.OnDemand, want[s.Unit])
		}
	}
}

// rpc.statd of a node where an administrator has enabled it runs after each boot.
func TestServiceEnabled(t *testing.T) {
	t.Parallel()
	inv, err := Take(probe.NewHost(probetest.Tree(t, map[string]string{
		"proc/10/cmdline": "/usr/sbin/rpc.statd\x00", "proc/10/status": "Name:\tx\nState:\tS\nUid:\t0\t0\t0\t0\nVmSize:\t1 kB\n",
		"proc/10/cgroup": "0::/system.slice/rpc-statd.service\n", "etc/systemd/system/multi-user.target.wants/rpc-statd.service": "",
	})), PartServices, "")
	if err != nil || len(inv.Services) != 1 || inv.Services[0].OnDemand {
		t.Errorf("%+v, %v", inv.Services, err)
	}
}

func TestServices(t *testing.T) {
	t.Parallel()
	const status = "Name:\tx\nState:\tS\nUid:\t0\t17\t0\t0\nVmSize:\t1 kB\n"
	files := map[string]string{"etc/passwd": "daemon:x:17:0::/:/bin/sh\n"}
	for pid, p := range map[string][2]string{
		"2": {"", "0::/"}, "10": {"/sbin/sshd\x00-D\x00", "0::/system.slice/ssh.service"}, "11": {"/sbin/sshd\x00-D\x00", "0::/system.slice/ssh.service"},
		"12": {"bash\x00", "0::/user.slice/x"}, "13": {strings.Repeat("y", 2000) + "\x00", "0::/"},
	} {
		files["proc/"+pid+"/cmdline"], files["proc/"+pid+"/cgroup"], files["proc/"+pid+"/status"] = p[0], p[1]+"\n", status
	}
	files["proc/14/cmdline"], files["proc/14/cgroup"], files["proc/14/status"] = "/usr/sbin/crond\x00", "0::/\n", status+"NSpid:\t14\t1\n" // in a container
	got, err := Take(probe.NewHost(probetest.Tree(t, files)), PartServices, "")
	want := []Service{
		{Args: "/sbin/sshd -D", User: "daemon", UID: 17, Unit: "ssh"},
		{Args: strings.Repeat("y", serviceArgs), User: "daemon", UID: 17},
	}
	if diff := cmp.Diff(want, got.Services); diff != "" || err != nil {
		t.Errorf("services: %v (-want +got):\n%s", err, diff)
	}
}

// TestInventoryTravels checks that every part of this machine's inventory survives the transfer
// from the worker.
func TestInventoryTravels(t *testing.T) {
	t.Parallel()
	h := probe.NewHost("/")
	for _, part := range []Part{PartCPU, PartMemory, PartLoad, PartNet, PartIB, PartGPU, PartMounts, PartSpace, PartServices} {
		inv, err := Take(h, part, filepath.Dir(os.TempDir()))
		if err != nil {
			t.Logf("%s: %v", part, err)
			continue
		}
		text, err := json.Marshal(inv)
		if err != nil {
			t.Fatal(err)
		}
		var back Inventory
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		again, _ := json.Marshal(back)
		if string(again) != string(text) {
			t.Errorf("%s: %s became %s", part, text, again)
		}
	}
}
