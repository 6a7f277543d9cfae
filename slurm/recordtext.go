package slurm

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Line returns the record in one line, for syslog.
func (r *Record) Line() string {
	var parts []string
	for _, f := range r.Faults {
		parts = append(parts, "fault: "+f.Message)
	}
	for _, x := range r.Xids {
		text := fmt.Sprintf("%s %s (%s, %s)", r.gpu(x.PCI), x, x.Name, x.Class)
		if x.PID != "" {
			text += fmt.Sprintf(" of process %s %s", x.PID, x.By)
		}
		if x.Before {
			text += " since before the job"
		}
		if x.Lines > 1 {
			text += fmt.Sprintf(" %d lines", x.Lines)
		}
		parts = append(parts, text)
	}
	for _, c := range r.Changes {
		if !c.quiet() {
			parts = append(parts, fmt.Sprintf("%s %s", r.gpuOr(c), c))
		}
	}
	for _, d := range r.Doubts {
		parts = append(parts, "unknown: "+d)
	}
	if len(parts) == 0 && r.End.Time.IsZero() {
		parts = []string{"the job has not ended, or its epilog has not run"}
	} else if len(parts) == 0 {
		parts = []string{"nothing happened"}
	}
	return printable(fmt.Sprintf("%s: %s", r.title(), strings.Join(parts, "; ")))
}

// title returns "job 1234 of alice, 2 GPUs (gpu0 gpu1), 3 h 12 min".
func (r *Record) title() string {
	words := []string{"job " + r.Job}
	switch {
	case r.User != "":
		words[0] += " of " + r.User
	case r.UID >= 0:
		words[0] += fmt.Sprintf(" of uid %d", r.UID)
	}
	switch {
	case r.Whole:
		words = append(words, "the whole node")
	case r.Unsure:
		words = append(words, "GPUs unknown")
	case len(r.GPUs) == 0:
		words = append(words, "no GPU")
	default:
		var names []string
		for _, g := range r.GPUs {
			names = append(names, fmt.Sprintf("gpu%d", g.Index))
		}
		words = append(words, strings.Join(names, " "))
	}
	if r.Restart > 0 {
		words = append(words, fmt.Sprintf("restart %d", r.Restart))
	}
	if d, known := r.End.Since(r.Begin); known && !r.Begin.Time.IsZero() {
		words = append(words, checks.Lasted(d))
	}
	if r.Outcome != ClosedWhole && r.Outcome != "" {
		words = append(words, r.Outcome)
	}
	return strings.Join(words, ", ")
}

// own returns the GPUs that certainly belong to the job.
func (r *Record) own() []GPU {
	if r.Unsure {
		return nil
	}
	return r.GPUs
}

// gpu returns the name of a GPU from its address.
func (r *Record) gpu(pci string) string {
	for _, g := range r.GPUs {
		if g.PCI == pci {
			return g.String()
		}
	}
	return pci
}

func (r *Record) gpuOr(c Change) string {
	if c.Device.Kind == "gpu" {
		return r.gpu(c.Device.PCI)
	}
	return c.Device.String()
}

// quiet reports whether a change is omitted: a busy GPU reaches its power cap, and adaptive routing
// reorders packets.
func (c Change) quiet() bool { return checks.Routine(c.Name) }

func (c Change) String() string {
	if c.Gone {
		return "no longer has this counter"
	}
	name, ns := strings.CutSuffix(c.Name, ".ns")
	by := fmt.Sprintf("+%d", c.By)
	if ns {
		by = "+" + time.Duration(c.By).Round(time.Millisecond).String()
	}
	if c.Reset {
		by += " since a reset"
	}
	return name + " " + by
}

// Text returns the record for a user.
func (r *Record) Text() string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-9s %s\n", name, printable(fmt.Sprintf(format, args...)))
	}
	line("job", "%s", strings.TrimPrefix(r.title(), "job "))
	line("node", "%s", r.Node)
	moment := func(name string, m Moment) {
		if !m.Time.IsZero() {
			line(name, "%s", m.Time.Format(time.RFC3339))
		}
	}
	moment("began", r.Begin)
	moment("ended", r.End)
	line("state", "%s", cmp.Or(r.Outcome, "running, or its epilog has not run"))
	if r.Exit != "" {
		line("exit", "%s", r.Exit)
	}
	for _, g := range r.own() {
		line("gpu", "%s /dev/nvidia%d %s", g, g.Minor, g.UUID)
	}
	for _, f := range r.Faults {
		line("fault", "%s", f.Message)
	}
	for _, x := range r.Xids {
		process := ""
		if x.PID != "" {
			process = fmt.Sprintf(", process %s %s", x.PID, x.By)
		}
		if x.Before {
			process += ", since before the job"
		}
		line("xid", "%s %s: %s, class %s, %d lines%s: %s", x.First.Format(time.RFC3339), r.gpu(x.PCI), x, x.Class, x.Lines, process, x.Text)
	}
	for _, c := range r.Changes {
		line("count", "%s %s", r.gpuOr(c), c)
	}
	if r.Samples != "" {
		line("samples", "%s", r.Samples)
	}
	for _, d := range r.Doubts {
		line("unknown", "%s", d)
	}
	if r.Outcome == ClosedWhole && len(r.Faults)+len(r.Xids)+len(r.Changes) == 0 {
		line("", "nothing happened")
	}
	return b.String()
}

// Attributed returns a message followed by the jobs that the fault happened in.
func Attributed(message string, jobs []string) string {
	if len(jobs) == 0 {
		return message
	}
	return message + " [job " + strings.Join(jobs, " ") + "]"
}
