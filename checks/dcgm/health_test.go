package dcgm

import (
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/hostengine"
)

func TestDCGMHealth(t *testing.T) { checktest.Run(t, "check_dcgm_health") }

var _ = checktest.Table("check_dcgm_health", func(name string) []checktest.Scenario {
	incident := func(i int, system hostengine.System, failed bool, code int, text string) hostengine.Incident {
		return hostengine.Incident{Entity: checktest.DCGMGPU(i), System: system, Failed: failed, Code: code, Message: text}
	}
	says := func(list ...hostengine.Incident) *checktest.FakeDCGM {
		return &checktest.FakeDCGM{Says: hostengine.Health{Incidents: list}}
	}
	const down = "GPU 4's NvLink link 0 is currently down"
	const tooOld, notStarted = "GPU 1: Fabric State is NvmlTooOld (6).", "GPU 2: Fabric State is Not Started (3)."
	const recovery, degraded = "Detected 8 Fabric Health: Route Recovery for GPU 4", "Detected 1 Fabric Health: Bandwidth Degraded for GPU 5"
	const dbe = "Detected 2 volatile double-bit ECC error(s) in GPU 4."
	bad := checktest.GPUFinding(name, 3, checks.Finding{Code: "dcgm.fr.4", Severity: checks.Fail, Remedy: checks.ResetGPU}, "DCGM_FR_VOLATILE_DBE_DETECTED (4), memory: "+dbe)
	failing := func(name string, words []string, err error, f checks.Finding) checktest.Scenario {
		f.Message = dcgmHealthName + ":  cannot ask nv-hostengine at here: " + err.Error()
		s := checktest.OnDCGM(name, words, &checktest.FakeDCGM{Err: err}, f)
		s.Broken = f.Severity != checks.Fail
		return s
	}
	nameless := says(incident(3, hostengine.DCGMMemory, true, 4, dbe))
	nameless.GPUErr = errDCGM
	unnamed := bad
	unnamed.Device = checks.Device{Kind: "gpu", Name: "DCGM's GPU 4"}
	unnamed.Message = name + ":  DCGM's GPU 4: " + unnamed.Got
	sites := checktest.OnDCGM("a site's classes", nil, says(incident(3, hostengine.DCGMPCIe, true, 3, "replays"), incident(4, hostengine.DCGMMemory, true, 4, dbe)),
		checktest.GPUFinding(name, 3, checks.Finding{Code: "dcgm.fr.3", Severity: checks.Fail}, "DCGM_FR_PCI_REPLAY_RATE (3), PCIe: replays"),
		checktest.GPUFinding(name, 4, checks.Finding{Code: "dcgm.fr.4", Severity: checks.Warn, Remedy: checks.ResetGPU}, "DCGM_FR_VOLATILE_DBE_DETECTED (4), memory: "+dbe))
	sites.Files["etc/nhc/dcgm.toml"] = "[[error]]\ncode = 3\nclass = \"fail\"\n[[error]]\nname = \"VOLATILE_DBE_DETECTED\"\nclass = \"warn\"\n"
	wrong := checktest.OnDCGM("invalid classes of a site", nil, says(incident(3, hostengine.DCGMMemory, true, 4, dbe)),
		checks.Finding{Code: "dcgm.errors", Severity: checks.Warn, Remedy: checks.FixConfig, Message: name + `:  the site's classes of DCGM errors are not used: /etc/nhc/dcgm.toml:1: class "off", want fail, warn or info`}, bad)
	wrong.Files["etc/nhc/dcgm.toml"] = "[[error]]\ncode = 3\nclass = \"off\"\n"
	letters := checktest.OnDCGM("invalid letters", checktest.Of("-s", "mx"), &checktest.FakeDCGM{}, checks.Finding{Code: "config.value", Severity: checks.Unknown, Want: "letters of apmitn", Got: "mx", Remedy: checks.FixConfig,
		Message: name + ":  systems, want letters of apmitn, got mx"})
	hung := &hostengine.HungError{Doing: "dcgmHealthCheck", For: 8 * time.Second}
	nothing := checktest.Scenario{Name: "no GPU", Want: []checks.Finding{{Code: "gpu.none", Severity: checks.Skip, Message: name + ":  no NVIDIA GPU on this node"}}}
	bus := checktest.OnDCGM("unreadable PCI bus", nil, &checktest.FakeDCGM{}, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /sys/bus/pci/devices: not a directory"})
	bus.Files, bus.Broken = map[string]string{"sys/bus/pci/devices": ""}, true

	return append(checktest.DCGMCommon(name),
		nothing, bus,
		checktest.OnDCGM("healthy", nil, &checktest.FakeDCGM{}).OrTable(map[string]any{}),
		checktest.OnDCGM("healthy, of some systems", checktest.Of("-s", "mn", "-f"), &checktest.FakeDCGM{}).OrTable(map[string]any{"systems": "mn", "hung_fail": true}),
		checktest.OnDCGM("watches that have just started", nil, &checktest.FakeDCGM{Says: hostengine.Health{Fresh: true}}, checks.Finding{Code: "dcgm.fresh", Severity: checks.OK,
			Message: name + ":  nv-hostengine at here has just started to watch some systems: it reports only their current state"}),
		checktest.OnDCGM("one of eight", nil, says(incident(3, hostengine.DCGMMemory, true, 4, dbe)), bad),
		checktest.OnDCGM("one of eight, and an error of the switches", nil, &checktest.FakeDCGM{Says: hostengine.Health{Incidents: []hostengine.Incident{incident(3, hostengine.DCGMMemory, true, 4, dbe)}}, Err: errDCGM},
			bad, checks.Finding{Code: "dcgm.failed", Severity: checks.Unknown, Message: name + ":  cannot ask nv-hostengine at here: " + errDCGM.Error()}),
		checktest.OnDCGM("only a warning of DCGM", nil, says(incident(3, hostengine.DCGMMemory, false, 4, dbe)),
			checktest.GPUFinding(name, 3, checks.Finding{Code: "dcgm.fr.4", Severity: checks.Warn, Remedy: checks.ResetGPU}, "DCGM_FR_VOLATILE_DBE_DETECTED (4), memory: "+dbe)),
		checktest.OnDCGM("a disputed threshold", nil, says(incident(3, hostengine.DCGMPCIe, true, 3, "replays")),
			checktest.GPUFinding(name, 3, checks.Finding{Code: "dcgm.fr.3", Severity: checks.Warn}, "DCGM_FR_PCI_REPLAY_RATE (3), PCIe: replays")),
		checktest.OnDCGM("a link without a bridge", nil, says(incident(3, hostengine.DCGMNVLink, true, 14, down), incident(4, hostengine.DCGMNVLink, true, -1, down)),
			checktest.GPUFinding(name, 3, checks.Finding{Code: "dcgm.fr.14", Severity: checks.Warn}, "DCGM_FR_NVLINK_DOWN (14), NVLink: "+down),
			checktest.GPUFinding(name, 4, checks.Finding{Code: "dcgm.fr.14", Severity: checks.Warn}, "DCGM_FR_NVLINK_DOWN (14), NVLink: "+down)),
		checktest.OnDCGM("IMEX of an idle node", nil, says(hostengine.Incident{System: hostengine.DCGMIMEX, Failed: true, Code: 122, Message: "IMEX domain status is DOWN"}),
			checks.Finding{Code: "dcgm.fr.122", Severity: checks.Warn, Got: "DCGM_FR_IMEX_UNHEALTHY (122), IMEX: IMEX domain status is DOWN",
				Message: name + ":  DCGM_FR_IMEX_UNHEALTHY (122), IMEX: IMEX domain status is DOWN"}),
		checktest.OnDCGM("states of the fabric, which check_gpu_fabric judges", nil,
			says(incident(0, hostengine.DCGMNVLink, true, 123, tooOld), incident(1, hostengine.DCGMNVLink, true, 123, notStarted), incident(2, hostengine.DCGMNVLink, true, -1, tooOld)),
			checktest.GPUFinding(name, 0, checks.Finding{Code: "dcgm.fr.123", Severity: checks.OK}, "DCGM_FR_FABRIC_PROBE_STATE (123), NVLink: "+tooOld),
			checktest.GPUFinding(name, 1, checks.Finding{Code: "dcgm.fr.123", Severity: checks.Warn}, "DCGM_FR_FABRIC_PROBE_STATE (123), NVLink: "+notStarted),
			checktest.GPUFinding(name, 2, checks.Finding{Code: "dcgm.fr.123", Severity: checks.OK}, "DCGM_FR_FABRIC_PROBE_STATE (123), NVLink: "+tooOld)),
		checktest.OnDCGM("health of the fabric: a recovery, and lost bandwidth", nil,
			says(incident(3, hostengine.DCGMNVLink, true, 33, degraded), incident(4, hostengine.DCGMNVLink, true, 33, recovery), incident(5, hostengine.DCGMNVLink, true, -1, recovery)),
			checktest.GPUFinding(name, 3, checks.Finding{Code: "dcgm.fr.33", Severity: checks.Fail}, "DCGM_FR_FIELD_VIOLATION (33), NVLink: "+degraded),
			checktest.GPUFinding(name, 4, checks.Finding{Code: "dcgm.fr.33", Severity: checks.Warn}, "DCGM_FR_FIELD_VIOLATION (33), NVLink: "+recovery),
			checktest.GPUFinding(name, 5, checks.Finding{Code: "dcgm.fr.33", Severity: checks.Warn}, "DCGM_FR_FIELD_VIOLATION (33), NVLink: "+recovery)),
		checktest.OnDCGM("an unknown code", nil, says(incident(3, 1<<20, true, 999, "new")),
			checktest.GPUFinding(name, 3, checks.Finding{Code: "dcgm.fr.999", Severity: checks.Warn}, "DCGM error 999: new")),
		checktest.OnDCGM("dcgmi, which prints no codes", nil, says(incident(3, hostengine.DCGMMemory, true, -1, dbe), incident(4, hostengine.DCGMPCIe, true, -1, "replays")),
			bad, checktest.GPUFinding(name, 4, checks.Finding{Code: "dcgm.fr.unknown", Severity: checks.Warn}, "DCGM error without a code, PCIe: replays")),
		checktest.OnDCGM("a switch", nil, says(hostengine.Incident{Entity: hostengine.Entity{Kind: "switch", ID: 2}, System: hostengine.DCGMSwitchFatal, Failed: true, Code: 15, Message: "fatal"}),
			checks.Finding{Code: "dcgm.fr.15", Severity: checks.Fail, Remedy: checks.CheckFabric, Device: checks.Device{Kind: "nvswitch", Name: "nvswitch2"}, Got: "DCGM_FR_NVSWITCH_FATAL_ERROR (15), NVSwitch: fatal",
				Message: name + ":  nvswitch2: DCGM_FR_NVSWITCH_FATAL_ERROR (15), NVSwitch: fatal"}),
		checktest.OnDCGM("a failed reading", nil, says(incident(3, hostengine.DCGMMemory, true, 27, "could not query")),
			checktest.GPUFinding(name, 3, checks.Finding{Code: "dcgm.fr.27", Severity: checks.OK}, "DCGM_FR_FIELD_QUERY (27), memory: could not query")),
		checktest.OnDCGM("DCGM does not report the GPU's address", nil, nameless, unnamed),
		sites, wrong, letters,
		failing("the engine hangs", nil, hung, checks.Finding{Code: "dcgm.hung", Severity: checks.Warn, Got: hung.Error()}),
		failing("the engine hangs, and -f", checktest.Of("-f"), hung, checks.Finding{Code: "dcgm.hung", Severity: checks.Fail, Got: hung.Error()}),
		failing("an error", nil, &hostengine.Error{Call: "dcgmHealthCheck", Code: -3, Text: "Generic unspecified error"}, checks.Finding{Code: "dcgm.failed", Severity: checks.Unknown}),
		failing("dcgmi, and the watches are off", nil, hostengine.ErrNoWatches, checks.Finding{Code: "dcgm.watches", Severity: checks.Unknown}),
		failing("the connection breaks", nil, hostengine.ErrNoEngine, checks.Finding{Code: "dcgm.engine", Severity: checks.Unknown}),
	)
})
