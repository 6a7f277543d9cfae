package gpu

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

const (
	rackUUID  = "9c6f5af353bf49b5a436b66766c413c3"
	otherRack = "11111111222233334444555555555555"
)

func tray() *checks.Platform {
	return &checks.Platform{Name: "GB200", File: "conf/profiles/gb200.toml", NVLinks: 18, NVLinkDomain: 72}
}

// inFabric returns a change of a GPU's fabric.
func inFabric(change func(*nvml.Fabric)) func(*nvml.GPU) {
	return func(g *nvml.GPU) {
		f := nvml.Fabric{State: nvml.FabricCompleted}
		if change != nil {
			change(&f)
		}
		g.Fabric = nvml.Known(f)
	}
}

// inRack makes a GPU a healthy one of an NVL72 rack, then changes it.
func inRack(change func(*nvml.Fabric)) func(*nvml.GPU) {
	return inFabric(func(f *nvml.Fabric) {
		*f = nvml.Fabric{State: nvml.FabricCompleted, Clique: 4026, Cluster: rackUUID, Mask: 0xaa, Summary: 1}
		if change != nil {
			change(f)
		}
	})
}

// rackWith makes a node one of a rack, with a changed gpu3.
func rackWith(change func(*nvml.Fabric)) func(*nvml.Snapshot) {
	return func(n *nvml.Snapshot) {
		allGPUs(inRack(nil))(n)
		inRack(change)(&n.GPUs[3])
	}
}

// throughSwitches adds four NVSwitches to the PCI bus, and running programs.
func throughSwitches(s checktest.Scenario, programs ...string) checktest.Scenario {
	for i := range 4 {
		dir := fmt.Sprintf("sys/bus/pci/devices/0000:%02x:00.0/", 5+i)
		maps.Copy(s.Files, map[string]string{dir + "vendor": "0x10de\n", dir + "class": "0x068000\n", dir + "device": "0x22a3\n"})
	}
	return running(s, programs...)
}

func running(s checktest.Scenario, programs ...string) checktest.Scenario {
	procs := []checktest.UseProc{{PID: 1, Args: "/sbin/init"}}
	for i, p := range programs {
		procs = append(procs, checktest.UseProc{PID: 100 + i, Args: p})
	}
	maps.Copy(s.Files, checktest.UseNode(procs...))
	return s
}

func withChannels(s checktest.Scenario, n int) checktest.Scenario {
	for i := range n {
		s.Files[fmt.Sprintf("dev/nvidia-caps-imex-channels/channel%d", i)] = ""
	}
	return s
}

func fabricSays(severity checks.Severity, code, want, got, text string) checks.Finding {
	return checktest.GPUFinding(gpuFabricName, 3, checks.Finding{Code: "gpu.fabric." + code, Severity: severity, Remedy: checks.CheckFabric, Want: want, Got: got}, text)
}

func fabricOnNode(severity checks.Severity, code, want, got, message string) checks.Finding {
	return checks.Finding{Code: "gpu.fabric." + code, Severity: severity, Remedy: checks.CheckFabric, Want: want, Got: got, Message: gpuFabricName + ":  " + message}
}

func TestGPUFabric(t *testing.T) { checktest.Run(t, "check_gpu_fabric") }

var _ = checktest.Table("check_gpu_fabric", func(string) (list []checktest.Scenario) {
	list = append(list, checktest.GPULacks(gpuFabricName, "state of the fabric", func(g *nvml.GPU) { g.Fabric = nvml.Reading[nvml.Fabric]{} })...)
	list = append(list, append(checktest.GPUCommon(gpuFabricName),
		checktest.OnGPUs("healthy", nil, nil),
		checktest.OnGPUs("healthy, all of the health mask reported", nil, allGPUs(inFabric(func(f *nvml.Fabric) { f.Mask, f.Summary = 0x1aa, 1 }))),
		checktest.OnGPUs("GPUs without a fabric", nil, allGPUs(inFabric(func(f *nvml.Fabric) { *f = nvml.Fabric{} })),
			checks.Finding{Code: "gpu.fabric.none", Severity: checks.Skip, Message: gpuFabricName + ":  these GPUs do not have an NVLink fabric"}),
		checktest.OnV100s("NVML reports no fabric", nil, nil,
			checks.Finding{Code: "gpu.unsupported", Severity: checks.Skip, Message: gpuFabricName + ":  not supported by these GPUs or their driver"}),
		checktest.GPUDumb(gpuFabricName),
	)...)
	list = append(list, fabricStates()...)
	list = append(list, fabricDomains()...)
	list = append(list, fabricHealth()...)
	list = append(list, fabricServices()...)
	return list
})

func fabricStates() []checktest.Scenario {
	const file, progress = "past/gpu-fabric.json", "in progress"
	state := func(n int) func(*nvml.Snapshot) {
		return checktest.Gpu3(inFabric(func(f *nvml.Fabric) { f.State = n }))
	}
	withMIG := func(n int) func(*nvml.Snapshot) {
		return func(s *nvml.Snapshot) {
			state(n)(s)
			s.GPUs[3].Modes.MIG = nvml.Known(true)
		}
	}
	outside := checktest.GPUFinding(gpuFabricName, 3, checks.Finding{Code: "gpu.fabric.mig", Severity: checks.Skip}, "MIG is on: it need not join the fabric")
	status := func(n int) func(*nvml.Snapshot) {
		return checktest.Gpu3(inFabric(func(f *nvml.Fabric) { f.Status = n }))
	}
	twice := func(boot string) string { return before300(fmt.Sprintf(`{"boot":%q,"in_a_row":{"state":2}}`, boot)) }
	const text = "state of the fabric"
	says, name := fabricSays, gpuFabricName
	odd := checktest.OnGPUs("one cannot be read", nil, checktest.Gpu3(func(g *nvml.GPU) { g.Fabric = nvml.Failed[nvml.Fabric](checktest.ErrOdd) }),
		checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error", Severity: checks.Unknown}, "cannot be read: "+checktest.OddText))
	strange := checktest.OnGPUs("an unknown state", nil, state(200),
		checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.fabric.unknown", Severity: checks.Unknown, Want: "completed", Got: "unknown state 200"}, text))
	past := checktest.OnGPUs("the stored state is garbage", nil, nil,
		checks.Finding{Code: "gpu.past", Severity: checks.Warn, Message: name + ":  /past/gpu-fabric.json is damaged"}).Holding(file, "x")
	odd.Broken, strange.Broken, past.Broken = true, true, true
	logged := says(checks.Fail, "status", "success", "insufficient resources", "state of the fabric is completed, but its status")
	logged.Message += "; the kernel has logged SXid 20034 of 0000:05:00.0"
	many := logged
	many.Message += ", SXid 20034 of 0000:06:00.0, SXid 20034 of 0000:07:00.0, 1 more"
	logging := func(s checktest.Scenario, buses ...int) checktest.Scenario {
		var lines []string
		for _, bus := range buses {
			lines = append(lines, fmt.Sprintf("90000 nvidia-nvswitch%d: SXid (PCI:0000:%02x:00.0): 20034, Fatal, Link 35 LTSSM Fault Up", bus-5, bus))
		}
		log := checktest.XidNode(lines...)
		for _, f := range []string{"dev/kmsg", "proc/stat", "proc/uptime", "proc/sys/kernel/random/boot_id"} {
			s.Files[f] = log[f]
		}
		return s
	}
	return []checktest.Scenario{
		checktest.OnGPUs("completed without resources", nil, status(nvml.FabricNoResources), says(checks.Fail, "status", "success", "insufficient resources", "state of the fabric is completed, but its status")),
		checktest.OnGPUs("another status", nil, status(999), says(checks.Fail, "status", "success", "NVML error 999", "state of the fabric is completed, but its status")),
		inBoot(checktest.OnGPUs("in progress, once", nil, state(nvml.FabricInProgress), says(checks.Warn, "state", "completed", progress, text))),
		inBoot(checktest.OnGPUs("in progress, three times", nil, state(nvml.FabricInProgress), says(checks.Fail, "state", "completed", progress, text+", in 3 consecutive runs"))).Holding(file, twice(nvlinkBoot)),
		inBoot(checktest.OnGPUs("in progress, three times, with MIG", nil, withMIG(nvml.FabricInProgress), outside)).Holding(file, twice(nvlinkBoot)),
		checktest.OnGPUs("one of eight is not in the fabric, with MIG", nil, withMIG(nvml.FabricNotSupported), outside),
		checktest.OnGPUs("one of eight is not in the fabric, with MIG after the next reset", nil, func(s *nvml.Snapshot) {
			state(nvml.FabricNotSupported)(s)
			s.GPUs[3].Modes.MIGPending = nvml.Known(true)
		}, says(checks.Fail, "state", "completed", "not supported", text+" differs from that of the others")),
		inBoot(checktest.OnGPUs("not started, three times", nil, state(nvml.FabricNotStarted), says(checks.Fail, "state", "completed", "not started", text+", in 3 consecutive runs"))).Holding(file, twice(nvlinkBoot)),
		inBoot(checktest.OnGPUs("in progress, three times, and another run ten seconds later", nil, state(nvml.FabricInProgress), says(checks.Fail, "state", "completed", progress, text+", in 3 consecutive runs"))).Holding(file, pastAt(10*time.Second, fmt.Sprintf(`{"boot":%q,"in_a_row":{"state":3}}`, nvlinkBoot))),
		inBoot(checktest.OnGPUs("in progress, twice before the boot", nil, state(nvml.FabricInProgress), says(checks.Warn, "state", "completed", progress, text))).Holding(file, twice("other")),
		checktest.OnGPUs("in progress, unknown boot", nil, state(nvml.FabricInProgress), says(checks.Warn, "state", "completed", progress, text)).Holding(file, twice("")),
		checktest.OnGPUs("one of eight is not in the fabric", nil, state(nvml.FabricNotSupported), says(checks.Fail, "state", "completed", "not supported", text+" differs from that of the others")),
		logging(checktest.OnGPUs("the kernel has errors of a switch", nil, status(nvml.FabricNoResources), logged), 5),
		logging(checktest.OnGPUs("the kernel has errors of four switches", nil, status(nvml.FabricNoResources), many), 5, 6, 7, 8),
		odd, strange, past,
	}
}

func fabricDomains() []checktest.Scenario {
	says := fabricSays
	const cluster, clique = "cluster UUID of the NVLink domain", "clique of the NVLink domain"
	half := func(n *nvml.Snapshot) {
		allGPUs(inRack(nil))(n)
		for i := range 4 {
			inRack(func(f *nvml.Fabric) { f.Clique = 1 })(&n.GPUs[i])
		}
	}
	alone := func(n *nvml.Snapshot) {
		n.GPUs = n.GPUs[3:4]
		inFabric(nil)(&n.GPUs[0])
	}
	noClique := func(n *nvml.Snapshot) {
		n.GPUs = n.GPUs[3:4]
		inRack(func(f *nvml.Fabric) { f.Clique = 0 })(&n.GPUs[0])
	}
	out := func(n *nvml.Snapshot) {
		n.GPUs = n.GPUs[2:4]
		allGPUs(inFabric(func(f *nvml.Fabric) { *f = nvml.Fabric{} }))(n)
	}
	outOf := func(i int) checks.Finding {
		return checktest.GPUFinding(gpuFabricName, i, checks.Finding{Code: "gpu.fabric.state", Severity: checks.Warn, Remedy: checks.CheckFabric, Want: "completed", Got: "not supported"}, "state of the fabric")
	}
	return []checktest.Scenario{
		checktest.OnGPUs("in a rack", nil, rackWith(nil)).On(tray()), checktest.OnGPUs("in a rack of an unknown platform", nil, rackWith(nil)),
		checktest.OnGPUs("two partitions on purpose", nil, half).On(tray()),
		checktest.OnGPUs("not in the domain of the others", nil, rackWith(func(f *nvml.Fabric) { f.Cluster, f.Clique = "", 0 }),
			says(checks.Fail, "domain", rackUUID, "0", cluster+" differs from that of the others")),
		checktest.OnGPUs("in another domain", nil, rackWith(func(f *nvml.Fabric) { f.Cluster = otherRack }),
			says(checks.Fail, "domain", rackUUID, otherRack, cluster+" differs from that of the others")),
		checktest.OnGPUs("in another clique", nil, rackWith(func(f *nvml.Fabric) { f.Clique = 7 }), says(checks.Fail, "domain", "4026", "7", clique+" differs from that of the others")),
		checktest.OnGPUs("in no domain, on a platform that has one", nil, alone, says(checks.Fail, "domain", "not 0", "0", cluster)).On(tray()),
		checktest.OnGPUs("in no domain, NVLinks only to other GPUs", nil, func(n *nvml.Snapshot) {
			allGPUs(direct)(n)
			allGPUs(func(g *nvml.GPU) { g.Fabric = nvml.Known(nvml.Fabric{}) })(n)
		}, checks.Finding{Code: "gpu.fabric.none", Severity: checks.Skip, Message: gpuFabricName + ":  these GPUs do not have an NVLink fabric"}).On(tray()),
		checktest.OnGPUs("in no clique, on a platform that has one", nil, noClique, says(checks.Warn, "domain", "not 0", "0", clique)).On(tray()),
		checktest.OnGPUs("in no fabric, on a platform that has one", nil, out, outOf(2), outOf(3)).On(tray()),
		checktest.OnGPUs("a single GPU", nil, func(n *nvml.Snapshot) { out(n); n.GPUs = n.GPUs[1:] },
			checks.Finding{Code: "gpu.fabric.none", Severity: checks.Skip, Message: gpuFabricName + ":  these GPUs do not have an NVLink fabric"}).On(tray()),
	}
}

func fabricHealth() []checktest.Scenario {
	mask := func(mask uint32, summary int) func(*nvml.Snapshot) {
		return checktest.Gpu3(inFabric(func(f *nvml.Fabric) { f.Mask, f.Summary = mask, summary }))
	}
	says := func(severity checks.Severity, text string) checks.Finding {
		return fabricSays(severity, "health", "", "", "health of the fabric: "+text)
	}
	unknown := func(text string) checks.Finding {
		return checktest.GPUFinding(gpuFabricName, 3, checks.Finding{Code: "gpu.fabric.unknown", Severity: checks.Unknown}, "health of the fabric has an unknown value, "+text)
	}
	const recovery = "route recovery in progress"
	list := []checktest.Scenario{
		checktest.OnGPUs("degraded bandwidth", nil, mask(0xa9, 2), says(checks.Fail, "degraded bandwidth")),
		checktest.OnGPUs("an unhealthy route", nil, mask(0x9a, 2), says(checks.Fail, "route unhealthy")),
		inBoot(checktest.OnGPUs("route recovery", nil, mask(0xa6, 0), says(checks.Warn, recovery))),
		inBoot(checktest.OnGPUs("route recovery, three times", nil, mask(0xa6, 0), says(checks.Fail, recovery+", in 3 consecutive runs"))).
			Holding("past/gpu-fabric.json", before300(fmt.Sprintf(`{"boot":%q,"in_a_row":{%q:2}}`, nvlinkBoot, recovery))),
		checktest.OnGPUs("access timeout recovery", nil, mask(0x6a, 0), says(checks.Warn, "access timeout recovery in progress")),
		checktest.OnGPUs("two faults at once", nil, mask(0x99, 2), says(checks.Fail, "degraded bandwidth"), says(checks.Fail, "route unhealthy")),
		checktest.OnGPUs("no partition", nil, mask(0x21aa, 1), says(checks.Warn, "no partition assigned")),
		checktest.OnGPUs("no connection to the rack's manager", nil, mask(0x91aa, 1), says(checks.Warn, "connection to the rack's fabric manager lost")),
		checktest.OnGPUs("unhealthy without a reason", nil, mask(0xaa, 2), says(checks.Fail, "unhealthy")),
		checktest.OnGPUs("limited without a reason", nil, mask(0, 3), says(checks.Warn, "limited capacity")),
	}
	for i, text := range wrongConfigs {
		if text != "" {
			list = append(list, checktest.OnGPUs(fmt.Sprintf("incorrect configuration %d", i), nil, mask(uint32(i)<<8|0xaa, 2), says(checks.Fail, "incorrect configuration, "+text)))
		}
	}
	for _, strange := range []checktest.Scenario{
		checktest.OnGPUs("an unknown health", nil, mask(0xab, 0), unknown("0xab")),
		checktest.OnGPUs("an unknown field of the health", nil, mask(0x9b, 0), says(checks.Fail, "route unhealthy"), unknown("0x9b")),
		checktest.OnGPUs("an unknown configuration", nil, mask(0xfaa, 0), unknown("0xfaa")),
		checktest.OnGPUs("an unknown summary", nil, mask(0xaa, 77), unknown("0xaa")),
	} {
		strange.Broken = true
		list = append(list, strange)
	}
	return list
}

func fabricServices() []checktest.Scenario {
	const fm, imex = "/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg", "/usr/bin/nvidia-imex -c /etc/nvidia-imex/config.cfg"
	stopped := func(severity checks.Severity) checks.Finding {
		return fabricOnNode(severity, "manager", "running", "not running", "NVSwitches on the PCI bus: 4, want nv-fabricmanager running, got none")
	}
	noIMEX := func(severity checks.Severity, channels int) checks.Finding {
		return fabricOnNode(severity, "imex", "running", "not running", fmt.Sprintf("IMEX channels of the node: %d, want nvidia-imex running, got none", channels))
	}
	misconfigured := func(f checks.Finding) checks.Finding {
		f.Remedy = checks.FixConfig
		return f
	}
	ampere := allGPUs(func(g *nvml.GPU) { g.Fabric = nvml.Reading[nvml.Fabric]{} })
	waiting := func(n *nvml.Snapshot) { inFabric(func(f *nvml.Fabric) { f.State = nvml.FabricInProgress })(&n.GPUs[3]) }
	joining := allGPUs(inFabric(func(f *nvml.Fabric) { f.State = nvml.FabricInProgress }))
	starting := func(texts string) checks.Finding {
		return checks.Finding{Code: "gpu.fabric.boot", Severity: checks.Skip, Message: gpuFabricName + ":  not judged in the first 300 s after a boot, booted 60 s ago: " + texts}
	}
	const noManager = "NVSwitches on the PCI bus: 4, want nv-fabricmanager running, got none"
	passed := throughSwitches(checktest.OnGPUs("NVSwitches of a virtual machine", nil, ampere,
		checks.Finding{Code: "gpu.unsupported", Severity: checks.Skip, Message: gpuFabricName + ":  not supported by these GPUs or their driver"}))
	passed.Links = map[string]string{}
	for i := range 4 {
		passed.Links[fmt.Sprintf("sys/bus/pci/devices/0000:%02x:00.0/driver", 5+i)] = "../../../bus/pci/drivers/vfio-pci"
	}
	channels := checktest.OnGPUs("unreadable channels", nil, nil, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /dev/nvidia-caps-imex-channels: not a directory"}).
		Holding("dev/nvidia-caps-imex-channels", "")
	channels.Broken = true
	hidden := throughSwitches(checktest.OnGPUs("hidden processes", nil, ampere, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown,
		Message: gpuFabricName + ":  cannot see whether nv-fabricmanager and nvidia-imex run: /proc hides processes"}))
	maps.DeleteFunc(hidden.Files, func(f, _ string) bool { return strings.HasPrefix(f, "proc/1/") })
	hidden.Broken = true
	return []checktest.Scenario{
		throughSwitches(checktest.OnGPUs("NVSwitches, and their manager", nil, nil), fm),
		throughSwitches(checktest.OnGPUs("NVSwitches of A100, and their manager", nil, ampere), fm),
		throughSwitches(checktest.OnGPUs("NVSwitches of A100, no manager", nil, ampere, stopped(checks.Fail)), "/usr/bin/nv-hostengine"),
		throughSwitches(checktest.OnGPUs("no manager, but all have joined", nil, nil, stopped(checks.Warn))),
		throughSwitches(checktest.OnGPUs("no manager, and one has not joined", nil, waiting, fabricSays(checks.Warn, "state", "completed", "in progress", "state of the fabric"), stopped(checks.Fail))),
		passed,
		booting(throughSwitches(checktest.OnGPUs("a minute after a boot", nil, joining, starting(startingGPUs("state of the fabric, want completed, got in progress", noManager)))), 60),
		booting(throughSwitches(checktest.OnGPUs("NVSwitches of A100, a minute after a boot", nil, ampere, starting(noManager))), 60),
		booting(throughSwitches(checktest.OnGPUs("NVSwitches of A100, no manager five minutes after a boot", nil, ampere, stopped(checks.Fail))), 300),
		inBoot(booting(throughSwitches(checktest.OnGPUs("one has not joined a minute after a boot, for the third time", nil, waiting,
			starting(checks.GPUDevice(&checktest.H100s().GPUs[3]).String()+": state of the fabric, want completed, got in progress")), fm), 60)).
			Holding("past/gpu-fabric.json", before300(fmt.Sprintf(`{"boot":%q,"in_a_row":{"state":2}}`, nvlinkBoot))),
		booting(running(withChannels(checktest.OnGPUs("IMEX does not run a minute after a boot", checktest.Of("-i", "yes"), rackWith(nil),
			starting("IMEX channels of the node: 1, want nvidia-imex running, got none")), 1)), 60),
		running(checktest.OnGPUs("no manager on a platform with NVSwitches, and one has not joined", nil, waiting, fabricSays(checks.Warn, "state", "completed", "in progress", "state of the fabric"),
			fabricOnNode(checks.Warn, "manager", "running", "not running", "this platform has NVSwitches, want nv-fabricmanager running, got none")).
			On(&checks.Platform{Name: "HGX B200", GPUs: []int{8}, NVSwitchGPUs: 8})),
		running(checktest.OnGPUs("NVSwitches by the platform, and their manager", nil, waiting, fabricSays(checks.Warn, "state", "completed", "in progress", "state of the fabric")).
			On(&checks.Platform{Name: "HGX B200", GPUs: []int{8}, NVSwitchGPUs: 8}), fm),
		running(withChannels(checktest.OnGPUs("IMEX as wanted", checktest.Of("-i", "2"), rackWith(nil)), 2), imex).OrTable(map[string]any{"imex": "2"}),
		running(withChannels(checktest.OnGPUs("IMEX does not run", checktest.Of("-i", "yes"), rackWith(nil), noIMEX(checks.Fail, 1)), 1)),
		running(withChannels(checktest.OnGPUs("IMEX does not run and is not wanted", nil, rackWith(nil), noIMEX(checks.Warn, 1)), 1)),
		running(withChannels(checktest.OnGPUs("too few channels", checktest.Of("-i", "2"), rackWith(nil), fabricOnNode(checks.Fail, "channels", "2", "1", "IMEX channels, want at least 2, got 1")), 1), imex),
		running(checktest.OnGPUs("IMEX is wanted on a node without an NVLink domain", checktest.Of("-i", "yes"), nil, misconfigured(fabricOnNode(checks.Fail, "channels", "1", "0", "IMEX channels, want at least 1, got 0")), misconfigured(noIMEX(checks.Fail, 0)))),
		running(checktest.OnGPUs("no IMEX in an NVLink domain", checktest.Of("-i", "yes"), rackWith(nil), fabricOnNode(checks.Fail, "channels", "1", "0", "IMEX channels, want at least 1, got 0"), noIMEX(checks.Fail, 0))),
		channels, hidden,
		throughSwitches(checktest.OnGPUs("a container on a node with NVSwitches", nil, ampere)).Contained(),
		throughSwitches(checktest.OnGPUs("a container that shows no process 1", nil, nil)).Lacking("proc/1/stat", "proc/1/status", "proc/1/cmdline").Contained(),
		running(withChannels(checktest.OnGPUs("a container with IMEX channels", checktest.Of("-i", "2"), rackWith(nil)), 2)).Contained(),
		running(withChannels(checktest.OnGPUs("a container with too few IMEX channels", checktest.Of("-i", "2"), rackWith(nil),
			fabricOnNode(checks.Fail, "channels", "2", "1", "IMEX channels, want at least 2, got 1")), 1)).Contained(),
		running(checktest.OnGPUs("a container on a platform with NVSwitches, and one has not joined", nil, waiting, fabricSays(checks.Warn, "state", "completed", "in progress", "state of the fabric")).
			On(&checks.Platform{Name: "HGX B200", GPUs: []int{8}, NVSwitchGPUs: 8})).Contained(),
		throughSwitches(checktest.OnGPUs("the first PID namespace, no manager", nil, ampere, stopped(checks.Fail))).Linked("proc/self/ns/pid", "pid:[4026531836]"),
	}
}

func TestFabricWords(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]int{"yes": 1, "1": 1, "2048": 2048, "0": -1, "no": -1, "-1": -1} {
		check := &gpuFabric{}
		err := checks.Bind(check, checktest.Of("-i", word))
		if n, _ := check.parseChannels(); (err == nil) != (want > 0) || err == nil && n != want {
			t.Errorf("%s: %d, %v", word, n, err)
		}
	}
	if err := checks.BindTable(&gpuFabric{}, map[string]any{"imex": "no"}); err == nil {
		t.Error("an unknown value in TOML is accepted")
	}
}

// NVML knows which GPUs are vGPUs, which have no platform. So the check asks NVML before it determines the
// platform, which holds for all checks of the run.
func TestFabricAsksNVMLFirst(t *testing.T) {
	t.Parallel()
	env := &checks.Env{Host: probe.NewHost(probetest.Tree(t, fakenvml.Files(fakenvml.H100, 3)))}
	asked := false
	env.Platform = func(string, string, int) *checks.Platform {
		_, err := nvml.Asked(env.Host) // this node has no library
		asked = err != nil
		return nil
	}
	if (&gpuFabric{}).Run(t.Context(), env); !asked {
		t.Error("the platform was determined before NVML was asked")
	}
}

// A process of the service whose command line cannot be read shows neither that it runs nor that it does not.
func TestFabricUnseen(t *testing.T) {
	t.Parallel()
	root := probetest.Tree(t, map[string]string{"proc/7/cgroup": "0::/system.slice/nvidia-fabricmanager.service\n"})
	r := &fabricRun{GPUs: &GPUs{Env: &checks.Env{Host: probe.NewHost(root)}}}
	p := probe.Process{PID: 7, UID: 997, Args: "nv-fabricmanage", Unread: true}
	runs, unread := r.serviceRuns([]probe.Process{p}, "nv-fabricmanager")
	if runs || unread == nil {
		t.Fatalf("runs %v, unread %v", runs, unread)
	}
	const want = "check_gpu_fabric:  cannot see whether nv-fabricmanager runs: the command line of process 7 (nv-fabricmanage) of user 997 cannot be read"
	if f := r.unseen("nv-fabricmanager", unread); f.Severity != checks.Unknown || f.Message != want {
		t.Errorf("%v %q, want %q", f.Severity, f.Message, want)
	}
	p.Args, p.Unread = "/usr/bin/nv-fabricmanager -c x", false
	if runs, unread := r.serviceRuns([]probe.Process{p}, "nv-fabricmanager"); !runs || unread != nil {
		t.Errorf("runs %v, unread %v", runs, unread)
	}
}

// The command lines of persons are not read, whatever their number: only one with the name of a service that root or
// the service's unit runs.
func TestFabricReadsNoUser(t *testing.T) {
	const first = 1 << 24
	files, calls := map[string]string{"proc/1/stat": "1 (init) S 0 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0 0 0\n"}, []string(nil)
	process := func(pid int, uid uint32, name, unit string) {
		dir := fmt.Sprintf("proc/%d/", pid)
		files[dir+"stat"] = fmt.Sprintf("%d (%s) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 %d 0 0 0 0\n", pid, name, pid)
		files[dir+"status"] = fmt.Sprintf("Name:\t%s\nState:\tS\nUid:\t%[2]d\t%[2]d\t%[2]d\t%[2]d\nVmSize:\t1 kB\n", name, uid)
		files[dir+"cmdline"] = "/usr/bin/nv-fabricmanager\x00"
		files[dir+"cgroup"] = "0::/system.slice/" + unit + ".service\n"
		calls = append(calls, fmt.Sprintf("read the memory of process %d, started at %d, of uid %d", pid, pid, uid))
	}
	process(first, 5001, "sleep", "nvidia-fabricmanager")
	process(first+1, 5002, "nv-fabricmanage", "other")
	process(first+2, 5003, "nv-fabricmanage", "nvidia-fabricmanager")
	h := probe.NewHost(probetest.Tree(t, files))
	h.SetStuck(calls)
	r := &fabricRun{gpuFabric: &gpuFabric{}, GPUs: &GPUs{Env: &checks.Env{Host: h}}}
	procs, err := probe.ProcessesOf(h, r.mayServe)
	if err != nil || len(procs) != 1 || procs[0].PID != first+2 || !procs[0].Unread {
		t.Errorf("%+v, %v, want the process of the unit", procs, err)
	}
	for _, l := range probe.NewLocked() {
		if l.PID == first || l.PID == first+1 {
			t.Errorf("%+v was read", l)
		}
	}
}
