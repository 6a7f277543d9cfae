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

// ibGID checks the addresses of the ports that carry jobs' traffic, or of each DEVICE
// that is named. Over Ethernet a port needs a GID of TYPE, v2 or v1, without -t RoCE
// v2, made of an IPv4 or a global IPv6 address of its interface: a port fails that has
// none while most others have, and where none has it warns. With -t or -i each port has
// to have one; with -i at that index, as programs that are told an index look for it
// (NCCL_IB_GID_INDEX). MTU is the least of the interface: a RoCE MTU of 4096 needs 4192,
// most sites have 4200 or 9000; without it an interface is warned of whose MTU is below
// that of most others. Over InfiniBand the port needs a GUID, and it warns where a
// single port has another subnet prefix than most. The others of a port are those of
// its kind: the same board, used alike. Only ports that are up are looked at:
// check_ib_ports judges the others. The standby member of a bond has no GIDs. Adapters
// that speak iWARP have no GID of RoCE, and are not judged by it without -t or -i.
//
//	gpu* || check_ib_gid
//	gpu* || check_ib_gid -i 3 -m 9000
type ibGID struct {
	Type    string   `opt:"t" toml:"type"`    // of the GID over Ethernet: v2 or v1
	Index   int      `opt:"i" toml:"index"`   // where in the table it has to be
	MTU     int      `opt:"m" toml:"mtu"`     // lowest of an Ethernet interface, bytes
	Devices []string `arg:"*" toml:"devices"` // ports; without: those that carry jobs' traffic
}

const ibGIDName = "check_ib_gid"

// The types of GIDs, as the kernel writes them.
const (
	roceV1 = "IB/RoCE v1"
	RoCEv2 = "RoCE v2"
)

func init() {
	const address = "See ip address show of the interface, and show_gids: without an address of its own the port reaches nobody through a router. Give the interface its address (NetworkManager, systemd-networkd, netplan)."
	checks.Register(checks.Info{
		Name:    ibGIDName,
		Usage:   "[-t v2|v1] [-i INDEX] [-m MTU] [DEVICE...]",
		Summary: "ports have their addresses: GIDs, MTU",
		Lane:    checks.Local,
		New:     func() checks.Check { return &ibGID{Index: -1} },
		Do: func() map[string]string {
			return map[string]string{
				"ib.inactive":   InactiveDo,
				"ib.gid.none":   address,
				"ib.gid.index":  address + " The index shifts with the order in which addresses were given: reboot, or let programs choose (NCCL_IB_GID_INDEX unset).",
				"ib.gid.mtu":    "ip link set dev INTERFACE mtu N, and in the interface's configuration; the switch's ports need as much.",
				"ib.gid.guid":   "The port has no GUID: of a virtual function nobody has set one (ip link set PF vf N port_guid). Else reload the driver, or reboot.",
				"ib.gid.prefix": "The port is in another subnet than the others: a cable goes to the wrong fabric, or another subnet manager serves it. If rails are subnets of their own leave the check out.",
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
	ports, findings = AskUp(f, ports, findings)
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
	r.ethernet(ether)
	r.mtu(ether)
	r.infiniband(ib)
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

func (r *gidRun) unsure(p *Port, err error) {
	r.findings = append(r.findings, r.Unknown(p.Subject(), err))
}

// ethernet judges the GIDs of ports of RoCE.
func (r *gidRun) ethernet(ports []*Port) {
	has := map[*Port][]rdma.GID{}
	bad := map[*Port]error{}
	asked := r.c.Type != "" || r.c.Index >= 0
	if !asked { // iWARP has no GID but its MAC address
		ports = slices.DeleteFunc(slices.Clone(ports), func(p *Port) bool { return p.HCA.IWARP })
	}
	ports = slices.DeleteFunc(slices.Clone(ports), r.standby)
	all, with := map[string]int{}, map[string]int{} // by kind; with a GID that routers pass on
	for _, p := range ports {
		r.env.At("read /sys/class/infiniband/%s/ports/%s/gids", p.Device, p.Port)
		has[p], bad[p] = rdma.IBGIDs(r.env.Host, p.Device, p.Port, func(g rdma.GID) bool { return r.good(g) && (r.c.Index < 0 || g.Index >= r.c.Index) })
		if slices.ContainsFunc(has[p], r.good) {
			with[portKind(p)]++
		}
		all[portKind(p)]++
	}
	for _, p := range ports {
		of := checks.Finding{Code: "ib.gid.none", Severity: checks.Warn, Remedy: checks.FixConfig, Want: r.kind + " with an address", Got: GidsText(has[p])}
		if asked || with[portKind(p)]*2 > all[portKind(p)] {
			of.Severity = checks.Fail
		}
		atIndex := slices.ContainsFunc(has[p], func(g rdma.GID) bool { return g.Index == r.c.Index && r.good(g) })
		switch found := slices.ContainsFunc(has[p], r.good); {
		case found && (r.c.Index < 0 || atIndex):
		case bad[p] != nil:
			r.unsure(p, bad[p])
		case !found:
			r.report(p, of, "no such GID")
		default:
			of.Code = "ib.gid.index"
			r.report(p, of, "GID at index %d", r.c.Index)
		}
	}
}

// good says whether a GID is of the right type, and made of an address that a router
// passes on. Old kernels tell no type: then the address has to do.
func (r *gidRun) good(g rdma.GID) bool {
	return (g.Type == r.kind || g.Type == "") && !g.LinkLocal()
}

// GidsText is a table of GIDs in few words.
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

// mtu judges that of the interfaces.
func (r *gidRun) mtu(ports []*Port) {
	kinds := map[string]map[string]int{}
	all := map[string]int{}
	for _, p := range ports {
		for _, dev := range p.NetDevs[:min(1, len(p.NetDevs))] {
			text, err := network.NetMTU(r.env.Host, p.PCI, dev)
			n, bad := strconv.Atoi(text)
			switch {
			case err != nil:
				r.unsure(p, err)
			case bad != nil || n <= 0:
				r.unsure(p, fmt.Errorf("MTU %q of %s: not understood", text, dev))
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
			r.report(p, of, "MTU of %s is less than that of the others", p.NetDevs[0])
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

// infiniband judges the first GID of each port: the prefix of its subnet, and its GUID.
func (r *gidRun) infiniband(ports []*Port) {
	prefixes := map[*Port]string{}
	kinds := map[string]map[string]int{}
	all := map[string]int{}
	for _, p := range ports {
		r.env.At("read /sys/class/infiniband/%s/ports/%s/gids", p.Device, p.Port)
		gid, err := rdma.IBGID0(r.env.Host, p.Device, p.Port)
		switch {
		case err != nil:
			r.unsure(p, err)
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
		// Where most is less than half rails are subnets of their own, and so are several ports with another prefix.
		if got := prefixes[p]; got != "" && got != most && count[got] == 1 && count[most]*2 > all[portKind(p)] {
			r.report(p, checks.Finding{Code: "ib.gid.prefix", Severity: checks.Warn, Remedy: checks.CheckFabric, Want: most, Got: got}, "subnet prefix is not that of the others")
		}
	}
}
