// Package pcie contains the checks of PCIe devices of any class, and judges links for other families.
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

// pcieCheck checks devices of any class on the PCI bus: they must answer, and their links must have
// the width and the speed that both the device and the slot support, or at least WIDTH lanes and
// SPEED.
//
// DEVICE is gpu, nvswitch, network, ethernet, infiniband, nvme, bridge, the digits of a class
// (0302), an id (15b3:1021, 15b3:*) or an address (0000:c1:00.0, 0000:c?:*). Without DEVICE the
// check judges GPUs, NVSwitches, network adapters and NVMe disks. Virtual functions are skipped
// unless their id or address is given. With -n there must be COUNT devices, where each function of a
// card counts: fewer fail, more warn.
//
// A link with less than both its ends support fails if most devices of its kind (with the same id)
// have more, or if it had more in an earlier run. Otherwise the check only warns, since the BIOS, a
// riser or a backplane can cause that. It also warns if a slot has less than two other slots of the
// kind. Where the kernel shows no slot, as in a virtual machine, a link is compared only with others
// of its kind. An idle GPU lowers its speed: of GPUs the check judges the speed that the GPU and the
// slot support, and check_gpu_pcie judges the current speed.
//
//	gpu* || check_pcie
//	gpu* || check_pcie -n 8 -w 16 -s 5 infiniband
//	gpu* || check_pcie -n 8 -w 4 nvme
type pcieCheck struct {
	Count   int      `opt:"n" toml:"count" in:"0:4096"`   // number of devices; 0: any number
	Width   int      `opt:"w" toml:"width" in:"1:32 min"` // lowest number of lanes in use; 0: all that the device and the slot support
	Speed   string   `opt:"s" toml:"speed"`               // lowest generation (5), or lowest speed in GT/s (32); none: what the device and the slot support
	Devices []string `arg:"*" toml:"devices"`             // devices to check; none: GPUs, NVSwitches, network adapters, NVMe disks
}

const pcieName = "check_pcie"

const doPCIeError = "One device could not be read: look at the file in the message, as root, and at dmesg. The check has judged the other devices."

func init() {
	const reseat = "Compare with other devices of its kind (lspci -vv, LnkCap and LnkSta). Reseat the card, riser or cable; if that does not help, the device or the slot is faulty. "
	const changed = " After an intended change of one device delete pcie-link.json in " + checks.PastDir + "."
	checks.Register(checks.Info{
		Name:    pcieName,
		Usage:   "[-n COUNT] [-w WIDTH] [-s SPEED] [DEVICE...]",
		Summary: "PCI devices are present and have full links",
		Lane:    checks.Local,
		New:     func() checks.Check { return &pcieCheck{} },
		Do: func() map[string]string {
			return map[string]string{
				"pcie.none":    "Nothing, if the node has no such device. If it should have some, set their number: check_pcie -n N.",
				"pcie.count":   "Compare lspci with a healthy node and look at dmesg: a device has disappeared, or its slot is off. If the number in nhc.conf is wrong, correct it.",
				"pcie.missing": "Look at lspci and dmesg: the device has disappeared, or a change of hardware gave it another address. If no device of the line exists, correct the addresses in nhc.conf.",
				"pcie.gone":    "The device does not answer on the bus. Power the node off and on (a reboot is often not enough); if the fault returns, reseat the device, then replace it. Look for AER and hotplug lines in dmesg.",
				"pcie.width":   reseat + "If all devices have the same width, correct -w in nhc.conf or the BIOS setting of the slots." + changed,
				"pcie.speed":   reseat + "If all devices have the same speed, correct -s in nhc.conf or the BIOS setting of the slots." + changed,
				"pcie.slot":    "Compare the slot with the other slots: the BIOS may split or limit it, or the card is in the wrong slot.",
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
	chosen, missing, findings := choosePCIe(env, pcieName, words)
	unread := len(findings)
	remedy := checks.ReseatOrRMA
	if len(missing) > 1 && len(chosen)+unread == 0 { // none of several devices exists: another kind of node
		remedy = checks.FixConfig
	}
	for _, w := range missing {
		if w.address != "" && !strings.ContainsAny(w.address, "*?[") && c.Count == 0 {
			findings = append(findings, checks.Finding{Code: "pcie.missing", Severity: checks.Fail, Remedy: remedy}.
				Report(pcieName, checks.Device{Kind: "pci", PCI: w.address}, "no such device on the bus"))
		}
	}
	switch {
	case findings == nil && len(chosen) == 0 && c.Count == 0:
		return []checks.Finding{checks.Finding{Code: "pcie.none", Severity: checks.Skip}.Describe(pcieName, "no such device on this node: %s", strings.Join(words, " "))}
	case c.Count > len(chosen) && c.Count <= len(chosen)+unread: // the unread devices may be the missing ones
	case c.Count > 0 && len(chosen) != c.Count:
		findings = append(findings, c.reportCount(words, len(chosen)))
	}
	env.Fact("%s", checks.Plural(len(chosen), "device"))
	return append(findings, c.judge(env, want, chosen)...)
}

func (c *pcieCheck) reportCount(words []string, got int) checks.Finding {
	f := checks.Finding{Code: "pcie.count", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: fmt.Sprint(c.Count), Got: fmt.Sprint(got)}
	switch {
	case got > c.Count:
		f.Severity, f.Remedy = checks.Warn, checks.FixConfig
	case got == 0 && c.Count > 1: // several devices do not disappear together
		f.Remedy = checks.FixConfig
	}
	return f.Describe(pcieName, "devices on the PCI bus (%s)", strings.Join(words, " "))
}

func (c *pcieCheck) judge(env *checks.Env, want Want, chosen []pci.Entry) (findings []checks.Finding) {
	var links []*Link
	for _, d := range chosen {
		l := ReadLink(env, d.Address)
		gone, err := isGone(env, d.Address)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		err = errors.Join(l.Err, err)
		switch {
		case gone:
			findings = append(findings, checks.Finding{Code: "pcie.gone", Severity: checks.Fail, Remedy: checks.PowerCycle}.
				Report(pcieName, DeviceOf(env, l), "does not answer: every register reads as ones"))
			continue
		case err != nil:
			findings = append(findings, reportUnread(pcieName, DeviceOf(env, l), err))
		case !l.Known() && c.hasFigures() && !l.VF:
			findings = append(findings, reportUnread(pcieName, DeviceOf(env, l), errors.New("its link reports no width or speed")))
		}
		links = append(links, l)
	}
	past := RecallPast(env, pcieName)
	for i, faults := range Judge(links, want, past) {
		for _, f := range faults {
			findings = append(findings, f.Finding(pcieName, "pcie."+f.What, DeviceOf(env, links[i])))
		}
	}
	return append(findings, past.Store(env, pcieName)...)
}

// hasFigures reports whether the line gives a width or a speed.
func (c *pcieCheck) hasFigures() bool { return c.Width > 0 || c.Speed != "" }
