package lbnl

import (
	"context"
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// hwIB checks that the InfiniBand port DEVICE:PORT is ACTIVE and LinkUp, or any
// port if none is named. RATE is in Gb/s. The check compares its text with the rate in
// /sys.
//
//	node* || check_hw_ib 400 mlx5_0:1
type hwIB struct {
	Rate    string   `arg:"1" toml:"rate"` // the rate in Gb/s, as written in /sys: 400
	Port    string   `arg:"2" toml:"port"` // the port: mlx5_0:1
	Surplus []string `arg:"*"`             // ignored, as in LBNL NHC
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
				"hw.ib.abi":     "Load the kernel module: modprobe ib_umad. If that fails, read dmesg: the module can belong to another OFED version.",
				"hw.ib.down":    "Run ibstat. Down: check the cable and the switch port. Initializing: check the subnet manager. Lower rate: with fewer lanes (2X, 1X) swap the cable; with a lower speed compare cable, transceiver and the setting of the switch port.",
				"hw.ib.missing": "Run lspci and dmesg: the adapter has disappeared, its driver is not loaded, or it has another name.",
			}
		},
	})
}

// Contradiction implements [checks.Contradicting].
func (c *hwIB) Contradiction() (word, why string) {
	if _, port, ok := strings.Cut(c.Port, ":"); c.Port != "" && (!ok || port == "" || strings.Trim(port, "0123456789") != "") {
		return c.Port, fmt.Sprintf("%q is not DEVICE:PORT: mlx5_0:1", c.Port)
	}
	return "", ""
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
		if c.selects(p) && c.healthy(p) {
			env.Fact("%s", checks.DescribePort(p))
			return nil
		}
	}
	return []checks.Finding{c.down(ports)}
}

// selects reports whether the line is about this port.
func (c *hwIB) selects(p rdma.IBPort) bool { return c.Port == "" || c.Port == p.Name() }

func (c *hwIB) healthy(p rdma.IBPort) bool {
	return p.State == checks.IBActive && p.Phys == checks.IBLinkUp && (c.Rate == "" || c.Rate == p.Rate)
}

// down returns the failure, with the state of every selected port.
func (c *hwIB) down(ports []rdma.IBPort) checks.Finding {
	f := checks.Finding{
		Code:     "hw.ib.down",
		Severity: checks.Fail,
		Device:   checks.Device{Kind: "port", Name: c.Port},
		Want:     checks.IBActive + " " + checks.IBLinkUp + checks.Before(" ", c.Rate, " Gb/sec"),
	}.Phrase("check_hw_ib", "No IB port%s is ACTIVE (LinkUp%s).", checks.Before(" ", c.Port, ""), checks.Before(" ", c.Rate, " Gb/sec"))
	var got []string
	for _, p := range ports {
		if !c.selects(p) {
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
