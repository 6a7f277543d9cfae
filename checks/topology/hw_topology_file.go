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

// judgeFile compares the node with a file.
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
		a := LocateDevice(t.env, t.nameOf(list[i].PCI), list[i].PCI)
		if !errors.Is(a.err, fs.ErrNotExist) {
			there++
		}
		here[list[i].PCI] = a
	}
	if there == 0 { // one bad push must not empty a cluster
		t.findings = append(t.findings, checks.Finding{Code: "topology.file", Severity: checks.Unknown, Remedy: checks.FixConfig}.
			Describe(hwTopologyName, "%s: is of another kind of node: none of its %s is on this one", t.File, checks.Plural(len(list), "device")))
		return
	}
	told := t.told()
	for i := range list {
		a := here[list[i].PCI]
		t.compare(&list[i], &a, told)
	}
	t.extra(list)
}

// nameOf is what a device is called, "" if it is none of those that are judged.
func (t *topologyJudge) nameOf(address string) (name string) {
	t.each(func(_ string, a *Located) {
		if a.PCI == address {
			name = a.Name
		}
	})
	return name
}

// compare judges one device of the file. told is whether the node tells NUMA nodes.
func (t *topologyJudge) compare(d *filedDevice, a *Located, told bool) {
	device := a.device(d.Kind)
	at := fmt.Sprintf("%s:%d", t.File, d.Line)
	if errors.Is(a.err, fs.ErrNotExist) {
		f := checks.Finding{Code: "topology.missing", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: "a " + kindWords[d.Kind], Got: "none"}
		t.report(device, f, "is not on the PCI bus, %s has it", at)
		return
	}
	if a.err != nil {
		if d.Kind != "gpu" || a.Name == "" { // of GPUs it is said of all
			t.report(device, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown}, "could not tell: %v", a.err)
		}
		return
	}
	numa := checks.Finding{Code: "topology.numa", Severity: checks.Fail, Want: fmt.Sprintf("NUMA node %d", d.NUMA), Got: fmt.Sprint(a.NUMA)}
	if a.NUMA < 0 {
		numa.Got = "none"
		if d.NUMA == 0 { // which NCCL writes, too, where none is told
			numa.Severity = checks.Warn
		}
	}
	if d.NUMA >= 0 && a.NUMA != d.NUMA && (told || d.NUMA > 0) {
		t.report(device, numa, "is not where %s has it", at)
	}
	if b := t.elsewhere(d, a); b != "" {
		t.report(device, checks.Finding{Code: "topology.place", Severity: checks.Fail, Want: "below the bridge " + b, Got: "below " + strings.Join(append([]string{"the host"}, a.Bridges...), " ")}, "is not where %s has it", at)
	}
	t.compareWidth(d, a, at)
}

// kindWords are kinds of devices for a person.
var kindWords = map[string]string{"gpu": "GPU", "hca": "network adapter", "nvme": "NVMe disk"}

// elsewhere is the nearest bridge of the file that the node has, but not above this
// device. Those that the node has not were made up, or are hidden from a virtual
// machine.
func (t *topologyJudge) elsewhere(d *filedDevice, a *Located) string {
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

// compareWidth judges the lanes in use. A device that cannot have so many shows
// that the file's are made up, and so does a virtual function.
func (t *topologyJudge) compareWidth(d *filedDevice, a *Located, at string) {
	vendor, model, _ := strings.Cut(a.ID, ":")
	if m := fabric.ModelOf(vendor, model, ""); m != nil && m.Virtual {
		return
	}
	if a.Width > 0 && a.Width < d.Width && a.MaxWidth >= d.Width {
		t.report(a.device(d.Kind), checks.Finding{Code: "topology.width", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: pcie.Lanes(d.Width), Got: pcie.Lanes(a.Width)}, "has fewer lanes than in %s", at)
	}
}

// extra warns of devices that are not in the file. It need not have any adapter.
func (t *topologyJudge) extra(list []filedDevice) {
	hasNICs := slices.ContainsFunc(list, func(d filedDevice) bool { return d.Kind == "hca" })
	t.each(func(kind string, a *Located) {
		in := slices.ContainsFunc(list, func(d filedDevice) bool { return d.PCI == a.PCI })
		if !in && (kind == "gpu" || hasNICs) {
			t.report(a.device(kind), checks.Finding{Code: "topology.extra", Severity: checks.Warn}, "is not in %s", t.File)
		}
	})
}
