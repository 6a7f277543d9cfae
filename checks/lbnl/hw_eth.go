package lbnl

import (
	"context"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// hwEth checks that a network interface exists, in any state. DEVICE can
// be a glob.
//
//	node* || check_hw_eth eth0
type hwEth struct {
	Dev     string   `arg:"1" toml:"dev"` // the name of the device, or a glob
	Surplus []string `arg:"*"`            // ignored, as in LBNL NHC
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_hw_eth",
		Usage:   "DEVICE",
		Summary: "a network interface exists",
		Lane:    checks.Local,
		New:     func() checks.Check { return &hwEth{} },
		Do: func() map[string]string {
			return map[string]string{
				"hw.eth.missing": "Run ip link and dmesg: the driver is not loaded, the device has another name, or the card has disappeared from the PCI bus.",
			}
		},
	})
}

func (c *hwEth) Run(_ context.Context, env *checks.Env) []checks.Finding {
	names, err := network.NetDevices(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	if i := slices.IndexFunc(names, func(n string) bool { return match.Glob(n, c.Dev) }); i >= 0 {
		env.Fact("%s", names[i])
		return nil
	}
	return []checks.Finding{checks.Finding{
		Code:     "hw.eth.missing",
		Severity: checks.Fail,
		Device:   checks.Device{Kind: "netdev", Name: c.Dev},
		Want:     c.Dev,
		Got:      strings.Join(names, " "),
	}.Phrase("check_hw_eth", "Ethernet device %s not detected.", c.Dev)}
}
