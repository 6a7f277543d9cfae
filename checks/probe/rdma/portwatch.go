package rdma

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// PortWatch reads the ports of all RDMA devices again and again.
type PortWatch struct {
	h       *probe.Host
	devices []string
	ports   []watchedPort
	listed  time.Time
}

type watchedPort struct {
	device, port, name, dir string

	pci      string
	ethernet bool
}

// WatchPorts returns a watch of a node's ports.
func WatchPorts(h *probe.Host) *PortWatch { return &PortWatch{h: h} }

// relist is the time after which the ports of the same devices are listed again: their link layer can change.
const relist = 30 * time.Second

func (w *PortWatch) list() error {
	devices, err := w.h.Names(ibClass)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		w.ports = nil
		return nil
	case slices.Equal(devices, w.devices) && time.Since(w.listed) < relist:
		return err
	}
	w.devices, w.listed, w.ports = devices, time.Now(), nil
	for _, device := range devices {
		pci := readPCIAddress(w.h, device)
		ports, _ := w.h.Names(filepath.Join(ibClass, device, "ports"))
		for _, port := range ports {
			dir := filepath.Join(ibClass, device, "ports", port)
			layer, err := w.h.ReadValue(dir + "/link_layer")
			w.ports = append(w.ports, watchedPort{device, port, device + ":" + port, dir, pci, err == nil && layer == "Ethernet"})
		}
	}
	return err
}

// States returns the state of each InfiniBand port by its name: "4: ACTIVE 5: LinkUp". A port
// without IPoIB gives no message about its interface. A state that cannot be read is its error.
func (w *PortWatch) States() (map[string]string, error) {
	states, err := map[string]string{}, w.list()
	for i := range w.ports {
		if p := &w.ports[i]; !p.ethernet { // whose interface has messages
			states[p.name] = valueOrError(w.h, p.dir+"/state") + " " + valueOrError(w.h, p.dir+"/phys_state")
		}
	}
	return states, err
}

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

func valueOrError(h *probe.Host, path string) string {
	value, err := h.ReadValue(path)
	if err != nil {
		return err.Error()
	}
	return value
}
