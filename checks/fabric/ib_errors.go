package fabric

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// ibErrors judges the counters of errors of the ports that carry jobs' traffic, or of
// the DEVICEs, by how much they have grown and never by what they are: the first run
// after a boot judges nothing. Each counter has its own limit, of which docs/reference/fabric.md
// has the table: any growth in the last hour, or a rate in a second, a minute or an
// hour. RoCE ports are judged by the statistics of their network interfaces, too, and
// AWS's EFA by the counters of the device. What another node, a switch or the application
// can cause is warned of; what only a bad link of this node does fails, once it goes on.
// A port that counts more than 100 times as much as the others of its kind is warned of. When more than half of the
// ports, of at least four, count the same at once it is the fabric, and one warning.
// A failure ends by itself when the counter has been quiet for an hour, or with
// "nhc-gpu clear --ib". A counter that has reached its maximum and stopped there is
// warned of. -f names a file of the site's own limits, in place of
// /etc/nhc/ibcounters.toml; -w only warns.
//
//	gpu* || check_ib_errors
//	gpu* || check_ib_errors -w 'mlx5_[0-7]'
type ibErrors struct {
	File    string   `opt:"f" toml:"file"`      // the site's limits
	Watch   bool     `opt:"w" toml:"warn_only"` // nothing fails
	Devices []string `arg:"*" toml:"devices"`   // a device, DEVICE:PORT, or a glob; none: those that carry jobs' traffic
}

const ibErrorsName = "check_ib_errors"

// ibErrorsPast is the file of what it keeps.
const ibErrorsPast = "ib-errors"

// ibPeers are the fewest ports of which more than half can be the fabric.
const ibPeers = 4

func init() {
	checks.Register(checks.Info{
		Name:    ibErrorsName,
		Usage:   "[-f FILE] [-w] [DEVICE ...]",
		Summary: "the counters of errors of InfiniBand and RoCE ports do not grow",
		Lane:    checks.Local,
		New:     func() checks.Check { return &ibErrors{} },
		Do: func() map[string]string {
			return map[string]string{
				"ib.errors.fabric": "Nothing on this node: most of its ports count the same at once. See the switches, UFM or the subnet manager for that time.",
				"ib.errors.full":   "The counter has stopped at its maximum, and later errors are not seen: perfquery -R (of infiniband-diags) sets the counters of a port to 0.",
				"ib.errors.none":   "Nothing: these devices do not count errors where the kernel shows them.",
				"ib.errors.policy": "Correct the file that the message names (docs/reference/fabric.md has its form); until then the built-in limits are in force.",
			}
		},
		DoOf: doIBErrors,
		Vars: map[string]string{"IB_COUNTERS": ibCounterFile},
	})
}

// doIBErrors is the advice on a counter, which its row has.
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
	return "The site's own limit of a counter: see /etc/nhc/ibcounters.toml, or the file that the line names."
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
	heedIBClears(env, j.history)
	for _, p := range ports {
		j.read(p)
	}
	if none := !slices.ContainsFunc(j.ports, func(p ibCounted) bool { return len(p.counts) > 0 }); none && len(j.findings) == 0 {
		j.findings = append(j.findings, checks.Finding{Code: "ib.errors.none", Severity: checks.Skip}.Describe(ibErrorsName, "no port tells how many errors it has seen"))
	}
	j.judge()
	for _, p := range j.ports {
		j.history.Add(p.Name(), p.counts)
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
	findings []checks.Finding
}

// ibCounted is a port and what it counts.
type ibCounted struct {
	*Port

	counts map[string]uint64
}

// read takes what a port counts, as far as it can be read.
func (j *ibErrorJudge) read(p *Port) {
	names := []string{ibDowned} // tells whether the link was lost, whatever the site makes of it
	for i := range j.rows {
		if c := &j.rows[i]; c.read() && c.of(layerOf(p)) && c.Name != ibDowned {
			names = append(names, c.Name)
		}
	}
	j.env.At("read /sys/class/infiniband/%s/ports/%s/counters", p.Device, p.Port)
	nets := j.netDevs(p)
	counts, err := rdma.IBCounters(j.env.Host, p.Device, p.Port, nets, names)
	if err != nil {
		j.findings = append(j.findings, j.Unknown(p.Subject(), err))
	}
	if len(counts) > 0 {
		for _, dev := range nets {
			// link_downed of a RoCE port stands still
			if c, err := network.ReadCarrier(j.env.Host, dev); p.Layer == LayerEth && err == nil && c.Known {
				counts[ibDowned] += c.Downs
			}
		}
		j.excuse(p, counts)
		traffic, _ := rdma.IBCounters(j.env.Host, p.Device, p.Port, nil, []string{ibTraffic}) // no counter of errors
		maps.Copy(counts, traffic)
	}
	j.ports = append(j.ports, ibCounted{p, counts})
}

// Names in the history: whether a port was up, and how much of a counter has grown
// while its link trained.
const (
	ibWasUp   = "up"
	ibExcused = "excused "
)

// excuse adds up how much the counters that a training link moves have grown between
// runs of which one saw the link lost or down. The growth of other intervals counts.
func (j *ibErrorJudge) excuse(p *Port, counts map[string]uint64) {
	up, known := j.history.Last(p.Name(), ibWasUp)
	trained := !checks.PortActive(p.IBPort) || known && up == 0
	if n, ok := counts[ibDowned]; ok {
		trained = trained || j.history.Grown(p.Name(), ibDowned, n, 0, 0).N > 0
	}
	for i := range j.rows {
		c := &j.rows[i]
		n, ok := counts[c.Name]
		if !ok || !c.Link {
			continue
		}
		excused, _ := j.history.Last(p.Name(), ibExcused+c.Name)
		if trained {
			excused += j.history.Grown(p.Name(), c.Name, n, c.width(), 0).N
		}
		counts[ibExcused+c.Name] = excused
	}
	counts[ibWasUp] = 0
	if checks.PortActive(p.IBPort) {
		counts[ibWasUp] = 1
	}
}

// ibTraffic is the counter of packets that tells which ports are at work.
const ibTraffic = "counters/port_rcv_packets"

// ibExcess is a counter of a port that has grown too fast.
type ibExcess struct {
	port   *Port
	row    *IBCounter
	all    checks.Growth
	own    checks.Growth // without what it grew while the link trained
	fresh  bool          // it has grown since the last run
	spells int           // how often it has in the last hour
	worst  string        // how it stands out where most ports count the same; "": it does not
}

// over says whether growth is beyond a limit of the row.
func (c *IBCounter) over(g checks.Growth) bool {
	rate := c.rate(g)
	return c.Warn >= 0 && rate > c.Warn || c.Fail >= 0 && rate > c.Fail
}

func (j *ibErrorJudge) judge() {
	for i := range j.rows {
		c := &j.rows[i]
		if c.Outlier >= 0 {
			j.outliers(c)
		}
		if !c.Judged() {
			continue
		}
		for _, layer := range []string{layerIB, LayerEth, layerEFA} {
			list, peers := j.excess(c, layer)
			if peers >= ibPeers && 2*len(list) > peers {
				j.findings = append(j.findings, j.everywhere(c, layer, list, peers))
				list = standOut(list)
			}
			for _, x := range list {
				j.findings = append(j.findings, j.one(x))
			}
		}
	}
	j.full()
}

// excess are the ports with a link layer whose counter grows too fast; peers are all
// that have it.
func (j *ibErrorJudge) excess(c *IBCounter, layer string) (list []ibExcess, peers int) {
	for _, p := range j.ports {
		n, ok := p.counts[c.Name]
		if !ok || layerOf(p.Port) != layer || !c.of(layer) {
			continue
		}
		peers++
		g := j.grown(&p, c)
		if _, begun := j.history.Begun(p.Name(), c.Name); !g.Known && !begun {
			continue
		}
		// The rate is 0 if the last run was just now: what was too often is so still.
		x := ibExcess{port: p.Port, row: c, all: g, own: g, spells: len(j.spells(p.Name(), c))}
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

// grown is the growth of a counter of a port without that of its parts.
func (j *ibErrorJudge) grown(p *ibCounted, c *IBCounter) checks.Growth {
	g := j.history.Grown(p.Name(), c.Name, p.counts[c.Name], c.width(), c.window())
	for _, part := range c.Parts {
		if n, ok := p.counts[part]; ok {
			g.N -= min(g.N, j.history.Grown(p.Name(), part, n, c.width(), c.window()).N)
		}
	}
	return g
}

// ibAlone is how many times the median of the other ports is too much.
const ibAlone = 100

// outliers warns of ports whose counter grows much faster than that of the others of their
// kind. Only ports count that receive a tenth of the packets at least: a job that uses one
// port has the counters of that one grow.
func (j *ibErrorJudge) outliers(c *IBCounter) {
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
					Want: fmt.Sprintf("at most %g a %s, or %d times the %s of the other ports", c.Outlier, c.Per, ibAlone, figure(usual))}
				j.findings = append(j.findings, f.Report(j.Check, p.port.Subject(), "%s", c.Base()))
			}
		}
	}
}

// everywhere is the finding about a counter that most ports count.
func (j *ibErrorJudge) everywhere(c *IBCounter, layer string, list []ibExcess, peers int) checks.Finding {
	names := make([]string, len(list))
	for i, x := range list {
		names[i] = x.port.Name() + " " + c.text(x.all)
	}
	return checks.Finding{Code: "ib.errors.fabric", Severity: checks.Warn, Remedy: checks.CheckFabric}.
		Describe(ibErrorsName, "%s of %d of %d %s ports at once, so it is the fabric: %s %s", c.Base(), len(list), peers, layer, strings.Join(names, ", "), c.unitText())
}

// ibOutlier is how many times the median of the ports one must count to stand out.
const ibOutlier = 10

// standOut are those of many ports that count far more than most of them: the fabric
// does not explain these.
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

// one is the finding about a counter of one port.
func (j *ibErrorJudge) one(x ibExcess) checks.Finding {
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
	return f.Report(j.Check, x.port.Subject(), "%s", text)
}

// spells are the times in the last hour at which a counter of a port was too fast.
func (j *ibErrorJudge) spells(port string, c *IBCounter) []time.Time {
	return j.history.Marks(port, c.Name, ibWindow)
}

// count notes that a counter is too fast again, and says how often it was in the
// last hour.
func (j *ibErrorJudge) count(x ibExcess) int {
	list := j.spells(x.port.Name(), x.row)
	if x.row.over(x.own) && x.fresh && (len(list) == 0 || j.history.Now.Sub(list[len(list)-1]) >= ibSpell) {
		j.history.Mark(x.port.Name(), x.row.Name, j.history.Now)
		return len(list) + 1
	}
	return len(list)
}

// ibDowned is the counter of how often a link was lost.
const ibDowned = "counters/link_downed"

// full warns once of all counters that count no more.
func (j *ibErrorJudge) full() {
	const text = "at their maximum, and count no more: "
	var all []string
	var first checks.Finding
	for _, p := range j.ports {
		var list []string
		for i := range j.rows {
			if c := &j.rows[i]; c.Judged() && c.of(layerOf(p.Port)) {
				if n, ok := p.counts[c.Name]; ok && c.full(n) {
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
