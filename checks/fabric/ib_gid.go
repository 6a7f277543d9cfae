package fabric

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// ibGID checks the addresses of the active ports that carry jobs' traffic, or of each named
// DEVICE. An Ethernet port needs a GID of type v2 (-t v1: v1), made of an IPv4 or a global IPv6
// address of its interface. A port without one fails if most ports of its kind (same board, same
// link layer) have one; if none has, it warns. With -t or -i every port must have one; with -i
// INDEX at that index, for programs that use a fixed index (NCCL_IB_GID_INDEX).
//
// -m MTU is the least MTU of the interface, in bytes: a RoCE MTU of 4096 needs 4192, most sites
// use 4200 or 9000. Without it an interface with a lower MTU than most others warns. An
// InfiniBand port needs a GUID, and a single port with another subnet prefix than most warns.
//
// Ports that are not active are not checked: see check_ib_ports. The standby member of a bond has
// no GIDs. Adapters for iWARP have no RoCE GID, and are checked only with -t or -i.
//
//	gpu* || check_ib_gid
//	gpu* || check_ib_gid -i 3 -m 9000
type ibGID struct {
	Type    string   `opt:"t" toml:"type"`                  // type of the GID over Ethernet: v2 (default) or v1
	Index   int      `opt:"i" toml:"index" in:"-1:65535"`   // index in the GID table; -1: any
	MTU     int      `opt:"m" toml:"mtu" in:"68:65535 min"` // least MTU of an Ethernet interface, bytes; 0: that of most others
	Devices []string `arg:"*" toml:"devices"`               // ports; none: those that carry jobs' traffic
}

const ibGIDName = "check_ib_gid"

// The types of GIDs, as the kernel names them.
const (
	roceV1 = "IB/RoCE v1"
	RoCEv2 = "RoCE v2"
)

func init() {
	const address = "Run ip address show on the interface, and show_gids: without an IP address the port reaches no one through a router. Configure the address of the interface (NetworkManager, systemd-networkd, netplan)."
	checks.Register(checks.Info{
		Name:    ibGIDName,
		Usage:   "[-t v2|v1] [-i INDEX] [-m MTU] [DEVICE...]",
		Summary: "ports have valid GIDs and the right MTU",
		Lane:    checks.Local,
		New:     func() checks.Check { return &ibGID{Index: -1} },
		Do: func() map[string]string {
			return map[string]string{
				"ib.inactive":   InactiveDo,
				"ib.gid.none":   address,
				"ib.gid.index":  address + " The index depends on the order of assigning addresses: reboot, or let programs choose it (unset NCCL_IB_GID_INDEX). If all ports have the GID at another index correct the line.",
				"ib.gid.mtu":    "Set the MTU (ip link set dev INTERFACE mtu N, and in the interface's configuration); the switch's ports need the same. If all interfaces have the same MTU on purpose correct the line.",
				"ib.gid.guid":   "The port has no GUID. A virtual function needs one from the administrator (ip link set PF vf N port_guid). Otherwise reload the driver, or reboot.",
				"ib.gid.prefix": "The port is in another subnet than the others: a cable goes to the wrong fabric, or another subnet manager serves it. If every rail is a subnet of its own remove the line.",
			}
		},
	})
}

func (c *ibGID) Run(_ context.Context, env *checks.Env) []checks.Finding {
	kind, ok := map[string]string{"": RoCEv2, "v2": RoCEv2, "v1": roceV1}[strings.ToLower(c.Type)]
	if !ok {
		return []checks.Finding{checks.BadWord(ibGIDName, "type", c.Type, "v2 or v1")}
	}
	f, findings := Ask(env, ibGIDName)
	if f == nil {
		return findings
	}
	ports, findings := f.Judged(c.Devices, "")
	ports, findings = AskUp(f, ports, len(c.Devices) > 0, findings)
	r := &gidRun{Fabric: f, c: c, kind: kind, findings: findings, mtus: map[*Port]int{}}
	var ether, ib []*Port
	for _, p := range ports {
		switch p.Layer {
		case LayerEth:
			ether = append(ether, p)
		case layerIB:
			ib = append(ib, p)
		}
	}
	r.judgeEthernet(ether)
	r.judgeMTU(ether)
	r.judgeInfiniBand(ib)
	return r.Settle(r.findings, "ib.gid.none", "ib.gid.index", "ib.gid.mtu")
}

// gidRun is one run of the check.
type gidRun struct {
	*Fabric

	c        *ibGID
	kind     string
	mtus     map[*Port]int
	findings []checks.Finding
}

func (r *gidRun) report(p *Port, of checks.Finding, format string, args ...any) {
	r.findings = append(r.findings, of.Report(r.Check, p.Subject(), format, args...))
}

func (r *gidRun) reportUnknown(p *Port, err error) {
	r.findings = append(r.findings, r.Unknown(p.Subject(), err))
}

// judgeEthernet judges the GIDs of RoCE ports.
func (r *gidRun) judgeEthernet(ports []*Port) {
	has := map[*Port][]rdma.GID{}
	bad := map[*Port]error{}
	asked := r.c.Type != "" || r.c.Index >= 0
	if !asked { // the only GID of an iWARP port is its MAC address
		ports = slices.DeleteFunc(slices.Clone(ports), func(p *Port) bool { return p.HCA.IWARP })
	}
	ports = slices.DeleteFunc(slices.Clone(ports), r.isStandby)
	all, with := map[string]int{}, map[string]int{} // by kind: all ports, and those with a routable GID
	for _, p := range ports {
		r.env.At("read /sys/class/infiniband/%s/ports/%s/gids", p.Device, p.Port)
		has[p], bad[p] = rdma.IBGIDs(r.env.Host, p.Device, p.Port, func(g rdma.GID) bool { return r.isGood(g) && (r.c.Index < 0 || g.Index >= r.c.Index) })
		if slices.ContainsFunc(has[p], r.isGood) {
			with[portKind(p)]++
		}
		all[portKind(p)]++
	}
	for _, p := range ports {
		of := checks.Finding{Code: "ib.gid.none", Severity: checks.Warn, Remedy: checks.FixConfig, Want: r.kind + " with an IP address", Got: GidsText(has[p])}
		if asked || with[portKind(p)]*2 > all[portKind(p)] {
			of.Severity = checks.Fail
		}
		atIndex := slices.ContainsFunc(has[p], func(g rdma.GID) bool { return g.Index == r.c.Index && r.isGood(g) })
		switch found := slices.ContainsFunc(has[p], r.isGood); {
		case found && (r.c.Index < 0 || atIndex):
		case bad[p] != nil:
			r.reportUnknown(p, bad[p])
		case !found:
			r.report(p, of, "no usable GID")
		default:
			of.Code = "ib.gid.index"
			r.report(p, of, "GID at index %d", r.c.Index)
		}
	}
}

// isGood reports whether a GID has the right type, and a routable address. Old kernels report no
// type: then the address is enough.
func (r *gidRun) isGood(g rdma.GID) bool {
	return (g.Type == r.kind || g.Type == "") && !g.LinkLocal()
}

// GidsText formats a table of GIDs.
func GidsText(list []rdma.GID) string {
	var words []string
	for _, g := range list {
		if len(words) == 4 {
			words = append(words, "...")
			break
		}
		words = append(words, fmt.Sprintf("%d: %s%s", g.Index, netip.AddrFrom16(g.ID).Unmap(), checks.Before(" (", g.Type, ")")))
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

// judgeMTU judges the MTU of the interfaces.
func (r *gidRun) judgeMTU(ports []*Port) {
	kinds := map[string]map[string]int{}
	all := map[string]int{}
	for _, p := range ports {
		for _, dev := range p.NetDevs[:min(1, len(p.NetDevs))] {
			text, err := network.NetMTU(r.env.Host, p.PCI, dev)
			n, bad := strconv.Atoi(text)
			switch {
			case err != nil:
				r.reportUnknown(p, err)
			case bad != nil || n <= 0:
				r.reportUnknown(p, fmt.Errorf("MTU %q of %s: not a number", text, dev))
			default:
				r.mtus[p] = n
				countOne(kinds, portKind(p), fmt.Sprint(n))
				all[portKind(p)]++
			}
		}
	}
	for _, p := range ports {
		count := kinds[portKind(p)]
		most, _ := strconv.Atoi(checks.Commonest(count))
		got := r.mtus[p]
		of := checks.Finding{Code: "ib.gid.mtu", Severity: checks.Fail, Remedy: checks.FixConfig, Want: fmt.Sprintf("at least %d", r.c.MTU), Got: fmt.Sprint(got)}
		switch {
		case got == 0:
		case got < r.c.MTU:
			r.report(p, of, "MTU of %s", p.NetDevs[0])
		case r.c.MTU <= 0 && got < most && count[fmt.Sprint(most)]*2 > all[portKind(p)]:
			of.Severity, of.Want = checks.Warn, fmt.Sprint(most)
			r.report(p, of, "MTU of %s is lower than on other ports", p.NetDevs[0])
		}
	}
}

// countOne counts a value of a kind.
func countOne(kinds map[string]map[string]int, kind, value string) {
	if kinds[kind] == nil {
		kinds[kind] = map[string]int{}
	}
	kinds[kind][value]++
}

// judgeInfiniBand judges the first GID of each port: its subnet prefix, and its GUID.
func (r *gidRun) judgeInfiniBand(ports []*Port) {
	prefixes := map[*Port]string{}
	kinds := map[string]map[string]int{}
	all := map[string]int{}
	for _, p := range ports {
		r.env.At("read /sys/class/infiniband/%s/ports/%s/gids", p.Device, p.Port)
		gid, err := rdma.IBGID0(r.env.Host, p.Device, p.Port)
		switch {
		case err != nil:
			r.reportUnknown(p, err)
		case [8]byte(gid[8:]) == [8]byte{}:
			r.report(p, checks.Finding{Code: "ib.gid.guid", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: "a GUID", Got: "none"}, "GID 0")
		default:
			prefixes[p] = fmt.Sprintf("%x:%x:%x:%x", gid[0:2], gid[2:4], gid[4:6], gid[6:8])
			countOne(kinds, portKind(p), prefixes[p])
			all[portKind(p)]++
		}
	}
	for _, p := range ports {
		count := kinds[portKind(p)]
		most := checks.Commonest(count)
		// Without a majority, rails are subnets of their own, and so are several ports with the
		// same other prefix.
		if got := prefixes[p]; got != "" && got != most && count[got] == 1 && count[most]*2 > all[portKind(p)] {
			r.report(p, checks.Finding{Code: "ib.gid.prefix", Severity: checks.Warn, Remedy: checks.CheckFabric, Want: most, Got: got}, "subnet prefix differs from other ports")
		}
	}
}
