package fabric

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// The verdicts on the rates of ports: by the line, by their history, by the other ports, by the
// platform.

// gbits formats a rate.
func gbits(rate float64) string { return fmt.Sprintf("%g Gb/s", rate) }

// rateOf formats the rate of a port, with its lanes: 200 Gb/s (2X NDR).
func rateOf(p *Port) string { return gbits(p.Gbps()) + checks.Before(" (", p.Lanes, ")") }

// rate judges the rate of a port that is up.
func (r *portsRun) rate(p *Port) {
	got := p.Gbps()
	if got == 0 {
		if p.Err == nil {
			r.findings = append(r.findings, r.Unknown(p.Subject(), fmt.Errorf("rate %q: not a rate", p.Rate)))
		}
		return
	}
	f := checks.Finding{Code: "ib.ports.rate", Severity: checks.Fail, Remedy: checks.CheckCable, Got: rateOf(p)}
	if r.c.Rate > 0 {
		if got < r.c.Rate {
			f.Want = "at least " + gbits(r.c.Rate)
			r.report(p, f, "rate")
		}
		return
	}
	if was := r.findFastest(p); float64(was) > got {
		f.Want, r.slow[p] = gbits(float64(was)), true
		r.report(p, f, "rate is lower than earlier in this boot")
		return
	}
	if most, alone, found := r.others(p); found {
		if !alone {
			f.Severity = checks.Warn
		}
		f.Want, r.slow[p] = gbits(most), true
		r.report(p, f, "rate is lower than on the other ports")
	}
}

// others returns the rate of most ports of the kind, if this one is slower, and whether it is the
// only slower one. If the other devices are already as many as the platform's ports, this one is
// an extra port, such as for storage, and may be slower; one whose rate is unknown counts among
// them. On an unknown platform a port with all of its lanes counts as an extra one.
func (r *portsRun) others(p *Port) (most float64, alone, slower bool) {
	count, all := map[float64]int{}, 0
	fast := map[float64]map[string]bool{} // other devices, by rate
	wide := map[float64]string{}          // lanes
	maybe := map[string]bool{}            // other devices of unknown rate
	for i := range r.HCAs {
		if a := &r.HCAs[i]; isUnread(a) && mayBeLike(a, p) {
			maybe[a.Name] = true
		}
	}
	for i := range r.Ports {
		q := &r.Ports[i]
		if q.Left != "" && q.Name() != p.Name() || !mayBeLike(q.HCA, p) || q.Layer != "" && q.Layer != p.Layer {
			continue
		}
		if portKind(q) != portKind(p) || !checks.PortActive(q.IBPort) || q.Gbps() == 0 {
			if q.Device != p.Device && (portKind(q) != portKind(p) || r.mayBeFast(q)) {
				maybe[q.Device] = true
			}
			continue
		}
		count[q.Gbps()]++
		all++
		wide[q.Gbps()], _, _ = strings.Cut(q.Lanes, " ")
		if fast[q.Gbps()] == nil {
			fast[q.Gbps()] = map[string]bool{}
		}
		if q.Device != p.Device {
			fast[q.Gbps()][q.Device] = true
		}
	}
	for rate, n := range count {
		if n*2 > all {
			most = rate
		}
	}
	if p.Gbps() >= most {
		return 0, false, false
	}
	platform, _ := checks.NodePlatform(r.env)
	lanes, _, _ := strings.Cut(p.Lanes, " ")
	maps.Copy(fast[most], maybe)
	extra := len(fast[most]) >= platform.NetworkPorts
	if platform.NetworkPorts == 0 {
		extra = lanes != "" && lanes == wide[most]
	}
	return most, !extra && all > 2 && count[most] == all-1, true
}

// mayBeFast reports whether a port without a known rate may have that of the others: it could not be read, is
// starting after a boot, or no port of its card is up and it should be. A port that is down beside one that is up
// need not be cabled.
func (r *portsRun) mayBeFast(p *Port) bool {
	switch {
	case checks.PortActive(p.IBPort), p.Gbps() == 0:
		return p.Gbps() == 0
	case p.Err != nil, r.isStarting(p):
		return true
	}
	is, judged := r.fates[p]
	return (!judged || is.severity != checks.OK) &&
		!slices.ContainsFunc(r.Ports, func(q Port) bool { return card(q.PCI) == card(p.PCI) && checks.PortActive(q.IBPort) })
}

// judgePlatformRate warns of ports that are slower than the platform's, if their adapters support
// more: once for all, if all are slower. Ports of unknown rate may be as fast as the platform's. A
// card can divide the rate of one port of the platform among several.
func (r *portsRun) judgePlatformRate() {
	platform, _ := checks.NodePlatform(r.env)
	if platform.NetworkRate == 0 || r.c.Rate > 0 || len(r.c.Devices) > 0 {
		return
	}
	want := float64(platform.NetworkRate)
	fast, maybe, slow := map[string]bool{}, map[string]bool{}, []*Port{}
	whole := map[string]float64{} // rates of ports, of devices with planes, and of cards
	for _, p := range r.ports {
		whole[p.Name()] += p.Gbps()
		if p.Plane > 0 {
			whole[p.Device] += p.Gbps()
		}
		if checks.PortActive(p.IBPort) {
			whole[card(p.PCI)] += p.Gbps()
		}
	}
	for _, p := range r.ports {
		m := ModelOf(p.HCA.Vendor, p.HCA.Model, p.HCA.Board)
		if m == nil || float64(m.Rate) < want {
			continue
		}
		if r.mayBeFast(p) {
			maybe[planeOrPort(p)] = true
		}
		if p.Plane > 1 || !r.isWhole(p) {
			continue
		}
		switch name := planeOrPort(p); {
		case whole[name] >= want:
			fast[name] = true
		case whole[card(p.PCI)] >= want:
			fast[card(p.PCI)] = true
		case !r.slow[p]:
			slow = append(slow, p)
		}
	}
	for i := range r.HCAs {
		a := &r.HCAs[i]
		if m := ModelOf(a.Vendor, a.Model, a.Board); isUnread(a) && (m == nil || float64(m.Rate) >= want) {
			maybe[a.Name] = true
		}
	}
	if len(slow) == 0 || platform.NetworkPorts > 0 && len(fast)+len(maybe) >= platform.NetworkPorts {
		return
	}
	f := checks.Finding{Code: "ib.ports.platform", Severity: checks.Warn, Want: gbits(want)}
	if len(fast) == 0 && len(slow) > 1 {
		var names []string
		for _, p := range slow {
			names = append(names, planeOrPort(p))
		}
		f.Device, f.Got = checks.Device{Kind: "ports"}, gbits(whole[planeOrPort(slow[0])])
		f = f.Describe(ibPortsName, "no port has the rate of %s", platform.Name)
		f.Message += ": " + strings.Join(names, " ")
		r.findings = append(r.findings, f)
		return
	}
	for _, p := range slow {
		f.Got = gbits(whole[planeOrPort(p)])
		r.findings = append(r.findings, f.Report(r.Check, p.Subject(), "rate is lower than on %s", platform.Name))
	}
}

// planeOrPort returns the unit with a rate of its own: a port, or the planes of a device.
func planeOrPort(p *Port) string {
	if p.Plane > 0 {
		return p.Device
	}
	return p.Name()
}

// isWhole reports whether a port is up, with all planes of its device.
func (r *portsRun) isWhole(p *Port) bool {
	for _, q := range r.ports {
		if planeOrPort(q) == planeOrPort(p) && (!checks.PortActive(q.IBPort) || q.Gbps() == 0 || r.slow[q]) {
			return false
		}
	}
	return true
}

// PortRates returns the rates that ports can have, in Gb/s, sorted: a speed times a width. The
// kernel writes every port so, with the nearest pair for Ethernet: Linux, include/rdma/ib_verbs.h
// and rate_show of drivers/infiniband/core/sysfs.c.
func PortRates() []float64 {
	var rates []float64
	for _, lane := range []float64{2.5, 5, 10, 14, 25, 50, 100, 200} { // SDR to XDR
		for _, lanes := range []float64{1, 2, 4, 8, 12} {
			rates = append(rates, lane*lanes)
		}
	}
	slices.Sort(rates)
	return slices.Compact(rates)
}
