// Package network reads network interfaces, routes, sockets and name servers.
package network

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// NetIf is a directory of /sys/class/net. Unknown values are 0, -1 or "": for an interface that is
// down the kernel shows neither carrier nor speed.
type NetIf struct {
	Name      string
	Type      int    // the kernel's number of the link type (ARPHRD): 1 Ethernet, 32 IP over InfiniBand, 772 lo
	On        bool   // administratively up
	OperState string // up, down, lowerlayerdown, dormant; unknown for drivers without it
	Carrier   int    // 1 yes, 0 no, -1 unknown
	Speed     int    // Mb/s; 0 if unknown
	Duplex    string // full, half; "" or unknown
	MTU       int
	Index     int    // of the kernel, changes when the driver is loaded again; 0 if unknown
	Changes   uint64 // how often the carrier came or went
	Counted   bool   // Changes is known
	Physical  bool   // it has a device, and is not only software
	PCI       string // that device's address, if it is on the PCI bus
	Lower     []string
	Bond      *Bond     // nil if it is not a bond
	Slave     *BondPart // nil if it is not a member of a bond

	Err error // why a value above is missing
}

// Bond is the directory bonding of a bond.
type Bond struct {
	Mode       string // 802.3ad, active-backup
	Members    []string
	Active     string // the one active member, in active-backup, balance-tlb and balance-alb
	Aggregator string // the active one, in 802.3ad
	Partner    string // MAC address of the far end, in 802.3ad; "" if unknown, always for users other than root
}

// BondPart is the directory bonding_slave of a member.
type BondPart struct {
	MII        string // up, down, going down, going back
	Aggregator string // of 802.3ad: the one it is in
}

// These are link types: Ethernet and loopback.
const (
	LinkEthernet = 1
	LinkLoopback = 772
)

// flagUp is IFF_UP.
const flagUp = 0x1

// NetIfs returns the names of all network interfaces, including those of software.
func NetIfs(h *probe.Host) ([]string, error) {
	return probe.Once(h, "netifs", func() ([]string, error) {
		names, err := h.Names(NetClass)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		list := names[:0]
		for _, n := range names {
			if n != "bonding_masters" { // a file of the bonding driver
				list = append(list, n)
			}
		}
		return list, err
	})
}

// Bonds returns the names of the bonds among the network interfaces.
func Bonds(h *probe.Host) ([]string, error) {
	return probe.Once(h, "bonds", func() ([]string, error) {
		text, err := h.ReadFile(NetClass + "/bonding_masters")
		if !errors.Is(err, fs.ErrNotExist) {
			return strings.Fields(string(text)), err
		}
		names, err := NetIfs(h)
		var bonds []string
		for _, n := range names {
			if _, err := h.ReadValue(NetClass + "/" + n + "/bonding/slaves"); err == nil {
				bonds = append(bonds, n)
			}
		}
		return bonds, err
	})
}

// ReadNetIf reads one interface. If it does not exist, or was removed in the meantime, its error is
// [fs.ErrNotExist].
func ReadNetIf(h *probe.Host, name string) NetIf {
	n, _ := probe.Once(h, "netif "+name, func() (NetIf, error) { return readInterface(h, name), nil })
	return n
}

func readInterface(h *probe.Host, name string) NetIf {
	dir := NetClass + "/" + name
	n := NetIf{Name: name, Carrier: -1, On: true}
	if name == "" || strings.Contains(name, "/") {
		n.Err = &fs.PathError{Op: "read", Path: dir, Err: fs.ErrNotExist}
		return n
	}
	parts, err := h.Names(dir)
	if err != nil {
		n.Err = err
		return n
	}
	n.OperState = h.Word(dir, "operstate", &n.Err)
	n.Type, _ = readNumber(h, dir, "type", &n.Err)
	n.MTU, _ = readNumber(h, dir, "mtu", &n.Err)
	n.Index, _ = readNumber(h, dir, "ifindex", &n.Err)
	if text := h.Word(dir, "flags", &n.Err); text != "" {
		flags, ok := ParseHex(strings.TrimPrefix(text, "0x"))
		if !ok {
			n.Err = errors.Join(n.Err, &fs.PathError{Op: "parse", Path: dir + "/flags", Err: fs.ErrInvalid})
		}
		n.On = !ok || flags&flagUp != 0
	}
	if c, ok := readNumber(h, dir, "carrier", &n.Err); ok && (c == 0 || c == 1) {
		n.Carrier = c
	}
	n.Speed = parseNetSpeed(readQuietly(h, dir, "speed", &n.Err))
	n.Duplex = readQuietly(h, dir, "duplex", &n.Err)
	if c, ok := readNumber(h, dir, "carrier_changes", &n.Err); ok && c >= 0 {
		n.Changes, n.Counted = uint64(c), true
	}
	if link, err := os.Readlink(h.Path(dir + "/device")); err == nil {
		n.Physical = true
		if base := filepath.Base(link); strings.Count(base, ":") == 2 {
			n.PCI = base
		}
	}
	for _, p := range parts {
		if lower, ok := strings.CutPrefix(p, "lower_"); ok {
			n.Lower = append(n.Lower, lower)
		}
		switch p {
		case "bonding":
			n.Bond = readBond(h, dir+"/bonding", &n.Err)
		case "bonding_slave":
			n.Slave = &BondPart{MII: h.Word(dir+"/bonding_slave", "mii_status", &n.Err), Aggregator: readQuietly(h, dir+"/bonding_slave", "ad_aggregator_id", &n.Err)}
		}
	}
	if n.OperState == "" && n.Err == nil { // it was removed after its directory was listed
		n.Err = &fs.PathError{Op: "read", Path: dir + "/operstate", Err: fs.ErrNotExist}
	}
	return n
}

func readBond(h *probe.Host, dir string, errs *error) *Bond {
	mode, _, _ := strings.Cut(h.Word(dir, "mode", errs), " ") // "802.3ad 4"
	return &Bond{
		Mode: mode, Members: strings.Fields(h.Word(dir, "slaves", errs)), Active: readQuietly(h, dir, "active_slave", errs),
		Aggregator: readQuietly(h, dir, "ad_aggregator", errs), Partner: readQuietly(h, dir, "ad_partner_mac", errs),
	}
}

// readQuietly returns the first line of a file that a driver sometimes refuses to read: EINVAL for an
// interface that is down, EOPNOTSUPP for one in software.
func readQuietly(h *probe.Host, dir, name string, errs *error) string {
	var err error
	text := h.Word(dir, name, &err)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) {
		*errs = errors.Join(*errs, err)
	}
	return text
}

// readNumber reads a whole number. It reports an invalid number as an error; ok is false if it is
// missing.
func readNumber(h *probe.Host, dir, name string, errs *error) (n int, ok bool) {
	text := readQuietly(h, dir, name, errs)
	if text == "" {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		*errs = errors.Join(*errs, &fs.PathError{Op: "parse", Path: dir + "/" + name, Err: fs.ErrInvalid})
		return 0, false
	}
	return n, true
}

// parseNetSpeed parses a speed in Mb/s. -1 (in older kernels as an unsigned 32-bit number) and
// invalid text are 0: unknown.
func parseNetSpeed(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 || n > 100_000_000 {
		return 0
	}
	return n
}
