package rdma

import (
	"errors"
	"io/fs"
	"math"
	"slices"

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

// loadCounters are the counters of a load: data in both directions, waiting, and behind faultsFrom the errors that
// grow with traffic, by their files in counters/ (Linux, Documentation/ABI/stable/sysfs-class-infiniband).
var loadCounters = []string{
	"port_xmit_data", "port_rcv_data", "port_xmit_wait",
	"symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors",
	"port_rcv_remote_physical_errors", "port_xmit_discards", "local_link_integrity_errors", "excessive_buffer_overrun_errors",
}

const waitAt, faultsFrom = 2, 3

// Names lists the ports that [PortWatch.States] has found: mlx5_0:1.
func (w *PortWatch) Names() (names []string) {
	for i := range w.ports {
		names = append(names, w.ports[i].name)
	}
	return names
}

// Loads reads some of these ports.
func (w *PortWatch) Loads(names []string) map[string]PortLoad {
	loads := make(map[string]PortLoad, len(names))
	for i := range w.ports {
		p := &w.ports[i]
		if !slices.Contains(names, p.name) {
			continue
		}
		if p.ethernet {
			p.active = isActive(w.valueOrError(p.state))
		}
		if p.counters == nil {
			p.counters, p.had = w.openCounters(p), make([]bool, len(loadCounters))
		}
		data, wait, faults := w.sum(p, 0, waitAt), w.sum(p, waitAt, faultsFrom), w.sum(p, faultsFrom, len(loadCounters))
		loads[p.name] = PortLoad{PCI: p.pci, Active: p.active, Data: 4 * data, Wait: wait, Faults: faults} // data counts words of 4 bytes
	}
	return loads
}

// openCounters opens the counters that a port has.
func (w *PortWatch) openCounters(p *watchedPort) []*probe.Attribute {
	list := make([]*probe.Attribute, len(loadCounters))
	for i, name := range loadCounters {
		if a, err := probe.OpenAttribute(w.h, p.dir+"/counters/"+name); !errors.Is(err, fs.ErrNotExist) {
			list[i] = a
		}
	}
	return list
}

// sum adds up some counters of a port, those that can be read. It is NaN if none can, or if others could for the load
// before: the sum would jump.
func (w *PortWatch) sum(p *watchedPort, from, to int) float64 {
	sum, known, same := 0.0, false, true
	first := !slices.Contains(p.had[from:to], true)
	for i := from; i < to; i++ {
		has := false
		if a := p.counters[i]; a != nil {
			if text, err := a.Read(w.buf[:]); err == nil {
				if n, there, ok := parseCounter(string(text)); there && ok {
					sum, known, has = sum+float64(n), true, true
				}
			}
		}
		same = same && has == p.had[i]
		p.had[i] = has
	}
	if !known || !first && !same {
		return math.NaN()
	}
	return sum
}
