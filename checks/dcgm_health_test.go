package checks

import (
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

func TestDCGMHealth(t *testing.T) { testCheck(t, "check_dcgm_health") }

var _ = table("check_dcgm_health", func(name string) []scenario {
	incident := func(i int, system probe.DCGMSystem, failed bool, code int, text string) probe.DCGMIncident {
		return probe.DCGMIncident{Entity: dcgmGPU(i), System: system, Failed: failed, Code: code, Message: text}
	}
	says := func(list ...probe.DCGMIncident) *fakeDCGM {
		return &fakeDCGM{health: probe.DCGMHealth{Incidents: list}}
	}
	const down = "GPU 4's NvLink link 0 is currently down"
	const dbe = "Detected 2 volatile double-bit ECC error(s) in GPU 4."
	bad := gpuFinding(name, 3, Finding{Code: "dcgm.fr.4", Severity: Fail, Remedy: ReseatOrRMA}, "DCGM_FR_VOLATILE_DBE_DETECTED (4), memory: "+dbe)
	failing := func(name string, words []string, err error, f Finding) scenario {
		f.Message = dcgmHealthName + ":  cannot ask nv-hostengine at here: " + err.Error()
		s := onDCGM(name, words, &fakeDCGM{err: err}, f)
		s.broken = f.Severity != Fail
		return s
	}
	nameless := says(incident(3, probe.DCGMMemory, true, 4, dbe))
	nameless.gpuErr = errDCGM
	unnamed := bad
	unnamed.Device = Device{Kind: "gpu", Name: "DCGM's GPU 4"}
	unnamed.Message = name + ":  DCGM's GPU 4: " + unnamed.Got
	sites := onDCGM("classes of a site", nil, says(incident(3, probe.DCGMPCIe, true, 3, "replays"), incident(4, probe.DCGMMemory, true, 4, dbe)),
		gpuFinding(name, 3, Finding{Code: "dcgm.fr.3", Severity: Fail}, "DCGM_FR_PCI_REPLAY_RATE (3), PCIe: replays"),
		gpuFinding(name, 4, Finding{Code: "dcgm.fr.4", Severity: Warn, Remedy: ReseatOrRMA}, "DCGM_FR_VOLATILE_DBE_DETECTED (4), memory: "+dbe))
	sites.files["etc/nhc/dcgm.toml"] = "[[error]]\ncode = 3\nclass = \"fail\"\n[[error]]\nname = \"VOLATILE_DBE_DETECTED\"\nclass = \"warn\"\n"
	wrong := onDCGM("classes of a site that are wrong", nil, says(incident(3, probe.DCGMMemory, true, 4, dbe)),
		Finding{Code: "dcgm.errors", Severity: Warn, Remedy: FixConfig, Message: name + `:  classes of errors not used: /etc/nhc/dcgm.toml:1: class "off", want fail, warn or info`}, bad)
	wrong.files["etc/nhc/dcgm.toml"] = "[[error]]\ncode = 3\nclass = \"off\"\n"
	letters := onDCGM("letters that there are not", of("-s", "mx"), &fakeDCGM{}, Finding{Code: "config.value", Severity: Unknown, Want: "letters of apmitn", Got: "mx", Remedy: FixConfig,
		Message: name + ":  systems, want letters of apmitn, got mx"})
	hung := &probe.DCGMHungError{Doing: "dcgmHealthCheck", For: 8 * time.Second}
	nothing := scenario{name: "no GPU", want: []Finding{{Code: "gpu.none", Severity: Skip, Message: name + ":  no NVIDIA GPU on this node"}}}
	bus := onDCGM("unreadable PCI bus", nil, &fakeDCGM{}, Finding{Code: "probe.unreadable", Severity: Unknown, Message: "read /sys/bus/pci/devices: not a directory"})
	bus.files, bus.broken = map[string]string{"sys/bus/pci/devices": ""}, true

	return append(dcgmCommon(name),
		nothing, bus,
		onDCGM("healthy", nil, &fakeDCGM{}).orTable(map[string]any{}),
		onDCGM("healthy, of some systems", of("-s", "mn", "-f"), &fakeDCGM{}).orTable(map[string]any{"systems": "mn", "hung_fail": true}),
		onDCGM("no watches until now", nil, &fakeDCGM{health: probe.DCGMHealth{Fresh: true}}, Finding{Code: "dcgm.fresh", Severity: OK,
			Message: name + ":  nv-hostengine at here did not watch all of it until now: it knows only what is at this moment"}),
		onDCGM("one of eight", nil, says(incident(3, probe.DCGMMemory, true, 4, dbe)), bad),
		onDCGM("only a warning of DCGM's", nil, says(incident(3, probe.DCGMMemory, false, 4, dbe)),
			gpuFinding(name, 3, Finding{Code: "dcgm.fr.4", Severity: Warn, Remedy: ReseatOrRMA}, "DCGM_FR_VOLATILE_DBE_DETECTED (4), memory: "+dbe)),
		onDCGM("a threshold that is disputed", nil, says(incident(3, probe.DCGMPCIe, true, 3, "replays")),
			gpuFinding(name, 3, Finding{Code: "dcgm.fr.3", Severity: Warn}, "DCGM_FR_PCI_REPLAY_RATE (3), PCIe: replays")),
		onDCGM("a link that has no bridge", nil, says(incident(3, probe.DCGMNVLink, true, 14, down), incident(4, probe.DCGMNVLink, true, -1, down)),
			gpuFinding(name, 3, Finding{Code: "dcgm.fr.14", Severity: Warn}, "DCGM_FR_NVLINK_DOWN (14), NVLink: "+down),
			gpuFinding(name, 4, Finding{Code: "dcgm.fr.14", Severity: Warn}, "DCGM_FR_NVLINK_DOWN (14), NVLink: "+down)),
		onDCGM("IMEX of an idle node", nil, says(probe.DCGMIncident{System: probe.DCGMIMEX, Failed: true, Code: 122, Message: "IMEX domain status is DOWN"}),
			Finding{Code: "dcgm.fr.122", Severity: Warn, Got: "DCGM_FR_IMEX_UNHEALTHY (122), IMEX: IMEX domain status is DOWN",
				Message: name + ":  DCGM_FR_IMEX_UNHEALTHY (122), IMEX: IMEX domain status is DOWN"}),
		onDCGM("a code of the future", nil, says(incident(3, 1<<20, true, 999, "new")),
			gpuFinding(name, 3, Finding{Code: "dcgm.fr.999", Severity: Warn}, "DCGM error 999: new")),
		onDCGM("dcgmi, which tells no codes", nil, says(incident(3, probe.DCGMMemory, true, -1, dbe), incident(4, probe.DCGMPCIe, true, -1, "replays")),
			bad, gpuFinding(name, 4, Finding{Code: "dcgm.fr.unknown", Severity: Warn}, "an error without a code, PCIe: replays")),
		onDCGM("a switch", nil, says(probe.DCGMIncident{Entity: probe.DCGMEntity{Kind: "switch", ID: 2}, System: probe.DCGMSwitchFatal, Failed: true, Code: 15, Message: "fatal"}),
			Finding{Code: "dcgm.fr.15", Severity: Fail, Remedy: CheckFabric, Device: Device{Kind: "nvswitch", Name: "nvswitch2"}, Got: "DCGM_FR_NVSWITCH_FATAL_ERROR (15), NVSwitch: fatal",
				Message: name + ":  nvswitch2: DCGM_FR_NVSWITCH_FATAL_ERROR (15), NVSwitch: fatal"}),
		onDCGM("a reading that failed", nil, says(incident(3, probe.DCGMMemory, true, 27, "could not query")),
			gpuFinding(name, 3, Finding{Code: "dcgm.fr.27", Severity: OK}, "DCGM_FR_FIELD_QUERY (27), memory: could not query")),
		onDCGM("DCGM does not tell which GPU it is", nil, nameless, unnamed),
		sites, wrong, letters,
		failing("the engine hangs in its answer", nil, hung, Finding{Code: "dcgm.hung", Severity: Warn, Got: hung.Error()}),
		failing("the engine hangs in its answer, which fails", of("-f"), hung, Finding{Code: "dcgm.hung", Severity: Fail, Got: hung.Error()}),
		failing("an error", nil, &probe.DCGMError{Call: "dcgmHealthCheck", Code: -3, Text: "Generic unspecified error"}, Finding{Code: "dcgm.failed", Severity: Unknown}),
		failing("dcgmi, and the watches are off", nil, probe.ErrNoWatches, Finding{Code: "dcgm.watches", Severity: Unknown}),
		failing("the connection breaks", nil, probe.ErrNoEngine, Finding{Code: "dcgm.engine", Severity: Unknown}),
	)
})
