package genconf

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/inventory"
)

func TestWhyTemporary(t *testing.T) {
	t.Parallel()
	configured := []string{"/data/projects", "/home/bob"}
	all := []probe.Mount{
		{Point: "/", Type: "nfs4", Source: "nfs2:/"},
		{Point: "/net", Type: "autofs"}, {Point: "/data", Type: "autofs"},
		{Point: "/home", Type: "nfs4", Source: "nfs1:/export/home"}, {Point: "/pseudo", Type: "nfs4", Source: "nfs1:/"},
		{Point: "/afs", Type: "afs", Source: "#example.org:root.cell."}, {Point: "/tank", Type: "zfs", Source: "tank"},
	}
	for _, tt := range []struct {
		m    probe.Mount
		want string
	}{
		{probe.Mount{Point: "/", Type: "ext4", Source: "/dev/sda1"}, ""},
		{probe.Mount{Point: "/", Type: "overlay", Source: "overlay"}, ""},
		{probe.Mount{Point: "/run", Type: "tmpfs"}, ""},
		{probe.Mount{Point: "/tmp", Type: "tmpfs"}, ""},
		{probe.Mount{Point: "/tmpfoo", Type: "ext4"}, ""},
		{probe.Mount{Point: "/dev/shm", Type: "tmpfs"}, ""},
		{probe.Mount{Point: "/home", Type: "nfs4", Source: "nfs1:/home"}, ""},
		{probe.Mount{Point: "/ceph", Type: "fuse.ceph-fuse", Options: "rw,user_id=0,group_id=0"}, ""},
		{probe.Mount{Point: "/run/user/1000", Type: "tmpfs"}, temporary},
		{probe.Mount{Point: "/run/netns/x", Type: "nsfs"}, temporary},
		{probe.Mount{Point: "/run/rpc", Type: "ext4"}, temporary},
		{probe.Mount{Point: "/tmp/job.17", Type: "ext4"}, temporary},
		{probe.Mount{Point: "/var/lib/docker/overlay2/x/merged", Type: "overlay"}, temporary},
		{probe.Mount{Point: "/snap/core/1", Type: "squashfs", Source: "/dev/loop0"}, temporary},
		{probe.Mount{Point: "/mnt/image", Type: "ext4", Source: "/dev/loop1"}, temporary},
		{probe.Mount{Point: "/sys/fs/cgroup", Type: "cgroup2"}, temporary},
		{probe.Mount{Point: "/home/joe/x", Type: "fuse.sshfs", Options: "rw,user_id=1000"}, temporary},
		{probe.Mount{Point: "/home/joe/y", Type: "fuse", Options: "rw,user_id=1000"}, temporary},
		{probe.Mount{Point: "/home/alice", Type: "nfs4", Source: "nfs1:/export/home/alice"}, crossed},
		{probe.Mount{Point: "/home/bob", Type: "nfs4", Source: "nfs1:/export/home/bob"}, ""},
		{probe.Mount{Point: "/data/projects", Type: "nfs4", Source: "nfs1:/data/projects"}, onDemand}, // /data is an autofs
		{probe.Mount{Point: "/pseudo/work", Type: "nfs4", Source: "nfs1:/work"}, crossed},
		{probe.Mount{Point: "/home/work", Type: "nfs4", Source: "nfs2:/export/home/work"}, ""},
		{probe.Mount{Point: "/home/work", Type: "nfs4", Source: "nfs1:/export/work"}, ""},
		{probe.Mount{Point: "/", Type: "nfs4", Source: "nfs2:/"}, ""},
		{probe.Mount{Point: "/usr", Type: "nfs4", Source: "nfs2:/usr"}, crossed},
		{probe.Mount{Point: "/homework", Type: "nfs4", Source: "nfs1:/export/homework"}, ""},
		{probe.Mount{Point: "/home", Type: "nfs4", Source: "nfs1:/export/home"}, ""},
		{probe.Mount{Point: "/afs/example.org/user/joe", Type: "afs", Source: "%user.joe"}, temporary},
		{probe.Mount{Point: "/tank/.zfs/snapshot/monday", Type: "zfs", Source: "tank@monday"}, temporary},
		{probe.Mount{Point: "/tank/home", Type: "zfs", Source: "tank/home"}, ""},
		{probe.Mount{Point: "/mnt", Type: "iso9660", Source: "/dev/sr0"}, temporary},
		{probe.Mount{Point: "/net", Type: "autofs"}, temporary},
		{probe.Mount{Point: "/net/nfs1", Type: "nfs4"}, onDemand},
		{probe.Mount{Point: "/data", Type: "nfs4"}, onDemand},
	} {
		if got := whyTemporary(tt.m, all, configured); got != tt.want {
			t.Errorf("whyTemporary(%+v) = %q, want %q", tt.m, got, tt.want)
		}
	}
}

// TestPercent: the present use is clearly below the limit.
func TestPercent(t *testing.T) {
	t.Parallel()
	for used, want := range map[int]string{0: "90%", 85: "90%", 86: "93%", 90: "95%", 95: "98%", 97: "99%", 98: "99%"} {
		if got := percent(mostUsed, used); got != want {
			t.Errorf("percent(%d, %d) = %s, want %s", mostUsed, used, got, want)
		}
	}
	if got := percent(100, 98); got != "100%" {
		t.Errorf("percent(100, 98) = %s", got)
	}
}

func TestIsNumbered(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]bool{
		"/dev/sda1": true, "/dev/nvme0n1p2": true, "/dev/vda": true, "/dev/dm-3": true, "/dev/mmcblk0p1": true,
		"/dev/md127": true, "/dev/rbd0": true, "/dev/nbd1": true, "/dev/md126p1": true, "/dev/mapper/mpatha": true,
		"/dev/md/scratch": false, "/dev/md0": false, "/dev/rbd/pool/image": false, "/dev/bcache/by-label/x": false,
		"/dev/mapper/vg-root": false, "nfs1:/sda": false, "tmpfs": false,
	} {
		if got := isNumbered(source); got != want {
			t.Errorf("isNumbered(%q) = %v", source, got)
		}
	}
}

// Sources and mount points that name one node are wrong for the others.
func TestNamesNode(t *testing.T) {
	t.Parallel()
	g := generator{Node: Node{Get: func(string) string { return "gpu-001" }}}
	for name, want := range map[string]bool{
		"/dev/mapper/rhel_gpu--001-root": true, "/dev/mapper/luks-0f3c4a55-9d1e-4b39-8f6e-2d1c0a9b8e77": true,
		"/dev/mapper/ceph--0f3c4a55--9d1e--4b39--8f6e--2d1c0a9b8e77-osd": true, "nfs1:/nfsroot/gpu-001": true, "nfs1:/nfsroot/GPU_001/usr": true, "nfs1:/tftpboot/10.0.0.17": true,
		"nfs1:/tftpboot/01-52-54-00-12-34-56": true, "/scratch/gpu-001": true, "/dev/mapper/3600508b400105e210000900000490000": true,
		"/dev/mapper/rhel-root": false, "10.0.0.1:/home": false, "10.0.0.1@o2ib:10.0.0.2@o2ib:/lustre": false,
		"[2001:db8::17:1]:/home": false, "/dev/mapper/vg_data-scratch": false, "10.0.0.1:6789,10.0.0.2:6789:/": false, "/": false,
		"gpu-0010:/export": false, "/scratch/xgpu-001": false, "gpu-001-nfs:/": true, "/dev/md/gpu-001:scratch": true,
		// all nodes share the server and its file system: AWS, Ceph, Azure
		"fs-0123456789abcdef0.efs.eu-west-1.amazonaws.com:/": false, "fs-0123456789abcdef0.fsx.eu-west-1.amazonaws.com@tcp:/fsx": false,
		"admin@0f3c4a55-9d1e-4b39-8f6e-2d1c0a9b8e77.cephfs=/": false, "//f0123456789abcdef012345.file.core.windows.net/share": false,
		"admin@0f3c4a55-9d1e-4b39-8f6e-2d1c0a9b8e77.cephfs=/root/gpu-001": true,
	} {
		if got := g.namesNode(name); got != want {
			t.Errorf("namesNode(%q) = %v", name, got)
		}
	}
	for name, want := range map[string]map[string]bool{
		"n1": {"/fs/main1": false, "n10:/export": false, "/scratch/n10": false, "/scratch/n1": true}, "c1": {"/data/src1": false}, "": {"/": false, "nfs1:/": false},
	} {
		g := generator{Node: Node{Get: func(string) string { return name }}}
		for mount, want := range want {
			if got := g.namesNode(mount); got != want {
				t.Errorf("host %q: namesNode(%q) = %v", name, mount, got)
			}
		}
	}
}

// The comment of a line shows which source it does not compare.
func TestMountLine(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"":                               "check_fs_mount_rw -t xfs -f / ()",
		"/dev/mapper/rhel-root":          "check_fs_mount_rw -t xfs -s /dev/mapper/rhel-root -f / ()",
		"/dev/mapper/rhel_gpu--001-root": "check_fs_mount_rw -t xfs -f / (file systems are mounted read-write; no -s /dev/mapper/rhel_gpu--001-root: the name is perhaps of this node alone)",
		"/dev/sda1":                      "check_fs_mount_rw -t xfs -f / (file systems are mounted read-write; no -s /dev/sda1: the name can change at a boot)",
	} {
		g := generator{Node: Node{Get: func(string) string { return "gpu-001" }}}
		g.mountLine(probe.Mount{Point: "/", Source: source, Type: "xfs", Options: "rw"})
		if l := g.sheet.lines[0]; l.check+" ("+l.note+")" != want {
			t.Errorf("%s (%s), want %s", l.check, l.note, want)
		}
	}
}

// A limit for a file system that nodes share is a comment.
func TestSharedSpace(t *testing.T) {
	t.Parallel()
	sp := inventory.MountSpace{Space: probe.Amounts{Total: 1 << 30, Percent: 10}}
	for kind, want := range map[string]string{
		"xfs": "check_fs_used /x 90%", "gfs2": "#check_fs_used /x 90%", "dvs": "#check_fs_used /x 90%", "cvfs": "#check_fs_used /x 90%",
		"fuse.ceph-fuse": "#check_fs_used /x 90%",
	} {
		var g generator
		g.spaceLines(probe.Mount{Point: "/x", Type: kind, Options: "rw"}, sp)
		if diff := cmp.Diff([]string{want}, lines(&g.sheet)); diff != "" {
			t.Errorf("%s: lines (-want +got):\n%s", kind, diff)
		}
	}
}

func TestSizeWord(t *testing.T) {
	t.Parallel()
	for kB, want := range map[uint64]string{
		0: "0kB", 65535: "65535kB", 65536: "64MB", 24684092: "24106MB", 67108864: "64GB", 2113504160: "2016GB",
	} {
		if got := sizeWord(kB); got != want {
			t.Errorf("sizeWord(%d) = %s, want %s", kB, got, want)
		}
	}
}

// Memory of GPUs that the driver adds to the kernel's comes and goes.
func TestMemory(t *testing.T) {
	t.Parallel()
	grace := target{groups: []checks.PlatformGroup{{Platform: &checks.Platform{MemoryNode: 1}}}}
	const swap = "check_hw_swap 0 0"
	for name, tt := range map[string]struct {
		target target
		gpu    bool
		far    uint64
		want   []string
	}{
		"a server":                  {target{}, false, 0, []string{"check_hw_physmem 480GB 480GB 1%", swap}},
		"HBM or CXL":                {target{}, false, 96 << 20, []string{"check_hw_physmem 480GB 480GB 1%", swap}},
		"GPU memory, no platform":   {target{}, true, 96 << 20, []string{"check_hw_physmem 384GB 480GB 1%", swap}},
		"Grace with GPU memory":     {grace, false, 96 << 20, []string{"check_hw_physmem 384GB 480GB 1%", swap}},
		"Grace before persistenced": {grace, false, 0, []string{"#check_hw_physmem 480GB 480GB 1%", swap}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := generator{Node: Node{Get: func(string) string { return "" }}, target: tt.target}
			g.memoryLines(&inventory.Inventory{Memory: probe.Memory{Total: 480 << 20}, Far: tt.far, GPUMemory: tt.gpu})
			if diff := cmp.Diff(tt.want, lines(&g.sheet)); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

// Addresses are a comment at most: the numbers of buses change.
func TestSlots(t *testing.T) {
	t.Parallel()
	for own, want := range [][]string{{"#check_file_test -e /sys/bus/pci/devices/0000:1b:00.0"}, nil} {
		var g generator
		g.slotLine(inventory.GPUFiles{PCI: []string{"0000:1b:00.0"}, Own: own})
		if diff := cmp.Diff(want, lines(&g.sheet)); diff != "" {
			t.Errorf("lines if %d belong to the driver (-want +got):\n%s", own, diff)
		}
	}
}

// lines are the checks of a sheet, those that are comments behind a "#".
func lines(s *sheet) (list []string) {
	for _, l := range s.lines {
		switch {
		case l.check != "" && l.why == "":
			list = append(list, l.check)
		case l.check != "":
			list = append(list, "#"+l.check)
		}
	}
	return list
}

func TestPorts(t *testing.T) {
	t.Parallel()
	var g generator
	g.portLines([]inventory.IBLink{
		{Name: "mlx5_0:1", State: "ACTIVE", Phys: "LinkUp", Rate: "400"},
		{Name: "mlx5_1:1", State: "DOWN", Phys: "Disabled", Rate: "10"},
		{Name: "mlx5_2:1", Err: "read /sys/class/infiniband/mlx5_2/ports/1/rate: input/output error"},
		{Name: "mlx5_3:1", State: "ACTIVE", Phys: "LinkUp", Rate: "100"},
		{Name: "mlx5_4:1", State: "ACTIVE", Phys: "LinkUp", Rate: "400"},
		{Name: "mlx5_5:1", State: "ACTIVE", Phys: "LinkUp", Rate: "50"},
	}, map[string]string{"mlx5_3:1": "the default route"})
	if diff := cmp.Diff(slices.Concat([]string{"check_ib_ports -r 400 mlx5_0:1 mlx5_4:1", "check_ib_ports -r 50 mlx5_5:1"}, portChecks, fabricChecks), lines(&g.sheet)); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	if len(g.sheet.warnings) != 1 {
		t.Errorf("warnings: %q, want one of mlx5_2", g.sheet.warnings)
	}
}
