package rank

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/cpu"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
	"github.com/nhc-gpu/nhc-gpu/checks/sweep"
)

// describeLimit is for each part of the description: files of a driver can block forever.
const describeLimit = 10 * time.Second

// describe describes the node, and returns its addresses. It returns the parts that did not answer, which
// are then missing.
func describe(h *probe.Host, name string, find checks.PlatformOf) (n sweep.Node, own []netip.Addr, silent []string) {
	n = sweep.Node{Name: cmp.Or(name, hostname()), Leaf: leaf(os.Getenv("SLURM_TOPOLOGY_ADDR"), os.Getenv("SLURM_TOPOLOGY_ADDR_PATTERN"))}
	links := interfaces()
	planes := ask(func() []sweep.Plane { return planes(h.Apart(), links) })
	addresses := ask(func() []netip.Addr { return addresses(h.Apart(), links) })
	rails := ask(func() []sweep.Rail { return rails(h.Apart(), find) })
	host := ask(func() string { return hostModel(h.Apart()) })
	gpus := ask(func() gpuList { return gpus(h.Apart(), os.LookupEnv) })
	limit := time.After(describeLimit)
	var ok bool
	if n.Planes, ok = await(planes, limit); !ok {
		silent = append(silent, "network interfaces")
	}
	own, _ = await(addresses, limit) // of the same files
	if n.Rails, ok = await(rails, limit); !ok {
		silent = append(silent, "RDMA ports")
	}
	n.Host, _ = await(host, limit)
	list, ok := await(gpus, limit)
	if !ok {
		silent = append(silent, "GPUs")
	}
	if n.GPUs, n.Closed = len(list.models), list.closed; n.GPUs > 0 {
		n.Model = list.models[0]
	}
	return n, own, silent
}

// hostModel names product and CPU of the node: "PowerEdge XE9680, Intel(R) Xeon(R) Platinum 8480C".
func hostModel(h *probe.Host) string {
	parts := []string{probe.Product(h), cpu.Model(h)}
	return probe.OneLine(strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ", "))
}

// ask calls read in the background.
func ask[T any](read func() T) <-chan T {
	c := make(chan T, 1)
	go func() { c <- read() }()
	return c
}

// await returns an answer of ask, and whether there is one in time. The limit may have passed
// before.
func await[T any](c <-chan T, limit <-chan time.Time) (answer T, ok bool) {
	select {
	case answer = <-c:
		return answer, true
	case <-limit:
	}
	select {
	case answer = <-c:
		return answer, true
	case <-time.After(time.Millisecond):
		return answer, false
	}
}

func hostname() string {
	name, _ := os.Hostname()
	name, _, _ = strings.Cut(name, ".")
	return name
}

// leaf returns the leaf switch of a node from Slurm's variables: "root.leaf1.gpu01" and
// "switch.switch.node". It is "" if Slurm does not know the switches.
func leaf(address, pattern string) string {
	names, kinds := strings.Split(address, "."), strings.Split(pattern, ".")
	if at := len(kinds) - 2; at >= 0 && len(names) == len(kinds) && kinds[at] == "switch" {
		return names[at]
	}
	return ""
}

// link is a network interface with its addresses.
type link struct {
	net.Interface
	addresses []netip.Prefix
}

// interfaces lists the interfaces that are up.
func interfaces() []link {
	all, _ := net.Interfaces()
	var list []link
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		l := link{Interface: i}
		addresses, _ := i.Addrs()
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				l.addresses = append(l.addresses, p)
			}
		}
		list = append(list, l)
	}
	return list
}

// planes returns the interfaces with an address. Those that lead to no hardware, such as docker0
// and the ends of containers, are planes only on a node without others, and bridges not even there.
func planes(h *probe.Host, links []link) []sweep.Plane {
	var hard, soft, bridges []sweep.Plane
	for _, l := range links {
		address, ok := choose(l.addresses)
		if !ok || l.Flags&net.FlagLoopback != 0 {
			continue
		}
		f := network.ReadNetIf(h, l.Name)
		p := sweep.Plane{Name: l.Name, Address: address, MTU: l.MTU, Speed: f.Speed, PCIe: slot(h, f.PCI)}
		switch {
		case isHardware(h, l.Name, 0):
			hard = append(hard, p)
		case isBridge(h, l.Name):
			bridges = append(bridges, p)
		default:
			soft = append(soft, p)
		}
	}
	for _, list := range [][]sweep.Plane{hard, soft} {
		if len(list) > 0 {
			return list
		}
	}
	return bridges
}

// addresses returns the addresses that lead to this node: all of its interfaces, with those on lo of a host
// that routes. Bridges of containers often have the same address on each node.
func addresses(h *probe.Host, links []link) (list []netip.Addr) {
	for _, l := range links {
		if isBridge(h, l.Name) && !isHardware(h, l.Name, 0) {
			continue
		}
		for _, p := range l.addresses {
			if isRouted(p.Addr()) {
				list = append(list, p.Addr())
			}
		}
	}
	return list
}

func isRouted(a netip.Addr) bool {
	return !a.IsLinkLocalUnicast() && !a.IsMulticast() && !a.IsLoopback()
}

func isBridge(h *probe.Host, name string) bool {
	_, err := h.Names(network.NetClass + "/" + name + "/bridge")
	return err == nil
}

// choose returns the address by which others reach an interface: the first of IPv4, or else of IPv6.
func choose(list []netip.Prefix) (six netip.Prefix, ok bool) {
	for _, p := range list {
		switch a := p.Addr(); {
		case !isRouted(a):
		case a.Is4():
			return p, true
		case !ok:
			six, ok = p, true
		}
	}
	return six, ok
}

// isHardware reports whether an interface is an adapter, or lies on one: a bond, a VLAN, a bridge.
func isHardware(h *probe.Host, name string, depth int) bool {
	n := network.ReadNetIf(h, name)
	if n.Physical {
		return true
	}
	if depth > 4 {
		return false
	}
	for _, lower := range n.Lower {
		if isHardware(h, lower, depth+1) {
			return true
		}
	}
	return false
}

// rails returns the RDMA ports that are active.
func rails(h *probe.Host, find checks.PlatformOf) []sweep.Rail {
	ports, _ := rdma.IBPorts(h)
	left := leftPorts(h, find)
	var list []sweep.Rail
	for _, p := range ports {
		if p.State != "ACTIVE" || p.Layer != "InfiniBand" && p.Layer != "Ethernet" {
			continue
		}
		r := sweep.Rail{Name: p.Name(), Layer: p.Layer, GID: -1, Speed: int(p.Gbps()), Left: left(p.Name())}
		r.PCIe = slot(h, p.PCI)
		if p.Layer == "Ethernet" {
			r.GID = gid(h, p)
		}
		if len(p.NetDevs) > 0 {
			r.Interface = p.NetDevs[0]
		}
		list = append(list, r)
	}
	return list
}

// slot returns what the PCIe slot of an adapter lets through in Gb/s, 0 if it is unknown.
func slot(h *probe.Host, address string) int {
	if address == "" {
		return 0
	}
	return int(pci.Limit(h, address))
}

// gid returns the index of a RoCE port's address: RoCE v2 with an IPv4 address, or else with another
// one that routers forward; -1 if there is none.
func gid(h *probe.Host, p rdma.IBPort) int {
	const routed = "RoCE v2"
	v4 := func(g rdma.GID) bool { return netip.AddrFrom16(g.ID).Is4In6() }
	fit := func(g rdma.GID) bool { return g.Type == routed && !g.LinkLocal() }
	list, _ := rdma.IBGIDs(h, p.Device, p.Port, func(g rdma.GID) bool { return fit(g) && v4(g) })
	index := -1
	for _, g := range list {
		if fit(g) && (index < 0 || v4(g)) {
			index = g.Index
		}
	}
	return index
}

// gpuList has the models of the GPUs that the node's driver has or should have, "" for an unknown one.
type gpuList struct {
	models []string
	closed int // that this process cannot use
}

// gpus lists the GPUs by files: the driver's library could block, and so could a GPU that is opened.
// faccessat asks the device cgroup of the step, too.
func gpus(h *probe.Host, env func(string) (string, bool)) (list gpuList) {
	views, _ := nvidia.ReadGPUViews(h)
	own := views.Own()
	for _, address := range own {
		list.models = append(list.models, nvidia.DriverGPUModel(h, address))
	}
	for _, d := range views.Driver {
		if d.Minor < 0 || !slices.Contains(own, d.Address) {
			continue
		}
		err := unix.Faccessat(unix.AT_FDCWD, h.Path(fmt.Sprintf("/dev/nvidia%d", d.Minor)), unix.R_OK|unix.W_OK, 0)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
			list.closed++
		}
	}
	if visible, ok := env("CUDA_VISIBLE_DEVICES"); ok && !strings.Contains(visible, "MIG") {
		words := strings.FieldsFunc(visible, func(r rune) bool { return r == ',' })
		if visible == noDevices {
			words = nil
		}
		list.closed = max(list.closed, len(own)-len(words))
	}
	return list
}

// noDevices is CUDA_VISIBLE_DEVICES of a step without a GPU on a node that has some.
const noDevices = "NoDevFiles"
