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

// ibPorts checks the InfiniBand and RoCE ports that carry jobs' traffic, or each named DEVICE:
// mlx5_0, mlx5_0:1, a glob. Every one must be ACTIVE and LinkUp; an InfiniBand port also needs a
// LID and a subnet manager. Ports of management, ports of the front end and virtual functions are
// skipped unless they are named (docs/reference/fabric.md). Each plane of a ConnectX-8 is judged as a port.
//
// If a RoCE port is a LAG (mlx5_bond_0), a member that is down warns; with -b it fails.
//
// RATE is the least rate in Gb/s, as in /sys; for planes the rate of one. Without it a port
// fails if it alone is slower than all others of its kind, or slower than earlier in this boot.
// It warns if several are slower, if one is slower with all of its lanes and the platform is
// unknown, and if the rate is below the platform's. -n COUNT is the least number of ports; all
// planes of a device count as one. -l LAYER is ib or eth: the check selects only such ports, and
// named ports must have that layer.
//
// Cards with several ports need not have all of them cabled: a port that is down fails if it was
// up earlier in this boot, or if fewer ports of its card are up than on most cards of the kind.
// An InfiniBand adapter on the PCI bus without an RDMA device fails, and so does a missing
// adapter that was present earlier in this boot; one that was present before that warns for a
// month. If it was removed on purpose delete ib-ports.json in /var/lib/nhc-gpu/NODE.
//
// In the first five minutes after a boot links train and the subnet manager sets up ports. Until
// then a port that is not up is not judged: the check is skipped, not passed. The same applies to
// adapters with a driver that is still starting. The prolog of a job waits for the ports, and
// refuses the job without them.
//
//	gpu* || check_ib_ports
//	gpu* || check_ib_ports -n 8 -r 400 -l ib
//	gpu* || check_ib_ports -r 400 mlx5_0 mlx5_1:1
type ibPorts struct {
	Count   int      `opt:"n" toml:"count" in:"0:512 min"` // least number of ports; 0: any
	Rate    float64  `opt:"r" toml:"rate" in:"1:3200 min"` // least rate of a port, Gb/s; 0: no limit
	Members bool     `opt:"b" toml:"members"`              // fail if a member of a RoCE LAG is down
	Layer   string   `opt:"l" toml:"layer"`                // link layer: ib or eth; "": both
	Devices []string `arg:"*" toml:"devices"`              // ports, all must pass; none: those that carry jobs' traffic
}

const ibPortsName = "check_ib_ports"

// linkTool names the tools that show details of a link, by vendor.
const linkTool = "mlxlink -d ADDRESS (Omni-Path: opainfo; others: ethtool and ethtool -m of the interface)"

func init() {
	checks.Register(checks.Info{
		Name:    ibPortsName,
		Usage:   "[-b] [-n COUNT] [-r RATE] [-l ib|eth] [DEVICE...]",
		Summary: "InfiniBand and RoCE ports are up, at their full rate",
		Lane:    checks.Local,
		New:     func() checks.Check { return &ibPorts{} },
		Vars:    map[string]string{"IB_CABLING": checks.CablingFile},
		Do: func() map[string]string {
			return map[string]string{
				"ib.lacking":        lackingDo,
				"ib.ports.polling":  "The port finds no partner: reseat the cable at both ends, check that the switch port is enabled, swap the cable, then the transceiver. " + linkTool + " shows details.",
				"ib.ports.disabled": "The port is disabled: by ibportstate, mlxlink or mlxconfig (Omni-Path: opaportconfig), by the switch, or, on Ethernet, by ip link set down. Enable it, or reboot.",
				"ib.ports.init":     "The link is up, but no subnet manager has configured it: is opensm, UFM or Omni-Path's fabric manager running? If it is only one port, see the manager's log for its GUID; a port in quarantine looks the same.",
				"ib.ports.down":     "The link is unstable, or in a test mode: reseat or swap the cable, see " + linkTool + " and the switch's port; check_ib_errors has its counters.",
				"ib.ports.rate":     "The message has width and speed. Fewer lanes (2X, 1X): reseat or swap the cable. 4X with a lower speed (HDR, not NDR): the cable, the transceiver or the switch port supports no more, or is set to it: see " + linkTool + ". If this rate is expected, set it: check_ib_ports -r RATE.",
				"ib.ports.platform": "Nodes of this platform have faster ports. A splitter cable, a slower switch or a configured speed can be the cause: see " + linkTool + ". If this rate is expected, set it: check_ib_ports -r RATE.",
				"ib.ports.member":   "The LAG works with one port less. See cat /proc/net/bonding/BOND, and ethtool for the named member: reseat or swap its cable, see its switch port. If the state is off, an administrator took it down: ip link set INTERFACE up.",
				"ib.ports.slower":   "Every port is slower since the reboot: see the switch's configuration and firmware, and " + linkTool + ". If this rate is expected: nhc-gpu clear --ib, or set it: check_ib_ports -r RATE.",
				"ib.ports.uverbs":   "No program can use the adapter: run udevadm trigger --subsystem-match=infiniband_verbs and look at dmesg; if the device node is still missing, reboot.",
				"ib.ports.guid":     "Two adapters with the same GUID disturb each other's traffic: mlxburn or flint has set it. Compare ibstat with the labels of the boards, and set the GUID: flint -d ADDRESS -guid GUID sg.",
				"ib.ports.none":     "The driver shows the adapter without a port: see dmesg for its address, then reboot the node when no job runs.",
				"ib.ports.lid":      "The subnet manager has not assigned an address to the port, or has stopped: see sminfo, and the manager's log for the port's GUID.",
				"ib.ports.layer":    "If all ports have this link layer, correct the line (-l). Otherwise the adapter is in the wrong mode: mlxconfig -d ADDRESS query LINK_TYPE_P1 (1 InfiniBand, 2 Ethernet), set it and reset the adapter.",
				"ib.ports.count":    "The message lists the ports found. If this number is expected, set it: check_ib_ports -n COUNT. Otherwise see lspci and dmesg for the missing ones.",
				"ib.ports.boot":     "Nothing to repair in the first five minutes after a boot: a later run checks the ports. If a job waits for the node run the check again.",
				"ib.ports.gone":     "The adapter has disappeared: see dmesg for its address, and lspci. Power the node off for a minute and boot it; if the adapter is still missing, reseat or replace it. If it was removed on purpose, delete ib-ports.json in " + checks.PastDir + ".",
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
	fates    map[*Port]fate // of the ports that are not up
	slow     map[*Port]bool // its rate is reported already
	starting []string       // ports that are not up yet after the boot
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
	r.past = env.RecallHistory(ibPortsName, ibPortsPast)
	if len(c.Devices) > 0 {
		r.ports, r.findings = f.Judged(c.Devices, "")
	} else {
		r.ports, r.findings = f.Judged(nil, layer)
		r.addSpares()
	}
	r.await(ctx)
	r.fates = judgeFates(r)
	for _, p := range r.ports {
		r.judge(p, r.fates[p])
	}
	if c.Rate > 0 {
		blameLine(r.findings, "ib.ports.rate", r.countActive())
	}
	r.reportStarting()
	r.reportSlower()
	r.judgePlatformRate()
	r.judgeAdapters()
	absent := r.listAbsent()
	if r.count(r.fates, absent); len(r.ports) == 0 && (len(absent) > 0 || c.Count > 0) {
		r.findings = slices.DeleteFunc(r.findings, func(f checks.Finding) bool { return f.Code == "ib.left" })
	} else if len(f.HCAs) == 0 && len(c.Devices) == 0 {
		r.findings = none
	}
	r.findings = r.Settle(append(r.findings, absent...), "ib.lacking", "ib.ports.count", "ib.ports.gone", "ib.ports.uverbs")
	r.remember()
	return append(r.findings, r.past.Store(env)...)
}

// countActive returns the number of judged ports that are up.
func (r *portsRun) countActive() (n int) {
	for _, p := range r.ports {
		if checks.PortActive(p.IBPort) {
			n++
		}
	}
	return n
}

// layerNamed returns the link layer that a word names, as the kernel names it.
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

// judge judges one port.
func (r *portsRun) judge(p *Port, is fate) {
	if p.Err != nil {
		r.findings = append(r.findings, r.Unknown(p.Subject(), p.Err))
	}
	if isGarbled(p.IBPort) {
		if p.Err == nil {
			r.findings = append(r.findings, r.Unknown(p.Subject(), fmt.Errorf("unknown state %q or phys_state %q", p.State, p.Phys)))
		}
		return
	}
	if r.layer != "" && p.Layer != "" && p.Layer != r.layer {
		r.report(p, checks.Finding{Code: "ib.ports.layer", Severity: checks.Fail, Remedy: checks.FixConfig, Want: r.layer, Got: p.Layer}, "link layer")
		return
	}
	switch {
	case checks.PortActive(p.IBPort):
		r.judgeLIDs(p)
		r.rate(p)
		r.judgeMembers(p)
	case is.severity != checks.OK && !r.env.BeforeJob() && r.isStarting(p):
		r.starting = append(r.starting, fmt.Sprintf("%s (%s)", p.Name(), statesOf(p.IBPort)))
	default:
		if up, _ := r.SinceBoot(); r.isStarting(p) {
			is.why = strings.TrimPrefix(is.why+fmt.Sprintf("; the node booted %.0f s ago", up.Seconds()), "; ")
		}
		r.reportDown(p, is)
	}
}

// fate is the verdict on a port that is not up.
type fate struct {
	severity checks.Severity // Fail unless shown otherwise; OK: not cabled
	why      string
}

// reportDown reports a port that is not up.
func (r *portsRun) reportDown(p *Port, is fate) {
	if is.severity == checks.OK {
		return
	}
	f := checks.Finding{Code: "ib.ports.down", Severity: is.severity, Remedy: checks.PortRemedy(rdma.IBPort{State: p.State, Phys: p.Phys}), Want: checks.IBActive + " " + checks.IBLinkUp, Got: statesOf(p.IBPort)}
	text, known := portPhases[p.Phys]
	switch {
	case p.Phys == checks.IBPolling, p.Phys == checks.IBDisabled && p.Layer == LayerEth && !r.switchedOff(p):
		f.Code, text = "ib.ports.polling", "link down"
	case p.Phys == checks.IBDisabled:
		f.Code, f.Remedy, text = "ib.ports.disabled", checks.FixConfig, "the port is disabled"
	case (p.Phys == checks.IBLinkUp || p.Phys == "") && (p.State == checks.IBInit || p.State == checks.IBArmed):
		f.Code, f.Remedy, text = "ib.ports.init", checks.CheckFabric, "no subnet manager has configured the port"
	case !known:
		text = "the link is down"
	}
	r.report(p, f, "%s%s", text, checks.Before("; ", is.why, ""))
}

// switchedOff reports whether an administrator has taken down the interface of an Ethernet port,
// or each member of its LAG. Drivers (mlx5, bnxt_re, irdma) report DOWN Disabled also for a port
// without a carrier.
func (r *portsRun) switchedOff(p *Port) bool {
	names := r.netDevs(p)
	return len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return network.ReadNetIf(r.env.Host, name).On })
}

// judgeLIDs judges the addresses of an InfiniBand port. A virtual function need not have a LID of its
// own.
func (r *portsRun) judgeLIDs(p *Port) {
	if p.Layer != layerIB {
		return
	}
	m := ModelOf(p.HCA.Vendor, p.HCA.Model, p.HCA.Board)
	virtual := p.HCA.VF || m != nil && m.Virtual
	for _, lid := range []struct{ what, value string }{{"LID", p.LID}, {"LID of the subnet manager", p.SMLID}} {
		n, err := strconv.ParseUint(lid.value, 0, 32)
		switch {
		case lid.value == "" || virtual && lid.what == "LID": // the driver need not report it
		case err != nil:
			r.findings = append(r.findings, r.Unknown(p.Subject(), fmt.Errorf("%s %q: not a number", lid.what, lid.value)))
		case n == 0 || n == 0xffff: // mlx5 reports 0xffff for none
			r.report(p, checks.Finding{Code: "ib.ports.lid", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: "an address", Got: lid.value}, "%s", lid.what)
			return
		}
	}
}

// count judges the number of ports. Unreadable ports count as present.
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
	r.findings = append(r.findings, checks.Finding{Code: "ib.ports.count", Severity: checks.Fail, Remedy: countRemedy(r.env, len(names)), Device: checks.Device{Kind: "ports"},
		Want: fmt.Sprintf("at least %d", r.c.Count), Got: fmt.Sprint(len(names))}.Phrase(ibPortsName, "%s%s, want at least %d%s", checks.Plural(len(names), "port"), checks.Before(" (", got, ")"), r.c.Count, checks.Before("; without a port: ", strings.Join(missing, ", "), "")))
}

// await waits, before a job, for ports that are starting, as long as the run allows: the job
// would fail without its fabric.
func (r *portsRun) await(ctx context.Context) {
	if _, ends := ctx.Deadline(); !r.env.BeforeJob() || !ends {
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

// bootPause is the interval of looks at ports that are starting.
const bootPause = 500 * time.Millisecond

// reportStarting reports once the ports that are not up yet after the boot.
func (r *portsRun) reportStarting() {
	if len(r.starting) == 0 {
		return
	}
	up, _ := r.SinceBoot()
	r.findings = append(r.findings, checks.Finding{Code: "ib.ports.boot", Severity: checks.Skip, Device: checks.Device{Kind: "ports"}}.
		Describe(ibPortsName, "%s not up yet %.0f s after the boot, judged after %.0f s: %s", checks.Plural(len(r.starting), "port"), up.Seconds(), checks.BootSettle.Seconds(), strings.Join(r.starting, ", ")))
}

// judgeMembers reports the members of a RoCE LAG that carry no traffic while the LAG is up. A
// member of an active-backup bond that an administrator has taken down is not in use.
func (r *portsRun) judgeMembers(p *Port) {
	l := r.lagOf(p)
	if _, settling := r.SinceBoot(); l == nil || settling { // members come up one after another
		return
	}
	f := checks.Finding{Code: "ib.ports.member", Severity: checks.Warn, Remedy: checks.CheckCable, Want: "up"}
	if r.c.Members {
		f.Severity = checks.Fail
	}
	for i := range l.members {
		m, f := &l.members[i], f
		state := linkFault(m)
		if m.OperState == "" {
			r.findings = append(r.findings, r.Unknown(p.Subject(), fmt.Errorf("member %s of %s: %w", m.Name, l.bond.Name, m.Err)))
		}
		switch {
		case m.OperState == "" && state == "":
			continue
		case state == "off" && l.bond.Bond.Mode == "active-backup" && !r.c.Members:
			continue
		case state == "off":
			f.Remedy = checks.FixConfig
		case state == "" && m.Slave != nil && m.Slave.Aggregator != "" && l.bond.Bond.Aggregator != "" && m.Slave.Aggregator != l.bond.Bond.Aggregator:
			state, f.Remedy = "excluded by LACP", checks.CheckFabric
		}
		if state != "" {
			f.Got = state
			r.report(p, f, "member %s of %s", checks.Device{Name: m.Name, PCI: m.PCI}, l.bond.Name)
		}
	}
}

// Cards with several ports often have some that are never cabled. Only the other cards and the
// history of a port show which.

// portCard has the ports of one card, each a function or a port of one.
type portCard struct {
	ports []*Port
	up    int
}

// judgeFates returns the verdict on each port that is not up. Each named port must be up, and so
// must the only port of a card, unless the node has only a front end.
func judgeFates(r *portsRun) map[*Port]fate {
	fates := map[*Port]fate{}
	for _, p := range r.ports {
		if !checks.PortActive(p.IBPort) {
			fates[p] = fate{severity: checks.Fail}
		}
	}
	if len(r.c.Devices) > 0 || len(fates) == 0 {
		return fates
	}
	for _, cards := range groupCards(r) {
		compareCards(r, cards, fates)
	}
	for p := range fates {
		if p.Left == spareLeft {
			fates[p] = fate{severity: checks.OK}
		}
	}
	if r.c.Count == 0 && r.areUncabled(r.ports) {
		for p, is := range fates {
			if is.severity == checks.Fail {
				fates[p] = fate{checks.Warn, "never seen up"}
			}
		}
	}
	for p, is := range fates {
		if is.severity == checks.Fail {
			continue
		}
		switch now, before := r.wasUp(p); {
		case now:
			fates[p] = fate{checks.Fail, "up earlier in this boot"}
		case before && is.severity == checks.OK:
			fates[p] = fate{checks.Warn, "up before the last boot"}
		}
	}
	return fates
}

// groupCards returns the cards with several ports, by kind. Planes are always cabled.
func groupCards(r *portsRun) map[string][]*portCard {
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

// compareCards judges the ports that are not up, on cards of one kind, by the number of ports
// that are up on most of these cards.
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
		if most == 0 && r.countActive() == 0 { // no port of the node is up: all of them are faulty
			continue
		}
		usual := func(p *Port) bool { return upAt[onCard(p)]*2 > len(cards)-1 } // for a port that is down
		known := false                                                          // a port is down that is up on most other cards
		for _, p := range c.ports {
			known = known || !checks.PortActive(p.IBPort) && usual(p)
		}
		for _, p := range c.ports {
			switch {
			case checks.PortActive(p.IBPort):
			case c.up >= most, known && !usual(p):
				fates[p] = fate{severity: checks.OK}
			default:
				is := fate{checks.Fail, fmt.Sprintf("%d of the card's ports are up, on most such cards %d", c.up, most)}
				if !sure {
					is = fate{checks.Warn, fmt.Sprintf("%d of the card's ports are up, on another such card %d", c.up, most)}
				}
				fates[p] = is
			}
		}
	}
}
