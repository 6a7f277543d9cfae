package xid

import (
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// The action None says nothing about an error for which the driver never sets an action.
func TestXidUnmarked(t *testing.T) {
	t.Parallel()
	const fail, warn = "fail xid.119 reset-gpu", "warn xid.119  the driver requests no recovery"
	for version, want := range map[string]string{
		"565.57.01": fail, "570.124.06": fail, "570.190": fail, "570.195.03": warn, "570.211.01": warn, "575.51.02": warn, "580.65.06": warn, "580.95.05": warn, "595.45.04": warn,
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			m := newXidMachine(t)
			m.driver(version)
			m.gpus = []checks.GPUState{{PCI: c1, Recovery: new(0)}}
			m.xid(119, "Timeout after 6s of waiting for RPC response from GPU6 GSP!")
			m.look(want)
		})
	}
	m := newXidMachine(t)
	m.driver("550.90.07")
	m.gpus = []checks.GPUState{{PCI: c1}}
	m.xid(119, "Timeout")
	m.look(fail)
	row, _ := readRow(checks.XidKey{Code: 119})
	for _, first := range row.Marks {
		if !row.marked(first) {
			t.Errorf("%s is not among the drivers from it on", first)
		}
	}
}
