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

// ethLink checks network interfaces: the link is up, the speed is at least SPEED, duplex and MTU
// are right, and the carrier is stable. INTERFACE is a name or a glob, which does not match lo
// and virtual functions; without it the check takes the interfaces with the default route. It
// also checks the parts of an interface: the members of a bond, and the interface below a VLAN or
// a bridge.
//
// SPEED is in Mb/s, or with a unit: 25G. -d DUPLEX is full, half or any. -m MTU is exact. -c
// CHANGES is how many changes of the carrier within an hour are allowed (a link that went down
// once has two). By default there is no limit for speed and MTU. SPEED and MTU apply to the named
// interfaces, or to those with the default route; SPEED without names applies to each card.
//
// If one of several members is down or excluded by LACP the node still works, so it only warns;
// with -b it fails. Without -c it warns of more than two changes within an hour, without -d of
// half duplex, and always of a member or card that is slower than others of its model. Software
// interfaces have no speed and are not compared.
//
// In the first five minutes after a boot an interface that is missing, not up or not configured is
// skipped, except before a job.
//
//	node* || check_eth_link -s 25G -d full
//	node* || check_eth_link -s 100G -m 9000 bond0 'eth1*'
type ethLink struct {
	Speed   string   `opt:"s" toml:"speed"`             // least speed: Mb/s, or with a unit, 25G
	Duplex  string   `opt:"d" toml:"duplex"`            // full, half or any
	MTU     int      `opt:"m" toml:"mtu" in:"68:65535"` // exact MTU
	Changes string   `opt:"c" toml:"changes"`           // allowed changes of the carrier within an hour; a link that was down once has two
	Bond    bool     `opt:"b" toml:"members"`           // fail if a member of a bond is not up
	Names   []string `arg:"*" toml:"interfaces"`        // interfaces, or globs; none: the interfaces with the default route
}

const (
	ethLinkName = "check_eth_link"
	duplexHalf  = "half"
)

// usualChanges is the limit of NVSentinel's monitor of network cards for carrier_changes: a link
// that went down and came back once has two. NVSentinel states no period; an hour allows one
// restart of a switch.
const (
	usualChanges = 2
	ethWindow    = time.Hour
)

func init() {
	const cable = "Run ip -s link show INTERFACE and ethtool INTERFACE, and look at the switch port: reseat the cable or transceiver, or try another port."
	checks.Register(checks.Info{
		Name:    ethLinkName,
		Usage:   "[-s SPEED] [-d DUPLEX] [-m MTU] [-c CHANGES] [-b] [INTERFACE...]",
		Summary: "network interfaces and bond members are up and fast enough",
		Lane:    checks.Local,
		New:     func() checks.Check { return &ethLink{} },
		Do: func() map[string]string {
			return map[string]string{
				"eth.boot":    "Nothing to repair in the first five minutes after a boot: a later run checks the interfaces. If a job waits for the node run the check again.",
				"eth.none":    "Nothing to repair: no interface has the default route. If an interface should be checked, name it in nhc.conf.",
				"eth.missing": "If no node has this interface, correct the name on the line: ip -br link lists the names. Otherwise see lspci and dmesg: the driver is not loaded, the device was renamed, or the card is gone from the PCI bus.",
				"eth.down":    cable + " If the state is off, an administrator took it down: ip link set INTERFACE up.",
				"eth.member":  "The node has lost part of its bandwidth or its redundancy. " + cable,
				"eth.lacp":    "The switch does not answer LACP, so the bond uses only one member: see cat /proc/net/bonding/BOND and the switch's configuration of these ports.",
				"eth.speed":   "The link negotiated a lower speed: compare the speed of the cable and of the switch port. If all nodes show it, correct the line. " + cable,
				"eth.differ":  "Another card of the same model is faster on this node: compare both. " + cable,
				"eth.duplex":  "Half duplex is a failed negotiation: enable autonegotiation on both ends, or on neither.",
				"eth.mtu":     "Correct the interface's MTU, or the line, and check that the switch has the same: longer packets are dropped silently.",
				"eth.changes": cable + " If other ports of the same switch show it, too, the switch is the cause.",
				"eth.error":   "One interface could not be read: read the named file as root, and see dmesg. The others were checked.",
			}
		},
	})
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

// parseEthSpeed converts 25G, 25000M or 25000 to Mb/s.
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
	judged := slices.DeleteFunc(slices.Clone(r.targets), func(t *ethTarget) bool { return !r.limitsSpeed(t) })
	blameLine(r.findings, "eth.speed", len(judged))
	r.compare()
	r.findings = env.Settle(r.findings, ethLinkName, checks.Finding{Code: "eth.boot"}, func(f checks.Finding) bool {
		return slices.Contains([]string{"eth.missing", "eth.down", "eth.member", "eth.lacp", "eth.speed", "eth.mtu", "eth.differ"}, f.Code)
	})
	return append(r.findings, r.past.Store(env)...)
}

// speedText returns a speed in Mb/s as a fact has it, "" if it is not known.
func speedText(mbps int) string {
	if mbps <= 0 {
		return ""
	}
	return fmt.Sprintf(" %g Gb/s", float64(mbps)/1000)
}

// linkFault describes a link that is not up, "" if it is up, or if its state cannot be read and nothing else shows
// that it is down. Drivers without a state leave it unknown, which counts as up, as the kernel documents.
func linkFault(n *network.NetIf) string {
	switch {
	case !n.On:
		return "off"
	case n.Carrier == 0:
		return "no carrier"
	case n.OperState == "": // unreadable
		return ""
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
		r.say(d, checks.Finding{Code: "eth.error", Severity: checks.Unknown}, "cannot be read: %v", t.Err)
		if errors.Is(t.Err, fs.ErrNotExist) && linkFault(t.NetIf) == "" {
			return
		}
	}
	if t.Physical || len(t.Lower) == 0 { // interfaces above a card change with it
		r.judgeChanges(t)
	}
	if state := linkFault(t.NetIf); state != "" {
		r.sayDown(t, state)
		return
	}
	if b := t.Bond; b != nil && b.Mode == "802.3ad" && b.Partner == "00:00:00:00:00:00" {
		r.say(d, checks.Finding{Code: "eth.lacp", Severity: r.bondSeverity(), Remedy: checks.CheckFabric, Want: "a partner", Got: "none"}, "LACP")
	}
	if t.Slave != nil && t.upper != nil && t.upper.Bond != nil {
		if want, got := t.upper.Bond.Aggregator, t.Slave.Aggregator; want != "" && got != "" && want != got {
			r.say(d, checks.Finding{Code: "eth.member", Severity: r.bondSeverity(), Remedy: checks.CheckFabric, Want: want, Got: got}, "aggregator of a member of %s", t.upper.Name)
		}
	}
	r.judgeFigures(t, d)
}

// limitsSpeed reports whether SPEED applies to an interface.
func (r *ethRun) limitsSpeed(t *ethTarget) bool {
	return t.Speed > 0 && (t.named && len(r.Names) > 0 || len(r.Names) == 0 && t.Physical)
}

// judgeFigures judges speed, duplex and MTU of an interface that is up.
func (r *ethRun) judgeFigures(t *ethTarget, d checks.Device) {
	if want, ok := parseEthSpeed(r.Speed); ok && t.Speed < want && r.limitsSpeed(t) {
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

// sayDown reports an interface that is down. One of several members only warns, since the node
// still works.
func (r *ethRun) sayDown(t *ethTarget, state string) {
	f := checks.Finding{Code: "eth.down", Severity: checks.Fail, Remedy: checks.CheckCable, Want: "up", Got: state}
	if t.upper == nil || t.exact || !t.upper.Physical && !r.othersUp(t) {
		r.say(netDevice(t.NetIf), f, "link")
		return
	}
	f.Code, f.Severity = "eth.member", r.bondSeverity()
	r.say(netDevice(t.NetIf), f, "link of a member of %s", t.upper.Name)
}

// othersUp reports whether another part of the same upper interface is up, or could not be read.
func (r *ethRun) othersUp(t *ethTarget) bool {
	return slices.ContainsFunc(r.targets, func(o *ethTarget) bool {
		return o.Name != t.Name && o.upper != nil && o.upper.Name == t.upper.Name && !errors.Is(o.Err, fs.ErrNotExist) && linkFault(o.NetIf) == ""
	})
}

// bondSeverity returns the severity of a bond with a missing member.
func (r *ethRun) bondSeverity() checks.Severity {
	if r.Bond {
		return checks.Fail
	}
	return checks.Warn
}

// judgeChanges counts the changes of the carrier within an hour. It does not extrapolate a
// shorter time: two in five minutes are two. Those of a boot do not count.
func (r *ethRun) judgeChanges(t *ethTarget) {
	if _, starting := r.env.SinceBoot(); starting || !t.Counted {
		return
	}
	const counter, index = "carrier_changes", "ifindex"
	if was, known := r.past.Last(t.Name, index); known && t.Index > 0 && was != uint64(t.Index) {
		r.past.Forget(t.Name, r.past.Now) // its driver was reloaded, and counts from 0
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
