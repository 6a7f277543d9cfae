package checks

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// What the checks of PCIe have in common: how a link is judged by what its two
// ends can do, and by those of the same kind.

// pcieLink is a device and the port above it.
type pcieLink struct {
	probe.PCIDevice

	slot   probe.PCIDevice // without an address: none is shown, or one that a virtual machine made up
	kind   string          // those that are alike and can be compared
	sleeps bool            // it lowers its speed when it is idle: that of the moment is not judged
	narrow bool            // the board wires fewer lanes than its chip has: only one that differs from its kind is judged
}

func readPCIeLink(env *Env, address string) *pcieLink {
	env.At("read /sys/bus/pci/devices/%s", address)
	l := &pcieLink{PCIDevice: env.Host.PCIDevice(address)}
	if l.kind = l.Vendor + ":" + l.Device; l.Vendor == "" {
		l.kind = address
	}
	if l.Vendor == "15b3" && managesSwitches(env, address, l.Device) {
		l.kind, l.narrow = l.kind+" manager", true
	}
	l.sleeps = isGPU(l.Class, l.Vendor)
	if slot, ok := env.Host.Slot(l.PCIDevice); ok && !virtualBridge(slot) {
		l.slot = slot
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

// maxWidth and maxSpeed are what both ends can do; 0 if that is not told.
func (l *pcieLink) maxWidth() int { return both(l.MaxWidth, l.slot.MaxWidth) }

func (l *pcieLink) maxSpeed() float64 { return both(l.MaxSpeed, l.slot.MaxSpeed) }

// both is the lower of two figures, the other one where one is not told.
func both[T int | float64](a, b T) T {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// told says whether the link says how it runs. That of a virtual function does not.
func (l *pcieLink) told() bool { return l.Width > 0 && l.Speed > 0 }

// pcieGone says whether a device has left the bus without being taken out: all its
// registers read as ones.
func pcieGone(env *Env, address string) (bool, error) {
	env.At("read /sys/bus/pci/devices/%s/config", address)
	c, err := env.Host.PCIConfig(address)
	return c.Gone, err
}

// pcieWant is what nhc.conf asks of links; 0 is nothing.
type pcieWant struct {
	width int
	speed float64
}

// pcieFault is what is wrong with a link.
type pcieFault struct {
	severity  Severity
	what      string // width, speed, slot
	text      string
	want, got string
}

// judgePCIe judges links, each in its place: a link that does less than both its
// ends can fails, but where all of its kind are alike, which a BIOS or a riser does.
// Where the kernel shows no slot, as in a virtual machine, a device alone is not
// proof of what its slot has: it fails if one of its kind does more.
// One that has less than the others because its slot has is warned of.
func judgePCIe(links []*pcieLink, want pcieWant) [][]pcieFault {
	faults := make([][]pcieFault, len(links))
	for i, l := range links {
		if !l.told() {
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
func peersOf(links []*pcieLink, l *pcieLink) (peers []*pcieLink) {
	for _, p := range links {
		if p.kind == l.kind && p.told() && cardOf(p.Address) != cardOf(l.Address) {
			peers = append(peers, p)
		}
	}
	return peers
}

// cardOf is an address without its function.
func cardOf(address string) string {
	card, _, _ := strings.Cut(address, ".")
	return card
}

// lost is how bad it is that a link does less than its ends can. One of PCIe 2 at
// best is a console's or a port's for management on the board, which often has fewer
// lanes wired than it has.
func (l *pcieLink) lost() Severity {
	if l.MaxSpeed > 0 && l.MaxSpeed <= genSpeed(2) {
		return Warn
	}
	return Fail
}

func (l *pcieLink) judgeWidth(want int, peers []*pcieLink) []pcieFault {
	most := l.maxWidth()
	alike := (len(peers) > 0 || l.narrow) && !slices.ContainsFunc(peers, func(p *pcieLink) bool { return p.Width != l.Width })
	switch common := mostOf(peers, (*pcieLink).maxWidth); {
	case want > 0 && l.Width < want:
		return []pcieFault{{Fail, "width", "PCIe width", lanes(want), lanes(l.Width)}}
	case want > 0:
	case l.Width < most && alike && l.narrow:
	case l.Width < most && l.slot.MaxWidth == 0 && !slices.ContainsFunc(peers, func(p *pcieLink) bool { return p.Width > l.Width }):
	case l.Width < most && alike:
		return []pcieFault{{Warn, "width", "PCIe width, as all of its kind", lanes(most), lanes(l.Width)}}
	case l.Width < most:
		return []pcieFault{{l.lost(), "width", "PCIe width", lanes(most), lanes(l.Width)}}
	case most < common:
		return []pcieFault{{Warn, "slot", "PCIe slot has fewer lanes than those of its kind", lanes(common), lanes(most)}}
	}
	return nil
}

// judgeSpeed judges the speed of the moment, that of a device that sleeps by what
// it and its slot can do.
func (l *pcieLink) judgeSpeed(want float64, peers []*pcieLink) []pcieFault {
	most, now := l.maxSpeed(), l.Speed
	if l.sleeps {
		now = most
	}
	alike := (len(peers) > 0 || l.narrow) && !slices.ContainsFunc(peers, func(p *pcieLink) bool { return p.Speed != l.Speed })
	switch common := mostOf(peers, (*pcieLink).maxSpeed); {
	case want > 0 && now < want:
		return []pcieFault{{Fail, "speed", "PCIe speed", speedText(want), speedText(now)}}
	case want > 0:
	case now < most && alike && l.narrow:
	case now < most && l.slot.MaxSpeed == 0 && !slices.ContainsFunc(peers, func(p *pcieLink) bool { return p.Speed > l.Speed }):
	case now < most && alike:
		return []pcieFault{{Warn, "speed", "PCIe speed, as all of its kind", speedText(most), speedText(now)}}
	case now < most:
		return []pcieFault{{l.lost(), "speed", "PCIe speed", speedText(most), speedText(now)}}
	case most < common:
		return []pcieFault{{Warn, "slot", "PCIe slot is slower than those of its kind", speedText(common), speedText(most)}}
	}
	return nil
}

// mostOf is the figure that most of some devices have, the higher of two that as many
// have; 0 if no two have the same.
func mostOf[D any, T int | float64](devices []D, of func(D) T) (most T) {
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

// speedText is a speed for a person.
func speedText(speed float64) string { return fmt.Sprintf("%g GT/s", speed) }

// pcieSpeeds are the speeds of generations, from the first.
var pcieSpeeds = []float64{2.5, 5, 8, 16, 32, 64, 128}

// genSpeed is the speed of a generation, 0 of one that is not known.
func genSpeed(gen int) float64 {
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
		return genSpeed(gen), genSpeed(gen) > 0
	}
	speed, err := strconv.ParseFloat(number, 64)
	if err != nil || isGen || !slices.Contains(pcieSpeeds, speed) {
		return 0, false
	}
	return speed, true
}

// pcieWanted reads -w and -s. A word that is none is a finding.
func pcieWanted(check string, width int, speed string) (pcieWant, []Finding) {
	n, ok := parsePCIeSpeed(speed)
	if !ok {
		const want = "a generation, 1 to 7, or a speed in GT/s"
		return pcieWant{}, []Finding{badWord(check, "PCIe speed", speed, want)}
	}
	return pcieWant{width: width, speed: n}, nil
}

// badWord is that a word of nhc.conf means nothing to a check, which judges nothing then.
func badWord(check, what, got, want string) Finding {
	return Finding{Code: "config.value", Severity: Unknown, Want: want, Got: got, Remedy: FixConfig, Message: fmt.Sprintf("%s:  %s %q, want %s", check, what, got, want)}
}

// pcieDevice names a device by its driver's name and its address.
func pcieDevice(env *Env, l *pcieLink) Device {
	d := Device{Kind: "pci", Name: env.Host.PCIName(l.Address), PCI: l.Address}
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

// about is a finding about a device, behind whose text come what is wanted and got.
func about(check string, d Device, f Finding, text string) Finding {
	f.Device = d
	f.Message = fmt.Sprintf("%s:  %s: %s", check, d, text) + wantGot(f)
	if f.Want == "" && f.Got == "" {
		f.Got = text
	}
	return f
}

// virtualBridge says whether a bridge is one of a virtual machine, which runs at any
// speed whatever it says: those of QEMU, and VMware's.
func virtualBridge(d probe.PCIDevice) bool {
	return slices.Contains([]string{"1b36", "15ad"}, d.Vendor) || !strings.HasPrefix(d.Class, "0604")
}

func lanes(n int) string { return fmt.Sprintf("x%d", n) }

// fifthNVLink is what no NVLink before the fifth generation can, MB/s one way.
const fifthNVLink = 50000

// managesSwitches says whether an adapter belongs to a board with NVSwitches of the
// fourth generation, which are reached over InfiniBand: ConnectX-7 among ConnectX-7, or
// beside others. No other node's are asked, for each answer takes milliseconds.
func managesSwitches(env *Env, pci, model string) bool {
	if bareID(model) != "1021" || pci == "" {
		return false
	}
	if p, _ := nodePlatform(env); p.NVSwitchGPUs == 0 || p.NVLinkBandwidth < fifthNVLink {
		return false
	}
	env.At("read /sys/bus/pci/devices/%s/vpd", pci)
	return env.Host.SwitchManager(pci)
}

// finding is what is said of a fault.
func (f pcieFault) finding(check, code string, d Device) Finding {
	remedy := ReseatOrRMA
	if f.severity != Fail {
		remedy = NoRemedy
	}
	return about(check, d, Finding{Code: code, Severity: f.severity, Remedy: remedy, Want: f.want, Got: f.got}, f.text)
}

// usualRate is the limit of replays in a minute that DCGM's health watch has.
// It knows no generation, and newer links replay more: so it only warns.
const usualRate = 8
