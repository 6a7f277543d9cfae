package network

import (
	"bytes"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// NetDevices returns the names of the network interfaces in /proc/net/dev, in its order: lo, eth0,
// ib0.
func NetDevices(h *probe.Host) ([]string, error) {
	return probe.Once(h, "netdev", func() ([]string, error) {
		data, err := h.ReadFile("/proc/net/dev")
		if err != nil {
			return nil, err
		}
		return parseNetDevices(data), nil
	})
}

// parseNetDevices returns the first word of each line up to its colon; the two heading lines have
// none there. The counters may follow without a blank.
func parseNetDevices(data []byte) []string {
	var names []string
	for line := range bytes.Lines(data) {
		f := bytes.Fields(line)
		if len(f) == 0 {
			continue
		}
		if name, _, ok := bytes.Cut(f[0], []byte(":")); ok {
			names = append(names, string(name))
		}
	}
	return names
}
