package network

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// ReadDefaultRoutes returns the network interfaces of the node's default routes, and the interfaces
// below them: a bond's members, the parent of a VLAN. It reads /proc/net/route, the main table, and
// ipv6_route, which has the routes of all tables and those that routers advertise. A missing file
// has none.
func ReadDefaultRoutes(h *probe.Host) (DefaultRoutes, error) {
	return probe.Once(h, "default routes", func() (DefaultRoutes, error) {
		routes := DefaultRoutes{V4: map[string]string{}, V6: map[string]string{}}
		for _, f := range []struct {
			path  string
			set   map[string]string
			parse func([]byte) []string
		}{{"/proc/net/route", routes.V4, parseRoutes}, {"/proc/net/ipv6_route", routes.V6, parseRoutes6}} {
			data, err := h.ReadFile(f.path)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return DefaultRoutes{}, err
			}
			for _, dev := range f.parse(data) {
				addWithLower(h, dev, dev, f.set)
			}
		}
		return routes, nil
	})
}

// DefaultRoutes has the interfaces by the protocol of the route, each with the interface of its route.
type DefaultRoutes struct{ V4, V6 map[string]string }

// All returns the interfaces of either protocol.
func (r DefaultRoutes) All() map[string]string {
	all := maps.Clone(r.V4)
	maps.Copy(all, r.V6)
	return all
}

// addWithLower adds an interface of a route and the interfaces below it: /sys/class/net/bond0/lower_eth0.
func addWithLower(h *probe.Host, dev, of string, set map[string]string) {
	if set[dev] != "" || strings.Contains(dev, "/") {
		return
	}
	set[dev] = of
	names, err := h.Names(NetClass + "/" + dev)
	if err != nil {
		return
	}
	for _, n := range names {
		if lower, ok := strings.CutPrefix(n, "lower_"); ok {
			addWithLower(h, lower, of, set)
		}
	}
}

// NetClass has a directory for each network interface.
const NetClass = "/sys/class/net"

// These are flags of a route: RTF_UP, and RTF_REJECT for one that drops packets.
const (
	routeUp     = 0x0001
	routeReject = 0x0200
)

// parseRoutes finds the lines with destination and mask 0: "eth0 00000000 0100000A 0003 0 0 100
// 00000000 0 0 0".
func parseRoutes(data []byte) (devs []string) {
	for line := range bytes.Lines(data) {
		f := strings.Fields(string(line))
		if len(f) < 8 || f[1] != "00000000" || f[7] != "00000000" {
			continue
		}
		if flags, ok := ParseHex(f[3]); ok && flags&routeUp != 0 && flags&routeReject == 0 {
			devs = append(devs, f[0])
		}
	}
	return devs
}

// parseRoutes6 finds the routes to ::/0; the kernel's own, which drops packets, is on lo.
func parseRoutes6(data []byte) (devs []string) {
	for line := range bytes.Lines(data) {
		f := strings.Fields(string(line))
		if len(f) < 10 || strings.Trim(f[0], "0") != "" || f[1] != "00" || f[9] == "lo" {
			continue
		}
		if flags, ok := ParseHex(f[8]); ok && flags&routeUp != 0 && flags&routeReject == 0 {
			devs = append(devs, f[9])
		}
	}
	return devs
}

// ParseHex parses a hexadecimal number.
func ParseHex(text string) (n uint64, ok bool) {
	if text == "" || len(text) > 16 {
		return 0, false
	}
	for _, c := range []byte(text) {
		d := strings.IndexByte("0123456789abcdef", c|0x20)
		if d < 0 {
			return 0, false
		}
		n = n<<4 | uint64(d)
	}
	return n, true
}
