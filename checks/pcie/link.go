package pcie

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
)

// The judgement of a link by what its two ends support, and by other links of the same kind.

// Link is a device and the port above it.
type Link struct {
	pci.Function

	Slot   pci.Function // without an address: the kernel shows no slot, or an emulated one
	Kind   string       // devices of one kind can be compared
	sleeps bool         // an idle link lowers its speed: the current speed is not judged
	narrow bool         // the board wires fewer lanes than the chip has: only an outlier of its kind is judged
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
	if slot, ok := pci.Slot(env.Host, l.Function); ok && !pci.VirtualBridge(slot) {
		l.Slot = slot
	}
	return l
}

// isGPU reports whether a device is a GPU for computing, not the console of a server.
func isGPU(class, vendor string) bool {
	switch {
	case strings.HasPrefix(class, "0302"), strings.HasPrefix(class, "0380"), strings.HasPrefix(class, "1200"):
		return true
	}
	return strings.HasPrefix(class, "0300") && vendor == "10de"
}

// BestWidth returns the lanes that both ends support, 0 if unknown.
func (l *Link) BestWidth() int { return pci.Both(l.MaxWidth, l.Slot.MaxWidth) }

// BestSpeed returns the speed that both ends support in GT/s, 0 if unknown.
func (l *Link) BestSpeed() float64 { return pci.Both(l.MaxSpeed, l.Slot.MaxSpeed) }

// Known reports whether the width and the speed of the link are known. Those of a virtual function
// are not.
func (l *Link) Known() bool { return l.Width > 0 && l.Speed > 0 }

// isGone reports whether a device no longer answers: all its registers read as ones.
func isGone(env *checks.Env, address string) (bool, error) {
	env.At("read /sys/bus/pci/devices/%s/config", address)
	c, err := pci.ReadConfig(env.Host, address)
	return c.Gone, err
}

// Want is the width and the speed that nhc.conf wants; 0: none.
type Want struct {
	width int
	speed float64
}

// Fault is a fault of a link.
type Fault struct {
	severity  checks.Severity
	What      string // width, speed, slot
	Text      string
	want, got string
	config    bool // the number in nhc.conf is the likely cause
}

// Judge returns the faults of each link. A link with less than both its ends support fails if it has
// less than is usual for its kind, or less than it had before. Otherwise it only warns: the BIOS, a
// riser or a backplane can limit it. Where the kernel shows no slot, as in a virtual machine, the
// device alone does not prove what its slot supports: it is only compared with its kind. A link with a
// slower slot than the others warns.
func Judge(links []*Link, want Want, past *Past) [][]Fault {
	faults := make([][]Fault, len(links))
	for i, l := range links {
		if !l.Known() {
			continue
		}
		peers, then := findPeers(links, l), past.of(l)
		width := figure[int]{
			"width", "PCIe width", "PCIe slot has fewer lanes than those of its kind",
			want.width, then.Width, func(l *Link) int { return l.Width }, (*Link).BestWidth, l.Slot.MaxWidth, Lanes,
		}
		speed := figure[float64]{
			"speed", "PCIe speed", "PCIe slot is slower than those of its kind",
			want.speed, then.Speed, (*Link).judgedSpeed, (*Link).BestSpeed, l.Slot.MaxSpeed, SpeedText,
		}
		faults[i] = append(judgeFigure(l, peers, &width), judgeFigure(l, peers, &speed)...)
		past.note(l, pastLink{Width: width.keep(l, peers), Speed: speed.keep(l, peers)})
	}
	return faults
}

// findPeers returns the other links of a kind with known width and speed. Functions of one device
// share one link.
func findPeers(links []*Link, l *Link) (peers []*Link) {
	seen := map[string]bool{CardOf(l.Address): true}
	for _, p := range links {
		if card := CardOf(p.Address); p.Kind == l.Kind && p.Known() && !seen[card] {
			peers, seen[card] = append(peers, p), true
		}
	}
	return peers
}

// CardOf returns an address without its function.
func CardOf(address string) string {
	card, _, _ := strings.Cut(address, ".")
	return card
}

// chooseSeverity returns the severity of a link with less than its ends support. A device of PCIe 2
// or older is a console or a management port on the board, which often has fewer wired lanes.
func (l *Link) chooseSeverity() checks.Severity {
	if l.MaxSpeed > 0 && l.MaxSpeed <= GenSpeed(2) {
		return checks.Warn
	}
	return checks.Fail
}

// figure is the width or the speed of a link.
type figure[T int | float64] struct {
	what, text, slotText string
	want, then           T // of nhc.conf, and the best that the link has had; 0: none
	now, best            func(*Link) T
	slot                 T // what the slot supports, 0 if unknown
	format               func(T) string
}

func judgeFigure[T int | float64](l *Link, peers []*Link, f *figure[T]) []Fault {
	now, best, others, alike := f.now(l), f.best(l), MostOf(peers, f.best), f.alike(l, peers)
	better := slices.ContainsFunc(peers, func(p *Link) bool { return f.now(p) > now })
	fault := func(severity checks.Severity, what, text string, want, got T) []Fault {
		return []Fault{{severity, what, text, f.format(want), f.format(got), false}}
	}
	switch {
	case f.want > 0 && now < f.want:
		return []Fault{wanted(f.what, f.text, f.format(f.want), f.format(now), allMiss(l, f.want, peers, f.now))}
	case f.want > 0:
	case now < best && now < usualOf(append(peers, l), f.now):
		return fault(l.chooseSeverity(), f.what, f.text, best, now)
	case now < best && (f.slot > 0 || len(peers) == 1 && better) && now < f.then && !alike:
		return fault(l.chooseSeverity(), f.what, f.text+" is lower than this device had before", f.then, now)
	case now < best && l.narrow:
	case now < best && f.slot == 0 && !better:
	case now < best && alike:
		return fault(checks.Warn, f.what, f.text+", the same on all devices of its kind", best, now)
	case now < best && len(peers) > 0:
		return fault(checks.Warn, f.what, f.text+", not lower than usual for its kind", best, now)
	case now < best:
		return fault(checks.Warn, f.what, f.text+", not higher in any earlier run", best, now)
	case best < others:
		return fault(checks.Warn, "slot", f.slotText, others, best)
	}
	return nil
}

// alike reports whether all links of a kind have the same figure.
func (f *figure[T]) alike(l *Link, peers []*Link) bool {
	return len(peers) > 0 && !slices.ContainsFunc(peers, func(p *Link) bool { return f.now(p) != f.now(l) })
}

// keep returns the figure that later runs compare with. If all links of a kind are alike, that is the
// present one: a change of all of them is a change of the BIOS or of the hardware.
func (f *figure[T]) keep(l *Link, peers []*Link) T {
	if f.alike(l, peers) {
		return f.now(l)
	}
	return max(f.then, f.now(l))
}

// usualOf returns the most common figure of the links of a kind. Of two equally common ones it is the
// lower: several devices seldom fail alike, and a node with two devices can be built so. If all links of more than two
// differ, it is the highest.
func usualOf[T int | float64](links []*Link, of func(*Link) T) (usual T) {
	count := map[T]int{}
	for _, l := range links {
		count[of(l)]++
	}
	for v, n := range count {
		if n > count[usual] || n == count[usual] && (n > 1 || len(links) == 2) == (v < usual) {
			usual = v
		}
	}
	return usual
}

// wanted returns the fault of a link that misses a number in nhc.conf. allMiss: so do all devices
// of its kind.
func wanted(what, text, want, got string, allMiss bool) Fault {
	if allMiss {
		text += ", as on most devices of its kind"
	}
	return Fault{checks.Fail, what, text, want, got, allMiss}
}

// allMiss reports whether no link of a kind reaches want and most of them have the same figure as
// l: then the number in nhc.conf is more likely wrong than all the devices are.
func allMiss[T int | float64](l *Link, want T, peers []*Link, of func(*Link) T) bool {
	equal := 1
	for _, p := range peers {
		if of(p) >= want {
			return false
		}
		if of(p) == of(l) {
			equal++
		}
	}
	return len(peers) > 0 && 2*equal > len(peers)+1
}

// judgedSpeed returns the current speed; of a device that lowers its speed when idle, the speed that
// it and its slot support.
func (l *Link) judgedSpeed() float64 {
	if l.sleeps {
		return l.BestSpeed()
	}
	return l.Speed
}

// MostOf returns the most common figure of some devices, of two equally common ones the higher; 0 if
// no two devices have the same figure.
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

// SpeedText formats a speed.
func SpeedText(speed float64) string { return fmt.Sprintf("%g GT/s", speed) }

// pcieSpeeds are the speeds of the generations in GT/s, from the first.
var pcieSpeeds = []float64{2.5, 5, 8, 16, 32, 64, 128}

// GenSpeed returns the speed of a generation in GT/s, 0 of an unknown one.
func GenSpeed(gen int) float64 {
	if gen < 1 || gen > len(pcieSpeeds) {
		return 0
	}
	return pcieSpeeds[gen-1]
}

// parsePCIeSpeed parses a generation, "5" or "gen5", or a speed, "32" or "32GT/s". A bare number up
// to 7 is a generation.
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

// Wanted parses -w and -s. It returns a finding for an invalid value.
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

// Lanes formats a number of lanes: x16.
func Lanes(n int) string { return fmt.Sprintf("x%d", n) }

// fifthNVLink is a bandwidth that only NVLinks of the fifth generation reach, MB/s in one direction.
const fifthNVLink = 50000

// ManagesSwitches reports whether an adapter manages NVSwitches of the fourth generation, which are
// managed over InfiniBand. It reads the VPD only of ConnectX-7 adapters on nodes with such
// NVSwitches, since each reading takes milliseconds.
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

// Finding returns the finding of a fault.
func (f Fault) Finding(check, code string, d checks.Device) checks.Finding {
	remedy := checks.ReseatOrRMA
	switch {
	case f.severity != checks.Fail:
		remedy = checks.NoRemedy
	case f.config:
		remedy = checks.FixConfig
	}
	return checks.Finding{Code: code, Severity: f.severity, Remedy: remedy, Want: f.want, Got: f.got}.Report(check, d, "%s", f.Text)
}

// UsualRate is the limit of DCGM's health watch, replays per minute. Above it checks only warn:
// the limit does not depend on the generation, and newer links replay more.
const UsualRate = 8
