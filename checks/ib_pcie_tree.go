package checks

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// What lies between an RDMA device and its root port: links of switches, and
// bridges that may send what is for a neighbour the long way.

// judgeTree judges the links above the adapters, each once: one that does less than
// its ends can as every other link, one that is less than the adapter's own by a
// warning. The bridges at the same height above adapters of a kind are one kind.
func (f *fabric) judgeTree(links []*ibLink) (findings []Finding) {
	var tree []*pcieLink
	below := map[string]*ibLink{}
	for _, l := range links {
		for i, address := range l.Path {
			if i%2 == 0 || below[address] != nil { // a port that faces downwards has the link of what is below it
				continue
			}
			b := readPCIeLink(f.env, address)
			if b.kind = fmt.Sprintf("%s above %s, %d", b.kind, l.kind, i); virtualBridge(b.PCIDevice) || virtualBridge(b.slot) {
				continue
			}
			if b.Err != nil {
				findings = append(findings, f.unknown(hcaDevice(l.hca), b.Err))
				continue
			}
			tree, below[address] = append(tree, b), l
		}
	}
	for i, faults := range judgePCIe(tree, pcieWant{}) {
		l, b := below[tree[i].Address], tree[i]
		for _, fault := range faults {
			fault.text += " of a link above " + l.hca.Name
			findings = append(findings, fault.finding(ibPCIeName, "ib.pcie."+treeCode(fault), pcieDevice(f.env, b)))
		}
		if len(faults) == 0 {
			findings = append(findings, f.narrow(l, b)...)
		}
	}
	return findings
}

// treeCode: what a slot is to a card a bridge is to what is below it.
func treeCode(fault pcieFault) string {
	if fault.what == "slot" {
		return "tree"
	}
	return fault.what
}

// narrow warns of a link that is less than that of the adapter below it.
func (f *fabric) narrow(l *ibLink, b *pcieLink) []Finding {
	if !l.told() || !b.told() {
		return nil
	}
	p, _ := nodePlatform(f.env)
	want := l.Speed
	if least := genSpeed(p.NetworkTreeGen); least > 0 {
		want = min(want, least)
	}
	of := Finding{Code: "ib.pcie.tree", Severity: Warn}
	device := pcieDevice(f.env, b)
	switch {
	case b.Speed < want:
		of.Want, of.Got = speedText(want), speedText(b.Speed)
		return []Finding{f.finding(device, of, "PCIe speed of a link above %s is less than its own", l.hca.Name)}
	case float64(b.Width)*b.Speed < float64(l.Width)*want:
		of.Want, of.Got = lanes(l.Width), lanes(b.Width)
		return []Finding{f.finding(device, of, "PCIe width of a link above %s is less than its own", l.hca.Name)}
	}
	return nil
}

// redirects are what sends traffic between neighbours over the root port, by the
// bit that does it.
var redirects = []struct {
	bit  probe.ACSFlags
	name string
}{{probe.ACSRequestRedirect, "ReqRedir"}, {probe.ACSCompletionRedirect, "CmpltRedir"}, {probe.ACSUpstreamForwarding, "UpstreamFwd"}, {probe.ACSEgressControl, "EgressCtrl"}}

// judgeACS judges the bridges on the way between an adapter and the GPUs below the
// same switch, with -a all above either.
func (c *ibPCIe) judgeACS(f *fabric, links []*ibLink) (findings []Finding) {
	severity := Warn
	if c.ACS {
		severity = Fail
	}
	seen := map[string]bool{}
	for _, l := range links {
		if l.virtual() {
			continue
		}
		var bad []string
		for _, address := range f.acsBridges(l, c.ACS) {
			f.env.At("read /sys/bus/pci/devices/%s/config", address)
			config, err := f.env.Host.PCIConfig(address)
			switch {
			case seen[address] || errors.Is(err, fs.ErrNotExist):
			case err != nil:
				seen[address] = true
				findings = append(findings, f.unknown(hcaDevice(l.hca), err))
			default:
				seen[address] = true
				if on := acsNames(config.ACS); on != "" {
					bad = append(bad, address+" ("+on+")")
				}
			}
		}
		if len(bad) > 0 {
			findings = append(findings, f.finding(hcaDevice(l.hca), Finding{Code: "ib.pcie.acs", Severity: severity, Remedy: FixConfig, Want: "off", Got: strings.Join(bad, ", ")},
				"ACS redirects traffic to GPUs over the root port"))
		}
	}
	return findings
}

// acsBridges are the bridges that traffic between an adapter and the GPUs near it
// passes: those below the last that they have in common. A GPU that is joined
// otherwise, or below another root port, has none. all is every one up to the root
// port, of the adapter and of GPUs below the same.
func (f *fabric) acsBridges(l *ibLink, all bool) (bridges []string) {
	if all {
		bridges = slices.Clone(l.Path)
	}
	ids, err := f.env.Host.GPUIDs()
	if err != nil {
		return bridges // the checks of GPUs report it
	}
	for _, id := range ids {
		path := f.env.Host.PCIDevice(id.Address).Path
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

func acsNames(flags probe.ACSFlags) string {
	var names []string
	for _, r := range redirects {
		if flags&r.bit != 0 {
			names = append(names, r.name)
		}
	}
	return strings.Join(names, " ")
}
