package rank

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
)

// NCCL gets the interface of the launcher and the site's settings, which take precedence over those of the test.
func TestNCCLSettings(t *testing.T) {
	t.Parallel()
	towards := netip.MustParsePrefix("10.1.0.5/24")
	ib, front := sweep.Rail{Name: "mlx5_0:1", Layer: "InfiniBand"}, sweep.Rail{Name: "mlx5_an0:1", Layer: "Ethernet", Left: "the default route"}
	base := []string{"NCCL_CONF_FILE=/dev/null", "NCCL_COMM_BLOCKING=0", "NCCL_RAS_ENABLE=0"}
	for name, tt := range map[string]struct {
		rails []sweep.Rail
		task  sweep.Task
		site  []string
		want  string // besides base
		rdma  bool
	}{
		"InfiniBand":          {[]sweep.Rail{ib, front}, sweep.Task{}, nil, "NCCL_SOCKET_IFNAME==eth1 NCCL_NET=IB", true},
		"no rail":             {nil, sweep.Task{}, nil, "NCCL_SOCKET_IFNAME==eth1", false},
		"only a front end":    {[]sweep.Rail{front}, sweep.Task{}, nil, "NCCL_SOCKET_IFNAME==eth1", false},
		"a front end, named":  {[]sweep.Rail{ib, front}, sweep.Task{Rails: []string{"mlx5_an0"}}, nil, "NCCL_SOCKET_IFNAME==eth1 NCCL_IB_HCA==mlx5_an0 NCCL_NET=IB", true},
		"two rails":           {[]sweep.Rail{ib, front}, sweep.Task{Rails: []string{"mlx5_0:1", "mlx5_1"}}, nil, "NCCL_SOCKET_IFNAME==eth1 NCCL_IB_HCA==mlx5_0:1,mlx5_1 NCCL_NET=IB", true},
		"the site":            {[]sweep.Rail{ib}, sweep.Task{}, []string{"NCCL_IB_HCA=mlx5", "NCCL_IB_GID_INDEX=3"}, "NCCL_SOCKET_IFNAME==eth1 NCCL_NET=IB NCCL_IB_HCA=mlx5 NCCL_IB_GID_INDEX=3", true},
		"the site over rails": {[]sweep.Rail{ib}, sweep.Task{Rails: []string{"mlx5_0"}}, []string{"NCCL_IB_HCA=mlx5", "NCCL_SOCKET_IFNAME=bond0"}, "NCCL_NET=IB NCCL_IB_HCA=mlx5 NCCL_SOCKET_IFNAME=bond0", true},
		"a plug-in":           {[]sweep.Rail{ib}, sweep.Task{}, []string{"NCCL_NET_PLUGIN=x"}, "NCCL_SOCKET_IFNAME==eth1 NCCL_NET_PLUGIN=x", true},
		"TCP":                 {[]sweep.Rail{ib}, sweep.Task{}, []string{"NCCL_NET=Socket"}, "NCCL_SOCKET_IFNAME==eth1 NCCL_NET=Socket", false},
		"no InfiniBand":       {[]sweep.Rail{ib}, sweep.Task{}, []string{"NCCL_IB_DISABLE=1"}, "NCCL_SOCKET_IFNAME==eth1 NCCL_IB_DISABLE=1", false},
		"a plane":             {[]sweep.Rail{ib}, sweep.Task{Plane: "eth0"}, nil, "NCCL_SOCKET_IFNAME==eth0 NCCL_NET=Socket", false},
	} {
		n := &node{
			Node: sweep.Node{Name: "gpu01", Rails: tt.rails, Planes: []sweep.Plane{{Name: "eth0", Address: netip.MustParsePrefix("10.0.0.5/24")}, {Name: "eth1", Address: towards}}},
			host: probe.NewHost("/"), towards: towards.Addr(), nccl: NCCLSite{Env: tt.site},
		}
		s, rdma, err := (&ncclTask{n: n}).settings(&tt.task)
		if err != nil || rdma != tt.rdma {
			t.Errorf("%s: needs RDMA: %t, %v", name, rdma, err)
		}
		if diff := cmp.Diff(slices.Concat(base, strings.Fields(tt.want)), s.Environ()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// With settings that are not safe, or not known, NCCL does not run, and no node is blamed.
func TestNCCLSettingsRefused(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "topo.xml")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	n := func(site NCCLSite) *ncclTask {
		return &ncclTask{n: &node{Node: sweep.Node{Name: "gpu01"}, host: probe.NewHost("/"), nccl: site}}
	}
	for name, tt := range map[string]struct {
		task *ncclTask
		of   sweep.Task
		want string
		root bool
	}{
		"a file of others": {n(NCCLSite{Env: []string{"NCCL_GRAPH_FILE=" + file}}), sweep.Task{}, "NCCL_GRAPH_FILE=" + file + " of nccl_env is unsafe", true},
		"unreadable":       {n(NCCLSite{Err: errors.New("nhc.toml:3: bad")}), sweep.Task{}, "unknown: nhc.toml:3: bad", false},
		"no such rail":     {n(NCCLSite{}), sweep.Task{Rails: []string{"mlx5_9"}}, "gpu01 has no RDMA port mlx5_9", false},
	} {
		if tt.root && os.Geteuid() != 0 {
			continue
		}
		if _, _, err := tt.task.settings(&tt.of); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
