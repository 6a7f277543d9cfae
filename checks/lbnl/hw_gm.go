package lbnl

import (
	"context"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// hwGM checks that a Myrinet interface exists and that its driver, the kernel
// module gm, is loaded. DEVICE can be a glob.
//
//	node* || check_hw_gm myri0
type hwGM struct {
	Dev     string   `arg:"1" toml:"dev"` // the network interface, or a glob
	Surplus []string `arg:"*"`            // ignored, as in LBNL NHC
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_hw_gm",
		Usage:   "DEVICE",
		Summary: "a Myrinet interface exists and its driver is loaded",
		Lane:    checks.Local,
		New:     func() checks.Check { return &hwGM{} },
		Do: func() map[string]string {
			return map[string]string{
				"hw.gm.missing": "Run ip link: the interface was not created, has another name, or the card has disappeared from the PCI bus.",
				"hw.gm.driver":  "Load the driver: modprobe gm. Read dmesg to find out why it is not loaded.",
			}
		},
	})
}

const gmModule = "gm"

func (c *hwGM) Run(_ context.Context, env *checks.Env) []checks.Finding {
	names, err := network.NetDevices(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	modules, err := probe.Modules(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	f := checks.Finding{
		Code:     "hw.gm.missing",
		Severity: checks.Fail,
		Device:   checks.Device{Kind: "netdev", Name: c.Dev},
		Want:     c.Dev,
		Got:      strings.Join(names, " "),
	}.Phrase("check_hw_gm", "GM device %s not active, either driver is not loaded, or interface not created.", c.Dev)
	if slices.ContainsFunc(names, func(n string) bool { return match.Glob(n, c.Dev) }) {
		if slices.Contains(modules, gmModule) {
			return nil
		}
		f.Code, f.Want, f.Got = "hw.gm.driver", "module "+gmModule, "not loaded"
	}
	return []checks.Finding{f}
}
