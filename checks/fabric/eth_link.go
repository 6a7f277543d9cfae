package fabric

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
)

// ethLink checks network interfaces: the link is up, at SPEED at least (Mb/s, or
// 25G), with that DUPLEX and MTU, and its carrier does not come and go. Without
// INTERFACE it is about those with the default route. What they are made of is
// judged, too: a bond's members, what a VLAN or a bridge lies on. An INTERFACE may be
// a glob, which leaves out lo and virtual functions.
//
// One of several members that is down, or that LACP has left out, is warned of, for
// the node still works; with -b it fails. Without -c more than two changes of the
// carrier within an hour are warned of, without -d half duplex is, and always a
// member or a card that is slower than others of its model. Interfaces of software
// tell no speed, which is passed over. SPEED and MTU are those of the interfaces
// that are named or have the route; SPEED without names that of each card.
//
//	node* || check_eth_link -s 25G -d full
//	node* || check_eth_link -s 100G -m 9000 bond0 'eth1*'
type ethLink struct {
	Speed   string   `opt:"s" toml:"speed"`      // lowest speed: Mb/s, or with a unit, 25G
	Duplex  string   `opt:"d" toml:"duplex"`     // full, half or any
	MTU     int      `opt:"m" toml:"mtu"`        // the MTU, exactly
	Changes string   `opt:"c" toml:"changes"`    // so many changes of the carrier in an hour are still right; a link that was down once has two
	Bond    bool     `opt:"b" toml:"members"`    // every member of a bond must be up
	Names   []string `arg:"*" toml:"interfaces"` // interfaces, or globs; none: those with the default route
}

const (
	ethLinkName = "check_eth_link"
	duplexHalf  = "half"
)

// usualChanges is the limit that NVSentinel's monitor of network cards has for
// carrier_changes: a link that went down and came back once has two. Nobody says
// for which time; an hour lets a switch be restarted.
const (
	usualChanges = 2
	ethWindow    = time.Hour
)

func init() {
	const cable = "See ip -s link and ethtool for it, and the port of the switch: reseat the cable or transceiver, try it in another port."
	checks.Register(checks.Info{
		Name:    ethLinkName,
		Usage:   "[-s SPEED] [-d DUPLEX] [-m MTU] [-c CHANGES] [-b] [INTERFACE...]",
		Summary: "network interfaces are up and fast enough, as are the members of bonds",
		Lane:    checks.Local,
		New:     func() checks.Check { return &ethLink{} },
		Do: func() map[string]string {
			return map[string]string{
				"eth.none":    "Nothing: no interface has the default route. If one should be judged name it in nhc.conf.",
				"eth.missing": "See ip link, lspci and dmesg: the driver is not loaded, the device has another name, or the card is gone from the PCI bus.",
				"eth.down":    cable + " One that is off was taken down here: ip link set DEV up.",
				"eth.member":  "The node has lost a part of its bandwidth, or what it would fall back to. " + cable,
				"eth.lacp":    "The switch does not answer LACP, so that only one member of the bond is used: see cat /proc/net/bonding/BOND and the switch's configuration of these ports.",
				"eth.speed":   "Both ends have agreed on less than they should: see ethtool, the cable's and the switch port's speed. " + cable,
				"eth.differ":  "A card of the same model is faster here: see ethtool for both. " + cable,
				"eth.duplex":  "Half duplex is a failed negotiation: set both ends to negotiate, or neither.",
				"eth.mtu":     "Correct the interface's MTU, and see that the switch has it, too: packets that are too long are lost without a word.",
				"eth.changes": cable + " Other ports of the same switch that do the same point to the switch.",
				"eth.error":   "One interface could not be read: see the file that is named, as root, and dmesg. The others were judged.",
			}
		},
	})
}

// Bind reads the words, and refuses what is no speed, duplex or number.
func (c *ethLink) Bind(words []string) error {
	if err := checks.BindTags(c, words); err != nil {
		return err
	}
	return c.Validate()
}

func (c *ethLink) Validate() error {
	if _, ok := parseEthSpeed(c.Speed); !ok && c.Speed != "" {
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Speed, Want: "a speed: 25G, or Mb/s"}
	}
	if !slices.Contains([]string{"", "full", duplexHalf, "any"}, c.Duplex) {
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Duplex, Want: "full, half or any"}
	}
	if n, err := strconv.Atoi(c.Changes); c.Changes != "" && (err != nil || n < 0) {
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Changes, Want: "a whole number"}
	}
	return nil
}

// parseEthSpeed reads 25G, 25000M or 25000 as Mb/s.
func parseEthSpeed(text string) (mbps int, ok bool) {
	number := strings.TrimRight(text, "gGmM")
	unit := strings.ToLower(text[len(number):])
	n, err := strconv.ParseFloat(number, 64)
	switch {
	case err != nil || !(n > 0 && n <= 1e8) || len(unit) > 1: // "nan" is a number, too
		return 0, false
	case unit == "g":
		n *= 1000
	}
	return int(n), int(n) > 0
}

// ethRun is one run of the check.
type ethRun struct {
	*ethLink

	env      *checks.Env
	past     *checks.History
	targets  []*ethTarget
	findings []checks.Finding
}

func (c *ethLink) Run(_ context.Context, env *checks.Env) []checks.Finding {
	env.At("read /sys/class/net")
	r := &ethRun{ethLink: c, env: env, past: env.RecallHistory(ethLinkName, "eth-link")}
	if err := r.find(); err != nil {
		return checks.Unreadable(err)
	}
	if len(r.targets)+len(r.findings) == 0 {
		return []checks.Finding{checks.Finding{Code: "eth.none", Severity: checks.Skip}.Describe(ethLinkName, "no interface has the default route")}
	}
	for _, t := range r.targets {
		env.At("read /sys/class/net/%s", t.Name)
		r.judge(t)
		env.Fact("%s up%s", t.Name, speedText(t.Speed))
	}
	r.compare()
	return append(r.findings, r.past.Store(env)...)
}

// speedText returns a speed in Mb/s as a fact has it, "" if it is not known.
func speedText(mbps int) string {
	if mbps <= 0 {
		return ""
	}
	return fmt.Sprintf(" %g Gb/s", float64(mbps)/1000)
}

// down says what is wrong with the state of a link, "" if it is up. Drivers that keep
// no state leave it unknown, which the kernel wants to be taken for up.
func down(n *network.NetIf) string {
	switch {
	case n.OperState == "": // it could not be read
		return ""
	case !n.On:
		return "off"
	case n.Carrier == 0:
		return "no carrier"
	case n.OperState != "up" && n.OperState != "unknown":
		return n.OperState
	case n.Slave != nil && n.Slave.MII != "" && n.Slave.MII != "up":
		return "MII status " + n.Slave.MII
	}
	return ""
}

func (r *ethRun) judge(t *ethTarget) {
	d := netDevice(t.NetIf)
	if t.Err != nil {
		r.say(d, checks.Finding{Code: "eth.error", Severity: checks.Unknown}, "could not tell: %v", t.Err)
		if errors.Is(t.Err, fs.ErrNotExist) {
			return
		}
	}
	if t.Physical || len(t.Lower) == 0 { // what lies on a card changes with it
		r.judgeChanges(t)
	}
	if state := down(t.NetIf); state != "" {
		r.sayDown(t, state)
		return
	}
	if b := t.Bond; b != nil && b.Mode == "802.3ad" && b.Partner == "00:00:00:00:00:00" {
		r.say(d, checks.Finding{Code: "eth.lacp", Severity: r.ofBond(), Remedy: checks.CheckFabric, Want: "a partner", Got: "none"}, "LACP")
	}
	if t.Slave != nil && t.upper != nil && t.upper.Bond != nil {
		if want, got := t.upper.Bond.Aggregator, t.Slave.Aggregator; want != "" && got != "" && want != got {
			r.say(d, checks.Finding{Code: "eth.member", Severity: r.ofBond(), Remedy: checks.CheckFabric, Want: want, Got: got}, "aggregator of a member of %s", t.upper.Name)
		}
	}
	r.judgeFigures(t, d)
}

// judgeFigures compares what an interface that is up should have.
func (r *ethRun) judgeFigures(t *ethTarget, d checks.Device) {
	if want, ok := parseEthSpeed(r.Speed); ok && t.Speed > 0 && t.Speed < want && (t.named && len(r.Names) > 0 || len(r.Names) == 0 && t.Physical) {
		r.say(d, checks.Finding{Code: "eth.speed", Severity: checks.Fail, Remedy: checks.CheckCable, Want: mbps(want), Got: mbps(t.Speed)}, "speed")
	}
	switch known := t.Duplex == "full" || t.Duplex == duplexHalf; {
	case r.Duplex == "" && t.Duplex == duplexHalf:
		r.say(d, checks.Finding{Code: "eth.duplex", Severity: checks.Warn, Remedy: checks.CheckCable, Want: "full", Got: t.Duplex}, "duplex")
	case r.Duplex != "" && r.Duplex != "any" && known && t.Duplex != r.Duplex:
		r.say(d, checks.Finding{Code: "eth.duplex", Severity: checks.Fail, Remedy: checks.CheckCable, Want: r.Duplex, Got: t.Duplex}, "duplex")
	}
	if r.MTU > 0 && t.named && t.MTU > 0 && t.MTU != r.MTU {
		r.say(d, checks.Finding{Code: "eth.mtu", Severity: checks.Fail, Remedy: checks.FixConfig, Want: strconv.Itoa(r.MTU), Got: strconv.Itoa(t.MTU)}, "MTU")
	}
}

// sayDown fails what is down: but for one of several members, without which the node
// still works.
func (r *ethRun) sayDown(t *ethTarget, state string) {
	f := checks.Finding{Code: "eth.down", Severity: checks.Fail, Remedy: checks.CheckCable, Want: "up", Got: state}
	if t.upper == nil || t.exact || !t.upper.Physical && !r.othersUp(t) {
		r.say(netDevice(t.NetIf), f, "link")
		return
	}
	f.Code, f.Severity = "eth.member", r.ofBond()
	r.say(netDevice(t.NetIf), f, "link of a member of %s", t.upper.Name)
}

// othersUp says whether something else that an interface's upper one is made of is up.
func (r *ethRun) othersUp(t *ethTarget) bool {
	return slices.ContainsFunc(r.targets, func(o *ethTarget) bool {
		return o.Name != t.Name && o.upper != nil && o.upper.Name == t.upper.Name && o.Err == nil && down(o.NetIf) == ""
	})
}

// ofBond is how bad it is that a bond is not whole.
func (r *ethRun) ofBond() checks.Severity {
	if r.Bond {
		return checks.Fail
	}
	return checks.Warn
}

// judgeChanges counts how often the carrier came or went within the hour. A time
// that is shorter is not taken for an hour's: twice in five minutes is twice.
func (r *ethRun) judgeChanges(t *ethTarget) {
	if !t.Counted {
		return
	}
	const counter, index = "carrier_changes", "ifindex"
	if was, known := r.past.Last(t.Name, index); known && t.Index > 0 && was != uint64(t.Index) {
		r.past.Forget(t.Name, r.past.Now) // its driver was loaded anew, and it counts from 0
	}
	g := r.past.Grown(t.Name, counter, t.Changes, 32, ethWindow)
	r.past.Add(t.Name, map[string]uint64{counter: t.Changes, index: uint64(max(t.Index, 0))})
	limit, severity := usualChanges, checks.Warn
	if n, err := strconv.Atoi(r.Changes); err == nil {
		limit, severity = n, checks.Fail
	}
	n := float64(g.N)
	if g.Over > ethWindow {
		n = g.Per(ethWindow)
	}
	if g.Known && n > float64(limit) {
		r.say(netDevice(t.NetIf), checks.Finding{Code: "eth.changes", Severity: severity, Remedy: checks.CheckCable, Want: fmt.Sprintf("at most %d an hour", limit), Got: fmt.Sprintf("%.4g", n)}, "changes of the carrier")
	}
}

func (r *ethRun) say(d checks.Device, f checks.Finding, format string, args ...any) {
	r.findings = append(r.findings, f.Report(ethLinkName, d, format, args...))
}

func netDevice(n *network.NetIf) checks.Device {
	return checks.Device{Kind: "netdev", Name: n.Name, PCI: n.PCI}
}

func mbps(n int) string { return strconv.Itoa(n) + " Mb/s" }
