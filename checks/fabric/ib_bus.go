package fabric

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// The adapters on the PCI bus, whether or not an RDMA driver uses them.

const lackingDo = "The adapter is present and its RDMA driver does not use it: see dmesg | grep ADDRESS (firmware that does not start, health errors), and lsmod for mlx5_ib (Omni-Path: hfi1, Broadcom: bnxt_re, Intel: irdma). Power the node off for a minute and boot it. If the fault remains reseat or replace the adapter."

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

// listBusHCAs returns the adapters on the PCI bus that belong to the node.
func listBusHCAs(env *checks.Env) (list []pci.Function, err error) {
	addresses, err := network.PCIAddress(env.Host)
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
