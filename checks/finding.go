package checks

import (
	"encoding/json"
	"fmt"
	"time"
)

// Severity is how bad a finding is. Only Fail takes a node out of service.
type Severity int

// The severities in rising order. Skip: does not apply to this node. Unknown:
// could not tell, which is never OK, but no reason to drain either.
const (
	OK Severity = iota
	Skip
	Warn
	Unknown
	Fail
)

var severityNames = [...]string{"ok", "skip", "warn", "unknown", "fail"}

func (s Severity) String() string {
	if s < OK || s > Fail {
		return fmt.Sprintf("severity %d", int(s))
	}
	return severityNames[s]
}

// MarshalJSON writes the severity as its name.
func (s Severity) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// UnmarshalJSON reads a severity's name.
func (s *Severity) UnmarshalJSON(b []byte) error {
	var name string
	if err := json.Unmarshal(b, &name); err != nil {
		return err
	}
	for i, n := range severityNames {
		if n == name {
			*s = Severity(i)
			return nil
		}
	}
	return fmt.Errorf("severity %q: want one of %v", name, severityNames)
}

// Remedy is what cures a finding.
type Remedy string

// The remedies.
const (
	NoRemedy    Remedy = ""
	RestartApp  Remedy = "restart-app"
	ResetGPU    Remedy = "reset-gpu"
	RebootNode  Remedy = "reboot-node"
	ReseatOrRMA Remedy = "reseat-or-rma"
	CheckCable  Remedy = "check-cable"
	CheckFabric Remedy = "check-fabric"
	FixConfig   Remedy = "fix-config"
)

// Device names the thing a finding is about. Empty fields are unknown.
type Device struct {
	Kind   string `json:"kind,omitempty"`   // "mount", "port", "gpu" ...
	Name   string `json:"name,omitempty"`   // /home, mlx5_0:1, gpu3
	PCI    string `json:"pci,omitempty"`    // 0000:c1:00.0
	Serial string `json:"serial,omitempty"` // as printed on the board
	UUID   string `json:"uuid,omitempty"`
}

func (d Device) String() string {
	if d.PCI != "" && d.Name != "" {
		return d.Name + " " + d.PCI
	}
	return d.Name + d.PCI
}

// Finding is one thing a check found. It is data: policies, alerts and tests
// key on Code, never on the text.
type Finding struct {
	Code     string   `json:"code"` // stable: "fs.mount.missing"
	Severity Severity `json:"severity"`
	Device   Device   `json:"device,omitzero"`
	Message  string   `json:"message"` // one line, complete: what LBNL prints after "Health check failed:  "
	Want     string   `json:"want,omitempty"`
	Got      string   `json:"got,omitempty"`
	Remedy   Remedy   `json:"remedy,omitempty"`
	Status   int      `json:"status,omitempty"` // exit status that LBNL's die gives; 0 stands for 1
	Syslog   bool     `json:"syslog,omitempty"` // a warning that goes to syslog, and not to the log
}

// ArrayCode is the code of a finding that is none: Got is what an array of the
// shell, Device.Name, is to hold, a line each item. Its severity is [OK].
const ArrayCode = "shell.array"

// Hung describes a step whose worker never answered.
type Hung struct {
	PID   int           `json:"pid"`
	State string        `json:"state"` // of the process, as in /proc/PID/stat: "D"
	Wchan string        `json:"wchan"` // the kernel function it sleeps in, "" if the kernel does not say
	Doing string        `json:"doing"` // what the check said it was about to do
	For   time.Duration `json:"for"`
	Stuck bool          `json:"stuck"`         // survived SIGKILL
	Moved bool          `json:"moved"`         // it made new calls in the second half of that time: it is slow
	Cut   bool          `json:"cut,omitempty"` // the end of the run has ended it, before its own time was up
}

// Result is what one step came to.
type Result struct {
	Step     int           `json:"step"` // index in the plan
	Findings []Finding     `json:"findings,omitempty"`
	Took     time.Duration `json:"took"`
	Hung     *Hung         `json:"hung,omitempty"`
	Skipped  string        `json:"skipped,omitempty"` // why it was not run
	Earlier  bool          `json:"earlier,omitempty"` // of an earlier run of an active test
}

// Worst is the highest severity among the findings, OK without any.
func Worst(findings []Finding) Severity {
	worst := OK
	for _, f := range findings {
		worst = max(worst, f.Severity)
	}
	return worst
}
