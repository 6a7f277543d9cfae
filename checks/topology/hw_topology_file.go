package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/pcie"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// judgeFile compares the node with FILE.
func (t *topologyJudge) judgeFile() {
	t.env.At("read %s", t.File)
	data, err := probe.ReadTrusted(t.env.Host, t.File)
	var list []filedDevice
	if err == nil {
		list, err = parseTopology(t.File, data)
	}
	if err != nil {
		t.findings = append(t.findings, checks.Finding{Code: "topology.file", Severity: checks.Unknown, Remedy: checks.FixConfig}.Describe(hwTopologyName, "%v", err))
		return
	}
	here := map[string]Located{}
	there := 0
	for i := range list {
		a := LocateDevice(t.env, t.findName(list[i].PCI), list[i].PCI)
		if !errors.Is(a.err, fs.ErrNotExist) {
			there++
		}
		here[list[i].PCI] = a
	}
	if there == 0 { // a wrong file on all nodes must not drain a cluster
		t.findings = append(t.findings, checks.Finding{Code: "topology.file", Severity: checks.Unknown, Remedy: checks.FixConfig}.
			Describe(hwTopologyName, "%s is of another kind of node: this node has none of its %s", t.File, checks.Plural(len(list), "device")))
		return
	}
	t.misfiled = findMisfiled(list, here)
	known := t.knowsNUMA()
	for i := range list {
		a := here[list[i].PCI]
		t.compare(&list[i], &a, known)
	}
	t.judgeExtra(list)
}

// findMisfiled returns the kinds of devices that FILE probably lists wrongly: all of several devices
// are missing, or all have fewer lanes.
func findMisfiled(list []filedDevice, here map[string]Located) map[string]bool {
	count, missing, narrow := map[string]int{}, map[string]int{}, map[string]int{}
	for i := range list {
		d, a := &list[i], here[list[i].PCI]
		count[d.Kind]++
		switch {
		case errors.Is(a.err, fs.ErrNotExist):
			missing[d.Kind]++
		case isNarrow(d, &a):
			narrow[d.Kind]++
		}
	}
	wrong := map[string]bool{}
	for kind, n := range count {
		wrong[kind] = n > 1 && (missing[kind] == n || narrow[kind] == n)
	}
	return wrong
}

// remedyOf returns the remedy for a kind of devices that differ from FILE.
func (t *topologyJudge) remedyOf(kind string) checks.Remedy {
	if t.misfiled[kind] {
		return checks.FixConfig
	}
	return checks.ReseatOrRMA
}

// findName returns the name of a GPU or adapter, "" of another device.
func (t *topologyJudge) findName(address string) (name string) {
	t.each(func(_ string, a *Located) {
		if a.PCI == address {
			name = a.Name
		}
	})
	return name
}

// compare judges one device of FILE. known: the node reports NUMA nodes.
func (t *topologyJudge) compare(d *filedDevice, a *Located, known bool) {
	device := a.device(d.Kind)
	at := fmt.Sprintf("%s:%d", t.File, d.Line)
	if errors.Is(a.err, fs.ErrNotExist) {
		f := checks.Finding{Code: "topology.missing", Severity: checks.Fail, Remedy: t.remedyOf(d.Kind), Want: kindWords[d.Kind], Got: "none"}
		t.report(device, f, "is in %s, but not on the PCI bus", at)
		return
	}
	if a.err != nil {
		if d.Kind != "gpu" || a.Name == "" { // reportUnreadGPUs reports GPUs
			t.report(device, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown}, "cannot be read: %v", a.err)
		}
		return
	}
	numa := checks.Finding{Code: "topology.numa", Severity: checks.Fail, Want: fmt.Sprintf("NUMA node %d", d.NUMA), Got: fmt.Sprint(a.NUMA)}
	if a.NUMA < 0 {
		numa.Got = "none"
		if d.NUMA == 0 { // NCCL writes 0 also for an unknown node
			numa.Severity = checks.Warn
		}
	}
	if d.NUMA >= 0 && a.NUMA != d.NUMA && (known || d.NUMA > 0) {
		t.report(device, numa, "is in another place than in %s", at)
	}
	if b := t.findOtherBridge(d, a); b != "" {
		t.report(device, checks.Finding{Code: "topology.place", Severity: checks.Fail, Want: "below the bridge " + b, Got: "below " + strings.Join(append([]string{"the host"}, a.Bridges...), " ")}, "is in another place than in %s", at)
	}
	t.compareWidth(d, a, at)
}

// kindWords are the kinds of devices in messages.
var kindWords = map[string]string{"gpu": "a GPU", "hca": "a network adapter", "nvme": "an NVMe disk"}

// findOtherBridge returns the nearest bridge of the device in FILE that the node has, but not above
// this device; "" if there is none. Bridges that the node does not have are invented by the writer of
// FILE, or hidden from a virtual machine.
func (t *topologyJudge) findOtherBridge(d *filedDevice, a *Located) string {
	for _, b := range slices.Backward(d.Bridges) {
		if slices.Contains(a.Bridges, b) {
			return ""
		}
		t.env.At("read /sys/bus/pci/devices/%s", b)
		if strings.HasPrefix(pci.ReadFunction(t.env.Host, b).Class, "0604") {
			return b
		}
	}
	return ""
}

// compareWidth judges the lanes in use.
func (t *topologyJudge) compareWidth(d *filedDevice, a *Located, at string) {
	if isNarrow(d, a) {
		t.report(a.device(d.Kind), checks.Finding{Code: "topology.width", Severity: checks.Fail, Remedy: t.remedyOf(d.Kind), Want: pcie.Lanes(d.Width), Got: pcie.Lanes(a.Width)}, "has fewer lanes than in %s", at)
	}
}

// isNarrow reports whether a device uses fewer lanes than in FILE. The lanes in FILE are invented if
// the device does not support so many, or is a virtual function.
func isNarrow(d *filedDevice, a *Located) bool {
	vendor, model, _ := strings.Cut(a.ID, ":")
	m := fabric.ModelOf(vendor, model, "")
	return (m == nil || !m.Virtual) && a.Width > 0 && a.Width < d.Width && a.MaxWidth >= d.Width
}

// judgeExtra warns of GPUs that are not in FILE, and of adapters if FILE has any.
func (t *topologyJudge) judgeExtra(list []filedDevice) {
	hasNICs := slices.ContainsFunc(list, func(d filedDevice) bool { return d.Kind == "hca" })
	t.each(func(kind string, a *Located) {
		in := slices.ContainsFunc(list, func(d filedDevice) bool { return d.PCI == a.PCI })
		if !in && (kind == "gpu" || hasNICs) {
			t.report(a.device(kind), checks.Finding{Code: "topology.extra", Severity: checks.Warn}, "is not in %s", t.File)
		}
	})
}
