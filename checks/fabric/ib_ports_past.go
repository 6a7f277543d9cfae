package fabric

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// The history of ports: a missing adapter, a port that was up or faster. It has an entry for each
// adapter that carries jobs' traffic, by name, address, GUID and link layer, with the rate of
// each port, 0 while it was not up.

// pastName returns the name of an adapter in the history.
func pastName(a *rdma.HCA, layer string) string {
	words := []string{a.Name, a.PCI, a.GUID, layer}
	for i, w := range words {
		if w = strings.Join(strings.Fields(w), "_"); strings.Trim(w, "0:") == "" { // a GUID of zeros is unknown
			w = "-"
		}
		words[i] = w
	}
	return strings.Join(words, " ")
}

// pastOf returns the history of a port's adapter, nil if there is none.
func (r *portsRun) pastOf(p *Port) *checks.DeviceHistory {
	return r.past.File.Devices[pastName(p.HCA, p.Layer)]
}

// findFastest returns the highest rate of a port in this boot.
func (r *portsRun) findFastest(p *Port) (rate uint64) {
	if d := r.pastOf(p); d != nil {
		for _, at := range d.Series[p.Port] {
			rate = max(rate, at.Value)
		}
	}
	return rate
}

// wasUp reports whether a port was up earlier in this boot, or before.
func (r *portsRun) wasUp(p *Port) (now, before bool) {
	return r.findFastest(p) > 0, len(r.past.Marks(pastName(p.HCA, p.Layer), upMark+p.Port, checks.HistoryAge)) > 0
}

// anyWasUp reports whether any port is known to have been up, also one that had another name or link layer then.
func (r *portsRun) anyWasUp() bool {
	for _, d := range r.past.File.Devices {
		for kind, at := range d.Marks {
			if strings.HasPrefix(kind, upMark) && len(at) > 0 {
				return true
			}
		}
		for _, series := range d.Series {
			if slices.ContainsFunc(series, func(p checks.Point) bool { return p.Value > 0 }) {
				return true
			}
		}
	}
	return false
}

// areUncabled reports whether the ports of a node are probably not cabled: a few Ethernet ports of cards with several
// ports, beside a front end that works, on a platform without a number of ports. None of them has been up. A port or
// a history that cannot be read may have been up. Before a job a port that is not up yet may be cabled.
func (r *portsRun) areUncabled(ports []*Port) bool {
	platform, _ := checks.NodePlatform(r.env)
	_, settling := r.SinceBoot()
	switch {
	case platform.NetworkPorts > 0, settling && r.env.BeforeJob(), len(r.past.Findings) > 0, r.anyWasUp():
		return false
	case slices.ContainsFunc(r.HCAs, func(a rdma.HCA) bool { return isUnread(&a) }):
		return false
	}
	onCard, works := map[string]int{}, false
	for i := range r.Ports {
		p := &r.Ports[i]
		onCard[card(p.PCI)]++
		works = works || p.Left == frontEnd && checks.PortActive(p.IBPort)
	}
	n := 0
	for _, p := range ports {
		if p.Left == spareLeft {
			continue
		}
		if p.Layer != LayerEth || checks.PortActive(p.IBPort) || isGarbled(p.IBPort) || onCard[card(p.PCI)] < 2 ||
			slices.ContainsFunc(p.NetDevs, func(dev string) bool { return network.WasUp(r.env.Host, dev) }) {
			return false
		}
		n++
	}
	return works && n > 0 && n < manyPorts
}

// addSpares adds the second ports of front-end cards that were up earlier: those are cabled.
func (r *portsRun) addSpares() {
	for i := range r.Ports {
		p := &r.Ports[i]
		now, before := r.wasUp(p)
		if p.Left == spareLeft && (r.layer == "" || p.Layer == r.layer) && (now || before) {
			r.ports = append(r.ports, p)
		}
	}
	if len(r.ports) > 0 {
		r.findings = slices.DeleteFunc(r.findings, func(f checks.Finding) bool { return f.Code == "ib.left" })
	}
}

// upMark is the prefix of marks that a port was up: its number follows. One a day is enough.
const upMark = "up "

// remember records the states of the ports. An unreadable port keeps its last state.
func (r *portsRun) remember() {
	values, kinds := map[string]map[string]uint64{}, map[string]string{}
	for i := range r.Ports {
		p := &r.Ports[i]
		if p.Left != "" || p.PCI == "" {
			continue
		}
		name := pastName(p.HCA, p.Layer)
		kinds[name] = r.kindOf(p)
		if values[name] == nil {
			values[name] = map[string]uint64{}
		}
		switch {
		case isGarbled(p.IBPort), checks.PortActive(p.IBPort) && p.Gbps() == 0:
			if d := r.pastOf(p); d != nil && len(d.Series[p.Port]) > 0 {
				values[name][p.Port] = d.Series[p.Port][len(d.Series[p.Port])-1].Value
			}
		case checks.PortActive(p.IBPort):
			values[name][p.Port] = uint64(p.Gbps())
			r.markRate(name, p)
			if len(r.past.Marks(name, upMark+p.Port, 24*time.Hour)) == 0 {
				r.past.Mark(name, upMark+p.Port, r.past.Now)
			}
		default:
			values[name][p.Port] = 0
		}
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		r.past.Add(name, values[name])
		if d := r.past.File.Devices[name]; d != nil { // the history is not full
			d.Kind = kinds[name]
		}
	}
}

// listAbsent returns findings about adapters that the node should have: those on its PCI bus that are
// not an RDMA device, and those of its history. A line with DEVICEs has none.
func (r *portsRun) listAbsent() (findings []checks.Finding) {
	if len(r.c.Devices) > 0 {
		return nil
	}
	lacking, err := r.Lacking()
	if err != nil {
		findings = checks.Unreadable(err)
	}
	told := map[string]bool{}
	for i := range lacking {
		d := &lacking[i]
		if r.layer == LayerEth && ibOnBus(d) || r.layer == layerIB && !ibOnBus(d) {
			continue
		}
		told[d.Address] = true
		findings = append(findings, r.reportLacking(d))
	}
	for _, name := range slices.Sorted(maps.Keys(r.past.File.Devices)) {
		words := strings.Fields(name)
		if len(words) != 4 {
			delete(r.past.File.Devices, name)
			continue
		}
		if f, found := r.lost(name, words, told); found {
			findings = append(findings, f)
		}
	}
	return findings
}

// lost judges an adapter of the history: words are its name, address, GUID and layer. It drops
// adapters that were only moved, renamed or passed to a virtual machine.
func (r *portsRun) lost(name string, words []string, told map[string]bool) (f checks.Finding, found bool) {
	device := checks.Device{Kind: "hca", Name: words[0], PCI: words[1], UUID: words[2]}
	if words[2] == "-" {
		device.UUID = ""
	}
	if slices.ContainsFunc(r.Ports, func(p Port) bool { return pastName(p.HCA, p.Layer) == name }) {
		return checks.Finding{}, false
	}
	for i := range r.Ports {
		p := &r.Ports[i]
		switch {
		case p.PCI != words[1] && (words[2] == "-" || p.HCA.GUID != words[2]):
		case p.Err != nil || p.HCA.Err != nil: // its name in the history may lack what could not be read
			return checks.Finding{}, false
		case p.Layer != words[3] && words[3] != "-" && p.Layer != "" && p.Left != "" && (r.layer == "" || r.layer == words[3]):
			return checks.Finding{Code: "ib.ports.layer", Severity: checks.Warn, Remedy: checks.FixConfig, Want: words[3], Got: p.Layer}.
				Report(r.Check, device, "link layer has changed"), true
		default:
			delete(r.past.File.Devices, name)
			return checks.Finding{}, false
		}
	}
	if slices.ContainsFunc(r.HCAs, func(a rdma.HCA) bool { return a.PCI == words[1] }) || words[3] == LayerEth && r.isTakenOver(words[1]) {
		return checks.Finding{}, false
	}
	d := pci.ReadFunction(r.env.Host, words[1])
	if slices.Contains(GivenAway, d.Driver) {
		delete(r.past.File.Devices, name)
		return checks.Finding{}, false
	}
	if told[words[1]] || r.layer != "" && r.layer != words[3] {
		return checks.Finding{}, false
	}
	where := "not on the PCI bus"
	if d.Class != "" {
		where = "still on the PCI bus"
	}
	f = checks.Finding{Code: "ib.ports.gone", Severity: checks.Warn, Remedy: checks.PowerCycle}
	when := "before the last boot"
	if r.past.File.Devices[name].Series != nil {
		f.Severity, when = checks.Fail, "earlier in this boot"
	}
	return f.Report(r.Check, device, "RDMA device is missing, present %s; %s", when, where), true
}
