package rdma

import (
	"math"
	"strings"
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

// Loads reads the ports of all RDMA devices by their names: mlx5_0:1.
func (w *PortWatch) Loads() (map[string]PortLoad, error) {
	loads, err := map[string]PortLoad{}, w.list()
	for i := range w.ports {
		p := &w.ports[i]
		counts, _ := IBCounters(w.h, p.device, p.port, nil, loadCounters)
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
		state, _ := w.h.ReadValue(p.dir + "/state")
		loads[p.name] = PortLoad{
			PCI: p.pci, Active: strings.HasPrefix(state, "4:"),
			Data: 4 * get(loadCounters[:2]...), Wait: get(loadCounters[2]), Faults: get(portFaults...), // data counts words of 4 bytes
		}
	}
	return loads, err
}

// loadCounters are the counters of a load.
var loadCounters = append([]string{"counters/port_xmit_data", "counters/port_rcv_data", "counters/port_xmit_wait"}, portFaults...)
