package gpu

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cuda"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuDriver checks that NVIDIA's driver is loaded, that its library, its module
// and the running driver are of one version, and that the InfoROM of every GPU is
// intact. VERSION is a match string for that version. -m names a module that has
// to be loaded, or several of which one has to be: 'nvidia_peermem|nv_peer_mem'.
// dma-buf among them stands for the sharing of GPU memory with adapters that needs
// no module of its own: driver 515 and later with the open kernel module, on Linux
// 5.12 and later or a kernel whose RDMA modules know it.
// Without -m no module but the driver itself is looked for: the first CUDA program loads
// nvidia_uvm. The check warns where GPUs of one model differ in VBIOS or InfoROM.
//
//	gpu* || check_gpu_driver -m nvidia_uvm -m 'nvidia_peermem|dma-buf' 570.124.06
type gpuDriver struct {
	Version string   `arg:"1" toml:"version"` // match string for the version of the driver
	Modules []string `opt:"m" toml:"modules"` // a kernel module that has to be loaded; may be given more than once
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_gpu_driver",
		Usage:   "[-m MODULE]... [VERSION]",
		Summary: "driver, library, modules and InfoROM are in order",
		Lane:    checks.NVML,
		New:     func() checks.Check { return &gpuDriver{} },
		Do: func() map[string]string {
			return map[string]string{
				"gpu.driver.missing":  "See dmesg for NVRM lines: the driver was not built for this kernel, was unloaded, or found no GPU. Try modprobe nvidia.",
				"gpu.driver.library":  "libnvidia-ml.so.1 is not installed, is empty, or NVML_LIBRARY names another file: install the driver's libraries again, run ldconfig.",
				"gpu.driver.mismatch": "The driver was updated while the old module was loaded: reboot, or with no job on the node unload the modules and load them again.",
				"gpu.driver.version":  "Install the driver that nhc.conf asks for, or correct the line.",
				"gpu.driver.module":   "modprobe the module, and see dmesg for why it was not loaded; list it in /etc/modules-load.d.",
				"gpu.driver.unloaded": "Nothing, if a person has unloaded it for maintenance. Else modprobe nvidia, and see dmesg for NVRM lines.",
				"gpu.driver.inforom":  "Reboot; if nvidia-smi -q still says so have the GPU replaced.",
				"gpu.driver.differ":   "A board was replaced or flashed by itself: bring all to one version with the vendor's tool at the next chance.",
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
	if _, err := nvml.Ask(env.Host, nvml.GroupInforom, env.Doing); err != nil && len(views.Own()) > 0 {
		return []checks.Finding{c.notThere(views, err)}
	}
	s, findings := AskNVML(env, gpuDriverName, nvml.GroupInforom)
	if s == nil {
		return findings
	}
	findings = append(c.versions(env, s.NVML, views), c.modules(env)...)
	env.Fact("driver %s", s.NVML.Driver.Value)
	s.Judged = s.NVML.Driver.Known
	s.Each(judgeInforom)
	s.unlike(func(g *nvml.GPU) (string, bool) { return g.VBIOS.Value, g.VBIOS.Known }, differ("VBIOS", s))
	s.unlike(func(g *nvml.GPU) (string, bool) { return g.Inforom.Value, g.Inforom.Known }, differ("InfoROM", s))
	return append(findings, s.Done()...)
}

// notThere says why NVML cannot be asked though there are GPUs.
func (c *gpuDriver) notThere(views nvidia.GPUViews, err error) checks.Finding {
	f := CannotAsk(gpuDriverName, err)
	switch {
	case errors.Is(err, nvml.ErrDriverMismatch):
		f.Code, f.Severity, f.Remedy = "gpu.driver.mismatch", checks.Fail, checks.RebootNode
		f = f.Describe(gpuDriverName, "%v%s", err, checks.Before("; the loaded module is ", views.Version, ""))
	case errors.Is(err, nvml.ErrDriverNotThere):
		f.Code, f.Severity, f.Remedy = "gpu.driver.missing", checks.Fail, checks.RebootNode
		f = f.Describe(gpuDriverName, "%v", err)
	case errors.Is(err, probe.ErrNoLibrary) && !errors.Is(err, probe.ErrOtherNode):
		f.Code, f.Severity = "gpu.driver.library", checks.Fail
		f = f.Describe(gpuDriverName, "%v", err)
	}
	return f
}

func (c *gpuDriver) versions(env *checks.Env, n *nvml.Snapshot, views nvidia.GPUViews) (findings []checks.Finding) {
	add := func(f checks.Finding, text string) {
		f.Severity = checks.Fail
		findings = append(findings, f.Describe(gpuDriverName, "%s", text))
	}
	driver := n.Driver.Value
	for what, version := range map[string]string{"library": n.Library.Value, "loaded module": views.Version} {
		if version != "" && driver != "" && version != driver {
			add(checks.Finding{Code: "gpu.driver.mismatch", Remedy: checks.RebootNode, Want: driver, Got: version}, "version of the "+what)
		}
	}
	slices.SortFunc(findings, func(a, b checks.Finding) int { return strings.Compare(a.Message, b.Message) })
	unknown := func(what string, err error) {
		if err != nil && !nvml.IsGPUState(err) { // a state is reported by itself
			findings = append(findings, checks.Finding{Code: "gpu.nvml", Severity: checks.Unknown}.Describe(gpuDriverName, "version of the %s is unknown: %v", what, err))
		}
	}
	unknown("library", n.Library.Err)
	unknown("driver", n.Driver.Err)
	switch {
	case c.Version == "" || n.Driver.Err != nil:
		return findings
	case driver == "":
		unknown("driver", errors.New("NVML does not tell it, want "+c.Version))
		return findings
	}
	match := env.Matcher(&findings)
	if !match(driver, c.Version) {
		add(checks.Finding{Code: "gpu.driver.version", Remedy: checks.FixConfig, Want: c.Version, Got: driver}, "version of the driver")
	}
	return findings
}

func (c *gpuDriver) modules(env *checks.Env) (findings []checks.Finding) {
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
			Want: "loaded", Got: "not loaded"}.Phrase(gpuDriverName, "module %s is not loaded%s", m, checks.Before("; no dma-buf: ", lacks, "")))
	}
	return findings
}

// dmaBuf is what is no module, but does what nvidia_peermem does.
const dmaBuf = "dma_buf"

func judgeInforom(s *GPUs, g *nvml.GPU) {
	if errors.Is(g.InforomValid.Err, nvml.ErrInforomCorrupt) || errors.Is(g.Inforom.Err, nvml.ErrInforomCorrupt) {
		s.Judged = true
		s.Report(g, checks.Finding{Code: "gpu.driver.inforom", Severity: checks.Fail, Remedy: checks.ReseatOrRMA}, "the InfoROM is corrupt")
		return
	}
	Value(s, g.InforomValid)
}

// differ warns of a version that most other GPUs of the model have not.
func differ(what string, s *GPUs) func(g *nvml.GPU, want, got, than string) {
	return func(g *nvml.GPU, want, got, than string) {
		s.Report(g, checks.Finding{Code: "gpu.driver.differ", Severity: checks.Warn, Want: want, Got: got}, "%s version is not that of %s", what, than)
	}
}
