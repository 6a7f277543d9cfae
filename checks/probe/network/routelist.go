package network

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// Route is a line of /proc/net/route or ipv6_route. For an IPv4 route over several next hops the
// kernel lists the first; an IPv6 route has a line for each.
type Route struct {
	Prefix  netip.Prefix
	Gateway netip.Addr // invalid: none, the destination is on the link
	Dev     string
	Metric  uint64
	Nowhere bool // blackhole, unreachable, prohibit: packets are dropped
}

// Routes returns the routes of IPv4's main table, and of all tables of IPv6; these files have no
// others. err names the lines or the file that could not be read; the list has the rest. A missing
// file has none.
func Routes(h *probe.Host) (list []Route, err error) {
	return probe.Once(h, "routes", func() (list []Route, err error) {
		for _, f := range []struct {
			path  string
			parse func([]string) (Route, bool, error)
		}{{"/proc/net/route", parseRoute4}, {"/proc/net/ipv6_route", parseRoute6}} {
			data, bad := h.ReadFile(f.path)
			if errors.Is(bad, fs.ErrNotExist) {
				continue
			}
			if bad != nil {
				err = errors.Join(err, bad)
				continue
			}
			n := 0
			for line := range bytes.Lines(data) {
				n++
				r, ok, bad := f.parse(strings.Fields(string(line)))
				if bad != nil {
					err = errors.Join(err, &fs.PathError{Op: "parse", Path: f.path, Err: fmt.Errorf("line %d: %w", n, bad)})
				}
				if ok {
					list = append(list, r)
				}
			}
		}
		return list, err
	})
}

// errNoRoute means that a line is not a route.
var errNoRoute = errors.New("not a route")

// parseRoute4 parses "eth0 00000000 0100000A 0003 0 0 100 00000000 0 0 0": addresses are numbers in
// the machine's byte order, with the first byte of the address lowest.
func parseRoute4(f []string) (r Route, ok bool, err error) {
	if len(f) == 0 || f[0] == "Iface" {
		return r, false, nil
	}
	if len(f) < 8 {
		return r, false, errNoRoute
	}
	to, ok1 := ParseHex(f[1])
	gateway, ok2 := ParseHex(f[2])
	flags, ok3 := ParseHex(f[3])
	metric, bad := strconv.ParseUint(f[6], 10, 32)
	mask, ok4 := ParseHex(f[7])
	ones := bits.OnesCount32(uint32(mask))
	if !ok1 || !ok2 || !ok3 || !ok4 || bad != nil || to|gateway|mask > 1<<32-1 || bits.ReverseBytes32(uint32(mask)) != ^uint32(0)<<(32-ones) {
		return r, false, errNoRoute
	}
	r = Route{Dev: f[0], Metric: metric, Prefix: netip.PrefixFrom(parseAddr4(to), ones), Nowhere: f[0] == "*" || flags&routeReject != 0}
	if gateway != 0 {
		r.Gateway = parseAddr4(gateway)
	}
	return r, flags&routeUp != 0 || r.Nowhere, nil // some kernels do not mark these as up
}

func parseAddr4(n uint64) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)})
}

// parseRoute6 parses "DEST LENGTH SOURCE LENGTH GATEWAY METRIC REFS USE FLAGS DEV".
func parseRoute6(f []string) (r Route, ok bool, err error) {
	if len(f) == 0 {
		return r, false, nil
	}
	if len(f) < 10 {
		return r, false, errNoRoute
	}
	to, ok1 := parseAddr6(f[0])
	length, ok2 := ParseHex(f[1])
	gateway, ok3 := parseAddr6(f[4])
	metric, ok4 := ParseHex(f[5])
	flags, ok5 := ParseHex(f[8])
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || length > 128 {
		return r, false, errNoRoute
	}
	r = Route{Dev: f[9], Metric: metric, Prefix: netip.PrefixFrom(to, int(length)), Nowhere: flags&routeReject != 0}
	if !gateway.IsUnspecified() {
		r.Gateway = gateway
	}
	return r, flags&routeUp != 0 || r.Nowhere, nil // some kernels do not mark these as up
}

func parseAddr6(text string) (a netip.Addr, ok bool) {
	if len(text) != 32 {
		return a, false
	}
	var b [16]byte
	for i := range b {
		n, ok := ParseHex(text[2*i : 2*i+2])
		if !ok {
			return a, false
		}
		b[i] = byte(n)
	}
	return netip.AddrFrom16(b), true
}
