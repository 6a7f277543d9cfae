// Package pcie has the checks of PCIe devices of any class, and judges links for other families.
package pcie

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// pcieCheck checks devices of any class on the PCI bus: that they answer, and that
// their links have the width and the speed that device and slot have together, or
// at least WIDTH lanes and SPEED. A DEVICE is gpu, nvswitch, network, ethernet,
// infiniband, nvme, bridge, the digits of a class (0302), an id (15b3:1021, 15b3:*)
// or an address (0000:c1:00.0, 0000:c?:*); without one it is about GPUs, NVSwitches,
// network adapters and NVMe disks. With -n there are COUNT of them, functions of one
// card counted each: fewer fail, more are warned of. Virtual functions are left out
// unless their id or address is named.
//
// Where the kernel shows no slot, as in a virtual machine, a link is compared with the
// others of its kind alone.
// Where all of a kind, by id, have the same lower width or speed it warns: a BIOS
// or a riser does that. So it does of a slot that is less than those of two others
// of the kind. An idle GPU lowers its speed: of GPUs is judged what GPU and slot
// can do, and check_gpu_pcie has the rest.
//
//	gpu* || check_pcie
//	gpu* || check_pcie -n 8 -w 16 -s 5 infiniband
//	gpu* || check_pcie -n 8 -w 4 nvme
type pcieCheck struct {
	Count   int      `opt:"n" toml:"count"`   // how many there are
	Width   int      `opt:"w" toml:"width"`   // fewest lanes in use
	Speed   string   `opt:"s" toml:"speed"`   // lowest generation (5), or speed in GT/s (32)
	Devices []string `arg:"*" toml:"devices"` // which; none: GPUs, NVSwitches, network adapters, NVMe disks
}

const pcieName = "check_pcie"

const doPCIeError = "One device could not be read: see the file that is named, as root, and dmesg. The others were judged."

func init() {
	const reseat = "Compare with the others of its kind (lspci -vv, LnkCap and LnkSta). Reseat the card, riser or cable; if it stays the device or the slot is bad. "
	checks.Register(checks.Info{
		Name:    pcieName,
		Usage:   "[-n COUNT] [-w WIDTH] [-s SPEED] [DEVICE...]",
		Summary: "devices of the PCI bus are there, with full links",
		Lane:    checks.Local,
		New:     func() checks.Check { return &pcieCheck{} },
		Do: func() map[string]string {
			return map[string]string{
				"pcie.none":    "Nothing: the node has no such device. If it should have some give their number: check_pcie -n N.",
				"pcie.count":   "Compare lspci with a healthy node and see dmesg: a device is gone, or its slot is off. If the node has fewer or more correct the number.",
				"pcie.missing": "See lspci and dmesg: the device is gone, or a change of hardware gave it another address.",
				"pcie.gone":    "The device does not answer on the bus. Take the power off and on again (a reboot may not do); if it comes back reseat it, then replace it. See dmesg for AER and hotplug lines.",
				"pcie.width":   reseat + "If it was meant give the number with -w.",
				"pcie.speed":   reseat + "If the BIOS limits the slot give the generation with -s.",
				"pcie.slot":    "Compare the slot with those of the others: the BIOS may split it or limit it, the card may be in the wrong one.",
				"pcie.error":   doPCIeError,
			}
		},
	})
}

func (c *pcieCheck) Run(_ context.Context, env *checks.Env) []checks.Finding {
	want, findings := Wanted(pcieName, c.Width, c.Speed)
	if findings != nil {
		return findings
	}
	words := c.Devices
	if len(words) == 0 {
		words = pcieUsual
	}
	chosen, missing, findings := pcieChosen(env, pcieName, words)
	unread := len(findings)
	for _, w := range missing {
		if w.address != "" && !strings.ContainsAny(w.address, "*?[") && c.Count == 0 {
			findings = append(findings, checks.Finding{Code: "pcie.missing", Severity: checks.Fail, Remedy: checks.ReseatOrRMA}.
				Report(pcieName, checks.Device{Kind: "pci", PCI: w.address}, "no such device on the bus"))
		}
	}
	switch {
	case findings == nil && len(chosen) == 0 && c.Count == 0:
		return []checks.Finding{checks.Finding{Code: "pcie.none", Severity: checks.Skip}.Describe(pcieName, "no such device on this node: %s", strings.Join(words, " "))}
	case c.Count > len(chosen) && c.Count <= len(chosen)+unread: // those may be the ones
	case c.Count > 0 && len(chosen) != c.Count:
		findings = append(findings, c.miscount(words, len(chosen)))
	}
	env.Fact("%s", checks.Plural(len(chosen), "device"))
	return append(findings, c.judge(env, want, chosen)...)
}

func (c *pcieCheck) miscount(words []string, got int) checks.Finding {
	f := checks.Finding{Code: "pcie.count", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: fmt.Sprint(c.Count), Got: fmt.Sprint(got)}
	if got > c.Count {
		f.Severity, f.Remedy = checks.Warn, checks.FixConfig
	}
	return f.Describe(pcieName, "devices on the PCI bus (%s)", strings.Join(words, " "))
}

func (c *pcieCheck) judge(env *checks.Env, want Want, chosen []pci.Entry) (findings []checks.Finding) {
	var links []*Link
	for _, d := range chosen {
		l := ReadLink(env, d.Address)
		gone, err := pcieGone(env, d.Address)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		err = errors.Join(l.Err, err)
		switch {
		case gone:
			findings = append(findings, checks.Finding{Code: "pcie.gone", Severity: checks.Fail, Remedy: checks.RebootNode}.
				Report(pcieName, DeviceOf(env, l), "does not answer: every register reads as ones"))
			continue
		case err != nil:
			findings = append(findings, pcieUnknown(pcieName, DeviceOf(env, l), err))
		case !l.Told() && c.asks() && !l.VF:
			findings = append(findings, pcieUnknown(pcieName, DeviceOf(env, l), errors.New("its link tells no width or speed")))
		}
		links = append(links, l)
	}
	for i, faults := range Judge(links, want) {
		for _, f := range faults {
			findings = append(findings, f.Finding(pcieName, "pcie."+f.What, DeviceOf(env, links[i])))
		}
	}
	return findings
}

// asks says whether the line has figures of links.
func (c *pcieCheck) asks() bool { return c.Width > 0 || c.Speed != "" }
