package fabric

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// ibErrors checks that the error counters of ports do not grow: of those that carry jobs'
// traffic, or of each DEVICE (a device, DEVICE:PORT, or a glob). It judges growth, never totals,
// so the first run after a boot judges nothing. Each counter has its own limit, see the table in
// docs/reference/fabric.md: any growth in the last hour, or a rate per second, minute or hour. RoCE ports
// are also judged by the statistics of their network interfaces, and AWS's EFA by the counters of
// the device.
//
// A counter that another node, a switch or an application can move only warns. A counter that
// only a bad link of this node moves fails if the growth continues. The check warns of a port
// that counts more than 100 times as much as the others of its kind. If more than half of the
// ports, of at least four, count the same at once, the fabric is the cause: that is one warning.
//
// A failure ends when the counter has not grown for an hour, or with "nhc-gpu clear --ib". A
// counter that has stopped at its maximum warns; one that stopped while it failed fails until it
// is reset. -f FILE has the limits of your site, instead of /etc/nhc/ibcounters.toml; with -w
// nothing fails.
//
//	gpu* || check_ib_errors
//	gpu* || check_ib_errors -w 'mlx5_[0-7]'
type ibErrors struct {
	File    string   `opt:"f" toml:"file"`      // limits of the site; "": /etc/nhc/ibcounters.toml
	Watch   bool     `opt:"w" toml:"warn_only"` // only warn
	Devices []string `arg:"*" toml:"devices"`   // devices, DEVICE:PORT, or globs; none: those that carry jobs' traffic
}

const ibErrorsName = "check_ib_errors"

// ibErrorsPast is the name of the state file.
const ibErrorsPast = "ib-errors"

// ibPeers is the least number of ports for a verdict on the fabric.
const ibPeers = 4

func init() {
	checks.Register(checks.Info{
		Name:    ibErrorsName,
		Usage:   "[-f FILE] [-w] [DEVICE ...]",
		Summary: "error counters of InfiniBand and RoCE ports do not grow",
		Lane:    checks.Local,
		New:     func() checks.Check { return &ibErrors{} },
		Do: func() map[string]string {
			return map[string]string{
				"ib.errors.fabric": "Nothing on this node: most of its ports count the same errors at once. See the switches, UFM or the subnet manager for that time.",
				"ib.errors.full":   "The counter stopped at its maximum, so later errors are invisible: perfquery -R (infiniband-diags) resets the counters of a port.",
				"ib.errors.none":   "Nothing to repair: the kernel shows no error counters for these devices.",
				"ib.errors.policy": "Correct the file that the message names (/usr/share/doc/nhc-gpu/docs/reference/fabric.md has the format); until then the built-in limits apply.",
			}
		},
		DoOf: doIBErrors,
		Vars: map[string]string{"IB_COUNTERS": ibCounterFile},
	})
}

// doIBErrors returns the advice for a counter, from its row.
func doIBErrors(code string) string {
	name, ok := strings.CutPrefix(code, "ib.errors.")
	if !ok || name == "" {
		return ""
	}
	for i := range IBCounterRows {
		if c := &IBCounterRows[i]; c.Base() == name && c.Do != "" {
			return c.Do
		}
	}
	return "A limit of your site: see /etc/nhc/ibcounters.toml, or the file on the line."
}

func (c *ibErrors) Run(_ context.Context, env *checks.Env) []checks.Finding {
	f, findings := Ask(env, ibErrorsName)
	if f == nil {
		return findings
	}
	ports, findings := f.Judged(c.Devices, "")
	if len(ports) == 0 {
		return findings
	}
	rows, err := readIBCounters(env, c.File)
	if err != nil {
		findings = append(findings, checks.Finding{Code: "ib.errors.policy", Severity: checks.Warn, Remedy: checks.FixConfig}.Describe(ibErrorsName, "limits not used: %v", err))
	}
	j := &ibErrorJudge{Fabric: f, rows: rows, watch: c.Watch, findings: findings, history: env.RecallHistory(ibErrorsName, ibErrorsPast)}
	applyIBClears(env, j.history)
	for _, p := range ports {
		j.read(p)
	}
	if none := !slices.ContainsFunc(j.ports, func(p ibCounted) bool { return len(p.counts) > 0 }); none && len(j.findings) == 0 {
		j.findings = append(j.findings, checks.Finding{Code: "ib.errors.none", Severity: checks.Skip}.Describe(ibErrorsName, "no port has error counters"))
	}
	j.judge()
	for _, p := range j.ports {
		if p.unread {
			j.history.AddPart(p.Name(), p.counts)
		} else {
			j.history.Add(p.Name(), p.counts)
		}
	}
	return append(j.findings, j.history.Store(env)...)
}

// ibErrorJudge judges the ports of one run.
type ibErrorJudge struct {
	*Fabric

	rows     []IBCounter
	watch    bool
	history  *checks.History
	ports    []ibCounted
	log      *linkLog // nil: not read yet
	findings []checks.Finding
}

// ibCounted is a port with its counters.
type ibCounted struct {
	*Port

	counts map[string]uint64
	unread bool // of some counters
}

// read reads the counters of a port, as far as possible.
func (j *ibErrorJudge) read(p *Port) {
	names := []string{ibDowned} // shows whether the link was lost, whether or not the site judges it
	for i := range j.rows {
		if c := &j.rows[i]; c.read() && c.of(rowLayer(p)) && c.Name != ibDowned {
			names = append(names, c.Name)
		}
	}
	j.env.At("read /sys/class/infiniband/%s/ports/%s/counters", p.Device, p.Port)
	nets := j.netDevs(p)
	counts, err := rdma.IBCounters(j.env.Host, p.Device, p.Port, nets, names)
	if err != nil {
		j.findings = append(j.findings, j.Unknown(p.Subject(), err))
	}
	unread := err != nil
	if len(counts) > 0 {
		if p.Layer == LayerEth {
			unread = !j.readNets(p, nets, counts) || unread
		}
		traffic, _ := rdma.IBCounters(j.env.Host, p.Device, p.Port, nil, []string{ibTraffic}) // not an error counter
		maps.Copy(counts, traffic)
		j.excuse(p, counts, unread)
	}
	j.ports = append(j.ports, ibCounted{p, counts, unread})
}

// readNets adds the losses of the carrier of a RoCE port, whose link_downed does not count, and the numbers of
// its interfaces. A sum over other interfaces than in the last run is no growth of the former: its history
// ends. ok is false if an interface could not be read.
func (j *ibErrorJudge) readNets(p *Port, nets []string, counts map[string]uint64) (ok bool) {
	index := map[string]uint64{}
	for _, dev := range nets {
		c, err := network.ReadCarrier(j.env.Host, dev)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was just removed
		}
		if err != nil {
			delete(counts, ibDowned)
			return false
		}
		if index[ibIndex+dev] = c.Index; c.Known {
			counts[ibDowned] += c.Downs
		}
	}
	maps.Copy(counts, index)
	d := j.history.File.Devices[p.Name()]
	if d == nil {
		return true
	}
	was := map[string]uint64{}
	for name, list := range d.Series {
		if strings.HasPrefix(name, ibIndex) {
			was[name] = list[len(list)-1].Value
		}
	}
	if len(was) > 0 && !maps.Equal(was, index) {
		maps.DeleteFunc(d.Series, func(name string, _ []checks.Point) bool {
			return name == ibDowned || strings.HasPrefix(strings.TrimPrefix(name, ibExcused), rdma.CountersOfNet)
		})
	}
	return true
}

// Names in the history: whether a port was up, and the growth of a counter while its link
// trained.
const (
	ibWasUp   = "up"
	ibExcused = "excused "
)

// excuse sums the growth that a training link causes: between two runs, if one of them saw the
// link lost or down, or the adapter was reset. The growth of other intervals counts. While it is unread whether the link was lost, the
// counters that a training link moves are not judged: a later run judges them together. After an hour they only
// warn. Such a counter that is unread while the link trains loses its history: its growth is that of the training.
// A counter that includes one that is not judged waits with it.
func (j *ibErrorJudge) excuse(p *Port, counts map[string]uint64, unread bool) {
	up, known := j.history.Last(p.Name(), ibWasUp)
	trained, waits := !checks.PortActive(p.IBPort) || known && up == 0 || j.wasReset(p, counts), false
	if n, ok := counts[ibDowned]; ok && !trained {
		trained = j.grownSince(p, ibDowned, n, 0) > 0 && !j.keptLink(p)
	} else if unread && !trained {
		waits = j.isMissed(p, ibDowned, counts)
		trained = !waits
	}
	for i := range j.rows {
		if c := &j.rows[i]; waits && c.Link {
			delete(counts, c.Name)
		}
	}
	d := j.history.File.Devices[p.Name()]
	for i := range j.rows {
		c := &j.rows[i]
		if !unread || !slices.ContainsFunc(c.Parts, func(part string) bool { return j.isMissed(p, part, counts) }) {
			continue
		}
		if delete(counts, c.Name); trained {
			delete(d.Series, c.Name)
		}
	}
	for i := range j.rows {
		c := &j.rows[i]
		n, ok := counts[c.Name]
		switch {
		case !c.Link:
			continue
		case !ok:
			if trained && d != nil {
				delete(d.Series, c.Name)
				delete(d.Series, ibExcused+c.Name)
			}
			continue
		}
		excused, _ := j.history.Last(p.Name(), ibExcused+c.Name)
		if trained {
			excused += j.grownSince(p, c.Name, n, c.width())
		}
		counts[ibExcused+c.Name] = excused
	}
	counts[ibWasUp] = 0
	if checks.PortActive(p.IBPort) {
		counts[ibWasUp] = 1
	}
}

// wasReset reports whether a port counts from 0 again, as after a reset of its adapter: its link has trained then.
// perfquery -R does the same to the counters, so one reset an hour is excused.
func (j *ibErrorJudge) wasReset(p *Port, counts map[string]uint64) bool {
	reset := slices.ContainsFunc([]string{ibDowned, ibTraffic}, func(counter string) bool {
		n, read := counts[counter]
		was, known := j.history.Last(p.Name(), counter)
		return read && known && n < was
	})
	if !reset {
		return false
	}
	const mark = "reset"
	again := len(j.history.Marks(p.Name(), mark, ibWindow)) > 0
	j.history.Mark(p.Name(), mark, j.history.Now)
	return !again
}

// isMissed reports whether a run lacks a counter of a port that was read in the last hour.
func (j *ibErrorJudge) isMissed(p *Port, counter string, counts map[string]uint64) bool {
	_, ok := counts[counter]
	at, known := j.history.LastRead(p.Name(), counter)
	return !ok && known && j.history.Now.Sub(at) < ibWindow
}

// grownSince returns the growth of a counter since the last stored run. It is no rate: a run a moment ago is
// one, too.
func (j *ibErrorJudge) grownSince(p *Port, counter string, n uint64, bits int) uint64 {
	if was, known := j.history.Last(p.Name(), counter); known {
		return checks.GrownFrom(was, n, bits)
	}
	return 0
}

// keptLink reports whether the kernel's log shows that a port has not lost its link since the last run,
// whatever its carrier did.
func (j *ibErrorJudge) keptLink(p *Port) bool {
	seen, known := j.history.LastRead(p.Name(), ibDowned)
	if !known || p.Layer != LayerEth {
		return false
	}
	if j.log == nil {
		j.log = new(linkLog)
		if log, err := readLinkLog(j.env); err == nil {
			*j.log = log
		}
	}
	q := flapPort{Port: p}
	q.devs, q.pci = j.interfaces(p)
	return j.log.decides(&q, seen) && !slices.ContainsFunc(j.log.lines, func(l flapLine) bool { return l.At.After(seen.Add(-flapSame)) && l.about(&q) })
}

// ibTraffic is the packet counter that shows which ports are in use.
const ibTraffic = "counters/port_rcv_packets"

// ibExcess is a counter of a port that grows too fast.
type ibExcess struct {
	port   *Port
	row    *IBCounter
	n      uint64
	all    checks.Growth
	own    checks.Growth // without the growth while the link trained
	fresh  bool          // it has grown since the last run
	spells int           // how often in the last hour
	worst  string        // how it exceeds the other ports if most count the same; "": it does not
}

// over reports whether growth exceeds a limit of the row.
func (c *IBCounter) over(g checks.Growth) bool {
	rate := c.rate(g)
	return c.Warn >= 0 && rate > c.Warn || c.Fail >= 0 && rate > c.Fail
}

func (j *ibErrorJudge) judge() {
	for i := range j.rows {
		c := &j.rows[i]
		if c.Outlier >= 0 {
			j.reportOutliers(c)
		}
		if !c.Judged() {
			continue
		}
		for _, layer := range rowLayers {
			list, peers := j.findExcess(c, layer)
			stuck := j.findStuck(c, layer, list)
			if peers >= ibPeers && 2*len(list) > peers {
				j.findings = append(j.findings, j.describeFabric(c, layer, list, peers))
				list = standOut(list)
			}
			for _, x := range list {
				j.findings = append(j.findings, j.describeExcess(x))
			}
			j.findings = append(j.findings, stuck...)
		}
	}
	j.reportFull()
}

// findStuck returns the failures of the ports of a layer whose counter stopped at its maximum while it failed, and
// that are not in the list: such a counter cannot show that the errors have ended.
func (j *ibErrorJudge) findStuck(c *IBCounter, layer string, list []ibExcess) (findings []checks.Finding) {
	for _, p := range j.ports {
		if rowLayer(p.Port) != layer || !c.of(layer) || !j.isStuck(&p, c) || slices.ContainsFunc(list, func(x ibExcess) bool { return x.port == p.Port }) {
			continue
		}
		f := checks.Finding{Code: "ib.errors." + c.Base(), Severity: checks.Fail, Remedy: c.Remedy, Want: c.limitText(c.Warn), Got: fmt.Sprint(p.counts[c.Name])}
		if c.Fail >= 0 {
			f.Want = c.limitText(c.Fail)
		}
		if j.watch {
			f.Severity = checks.Warn
		}
		findings = append(findings, f.Report(j.Check, p.Subject(), "%s stopped at its maximum while it failed (perfquery -R resets it)", c.Base()))
	}
	return findings
}

// ibFull is the prefix of marks that a counter failed while it was at its maximum: its name follows.
const ibFull = "full "

// isStuck reports whether a counter is at its maximum and has failed since it reached it.
func (j *ibErrorJudge) isStuck(p *ibCounted, c *IBCounter) bool {
	n, ok := p.counts[c.Name]
	if !ok || !c.full(n) || c.Fail < 0 && c.Again == 0 {
		return false
	}
	failed := j.history.Marks(p.Name(), ibFull+c.Name, j.history.Since(p.Name(), c.Name, n))
	return len(failed) > 0
}

// findExcess returns the ports of a layer with this counter growing too fast; peers is the
// number of ports with the counter.
func (j *ibErrorJudge) findExcess(c *IBCounter, layer string) (list []ibExcess, peers int) {
	for _, p := range j.ports {
		n, ok := p.counts[c.Name]
		if !ok || rowLayer(p.Port) != layer || !c.of(layer) {
			continue
		}
		peers++
		g := j.countGrowth(&p, c)
		if _, begun := j.history.Begun(p.Name(), c.Name); !g.Known && !begun {
			continue
		}
		// The rate is 0 if the last run was just now: a count that was too high remains so.
		x := ibExcess{port: p.Port, row: c, n: n, all: g, own: g, spells: len(j.listSpells(p.Name(), c))}
		if excused, ok := p.counts[ibExcused+c.Name]; ok {
			if _, begun := j.history.Begun(p.Name(), ibExcused+c.Name); begun {
				excused = j.history.Grown(p.Name(), ibExcused+c.Name, excused, 0, c.window()).N
			}
			x.own.N -= min(g.N, excused)
		}
		if c.over(g) || c.Again > 0 && x.spells >= c.Again {
			x.fresh = j.history.Grown(p.Name(), c.Name, n, c.width(), 0).N > 0
			list = append(list, x)
		}
	}
	return list, peers
}

// countGrowth returns the growth of a counter of a port without that of its parts.
func (j *ibErrorJudge) countGrowth(p *ibCounted, c *IBCounter) checks.Growth {
	g := j.history.Grown(p.Name(), c.Name, p.counts[c.Name], c.width(), c.window())
	for _, part := range c.Parts {
		if n, ok := p.counts[part]; ok {
			g.N -= min(g.N, j.history.Grown(p.Name(), part, n, c.width(), c.window()).N)
		}
	}
	return g
}

// ibAlone is the multiple of the other ports' median that is too much.
const ibAlone = 100

// reportOutliers warns of ports with a counter that grows much faster than on others of their kind. It
// compares only with ports that receive at least a tenth of the packets: a job on one port moves
// the counters of that port only.
func (j *ibErrorJudge) reportOutliers(c *IBCounter) {
	type figures struct {
		port          *Port
		rate, packets float64
	}
	kinds := map[string][]figures{}
	for i := range j.ports {
		p := &j.ports[i]
		n, ok := p.counts[c.Name]
		g := j.history.Grown(p.Name(), c.Name, n, c.width(), 0)
		if !ok || !g.Known {
			continue
		}
		packets := 0.0
		if n, ok := p.counts[ibTraffic]; ok {
			if g := j.history.Grown(p.Name(), ibTraffic, n, 0, 0); g.Known {
				packets = g.Per(time.Second)
			}
		}
		kinds[portKind(p.Port)] = append(kinds[portKind(p.Port)], figures{p.Port, c.rate(g), packets})
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		for _, p := range kinds[kind] {
			var others []float64
			for _, q := range kinds[kind] {
				if q.port != p.port && 10*q.packets >= p.packets {
					others = append(others, q.rate)
				}
			}
			if len(others) < ibPeers-1 || p.rate <= c.Outlier {
				continue
			}
			slices.Sort(others)
			if usual := others[len(others)/2]; p.rate > ibAlone*usual {
				f := checks.Finding{Code: "ib.errors." + c.Base(), Severity: checks.Warn, Remedy: c.Remedy, Got: figure(p.rate),
					Want: fmt.Sprintf("at most %g a %s, or at most %d times the other ports (they have %s)", c.Outlier, c.Per, ibAlone, figure(usual))}
				j.findings = append(j.findings, f.Report(j.Check, p.port.Subject(), "%s", c.Base()))
			}
		}
	}
}

// describeFabric returns the finding about a counter that grows on most ports.
func (j *ibErrorJudge) describeFabric(c *IBCounter, layer string, list []ibExcess, peers int) checks.Finding {
	names := make([]string, len(list))
	for i, x := range list {
		names[i] = x.port.Name() + " " + c.text(x.all)
	}
	return checks.Finding{Code: "ib.errors.fabric", Severity: checks.Warn, Remedy: checks.CheckFabric}.
		Describe(ibErrorsName, "%s on %d of %d %s ports at once, a fault of the fabric: %s %s", c.Base(), len(list), peers, layer, strings.Join(names, ", "), c.unitText())
}

// ibOutlier: a port stands out above this multiple of the ports' median.
const ibOutlier = 10

// standOut returns the ports that count far more than most others: the fabric does not explain
// these.
func standOut(list []ibExcess) (out []ibExcess) {
	var rates []float64
	for _, x := range list {
		rates = append(rates, x.row.rate(x.all))
	}
	slices.Sort(rates)
	median := rates[(len(rates)-1)/2]
	for _, x := range list {
		if x.row.rate(x.own) > ibOutlier*median {
			x.worst = fmt.Sprintf(", more than %d times the median of %d ports (%s)", ibOutlier, len(list), figure(median))
			out = append(out, x)
		}
	}
	return out
}

// describeExcess returns the finding about a counter of one port.
func (j *ibErrorJudge) describeExcess(x ibExcess) checks.Finding {
	c := x.row
	f := checks.Finding{Code: "ib.errors." + c.Base(), Severity: checks.Warn, Remedy: c.Remedy}
	limit, text, got := c.Warn, c.Base(), x.all
	switch {
	case c.Fail >= 0 && c.rate(x.own) > c.Fail:
		f.Severity, limit, got = checks.Fail, c.Fail, x.own
	case c.Fail >= 0 && c.rate(x.all) > c.Fail:
		limit = c.Fail
		text += ", and the link was lost"
	case x.worst != "" && c.Again > 0:
		f.Severity, got = checks.Fail, x.own
	}
	text += x.worst
	f.Want, f.Got = c.limitText(limit), c.text(got)
	if c.Again > 0 && f.Severity == checks.Warn {
		if times := j.count(x); times >= c.Again {
			f.Severity = checks.Fail
			text += fmt.Sprintf(" too fast %d times in an hour", times)
		}
	}
	if j.watch {
		f.Severity = checks.Warn
	}
	if f.Severity == checks.Fail && c.full(x.n) {
		j.history.Mark(x.port.Name(), ibFull+c.Name, j.history.Now)
	}
	return f.Report(j.Check, x.port.Subject(), "%s", text)
}

// listSpells returns the times in the last hour at which a counter of a port was too fast.
func (j *ibErrorJudge) listSpells(port string, c *IBCounter) []time.Time {
	return j.history.Marks(port, c.Name, ibWindow)
}

// count notes that a counter is too fast again, and returns how often it was in the last hour.
func (j *ibErrorJudge) count(x ibExcess) int {
	list := j.listSpells(x.port.Name(), x.row)
	if x.row.over(x.own) && x.fresh && (len(list) == 0 || j.history.Now.Sub(list[len(list)-1]) >= ibSpell) {
		j.history.Mark(x.port.Name(), x.row.Name, j.history.Now)
		return len(list) + 1
	}
	return len(list)
}

// ibDowned counts lost links.
const ibDowned = "counters/link_downed"

// reportFull reports once all counters that have stopped at their maximum.
func (j *ibErrorJudge) reportFull() {
	const text = "stopped at their maximum: "
	var all []string
	var first checks.Finding
	for _, p := range j.ports {
		var list []string
		for i := range j.rows {
			if c := &j.rows[i]; c.Judged() && c.of(rowLayer(p.Port)) {
				if n, ok := p.counts[c.Name]; ok && c.full(n) && !j.isStuck(&p, c) {
					list = append(list, fmt.Sprintf("%s (%d)", path.Base(c.Name), n))
				}
			}
		}
		if len(list) > 0 {
			all = append(all, p.Name()+" "+strings.Join(list, ", "))
			first = checks.Finding{Code: "ib.errors.full", Severity: checks.Warn}.Report(j.Check, p.Subject(), "%s%s", text, strings.Join(list, ", "))
		}
	}
	switch {
	case len(all) == 1:
		j.findings = append(j.findings, first)
	case len(all) > 1:
		f := checks.Finding{Code: "ib.errors.full", Severity: checks.Warn, Device: checks.Device{Kind: "ports"}, Got: text + strings.Join(all, "; ")}
		j.findings = append(j.findings, f.Phrase(ibErrorsName, "counters of %s %s", checks.Plural(len(all), "port"), f.Got))
	}
}
