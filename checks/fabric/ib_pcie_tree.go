package fabric

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/pcie"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// The path between an RDMA device and its root port: links of switches, and bridges that can
// redirect traffic between neighbours.

// judgeTree judges the links above the adapters, each once. A link below the abilities of its
// ends is judged like every other link; a link that is slower than the adapter's own warns. The
// bridges at the same height above adapters of a kind are one kind.
func judgeTree(f *Fabric, links []*ibLink, past *pcie.Past) (findings []checks.Finding) {
	var tree []*pcie.Link
	below := map[string]*ibLink{}
	for _, l := range links {
		for i, address := range l.Path {
			if i%2 == 0 || below[address] != nil { // a downstream port shares the link of the device below it
				continue
			}
			b := pcie.ReadLink(f.env, address)
			if b.Kind = fmt.Sprintf("%s above %s, %d", b.Kind, l.Kind, i); pci.VirtualBridge(b.Function) || pci.VirtualBridge(b.Slot) {
				continue
			}
			if b.Err != nil {
				findings = append(findings, f.Unknown(HCADevice(l.hca), b.Err))
				continue
			}
			tree, below[address] = append(tree, b), l
		}
	}
	for i, faults := range pcie.Judge(tree, pcie.Want{}, past) {
		l, b := below[tree[i].Address], tree[i]
		for _, fault := range faults {
			fault.Text += " of a link above " + l.hca.Name
			findings = append(findings, fault.Finding(ibPCIeName, "ib.pcie."+treeCode(fault), pcie.DeviceOf(f.env, b)))
		}
		if len(faults) == 0 {
			findings = append(findings, judgeNarrow(f, l, b)...)
		}
	}
	return findings
}

// treeCode returns the suffix of a fault's code: a bridge is to the device below it as a slot is
// to a card.
func treeCode(fault pcie.Fault) string {
	if fault.What == "slot" {
		return "tree"
	}
	return fault.What
}

// judgeNarrow warns of a link that is slower than that of the adapter below it.
func judgeNarrow(f *Fabric, l *ibLink, b *pcie.Link) []checks.Finding {
	if !l.Known() || !b.Known() {
		return nil
	}
	p, _ := checks.NodePlatform(f.env)
	want := l.Speed
	if least := pcie.GenSpeed(p.NetworkTreeGen); least > 0 {
		want = min(want, least)
	}
	of := checks.Finding{Code: "ib.pcie.tree", Severity: checks.Warn}
	device := pcie.DeviceOf(f.env, b)
	switch {
	case b.Speed < want:
		of.Want, of.Got = pcie.SpeedText(want), pcie.SpeedText(b.Speed)
		return []checks.Finding{of.Report(f.Check, device, "PCIe speed of a link above %s is lower than its own", l.hca.Name)}
	case float64(b.Width)*b.Speed < float64(l.Width)*want:
		of.Want, of.Got = pcie.Lanes(l.Width), pcie.Lanes(b.Width)
		return []checks.Finding{of.Report(f.Check, device, "PCIe width of a link above %s is lower than its own", l.hca.Name)}
	}
	return nil
}

// redirects are the ACS bits that send traffic between neighbours over the root port.
var redirects = []struct {
	bit  pci.ACSFlags
	name string
}{{pci.ACSRequestRedirect, "ReqRedir"}, {pci.ACSCompletionRedirect, "CmpltRedir"}, {pci.ACSUpstreamForwarding, "UpstreamFwd"}, {pci.ACSEgressControl, "EgressCtrl"}}

// judgeACS judges the bridges on the path between an adapter and the GPUs below the same switch;
// with -a all bridges above either.
func (c *ibPCIe) judgeACS(f *Fabric, links []*ibLink) (findings []checks.Finding) {
	severity := checks.Warn
	if c.ACS {
		severity = checks.Fail
	}
	seen := map[string]bool{}
	for _, l := range links {
		if l.virtual() {
			continue
		}
		var bad []string
		for _, address := range listACSBridges(f, l, c.ACS) {
			f.env.At("read /sys/bus/pci/devices/%s/config", address)
			config, err := pci.ReadConfig(f.env.Host, address)
			switch {
			case seen[address] || errors.Is(err, fs.ErrNotExist):
			case err != nil:
				seen[address] = true
				findings = append(findings, f.Unknown(HCADevice(l.hca), err))
			default:
				seen[address] = true
				if on := formatACS(config.ACS); on != "" {
					bad = append(bad, address+" ("+on+")")
				}
			}
		}
		if len(bad) > 0 {
			findings = append(findings, checks.Finding{Code: "ib.pcie.acs", Severity: severity, Remedy: checks.FixConfig, Want: "off", Got: strings.Join(bad, ", ")}.
				Report(f.Check, HCADevice(l.hca),
					"ACS redirects traffic to GPUs over the root port"))
		}
	}
	return findings
}

// listACSBridges returns the bridges on the path between an adapter and the GPUs near it: those below
// their last common bridge. A GPU that is connected otherwise, or below another root port, has
// none. With all it returns every bridge up to the root port, of the adapter and of GPUs below
// the same port.
func listACSBridges(f *Fabric, l *ibLink, all bool) (bridges []string) {
	if all {
		bridges = slices.Clone(l.Path)
	}
	ids, err := pci.GPUIDs(f.env.Host)
	if err != nil {
		return bridges // the checks of GPUs report it
	}
	for _, id := range ids {
		path := pci.ReadFunction(f.env.Host, id.Address).Path
		common := 0
		for common < min(len(path), len(l.Path)) && path[common] == l.Path[common] {
			common++
		}
		if common == 0 {
			continue
		}
		if all {
			common = 0
		}
		bridges = append(append(bridges, l.Path[common:]...), path[common:]...)
	}
	slices.Sort(bridges)
	return slices.Compact(bridges)
}

func formatACS(flags pci.ACSFlags) string {
	var names []string
	for _, r := range redirects {
		if flags&r.bit != 0 {
			names = append(names, r.name)
		}
	}
	return strings.Join(names, " ")
}
