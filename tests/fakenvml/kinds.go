package fakenvml

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// Kind is a healthy kind of node: a row of kinds.toml, which explains the words.
type Kind struct {
	Name   string   `toml:"name"`
	Model  string   `toml:"model"`
	GPUs   int      `toml:"gpus"`
	Driver int      `toml:"driver"`
	Also   []string `toml:"also"`
	MIG    []int    `toml:"mig"`
	Is     []string `toml:"is"`
	Width  int      `toml:"width"`
	Gen    int      `toml:"gen"`
	Host   int      `toml:"host"`
	Card   string   `toml:"card"`
	Lines  []string `toml:"lines"`
	Quick  bool     `toml:"quick"`

	models []board // of each GPU
}

// board is a GPU model.
type board struct {
	Name   string `toml:"name"`
	ID     string `toml:"id"`
	GiB    int    `toml:"gib"`
	Watt   int    `toml:"watt"`
	Module int    `toml:"enforced"`
	MHz    []int  `toml:"mhz"`
	PCIe   []int  `toml:"pcie"`
	Links  int    `toml:"links"`
	Up     int    `toml:"nvlinks"`
	MBps   int    `toml:"mbps"`
	Far    string `toml:"far"`
	ECC    string `toml:"ecc"`
	Hot    string `toml:"hot"`
	Rows   bool   `toml:"rows"`
	MIG    bool   `toml:"mig"`
	Fabric string `toml:"fabric"`
	Class  string `toml:"class"`
}

// Kinds reads kinds.toml.
func Kinds() ([]Kind, error) {
	text, err := files.ReadFile("kinds.toml")
	if err != nil {
		return nil, err
	}
	var all struct {
		Model map[string]board
		Kind  []Kind
	}
	meta, err := toml.Decode(string(text), &all)
	if err != nil {
		return nil, err
	}
	if extra := meta.Undecoded(); len(extra) > 0 {
		return nil, fmt.Errorf("kinds.toml: %v", extra)
	}
	for i := range all.Kind {
		k := &all.Kind[i]
		if k.GPUs == 0 {
			k.GPUs = 8
		}
		if k.Driver == 0 {
			k.Driver = 570
		}
		for range k.GPUs {
			k.models = append(k.models, all.Model[k.Model])
		}
		for _, m := range k.Also {
			k.models = append(k.models, all.Model[m])
		}
		if slices.ContainsFunc(k.models, func(b board) bool { return b.Name == "" }) {
			return nil, errors.New("kinds.toml: " + k.Name + ": no such model")
		}
	}
	return all.Kind, nil
}

// Has reports whether "is" of the node contains a word.
func (k *Kind) Has(word string) bool { return slices.Contains(k.Is, word) }

// contained reports whether the node is seen from a container with its own PID namespace.
func (k *Kind) contained() bool { return k.Has("container") || k.Has("cdi") }

// introduced has functions and fields of NVML with the first branch of the driver that has them. A
// field is named by the word behind "field".
var introduced = map[string]int{
	"nvmlDeviceGetMemoryInfo_v2": 510, "nvmlDeviceGetDefaultEccMode": 510, "nvmlDeviceGetNvLinkRemoteDeviceType": 510,
	"nvmlDeviceGetComputeRunningProcesses_v3": 510, "nvmlDeviceGetGraphicsRunningProcesses_v3": 510, "nvmlDeviceGetMPSComputeRunningProcesses_v3": 510,
	"nvmlDeviceGetGpuMaxPcieLinkGeneration": 525, "nvmlDeviceGetGpuFabricInfo": 525,
	"nvmlDeviceGetCurrentClocksEventReasons": 535, "nvmlSystemGetConfComputeState": 535, "nvmlDeviceGetGpuFabricInfoV": 545,
	"nvmlDeviceGetMarginTemperature": 550, "nvmlDeviceGetSramEccErrorStatus": 550, "nvmlDeviceGetNumaNodeId": 550,
	"nvmlDeviceGetRepairStatus": 580, "nvmlDeviceGetUnrepairableMemoryFlag_v1": 580,
	"193": 535, "194": 535, "195": 535, "196": 535, "226": 550, "227": 550, "230": 565, "269": 550, "270": 550, "271": 550,
}

// Lacks returns the functions that the driver of the node does not have.
func (k *Kind) Lacks() (list []string) {
	for name, release := range introduced {
		if strings.HasPrefix(name, "nvml") && release > k.Driver {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// version returns the driver's version as NVML and the module show it.
func (k *Kind) version() string { return fmt.Sprintf("%d.124.06", k.Driver) }

// link returns generation and lanes of a GPU's link, and those of its slot.
func (k *Kind) link(b board) (gen, width int) {
	gen, width = b.PCIe[0], b.PCIe[1]
	if k.Gen > 0 {
		gen = min(gen, k.Gen)
	}
	if k.Width > 0 {
		width = min(width, k.Width)
	}
	return gen, width
}

// Scenario returns the scenario of NVML.
func (k *Kind) Scenario() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("- nvmlSystemGetDriverVersion = %s", k.version())
	line("- nvmlSystemGetNVMLVersion = 12.%s", k.version())
	line("- nvmlSystemGetConfComputeState = 0 0 0")
	line("- nvmlDeviceGetCount = %d", len(k.models))
	line("* nvmlDeviceGetUUID = GPU-00000000-0000-0000-0000-0000000000{x}")
	line("* nvmlDeviceGetMinorNumber = {i}")
	line("* nvmlDeviceGetComputeMode = 0")
	line("* nvmlDeviceGetComputeRunningProcesses =")
	line("* nvmlDeviceGetGraphicsRunningProcesses =")
	line("* nvmlDeviceGetMPSComputeRunningProcesses =")
	for i, m := range k.models {
		gpu := func(format string, args ...any) { line("%d "+format, append([]any{i}, args...)...) }
		device, subsystem, _ := strings.Cut(m.ID, ":")
		gpu("nvmlDeviceGetPciInfo = %s 0x%s10de 0x%s10de", Address(i), device, subsystem)
		gpu("nvmlDeviceGetName = %s", m.Name)
		if k.Has("vgpu") {
			gpu("nvmlDeviceGetMemoryInfo = %d %d 0", m.GiB<<30, m.GiB<<30)
			gpu("nvmlDeviceGetVbiosVersion = 00.00.00.00.00")
			gpu("nvmlDeviceGetVirtualizationMode = 2")
			gpu("nvmlDeviceGetUtilizationRates = 0 0")
			gpu("nvmlDeviceGetPerformanceState = 0")
			gpu("nvmlDeviceGetEccMode error 3")
			continue
		}
		k.addGPU(i, m, gpu)
	}
	if k.Has("user") { // for an ordinary user: no changes, and only root can read some values
		line("* nvmlDeviceSetPersistenceMode error 4")
		line("* nvmlDeviceValidateInforom error 4")
		line("* nvmlDeviceGetRetiredPages error 4")
		line("* nvmlDeviceGetMPSComputeRunningProcesses error 4")
		line("* field 230 error 4")
	}
	return b.String() + strings.Join(k.Lines, "\n") + "\n"
}

// addGPU writes NVML's values of one GPU.
func (k *Kind) addGPU(i int, m board, gpu func(format string, args ...any)) {
	field := func(id int, value any) {
		if k.Driver >= introduced[fmt.Sprint(id)] {
			gpu("field %d = %v", id, value)
		}
	}
	gpu("nvmlDeviceGetSerial = 16500000{x}")
	gpu("nvmlDeviceGetVbiosVersion = 9%d.00.30.00.01", m.PCIe[0])
	gpu("nvmlDeviceGetInforomImageVersion = G520.0200.00.05")
	gpu("nvmlDeviceValidateInforom =")
	gpu("nvmlDeviceGetPersistenceMode = %d", number(!k.Has("volatile")))
	field(230, 0)
	if m.MIG {
		on := number(slices.Contains(k.MIG, i))
		gpu("nvmlDeviceGetMigMode = %d %d", on, on)
	}
	k.memory(m, gpu)
	if slices.Contains(k.MIG, i) { // with instances
		gpu("nvmlDeviceGetMaxMigDeviceCount = 7")
		gpu("nvmlDeviceGetMigDeviceHandleByIndex 0 = MIG-{x}")
		gpu("migErrors * = 0")
		gpu("nvmlDeviceGetMemoryErrorCounter * 0 * error 3")
		gpu("nvmlDeviceGetRemappedRows error 3")
	}
	k.load(m, gpu, field)
	if m.Hot == "margin" && k.Driver >= 550 {
		field(193, -8)
		field(194, -2)
		field(195, 0)
	} else {
		gpu("nvmlDeviceGetTemperatureThreshold 0 = 98")
		gpu("nvmlDeviceGetTemperatureThreshold 1 = 95")
		gpu("nvmlDeviceGetTemperatureThreshold 3 = 88")
	}
	if m.Hot == "limits" {
		gpu("nvmlDeviceGetTemperatureThreshold 2 = 95")
		field(82, 40)
	}
	k.links(m, gpu)
	if m.Fabric != "" && k.Driver >= 525 {
		gpu("nvmlDeviceGetGpuFabricInfo = %s", m.Fabric)
	}
}

func number(on bool) int {
	if on {
		return 1
	}
	return 0
}

// memory writes NVML's values of memory and its errors.
func (k *Kind) memory(m board, gpu func(format string, args ...any)) {
	used := 0
	if k.Has("cache") {
		used = m.GiB / 2
		gpu("nvmlDeviceGetNumaNodeId = 4")
	}
	gpu("nvmlDeviceGetMemoryInfo = %d %d %d", m.GiB<<30, (m.GiB-used)<<30, used<<30)
	switch m.ECC {
	case "none":
		return
	case "off":
		gpu("nvmlDeviceGetEccMode = 0 0")
		gpu("nvmlDeviceGetDefaultEccMode = 0")
	default:
		gpu("nvmlDeviceGetEccMode = 1 1")
		gpu("nvmlDeviceGetDefaultEccMode = 1")
		gpu("nvmlDeviceGetMemoryErrorCounter * * 2 = 0")
		gpu("nvmlDeviceGetMemoryErrorCounter * * 7 = 0")
		gpu("nvmlDeviceGetSramEccErrorStatus = 0")
	}
	if !m.Rows {
		gpu("nvmlDeviceGetRetiredPages 0 = 0")
		gpu("nvmlDeviceGetRetiredPages 1 = 0")
		gpu("nvmlDeviceGetRetiredPagesPendingStatus = 0")
		return
	}
	gpu("nvmlDeviceGetRemappedRows = 0 0 0 0")
	gpu("nvmlDeviceGetRowRemapperHistogram = 640 0 0 0 0")
	gpu("nvmlDeviceGetRepairStatus = 0 0")
	gpu("nvmlDeviceGetUnrepairableMemoryFlag_v1 = 0")
}

// load writes the values that change with the load of a GPU. A driver need not set the bit of an
// idle GPU: nvml.h calls it deprecated.
func (k *Kind) load(m board, gpu func(format string, args ...any), field func(id int, value any)) {
	gen, width := k.link(m)
	now, state, busy, watt, celsius, reasons, capped := gen, 0, 0, m.Watt/6, 31, 1, "0"
	switch {
	case k.Has("idle"):
		now, state, reasons = 1, 8, 0
	case k.Has("waiting"):
		now, reasons = 1, 0
		gpu("nvmlDeviceGetComputeRunningProcesses = 100 536870912")
	case k.Has("busy"):
		busy, watt, celsius, reasons, capped = 97, m.Watt, 74, 4, "7000000000+290000000000"
		gpu("nvmlDeviceGetComputeRunningProcesses = 100 %d", m.GiB<<29)
	}
	gpu("nvmlDeviceGetMaxPcieLinkGeneration = %d", gen)
	gpu("nvmlDeviceGetGpuMaxPcieLinkGeneration = %d", m.PCIe[0])
	gpu("nvmlDeviceGetCurrPcieLinkGeneration = %d", now)
	gpu("nvmlDeviceGetMaxPcieLinkWidth = %d", m.PCIe[1])
	gpu("nvmlDeviceGetCurrPcieLinkWidth = %d", width)
	gpu("nvmlDeviceGetPcieReplayCounter = 0")
	gpu("nvmlDeviceGetPerformanceState = %d", state)
	gpu("nvmlDeviceGetUtilizationRates = %d %d", busy, busy/2)
	gpu("nvmlDeviceGetPowerUsage = %d000", watt)
	for _, limit := range []string{"PowerManagementLimit", "PowerManagementDefaultLimit", "EnforcedPowerLimit"} {
		gpu("nvmlDeviceGet%s = %d000", limit, m.Watt)
	}
	if m.Module > 0 {
		gpu("nvmlDeviceGetEnforcedPowerLimit = %d000", m.Module)
	}
	for kind, mhz := range map[int]int{0: m.MHz[0], 2: m.MHz[1]} {
		gpu("nvmlDeviceGetMaxClockInfo %d = %d", kind, mhz)
		if m.PCIe[0] < 5 {
			gpu("nvmlDeviceGetApplicationsClock %d = %d", kind, mhz-100)
			gpu("nvmlDeviceGetDefaultApplicationsClock %d = %d", kind, mhz-100)
		}
	}
	gpu("nvmlDeviceGetTemperature 0 = %d", celsius)
	gpu("nvmlDeviceGetMarginTemperature = %d", 87-celsius)
	gpu("nvmlDeviceGetCurrentClocksEventReasons = %d", reasons)
	gpu("nvmlDeviceGetCurrentClocksThrottleReasons = %d", reasons)
	field(74, capped)
	field(269, map[bool]string{true: capped, false: "0"}[k.Has("mirrored")])
	field(270, 0)
	field(271, 0)
}

// links writes NVML's values of the NVLinks. Links that are not up have no bridge.
func (k *Kind) links(m board, gpu func(format string, args ...any)) {
	for link := range max(m.Links, m.Up) {
		gpu("nvmlDeviceGetNvLinkState %d = %d", link, number(link < m.Up))
	}
	if m.Up == 0 {
		return
	}
	gpu("nvmlDeviceGetNvLinkVersion * = %d", map[int]int{25781: 3, 26562: 6, 53125: 7}[m.MBps])
	gpu("nvmlDeviceGetNvLinkRemoteDeviceType * = %d", map[string]int{"gpu": 0, "switch": 2}[m.Far])
	gpu("nvmlDeviceGetP2PStatus = 0")
	if m.PCIe[0] > 3 {
		gpu("field 164 = %d", m.MBps)
		gpu("field 165 = 1")
	}
	for i := range m.Up {
		if m.PCIe[0] == 3 {
			gpu("field %d = %d", 84+i, m.MBps)
		}
		if m.Far == "switch" {
			gpu("nvmlDeviceGetNvLinkRemotePciInfo %d = 0000:%02x:00.0", i, 5+i%4)
		}
	}
}

// Node returns the rest of the node: the PCI bus, the driver's own files, processes.
func (k *Kind) Node() *fakesys.Node {
	n := fakesys.New().AddNameServers()
	f := n.Files
	f["dev/kmsg"] = "6,1,1000000,-;Linux version\n"
	f["dev/nvidiactl"] = ""
	f["etc/login.defs"] = "UID_MIN 1000\n"
	f["etc/passwd"] = "root:x:0:0::/root:/bin/sh\nalice:x:5001:100::/:/bin/sh\n"
	f["proc/modules"] = "nvidia_uvm 1 0 - Live 0x0\nnvidia 1 1 nvidia_uvm, Live 0x0\n"
	f["proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  " + k.version() + "  Tue Mar 11 03:00:00 UTC 2025\nGCC version:\n"
	process(f, 1, 0, "/sbin/init")
	if k.contained() {
		n.Links["proc/self/ns/pid"] = "pid:[4026532000]"
		delete(f, "dev/kmsg")
	}
	models := k.models
	for range k.Host - len(models) {
		models = append(models, models[0])
	}
	for i, m := range models {
		gen, width := k.link(m)
		device, subsystem, _ := strings.Cut(m.ID, ":")
		d := fakesys.PCI{Address: Address(i), Class: cmp.Or(m.Class, "030200"), ID: "10de:" + device, Driver: "nvidia", NUMA: -1, Width: width,
			Speed: []string{"2.5", "5.0", "8.0", "16.0", "32.0", "64.0"}[gen-1] + " GT/s PCIe"}
		if k.Has("bare") {
			d.Above = []string{fmt.Sprintf("0000:%02x:01.0", 0x80+i)}
		}
		if k.Has("ports") {
			port := fmt.Sprintf("0000:%02x:01.0", 0x80+i)
			d.Above = []string{port}
			n.AddPCI(fakesys.PCI{Address: port, Class: "060400", ID: "1b36:000c", Driver: "pcieport", NUMA: -1, Speed: "16.0 GT/s PCIe", Width: 32})
		}
		n.AddPCI(d)
		n.Set(Address(i), "subsystem_vendor", "0x10de").Set(Address(i), "subsystem_device", "0x"+subsystem).Set(Address(i), "max_link_width", fmt.Sprint(m.PCIe[1]))
		if k.Has("idle") || k.Has("waiting") {
			n.Set(Address(i), "current_link_speed", "2.5 GT/s PCIe")
		}
		if i < len(k.models) {
			f[fmt.Sprintf("dev/nvidia%d", i)] = ""
		} else if !k.Has("cdi") {
			continue
		}
		f["proc/driver/nvidia/gpus/"+Address(i)+"/information"] = fmt.Sprintf("Model: \t\t %s\nGPU UUID: \t %s\nBus Type: \t PCIe\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Excluded:\t No\n",
			m.Name, UUID(i), Address(i), i)
	}
	if k.Has("switches") {
		for i := range 4 {
			n.AddPCI(fakesys.PCI{Address: fmt.Sprintf("0000:%02x:00.0", 5+i), Above: []string{fmt.Sprintf("0000:%02x:01.0", 0x70+i)}, Class: "068000",
				ID: "10de:22a3", Driver: "nvidia-nvswitch", NUMA: -1, Speed: "5.0 GT/s PCIe", Width: 2})
		}
		if !k.contained() {
			process(f, 40, 0, "/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg")
		}
	}
	if k.Card != "" {
		n.AddPCI(fakesys.PCI{Address: "0000:60:00.0", Above: []string{"0000:61:01.0"}, Class: "030000", ID: "10de:0ff3", Driver: strings.TrimSuffix(k.Card, "none"),
			NUMA: -1, Speed: "8.0 GT/s PCIe", Width: 16})
	}
	if k.Has("busy") || k.Has("waiting") {
		process(f, 50, 0, "slurmstepd: [123.batch]")
		process(f, 100, 5001, "train.py")
		f["proc/100/cgroup"] = "0::/system.slice/slurmstepd.scope/job_123/step_0\n"
	}
	if k.Has("cache") {
		gib := k.models[0].GiB
		f["sys/devices/system/node/node4/meminfo"] = fmt.Sprintf("Node 4 MemTotal: %d kB\nNode 4 MemFree: %d kB\nNode 4 FilePages: %d kB\n", gib<<20, gib<<19, gib<<19)
	}
	return n
}

// process adds a process to the files of a node.
func process(f map[string]string, pid, uid int, args string) {
	dir := fmt.Sprintf("proc/%d/", pid)
	f[dir+"cmdline"] = strings.ReplaceAll(args, " ", "\x00") + "\x00"
	name := path.Base(strings.TrimSuffix(strings.Fields(args)[0], ":"))
	f[dir+"status"] = fmt.Sprintf("Name:\ta.out\nState:\tS (sleeping)\nUid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\nVmSize:\t1000 kB\nVmRSS:\t100 kB\n", uid)
	f[dir+"stat"] = fmt.Sprintf("%d (%.15s) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 0 1000 0 0 0\n", pid, name)
}
