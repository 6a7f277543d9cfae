package rdma

import (
	"errors"
	"io/fs"
	"math"
	"path/filepath"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// PortLoad has counters of an RDMA port since some moment. NaN is unknown.
type PortLoad struct {
	PCI    string  // of its adapter
	Active bool    // its state is ACTIVE
	Data   float64 // bytes, both directions
	Wait   float64 // ticks in which it had data and could not send
	Faults float64 // errors, of all counters of errors
}

// These are the counters of errors that grow with traffic, by their files in counters/ (Linux,
// Documentation/ABI/stable/sysfs-class-infiniband).
var portFaults = []string{
	"counters/symbol_error", "counters/link_error_recovery", "counters/link_downed", "counters/port_rcv_errors",
	"counters/port_rcv_remote_physical_errors", "counters/port_xmit_discards", "counters/local_link_integrity_errors", "counters/excessive_buffer_overrun_errors",
}

// PortLoads reads the ports of all RDMA devices by their names: mlx5_0:1.
func PortLoads(h *probe.Host) (map[string]PortLoad, error) {
	loads := map[string]PortLoad{}
	devices, err := h.Names(ibClass)
	if errors.Is(err, fs.ErrNotExist) {
		return loads, nil
	}
	names := append([]string{"counters/port_xmit_data", "counters/port_rcv_data", "counters/port_xmit_wait"}, portFaults...)
	for _, device := range devices {
		ports, _ := h.Names(filepath.Join(ibClass, device, "ports"))
		for _, port := range ports {
			counts, _ := IBCounters(h, device, port, nil, names)
			get := func(list ...string) float64 {
				sum, known := 0.0, false
				for _, name := range list {
					if n, ok := counts[name]; ok {
						sum, known = sum+float64(n), true
					}
				}
				if !known {
					return math.NaN()
				}
				return sum
			}
			state, _ := h.ReadValue(filepath.Join(ibClass, device, "ports", port, "state"))
			loads[device+":"+port] = PortLoad{
				PCI: readPCIAddress(h, device), Active: strings.HasPrefix(state, "4:"),
				Data: 4 * get(names[0], names[1]), Wait: get(names[2]), Faults: get(portFaults...), // data counts words of 4 bytes
			}
		}
	}
	return loads, err
}
