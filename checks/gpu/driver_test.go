package gpu

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

func TestGPUDriver(t *testing.T) { checktest.Run(t, "check_gpu_driver") }

var _ = checktest.Table("check_gpu_driver", func(name string) []checktest.Scenario {
	failing := func(code string, remedy checks.Remedy, text, want, got string) checks.Finding {
		f := checks.Finding{Code: "gpu.driver." + code, Severity: checks.Fail, Remedy: remedy, Want: want, Got: got}
		f.Message = name + ":  " + text + checktest.WantGot(f)
		return f
	}
	module := func(m string) checks.Finding {
		return checks.Finding{Code: "gpu.driver.module", Severity: checks.Fail, Device: checks.Device{Kind: "module", Name: m}, Want: "loaded", Got: "not loaded",
			Message: name + ":  kernel module " + m + " is not loaded"}
	}
	opening := func(scenarioName string, err error, want checks.Finding) checktest.Scenario {
		s := checktest.OnGPUs(scenarioName, nil, nil, want)
		s.NVML, s.NVMLErr = nil, err
		return s
	}
	noUVM := func(s checktest.Scenario) checktest.Scenario {
		return s.Holding("proc/modules", "nvidia 1 1 - Live 0x0\n")
	}
	differs := func(what, most, got string) checks.Finding {
		return checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.driver.differ", Severity: checks.Warn, Want: most, Got: got}, what+" version differs from that of the others")
	}
	common := checktest.GPUCommon(name)
	for i, s := range common { // this check itself reports a driver that is not loaded
		if s.NVMLErr != nil && s.Broken {
			common[i].Want = []checks.Finding{failing("missing", checks.FixConfig, "nvmlInit: the driver is not loaded (NVML error 9)", "", "")}
		}
	}
	gone := opening("the library is not installed", fmt.Errorf("load libnvidia-ml.so.1: %w", probe.ErrNoLibrary),
		failing("library", checks.NoRemedy, "load libnvidia-ml.so.1: not found", "", ""))
	other := opening("another error", &nvml.Error{Call: "nvmlInit", Code: 999},
		checks.Finding{Code: "gpu.nvml", Severity: checks.Unknown, Message: name + ":  cannot ask NVML: nvmlInit: unknown error (NVML error 999)"})
	other.Broken = true
	noModules := checktest.OnGPUs("unreadable modules", nil, nil, checktest.Unknown("read /proc/modules: is a directory")).Lacking("proc/modules").Holding("proc/modules/", "")
	noModules.Broken = true
	dma := func(s checktest.Scenario, kind string) checktest.Scenario {
		return s.Holding("proc/sys/kernel/osrelease", "6.8.0-31-generic\n").
			Holding("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX "+kind+"  570.124.06  Release Build\n")
	}
	noDMA := module("nvidia_peermem|dma-buf")
	noDMA.Message += "; no dma-buf: the driver's module is not the open one"
	noKernel := dma(checktest.OnGPUs("the kernel's version cannot be read", checktest.Of("-m", "dma-buf"), nil,
		checktest.Unknown("read /proc/sys/kernel/osrelease: no such file or directory")), "Open Kernel Module for x86_64").Lacking("proc/sys/kernel/osrelease")
	noKernel.Broken = true
	untold := func(scenarioName string, words []string, change func(*nvml.Snapshot), text string) checktest.Scenario {
		s := checktest.OnGPUs(scenarioName, words, change, checktest.Unknown(name+":  version of the "+text))
		s.Want[0].Code, s.Broken = "gpu.error.value", true
		return s
	}
	return append(common,
		checktest.OnGPUs("healthy", nil, nil),
		checktest.OnGPUs("the version", checktest.Of("570.124.06"), nil).OrTable(map[string]any{"version": "570.124.06"}),
		checktest.OnGPUs("a match string", checktest.Of("/^570/"), nil),
		checktest.OnGPUs("modules", checktest.Of("-m", "nvidia-uvm", "-m", "nvidia"), nil).OrTable(map[string]any{"modules": []any{"nvidia-uvm", "nvidia"}}),
		checktest.OnGPUs("one of two modules", checktest.Of("-m", "nvidia_peermem|nvidia_uvm"), nil),
		noUVM(checktest.OnGPUs("nvidia_uvm is not loaded yet", nil, nil)),
		checktest.OnGPUs("a kernel without modules", nil, nil).Lacking("proc/modules"),
		checktest.OnGPUs("InfoROM not supported", nil, func(n *nvml.Snapshot) {
			for i := range n.GPUs {
				n.GPUs[i].InforomValid = nvml.Reading[bool]{}
			}
		}),
		checktest.OnGPUs("two models, each with its VBIOS", nil, func(n *nvml.Snapshot) {
			for i := range 4 {
				n.GPUs[i].Name, n.GPUs[i].VBIOS = nvml.Known("NVIDIA A100-SXM4-80GB"), nvml.Known("92.00.45.00.03")
			}
		}),
		checktest.OnGPUs("one VBIOS differs", nil, checktest.Gpu3(func(g *nvml.GPU) { g.VBIOS = nvml.Known("96.00.89.00.01") }), differs("VBIOS", "96.00.30.00.01", "96.00.89.00.01")),
		checktest.OnGPUs("one InfoROM differs", nil, checktest.Gpu3(func(g *nvml.GPU) { g.Inforom = nvml.Known("G520.0200.00.03") }), differs("InfoROM", "G520.0200.00.05", "G520.0200.00.03")),

		dma(checktest.OnGPUs("dma-buf instead of nvidia_peermem", checktest.Of("-m", "nvidia_peermem|dma-buf"), nil), "Open Kernel Module for x86_64"),
		dma(checktest.OnGPUs("no dma-buf with this module", checktest.Of("-m", "nvidia_peermem|dma-buf"), nil, noDMA), "x86_64 Kernel Module"),
		noKernel,
		checktest.OnGPUs("another version", checktest.Of("/^580/"), nil, failing("version", checks.FixConfig, "version of the driver", "/^580/", "570.124.06")),
		noUVM(checktest.OnGPUs("a module not loaded", checktest.Of("-m", "nvidia", "-m", "nvidia_uvm", "-m", "a|b"), nil, module("nvidia_uvm"), module("a|b"))),
		opening("mismatch", &nvml.Error{Call: "nvmlInit", Code: 18}, checks.Finding{
			Code: "gpu.driver.mismatch", Severity: checks.Fail, Remedy: checks.RebootNode, Want: fakenvml.Driver, Whole: true,
			Message: name + ":  the driver's library and the loaded module 570.124.06 have different versions: reboot after a driver update (nvmlInit: NVML error 18)",
		}),
		gone, other,
		untold("the driver's version cannot be read", nil, func(n *nvml.Snapshot) { n.Driver = nvml.Failed[string](checktest.ErrOdd) }, "driver is unknown: "+checktest.OddText),
		untold("the driver's version cannot be read or compared", checktest.Of("570.124.06"), func(n *nvml.Snapshot) { n.Driver = nvml.Failed[string](checktest.ErrOdd) }, "driver is unknown: "+checktest.OddText),
		untold("the library's version cannot be read", nil, func(n *nvml.Snapshot) { n.Library = nvml.Failed[string](checktest.ErrOdd) }, "library is unknown: "+checktest.OddText),
		untold("the driver's version is not reported", checktest.Of("570.124.06"), func(n *nvml.Snapshot) { n.Driver = nvml.Reading[string]{} }, "driver is unknown: NVML does not report it, want 570.124.06"),
		untold("the driver's version is empty", checktest.Of("570.124.06"), func(n *nvml.Snapshot) { n.Driver = nvml.Known("") }, "driver is unknown: NVML does not report it, want 570.124.06"),
		checktest.OnGPUs("the driver's version is not reported and not wanted", nil, func(n *nvml.Snapshot) { n.Driver = nvml.Reading[string]{} }),
		checktest.OnGPUs("another library", nil, func(n *nvml.Snapshot) { n.Library = nvml.Known("575.1") },
			failing("mismatch", checks.RebootNode, "version of the library", "570.124.06", "575.1")),
		checktest.OnGPUs("a library that does not report a driver's version", nil, func(n *nvml.Snapshot) { n.Library = nvml.Known("12.4") }),
		checktest.OnGPUs("another module", nil, nil, failing("mismatch", checks.RebootNode, "version of the loaded module", "570.124.06", "560.35.03")).
			Holding("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  560.35.03  Fri\n"),
		checktest.OnGPUs("one corrupt InfoROM", nil, checktest.Gpu3(func(g *nvml.GPU) {
			g.InforomValid = nvml.Failed[bool](&nvml.Error{Call: "nvmlDeviceValidateInforom(3)", Code: 14})
		}), checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.driver.inforom", Severity: checks.Fail, Remedy: checks.RebootNode}, "the InfoROM is corrupt")),
		checktest.OnGPUs("one corrupt InfoROM by its version", nil, checktest.Gpu3(func(g *nvml.GPU) {
			g.Inforom, g.InforomValid = nvml.Failed[string](&nvml.Error{Call: "nvmlDeviceGetInforomImageVersion(3)", Code: 14}), nvml.Reading[bool]{}
		}), checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.driver.inforom", Severity: checks.Fail, Remedy: checks.RebootNode}, "the InfoROM is corrupt")),
		noModules,
	)
})

// driverless returns a node without the driver.
func driverless(name string, words []string, want ...checks.Finding) checktest.Scenario {
	s := checktest.OnGPUs(name, words, nil, want...)
	s.NVML, s.NVMLErr = nil, &nvml.Error{Call: "nvmlInit", Code: 9}
	for f := range s.Files {
		if strings.HasPrefix(f, "proc/driver/nvidia/") || strings.HasPrefix(f, "dev/nvidia") {
			delete(s.Files, f)
		}
	}
	s.Files["proc/modules"], s.Files["dev/null"] = "ext4 1 0 - Live 0x0\n", ""
	return s
}

var _ = checktest.Table("check_gpu_driver", func(string) []checktest.Scenario { return unloadedDriver("check_gpu_driver") })

var _ = checktest.Table("check_gpu_count", func(string) []checktest.Scenario { return unloadedDriver("check_gpu_count", "8") })

var _ = checktest.Table("check_gpu_ecc", func(string) []checktest.Scenario { return unloadedDriver("check_gpu_ecc") })

// A driver that an administrator has unloaded is not a fault; one that did not load, or that a job
// needs, is.
func unloadedDriver(check string, words ...string) []checktest.Scenario {
	unloaded := checks.Finding{Code: "gpu.driver.unloaded", Severity: checks.Skip, Got: "not loaded",
		Message: check + ":  the driver is unloaded (no module, no device node, no job): 8 GPUs not checked"}
	missing := func(why string) checks.Finding {
		return checks.Finding{Code: "gpu.driver.missing", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "loaded", Got: "not loaded", Whole: true,
			Message: check + ":  the driver is not loaded for 8 GPUs: " + why}
	}
	const boot = "proc/sys/kernel/random/boot_id"
	module := driverless("no device nodes, but a module", words).Holding("proc/modules", "nvidia 1 0 - Live 0x0\n")
	node := driverless("no module, but a device node", words).Holding("dev/nvidiactl", "")
	for _, s := range []*checktest.Scenario{&module, &node} {
		s.Broken = true
		switch f := (checks.Finding{Code: "gpu.nvml", Severity: checks.Unknown, Message: check + ":  cannot ask NVML: nvmlInit: the driver is not loaded (NVML error 9)"}); check {
		case "check_gpu_driver":
			f = checks.Finding{Code: "gpu.driver.missing", Severity: checks.Fail, Remedy: checks.FixConfig, Message: check + ":  nvmlInit: the driver is not loaded (NVML error 9)"}
			s.Want = []checks.Finding{f}
		case "check_gpu_count":
			f = checks.Finding{Code: "gpu.nvml", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "8 GPUs", Got: "0",
				Message: check + ":  want 8 GPUs, got 0: 8 on the PCI bus, and NVML cannot be asked: nvmlInit: the driver is not loaded (NVML error 9)"}
			s.Want = []checks.Finding{f}
		default:
			s.Want = []checks.Finding{f}
		}
	}
	running := driverless("no driver, and a job runs", words, missing("job 123 runs here"))
	maps.Copy(running.Files, checktest.UseNode(checktest.UseProc{PID: 1, Args: "/sbin/init"}, checktest.UseProc{PID: 50, Args: "slurmstepd: [123.batch]"}))
	running.Broken = true
	failed := driverless("the driver could not be loaded", words, missing(`the kernel's log has "None of the NVIDIA devices were initialized"`)).
		Holding("dev/kmsg", "4,1,1000000,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.124.06  Fri\n4,2,2000000,-;NVRM: None of the NVIDIA devices were initialized.\n")
	failed.Broken = true
	dead := missing(`the kernel's log has "The NVIDIA probe routine failed for 8 device(s)"`)
	dead.Remedy = checks.PowerCycle
	fallen := driverless("the GPUs fell off the bus before the driver", words, dead).
		Holding("dev/kmsg", `4,1,1000000,-;NVRM: The NVIDIA GPU 0000:10:00.0\x0aNVRM: (PCI ID: 10de:2330)\x0aNVRM: installed in this system has\x0aNVRM: fallen off the bus and is not responding to commands.`+
			"\n4,2,2000000,-;NVRM: The NVIDIA probe routine failed for 8 device(s).\n4,3,2000001,-;NVRM: None of the NVIDIA devices were initialized.\n")
	fallen.Broken = true
	unbuilt := driverless("the module is of another kernel", words, missing(`the kernel's log has "nvidia: version magic '6.8.0-40-generic SMP' should be '6.8.0-41-generic SMP'"`)).
		Holding("dev/kmsg", "4,1,1000000,-;nvidia: version magic '6.8.0-40-generic SMP' should be '6.8.0-41-generic SMP'\n")
	unbuilt.Broken = true
	again := driverless("loaded at the second attempt, then unloaded", words, unloaded).
		Holding("dev/kmsg", "4,1,1000000,-;NVRM: None of the NVIDIA devices were initialized.\n4,2,2000000,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.124.06  Fri\n")
	rebooted := driverless("not loaded since boot", words, missing("it was loaded before the last boot, but not since")).
		Holding("past/gpu-boards.json", `{"machine":"","boot":"b1","boards":{"0000:10:00.0":{"uuid":"GPU-1"}}}`).Holding(boot, "b2\n")
	rebooted.Broken = true
	ofMonitor := func(s checktest.Scenario) checktest.Scenario {
		early := unloaded
		early.Message = check + ":  the driver is not loaded yet, which a run of the monitor cannot do: 8 GPUs not checked"
		s.Name, s.Part, s.UnitOnly, s.Broken, s.Want = s.Name+", after an event", true, true, false, []checks.Finding{early}
		return s
	}
	inBoot := driverless("gone since an earlier run, and Slurm has GPUs, after an event", words, missing("Slurm schedules 8 GPUs of this node")).
		Holding("past/gpu-boards.json", `{"machine":"","boot":"b1","boards":{"0000:10:00.0":{"uuid":"GPU-1"}}}`).Holding(boot, "b1\n")
	inBoot.Part, inBoot.UnitOnly, inBoot.Broken, inBoot.Slurm = true, true, true, &jobscan.SlurmGPUs{Count: 8, NVIDIA: true}
	return []checktest.Scenario{
		driverless("unloaded by an administrator", words, unloaded), module, node, running, failed, fallen, unbuilt, again, rebooted,
		driverless("unloaded since an earlier run", words, unloaded).
			Holding("past/gpu-boards.json", `{"machine":"","boot":"b1","boards":{"0000:10:00.0":{"uuid":"GPU-1"}}}`).Holding(boot, "b1\n"),
		ofMonitor(module), ofMonitor(node), ofMonitor(running), ofMonitor(failed), ofMonitor(rebooted), inBoot,
	}
}
