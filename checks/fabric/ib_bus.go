package fabric

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// The adapters on the PCI bus, whether or not an RDMA driver uses them, and those that are missing.

const lackingDo = "The adapter is present and its RDMA driver does not use it: see dmesg | grep ADDRESS (firmware that does not start, health errors), and lsmod for mlx5_ib (Omni-Path: hfi1, Broadcom: bnxt_re, Intel: irdma). If a minute without power does not help, reseat or replace the adapter."

// GivenAway are the drivers of devices that belong to a virtual machine or to a program, and not
// to the node.
var GivenAway = []string{"vfio-pci", "pci-stub", "xen-pciback", "uio_pci_generic", "igb_uio"}

// classIB is the PCI class of InfiniBand controllers.
const classIB = "0207"

// ibOnBus reports whether a device is an adapter for InfiniBand or Omni-Path. The PCI class of
// Omni-Path is a fabric controller.
func ibOnBus(d *pci.Function) bool {
	m := ModelOf(d.Vendor, d.Device, "")
	return strings.HasPrefix(d.Class, classIB) || m != nil && m.Module == "hfi1"
}

// listBusHCAs returns the adapters on the PCI bus that belong to the node. err also names each device that may be one:
// its class cannot be read, and no RDMA device uses it.
func listBusHCAs(env *checks.Env) (list []pci.Function, err error) {
	addresses, err := network.PCIAddress(env.Host)
	entries, _ := pci.List(env.Host) // the same error
	hcas, _ := rdma.HCAs(env.Host, env.Doing)
	for _, e := range entries {
		if e.Err == nil || slices.ContainsFunc(hcas, func(a rdma.HCA) bool { return a.PCI == e.Address }) {
			continue
		}
		env.At("read /sys/bus/pci/devices/%s", e.Address)
		d := pci.ReadFunction(env.Host, e.Address)
		if !slices.Contains(GivenAway, d.Driver) && (d.Vendor == "" || ModelOf(d.Vendor, d.Device, "") != nil) {
			err = errors.Join(err, e.Err)
		}
	}
	for _, a := range addresses {
		env.At("read /sys/bus/pci/devices/%s", a)
		d := pci.ReadFunction(env.Host, a)
		if slices.Contains(GivenAway, d.Driver) {
			continue
		}
		if ibOnBus(&d) || ModelOf(d.Vendor, d.Device, "") != nil {
			list = append(list, d)
		}
	}
	return list, err
}

// Lacking returns the adapters on the PCI bus that should be an RDMA device and are not:
// InfiniBand adapters, and Ethernet adapters if most of the same kind are RDMA devices. A
// function next to an RDMA device needs most of its kind at the same place on their cards: some
// cards serve RDMA by their first function only.
func (f *Fabric) Lacking() (list []pci.Function, err error) {
	bus, err := listBusHCAs(f.env)
	isOne := map[string]bool{}
	for i := range f.HCAs {
		isOne[f.HCAs[i].PCI], isOne[card(f.HCAs[i].PCI)] = true, true
	}
	of, all := map[string]int{}, map[string]int{} // by kind
	kind := func(d *pci.Function) string { return d.Vendor + ":" + d.Device }
	place := func(d *pci.Function) string { return kind(d) + strings.TrimPrefix(d.Address, card(d.Address)) }
	for i := range bus {
		for _, k := range []string{kind(&bus[i]), place(&bus[i])} {
			all[k]++
			if isOne[bus[i].Address] {
				of[k]++
			}
		}
	}
	most := func(k string) bool { return of[k]*2 > all[k] }
	for i := range bus {
		d := &bus[i]
		switch {
		case isOne[d.Address]:
		case ibOnBus(d), most(kind(d)) && (!isOne[card(d.Address)] || most(place(d))) && !f.isTakenOver(d.Address):
			list = append(list, *d)
		}
	}
	return list, err
}

// isTakenOver reports whether an Ethernet function has no RDMA device because another one serves
// its port: that of a LAG or a bond, or one with several ports.
func (f *Fabric) isTakenOver(pci string) bool {
	master := network.NetMaster(f.env.Host, pci)
	if master != "" && network.ReadNetIf(f.env.Host, master).Bond != nil {
		return true
	}
	for i := range f.Ports {
		p := &f.Ports[i]
		if p.PCI == "" || p.PCI == pci || card(p.PCI) != card(pci) {
			continue
		}
		l := f.lagOf(p)
		if len(p.HCA.Ports) > 1 || master != "" && master == network.NetMaster(f.env.Host, p.PCI) ||
			l != nil && slices.ContainsFunc(l.members, func(m network.NetIf) bool { return m.PCI == pci }) {
			return true
		}
	}
	return false
}

// missingHCA is an adapter that the node has or had, and that has no port now.
type missingHCA struct {
	at    string           // its PCI address, or else its name
	layer string           // of one that carried jobs' traffic; else ""
	is    func(*Port) bool // whether it is, or may be, of the kind of a port
}

// listMissing returns the missing adapters of a port's kind.
func (f *Fabric) listMissing(p *Port) (list []missingHCA) {
	for _, a := range f.listAllMissing() {
		if a.is(p) {
			list = append(list, a)
		}
	}
	return list
}

// listAllMissing returns the adapters that check_ib_ports has seen within a month and that are gone, those on the
// PCI bus that should be an RDMA device, and those whose ports cannot be read.
func (f *Fabric) listAllMissing() []missingHCA {
	if f.missing != nil {
		return f.missing
	}
	list := []missingHCA{}
	add := func(a missingHCA) {
		if !slices.ContainsFunc(list, func(o missingHCA) bool { return o.at == a.at }) {
			list = append(list, a)
		}
	}
	past := f.recallPorts().File.Devices
	named := map[string]string{} // addresses
	for _, name := range slices.Sorted(maps.Keys(past)) {
		words := strings.Fields(name)
		if len(words) != 4 {
			continue
		}
		here := slices.ContainsFunc(f.HCAs, func(a rdma.HCA) bool {
			return !isUnread(&a) && (a.PCI == words[1] || words[2] != "-" && a.GUID == words[2])
		})
		if here || slices.Contains(GivenAway, pci.ReadFunction(f.env.Host, words[1]).Driver) || words[3] == LayerEth && f.isTakenOver(words[1]) {
			continue
		}
		named[words[0]] = words[1]
		kind := past[name].Kind
		add(missingHCA{words[1], words[3], func(p *Port) bool { return portKind(p) == kind }})
	}
	lacking, _ := f.Lacking() // its errors are reported by check_ib_ports and check_ib_count
	for i := range lacking {
		d := &lacking[i]
		add(missingHCA{d.Address, "", func(p *Port) bool {
			return d.Vendor == p.HCA.Vendor && d.Device == p.HCA.Model && ibOnBus(d) == (p.Layer == layerIB)
		}})
	}
	for i := range f.HCAs {
		if a := &f.HCAs[i]; isUnread(a) {
			add(missingHCA{cmp.Or(a.PCI, named[a.Name], a.Name), "", func(p *Port) bool { return mayBeLike(a, p) }})
		}
	}
	f.missing = list
	return list
}

// isUnread reports whether the ports of a device could not be read.
func isUnread(a *rdma.HCA) bool { return a.Err != nil && len(a.Ports) == 0 }

// mayBeLike reports whether an adapter is of the same board as a port's, as far as it could be read.
func mayBeLike(a *rdma.HCA, p *Port) bool {
	same := func(a, b string) bool { return a == b || a == "" || b == "" }
	return !a.VF && same(a.Vendor, p.HCA.Vendor) && same(a.Model, p.HCA.Model) && same(a.Board, p.HCA.Board)
}

// ibPortsPast is the name of the state file of check_ib_ports.
const ibPortsPast = "ib-ports"

// recallPorts returns the history of check_ib_ports as the earlier runs have stored it.
func (f *Fabric) recallPorts() *checks.History {
	if f.past == nil {
		f.past = f.env.RecallHistory(f.Check, ibPortsPast)
	}
	return f.past
}

// reportLacking returns the finding about an adapter that is not an RDMA device.
func (f *Fabric) reportLacking(d *pci.Function) checks.Finding {
	driver := "it has no driver"
	if d.Driver != "" {
		driver = "its driver is " + d.Driver
	}
	return checks.Finding{Code: "ib.lacking", Severity: checks.Fail, Remedy: checks.ReseatOrRMA}.Report(f.Check, checks.Device{Kind: "hca", PCI: d.Address},
		"%s is on the PCI bus, but is not an RDMA device; %s", hcaName(d), driver)
}

// hcaName returns the name of an adapter, as far as it is known.
func hcaName(d *pci.Function) string {
	if m := ModelOf(d.Vendor, d.Device, ""); m != nil {
		return m.Name
	}
	return fmt.Sprintf("the InfiniBand adapter %s:%s", d.Vendor, d.Device)
}

// askPorts is [Ask] for checks that continue on a node without any RDMA device: its PCI bus can
// have adapters, or the line can name one.
func askPorts(env *checks.Env, check string) (*Fabric, []checks.Finding) {
	f, findings := Ask(env, check)
	if f == nil && len(findings) == 1 && findings[0].Severity == checks.Skip {
		return &Fabric{Check: check, env: env}, findings
	}
	return f, findings
}
