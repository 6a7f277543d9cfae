package pcie

import (
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// Selection of PCI devices by the words of a line.

// pcieClasses are words for classes of devices, by the PCI Code and ID Assignment Specification; code
// recognizes GPUs ([isGPU]) and NVSwitches.
var pcieClasses = map[string]string{"network": "02", "ethernet": "0200", "infiniband": "0207", "nvme": "010802", "bridge": "0604"}

// pcieUsual are the devices of a line without arguments.
var pcieUsual = []string{"gpu", "nvswitch", "network", "nvme"}

// pcieWord is an argument of a line: a word above, the digits of a class, an id or an address. The
// last two can be globs.
type pcieWord struct {
	text, class, id, address string
}

// parsePCIeWord parses an argument. An address without a domain is in domain 0000.
func parsePCIeWord(text string) (pcieWord, bool) {
	w := pcieWord{text: text}
	lower := strings.ToLower(text)
	switch colons := strings.Count(lower, ":"); {
	case lower == "gpu" || lower == "nvswitch":
		w.class = lower
	case pcieClasses[lower] != "":
		w.class = pcieClasses[lower]
	case colons == 2:
		w.address = lower
	case colons == 1 && strings.Contains(lower, "."):
		w.address = "0000:" + lower
	case colons == 1:
		w.id = lower
	case strings.Trim(lower, "0123456789abcdef") == "" && len(lower)%2 == 0 && len(lower) >= 2 && len(lower) <= 6:
		w.class = lower
	default:
		return w, false
	}
	return w, true
}

// matches reports whether the word selects a device.
func (w *pcieWord) matches(h *probe.Host, e pci.Entry) bool {
	switch {
	case w.address != "":
		return match.Glob(strings.ToLower(e.Address), w.address)
	case w.id != "":
		return match.Glob(pci.ReadID(h, e.Address), w.id)
	case e.VF || e.Class == "":
		return false
	case w.class == "gpu":
		return strings.HasPrefix(e.Class, "03") && isGPU(e.Class, readVendor(h, e)) || isGPU(e.Class, "")
	case w.class == "nvswitch":
		return strings.HasPrefix(e.Class, "0680") && readVendor(h, e) == "10de"
	}
	return strings.HasPrefix(e.Class, w.class)
}

func readVendor(h *probe.Host, e pci.Entry) string {
	vendor, _, _ := strings.Cut(pci.ReadID(h, e.Address), ":")
	return vendor
}

// choosePCIe returns the devices that the words select, in the order of the bus, and the words that
// select none. An id or an address selects virtual functions only if it selects no other device.
func choosePCIe(env *checks.Env, check string, texts []string) (chosen []pci.Entry, missing []pcieWord, findings []checks.Finding) {
	var words []pcieWord
	for _, text := range texts {
		w, ok := parsePCIeWord(text)
		if !ok {
			return nil, nil, []checks.Finding{checks.BadWord(check, "device", text, "gpu, nvswitch, network, ethernet, infiniband, nvme, bridge, a class, an id or an address")}
		}
		words = append(words, w)
	}
	env.At("read /sys/bus/pci/devices")
	all, err := pci.List(env.Host)
	if err != nil {
		return nil, nil, checks.Unreadable(err)
	}
	selected := make([]bool, len(all))
	for i := range words {
		w, found := &words[i], false
		for _, vf := range []bool{false, true} {
			for j := range all {
				if all[j].VF == vf && w.matches(env.Host, all[j]) {
					selected[j], found = true, true
				}
			}
			if found {
				break
			}
		}
		if !found {
			missing = append(missing, *w)
		}
	}
	for j, d := range all {
		switch {
		case selected[j]:
			chosen = append(chosen, d)
		case d.Err != nil:
			findings = append(findings, reportUnread(check, checks.Device{Kind: "pci", PCI: d.Address}, d.Err))
		}
	}
	return chosen, missing, findings
}

// reportUnread returns the finding of a device that could not be read.
func reportUnread(check string, d checks.Device, err error) checks.Finding {
	return checks.Finding{Code: "pcie.error", Severity: checks.Unknown, Device: d}.Describe(check, "cannot be read: %v", err)
}
