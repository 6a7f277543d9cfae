package pcie

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// pcieAER checks the PCIe errors that the kernel counts (Advanced Error Reporting) for GPUs,
// NVSwitches, network adapters and NVMe disks, or for each DEVICE as in check_pcie, and for all
// bridges above them. It judges the increase of the counters.
//
// A fatal error fails for 24 hours, or until the node is booted: the link went down in use. A
// nonfatal error warns for an hour. More than 8 corrected errors per minute since the last run warn;
// with -r RATE more than RATE fail. Messages give the names of the errors and both ends of the link.
//
// Unsupported requests (UnsupReq) are not counted as nonfatal errors: reading a register that a
// device does not have causes one, and the link is healthy. The first run after a boot warns of fatal
// errors and judges nothing else.
//
//	gpu* || check_pcie_aer
//	gpu* || check_pcie_aer -r 100 infiniband nvme
type pcieAER struct {
	Rate    float64  `opt:"r" toml:"rate"`    // highest number of corrected errors per minute; 0: warn above 8
	Devices []string `arg:"*" toml:"devices"` // devices as in check_pcie; none: GPUs, NVSwitches, network adapters, NVMe disks
}

const pcieAERName = "check_pcie_aer"

// How long errors are reported: a fatal one long enough for an administrator to look at the node.
const (
	fatalWindow    = 24 * time.Hour
	nonfatalWindow = time.Hour
)

// pcieNoise is a nonfatal error that does not indicate a fault of the link.
const pcieNoise = "UnsupReq"

func init() {
	checks.Register(checks.Info{
		Name:    pcieAERName,
		Usage:   "[-r RATE] [DEVICE...]",
		Summary: "PCIe links of devices and bridges have few errors",
		Lane:    checks.Local,
		New:     func() checks.Check { return &pcieAER{} },
		Do: func() map[string]string {
			return map[string]string{
				"pcie.aer.none":      "Nothing, if this is a virtual machine: the kernel counts no PCIe errors here. On a server the BIOS must leave AER to the operating system (look for _OSC and AER in dmesg).",
				"pcie.aer.fatal":     "Look for AER lines and the names of the errors in dmesg. Reboot; if the errors return, reseat the device, its riser or cable at both ends of the link in the message, then replace it.",
				"pcie.aer.nonfatal":  "Look for AER lines in dmesg; compare with the device's own errors. If the errors continue, reseat the device or its riser.",
				"pcie.aer.corrected": "No data is lost, but the link in the message is poor: RxErr, BadTLP, BadDLLP and Timeout are signal errors. If jobs are slow, or the check fails, reseat the device, riser or cable.",
				"pcie.error":         doPCIeError,
			}
		},
	})
}

func (c *pcieAER) Run(_ context.Context, env *checks.Env) []checks.Finding {
	words := c.Devices
	if len(words) == 0 {
		words = pcieUsual
	}
	chosen, _, findings := choosePCIe(env, pcieAERName, words)
	if chosen == nil && findings != nil {
		return findings
	}
	counted := 0
	h := env.RecallHistory(pcieAERName, "pcie-aer")
	for _, l := range addBridges(env, chosen) {
		env.At("read /sys/bus/pci/devices/%s/aer_dev_correctable", l.address)
		now, names, known, err := pci.AERByName(env.Host, l.address)
		if err != nil {
			findings = append(findings, reportUnread(pcieAERName, checks.Device{Kind: "pci", PCI: l.address}, err))
		}
		if !known {
			continue
		}
		counted++
		findings = append(findings, c.judge(env, h, l, now, names)...)
	}
	env.Fact("%s", checks.Plural(counted, "link"))
	if counted == 0 && findings == nil {
		return []checks.Finding{checks.Finding{Code: "pcie.aer.none", Severity: checks.Skip}.
			Describe(pcieAERName, "the kernel counts no PCIe errors of these devices: %s", strings.Join(words, " "))}
	}
	return append(findings, h.Store(env)...)
}

// aerEnd is a device or a bridge, and the other end of its link.
type aerEnd struct{ address, partner string }

// addBridges returns the devices and all bridges above them, each once, with their link partners.
// Above a device come alternately a downstream port and, in each switch, an upstream port.
func addBridges(env *checks.Env, chosen []pci.Entry) (ends []aerEnd) {
	seen := map[string]bool{}
	for _, d := range chosen {
		chain := append(pci.Path(env.Host, d.Address), d.Address)
		for i, address := range chain {
			if seen[address] {
				continue
			}
			seen[address] = true
			end := aerEnd{address: address}
			switch last := len(chain) - 1; {
			case i == last && i > 0, i%2 == 1:
				end.partner = chain[i-1]
			case i < last:
				end.partner = chain[i+1]
			}
			ends = append(ends, end)
		}
	}
	return ends
}

// aerKind is a kind of error: its key in the history, its name in messages, and its counters.
type aerKind struct {
	key, text string
	now       uint64
	names     map[string]uint64
}

// judge judges one device and stores its counters. A kind that could not be read keeps its history.
func (c *pcieAER) judge(env *checks.Env, h *checks.History, l aerEnd, now pci.AER, names pci.AERNames) (findings []checks.Finding) {
	noise := min(names.NonFatal[pcieNoise], now.NonFatal)
	names.NonFatal = maps.Clone(names.NonFatal)
	delete(names.NonFatal, pcieNoise)
	fatal := aerKind{"fatal", "fatal PCIe errors", now.Fatal, names.Fatal}
	nonfatal := aerKind{"nonfatal", "uncorrected PCIe errors", now.NonFatal - noise, names.NonFatal}
	corrected := aerKind{"corrected", "corrected PCIe errors", now.Corrected, names.Corrected}
	report := func(k aerKind, f checks.Finding, when string, window time.Duration) {
		f.Code = "pcie.aer." + k.key
		device := DeviceOf(env, ReadLink(env, l.address))
		findings = append(findings, f.Report(pcieAERName, device, "%s%s%s%s", k.text, when, k.describe(h, l.address, window), checks.Before(", link partner ", l.partner, "")))
	}
	read := func(file string) bool { return !slices.Contains(names.Unread, file) }
	_, known := h.Begun(l.address, fatal.key)
	switch g := h.Grown(l.address, fatal.key, fatal.now, 64, fatalWindow); {
	case !read("fatal"):
	case g.N > 0:
		report(fatal, checks.Finding{Severity: checks.Fail, Remedy: checks.RebootNode, Want: "0", Got: fmt.Sprint(g.N)}, " in the last 24 hours", fatalWindow)
	case !known && fatal.now > 0: // an error of an unknown time does not drain the node
		report(fatal, checks.Finding{Severity: checks.Warn, Remedy: checks.RebootNode, Want: "0", Got: fmt.Sprint(fatal.now)}, " since boot", 0)
	}
	if g := h.Grown(l.address, nonfatal.key, nonfatal.now, 64, nonfatalWindow); g.N > 0 && read("nonfatal") {
		report(nonfatal, checks.Finding{Severity: checks.Warn, Want: "0", Got: fmt.Sprint(g.N)}, " in the last hour", nonfatalWindow)
	}
	limit, f := c.Rate, checks.Finding{Severity: checks.Fail, Remedy: checks.ReseatOrRMA}
	if limit <= 0 {
		limit, f.Severity, f.Remedy = UsualRate, checks.Warn, checks.NoRemedy
	}
	last := h.SinceLast(l.address)
	if g := h.Grown(l.address, corrected.key, corrected.now, 64, last); g.Known && g.Per(time.Minute) > limit && read("correctable") {
		f.Want, f.Got = fmt.Sprintf("at most %g per minute", limit), fmt.Sprintf("%.1f", g.Per(time.Minute))
		report(corrected, f, "", last)
	}
	values := map[string]uint64{}
	for file, k := range map[string]aerKind{"fatal": fatal, "nonfatal": nonfatal, "correctable": corrected} {
		if !read(file) {
			continue
		}
		values[k.key] = k.now
		for name, n := range k.names {
			values[k.key+" "+name] = n
		}
	}
	if len(names.Unread) > 0 {
		h.AddPart(l.address, values)
	} else {
		h.Add(l.address, values)
	}
	return findings
}

// describe names the errors that have grown, the most frequent first.
func (k aerKind) describe(h *checks.History, device string, window time.Duration) string {
	type grownName struct {
		name string
		n    uint64
	}
	var list []grownName
	for name, now := range k.names {
		if n := k.countNew(h, device, name, now, window); n > 0 {
			list = append(list, grownName{name, n})
		}
	}
	slices.SortFunc(list, func(a, b grownName) int {
		return cmp.Or(cmp.Compare(b.n, a.n), strings.Compare(a.name, b.name))
	})
	var words []string
	for i, g := range list {
		if i == 4 {
			break
		}
		words = append(words, fmt.Sprintf("%s %d", g.name, g.n))
	}
	return checks.Before(" (", strings.Join(words, ", "), ")")
}

// countNew returns the increase of one error. The history has only counters above 0: one that starts
// later than the sum of its kind was 0 before.
func (k aerKind) countNew(h *checks.History, device, name string, now uint64, window time.Duration) uint64 {
	g := h.Grown(device, k.key+" "+name, now, 64, window)
	first, known := h.Begun(device, k.key+" "+name)
	if !known {
		return now
	}
	all, _ := h.Begun(device, k.key)
	if window > 0 && first.At > all.At && first.At > h.Now.Add(-window).Unix() {
		g.N += first.Value
	}
	return g.N
}
