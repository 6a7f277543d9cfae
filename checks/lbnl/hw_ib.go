package lbnl

import (
	"context"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// hwIB checks that an InfiniBand port is ACTIVE and LinkUp: the one named
// DEVICE:PORT, or any. RATE is in Gb/s and compared as written with what the
// port runs at.
//
//	node* || check_hw_ib 400 mlx5_0:1
type hwIB struct {
	Rate    string   `arg:"1" toml:"rate"` // the rate as /sys has it, in Gb/s: 400
	Port    string   `arg:"2" toml:"port"` // the port: mlx5_0:1
	Surplus []string `arg:"*"`             // LBNL NHC does not look at more
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_hw_ib",
		Usage:   "[RATE [DEVICE:PORT]]",
		Summary: "an InfiniBand port is up, at the right rate",
		Lane:    checks.Local,
		New:     func() checks.Check { return &hwIB{} },
		Do: func() map[string]string {
			return map[string]string{
				"hw.ib.abi":     "The InfiniBand modules of the kernel are not loaded (ib_umad), or belong to another OFED: modprobe ib_umad, see dmesg.",
				"hw.ib.down":    "See ibstat: Down is a cable or the switch's port, Initializing waits for a subnet manager, a lower rate is a bad cable.",
				"hw.ib.missing": "See lspci and dmesg: the adapter is gone, its driver is not loaded, or it has another name.",
			}
		},
	})
}

func (c *hwIB) Run(_ context.Context, env *checks.Env) []checks.Finding {
	env.At("read /sys/class/infiniband")
	ports, err := rdma.IBPorts(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	if n, ok := checks.ParseInteger(rdma.MADVersion(env.Host)); !ok || n == 0 {
		return []checks.Finding{checks.Finding{
			Code:     "hw.ib.abi",
			Severity: checks.Fail,
			Want:     "/sys/class/infiniband_mad/abi_version above 0",
			Got:      rdma.MADVersion(env.Host),
		}.Phrase("check_hw_ib", "Version mismatch between kernel OFED drivers and userspace OFED libraries.")}
	}
	for _, p := range ports {
		if c.wants(p) && c.healthy(p) {
			env.Fact("%s", checks.DescribePort(p))
			return nil
		}
	}
	return []checks.Finding{c.down(ports)}
}

// wants says whether the check is about this port.
func (c *hwIB) wants(p rdma.IBPort) bool { return c.Port == "" || c.Port == p.Name() }

func (c *hwIB) healthy(p rdma.IBPort) bool {
	return p.State == checks.IBActive && p.Phys == checks.IBLinkUp && (c.Rate == "" || c.Rate == p.Rate)
}

// down says that no port is as it should be, and how those are that were looked at.
func (c *hwIB) down(ports []rdma.IBPort) checks.Finding {
	f := checks.Finding{
		Code:     "hw.ib.down",
		Severity: checks.Fail,
		Device:   checks.Device{Kind: "port", Name: c.Port},
		Want:     checks.IBActive + " " + checks.IBLinkUp + checks.Before(" ", c.Rate, " Gb/sec"),
	}.Phrase("check_hw_ib", "No IB port%s is ACTIVE (LinkUp%s).", checks.Before(" ", c.Port, ""), checks.Before(" ", c.Rate, " Gb/sec"))
	var got []string
	for _, p := range ports {
		if !c.wants(p) {
			continue
		}
		got = append(got, checks.DescribePort(p))
		if c.Port != "" {
			f.Device.PCI = p.PCI
			f.Remedy = checks.PortRemedy(p)
		}
	}
	if got == nil {
		f.Code = "hw.ib.missing"
	}
	f.Got = strings.Join(got, ", ")
	return f
}
