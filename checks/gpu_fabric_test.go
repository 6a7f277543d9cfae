package checks

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

const (
	rackUUID  = "9c6f5af353bf49b5a436b66766c413c3"
	otherRack = "11111111222233334444555555555555"
)

func tray() *Platform {
	return &Platform{Name: "GB200", File: "conf/profiles/gb200.toml", NVLinks: 18, NVLinkDomain: 72}
}

// inFabric changes the fabric of a GPU.
func inFabric(change func(*probe.Fabric)) func(*probe.GPU) {
	return func(g *probe.GPU) {
		f := probe.Fabric{State: probe.FabricCompleted}
		if change != nil {
			change(&f)
		}
		g.Fabric = probe.Known(f)
	}
}

// inRack is a healthy GPU of an NVL72 rack, changed.
func inRack(change func(*probe.Fabric)) func(*probe.GPU) {
	return inFabric(func(f *probe.Fabric) {
		*f = probe.Fabric{State: probe.FabricCompleted, Clique: 4026, Cluster: rackUUID, Mask: 0xaa, Summary: 1}
		if change != nil {
			change(f)
		}
	})
}

// rackWith is a node of a rack of which gpu3 is changed.
func rackWith(change func(*probe.Fabric)) func(*probe.NVML) {
	return func(n *probe.NVML) {
		allGPUs(inRack(nil))(n)
		inRack(change)(&n.GPUs[3])
	}
}

// switched is a node with four NVSwitches on its PCI bus, on which some programs run.
func (s scenario) switched(programs ...string) scenario {
	for i := range 4 {
		dir := fmt.Sprintf("sys/bus/pci/devices/0000:%02x:00.0/", 5+i)
		maps.Copy(s.files, map[string]string{dir + "vendor": "0x10de\n", dir + "class": "0x068000\n", dir + "device": "0x22a3\n"})
	}
	return s.running(programs...)
}

func (s scenario) running(programs ...string) scenario {
	procs := []useProc{{pid: 1, args: "/sbin/init"}}
	for i, p := range programs {
		procs = append(procs, useProc{pid: 100 + i, args: p})
	}
	maps.Copy(s.files, useNode(procs...))
	return s
}

func (s scenario) withChannels(n int) scenario {
	for i := range n {
		s.files[fmt.Sprintf("dev/nvidia-caps-imex-channels/channel%d", i)] = ""
	}
	return s
}

func fabricSays(severity Severity, code, want, got, text string) Finding {
	return gpuFinding(gpuFabricName, 3, Finding{Code: "gpu.fabric." + code, Severity: severity, Remedy: CheckFabric, Want: want, Got: got}, text)
}

func fabricOnNode(severity Severity, code, want, got, message string) Finding {
	return Finding{Code: "gpu.fabric." + code, Severity: severity, Remedy: CheckFabric, Want: want, Got: got, Message: gpuFabricName + ":  " + message}
}

func TestGPUFabric(t *testing.T) { testCheck(t, "check_gpu_fabric") }

var _ = table("check_gpu_fabric", func(string) (list []scenario) {
	list = append(list, gpuLacks(gpuFabricName, "state of the fabric", func(g *probe.GPU) { g.Fabric = probe.Reading[probe.Fabric]{} })...)
	list = append(list, append(gpuCommon(gpuFabricName),
		onGPUs("healthy", nil, nil),
		onGPUs("healthy, all health told", nil, allGPUs(inFabric(func(f *probe.Fabric) { f.Mask, f.Summary = 0x1aa, 1 }))),
		onGPUs("GPUs without a fabric", nil, allGPUs(inFabric(func(f *probe.Fabric) { *f = probe.Fabric{} })),
			Finding{Code: "gpu.fabric.none", Severity: Skip, Message: gpuFabricName + ":  these GPUs are part of no NVLink fabric"}),
		onV100s("NVML knows of no fabric", nil, nil,
			Finding{Code: "gpu.unsupported", Severity: Skip, Message: gpuFabricName + ":  not supported by these GPUs or their driver"}),
		gpuDumb(gpuFabricName),
	)...)
	list = append(list, fabricStates()...)
	list = append(list, fabricDomains()...)
	list = append(list, fabricHealth()...)
	list = append(list, fabricServices()...)
	return list
})

func fabricStates() []scenario {
	const file, progress = "past/gpu-fabric.json", "in progress"
	state := func(n int) func(*probe.NVML) { return gpu3(inFabric(func(f *probe.Fabric) { f.State = n })) }
	status := func(n int) func(*probe.NVML) { return gpu3(inFabric(func(f *probe.Fabric) { f.Status = n })) }
	twice := func(boot string) string { return before300(fmt.Sprintf(`{"boot":%q,"in_a_row":{"state":2}}`, boot)) }
	const text = "state of the fabric"
	says, name := fabricSays, gpuFabricName
	odd := onGPUs("one cannot be read", nil, gpu3(func(g *probe.GPU) { g.Fabric = probe.Failed[probe.Fabric](errOdd) }),
		gpuFinding(name, 3, Finding{Code: "gpu.error", Severity: Unknown}, "could not tell: "+oddText))
	strange := onGPUs("a state that nobody knows", nil, state(200),
		gpuFinding(name, 3, Finding{Code: "gpu.fabric.unknown", Severity: Unknown, Want: "completed", Got: "state 200, which is not known here"}, text))
	past := onGPUs("the past is garbage", nil, nil,
		Finding{Code: "gpu.past", Severity: Warn, Message: name + ":  read /past/gpu-fabric.json: invalid character 'x' looking for beginning of value"}).holding(file, "x")
	odd.broken, strange.broken, past.broken = true, true, true
	logged := says(Fail, "status", "success", "insufficient resources", "state of the fabric is completed, but its status")
	logged.Message += "; the kernel has logged SXid 20034 of 0000:05:00.0"
	many := logged
	many.Message += ", SXid 20034 of 0000:06:00.0, SXid 20034 of 0000:07:00.0, 1 more"
	logging := func(s scenario, buses ...int) scenario {
		var lines []string
		for _, bus := range buses {
			lines = append(lines, fmt.Sprintf("90000 nvidia-nvswitch%d: SXid (PCI:0000:%02x:00.0): 20034, Fatal, Link 35 LTSSM Fault Up", bus-5, bus))
		}
		log := xidNode(lines...)
		for _, f := range []string{"dev/kmsg", "proc/stat", "proc/uptime", "proc/sys/kernel/random/boot_id"} {
			s.files[f] = log[f]
		}
		return s
	}
	return []scenario{
		onGPUs("completed without resources", nil, status(probe.FabricNoResources), says(Fail, "status", "success", "insufficient resources", "state of the fabric is completed, but its status")),
		onGPUs("another status", nil, status(999), says(Fail, "status", "success", "NVML error 999", "state of the fabric is completed, but its status")),
		onGPUs("on its way, once", nil, state(probe.FabricInProgress), says(Warn, "state", "completed", progress, text)).inBoot(),
		onGPUs("on its way, three times", nil, state(probe.FabricInProgress), says(Fail, "state", "completed", progress, text+", in 3 runs in a row")).
			inBoot().holding(file, twice(nvlinkBoot)),
		onGPUs("not started, three times", nil, state(probe.FabricNotStarted), says(Fail, "state", "completed", "not started", text+", in 3 runs in a row")).
			inBoot().holding(file, twice(nvlinkBoot)),
		onGPUs("on its way, three times, and another run ten seconds later", nil, state(probe.FabricInProgress), says(Fail, "state", "completed", progress, text+", in 3 runs in a row")).
			inBoot().holding(file, pastAt(10*time.Second, fmt.Sprintf(`{"boot":%q,"in_a_row":{"state":3}}`, nvlinkBoot))),
		onGPUs("on its way, twice before the boot", nil, state(probe.FabricInProgress), says(Warn, "state", "completed", progress, text)).inBoot().holding(file, twice("other")),
		onGPUs("on its way, the boot is not known", nil, state(probe.FabricInProgress), says(Warn, "state", "completed", progress, text)).holding(file, twice("")),
		onGPUs("one of eight is not in it", nil, state(probe.FabricNotSupported), says(Fail, "state", "completed", "not supported", text+" is not that of the others")),
		logging(onGPUs("the kernel has errors of a switch", nil, status(probe.FabricNoResources), logged), 5),
		logging(onGPUs("the kernel has errors of four switches", nil, status(probe.FabricNoResources), many), 5, 6, 7, 8),
		odd, strange, past,
	}
}

func fabricDomains() []scenario {
	says := fabricSays
	const cluster, clique = "cluster UUID of the NVLink domain", "clique of the NVLink domain"
	half := func(n *probe.NVML) {
		allGPUs(inRack(nil))(n)
		for i := range 4 {
			inRack(func(f *probe.Fabric) { f.Clique = 1 })(&n.GPUs[i])
		}
	}
	alone := func(n *probe.NVML) {
		n.GPUs = n.GPUs[3:4]
		inFabric(nil)(&n.GPUs[0])
	}
	noClique := func(n *probe.NVML) {
		n.GPUs = n.GPUs[3:4]
		inRack(func(f *probe.Fabric) { f.Clique = 0 })(&n.GPUs[0])
	}
	out := func(n *probe.NVML) {
		n.GPUs = n.GPUs[2:4]
		allGPUs(inFabric(func(f *probe.Fabric) { *f = probe.Fabric{} }))(n)
	}
	outOf := func(i int) Finding {
		return gpuFinding(gpuFabricName, i, Finding{Code: "gpu.fabric.state", Severity: Warn, Remedy: CheckFabric, Want: "completed", Got: "not supported"}, "state of the fabric")
	}
	return []scenario{
		onGPUs("in a rack", nil, rackWith(nil)).on(tray()), onGPUs("in a rack of an unknown platform", nil, rackWith(nil)),
		onGPUs("two partitions, as somebody has made them", nil, half).on(tray()),
		onGPUs("not in the domain of the others", nil, rackWith(func(f *probe.Fabric) { f.Cluster, f.Clique = "", 0 }),
			says(Fail, "domain", rackUUID, "0", cluster+" is not that of the others")),
		onGPUs("in another domain", nil, rackWith(func(f *probe.Fabric) { f.Cluster = otherRack }),
			says(Fail, "domain", rackUUID, otherRack, cluster+" is not that of the others")),
		onGPUs("in another clique", nil, rackWith(func(f *probe.Fabric) { f.Clique = 7 }), says(Fail, "domain", "4026", "7", clique+" is not that of the others")),
		onGPUs("in no domain, on a platform that has one", nil, alone, says(Fail, "domain", "not 0", "0", cluster)).on(tray()),
		onGPUs("in no domain, and the NVLinks lead to GPUs alone", nil, func(n *probe.NVML) {
			allGPUs(direct)(n)
			allGPUs(func(g *probe.GPU) { g.Fabric = probe.Known(probe.Fabric{}) })(n)
		}, Finding{Code: "gpu.fabric.none", Severity: Skip, Message: gpuFabricName + ":  these GPUs are part of no NVLink fabric"}).on(tray()),
		onGPUs("in no clique, on a platform that has one", nil, noClique, says(Warn, "domain", "not 0", "0", clique)).on(tray()),
		onGPUs("in no fabric, on a platform that has one", nil, out, outOf(2), outOf(3)).on(tray()),
		onGPUs("a GPU alone", nil, func(n *probe.NVML) { out(n); n.GPUs = n.GPUs[1:] },
			Finding{Code: "gpu.fabric.none", Severity: Skip, Message: gpuFabricName + ":  these GPUs are part of no NVLink fabric"}).on(tray()),
	}
}

func fabricHealth() []scenario {
	mask := func(mask uint32, summary int) func(*probe.NVML) {
		return gpu3(inFabric(func(f *probe.Fabric) { f.Mask, f.Summary = mask, summary }))
	}
	says := func(severity Severity, text string) Finding {
		return fabricSays(severity, "health", "", "", "health of the fabric: "+text)
	}
	unknown := func(text string) Finding {
		return gpuFinding(gpuFabricName, 3, Finding{Code: "gpu.fabric.unknown", Severity: Unknown}, "health of the fabric is "+text+", which is not known here")
	}
	const recovery = "route recovery in progress"
	list := []scenario{
		onGPUs("degraded bandwidth", nil, mask(0xa9, 2), says(Fail, "degraded bandwidth")),
		onGPUs("an unhealthy route", nil, mask(0x9a, 2), says(Fail, "route unhealthy")),
		onGPUs("a route is recovered", nil, mask(0xa6, 0), says(Warn, recovery)).inBoot(),
		onGPUs("a route is recovered, for long", nil, mask(0xa6, 0), says(Fail, recovery+", in 3 runs in a row")).inBoot().
			holding("past/gpu-fabric.json", before300(fmt.Sprintf(`{"boot":%q,"in_a_row":{%q:2}}`, nvlinkBoot, recovery))),
		onGPUs("a timeout is recovered", nil, mask(0x6a, 0), says(Warn, "access timeout recovery in progress")),
		onGPUs("two things at once", nil, mask(0x99, 2), says(Fail, "degraded bandwidth"), says(Fail, "route unhealthy")),
		onGPUs("no partition", nil, mask(0x21aa, 1), says(Warn, "no partition assigned")),
		onGPUs("no connection to the rack's manager", nil, mask(0x91aa, 1), says(Warn, "connection to the rack's fabric manager lost")),
		onGPUs("unhealthy, nobody says why", nil, mask(0xaa, 2), says(Fail, "unhealthy")),
		onGPUs("limited, nobody says why", nil, mask(0, 3), says(Warn, "limited capacity")),
	}
	for i, text := range wrongConfigs {
		if text != "" {
			list = append(list, onGPUs(fmt.Sprintf("incorrect configuration %d", i), nil, mask(uint32(i)<<8|0xaa, 2), says(Fail, "incorrect configuration, "+text)))
		}
	}
	for _, strange := range []scenario{
		onGPUs("a health that nobody knows", nil, mask(0xab, 0), unknown("0xab")),
		onGPUs("a part of the health that nobody knows", nil, mask(0x9b, 0), says(Fail, "route unhealthy"), unknown("0x9b")),
		onGPUs("a configuration that nobody knows", nil, mask(0xfaa, 0), unknown("0xfaa")),
		onGPUs("a summary that nobody knows", nil, mask(0xaa, 77), unknown("0xaa")),
	} {
		strange.broken = true
		list = append(list, strange)
	}
	return list
}

func fabricServices() []scenario {
	const fm, imex = "/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg", "/usr/bin/nvidia-imex -c /etc/nvidia-imex/config.cfg"
	stopped := func(severity Severity) Finding {
		return fabricOnNode(severity, "manager", "running", "not running", "NVSwitches on the PCI bus: 4, want nv-fabricmanager running, got none")
	}
	noIMEX := func(severity Severity, channels int) Finding {
		return fabricOnNode(severity, "imex", "running", "not running", fmt.Sprintf("IMEX channels of the node: %d, want nvidia-imex running, got none", channels))
	}
	ampere := allGPUs(func(g *probe.GPU) { g.Fabric = probe.Reading[probe.Fabric]{} })
	waiting := func(n *probe.NVML) { inFabric(func(f *probe.Fabric) { f.State = probe.FabricInProgress })(&n.GPUs[3]) }
	passed := onGPUs("NVSwitches of a virtual machine", nil, ampere,
		Finding{Code: "gpu.unsupported", Severity: Skip, Message: gpuFabricName + ":  not supported by these GPUs or their driver"}).switched()
	passed.links = map[string]string{}
	for i := range 4 {
		passed.links[fmt.Sprintf("sys/bus/pci/devices/0000:%02x:00.0/driver", 5+i)] = "../../../bus/pci/drivers/vfio-pci"
	}
	channels := onGPUs("unreadable channels", nil, nil, Finding{Code: "probe.unreadable", Severity: Unknown, Message: "read /dev/nvidia-caps-imex-channels: not a directory"}).
		holding("dev/nvidia-caps-imex-channels", "")
	channels.broken = true
	hidden := onGPUs("processes that are hidden", nil, ampere, Finding{Code: "probe.unreadable", Severity: Unknown,
		Message: gpuFabricName + ":  /proc does not show process 1, nor whether nv-fabricmanager and nvidia-imex run"}).switched()
	maps.DeleteFunc(hidden.files, func(f, _ string) bool { return strings.HasPrefix(f, "proc/1/") })
	hidden.broken = true
	return []scenario{
		onGPUs("NVSwitches, and their manager", nil, nil).switched(fm),
		onGPUs("NVSwitches of A100, and their manager", nil, ampere).switched(fm),
		onGPUs("NVSwitches of A100, no manager", nil, ampere, stopped(Fail)).switched("/usr/bin/nv-hostengine"),
		onGPUs("no manager, but all have joined", nil, nil, stopped(Warn)).switched(),
		onGPUs("no manager, and one has not joined", nil, waiting, fabricSays(Warn, "state", "completed", "in progress", "state of the fabric"), stopped(Fail)).switched(),
		passed,
		onGPUs("no manager on a platform with NVSwitches, and one has not joined", nil, waiting, fabricSays(Warn, "state", "completed", "in progress", "state of the fabric"),
			fabricOnNode(Warn, "manager", "running", "not running", "a node of this platform has NVSwitches, want nv-fabricmanager running, got none")).
			on(&Platform{Name: "HGX B200", GPUs: []int{8}, NVSwitchGPUs: 8}).running(),
		onGPUs("NVSwitches by the platform, and their manager", nil, waiting, fabricSays(Warn, "state", "completed", "in progress", "state of the fabric")).
			on(&Platform{Name: "HGX B200", GPUs: []int{8}, NVSwitchGPUs: 8}).running(fm),
		onGPUs("IMEX as wanted", of("-i", "2"), rackWith(nil)).withChannels(2).running(imex).orTable(map[string]any{"imex": "2"}),
		onGPUs("IMEX does not run", of("-i", "yes"), rackWith(nil), noIMEX(Fail, 1)).withChannels(1).running(),
		onGPUs("IMEX does not run, nobody wants it", nil, rackWith(nil), noIMEX(Warn, 1)).withChannels(1).running(),
		onGPUs("too few channels", of("-i", "2"), rackWith(nil), fabricOnNode(Fail, "channels", "2", "1", "IMEX channels, want at least 2, got 1")).withChannels(1).running(imex),
		channels, hidden,
		onGPUs("a container on a node with NVSwitches", nil, ampere).switched().contained(),
		onGPUs("a container that shows no process 1", nil, nil).switched().lacking("proc/1/stat", "proc/1/status", "proc/1/cmdline").contained(),
		onGPUs("a container with IMEX channels", of("-i", "2"), rackWith(nil)).withChannels(2).running().contained(),
		onGPUs("a container with too few IMEX channels", of("-i", "2"), rackWith(nil),
			fabricOnNode(Fail, "channels", "2", "1", "IMEX channels, want at least 2, got 1")).withChannels(1).running().contained(),
		onGPUs("a container on a platform with NVSwitches, and one has not joined", nil, waiting, fabricSays(Warn, "state", "completed", "in progress", "state of the fabric")).
			on(&Platform{Name: "HGX B200", GPUs: []int{8}, NVSwitchGPUs: 8}).running().contained(),
		onGPUs("the first PID namespace, no manager", nil, ampere, stopped(Fail)).switched().linked("proc/self/ns/pid", "pid:[4026531836]"),
	}
}

func TestFabricWords(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]int{"yes": 1, "1": 1, "2048": 2048, "0": -1, "no": -1, "-1": -1} {
		check := &gpuFabric{}
		err := Bind(check, of("-i", word))
		if n, _ := check.channels(); (err == nil) != (want > 0) || err == nil && n != want {
			t.Errorf("%s: %d, %v", word, n, err)
		}
	}
	got := (&gpuFabric{IMEX: "no"}).Run(t.Context(), &Env{Host: probe.NewHost(t.TempDir())})
	if len(got) != 1 || got[0].Code != "config.value" || got[0].Severity != Unknown {
		t.Errorf("a value of TOML that nobody knows: %v", got)
	}
}
