package fabric

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// Faults of adapters with good ports: programs cannot open them, two have the same GUID, all
// became slower in a reboot; and adapters without a port.

// listAdapters returns the adapters of the judged ports.
func (r *portsRun) listAdapters() (list []*rdma.HCA) {
	for _, p := range r.ports {
		if !slices.Contains(list, p.HCA) {
			list = append(list, p.HCA)
		}
	}
	return list
}

// judgeAdapters judges the adapters apart from their ports.
func (r *portsRun) judgeAdapters() {
	r.judgePortless()
	r.judgeVerbs()
	r.judgeGUIDs()
}

// judgePortless fails adapters without a port if other adapters of the model have ports; it warns if
// there is no other.
func (r *portsRun) judgePortless() {
	if len(r.c.Devices) > 0 { // a named adapter without a port is reported already
		return
	}
	for i := range r.HCAs {
		a := &r.HCAs[i]
		if a.Err != nil || a.VF || a.PCI == "" || len(a.Ports) > 0 {
			continue
		}
		f := checks.Finding{Code: "ib.ports.none", Severity: checks.Warn, Remedy: checks.RebootNode}
		if slices.ContainsFunc(r.ports, func(p *Port) bool { return p.HCA.Vendor == a.Vendor && p.HCA.Model == a.Model }) {
			f.Severity = checks.Fail
		}
		r.findings = append(r.findings, f.Report(r.Check, HCADevice(a), "adapter without a port"))
	}
}

// judgeVerbs fails adapters that no program can open: the kernel has uverbs devices of others but not
// of this one, or /dev/infiniband lacks its node. A recorded node can be without /dev.
func (r *portsRun) judgeVerbs() {
	r.env.At("read /sys/class/infiniband_verbs")
	devices, err := rdma.Verbs(r.env.Host)
	if err != nil || len(devices) == 0 {
		return // check_ib_modules judges the module
	}
	for _, a := range r.listAdapters() {
		f := checks.Finding{Code: "ib.ports.uverbs", Severity: checks.Fail, Remedy: checks.RebootNode}
		name := devices[a.Name]
		if name == "" {
			r.findings = append(r.findings, f.Report(r.Check, HCADevice(a), "no uverbs device, programs cannot use it"))
		} else if missing, path := rdma.VerbsNodeMissing(r.env.Host, name); missing {
			r.findings = append(r.findings, f.Report(r.Check, HCADevice(a), "%s is missing, programs cannot use it", path))
		}
	}
}

// judgeGUIDs reports adapters with the same GUID. Functions of one card, virtual functions, and
// the two halves of a card for two sockets can share it: their boards have one serial number. It
// fails if the serial numbers show two InfiniBand boards.
func (r *portsRun) judgeGUIDs() {
	first := map[string]*rdma.HCA{}
	for _, p := range r.ports {
		a := p.HCA
		if m := ModelOf(a.Vendor, a.Model, a.Board); a.VF || a.PCI == "" || layerOf(p) == layerEFA || m != nil && m.Virtual || strings.Trim(a.GUID, "0:") == "" {
			continue
		}
		b := first[a.GUID]
		if b == nil {
			first[a.GUID] = a
			continue
		}
		if a == b || card(a.PCI) == card(b.PCI) {
			continue
		}
		r.env.At("read /sys/bus/pci/devices/%s/vpd", a.PCI)
		mine, other := pci.BoardSerial(r.env.Host, a.PCI), pci.BoardSerial(r.env.Host, b.PCI)
		if mine != "" && mine == other {
			continue
		}
		f := checks.Finding{Code: "ib.ports.guid", Severity: checks.Warn, Remedy: checks.FixConfig}
		if mine != "" && other != "" && layerOf(p) == layerIB {
			f.Severity = checks.Fail
		}
		r.findings = append(r.findings, f.Report(r.Check, HCADevice(a), "same GUID %s as %s", a.GUID, HCADevice(b)))
	}
}

// rateMark is the prefix of marks that a port was up at a rate: its number and the rate follow.
const rateMark = "rate "

// findFastestBefore returns the highest rate of a port within a month, in any boot, unless an
// operator has acknowledged the loss.
func (r *portsRun) findFastestBefore(p *Port) (rate float64) {
	name := pastName(p.HCA, p.Layer)
	d := r.past.File.Devices[name]
	if d == nil {
		return 0
	}
	for kind := range d.Marks {
		text, ok := strings.CutPrefix(kind, rateMark+p.Port+" ")
		if n, err := strconv.ParseFloat(text, 64); ok && err == nil && len(r.past.Marks(name, kind, checks.HistoryAge)) > 0 {
			rate = max(rate, n)
		}
	}
	return rate
}

// reportSlower warns of ports that became slower in a reboot, once for all if all did. Ports that are
// slower than others, or than earlier in this boot, are reported already.
func (r *portsRun) reportSlower() {
	if r.c.Rate > 0 {
		return
	}
	r.applyClears()
	var slow []*Port
	up := 0
	for _, p := range r.ports {
		if !checks.PortActive(p.IBPort) || p.Gbps() == 0 {
			continue
		}
		up++
		if r.findFastestBefore(p) > p.Gbps() && !r.slow[p] {
			slow = append(slow, p)
		}
	}
	f := checks.Finding{Code: "ib.ports.slower", Severity: checks.Warn, Remedy: checks.CheckFabric}
	for _, p := range slow {
		r.slow[p] = true
	}
	if len(slow) > 1 && len(slow) == up {
		f.Device, f.Want, f.Got = checks.Device{Kind: "ports"}, gbits(r.findFastestBefore(slow[0])), rateOf(slow[0])
		var names []string
		for _, p := range slow {
			names = append(names, p.Name())
		}
		f = f.Describe(ibPortsName, "all ports are slower than before the reboot")
		f.Message += ": " + strings.Join(names, " ")
		r.findings = append(r.findings, f)
		return
	}
	for _, p := range slow {
		f.Want, f.Got = gbits(r.findFastestBefore(p)), rateOf(p)
		r.report(p, f, "rate is lower than before the reboot")
	}
}

// applyClears removes acknowledged rates from the history: nhc-gpu clear --ib.
func (r *portsRun) applyClears() {
	list, err := readIBClears(r.env)
	if err != nil {
		return // check_ib_errors reports it
	}
	for _, p := range r.ports {
		d := r.pastOf(p)
		if d == nil {
			continue
		}
		for kind := range d.Marks {
			if !strings.HasPrefix(kind, rateMark+p.Port+" ") {
				continue
			}
			d.Marks[kind] = slices.DeleteFunc(d.Marks[kind], func(at int64) bool {
				return slices.ContainsFunc(list, func(c ibClear) bool { return c.covers(p.Name()) && c.At >= at && c.At <= r.past.Now.Unix() })
			})
			if len(d.Marks[kind]) == 0 {
				delete(d.Marks, kind)
			}
		}
	}
}

// markRate records the rate of a port that is up, once a day.
func (r *portsRun) markRate(name string, p *Port) {
	if kind := rateMark + p.Port + " " + strconv.FormatFloat(p.Gbps(), 'g', -1, 64); p.Gbps() > 0 && len(r.past.Marks(name, kind, 24*time.Hour)) == 0 {
		r.past.Mark(name, kind, r.past.Now)
	}
}
