package rdma

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// PortStates returns the state of each InfiniBand port by its name: "4: ACTIVE 5: LinkUp". A port
// without IPoIB gives no message about its interface. A state that cannot be read is its error.
func PortStates(h *probe.Host) (map[string]string, error) {
	states := map[string]string{}
	devices, err := h.Names(ibClass)
	if errors.Is(err, fs.ErrNotExist) {
		return states, nil
	}
	for _, device := range devices {
		ports, _ := h.Names(filepath.Join(ibClass, device, "ports"))
		for _, port := range ports {
			dir := filepath.Join(ibClass, device, "ports", port)
			if layer, err := h.ReadValue(dir + "/link_layer"); err == nil && layer == "Ethernet" {
				continue // its interface has messages
			}
			states[device+":"+port] = valueOrError(h, dir+"/state") + " " + valueOrError(h, dir+"/phys_state")
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
