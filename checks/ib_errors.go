package checks

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ibErrors judges the counters of errors of the ports that carry jobs' traffic, or of
// the DEVICEs, by how much they have grown and never by what they are: the first run
// after a boot judges nothing. Each counter has its own limit, of which docs/fabric.md
// has the table: any growth in the last hour, or a rate in a second, a minute or an
// hour. What another node, a switch or the application can cause is warned of; what
// only a bad link of this node does fails, once it goes on. When more than half of the
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

// ibSpell is how far apart two times are at which a counter was too fast, so that
// it is no matter how often the node is checked.
const ibSpell = 5 * time.Minute

// ibPeers are the fewest ports of which more than half can be the fabric.
const ibPeers = 4

func init() {
	Register(Info{
		Name:    ibErrorsName,
		Usage:   "[-f FILE] [-w] [DEVICE ...]",
		Summary: "the counters of errors of InfiniBand and RoCE ports do not grow",
		Lane:    Local,
		New:     func() Check { return &ibErrors{} },
		Do: map[string]string{
			"ib.errors.fabric": "Nothing on this node: most of its ports count the same at once. See the switches, UFM or the subnet manager for that time.",
			"ib.errors.full":   "The counter has stopped at its maximum, and later errors are not seen: perfquery -R (of infiniband-diags) sets the counters of a port to 0.",
			"ib.errors.none":   "Nothing: these devices do not count errors where the kernel shows them.",
			"ib.errors.policy": "Correct the file that the message names (docs/fabric.md has its form); until then the built-in limits are in force.",
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
	for i := range ibCounterRows {
		if c := &ibCounterRows[i]; c.base() == name && c.Do != "" {
			return c.Do
		}
	}
	return "The site's own limit of a counter: see /etc/nhc/ibcounters.toml, or the file that the line names."
}

func (c *ibErrors) Run(_ context.Context, env *Env) []Finding {
	f, findings := env.askFabric(ibErrorsName)
	if f == nil {
		return findings
	}
	ports, findings := f.judged(c.Devices, "")
	if len(ports) == 0 {
		return findings
	}
	rows, err := env.ibCounters(c.File)
	if err != nil {
		findings = append(findings, Finding{Code: "ib.errors.policy", Severity: Warn, Message: ibErrorsName + ":  limits not used: " + err.Error(), Remedy: FixConfig})
	}
	j := &ibErrorJudge{fabric: f, rows: rows, watch: c.Watch, findings: findings, history: env.recallHistory(ibErrorsName, ibErrorsPast)}
	env.heedIBClears(j.history)
	for _, p := range ports {
		j.read(p)
	}
	if none := !slices.ContainsFunc(j.ports, func(p ibCounted) bool { return len(p.counts) > 0 }); none && len(j.findings) == 0 {
		j.findings = append(j.findings, Finding{Code: "ib.errors.none", Severity: Skip, Message: ibErrorsName + ":  no port tells how many errors it has seen"})
	}
	j.judge()
	for _, p := range j.ports {
		j.history.add(p.Name(), p.counts)
	}
	return append(j.findings, j.history.store(env)...)
}

// ibErrorJudge judges the ports of one run.
type ibErrorJudge struct {
	*fabric

	rows     []ibCounter
	watch    bool
	history  *history
	ports    []ibCounted
	findings []Finding
}

// ibCounted is a port and what it counts.
type ibCounted struct {
	*fabricPort

	counts map[string]uint64
}

// read takes what a port counts, as far as it can be read.
func (j *ibErrorJudge) read(p *fabricPort) {
	names := []string{ibDowned} // tells whether the link was lost, whatever the site makes of it
	for i := range j.rows {
		if c := &j.rows[i]; c.judged() && c.of(p.Layer) && c.Name != ibDowned {
			names = append(names, c.Name)
		}
	}
	j.env.At("read /sys/class/infiniband/%s/ports/%s/counters", p.Device, p.Port)
	counts, err := j.env.Host.IBCounters(p.Device, p.Port, names)
	if err != nil {
		j.findings = append(j.findings, j.unknown(p.device(), err))
	}
	j.ports = append(j.ports, ibCounted{p, counts})
}

// ibExcess is a counter of a port that has grown too fast.
type ibExcess struct {
	port   *fabricPort
	row    *ibCounter
	rate   float64
	now    bool // it does so now; if not it has done so too often
	fresh  bool // it has grown since the last run
	spells int  // how often it has in the last hour
}

func (j *ibErrorJudge) judge() {
	for i := range j.rows {
		c := &j.rows[i]
		if !c.judged() {
			continue
		}
		for _, layer := range []string{layerIB, layerEth} {
			list, peers := j.excess(c, layer)
			if peers >= ibPeers && 2*len(list) > peers {
				j.findings = append(j.findings, j.everywhere(c, layer, list, peers))
				continue
			}
			for _, x := range list {
				j.findings = append(j.findings, j.one(x))
			}
		}
	}
	for _, p := range j.ports {
		j.full(p)
	}
}

// excess are the ports with a link layer whose counter grows too fast; peers are all
// that have it.
func (j *ibErrorJudge) excess(c *ibCounter, layer string) (list []ibExcess, peers int) {
	for _, p := range j.ports {
		n, ok := p.counts[c.Name]
		if !ok || (p.Layer == layerEth) != (layer == layerEth) {
			continue
		}
		peers++
		g := j.history.grown(p.Name(), c.Name, n, c.width(), c.window())
		if _, begun := j.history.begun(p.Name(), c.Name); !g.known && !begun {
			continue
		}
		rate := c.rate(g) // 0 if the last run was just now: what was too often is so still
		x := ibExcess{port: p.fabricPort, row: c, rate: rate, spells: len(j.spells(p.Name(), c))}
		x.now = c.Warn >= 0 && rate > c.Warn || c.Fail >= 0 && rate > c.Fail
		if x.now || c.Again > 0 && x.spells >= c.Again {
			x.fresh = j.history.grown(p.Name(), c.Name, n, c.width(), 0).n > 0
			list = append(list, x)
		}
	}
	return list, peers
}

// everywhere is the finding about a counter that most ports count.
func (j *ibErrorJudge) everywhere(c *ibCounter, layer string, list []ibExcess, peers int) Finding {
	names := make([]string, len(list))
	for i, x := range list {
		names[i] = x.port.Name()
	}
	text := fmt.Sprintf("%s:  %s of %d of %d %s ports at once, so it is the fabric: %s", ibErrorsName, c.base(), len(list), peers, layer, strings.Join(names, " "))
	return Finding{Code: "ib.errors.fabric", Severity: Warn, Message: text, Remedy: CheckFabric}
}

// one is the finding about a counter of one port.
func (j *ibErrorJudge) one(x ibExcess) Finding {
	c := x.row
	f := Finding{Code: "ib.errors." + c.base(), Severity: Warn, Remedy: c.Remedy, Got: strings.TrimSuffix(strconv.FormatFloat(x.rate, 'f', 1, 64), ".0")}
	limit, text := c.Warn, c.base()
	if c.Fail >= 0 && x.rate > c.Fail {
		f.Severity, limit = Fail, c.Fail
	}
	f.Want = c.limitText(limit)
	if c.Again > 0 && f.Severity == Warn {
		if times := j.count(x); times >= c.Again {
			f.Severity = Fail
			text += fmt.Sprintf(" too fast %d times in an hour", times)
		}
	}
	if f.Severity == Fail && c.Link && j.lost(x.port) {
		f.Severity = Warn
		text += ", and the link was lost"
	}
	if j.watch {
		f.Severity = Warn
	}
	return j.finding(x.port.device(), f, "%s", text)
}

// spells are the times in the last hour at which a counter of a port was too fast.
func (j *ibErrorJudge) spells(port string, c *ibCounter) []time.Time {
	return j.history.marks(port, c.Name, ibWindow)
}

// count notes that a counter is too fast again, and says how often it was in the
// last hour.
func (j *ibErrorJudge) count(x ibExcess) int {
	list := j.spells(x.port.Name(), x.row)
	if x.now && x.fresh && (len(list) == 0 || j.history.now.Sub(list[len(list)-1]) >= ibSpell) {
		j.history.mark(x.port.Name(), x.row.Name, j.history.now)
		return len(list) + 1
	}
	return len(list)
}

// ibDowned is the counter of how often a link was lost.
const ibDowned = "counters/link_downed"

// lost says whether the link of a port was lost in the last hour.
func (j *ibErrorJudge) lost(p *fabricPort) bool {
	at := slices.IndexFunc(j.ports, func(q ibCounted) bool { return q.fabricPort == p })
	n, ok := j.ports[at].counts[ibDowned]
	return ok && j.history.grown(p.Name(), ibDowned, n, 0, ibWindow).n > 0
}

// full warns of counters that count no more.
func (j *ibErrorJudge) full(p ibCounted) {
	var list []string
	for i := range j.rows {
		if c := &j.rows[i]; c.judged() {
			if n, ok := p.counts[c.Name]; ok && c.full(n) {
				list = append(list, fmt.Sprintf("%s (%d)", path.Base(c.Name), n))
			}
		}
	}
	if len(list) > 0 {
		j.findings = append(j.findings, j.finding(p.device(), Finding{Code: "ib.errors.full", Severity: Warn}, "at their maximum, and count no more: %s", strings.Join(list, ", ")))
	}
}
