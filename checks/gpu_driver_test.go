package checks

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

func TestGPUDriver(t *testing.T) { testCheck(t, "check_gpu_driver") }

var _ = table("check_gpu_driver", func(name string) []scenario {
	failing := func(code string, remedy Remedy, text, want, got string) Finding {
		f := Finding{Code: "gpu.driver." + code, Severity: Fail, Remedy: remedy, Want: want, Got: got}
		f.Message = name + ":  " + text + wantGot(f)
		return f
	}
	module := func(m string) Finding {
		return Finding{Code: "gpu.driver.module", Severity: Fail, Device: Device{Kind: "module", Name: m}, Want: "loaded", Got: "not loaded",
			Message: name + ":  module " + m + " is not loaded"}
	}
	opening := func(scenarioName string, err error, want Finding) scenario {
		s := onGPUs(scenarioName, nil, nil, want)
		s.nvml, s.nvmlErr = nil, err
		return s
	}
	noUVM := func(s scenario) scenario { return s.holding("proc/modules", "nvidia 1 1 - Live 0x0\n") }
	differs := func(what, most, got string) Finding {
		return gpuFinding(name, 3, Finding{Code: "gpu.driver.differ", Severity: Warn, Want: most, Got: got}, what+" version is not that of the others")
	}
	common := gpuCommon(name)
	for i, s := range common { // a driver that is not loaded is what this check is about
		if s.nvmlErr != nil && s.broken {
			common[i].want = []Finding{failing("missing", RebootNode, "nvmlInit: the driver is not loaded (NVML error 9)", "", "")}
		}
	}
	gone := opening("the library is not installed", fmt.Errorf("load libnvidia-ml.so.1: %w", probe.ErrNoLibrary),
		failing("library", NoRemedy, "load libnvidia-ml.so.1: not found", "", ""))
	other := opening("another error", &probe.NVMLError{Call: "nvmlInit", Code: 999},
		Finding{Code: "gpu.nvml", Severity: Unknown, Message: name + ":  cannot ask NVML: nvmlInit: unknown error (NVML error 999)"})
	other.broken = true
	noModules := onGPUs("unreadable modules", nil, nil, unknown("read /proc/modules: is a directory")).lacking("proc/modules").holding("proc/modules/", "")
	noModules.broken = true
	dma := func(s scenario, kind string) scenario {
		return s.holding("proc/sys/kernel/osrelease", "6.8.0-31-generic\n").
			holding("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX "+kind+"  570.124.06  Release Build\n")
	}
	noDMA := module("nvidia_peermem|dma-buf")
	noDMA.Message += "; no dma-buf: the driver's module is not the open one"
	noKernel := dma(onGPUs("the kernel's version cannot be read", of("-m", "dma-buf"), nil,
		unknown("read /proc/sys/kernel/osrelease: no such file or directory")), "Open Kernel Module for x86_64").lacking("proc/sys/kernel/osrelease")
	noKernel.broken = true
	untold := func(scenarioName string, words []string, change func(*probe.NVML), text string) scenario {
		s := onGPUs(scenarioName, words, change, unknown(name+":  version of the "+text))
		s.want[0].Code, s.broken = "gpu.nvml", true
		return s
	}
	return append(common,
		onGPUs("healthy", nil, nil),
		onGPUs("the version", of("570.124.06"), nil).orTable(map[string]any{"version": "570.124.06"}),
		onGPUs("a match string", of("/^570/"), nil),
		onGPUs("modules", of("-m", "nvidia-uvm", "-m", "nvidia"), nil).orTable(map[string]any{"modules": []any{"nvidia-uvm", "nvidia"}}),
		onGPUs("one of two modules", of("-m", "nvidia_peermem|nvidia_uvm"), nil),
		noUVM(onGPUs("nvidia_uvm not loaded yet", nil, nil)),
		onGPUs("a kernel without modules", nil, nil).lacking("proc/modules"),
		onGPUs("InfoROM not supported", nil, func(n *probe.NVML) {
			for i := range n.GPUs {
				n.GPUs[i].InforomValid = probe.Reading[bool]{}
			}
		}),
		onGPUs("two models, each with its VBIOS", nil, func(n *probe.NVML) {
			for i := range 4 {
				n.GPUs[i].Name, n.GPUs[i].VBIOS = probe.Known("NVIDIA A100-SXM4-80GB"), probe.Known("92.00.45.00.03")
			}
		}),
		onGPUs("one VBIOS differs", nil, gpu3(func(g *probe.GPU) { g.VBIOS = probe.Known("96.00.89.00.01") }), differs("VBIOS", "96.00.30.00.01", "96.00.89.00.01")),
		onGPUs("one InfoROM differs", nil, gpu3(func(g *probe.GPU) { g.Inforom = probe.Known("G520.0200.00.03") }), differs("InfoROM", "G520.0200.00.05", "G520.0200.00.03")),

		dma(onGPUs("dma-buf in place of nvidia_peermem", of("-m", "nvidia_peermem|dma-buf"), nil), "Open Kernel Module for x86_64"),
		dma(onGPUs("no dma-buf with this module", of("-m", "nvidia_peermem|dma-buf"), nil, noDMA), "x86_64 Kernel Module"),
		noKernel,
		onGPUs("another version", of("/^580/"), nil, failing("version", FixConfig, "version of the driver", "/^580/", "570.124.06")),
		noUVM(onGPUs("a module not loaded", of("-m", "nvidia", "-m", "nvidia_uvm", "-m", "a|b"), nil, module("nvidia_uvm"), module("a|b"))),
		opening("mismatch", &probe.NVMLError{Call: "nvmlInit", Code: 18}, Finding{
			Code: "gpu.driver.mismatch", Severity: Fail, Remedy: RebootNode, Want: fakenvml.Driver, Whole: true,
			Message: name + ":  the driver's library and the loaded module 570.124.06 are of different versions: an update needs a reboot (nvmlInit: NVML error 18)",
		}),
		gone, other,
		untold("the driver's version cannot be read", nil, func(n *probe.NVML) { n.Driver = probe.Failed[string](errOdd) }, "driver is unknown: "+oddText),
		untold("nor can it be compared", of("570.124.06"), func(n *probe.NVML) { n.Driver = probe.Failed[string](errOdd) }, "driver is unknown: "+oddText),
		untold("the library's version cannot be read", nil, func(n *probe.NVML) { n.Library = probe.Failed[string](errOdd) }, "library is unknown: "+oddText),
		untold("the driver's version is not told", of("570.124.06"), func(n *probe.NVML) { n.Driver = probe.Reading[string]{} }, "driver is unknown: NVML does not tell it, want 570.124.06"),
		untold("the driver's version is empty", of("570.124.06"), func(n *probe.NVML) { n.Driver = probe.Known("") }, "driver is unknown: NVML does not tell it, want 570.124.06"),
		onGPUs("the driver's version is not told, nor wanted", nil, func(n *probe.NVML) { n.Driver = probe.Reading[string]{} }),
		onGPUs("another library", nil, func(n *probe.NVML) { n.Library = probe.Known("575.1") },
			failing("mismatch", RebootNode, "version of the library", "570.124.06", "575.1")),
		onGPUs("another module", nil, nil, failing("mismatch", RebootNode, "version of the loaded module", "570.124.06", "560.35.03")).
			holding("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  560.35.03  Fri\n"),
		onGPUs("one corrupt InfoROM", nil, gpu3(func(g *probe.GPU) {
			g.InforomValid = probe.Failed[bool](&probe.NVMLError{Call: "nvmlDeviceValidateInforom(3)", Code: 14})
		}), gpuFinding(name, 3, Finding{Code: "gpu.driver.inforom", Severity: Fail, Remedy: ReseatOrRMA}, "the InfoROM is corrupt")),
		onGPUs("one corrupt InfoROM by its version", nil, gpu3(func(g *probe.GPU) {
			g.Inforom, g.InforomValid = probe.Failed[string](&probe.NVMLError{Call: "nvmlDeviceGetInforomImageVersion(3)", Code: 14}), probe.Reading[bool]{}
		}), gpuFinding(name, 3, Finding{Code: "gpu.driver.inforom", Severity: Fail, Remedy: ReseatOrRMA}, "the InfoROM is corrupt")),
		noModules,
	)
})

// driverless is a node whose driver is not there at all.
func driverless(name string, words []string, want ...Finding) scenario {
	s := onGPUs(name, words, nil, want...)
	s.nvml, s.nvmlErr = nil, &probe.NVMLError{Call: "nvmlInit", Code: 9}
	for f := range s.files {
		if strings.HasPrefix(f, "proc/driver/nvidia/") || strings.HasPrefix(f, "dev/nvidia") {
			delete(s.files, f)
		}
	}
	s.files["proc/modules"], s.files["dev/null"] = "ext4 1 0 - Live 0x0\n", ""
	return s
}

var _ = table("check_gpu_driver", func(string) []scenario { return unloadedDriver("check_gpu_driver") })

var _ = table("check_gpu_count", func(string) []scenario { return unloadedDriver("check_gpu_count", "8") })

var _ = table("check_gpu_ecc", func(string) []scenario { return unloadedDriver("check_gpu_ecc") })

// A driver that a person has unloaded is no fault; one that did not load, or is needed, is.
func unloadedDriver(check string, words ...string) []scenario {
	unloaded := Finding{Code: "gpu.driver.unloaded", Severity: Skip, Got: "not loaded",
		Message: check + ":  the driver is unloaded (no module, no device node, no job): 8 GPUs not checked"}
	missing := func(why string) Finding {
		return Finding{Code: "gpu.driver.missing", Severity: Fail, Remedy: RebootNode, Want: "loaded", Got: "not loaded", Whole: true,
			Message: check + ":  the driver is not loaded for 8 GPUs: " + why}
	}
	const boot = "proc/sys/kernel/random/boot_id"
	module := driverless("no device nodes, but a module", words).holding("proc/modules", "nvidia 1 0 - Live 0x0\n")
	node := driverless("no module, but a device node", words).holding("dev/nvidiactl", "")
	for _, s := range []*scenario{&module, &node} {
		s.broken = true
		switch f := (Finding{Code: "gpu.nvml", Severity: Unknown, Message: check + ":  cannot ask NVML: nvmlInit: the driver is not loaded (NVML error 9)"}); check {
		case "check_gpu_driver":
			f = Finding{Code: "gpu.driver.missing", Severity: Fail, Remedy: RebootNode, Message: check + ":  nvmlInit: the driver is not loaded (NVML error 9)"}
			s.want = []Finding{f}
		case "check_gpu_count":
			f = Finding{Code: "gpu.nvml", Severity: Fail, Remedy: RebootNode, Want: "8 GPUs", Got: "0",
				Message: check + ":  want 8 GPUs, got 0: 8 on the PCI bus, and NVML cannot be asked: nvmlInit: the driver is not loaded (NVML error 9)"}
			s.want = []Finding{f}
		default:
			s.want = []Finding{f}
		}
	}
	running := driverless("no driver, and a job runs", words, missing("job 123 runs here"))
	maps.Copy(running.files, useNode(useProc{pid: 1, args: "/sbin/init"}, useProc{pid: 50, args: "slurmstepd: [123.batch]"}))
	running.broken = true
	failed := driverless("the driver could not be loaded", words, missing(`the kernel's log has "None of the NVIDIA devices were initialized"`)).
		holding("dev/kmsg", "4,1,1000000,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.124.06  Fri\n4,2,2000000,-;NVRM: None of the NVIDIA devices were initialized.\n")
	failed.broken = true
	again := driverless("it was loaded at the second try, and unloaded", words, unloaded).
		holding("dev/kmsg", "4,1,1000000,-;NVRM: None of the NVIDIA devices were initialized.\n4,2,2000000,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.124.06  Fri\n")
	rebooted := driverless("not loaded since the boot", words, missing("it was before the last boot, and has not been since")).
		holding("past/gpu-boards.json", `{"machine":"","boot":"b1","boards":{"0000:10:00.0":{"uuid":"GPU-1"}}}`).holding(boot, "b2\n")
	rebooted.broken = true
	return []scenario{
		driverless("unloaded by a person", words, unloaded), module, node, running, failed, again, rebooted,
		driverless("unloaded since an earlier run", words, unloaded).
			holding("past/gpu-boards.json", `{"machine":"","boot":"b1","boards":{"0000:10:00.0":{"uuid":"GPU-1"}}}`).holding(boot, "b1\n"),
	}
}
