package xid

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// xidReporter makes findings of the cases.
type xidReporter struct {
	*xidJudge
	strict bool
	file   string   // log file of the events; "": the kernel's log
	order  []string // PCI addresses of the GPUs in NVML's order
}

// makeFindings returns the findings of the cases: warnings first, then failures, the worst first.
func (r *xidReporter) makeFindings(cases []*xidCase) []checks.Finding {
	var list []checks.Finding
	slices.SortStableFunc(cases, func(a, b *xidCase) int { return b.urgency() - a.urgency() })
	for _, c := range cases {
		f := r.makeFinding(c)
		f.Loud = f.Severity == checks.Warn && c.row.unknown && c.fresh() // the tables have no row for the code
		list = append(list, f)
	}
	fails := func(f checks.Finding) bool { return f.Severity == checks.Fail }
	rest := slices.DeleteFunc(slices.Clone(list), fails)
	return append(rest, slices.DeleteFunc(list, func(f checks.Finding) bool { return !fails(f) })...)
}

// urgency returns the rank of a class that drains the node, 0 of others.
func (c *xidCase) urgency() int {
	if c.class.Drains() {
		return c.class.Rank()
	}
	return 0
}

// fresh reports whether no run has reported one of the events yet.
func (c *xidCase) fresh() bool {
	return slices.ContainsFunc(c.events, func(e *xidEvent) bool { return !e.Told })
}

func (r *xidReporter) makeFinding(c *xidCase) checks.Finding {
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
		Device:   r.findDevice(c),
		Remedy:   c.remedy,
		Want:     "no " + c.key.String(),
		Got:      fmt.Sprintf("%d lines in %d events, the last %s: %s", lines, len(c.events), checks.Clock(last.Last), last.Text),
	}
	asks := c.row.Class == checks.XidAuthority && c.class == checks.XidWatch // "watch it" is not what the driver asks for
	if do := c.row.adviseFinding(c.class, c.key); do != adviseCode(f.Code) && !asks {
		f.Do = do
	}
	f.Remedy = c.row.fitRemedy(c.class, f.Severity, f.Remedy)
	since := "since " + checks.Clock(c.events[0].First)
	if r.file != "" { // its times are unknown
		since = "in " + r.file
		f.Got = fmt.Sprintf("%d lines, the last: %s", lines, last.Text)
	}
	what := c.key.String()
	if c.key == (checks.XidKey{}) {
		what = c.row.Name
	}
	notes := strings.Join(append([]string{""}, c.notes...), ", ")
	return f.Phrase("check_gpu_xid", "%s: %s (%s)%s, %s: %s", r.nameDevice(f.Device, c), what, c.row.Means, notes, since, r.explainEnd(c, last))
}

// severity returns the severity of a case. An application's fault is reported once.
func (r *xidReporter) severity(c *xidCase) checks.Severity {
	if s, ok := r.policy.severity[c.class]; ok {
		if c.row.unknown && !c.class.Drains() { // the class of an unknown code is a guess
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

// explainEnd returns what ends the finding.
func (r *xidReporter) explainEnd(c *xidCase, last *xidEvent) (text string) {
	switch c.class {
	case checks.XidApp:
		return last.describeApplication(c.row.Victim)
	case checks.XidFollow:
		return "follows an error that is not in the log"
	case checks.XidConfig:
		text = "check the driver and its settings"
	case checks.XidState:
		s, queried := r.states[c.gpu]
		switch {
		case c.row.State == "bank":
			text = "reset the GPU when it is idle"
		case isTrue(s.MIG):
			text = "NVML decides, but does not report remapped rows of a GPU with MIG devices"
		case queried:
			text = "NVML decides, but does not report it of this GPU"
		default:
			text = "NVML decides, but it was not queried"
		}
	case checks.XidDiag:
		text = "run a diagnostic when the node is idle"
	case checks.XidReset:
		text = cmp.Or(c.row.cureOf(c.class), "a GPU reset or a reboot clears it")
		if c.key.Switch {
			text = "a reset of all GPUs and switches or a reboot clears it"
		}
	case checks.XidReboot:
		text = cmp.Or(c.row.cureOf(c.class), "a reboot clears it")
	case checks.XidHold:
		return strings.TrimSpace(fmt.Sprintf("nhc-gpu clear %s %s clears it", c.gpu, formatCode(c.key)))
	default:
		text = "watch it"
	}
	if r.passes > 0 {
		text += fmt.Sprintf(", or %d runs without it", r.passes)
	}
	return text
}

// describeApplication names the application of an event as its cause or its victim.
func (e *xidEvent) describeApplication(victim bool) string {
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

// formatCode returns the code as an argument of nhc-gpu clear.
func formatCode(k checks.XidKey) string {
	if k.Switch {
		return fmt.Sprintf("sxid:%d", k.Code)
	}
	return fmt.Sprint(k.Code)
}

func (r *xidReporter) findDevice(c *xidCase) checks.Device {
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

func (r *xidReporter) nameDevice(d checks.Device, c *xidCase) string {
	switch {
	case c.gpu == "":
		return "a GPU"
	case c.key.Switch:
		return "nvswitch " + d.PCI
	}
	return d.String()
}
