package session

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Drill is a rehearsal: while it lasts, the runs of a node see a fault that is not there. Each run
// reads it from the state directory of the node. A boot ends it.
type Drill struct {
	Version int            `json:"version"`
	Check   string         `json:"check"` // that reports the fault
	Finding checks.Finding `json:"finding"`
	Begin   slurm.Moment   `json:"begin"`
	For     time.Duration  `json:"for"`
	By      string         `json:"by"`

	// Alone is set if no line of the node has the check: then health checks report the finding in a
	// step of its own.
	Alone bool `json:"alone,omitempty"`

	Remedy bool `json:"remedy,omitempty"` // carry out the remedy of the fault, too
}

// drillVersion is the version of the file. Other versions are not read.
const drillVersion = 1

// NewDrill returns a rehearsal of a finding of a check, as a scenario of the self-test has it, about
// a device of the node.
func NewDrill(check string, f checks.Finding, d checks.Device) *Drill {
	var pairs []string
	for _, pair := range [][2]string{{f.Device.String(), d.String()}, {f.Device.PCI, d.PCI}, {f.Device.Name, d.Name}, {f.Device.Serial, d.Serial}, {f.Device.UUID, d.UUID}} {
		if pair[0] != "" && pair[1] != "" {
			pairs = append(pairs, pair[0], pair[1])
		}
	}
	swap := strings.NewReplacer(append(pairs, "{root}", "")...).Replace
	text := swap(f.Text(check))
	f.Want, f.Got, f.Device = swap(f.Want), swap(f.Got), d
	f.Remedy = checks.RemedyOf(f)
	f.Whole, f.Place, f.Status = false, nil, 0 // other findings about the device are real
	f = f.Phrase(check, "%s%s", checks.DrillMark, text)
	f.Drill = true
	return &Drill{Version: drillVersion, Check: check, Finding: f}
}

// ParseDrill reads the file of a rehearsal.
func ParseDrill(data []byte) (*Drill, error) {
	d := new(Drill)
	if err := json.Unmarshal(data, d); err != nil {
		return nil, fmt.Errorf("read the drill: %w", err)
	}
	if d.Version != drillVersion {
		return nil, fmt.Errorf("read the drill: version %d, want %d", d.Version, drillVersion)
	}
	d.Finding.Check, d.Finding.Drill = checks.FullName(d.Check), true
	return d, nil
}

// Left returns how long the rehearsal still lasts, 0 if it is over. Neither a change of the clock nor
// a boot prolongs it.
func (d *Drill) Left(now slurm.Moment) time.Duration {
	passed, known := now.Since(d.Begin)
	if !known {
		return 0
	}
	return max(0, d.For-passed)
}

// Until returns when the rehearsal ends by itself.
func (d *Drill) Until() time.Time { return d.Begin.Time.Add(d.For) }

// String returns the fault: gpu.xid.79 of gpu3 0000:66:00.0.
func (d *Drill) String() string {
	return d.Finding.Code + checks.Before(" of ", d.Finding.Device.String(), "")
}

// Step returns the step that reports the finding in the runs of a plan, nil if they do not report it.
// It is a copy of the first line with the check, so that the policy of the line applies and a real
// fault of it has the same cause. whole is set for a run that judges the whole node by its usual
// file: it also reports a finding whose check no line has. of returns the policy of a check and its
// class.
func (d *Drill) Step(p *plan.Plan, whole bool, file string, of func(check, class string) conf.Policy) *plan.Step {
	f := d.Finding
	if s := StepLike(p, d.Check, &f); s != nil {
		return s
	}
	info, ok := checks.Lookup(d.Check)
	if !ok || !d.Alone || !whole {
		return nil
	}
	return &plan.Step{Pos: conf.Pos{File: file}, Text: d.Check, Name: d.Check, Lane: info.Lane, Class: info.Class(), Policy: of(d.Check, info.Class()), Usage: &f}
}

// StepLike returns a step that reports a finding in place of the first line with a check, nil if there is
// no such line.
func StepLike(p *plan.Plan, check string, f *checks.Finding) *plan.Step {
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Kind == plan.Native && checks.FullName(s.Name) == checks.FullName(check) {
			return &plan.Step{Pos: s.Pos, Text: s.Text, Name: s.Name, Args: s.Args, Table: s.Table, Lane: s.Lane, Class: s.Class, Policy: s.Policy, Usage: f}
		}
	}
	return nil
}

// isDrill reports whether a step belongs to a rehearsal.
func isDrill(s *plan.Step) bool { return s.Usage != nil && s.Usage.Drill }
