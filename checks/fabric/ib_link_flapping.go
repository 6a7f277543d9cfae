package fabric

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/rdma"
)

// ibLinkFlapping finds ports with unstable links: those that carry jobs' traffic, or each -d
// DEVICE (a device, DEVICE:PORT, or a glob). A link that was lost COUNT (5) times within HOURS
// (24) fails; fewer losses warn. The check combines three sources: the port's counter
// link_downed, the carrier losses of its network interfaces (for InfiniBand only if link_downed
// is unusable; for a LAG of all members), and the kernel's log, which it reads if a counter has
// moved. If the driver of an Ethernet port logs lost links (mlx5_core), and the log has all records
// since the last run, carrier losses do not count: another MTU or ring size causes them, too. A loss
// in several sources counts once. Losses when a driver is loaded, or in the first minutes after a
// boot, do not count.
//
// If more than half of the ports, of at least four, lost their link within fifteen minutes, the
// fabric is the cause: that warns for an hour and counts for no port. The history survives a
// reboot. A failure ends when the link has been stable for a quarter of HOURS, or with "nhc-gpu
// clear --ib".
//
// Each LOG is a syslog file to search as well, in its last 8 MiB, for lines of systemd-networkd
// and the kernel about the ports' interfaces. Any user can write to such a file with logger(1),
// and so drain the node. No user can forge the kernel's own log, which the check always reads. As
// in AzureHPC's check of this name a path can replace COUNT.
//
//	gpu* || check_ib_link_flapping
//	gpu* || check_ib_link_flapping 24 5 /var/log/syslog
type ibLinkFlapping struct {
	Hours   float64  `arg:"1" toml:"hours"`  // period, hours
	Count   int      `arg:"2" toml:"count"`  // number of losses that fails
	Logs    []string `arg:"*" toml:"logs"`   // syslog files
	Devices []string `opt:"d" toml:"device"` // device, DEVICE:PORT, or a glob; repeatable
}

const ibFlapsName = "check_ib_link_flapping"

// ibFlapsPast is the name of the state file; the others are names in it.
const (
	ibFlapsPast = "ib-flaps"
	ibFlapMark  = "lost"
	ibCarrier   = "carrier "
	ibIndex     = "index "
)

const (
	flapsAtOnce  = 15 * time.Minute // losses of several ports within this time are one of the fabric: two runs can see it
	flapsFabric  = time.Hour        // how long a loss of the fabric is reported
	flapsWait    = time.Hour        // how long a port whose counters cannot be read waits for them
	flapShutdown = 2 * time.Minute  // losses within this time before a boot belong to the shutdown
	flapSame     = time.Minute      // largest difference of two programs' times of one loss
)

func init() {
	checks.Register(checks.Info{
		Name:    ibFlapsName,
		Usage:   "[-d DEVICE] ... [HOURS [COUNT] [LOG ...]]",
		Summary: "links of InfiniBand and RoCE ports are stable",
		Lane:    checks.Local,
		New:     func() checks.Check { return &ibLinkFlapping{Hours: 24, Count: 5} },
		Do: func() map[string]string {
			return map[string]string{
				"ib.flap":        "Clean or replace the cable or transceiver, or try another port of the switch; " + linkTool + " shows details. Then run nhc-gpu clear --ib DEVICE.",
				"ib.flap.fabric": "Nothing on this node: most of its links were lost at once. See the switches, UFM or the subnet manager for that time.",
				"ib.flap.log":    "Name an existing log, or none: the check reads the counters and the kernel's log in any case.",
			}
		},
	})
}

// Bind also accepts a path instead of COUNT.
func (c *ibLinkFlapping) Bind(args []string) error {
	return checks.BindUsable(c, moveLogsLast(args, c.Hours, c.Count))
}

// LogFiles returns the syslog files of the line.
func (c *ibLinkFlapping) LogFiles() []string { return c.Logs }

func (c *ibLinkFlapping) Validate() error {
	most := checks.HistoryAge.Hours()
	if !(c.Hours > 0 && c.Hours <= most) {
		return &checks.UsageError{Kind: checks.BadValue, Word: fmt.Sprint(c.Hours), Want: fmt.Sprintf("hours, at most %g", most)}
	}
	if c.Count < 1 || c.Count > checks.HistoryMarks {
		return &checks.UsageError{Kind: checks.BadValue, Word: fmt.Sprint(c.Count), Want: fmt.Sprintf("a number from 1 to %d", checks.HistoryMarks)}
	}
	for _, path := range c.Logs {
		if !strings.HasPrefix(path, "/") {
			return &checks.UsageError{Kind: checks.BadValue, Word: path, Want: "the path of a log"}
		}
	}
	return nil
}

func (c *ibLinkFlapping) Run(_ context.Context, env *checks.Env) []checks.Finding {
	f, findings := Ask(env, ibFlapsName)
	if f == nil {
		return findings
	}
	list, findings := f.Judged(c.Devices, "")
	if len(list) == 0 {
		return findings
	}
	j := &flapJudge{Fabric: f, check: c, history: env.RecallHistory(ibFlapsName, ibFlapsPast), findings: findings}
	j.cleared = applyIBClears(env, j.history)
	j.boot, _ = probe.BootTime(env.Host) // without it no line of a log has a time
	for _, p := range list {
		j.read(p)
	}
	j.readLogs()
	for i := range j.ports {
		j.take(&j.ports[i])
	}
	j.judge()
	return append(j.findings, j.history.Store(env)...)
}

// flapJudge judges the ports of one run.
type flapJudge struct {
	*Fabric

	check    *ibLinkFlapping
	history  *checks.History
	cleared  func(port string) time.Time
	boot     time.Time
	ports    []flapPort
	log      linkLog
	lines    []flapLine // of all logs
	findings []checks.Finding
}

// flapPort has the counters of a port.
type flapPort struct {
	*Port

	devs   []string // its network interfaces; of a LAG all members
	pci    []string // their addresses
	bad    []string // members of a LAG that lost their carrier in the period
	counts map[string]uint64
	lost   uint64 // losses since the last run, by the counters of the port
	downs  uint64 // the same, by the carrier of the interface with the most
	first  bool   // there was no earlier run
	total  uint64 // losses in the period, as far as its counters show
	moved  bool   // the log needs reading
	anew   bool   // the driver was reloaded since
	waits  bool   // some counters could not be read: a later run judges this time
}

// read reads the counters of a port and its interfaces.
func (j *flapJudge) read(p *Port) {
	q := flapPort{Port: p}
	q.devs, q.pci = j.interfaces(p)
	j.env.At("read /sys/class/infiniband/%s/ports/%s/counters", p.Device, p.Port)
	counts, err := rdma.IBCounters(j.env.Host, p.Device, p.Port, nil, []string{ibDowned})
	q.counts = counts
	for _, dev := range q.devs {
		j.env.At("read /sys/class/net/%s", dev)
		c, bad := network.ReadCarrier(j.env.Host, dev)
		if errors.Is(bad, fs.ErrNotExist) {
			continue // the interface was just removed
		}
		err = errors.Join(err, bad)
		if bad == nil && c.Known {
			q.counts[ibCarrier+dev], q.counts[ibIndex+dev] = c.Downs, c.Index
		}
	}
	if err != nil {
		j.findings = append(j.findings, j.Unknown(p.Subject(), err))
		d := j.history.File.Devices[p.Name()]
		q.waits = d != nil && j.history.Now.Sub(time.Unix(d.Seen, 0)) < flapsWait
		q.moved = true
	}
	q.compare(j.history, j.boot.Add(checks.BootSettle), j.check.window())
	j.ports = append(j.ports, q)
}

// compare counts the losses since the last run. Counters have no times: if that run was before
// the links had settled, the losses can be from then, and only a log can show it.
func (q *flapPort) compare(h *checks.History, settled time.Time, window time.Duration) {
	name := q.Name()
	q.first = true
	for counter, n := range q.counts {
		then, known := h.Last(name, counter)
		q.first = q.first && !known
		dev, isCarrier := strings.CutPrefix(counter, ibCarrier)
		switch {
		case strings.HasPrefix(counter, ibIndex):
			continue
		case !known: // an interface loses its carrier once when it is created
			q.moved = q.moved || n > 1 || n > 0 && !isCarrier
			continue
		case isCarrier:
			index, known := h.Last(name, ibIndex+dev)
			if known && index != q.counts[ibIndex+dev] || n < then {
				q.anew = true
				continue
			}
		}
		if isCarrier && !q.byCarrier() {
			continue
		}
		grown := &q.lost
		if isCarrier {
			grown = &q.downs
		}
		*grown = max(*grown, h.Grown(name, counter, n, 0, 0).N)
		all := h.Grown(name, counter, n, 0, window).N
		q.total = max(q.total, all)
		if isCarrier && all > 0 && len(q.pci) > 1 {
			q.bad = append(q.bad, dev)
		}
	}
	if q.anew { // which took the link down
		q.lost, q.downs = 0, 0
	}
	q.moved = q.moved || q.lost > 0 || q.downs > 0 || len(q.counts) == 0
	if d := h.File.Devices[name]; d != nil && time.Unix(d.Seen, 0).Before(settled) {
		q.lost, q.downs = 0, 0
	}
}

// downedMost is the maximum of link_downed of InfiniBand.
const downedMost = 255

// byCarrier reports whether the carriers of a port's interfaces show its link. The carrier of IP
// over InfiniBand also changes when an administrator takes the interface down, and with another
// LID or partition key: it counts only if link_downed is unusable. link_downed of a virtual
// function can stay 0.
func (q *flapPort) byCarrier() bool {
	n, known := q.counts[ibDowned]
	m := ModelOf(q.HCA.Vendor, q.HCA.Model, q.HCA.Board)
	virtual := q.HCA.VF || m != nil && m.Virtual
	return q.Layer != layerIB || !known || n >= downedMost || n == 0 && virtual
}

// readLogs reads the kernel's log, if it can contain anything new, and the files.
func (j *flapJudge) readLogs() {
	if slices.ContainsFunc(j.ports, func(q flapPort) bool { return q.moved }) {
		var err error
		if j.log, err = readLinkLog(j.env); err != nil {
			j.findings = append(j.findings, checks.UnreadableLog(j.env, ibFlapsName, err)...)
		}
		j.lines = append(j.lines, j.log.lines...)
	}
	for _, path := range j.check.Logs {
		list, err := readSyslogFlaps(j.env, path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // as in AzureHPC's check
			j.findings = append(j.findings, checks.Finding{Code: "ib.flap.log", Severity: checks.Skip}.Describe(ibFlapsName, "%v", err))
		case err != nil:
			j.findings = append(j.findings, checks.Unreadable(err)...)
		}
		j.lines = append(j.lines, list...)
	}
}

// take records the new losses of a port. A run that could not read all counters records none: the next one judges
// the same time by all sources.
func (j *flapJudge) take(q *flapPort) {
	name, h := q.Name(), j.history
	if q.waits {
		return
	}
	defer h.Add(name, q.counts)
	if q.anew {
		return
	}
	times := j.loggedLosses(q)
	lost := q.lost
	if d := h.File.Devices[name]; d == nil || !j.log.decides(q, time.Unix(d.Seen, 0)) {
		lost = max(lost, q.downs)
	}
	for i := range lost - min(lost, uint64(len(times))) { // not in any log
		if i >= checks.HistoryMarks {
			break
		}
		times = append(times, h.Now.Add(-time.Duration(i)*time.Second))
	}
	for _, at := range times {
		h.Mark(name, ibFlapMark, at)
	}
}

// spreadTimes moves times of a log that fall into the same second to earlier seconds: each line is
// a loss, as in AzureHPC's check.
func spreadTimes(times []time.Time) {
	for i := len(times) - 2; i >= 0; i-- {
		if latest := times[i+1].Add(-time.Second); times[i].After(latest) {
			times[i] = latest
		}
	}
}

// loggedLosses returns the new losses of a port in the logs: those of the source with the most,
// since the others report the same losses.
func (j *flapJudge) loggedLosses(q *flapPort) (most []time.Time) {
	name, h := q.Name(), j.history
	known := h.Marks(name, ibFlapMark, checks.HistoryAge)
	since := h.Now.Add(-j.check.window())
	var seen time.Time // the logs of earlier runs end here
	if d := h.File.Devices[name]; d != nil && !q.first {
		seen = time.Unix(d.Seen, 0)
		since = seen.Add(-flapSame)
	}
	by := map[string][]time.Time{}
	for i := range j.lines {
		l := &j.lines[i]
		at := l.At.Truncate(time.Second)
		starting := at.After(j.boot.Add(-flapShutdown)) && at.Before(j.boot.Add(checks.BootSettle))
		if starting || at.Before(since) || at.After(h.Now) || !at.After(j.cleared(name)) || !l.about(q) {
			continue
		}
		already := slices.ContainsFunc(known, func(t time.Time) bool { return t.Sub(at).Abs() <= flapSame })
		if !already || !seen.IsZero() && at.After(seen) {
			by[l.Source] = append(by[l.Source], at)
		}
	}
	for source, list := range by {
		slices.SortFunc(list, time.Time.Compare)
		if strings.HasPrefix(source, "/") { // the kernel's log can have a loss twice
			spreadTimes(list)
		}
		if len(list) > len(most) || len(list) == len(most) && list[0].Before(most[0]) {
			most = list
		}
	}
	return most
}

func (c *ibLinkFlapping) window() time.Duration { return time.Duration(c.Hours * float64(time.Hour)) }

// judge reports the losses within the period.
func (j *flapJudge) judge() {
	lost := map[string][]time.Time{}
	for i := range j.ports {
		lost[j.ports[i].Name()] = j.history.Marks(j.ports[i].Name(), ibFlapMark, j.check.window())
	}
	fabric := map[string][]flapsAt{} // losses that the fabric can explain, by layer
	peers := map[string]int{}
	for i := range j.ports {
		p := &j.ports[i]
		layer := cmp.Or(p.Layer, layerIB)
		peers[layer]++
		shared := flapsAt{port: p}
		for _, at := range lost[p.Name()] {
			switch {
			case !j.isShared(lost, p.Layer, at):
				shared.own = append(shared.own, at)
			case j.history.Now.Sub(at) <= flapsFabric:
				shared.with = append(shared.with, at)
			}
		}
		if len(shared.with) > 0 {
			fabric[layer] = append(fabric[layer], shared)
		} else if len(shared.own) > 0 {
			j.findings = append(j.findings, j.describeLosses(p, shared.own))
		}
	}
	for _, layer := range []string{layerIB, LayerEth} {
		j.reportTogether(layer, fabric[layer], peers[layer])
	}
}

// flapsAt are the losses of a port: its own, and those when most ports lost their link.
type flapsAt struct {
	port      *flapPort
	own, with []time.Time
}

// reportTogether reports the losses that most ports of a link layer had at once. A port that lost its
// link far more often than most has a fault of its own.
func (j *flapJudge) reportTogether(layer string, list []flapsAt, peers int) {
	if len(list) == 0 {
		return
	}
	var names []string
	var times []int
	for _, l := range list {
		names = append(names, fmt.Sprintf("%s %d", l.port.Name(), len(l.with)))
		times = append(times, len(l.with))
	}
	slices.Sort(times)
	for _, l := range list {
		if len(l.with) > ibOutlier*times[(len(times)-1)/2] {
			l.own = append(l.own, l.with...)
			slices.SortFunc(l.own, time.Time.Compare)
		}
		if len(l.own) > 0 {
			j.findings = append(j.findings, j.describeLosses(l.port, l.own))
		}
	}
	j.findings = append(j.findings, checks.Finding{Code: "ib.flap.fabric", Severity: checks.Warn, Remedy: checks.CheckFabric}.
		Describe(ibFlapsName, "links of %d of %d %s ports lost at once, a fault of the fabric: %s times", len(list), peers, layer, strings.Join(names, ", ")))
}

// isShared reports whether more than half of the ports of a link layer lost their link at about
// the same time.
func (j *flapJudge) isShared(lost map[string][]time.Time, layer string, at time.Time) bool {
	peers, with := 0, 0
	for i := range j.ports {
		if j.ports[i].Layer != layer {
			continue
		}
		peers++
		if slices.ContainsFunc(lost[j.ports[i].Name()], func(t time.Time) bool { return t.Sub(at).Abs() <= flapsAtOnce }) {
			with++
		}
	}
	return peers >= ibPeers && 2*with > peers
}

// describeLosses returns the finding about the losses of one port.
func (j *flapJudge) describeLosses(p *flapPort, own []time.Time) checks.Finding {
	last, lost := own[len(own)-1], uint64(len(own))
	if lost == checks.HistoryMarks { // the history holds no more
		lost = max(lost, p.total)
	}
	f := checks.Finding{Code: "ib.flap", Severity: checks.Warn, Want: fmt.Sprintf("0 in %g hours", j.check.Hours), Got: fmt.Sprint(lost), Remedy: checks.CheckCable}
	if len(own) >= j.check.Count && j.history.Now.Sub(last) <= j.check.window()/4 {
		f.Severity = checks.Fail
		if j.check.Count > 1 {
			f.Want = fmt.Sprintf("fewer than %d in %g hours", j.check.Count, j.check.Hours)
		}
	}
	slices.Sort(p.bad)
	return f.Report(j.Check, p.Subject(), "link%s lost, last at %s", checks.Before(" of ", strings.Join(p.bad, " "), ""), last.UTC().Format(time.RFC3339))
}
