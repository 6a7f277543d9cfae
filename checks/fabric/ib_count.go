package fabric

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// ibCount counts the RDMA devices that carry jobs' traffic, up or down, without virtual
// functions. Fewer than COUNT fail, more only warn, and so does an adapter on the PCI bus that is
// not an RDMA device beside COUNT others. Without COUNT every InfiniBand adapter on the
// PCI bus has to be an RDMA device, and so has an Ethernet adapter if most of its kind are; and
// it warns if a few ports of the platform are missing. In the first five minutes after a boot it
// skips instead, except before a job. -m MODEL counts the devices of one kind instead, whatever
// their role: MODEL is a glob for the model's name (ConnectX-7), the type, the board id or the
// PCI id.
//
//	gpu* || check_ib_count 8
//	gpu* || check_ib_count -m 'BlueField-3*' 2
type ibCount struct {
	Count int    `arg:"1" toml:"count" in:"0:256"` // expected number; 0: not compared
	Model string `opt:"m" toml:"model"`            // count only this model: ConnectX-7, MT4129, MT_0000000838, 15b3:1021
}

const ibCountName = "check_ib_count"

func init() {
	checks.Register(checks.Info{
		Name:    ibCountName,
		Usage:   "[-m MODEL] [COUNT]",
		Summary: "all expected RDMA devices are present",
		Lane:    checks.Local,
		New:     func() checks.Check { return &ibCount{} },
		Do: func() map[string]string {
			return map[string]string{
				"ib.lacking":        lackingDo,
				"ib.count":          "The message lists the devices found. If this number is expected, set it: check_ib_count N. Otherwise see lspci and dmesg for the missing device; if a minute without power does not bring it back, reseat or replace the adapter.",
				"ib.count.platform": "Nodes of this platform have more ports. If this node was built with fewer, set the number: check_ib_count N. Otherwise see lspci and dmesg.",
			}
		},
	})
}

func (c *ibCount) Run(_ context.Context, env *checks.Env) []checks.Finding {
	f, none := askPorts(env, ibCountName)
	if f == nil {
		return none
	}
	findings := f.reportUnread(nil)
	wasUp := func(p *Port) bool {
		past := portsRun{Fabric: f, past: env.RecallHistory(ibCountName, ibPortsPast)} // check_ib_ports reports its findings
		now, before := past.wasUp(p)
		return now || before || slices.ContainsFunc(p.NetDevs, func(dev string) bool { return network.WasUp(env.Host, dev) })
	}
	var names []string
	for i := range f.HCAs {
		if a := &f.HCAs[i]; c.counts(f, a, wasUp) {
			names = append(names, a.Name)
		}
	}
	env.Fact("%s", checks.Plural(len(names), "adapter"))
	lacking, err := f.Lacking()
	if err != nil {
		findings = append(findings, checks.Unreadable(err)...)
	}
	if c.Count > 0 {
		return f.Settle(c.judge(f, names, lacking, findings), "ib.count", "ib.lacking")
	}
	if c.Model == "" {
		for i := range lacking {
			findings = append(findings, f.reportLacking(&lacking[i]))
		}
		if len(lacking) == 0 {
			findings = append(findings, c.platform(f)...)
		}
	}
	if len(f.HCAs) == 0 && len(findings) == 0 {
		return none
	}
	return f.Settle(findings, "ib.lacking", "ib.count.platform")
}

// counts reports whether to count a device. The second port of a front-end card counts while it is down if it
// was up earlier.
func (c *ibCount) counts(f *Fabric, a *rdma.HCA, wasUp func(*Port) bool) bool {
	if a.VF || a.PCI == "" {
		return false
	}
	if c.Model == "" {
		return slices.ContainsFunc(f.Ports, func(p Port) bool { return p.HCA == a && (p.Left == "" || p.Left == spareLeft && wasUp(&p)) })
	}
	return c.isModel(a.Vendor, a.Model, a.Board, a.Type)
}

// isModel reports whether an adapter is of the model on the line.
func (c *ibCount) isModel(vendor, device, board, kind string) bool {
	names := []string{kind, board, vendor + ":" + device}
	if m := ModelOf(vendor, device, board); m != nil {
		names = append(names, m.Name)
	}
	return c.Model == "" || slices.ContainsFunc(names, func(name string) bool { return match.Glob(name, c.Model) })
}

// judge compares with COUNT. An unreadable device can be one of the missing ones: then the number
// is not judged.
func (c *ibCount) judge(f *Fabric, names []string, lacking []pci.Function, findings []checks.Finding) []checks.Finding {
	of := checks.Finding{Code: "ib.count", Severity: checks.Fail, Remedy: countRemedy(f.env, len(names)), Device: checks.Device{Kind: "hcas"}, Want: fmt.Sprint(c.Count), Got: fmt.Sprint(len(names))}
	switch {
	case len(names) == c.Count: // one may be a stranger
		for i := range lacking {
			if d := &lacking[i]; c.isModel(d.Vendor, d.Device, "", "") {
				x := f.reportLacking(d)
				x.Severity = checks.Warn
				findings = append(findings, x)
			}
		}
		return findings
	case len(names) < c.Count && len(names)+len(f.reportUnread(nil)) >= c.Count:
		return findings
	case len(names) > c.Count:
		of.Severity, of.Remedy = checks.Warn, checks.FixConfig
	case len(names) == 0 && c.Model != "" && len(f.HCAs) > 0: // the node has another model
		of.Remedy = checks.FixConfig
	}
	var on []string
	for i := range lacking {
		on = append(on, lacking[i].Address)
	}
	return append(findings, of.Phrase(ibCountName, "%s%s%s%s", checks.Plural(len(names), "RDMA device"), checks.Before(" (", strings.Join(names, " "), ")"), checks.Before(", want ", of.Want, ""), checks.Before("; on the PCI bus without one: ", strings.Join(on, ", "), "")))
}

// platform warns if a few ports of the platform are missing. AWS's EFA is counted differently.
func (c *ibCount) platform(f *Fabric) []checks.Finding {
	platform, _ := checks.NodePlatform(f.env)
	ports := map[string]bool{}
	for i := range f.Ports {
		p := &f.Ports[i]
		if p.Left != "" {
			continue
		}
		if m := ModelOf(p.HCA.Vendor, p.HCA.Model, p.HCA.Board); m != nil && m.Module == "efa" {
			return nil
		}
		ports[planeOrPort(p)] = true
	}
	if len(ports) == 0 || !platform.PortsMissing(len(ports)) {
		return nil
	}
	want, got := fmt.Sprint(platform.NetworkPorts), fmt.Sprint(len(ports))
	return []checks.Finding{checks.Finding{Code: "ib.count.platform", Severity: checks.Warn, Device: checks.Device{Kind: "hcas"}, Want: want, Got: got}.
		Phrase(ibCountName, "%s, want %s of %s", checks.Plural(len(ports), "port"), want, platform.Name)}
}
