package checktest

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// H100s returns the NVML snapshot of eight healthy H100.
func H100s() *nvml.Snapshot {
	n := &nvml.Snapshot{
		Taken: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Library: nvml.Known(fakenvml.Driver), Driver: nvml.Known(fakenvml.Driver), CC: nvml.Known(false),
	}
	healthy := nvml.ECCCounts{
		Corrected: nvml.Known(uint64(0)), Uncorrected: nvml.Known(uint64(0)), CorrectedAggregate: nvml.Known(uint64(0)), UncorrectedAggregate: nvml.Known(uint64(0)),
	}
	off, on := nvml.Known(false), nvml.Known(true)
	mhz, watt := func(n uint32) nvml.Reading[uint32] { return nvml.Known(n) }, func(n uint32) nvml.Reading[uint32] { return nvml.Known(n * 1000) }
	for i := range 8 {
		n.GPUs = append(n.GPUs, nvml.GPU{
			Index: i, PCI: fakenvml.Address(i), Name: nvml.Known("NVIDIA H100 80GB HBM3"), UUID: nvml.Known(fakenvml.UUID(i)),
			Serial: nvml.Known(fakenvml.Serial(i)), Minor: nvml.Known(i), VBIOS: nvml.Known("96.00.30.00.01"), Inforom: nvml.Known("G520.0200.00.05"),
			InforomValid: on,
			Recovery:     nvml.Recovery{Action: nvml.Known(nvml.RecoveryNone)},
			ECC:          nvml.ECC{On: on, Pending: on, DRAM: healthy, SRAM: healthy, SRAMThreshold: off, Unrepairable: off, RepairPending: off},
			Rows:         nvml.Rows{Remapped: nvml.Known(nvml.RemappedRows{}), Histogram: nvml.Known(nvml.RowHistogram{Max: 2560})},
			Modes:        nvml.Modes{Persistence: on, Compute: nvml.Known("default"), MIG: off, MIGPending: off},
			Temperature: nvml.Temperature{GPU: nvml.Known(31), HBM: nvml.Known(40), Margin: nvml.Known(56),
				MarginMax: nvml.Known(0), MarginSlowdown: nvml.Known(-2), MarginShutdown: nvml.Known(-8)},
			Power: nvml.Power{Draw: watt(71), Limit: watt(700), Default: watt(700), Enforced: watt(700)},
			Clocks: nvml.Clocks{MaxGraphics: mhz(1980), MaxMemory: mhz(2619), AppGraphics: mhz(1980), AppMemory: mhz(2619),
				DefaultGraphics: mhz(1980), DefaultMemory: mhz(2619)},
			Throttle: nvml.Throttle{Now: nvml.Known(uint64(1)), PowerCap: nvml.Known(uint64(0)), Thermal: nvml.Known(uint64(0)),
				HardwareThermal: nvml.Known(uint64(0)), PowerBrake: nvml.Known(uint64(0))},
			Link: nvml.Link{Gen: nvml.Known(5), Width: nvml.Known(16), MaxGen: nvml.Known(5), MaxWidth: nvml.Known(16),
				GPUMaxGen: nvml.Known(5), Replays: nvml.Known(0)},
			Processes: nvml.Known[[]nvml.GPUProcess](nil), Memory: nvml.Known(nvml.GPUMemory{Total: 80 << 30, Free: 79 << 30}),
			NVLinks: nvml.Known(Repeat(18, true)), NVLink: Linked(i, 18, 26562, "switch"), Fabric: nvml.Known(nvml.Fabric{State: nvml.FabricCompleted}),
		})
	}
	return n
}

// Repeat returns a list of n times v.
func Repeat[T any](n int, v T) (list []T) {
	for range n {
		list = append(list, v)
	}
	return list
}

// Linked returns the NVLinks of GPU i of eight; all of them are up.
func Linked(i, links, speed int, far string) nvml.NVLink {
	l := nvml.NVLink{
		Speed: nvml.Known(Repeat(links, speed)), Far: nvml.Known(Repeat(links, far)),
		Counts: nvml.Known(nvml.LinkCounts{"replays": Repeat(links, uint64(0)), "recoveries": Repeat(links, uint64(0)), "crc": Repeat(links, uint64(0))}),
	}
	ends, peers := []string{}, nvml.PeerP2P{}
	for link := range links {
		ends = append(ends, fmt.Sprintf("0000:%02x:00.0", 5+link%4))
	}
	for peer := range 8 {
		if peer != i {
			peers[fmt.Sprintf("gpu%d", peer)] = nvml.P2POK
		}
	}
	l.FarPCI, l.PeerP2P = nvml.Known(ends), nvml.Known(peers)
	return l
}

// V100s does the same for eight V100. They have no row remapper, no recovery action and
// no throttling times.
func V100s() *nvml.Snapshot {
	n := H100s()
	n.CC = nvml.Reading[bool]{}
	for i := range n.GPUs {
		g := &n.GPUs[i]
		g.Name, g.Recovery, g.Modes.MIG, g.Modes.MIGPending = nvml.Known("Tesla V100-SXM2-32GB"), nvml.Recovery{}, nvml.Reading[bool]{}, nvml.Reading[bool]{}
		g.ECC.SRAMThreshold, g.ECC.Unrepairable, g.ECC.RepairPending = nvml.Reading[bool]{}, nvml.Reading[bool]{}, nvml.Reading[bool]{}
		g.Rows = nvml.Rows{RetiredSBE: nvml.Known(0), RetiredDBE: nvml.Known(0), RetiredPending: nvml.Known(false)}
		g.Temperature = nvml.Temperature{GPU: nvml.Known(31), HBM: nvml.Known(33), MaxGPU: nvml.Known(83), MaxHBM: nvml.Known(85), Slowdown: nvml.Known(87), Shutdown: nvml.Known(90)}
		g.Throttle = nvml.Throttle{Now: g.Throttle.Now}
		g.Link.Gen, g.Link.MaxGen, g.Link.GPUMaxGen = nvml.Known(3), nvml.Known(3), nvml.Reading[int]{}
		g.NVLinks, g.NVLink, g.Fabric = nvml.Known(Repeat(6, true)), Linked(i, 6, 25781, "gpu"), nvml.Reading[nvml.Fabric]{}
		g.NVLink.FarPCI = nvml.Reading[[]string]{} // the GPUs are connected directly, in a mesh
	}
	return n
}

// OnGPUs returns a scenario on a node with eight H100, changed by change.
func OnGPUs(name string, words []string, change func(*nvml.Snapshot), want ...checks.Finding) Scenario {
	n := H100s()
	if change != nil {
		change(n)
	}
	return Scenario{Name: name, Words: words, NVML: n, Want: want, Files: maps.Clone(fakenvml.Files(fakenvml.H100, 8))}
}

// Gpu3 returns a function that changes GPU 3 only.
func Gpu3(change func(g *nvml.GPU)) func(*nvml.Snapshot) {
	return func(n *nvml.Snapshot) { change(&n.GPUs[3]) }
}

// OnV100s returns a scenario on a node with eight V100.
func OnV100s(name string, words []string, change func(*nvml.Snapshot), want ...checks.Finding) Scenario {
	s := OnGPUs(name, words, nil, want...)
	if s.NVML = V100s(); change != nil {
		change(s.NVML)
	}
	return s
}

// GPUFinding returns a finding about a GPU.
func GPUFinding(check string, i int, f checks.Finding, text string) checks.Finding {
	return About(check, checks.Device{Kind: "gpu", Name: fmt.Sprintf("gpu%d", i), PCI: fakenvml.Address(i), Serial: fakenvml.Serial(i), UUID: fakenvml.UUID(i)}, f, text)
}

// About composes the text of [checks.Finding.Report] independently of it.
func About(check string, d checks.Device, f checks.Finding, text string) checks.Finding {
	f.Device = d
	f.Message = check + ":  " + d.String() + ": " + text + WantGot(f)
	if f.Want == "" && f.Got == "" {
		f.Got = text
	}
	return f
}

// WantGot returns the end of a message.
func WantGot(f checks.Finding) string {
	return checks.Before(", want ", f.Want, "") + checks.Before(", got ", f.Got, "")
}

// ErrOdd is an error without information about the GPU; the others describe its state.
var (
	ErrOdd   = &nvml.Error{Call: "nvmlDeviceGetX(3)", Code: 999}
	ErrLost  = &nvml.Error{Call: "nvmlDeviceGetX(3)", Code: 15}
	ErrReset = &nvml.Error{Call: "nvmlDeviceGetX(3)", Code: 16}
	ErrPower = &nvml.Error{Call: "nvmlDeviceGetX(3)", Code: 8}
	ErrIRQ   = &nvml.Error{Call: "nvmlDeviceGetX(3)", Code: 11}
)

// OddText is the text of [ErrOdd].
const OddText = "nvmlDeviceGetX(3): unknown error (NVML error 999)"

// Gpu3In returns the finding about GPU 3 in the state of an error.
func Gpu3In(check string, err error) checks.Finding {
	f := GPUFinding(check, 3, checks.Finding{Code: "gpu.recovery.lost", Severity: checks.Fail, Remedy: checks.RebootNode, Whole: true}, "")
	text := "the GPU is lost"
	f.Got = "lost"
	e, _ := errors.AsType[*nvml.Error](err)
	switch e {
	case ErrReset:
		f.Code, f.Got, f.Remedy, text = "gpu.recovery.reset", "reset required", checks.ResetGPU, "the GPU requires a reset"
	case ErrPower:
		f.Code, f.Got, f.Remedy, text = "gpu.recovery.power", "no power cable", checks.ReseatOrRMA, "the GPU has no power cable attached"
	case ErrIRQ:
		f.Code, f.Got, text = "gpu.recovery.interrupts", "no interrupts", "the GPU sends no interrupts"
	}
	f.Message = fmt.Sprintf("%s:  gpu3 %s: %s, serial %s, %s (nvmlDeviceGetX(3): NVML error %d)", check, fakenvml.Address(3), text, fakenvml.Serial(3), fakenvml.UUID(3), e.Code)
	return f
}

// GPUCommon returns the scenarios that every check of GPUs must have: a node without GPUs, an
// NVML that does not answer, a GPU that cannot be queried, GPUs that do not support the
// reading.
func GPUCommon(check string, words ...string) []Scenario {
	nothing := Scenario{Name: "no GPU", Words: words, NVMLErr: fmt.Errorf("load libnvidia-ml.so.1: %w", probe.ErrNoLibrary),
		Want: []checks.Finding{{Code: "gpu.none", Severity: checks.Skip, Message: check + ":  no NVIDIA GPU on this node"}}}
	empty := Scenario{Name: "no GPU, but NVML works", Words: words, NVML: &nvml.Snapshot{}, Want: nothing.Want}
	noDriver := OnGPUs("the driver is not loaded", words, nil, checks.Finding{Code: "gpu.nvml", Severity: checks.Unknown,
		Message: check + ":  cannot ask NVML: nvmlInit: the driver is not loaded (NVML error 9)"})
	noDriver.NVML, noDriver.NVMLErr, noDriver.Broken = nil, &nvml.Error{Call: "nvmlInit", Code: 9}, true
	none := OnGPUs("GPUs on the PCI bus, none in NVML", words, func(n *nvml.Snapshot) { n.GPUs = nil },
		checks.Finding{Code: "gpu.nvml", Severity: checks.Unknown, Message: check + ":  the PCI bus shows GPUs, but NVML shows none"})
	none.Broken = true
	noHandle := func(err error, want checks.Finding) Scenario {
		return OnGPUs(fmt.Sprintf("one GPU has no handle: %v", err), words, Gpu3(func(g *nvml.GPU) {
			*g = nvml.GPU{Index: 3, Err: err, PCI: g.PCI, UUID: g.UUID, Serial: g.Serial}
		}), want)
	}
	odd := noHandle(ErrOdd, GPUFinding(check, 3, checks.Finding{Code: "gpu.error", Severity: checks.Unknown, Whole: true}, "cannot be read: "+OddText))
	odd.Broken = true
	bus := OnGPUs("unreadable PCI bus", words, nil, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /sys/bus/pci/devices: not a directory"})
	bus.Files, bus.Broken = map[string]string{"sys/bus/pci/devices": ""}, true
	passed := OnGPUs("all passed to virtual machines", words, nil, nothing.Want...)
	passed.NVML, passed.NVMLErr, passed.Links = nil, noDriver.NVMLErr, map[string]string{}
	for i := range 8 {
		delete(passed.Files, "proc/driver/nvidia/gpus/"+fakenvml.Address(i)+"/information")
		passed.Links["sys/bus/pci/devices/"+fakenvml.Address(i)+"/driver"] = "../../../bus/pci/drivers/vfio-pci"
	}
	return []Scenario{nothing, empty, noDriver, none, odd, noHandle(ErrLost, Gpu3In(check, ErrLost)), noHandle(ErrReset, Gpu3In(check, ErrReset)), bus, passed}
}

// GPULacks returns the scenarios of a value that one GPU of eight does not have. This is a fault,
// unless the GPU is of another model, or too few other GPUs have the value.
func GPULacks(check, what string, drop func(*nvml.GPU), words ...string) []Scenario {
	want := GPUFinding(check, 3, checks.Finding{Code: "gpu.reading", Severity: checks.Warn, Got: "not supported"}, what+", which 7 other GPUs report")
	other := OnGPUs("no "+what+" of a GPU of another device", words, Gpu3(drop))
	other.Files["sys/bus/pci/devices/"+fakenvml.Address(3)+"/device"] = "0x2331\n"
	return []Scenario{
		OnGPUs("no "+what+" of one GPU", words, Gpu3(drop), want), other,
		OnGPUs("no "+what+" of one of two", words, func(n *nvml.Snapshot) { Gpu3(drop)(n); n.GPUs = n.GPUs[3:5] }),
	}
}

// GPUDumb returns the scenario of GPUs that support none of the readings.
func GPUDumb(check string, words ...string) Scenario {
	return OnGPUs("not supported", words, func(n *nvml.Snapshot) {
		n.CC = nvml.Reading[bool]{}
		for i := range n.GPUs {
			n.GPUs[i] = nvml.GPU{Index: i, PCI: n.GPUs[i].PCI}
		}
	}, checks.Finding{Code: "gpu.unsupported", Severity: checks.Skip, Message: check + ":  not supported by these GPUs or their driver"})
}

// Hgx returns the platform of [H100s].
func Hgx() *checks.Platform {
	return &checks.Platform{Name: "HGX H100", File: "conf/profiles/h100.toml", GPUs: []int{4, 8}, PowerLimit: 700, GraphicsClock: 1980, MemoryClock: 2619, PCIeGen: 5, PCIeWidth: 16}
}
