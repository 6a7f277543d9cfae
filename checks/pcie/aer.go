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

// pcieAER checks the PCIe errors that the kernel has counted (Advanced Error
// Reporting) of GPUs, NVSwitches, network adapters, NVMe disks, or of each DEVICE
// as check_pcie names them, and of all bridges above them, by how much they grew. A
// fatal error fails for 24 hours, or until the node is booted: the link went down
// under whoever used it. A nonfatal one is warned of for an hour. More than 8 corrected
// ones in a minute since the last run are warned of; with -r RATE more than RATE
// fail. Both ends of the link are named, and the errors by name. Unsupported
// requests (UnsupReq) are no errors of a link, and are not counted among the
// nonfatal ones: a read of a register that a device has not makes one. The first
// run after a boot warns of fatal errors and judges nothing else.
//
//	gpu* || check_pcie_aer
//	gpu* || check_pcie_aer -r 100 infiniband nvme
type pcieAER struct {
	Rate    float64  `opt:"r" toml:"rate"`    // corrected errors in a minute that are too many
	Devices []string `arg:"*" toml:"devices"` // which, as of check_pcie; none: GPUs, NVSwitches, network adapters, NVMe disks
}

const pcieAERName = "check_pcie_aer"

// How long errors are remembered: a fatal one until somebody has seen the node.
const (
	fatalWindow    = 24 * time.Hour
	nonfatalWindow = time.Hour
)

// pcieNoise is the nonfatal error that says nothing of a link.
const pcieNoise = "UnsupReq"

func init() {
	checks.Register(checks.Info{
		Name:    pcieAERName,
		Usage:   "[-r RATE] [DEVICE...]",
		Summary: "PCIe links and the bridges above have few errors",
		Lane:    checks.Local,
		New:     func() checks.Check { return &pcieAER{} },
		Do: func() map[string]string {
			return map[string]string{
				"pcie.aer.none":      "Nothing: the kernel counts no PCIe errors here. On a server see that the BIOS leaves AER to the system (dmesg: _OSC, AER).",
				"pcie.aer.fatal":     "See dmesg for AER lines and the names in the message. Reboot; if it comes back reseat the device, its riser or cable at both ends of the link that is named, then replace it.",
				"pcie.aer.nonfatal":  "See dmesg for AER lines; compare with the device's own errors. If it goes on reseat the device or its riser.",
				"pcie.aer.corrected": "Nothing is lost, but the link between the two that are named is poor: RxErr, BadTLP, BadDLLP and Timeout are signal errors. If bandwidth suffers reseat device, riser or cable.",
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
	chosen, _, findings := pcieChosen(env, pcieAERName, words)
	if chosen == nil && findings != nil {
		return findings
	}
	counted := 0
	h := env.RecallHistory(pcieAERName, "pcie-aer")
	for _, l := range withBridges(env, chosen) {
		env.At("read /sys/bus/pci/devices/%s/aer_dev_correctable", l.address)
		now, names, known, err := pci.AERByName(env.Host, l.address)
		switch {
		case err != nil:
			findings = append(findings, pcieUnknown(pcieAERName, checks.Device{Kind: "pci", PCI: l.address}, err))
			fallthrough
		case !known:
			continue
		}
		counted++
		findings = append(findings, c.judge(env, h, l, now, names)...)
	}
	env.Fact("%s", checks.Plural(counted, "link"))
	if counted == 0 && findings == nil {
		return []checks.Finding{checks.Finding{Code: "pcie.aer.none", Severity: checks.Skip}.
			Describe(pcieAERName, "the kernel counts no PCIe errors of such devices: %s", strings.Join(words, " "))}
	}
	return append(findings, h.Store(env)...)
}

// aerEnd is a device or a bridge, and the other end of its link.
type aerEnd struct{ address, partner string }

// withBridges are devices and all bridges above them, each once. Of the ports above
// a device every second one faces it: a root port, a switch's own upper port, a lower one.
func withBridges(env *checks.Env, chosen []pci.Entry) (ends []aerEnd) {
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

// aerKind is a kind of error: how it is kept, what it is called, what it is made of.
type aerKind struct {
	key, text string
	now       uint64
	names     map[string]uint64
}

// judge judges one device, and keeps what it counts now.
func (c *pcieAER) judge(env *checks.Env, h *checks.History, l aerEnd, now pci.AER, names pci.AERNames) (findings []checks.Finding) {
	noise := min(names.NonFatal[pcieNoise], now.NonFatal)
	names.NonFatal = maps.Clone(names.NonFatal)
	delete(names.NonFatal, pcieNoise)
	fatal := aerKind{"fatal", "fatal PCIe errors", now.Fatal, names.Fatal}
	nonfatal := aerKind{"nonfatal", "uncorrected PCIe errors", now.NonFatal - noise, names.NonFatal}
	corrected := aerKind{"corrected", "corrected PCIe errors", now.Corrected, names.Corrected}
	say := func(k aerKind, f checks.Finding, when string, window time.Duration) {
		f.Code = "pcie.aer." + k.key
		device := DeviceOf(env, ReadLink(env, l.address))
		findings = append(findings, f.Report(pcieAERName, device, "%s%s%s%s", k.text, when, k.made(h, l.address, window), checks.Before(", link partner ", l.partner, "")))
	}
	_, known := h.Begun(l.address, fatal.key)
	switch g := h.Grown(l.address, fatal.key, fatal.now, 64, fatalWindow); {
	case g.N > 0:
		say(fatal, checks.Finding{Severity: checks.Fail, Remedy: checks.RebootNode, Want: "0", Got: fmt.Sprint(g.N)}, " in the last 24 hours", fatalWindow)
	case !known && fatal.now > 0: // what was long ago drains nobody
		say(fatal, checks.Finding{Severity: checks.Warn, Remedy: checks.RebootNode, Want: "0", Got: fmt.Sprint(fatal.now)}, " since the node was booted", 0)
	}
	if g := h.Grown(l.address, nonfatal.key, nonfatal.now, 64, nonfatalWindow); g.N > 0 {
		say(nonfatal, checks.Finding{Severity: checks.Warn, Want: "0", Got: fmt.Sprint(g.N)}, " in the last hour", nonfatalWindow)
	}
	limit, severity := c.Rate, checks.Fail
	if limit <= 0 {
		limit, severity = UsualRate, checks.Warn
	}
	last := h.SinceLast(l.address)
	if g := h.Grown(l.address, corrected.key, corrected.now, 64, last); g.Known && g.Per(time.Minute) > limit {
		say(corrected, checks.Finding{Severity: severity, Remedy: checks.ReseatOrRMA, Want: fmt.Sprintf("at most %g a minute", limit), Got: fmt.Sprintf("%.1f", g.Per(time.Minute))}, "", last)
	}
	values := map[string]uint64{}
	for _, k := range []aerKind{fatal, nonfatal, corrected} {
		values[k.key] = k.now
		for name, n := range k.names {
			values[k.key+" "+name] = n
		}
	}
	h.Add(l.address, values)
	return findings
}

// made says which errors have grown, the most frequent first.
func (k aerKind) made(h *checks.History, device string, window time.Duration) string {
	type grownName struct {
		name string
		n    uint64
	}
	var list []grownName
	for name, now := range k.names {
		if n := k.grown(h, device, name, now, window); n > 0 {
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

// grown is how much one error has grown. Only those that are not 0 are kept: one
// that begins later than the whole was 0 until then.
func (k aerKind) grown(h *checks.History, device, name string, now uint64, window time.Duration) uint64 {
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
