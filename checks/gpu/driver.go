package gpu

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/gpustate"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuDriver checks that NVIDIA's driver is loaded, that its library, its kernel module and the
// running driver have the same version, and that the InfoROM of every GPU is intact. VERSION is a
// match string for that version.
//
// -m names a kernel module that must be loaded, or alternatives: 'nvidia_peermem|nv_peer_mem'. The
// alternative dma-buf stands for GPU memory shared with network adapters without a module of its
// own: driver 515 or later with the open kernel module, on Linux 5.12 or later or on a kernel with
// RDMA modules that support it. Without -m the check looks only for the driver itself: the first
// CUDA program loads nvidia_uvm.
//
// The check warns if GPUs of one model differ in VBIOS or InfoROM version.
//
//	gpu* || check_gpu_driver -m nvidia_uvm -m 'nvidia_peermem|dma-buf' 570.124.06
type gpuDriver struct {
	Version string   `arg:"1" toml:"version"` // match string for the driver's version; none: any version
	Modules []string `opt:"m" toml:"modules"` // kernel module that must be loaded; can be repeated
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_gpu_driver",
		Usage:   "[-m MODULE]... [VERSION]",
		Summary: "the driver, its library, its modules and InfoROMs are healthy",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &gpuDriver{} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.driver.missing":  "Run modprobe nvidia, then read the NVRM lines in dmesg. \"not found\": the driver is not built for this kernel (uname -r, dkms status): install it. \"No such device\": look at lspci -d 10de:. \"fallen off the bus\" or \"BAR\": power the node off and on. Otherwise reboot only after a change of the driver or the kernel.",
				"gpu.driver.library":  "libnvidia-ml.so.1 is not installed or empty, or NVML_LIBRARY names another file: reinstall the driver's libraries and run ldconfig.",
				"gpu.driver.mismatch": "The driver was updated while the old module was loaded: reboot. Or, with no job on the node, unload the modules and load them again.",
				"gpu.driver.version":  "Install the driver version that nhc.conf wants, or correct the line.",
				"gpu.driver.module":   "Load the module with modprobe, look in dmesg for the reason if that fails, and list it in /etc/modules-load.d.",
				"gpu.driver.unloaded": "Nothing, if an administrator has unloaded the driver for maintenance. Otherwise run modprobe nvidia, and look for NVRM lines in dmesg.",
				"gpu.driver.inforom":  "Reboot; if nvidia-smi -q still reports the error, have the GPU replaced.",
				"gpu.driver.differ":   "One board was replaced or flashed: bring all GPUs to one version with the vendor's tool at the next maintenance.",
			}
		},
	})
}

const gpuDriverName = "check_gpu_driver"

func (c *gpuDriver) Run(_ context.Context, env *checks.Env) []checks.Finding {
	env.At("read the PCI bus")
	views, err := nvidia.ReadGPUViews(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	if _, err := nvml.Ask(env.Host, nvml.GroupInforom, env.Doing); err != nil && len(views.Own()) > 0 && !onlyDisplays(env, views, err) {
		return []checks.Finding{c.explainNoNVML(env, views, err)}
	}
	s, findings := AskNVML(env, gpuDriverName, nvml.GroupInforom)
	if s == nil {
		return findings
	}
	findings = append(c.judgeVersions(env, s.NVML, views), c.judgeModules(env)...)
	env.Fact("driver %s", s.NVML.Driver.Value)
	s.Judged = s.NVML.Driver.Known
	s.Each(judgeInforom)
	s.reportOutliers(func(g *nvml.GPU) (string, bool) { return g.VBIOS.Value, g.VBIOS.Known }, reportVersion("VBIOS", s))
	s.reportOutliers(func(g *nvml.GPU) (string, bool) { return g.Inforom.Value, g.Inforom.Known }, reportVersion("InfoROM", s))
	return append(findings, s.Done()...)
}

// explainNoNVML returns the finding of a node that has GPUs and an NVML that fails.
func (c *gpuDriver) explainNoNVML(env *checks.Env, views nvidia.GPUViews, err error) checks.Finding {
	f := CannotAsk(gpuDriverName, err)
	switch {
	case errors.Is(err, nvml.ErrDriverMismatch):
		f.Code, f.Severity, f.Remedy = "gpu.driver.mismatch", checks.Fail, checks.RebootNode
		f = f.Describe(gpuDriverName, "%v%s", err, checks.Before("; the loaded module is ", views.Version, ""))
	case errors.Is(err, nvml.ErrDriverNotThere):
		f.Code, f.Severity, f.Remedy = "gpu.driver.missing", checks.Fail, gpustate.DriverRemedy(env)
		f = f.Describe(gpuDriverName, "%v", err)
	case errors.Is(err, probe.ErrNoLibrary) && !errors.Is(err, probe.ErrOtherNode):
		f.Code, f.Severity = "gpu.driver.library", checks.Fail
		f = f.Describe(gpuDriverName, "%v", err)
	}
	return f
}

func (c *gpuDriver) judgeVersions(env *checks.Env, n *nvml.Snapshot, views nvidia.GPUViews) (findings []checks.Finding) {
	add := func(f checks.Finding, text string) {
		f.Severity = checks.Fail
		findings = append(findings, f.Describe(gpuDriverName, "%s", text))
	}
	driver := n.Driver.Value
	for part, version := range map[string]string{"library": n.Library.Value, "loaded module": views.Version} {
		if version != "" && driver != "" && version != driver && (part != "library" || nvml.IsVersion(version)) {
			add(checks.Finding{Code: "gpu.driver.mismatch", Remedy: checks.RebootNode, Want: driver, Got: version}, "version of the "+part)
		}
	}
	slices.SortFunc(findings, func(a, b checks.Finding) int { return strings.Compare(a.Message, b.Message) })
	unknown := func(part string, err error) {
		if err != nil && !nvml.IsGPUState(err) { // gpustate reports a state
			findings = append(findings, checks.Finding{Code: "gpu.error.value", Severity: checks.Unknown}.Describe(gpuDriverName, "version of the %s is unknown: %v", part, err))
		}
	}
	unknown("library", n.Library.Err)
	unknown("driver", n.Driver.Err)
	switch {
	case c.Version == "" || n.Driver.Err != nil:
		return findings
	case driver == "":
		unknown("driver", errors.New("NVML does not report it, want "+c.Version))
		return findings
	}
	match := env.Matcher(&findings)
	if !match(driver, c.Version) {
		add(checks.Finding{Code: "gpu.driver.version", Remedy: checks.FixConfig, Want: c.Version, Got: driver}, "version of the driver")
	}
	return findings
}

func (c *gpuDriver) judgeModules(env *checks.Env) (findings []checks.Finding) {
	env.At("read /proc/modules")
	loaded, err := probe.Modules(env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	has := func(names string) bool {
		return slices.ContainsFunc(checks.ModuleNames(names), func(name string) bool { return slices.Contains(loaded, name) })
	}
	for _, m := range c.Modules {
		if has(m) {
			continue
		}
		lacks := ""
		if slices.Contains(checks.ModuleNames(m), dmaBuf) {
			env.At("look for dma-buf in /proc")
			if lacks, err = cuda.DMABufLacks(env.Host); err != nil {
				return append(findings, checks.Unreadable(err)...)
			}
			if lacks == "" {
				continue
			}
		}
		findings = append(findings, checks.Finding{Code: "gpu.driver.module", Severity: checks.Fail, Device: checks.Device{Kind: "module", Name: m},
			Want: "loaded", Got: "not loaded"}.Phrase(gpuDriverName, "kernel module %s is not loaded%s", m, checks.Before("; no dma-buf: ", lacks, "")))
	}
	return findings
}

// dmaBuf is a name for the kernel's dma-buf, which replaces the module nvidia_peermem.
const dmaBuf = "dma_buf"

func judgeInforom(s *GPUs, g *nvml.GPU) {
	corrupt := func(err error) bool { return errors.Is(err, nvml.ErrInforomCorrupt) }
	if slices.ContainsFunc([]error{g.InforomValid.Err, g.Inforom.Err, g.Serial.Err}, corrupt) {
		s.Judged = true
		s.Report(g, checks.Finding{Code: "gpu.driver.inforom", Severity: checks.Fail, Remedy: checks.RebootNode}, "the InfoROM is corrupt")
		return
	}
	Value(s, g.InforomValid)
}

// reportVersion returns a function that warns of a version that differs from most GPUs of the model.
func reportVersion(part string, s *GPUs) func(g *nvml.GPU, want, got, reference string) {
	return func(g *nvml.GPU, want, got, reference string) {
		s.Report(g, checks.Finding{Code: "gpu.driver.differ", Severity: checks.Warn, Want: want, Got: got}, "%s version differs from that of %s", part, reference)
	}
}
