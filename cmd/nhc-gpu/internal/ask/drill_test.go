package ask

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	_ "github.com/nhc-gpu/nhc-gpu/checks/all"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/topology"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// Each code of the self-test can be rehearsed: the finding is marked, names the device of the node,
// and reaches Slurm's reason.
func TestDrillOfEachCode(t *testing.T) {
	tier.All(t)
	t.Parallel()
	list, err := selftest.All()
	if err != nil {
		t.Fatal(err)
	}
	faults := faultsOf(list)
	if len(faults) < 250 {
		t.Fatalf("only %d codes", len(faults))
	}
	for code, scenarios := range faults {
		if list, err := findScenarios(code); err != nil || len(list) != len(scenarios) {
			t.Errorf("%s: %d scenarios, want %d: %v", code, len(list), len(scenarios), err)
		}
		s := chooseScenario(scenarios, code, func(string) int { return 0 })
		found, err := tryScenario(t.Context(), s, code)
		if err != nil || found.Code != code {
			t.Errorf("%s: %+v, %v", code, found, err)
			continue
		}
		device := found.Device
		if device.PCI != "" {
			device.PCI = "0000:fe:00.0"
		}
		d := session.NewDrill(s.Check, found, device)
		d.Alone = true
		step := d.Step(&plan.Plan{}, true, "/etc/nhc/nhc.conf", func(string, string) conf.Policy { return conf.Policy{} })
		if step == nil {
			t.Errorf("%s: no run reports it", code)
			continue
		}
		f := *step.Usage
		f.Check = checks.FullName(d.Check)
		if !strings.HasPrefix(f.Message, s.Check+":  [drill] ") || strings.ContainsAny(f.Message, "{}\n") || strings.Contains(f.Message, "nhc-gpu-selftest") {
			t.Errorf("%s: %q", code, f.Message)
		}
		if device.PCI != "" && strings.Contains(f.Message, found.Device.PCI) {
			t.Errorf("%s: %q still names the device of the scenario", code, f.Message)
		}
		reason := slurm.Reason(verdict.Reason(f, 0))
		if !strings.HasPrefix(reason, "NHC: [drill] ") || slurm.ReasonCode(reason) != slurm.DrillCode+code {
			t.Errorf("%s: %q", code, reason)
		}
	}
}

// A drill takes the scenario that shows most: of a check that the node runs, then a failure, then one
// of a device, then the shortest text.
func TestChooseScenario(t *testing.T) {
	t.Parallel()
	of := func(name, check, severity, device, message string) *selftest.Scenario {
		return &selftest.Scenario{Name: name, Check: check, Want: []selftest.Finding{{Severity: severity, Code: "x.y", Device: device, Message: message}, {Severity: "fail", Code: "other"}}}
	}
	for _, tt := range []struct {
		want string
		list []*selftest.Scenario
	}{
		{"fails", []*selftest.Scenario{of("warns", "b", "warn", "gpu3", ""), of("fails", "b", "fail", "", ""), of("unknown", "b", "unknown", "gpu3", "")}},
		{"of the node", []*selftest.Scenario{of("elsewhere", "b", "fail", "gpu3", ""), of("of the node", "a", "warn", "", "")}},
		{"of a device", []*selftest.Scenario{of("of none", "b", "fail", "", ""), of("of a device", "b", "fail", "gpu3", "long")}},
		{"short", []*selftest.Scenario{of("long", "b", "fail", "gpu3", "long text"), of("short", "b", "fail", "gpu3", "text")}},
	} {
		runs := func(check string) int { return map[string]int{"a": 1}[check] }
		if got := chooseScenario(tt.list, "x.y", runs); got.Name != tt.want {
			t.Errorf("%q, want %q", got.Name, tt.want)
		}
	}
}

func TestDevicesOf(t *testing.T) {
	t.Parallel()
	at := func(name, pci string) topology.Located { return topology.Located{Name: name, PCI: pci} }
	full := &topology.Topology{
		GPUs: []topology.Located{at("gpu0", "0000:10:00.0")}, Disks: []topology.Located{at("nvme0", "0000:40:00.0")},
		NICs: []topology.LocatedNIC{{Located: at("mlx5_0", "0000:20:00.0"), Ports: []topology.LocatedPort{{Name: "mlx5_0:1"}, {Name: "mlx5_0:2"}}}},
	}
	for _, tt := range []struct {
		kind  string
		of    *topology.Topology
		want  string
		known bool
	}{
		{"gpu", full, "[gpu0 0000:10:00.0]", true}, {"nvme", full, "[nvme0 0000:40:00.0]", true}, {"hca", full, "[mlx5_0 0000:20:00.0]", true},
		{"port", full, "[mlx5_0:1 0000:20:00.0 mlx5_0:2 0000:20:00.0]", true}, {"mount", full, "[]", false},
		{"gpu", &topology.Topology{}, "[]", true}, {"gpu", &topology.Topology{Doubts: []string{"read /sys: no"}}, "[]", false},
	} {
		got, known := devicesOf(tt.of, tt.kind)
		if fmt.Sprint(got) != tt.want || known != tt.known {
			t.Errorf("%s: %v, %v, want %s, %v", tt.kind, got, known, tt.want, tt.known)
		}
	}
	pci := shapedAs(checks.Device{Kind: "gpu", Name: "gpu0", PCI: "0000:10:00.0"}, checks.Device{Kind: "gpu", PCI: "0000:c1:00.0"})
	name := shapedAs(checks.Device{Kind: "gpu", Name: "gpu0", PCI: "0000:10:00.0"}, checks.Device{Kind: "gpu", Name: "gpu3"})
	if pci.String() != "0000:10:00.0" || name.String() != "gpu0" {
		t.Errorf("%s, %s", pci, name)
	}
}
