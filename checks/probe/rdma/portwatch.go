package rdma

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// PortWatch reads the ports of all RDMA devices again and again.
type PortWatch struct {
	h       *probe.Host
	devices []string
	ports   []watchedPort
	listed  time.Time
	buf     [probe.ValueSize]byte
}

type watchedPort struct {
	name, dir, pci string
	ethernet       bool
	active         bool

	state, physical *probe.Attribute
	counters        []*probe.Attribute // in the order of loadCounters, nil for those that the port lacks
	had             []bool             // those that its last load has
}

// WatchPorts returns a watch of a node's ports.
func WatchPorts(h *probe.Host) *PortWatch { return &PortWatch{h: h} }

// relist is the time after which the ports of the same devices are listed again: their link layer can change.
const relist = 30 * time.Second

func (w *PortWatch) list() error {
	devices, err := w.h.Names(ibClass)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		w.Close()
		return nil
	case slices.Equal(devices, w.devices) && time.Since(w.listed) < relist:
		return err
	}
	w.Close()
	w.devices, w.listed = devices, time.Now()
	for _, device := range devices {
		pci := readPCIAddress(w.h, device)
		ports, _ := w.h.Names(filepath.Join(ibClass, device, "ports"))
		for _, port := range ports {
			dir := filepath.Join(ibClass, device, "ports", port)
			layer, err := w.h.ReadValue(dir + "/link_layer")
			p := watchedPort{name: device + ":" + port, dir: dir, pci: pci, ethernet: err == nil && layer == "Ethernet"}
			p.state, _ = probe.OpenAttribute(w.h, dir+"/state") // an error is that of the first reading, too
			p.physical, _ = probe.OpenAttribute(w.h, dir+"/phys_state")
			w.ports = append(w.ports, p)
		}
	}
	return err
}

// Close closes the files of all ports.
func (w *PortWatch) Close() {
	for i := range w.ports {
		p := &w.ports[i]
		for _, a := range append(p.counters, p.state, p.physical) {
			if a != nil {
				a.Close()
			}
		}
	}
	w.ports, w.devices = nil, nil
}

// States returns the state of each InfiniBand port by its name: "4: ACTIVE 5: LinkUp". A port
// without IPoIB gives no message about its interface. A state that cannot be read is its error.
func (w *PortWatch) States() (map[string]string, error) {
	states, err := map[string]string{}, w.list()
	for i := range w.ports {
		if p := &w.ports[i]; !p.ethernet { // whose interface has messages
			state := w.valueOrError(p.state)
			p.active = isActive(state)
			states[p.name] = state + " " + w.valueOrError(p.physical)
		}
	}
	return states, err
}

func (w *PortWatch) valueOrError(a *probe.Attribute) string {
	value, err := a.Read(w.buf[:])
	if err != nil {
		return err.Error()
	}
	return string(value)
}

// isActive reports whether the state of a port is ACTIVE.
func isActive(state string) bool { return strings.HasPrefix(state, "4:") }

// ChangedPorts returns the ports whose states differ, those that are gone included.
func ChangedPorts(before, now map[string]string) (changed []string) {
	for port, state := range before {
		if now[port] != state {
			changed = append(changed, port)
		}
	}
	slices.Sort(changed)
	return changed
}
