package xid

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// xidReporter writes the findings of a judgement.
type xidReporter struct {
	*xidJudge
	strict bool
	file   string   // that the events are of; "" is the kernel's own log
	order  []string // PCI addresses of the GPUs, as NVML counts them
}

// findings are those of the cases: what drains nobody first, then the worst.
func (r *xidReporter) findings(cases []*xidCase) []checks.Finding {
	var list []checks.Finding
	slices.SortStableFunc(cases, func(a, b *xidCase) int { return b.urgency() - a.urgency() })
	for _, c := range cases {
		f := r.finding(c)
		f.Loud = f.Severity == checks.Warn && c.row.unknown && c.fresh() // no table has judged the code
		list = append(list, f)
	}
	fails := func(f checks.Finding) bool { return f.Severity == checks.Fail }
	rest := slices.DeleteFunc(slices.Clone(list), fails)
	return append(rest, slices.DeleteFunc(list, func(f checks.Finding) bool { return !fails(f) })...)
}

// urgency puts what drains the node before all else, by its class.
func (c *xidCase) urgency() int {
	if c.class.Drains() {
		return c.class.Rank()
	}
	return 0
}

// fresh says whether no run has told of one of the events.
func (c *xidCase) fresh() bool {
	return slices.ContainsFunc(c.events, func(e *xidEvent) bool { return !e.Told })
}

func (r *xidReporter) finding(c *xidCase) checks.Finding {
	last := c.last()
	lines := 0
	for _, e := range c.events {
		lines += e.Lines
		if e.Last > last.Last {
			last = e
		}
	}
	f := checks.Finding{
		Code:     c.key.Finding(),
		Severity: r.severity(c),
		Device:   r.device(c),
		Remedy:   c.remedy,
		Want:     "no " + c.key.String(),
		Got:      fmt.Sprintf("%d lines in %d events, the last %s: %s", lines, len(c.events), checks.Clock(last.Last), last.Text),
	}
	since := "since " + checks.Clock(c.events[0].First)
	if r.file != "" { // whose times nobody knows
		since = "in " + r.file
		f.Got = fmt.Sprintf("%d lines, the last: %s", lines, last.Text)
	}
	what := c.key.String()
	if c.key == (checks.XidKey{}) {
		what = c.row.Name
	}
	notes := strings.Join(append([]string{""}, c.notes...), ", ")
	return f.Phrase("check_gpu_xid", "%s: %s (%s)%s, %s: %s", r.name(f.Device, c), what, c.row.Means, notes, since, r.until(c, last))
}

// severity is that of the class. Applications' faults are told once.
func (r *xidReporter) severity(c *xidCase) checks.Severity {
	if s, ok := r.policy.severity[c.class]; ok {
		if c.row.unknown && !c.class.Drains() { // the class is only a guess
			s = min(s, checks.Warn)
		}
		return s
	}
	switch c.class {
	case checks.XidApp, checks.XidFollow:
		if !c.fresh() {
			return checks.OK
		}
	case checks.XidWatch, checks.XidState, checks.XidDiag, checks.XidConfig:
		if r.strict && !c.row.unknown {
			return checks.Fail
		}
	}
	return r.policy.severityOf(c.class)
}

// until says what ends the finding.
func (r *xidReporter) until(c *xidCase, last *xidEvent) (text string) {
	switch c.class {
	case checks.XidApp:
		return last.application(c.row.Victim)
	case checks.XidFollow:
		return "follows an error that the log does not have"
	case checks.XidConfig:
		text = "see to the driver and its settings"
	case checks.XidState:
		text = "it depends on what NVML says, which was not asked"
		if c.row.State == "bank" {
			text = "reset the GPU when it is idle"
		}
	case checks.XidDiag:
		text = "run a diagnosis when the node is idle"
	case checks.XidReset:
		text = "a GPU reset or a new boot clears it"
		if c.key.Switch {
			text = "a reset of all GPUs and switches or a new boot clears it"
		}
	case checks.XidReboot:
		if text = "a new boot clears it"; c.row.Cure != "" {
			text = c.row.Cure
		}
	case checks.XidHold:
		return strings.TrimSpace(fmt.Sprintf("nhc-gpu clear %s %s clears it", c.gpu, clearWord(c.key)))
	default:
		text = "watch it"
	}
	if r.passes > 0 {
		text += fmt.Sprintf(", or %d runs without it", r.passes)
	}
	return text
}

// application names the application of an event, as its cause or its victim.
func (e *xidEvent) application(victim bool) string {
	who := strings.TrimSpace("process " + e.PID + " " + e.Name)
	if e.Job != "" {
		who += " of job " + e.Job
	}
	switch {
	case victim && e.PID == "":
		return "an application was hit: restart it"
	case victim:
		return who + " was hit: restart it"
	case e.PID == "":
		return "an application's fault"
	}
	return "a fault of " + who
}

// clearWord is the code as "nhc-gpu clear" takes it.
func clearWord(k checks.XidKey) string {
	if k.Switch {
		return fmt.Sprintf("sxid:%d", k.Code)
	}
	return fmt.Sprint(k.Code)
}

func (r *xidReporter) device(c *xidCase) checks.Device {
	d := checks.Device{Kind: "gpu", PCI: c.gpu}
	if c.key.Switch {
		d.Kind = "nvswitch"
		return d
	}
	d.UUID = c.last().UUID
	s, asked := r.states[c.gpu]
	switch i := slices.Index(r.order, c.gpu); {
	case asked:
		d.Name, d.UUID, d.Serial = fmt.Sprintf("gpu%d", s.Index), s.UUID, s.Serial
	case i >= 0:
		d.Name = fmt.Sprintf("gpu%d", i)
	}
	return d
}

func (r *xidReporter) name(d checks.Device, c *xidCase) string {
	switch {
	case c.gpu == "":
		return "a GPU"
	case c.key.Switch:
		return "nvswitch " + d.PCI
	}
	return d.String()
}
