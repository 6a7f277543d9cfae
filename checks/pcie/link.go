package pcie

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// What the checks of PCIe have in common: how a link is judged by what its two
// ends can do, and by those of the same kind.

// Link is a device and the port above it.
type Link struct {
	pci.Function

	Slot   pci.Function // without an address: none is shown, or one that a virtual machine made up
	Kind   string       // those that are alike and can be compared
	sleeps bool         // it lowers its speed when it is idle: that of the moment is not judged
	narrow bool         // the board wires fewer lanes than its chip has: only one that differs from its kind is judged
}

// ReadLink reads a device and the port above it.
func ReadLink(env *checks.Env, address string) *Link {
	env.At("read /sys/bus/pci/devices/%s", address)
	l := &Link{Function: pci.ReadFunction(env.Host, address)}
	if l.Kind = l.Vendor + ":" + l.Device; l.Vendor == "" {
		l.Kind = address
	}
	if l.Vendor == "15b3" && ManagesSwitches(env, address, l.Device) {
		l.Kind, l.narrow = l.Kind+" manager", true
	}
	l.sleeps = isGPU(l.Class, l.Vendor)
	if slot, ok := pci.Slot(env.Host, l.Function); ok && !VirtualBridge(slot) {
		l.Slot = slot
	}
	return l
}

// isGPU tells those that compute from the console of a server.
func isGPU(class, vendor string) bool {
	switch {
	case strings.HasPrefix(class, "0302"), strings.HasPrefix(class, "0380"), strings.HasPrefix(class, "1200"):
		return true
	}
	return strings.HasPrefix(class, "0300") && vendor == "10de"
}

// BestWidth is what both ends can do, lanes; 0 if that is not told.
func (l *Link) BestWidth() int { return Both(l.MaxWidth, l.Slot.MaxWidth) }

// BestSpeed is what both ends can do, GT/s; 0 if that is not told.
func (l *Link) BestSpeed() float64 { return Both(l.MaxSpeed, l.Slot.MaxSpeed) }

// Both is the lower of two figures, the other one where one is not told.
func Both[T int | float64](a, b T) T {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// Told says whether the link says how it runs. That of a virtual function does not.
func (l *Link) Told() bool { return l.Width > 0 && l.Speed > 0 }

// pcieGone says whether a device has left the bus without being taken out: all its
// registers read as ones.
func pcieGone(env *checks.Env, address string) (bool, error) {
	env.At("read /sys/bus/pci/devices/%s/config", address)
	c, err := pci.ReadConfig(env.Host, address)
	return c.Gone, err
}

// Want is what nhc.conf asks of links; 0 is nothing.
type Want struct {
	width int
	speed float64
}

// Fault is what is wrong with a link.
type Fault struct {
	severity  checks.Severity
	What      string // width, speed, slot
	Text      string
	want, got string
}

// Judge judges links, each in its place: a link that does less than both its
// ends can fails, but where all of its kind are alike, which a BIOS or a riser does.
// Where the kernel shows no slot, as in a virtual machine, a device alone is not
// proof of what its slot has: it fails if one of its kind does more.
// One that has less than the others because its slot has is warned of.
func Judge(links []*Link, want Want) [][]Fault {
	faults := make([][]Fault, len(links))
	for i, l := range links {
		if !l.Told() {
			continue
		}
		peers := peersOf(links, l)
		faults[i] = append(faults[i], l.judgeWidth(want.width, peers)...)
		faults[i] = append(faults[i], l.judgeSpeed(want.speed, peers)...)
	}
	return faults
}

// peersOf are the others of a kind whose link is told. Functions of one device have
// one link.
func peersOf(links []*Link, l *Link) (peers []*Link) {
	for _, p := range links {
		if p.Kind == l.Kind && p.Told() && CardOf(p.Address) != CardOf(l.Address) {
			peers = append(peers, p)
		}
	}
	return peers
}

// CardOf is an address without its function.
func CardOf(address string) string {
	card, _, _ := strings.Cut(address, ".")
	return card
}

// lost is how bad it is that a link does less than its ends can. One of PCIe 2 at
// best is a console's or a port's for management on the board, which often has fewer
// lanes wired than it has.
func (l *Link) lost() checks.Severity {
	if l.MaxSpeed > 0 && l.MaxSpeed <= GenSpeed(2) {
		return checks.Warn
	}
	return checks.Fail
}

func (l *Link) judgeWidth(want int, peers []*Link) []Fault {
	most := l.BestWidth()
	alike := (len(peers) > 0 || l.narrow) && !slices.ContainsFunc(peers, func(p *Link) bool { return p.Width != l.Width })
	switch common := MostOf(peers, (*Link).BestWidth); {
	case want > 0 && l.Width < want:
		return []Fault{{checks.Fail, "width", "PCIe width", Lanes(want), Lanes(l.Width)}}
	case want > 0:
	case l.Width < most && alike && l.narrow:
	case l.Width < most && l.Slot.MaxWidth == 0 && !slices.ContainsFunc(peers, func(p *Link) bool { return p.Width > l.Width }):
	case l.Width < most && alike:
		return []Fault{{checks.Warn, "width", "PCIe width, as all of its kind", Lanes(most), Lanes(l.Width)}}
	case l.Width < most:
		return []Fault{{l.lost(), "width", "PCIe width", Lanes(most), Lanes(l.Width)}}
	case most < common:
		return []Fault{{checks.Warn, "slot", "PCIe slot has fewer lanes than those of its kind", Lanes(common), Lanes(most)}}
	}
	return nil
}

// judgeSpeed judges the speed of the moment, that of a device that sleeps by what
// it and its slot can do.
func (l *Link) judgeSpeed(want float64, peers []*Link) []Fault {
	most, now := l.BestSpeed(), l.Speed
	if l.sleeps {
		now = most
	}
	alike := (len(peers) > 0 || l.narrow) && !slices.ContainsFunc(peers, func(p *Link) bool { return p.Speed != l.Speed })
	switch common := MostOf(peers, (*Link).BestSpeed); {
	case want > 0 && now < want:
		return []Fault{{checks.Fail, "speed", "PCIe speed", SpeedText(want), SpeedText(now)}}
	case want > 0:
	case now < most && alike && l.narrow:
	case now < most && l.Slot.MaxSpeed == 0 && !slices.ContainsFunc(peers, func(p *Link) bool { return p.Speed > l.Speed }):
	case now < most && alike:
		return []Fault{{checks.Warn, "speed", "PCIe speed, as all of its kind", SpeedText(most), SpeedText(now)}}
	case now < most:
		return []Fault{{l.lost(), "speed", "PCIe speed", SpeedText(most), SpeedText(now)}}
	case most < common:
		return []Fault{{checks.Warn, "slot", "PCIe slot is slower than those of its kind", SpeedText(common), SpeedText(most)}}
	}
	return nil
}

// MostOf is the figure that most of some devices have, the higher of two that as many
// have; 0 if no two have the same.
func MostOf[D any, T int | float64](devices []D, of func(D) T) (most T) {
	count := map[T]int{}
	for _, d := range devices {
		count[of(d)]++
	}
	for v, n := range count {
		if n >= 2 && (n > count[most] || n == count[most] && v > most) {
			most = v
		}
	}
	return most
}

// SpeedText is a speed for a person.
func SpeedText(speed float64) string { return fmt.Sprintf("%g GT/s", speed) }

// pcieSpeeds are the speeds of generations, from the first.
var pcieSpeeds = []float64{2.5, 5, 8, 16, 32, 64, 128}

// GenSpeed is the speed of a generation, 0 of one that is not known.
func GenSpeed(gen int) float64 {
	if gen < 1 || gen > len(pcieSpeeds) {
		return 0
	}
	return pcieSpeeds[gen-1]
}

// parsePCIeSpeed reads what a person writes: a generation, "5" or "gen5", or a
// speed, "32", "32GT/s". Of a number alone up to 7 is a generation.
func parsePCIeSpeed(word string) (speed float64, ok bool) {
	text := strings.ToLower(strings.ReplaceAll(word, " ", ""))
	if text == "" {
		return 0, true
	}
	text, isGen := strings.CutPrefix(text, "gen")
	number, isSpeed := strings.CutSuffix(text, "gt/s")
	if gen, err := strconv.Atoi(number); err == nil && !isSpeed && (isGen || gen <= len(pcieSpeeds)) {
		return GenSpeed(gen), GenSpeed(gen) > 0
	}
	speed, err := strconv.ParseFloat(number, 64)
	if err != nil || isGen || !slices.Contains(pcieSpeeds, speed) {
		return 0, false
	}
	return speed, true
}

// Wanted reads -w and -s. A word that is none is a finding.
func Wanted(check string, width int, speed string) (Want, []checks.Finding) {
	n, ok := parsePCIeSpeed(speed)
	if !ok {
		const want = "a generation, 1 to 7, or a speed in GT/s"
		return Want{}, []checks.Finding{checks.BadWord(check, "PCIe speed", speed, want)}
	}
	return Want{width: width, speed: n}, nil
}

// DeviceOf names a device by its driver's name and its address.
func DeviceOf(env *checks.Env, l *Link) checks.Device {
	d := checks.Device{Kind: "pci", Name: pci.Name(env.Host, l.Address), PCI: l.Address}
	switch {
	case isGPU(l.Class, l.Vendor):
		d.Kind = "gpu"
	case strings.HasPrefix(l.Class, "0604"):
		d.Kind = "bridge"
	case strings.HasPrefix(l.Class, "0108"):
		d.Kind = "nvme"
	case strings.HasPrefix(l.Class, "02"):
		d.Kind = "nic"
	}
	return d
}

// VirtualBridge says whether a bridge is one of a virtual machine, which runs at any
// speed whatever it says: those of QEMU, and VMware's.
func VirtualBridge(d pci.Function) bool {
	return slices.Contains([]string{"1b36", "15ad"}, d.Vendor) || !strings.HasPrefix(d.Class, "0604")
}

// Lanes is x16.
func Lanes(n int) string { return fmt.Sprintf("x%d", n) }

// fifthNVLink is what no NVLink before the fifth generation can, MB/s one way.
const fifthNVLink = 50000

// ManagesSwitches says whether an adapter belongs to a board with NVSwitches of the
// fourth generation, which are reached over InfiniBand: ConnectX-7 among ConnectX-7, or
// beside others. No other node's are asked, for each answer takes milliseconds.
func ManagesSwitches(env *checks.Env, bdf, model string) bool {
	if checks.BareID(model) != "1021" || bdf == "" {
		return false
	}
	if p, _ := checks.NodePlatform(env); p.NVSwitchGPUs == 0 || p.NVLinkBandwidth < fifthNVLink {
		return false
	}
	env.At("read /sys/bus/pci/devices/%s/vpd", bdf)
	return pci.SwitchManager(env.Host, bdf)
}

// Finding is what is said of a fault.
func (f Fault) Finding(check, code string, d checks.Device) checks.Finding {
	remedy := checks.ReseatOrRMA
	if f.severity != checks.Fail {
		remedy = checks.NoRemedy
	}
	return checks.Finding{Code: code, Severity: f.severity, Remedy: remedy, Want: f.want, Got: f.got}.Report(check, d, "%s", f.Text)
}

// UsualRate is the limit of replays in a minute that DCGM's health watch has.
// It knows no generation, and newer links replay more: so it only warns.
const UsualRate = 8
