package genconf

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/inventory"
)

func TestWhyTemporary(t *testing.T) {
	t.Parallel()
	const onDemand = "mounted on demand; the line below mounts it first"
	all := []probe.Mount{{Point: "/net", Type: "autofs"}, {Point: "/data", Type: "autofs"}}
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
		{probe.Mount{Point: "/net", Type: "autofs"}, temporary},
		{probe.Mount{Point: "/net/nfs1", Type: "nfs4"}, onDemand},
		{probe.Mount{Point: "/data", Type: "nfs4"}, onDemand},
	} {
		if got := whyTemporary(tt.m, all); got != tt.want {
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
		"/dev/sda1": true, "/dev/nvme0n1p2": true, "/dev/vda": true, "/dev/dm-3": true, "": true,
		"/dev/mapper/vg-root": false, "/dev/md127": false, "nfs1:/sda": false, "tmpfs": false,
	} {
		if got := isNumbered(source); got != want {
			t.Errorf("isNumbered(%q) = %v", source, got)
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
