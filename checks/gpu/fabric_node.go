package gpu

import (
	"fmt"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// What check_gpu_fabric makes of the fabric's health, and of the services of the
// node that make a fabric.

// healthBit is a part of the health mask: nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*. 0
// is not supported in each.
type healthBit struct {
	name         string
	shift, width int
	bad, good    int
	severity     checks.Severity // Warn: it may pass by itself
	passes       bool            // it fails if it does not
}

var healthBits = []healthBit{
	{"degraded bandwidth", 0, 2, 1, 2, checks.Fail, false},
	{"route recovery in progress", 2, 2, 1, 2, checks.Warn, true},
	{"route unhealthy", 4, 2, 1, 2, checks.Fail, false},
	{"access timeout recovery in progress", 6, 2, 1, 2, checks.Warn, true},
	{"no partition assigned", 12, 2, 2, 1, checks.Warn, false},
	{"connection to the rack's fabric manager lost", 14, 2, 2, 1, checks.Warn, false},
}

// The part of the mask that has more than two values: 1 is a correct configuration.
const configShift, configMask = 8, 0xf

var wrongConfigs = [...]string{
	2: "system GUID", 3: "chassis serial number", 4: "no partition", 5: "too few NVLinks", 6: "GPU firmware does not fit", 7: "location", 8: "state of the GPU",
}

// healthSummaries are NVML_GPU_FABRIC_HEALTH_SUMMARY_*.
var healthSummaries = [...]string{2: "unhealthy", 3: "limited capacity"}

// judgeHealth looks at the health mask, and at its summary where no part of the
// mask says why.
func (r *fabricRun) judgeHealth(g *nvml.GPU, f nvml.Fabric) {
	named, strange := false, false
	for _, bit := range healthBits {
		switch v := int(f.Mask>>bit.shift) & (1<<bit.width - 1); v {
		case 0, bit.good:
		case bit.bad:
			named = true
			severity, often := bit.severity, ""
			if bit.passes {
				n := r.again(g, bit.name)
				severity, often = r.patience(n), inRuns(n)
			}
			r.fault(g, "gpu.fabric.health", severity, "", "", "health of the fabric: %s%s", bit.name, often)
		default:
			strange = true
		}
	}
	switch config := int(f.Mask>>configShift) & configMask; {
	case config >= len(wrongConfigs):
		strange = true
	case config > 1:
		named = true
		r.fault(g, "gpu.fabric.health", checks.Fail, "", "", "health of the fabric: incorrect configuration, %s", wrongConfigs[config])
	}
	switch {
	case f.Summary >= len(healthSummaries) || f.Summary < 0:
		strange = true
	case f.Summary > 1 && !named:
		severity := checks.Fail
		if f.Summary == len(healthSummaries)-1 {
			severity = checks.Warn
		}
		r.fault(g, "gpu.fabric.health", severity, "", "", "health of the fabric: %s", healthSummaries[f.Summary])
	}
	if strange { // a part of a newer driver, or garbage
		r.Report(g, checks.Finding{Code: "gpu.fabric.unknown", Severity: checks.Unknown}, "health of the fabric is %#x, which is not known here", f.Mask)
	}
}

// switches says whether the node runs NVSwitches of its own.
func (r *fabricRun) switches() bool {
	list, err := nvidia.NVSwitches(r.Env.Host)
	return err == nil && len(list) > 0
}

// expected says whether the platform has NVSwitches, though those of Blackwell are
// not on the PCI bus.
func (r *fabricRun) expected() bool {
	for i := range r.NVML.GPUs {
		if r.platform(&r.NVML.GPUs[i]).HasNVSwitches(len(r.NVML.GPUs)) {
			return true
		}
	}
	return false
}

// services are findings about the fabric manager and IMEX of the node.
func (r *fabricRun) services() (found []checks.Finding) {
	r.Env.At("read the NVSwitches of the PCI bus")
	switches, err := nvidia.NVSwitches(r.Env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	r.Env.At("read /dev/nvidia-caps-imex-channels")
	channels, err := nvidia.IMEXChannels(r.Env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	want, _ := r.channels()
	expected := len(switches) == 0 && r.failed && r.expected()
	if len(switches) == 0 && channels == 0 && want == 0 && !expected {
		return nil
	}
	r.Env.At("read /proc")
	procs, err := probe.Processes(r.Env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	absent := func(name string) bool { return !r.Env.Host.InContainer() && !r.runs(procs, name) }
	if !r.Env.Host.InContainer() && !slices.ContainsFunc(procs, func(p probe.Process) bool { return p.PID == 1 }) { // hidepid: others are not seen either
		return []checks.Finding{checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown}.
			Describe(gpuFabricName, "/proc does not show process 1, nor whether nv-fabricmanager and nvidia-imex run")}
	}
	if expected && absent("nv-fabricmanager") {
		found = append(found, checks.Finding{Code: "gpu.fabric.manager", Severity: checks.Warn, Remedy: checks.CheckFabric, Want: "running", Got: "not running"}.
			Phrase(gpuFabricName, "a node of this platform has NVSwitches, want nv-fabricmanager running, got none"))
	}
	if len(switches) > 0 && absent("nv-fabricmanager") {
		f := checks.Finding{Code: "gpu.fabric.manager", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: "running", Got: "not running"}.
			Phrase(gpuFabricName, "NVSwitches on the PCI bus: %d, want nv-fabricmanager running, got none", len(switches))
		if !r.failed && r.joined > 0 && r.joined == len(r.NVML.GPUs) {
			f.Severity = checks.Warn // they have joined, and it may run where it is not seen
		}
		found = append(found, f)
	}
	if channels < want {
		found = append(found, checks.Finding{Code: "gpu.fabric.channels", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: fmt.Sprint(want), Got: fmt.Sprint(channels)}.
			Phrase(gpuFabricName, "IMEX channels, want at least %d, got %d", want, channels))
	}
	if (want > 0 || channels > 0) && absent("nvidia-imex") {
		f := checks.Finding{Code: "gpu.fabric.imex", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: "running", Got: "not running"}.
			Phrase(gpuFabricName, "IMEX channels of the node: %d, want nvidia-imex running, got none", channels)
		if want == 0 {
			f.Severity = checks.Warn
		}
		found = append(found, f)
	}
	return found
}
