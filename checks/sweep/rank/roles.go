package rank

import (
	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/fabric"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// leftPorts returns why the checks of RDMA ports skip some of them, by name: no job uses these. If the roles of the
// ports cannot be determined it returns none.
func leftPorts(h *probe.Host, find checks.PlatformOf) func(port string) string {
	f, _ := fabric.Ask(&checks.Env{Host: h, Platform: find}, "sweep")
	if f == nil {
		return func(string) string { return "" }
	}
	left := map[string]string{}
	for i := range f.Ports {
		left[f.Ports[i].Name()] = f.Ports[i].Left
	}
	return func(port string) string {
		why, known := left[port]
		if !known {
			return "a virtual function"
		}
		return why
	}
}
