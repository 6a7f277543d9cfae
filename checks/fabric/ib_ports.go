package fabric

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// ibPorts checks the ports of InfiniBand and RoCE that carry jobs' traffic, or each
// DEVICE that is named: mlx5_0, mlx5_0:1, a glob. Every one of them has to be ACTIVE
// and LinkUp, and over InfiniBand to have a LID and a subnet manager. Ports of
// management, of the front end and virtual functions are left out unless they are
// named (docs/reference/fabric.md). Each plane of a ConnectX-8 is judged as a port.
//
// Where a RoCE port is a LAG (mlx5_bond_0) a member that is down is warned of; -b fails.
//
// RATE is the least that /sys may say, in Gb/s; of planes that of one. Without it a
// port fails that is the only one below all others of its kind, or below what it had
// earlier in this boot; it warns where several are, where one has all of its lanes and
// nothing is known of the platform, and below the rate of the platform. COUNT is the fewest ports, all planes of a device being one. LAYER is
// ib or eth: only such ports are looked at, and those named have to be such.
//
// Of cards with several ports some need not be cabled: a port that is down fails if
// it was up earlier in this boot, or if fewer ports of its card are up than of most
// cards of the kind. An InfiniBand adapter on the PCI bus without an RDMA device
// fails, and so does one that was there earlier in this boot; one that was there
// before is warned of for a month. If it was meant remove ib-ports.json in
// /var/lib/nhc-gpu/NODE.
//
// In the first five minutes after a boot links train and the subnet manager sets up
// ports. A port that is not up is not judged until then: the check is skipped, not
// passed. So it is with adapters whose driver is still starting. The prolog of a job
// waits for the ports, and refuses the job without them.
//
//	gpu* || check_ib_ports
//	gpu* || check_ib_ports -n 8 -r 400 -l ib
//	gpu* || check_ib_ports -r 400 mlx5_0 mlx5_1:1
type ibPorts struct {
	Count   int      `opt:"n" toml:"count"`   // fewest ports
	Rate    float64  `opt:"r" toml:"rate"`    // lowest rate of a port, Gb/s
	Members bool     `opt:"b" toml:"members"` // every member of a RoCE LAG has to be up
	Layer   string   `opt:"l" toml:"layer"`   // link layer: ib or eth
	Devices []string `arg:"*" toml:"devices"` // ports, each of which has to pass; without: those that carry jobs' traffic
}

const ibPortsName = "check_ib_ports"

// linkTool is what shows more of a link, by maker.
const linkTool = "mlxlink -d DEVICE (Omni-Path: opainfo; others: ethtool and ethtool -m of the interface)"

func init() {
	checks.Register(checks.Info{
		Name:    ibPortsName,
		Usage:   "[-b] [-n COUNT] [-r RATE] [-l ib|eth] [DEVICE...]",
		Summary: "ports of InfiniBand and RoCE are up, at their rate",
		Lane:    checks.Local,
		New:     func() checks.Check { return &ibPorts{} },
		Vars:    map[string]string{"IB_CABLING": checks.CablingFile},
		Do: func() map[string]string {
			return map[string]string{
				"ib.lacking":        lackingDo,
				"ib.ports.polling":  "The port looks for a partner: reseat the cable at both ends, see the switch's port (is it on?), swap the cable, then the transceiver. " + linkTool + " says more.",
				"ib.ports.disabled": "The port was switched off: by ibportstate, mlxlink or mlxconfig (Omni-Path: opaportconfig), or by the switch's side; over Ethernet by ip link set down. Switch it on, or reboot.",
				"ib.ports.init":     "Link is up, no subnet manager has configured it: is opensm, UFM or Omni-Path's fabric manager up? If it is so on one port only see the manager's log for its GUID; a port kept out by a quarantine looks so, too.",
				"ib.ports.down":     "The link comes and goes, or is held in a test: reseat or swap the cable, see " + linkTool + " and the switch's port; check_ib_errors has its counters.",
				"ib.ports.rate":     "A link at half of its rate has lost lanes: reseat or swap the cable, see " + linkTool + ". If it was meant give the line -r RATE.",
				"ib.ports.platform": "Such nodes have faster ports. A splitter cable, a slower switch or a set speed do this: see " + linkTool + ". If it was meant give the line -r RATE.",
				"ib.ports.member":   "The LAG works with one port less. See cat /proc/net/bonding/BOND and ethtool for the member that the message names: reseat or swap its cable, see its port of the switch. One that is off was taken down here: ip link set DEV up.",
				"ib.ports.slower":   "Every port came back slower from the reboot: see the switch's configuration and firmware, and " + linkTool + ". If it was meant: nhc-gpu clear --ib, or give the line -r RATE.",
				"ib.ports.uverbs":   "No program can use the adapter: see dmesg and udevadm; modprobe -r ib_uverbs and modprobe ib_uverbs with no job on the node, or reboot.",
				"ib.ports.guid":     "Two adapters with one GUID disturb each other's traffic: mlxburn or flint has written it. Compare ibstat with the labels of the boards, and set the GUID: flint -d DEVICE -guid GUID sg.",
				"ib.ports.none":     "The driver knows the adapter, and shows no port of it: see dmesg for its address. Reload the driver with no job on the node, or reboot.",
				"ib.ports.lid":      "The subnet manager has given the port no address, or has gone: see sminfo, and the manager's log for the port's GUID.",
				"ib.ports.layer":    "The adapter is in another mode: mlxconfig -d DEVICE query LINK_TYPE_P1 (1 InfiniBand, 2 Ethernet), set it and reset the adapter.",
				"ib.ports.count":    "The message has the ports there are. Of those that miss see lspci and dmesg; if fewer are right correct the line.",
				"ib.ports.boot":     "Nothing in the first five minutes after a boot: a later run judges what is starting. Run the check again if a job waits for the node.",
				"ib.ports.gone":     "The adapter was there and is not: see dmesg for its address, and lspci. Reboot with the power off for a minute; if it stays away reseat or replace it. If it was meant remove ib-ports.json in /var/lib/nhc-gpu/NODE.",
			}
		},
	})
}

// portsRun is one run of the check.
type portsRun struct {
	*Fabric

	c        *ibPorts
	ports    []*Port
	layer    string
	past     *checks.History
	slow     map[*Port]bool // its rate has been told of
	starting []string       // ports that the boot has not brought up yet
	findings []checks.Finding
}

func (c *ibPorts) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	layer, ok := layerNamed(c.Layer)
	if !ok {
		return []checks.Finding{checks.BadWord(ibPortsName, "layer", c.Layer, "ib or eth")}
	}
	f, none := askPorts(env, ibPortsName)
	if f == nil {
		return none
	}
	r := &portsRun{Fabric: f, c: c, layer: layer, slow: map[*Port]bool{}}
	r.past = env.RecallHistory(ibPortsName, "ib-ports")
	if len(c.Devices) > 0 {
		r.ports, r.findings = f.Judged(c.Devices, "")
	} else {
		r.ports, r.findings = f.Judged(nil, layer)
		r.addSpares()
	}
	r.await(ctx)
	fates := fatesOf(r)
	for _, p := range r.ports {
		r.judge(p, fates[p])
	}
	r.tellStarting()
	r.slower()
	r.platformRate()
	r.judgeAdapters()
	absent := r.absent()
	if r.count(fates, absent); len(r.ports) == 0 && (len(absent) > 0 || c.Count > 0) {
		r.findings = slices.DeleteFunc(r.findings, func(f checks.Finding) bool { return f.Code == "ib.left" })
	} else if len(f.HCAs) == 0 && len(c.Devices) == 0 {
		r.findings = none
	}
	r.findings = r.Settle(append(r.findings, absent...), "ib.lacking", "ib.ports.count", "ib.ports.gone", "ib.ports.uverbs")
	r.remember()
	return append(r.findings, r.past.Store(env)...)
}

// layerNamed is the link layer that a word means, as the kernel writes it.
func layerNamed(word string) (layer string, ok bool) {
	switch strings.ToLower(word) {
	case "":
		return "", true
	case "ib", "infiniband":
		return layerIB, true
	case "eth", "ethernet", "roce":
		return LayerEth, true
	}
	return "", false
}

// report adds a finding about a port.
func (r *portsRun) report(p *Port, of checks.Finding, format string, args ...any) {
	plane := ""
	if p.Plane > 0 {
		plane = fmt.Sprintf("plane %d: ", p.Plane)
	}
	r.findings = append(r.findings, of.Report(r.Check, p.Subject(), "%s", plane+fmt.Sprintf(format, args...)))
}

// judge judges a port by itself.
func (r *portsRun) judge(p *Port, is fate) {
	if p.Err != nil {
		r.findings = append(r.findings, r.Unknown(p.Subject(), p.Err))
	}
	if garbled(p.IBPort) {
		if p.Err == nil {
			r.findings = append(r.findings, r.Unknown(p.Subject(), fmt.Errorf("state %q, phys_state %q: not understood", p.State, p.Phys)))
		}
		return
	}
	if r.layer != "" && p.Layer != "" && p.Layer != r.layer {
		r.report(p, checks.Finding{Code: "ib.ports.layer", Severity: checks.Fail, Remedy: checks.FixConfig, Want: r.layer, Got: p.Layer}, "link layer")
		return
	}
	switch {
	case checks.PortActive(p.IBPort):
		r.lids(p)
		r.rate(p)
		r.lagMembers(p)
	case is.severity != checks.OK && !r.beforeJob() && r.isStarting(p):
		r.starting = append(r.starting, fmt.Sprintf("%s (%s %s)", p.Name(), p.State, p.Phys))
	default:
		if up, _ := r.SinceBoot(); r.isStarting(p) {
			is.why = strings.TrimPrefix(is.why+fmt.Sprintf("; the node was booted %.0f s ago", up.Seconds()), "; ")
		}
		r.down(p, is)
	}
}

// fate is what becomes of a port that is not up.
type fate struct {
	severity checks.Severity // Fail unless it is known to be otherwise; OK: it is not cabled
	why      string
}

// portPhases say what the physical states mean, as the kernel writes their second word.
var portPhases = map[string]string{
	"Sleep":             "the link is asleep",
	checks.IBTraining:   "the link is training",
	"LinkErrorRecovery": "the link is recovering from errors",
	"Phy":               "the link is under test",
	checks.IBLinkUp:     "the port is not in use though its link is up",
}

// down says why a port carries nothing.
func (r *portsRun) down(p *Port, is fate) {
	if is.severity == checks.OK {
		return
	}
	f := checks.Finding{Code: "ib.ports.down", Severity: is.severity, Remedy: checks.PortRemedy(rdma.IBPort{State: p.State, Phys: p.Phys}), Want: checks.IBActive + " " + checks.IBLinkUp, Got: p.State + " " + p.Phys}
	text, known := portPhases[p.Phys]
	switch {
	case p.Phys == checks.IBPolling, p.Phys == checks.IBDisabled && p.Layer == LayerEth && !r.switchedOff(p):
		f.Code, text = "ib.ports.polling", "no link: the cable or the far end"
	case p.Phys == checks.IBDisabled:
		f.Code, f.Remedy, text = "ib.ports.disabled", checks.FixConfig, "the port is switched off"
	case p.Phys == checks.IBLinkUp && (p.State == checks.IBInit || p.State == checks.IBArmed):
		f.Code, text = "ib.ports.init", "no subnet manager has set up the port"
	case !known:
		text = "the link is down"
	}
	r.report(p, f, "%s%s", text, checks.Before("; ", is.why, ""))
}

// switchedOff says whether someone has taken down the interface of an Ethernet port, or
// each member of its LAG. Drivers (mlx5, bnxt_re, irdma) report DOWN Disabled of a port
// without a carrier, too.
func (r *portsRun) switchedOff(p *Port) bool {
	names := r.netDevs(p)
	return len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return network.ReadNetIf(r.env.Host, name).On })
}

// garbled says whether the states of a port are not understood, and that of its link does not
// say by itself that the port is down. "<unknown>" is the kernel's own word.
func garbled(p *rdma.IBPort) bool {
	if p.State == "" || p.Phys == "" {
		return true
	}
	_, known := portPhases[p.Phys]
	known = known || p.Phys == checks.IBPolling || p.Phys == checks.IBDisabled
	if !slices.Contains([]string{checks.IBDown, checks.IBInit, checks.IBArmed, checks.IBActive, "ACTIVE_DEFER", "NOP"}, p.State) {
		return !known || p.Phys == checks.IBLinkUp
	}
	return !known && p.State == checks.IBActive && p.Phys != "<unknown>"
}

// lids judges the addresses of a port of InfiniBand. Virtual functions may have
// none of their own.
func (r *portsRun) lids(p *Port) {
	if p.Layer != layerIB {
		return
	}
	m := ModelOf(p.HCA.Vendor, p.HCA.Model, p.HCA.Board)
	virtual := p.HCA.VF || m != nil && m.Virtual
	for _, lid := range []struct{ what, value string }{{"LID", p.LID}, {"LID of the subnet manager", p.SMLID}} {
		n, err := strconv.ParseUint(lid.value, 0, 32)
		switch {
		case lid.value == "" || virtual && lid.what == "LID": // a driver need not tell
		case err != nil:
			r.findings = append(r.findings, r.Unknown(p.Subject(), fmt.Errorf("%s %q: not a number", lid.what, lid.value)))
		case n == 0 || n == 0xffff: // of a port that has none mlx5 says the latter
			r.report(p, checks.Finding{Code: "ib.ports.lid", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: "one", Got: lid.value}, "%s", lid.what)
			return
		}
	}
}

// count judges how many ports there are. Those that could not be read may be right.
func (r *portsRun) count(fates map[*Port]fate, absent []checks.Finding) {
	devices := map[string]bool{}
	var names []string
	for _, p := range r.ports {
		name := p.Name()
		if p.Plane > 0 {
			name = p.Device
		}
		if is, down := fates[p]; !devices[name] && (!down || is.severity != checks.OK) {
			devices[name] = true
			names = append(names, name)
		}
	}
	unread := 0
	for i := range r.HCAs {
		if a := &r.HCAs[i]; a.Err != nil && len(a.Ports) == 0 {
			unread++
		}
	}
	if len(names)+unread >= r.c.Count {
		return
	}
	var missing []string
	for _, f := range absent {
		missing = append(missing, f.Device.String())
	}
	got := strings.Join(names, " ")
	r.findings = append(r.findings, checks.Finding{Code: "ib.ports.count", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Device: checks.Device{Kind: "ports"},
		Want: fmt.Sprintf("at least %d", r.c.Count), Got: fmt.Sprint(len(names))}.Phrase(ibPortsName, "%s%s, want at least %d%s", checks.Plural(len(names), "port"), checks.Before(" (", got, ")"), r.c.Count, checks.Before("; without a port: ", strings.Join(missing, ", "), "")))
}

// await waits before a job for the ports that are starting, as long as the run allows:
// without its fabric the job would fail.
func (r *portsRun) await(ctx context.Context) {
	if _, ends := ctx.Deadline(); !r.beforeJob() || !ends {
		return
	}
	for until := time.Now().Add(checks.Room(ctx)); time.Now().Before(until); time.Sleep(bootPause) {
		waits := false
		for _, p := range r.ports {
			if checks.PortActive(p.IBPort) || !r.isStarting(p) {
				continue
			}
			waits = true
			r.env.At("read /sys/class/infiniband/%s", p.Device)
			now := rdma.WholeHCA(r.env.Host, p.Device)
			if i := slices.IndexFunc(now.Ports, func(q rdma.IBPort) bool { return q.Port == p.Port }); i >= 0 {
				*p.IBPort = now.Ports[i]
			}
		}
		if !waits {
			return
		}
	}
}

// bootPause is the time between two looks at ports that are starting.
const bootPause = 500 * time.Millisecond

// tellStarting says once which ports the boot has not brought up yet.
func (r *portsRun) tellStarting() {
	if len(r.starting) == 0 {
		return
	}
	up, _ := r.SinceBoot()
	r.findings = append(r.findings, checks.Finding{Code: "ib.ports.boot", Severity: checks.Skip, Device: checks.Device{Kind: "ports"}}.
		Describe(ibPortsName, "%s not up yet, %.0f s after the boot, judged from %.0f s on: %s", checks.Plural(len(r.starting), "port"), up.Seconds(), flapSettle.Seconds(), strings.Join(r.starting, ", ")))
}

// lagMembers reports the members of a RoCE LAG that carry nothing while the LAG is up. A
// member of an active-backup bond that someone has taken down is not in use.
func (r *portsRun) lagMembers(p *Port) {
	l := r.lagOf(p)
	if _, settling := r.SinceBoot(); l == nil || settling { // its members come up one after the other
		return
	}
	f := checks.Finding{Code: "ib.ports.member", Severity: checks.Warn, Remedy: checks.CheckCable, Want: "up"}
	if r.c.Members {
		f.Severity = checks.Fail
	}
	for i := range l.members {
		m := &l.members[i]
		state := down(m)
		switch {
		case m.OperState == "":
			r.findings = append(r.findings, r.Unknown(p.Subject(), fmt.Errorf("member %s of %s: %w", m.Name, l.bond.Name, m.Err)))
			continue
		case state == "off" && l.bond.Bond.Mode == "active-backup" && !r.c.Members:
			continue
		case state == "off":
			f.Remedy = checks.FixConfig
		case state == "" && m.Slave != nil && m.Slave.Aggregator != "" && l.bond.Bond.Aggregator != "" && m.Slave.Aggregator != l.bond.Bond.Aggregator:
			state, f.Remedy = "left out by LACP", checks.CheckFabric
		}
		if state != "" {
			f.Got = state
			r.report(p, f, "member %s of %s", checks.Device{Name: m.Name, PCI: m.PCI}, l.bond.Name)
		}
	}
}

// Of cards with several ports some are not cabled, for ever. Nothing on the node
// says which, but for the other cards and what the port has been before.

// portCard are the ports of one card, each a function or a port of one.
type portCard struct {
	ports []*Port
	up    int
}

// fatesOf says of each port that is not up what that means. Each port that the line
// names has to be up, and so has the only port of a card.
func fatesOf(r *portsRun) map[*Port]fate {
	fates := map[*Port]fate{}
	for _, p := range r.ports {
		if !checks.PortActive(p.IBPort) {
			fates[p] = fate{severity: checks.Fail}
		}
	}
	if len(r.c.Devices) > 0 || len(fates) == 0 {
		return fates
	}
	for _, cards := range cardsOf(r) {
		compareCards(r, cards, fates)
	}
	for p := range fates {
		if p.Left == spareLeft {
			fates[p] = fate{severity: checks.OK}
		}
	}
	for p, is := range fates {
		if is.severity == checks.Fail {
			continue
		}
		switch now, before := r.wasUp(p); {
		case now:
			fates[p] = fate{checks.Fail, "it was up earlier in this boot"}
		case before && is.severity == checks.OK:
			fates[p] = fate{checks.Warn, "it was up before the last boot"}
		}
	}
	return fates
}

// cardsOf are those with several ports, by kind. Planes are all cabled.
func cardsOf(r *portsRun) map[string][]*portCard {
	byAddress := map[string]*portCard{}
	var order []string
	for _, p := range r.ports {
		if p.PCI == "" || p.Plane > 0 {
			continue
		}
		at := card(p.PCI)
		if byAddress[at] == nil {
			byAddress[at] = &portCard{}
			order = append(order, at)
		}
		c := byAddress[at]
		if c.ports = append(c.ports, p); checks.PortActive(p.IBPort) {
			c.up++
		}
	}
	kinds := map[string][]*portCard{}
	for _, at := range order {
		if c := byAddress[at]; len(c.ports) > 1 {
			kind := fmt.Sprintf("%d %s", len(c.ports), portKind(c.ports[0]))
			kinds[kind] = append(kinds[kind], c)
		}
	}
	return kinds
}

// compareCards judges the ports of cards of one kind that are not up: most cards
// have so many up.
func compareCards(r *portsRun, cards []*portCard, fates map[*Port]fate) {
	most, how := 0, map[int]int{}
	upAt := map[string]int{}
	for _, c := range cards {
		how[c.up]++
		for _, p := range c.ports {
			if checks.PortActive(p.IBPort) {
				upAt[onCard(p)]++
			}
		}
	}
	for n, times := range how {
		if times > how[most] || times == how[most] && n > most {
			most = n
		}
	}
	sure := how[most]*2 > len(cards)
	for _, c := range cards {
		if most == 0 && !anyUp(r) { // nothing on the node is: all of it is a fault
			continue
		}
		usual := func(p *Port) bool { return upAt[onCard(p)]*2 > len(cards)-1 } // of one that is down
		known := false                                                          // that a port is down which is up on most other cards
		for _, p := range c.ports {
			known = known || !checks.PortActive(p.IBPort) && usual(p)
		}
		for _, p := range c.ports {
			switch {
			case checks.PortActive(p.IBPort):
			case c.up >= most, known && !usual(p):
				fates[p] = fate{severity: checks.OK}
			default:
				is := fate{checks.Fail, fmt.Sprintf("%d of the card's ports are up, of most such cards %d", c.up, most)}
				if !sure {
					is = fate{checks.Warn, fmt.Sprintf("%d of the card's ports are up, of another such card %d", c.up, most)}
				}
				fates[p] = is
			}
		}
	}
}

// anyUp says whether any port that is judged is up.
func anyUp(r *portsRun) bool {
	for _, p := range r.ports {
		if checks.PortActive(p.IBPort) {
			return true
		}
	}
	return false
}
