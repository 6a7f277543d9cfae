package checks

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/disk"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
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

// The remedies: there are no others. Data files write NoRemedy as "none".
const (
	NoRemedy    Remedy = ""
	RestartApp  Remedy = "restart-app"
	FixConfig   Remedy = "fix-config"
	ResetGPU    Remedy = "reset-gpu"
	RebootNode  Remedy = "reboot-node"
	PowerCycle  Remedy = "power-cycle"
	CheckCable  Remedy = "check-cable"
	CheckFabric Remedy = "check-fabric"
	ReseatOrRMA Remedy = "reseat-or-rma"
)

// remedies has each remedy in the words of a reason, and its rank: of several failures the
// one with the highest rank is named.
var remedies = map[Remedy]struct {
	words string
	rank  int
}{
	NoRemedy:    {"", 1},
	RestartApp:  {"restart the program", 1},
	FixConfig:   {"fix the configuration", 1},
	CheckCable:  {"check the cable", 1},
	CheckFabric: {"check the fabric", 1},
	ResetGPU:    {"reset the GPU", 2},
	RebootNode:  {"reboot", 3},
	PowerCycle:  {"power cycle", 4},
	ReseatOrRMA: {"reseat or RMA", 5},
}

// Words returns the remedy as an order, "" for none: "reset the GPU".
func (r Remedy) Words() string { return remedies[r].words }

// Rank returns how much the remedy takes: 1 where the node can go on, more for a reset, a
// reboot, a power cycle and the replacement of a part.
func (r Remedy) Rank() int { return remedies[r].rank }

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
	Place    *Place   `json:"place,omitempty"`  // where a bad port is, and what is plugged in; nil: not known
	Syslog   bool     `json:"syslog,omitempty"` // a warning that goes to syslog, and not to the log
	Loud     bool     `json:"loud,omitempty"`   // a warning that goes to syslog as well

	// Whole says that the device as a whole is in this state: what else is found of it
	// in the same run is a consequence, and is only counted.
	Whole bool `json:"whole,omitempty"`

	// Check is the check that found it, Jobs are those in which it began. They are set
	// where the results of a run are judged. Without a Check the message is the reason.
	Check string `json:"-"`
	Jobs  string `json:"-"`
}

// Of reports whether two devices are the same, as far as both are known.
func (d Device) Of(other Device) bool {
	same := func(a, b string) bool { return a != "" && a == b }
	return d.Kind == other.Kind && (d == other || same(d.UUID, other.UUID) || same(d.PCI, other.PCI) || d.PCI == "" && other.PCI == "" && same(d.Name, other.Name))
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

// Report makes f a finding about a device. A state that is wrong as such is what was got.
func (f Finding) Report(check string, d Device, format string, args ...any) Finding {
	f.Device = d
	text := oneLine(fmt.Sprintf(format, args...))
	f = f.Describe(check, "%s", text)
	if f.Want == "" && f.Got == "" {
		f.Got = text
	}
	return f
}

// Describe writes the message of f: check, device, text, want and got, as far as f has them.
func (f Finding) Describe(check, format string, args ...any) Finding {
	return f.Phrase(check, "%s%s%s%s", Before("", f.Device.String(), ": "), fmt.Sprintf(format, args...), Before(", want ", f.Want, ""), Before(", got ", f.Got, ""))
}

// Phrase writes the message of f where the text itself names device, want and got, or none
// of them: the check and the text, on one line. Texts of LBNL NHC's checks stay as they are.
func (f Finding) Phrase(check, format string, args ...any) Finding {
	text := fmt.Sprintf(format, args...)
	if !OfLBNL(check) {
		text = oneLine(text)
	}
	f.Message = check + ":  " + text
	return f
}

// Text returns the message without the check that it begins with.
func (f Finding) Text(check string) string { return strings.TrimPrefix(f.Message, check+":  ") }

// Unreadable is what a check says when it could not read what it judges.
func Unreadable(err error) []Finding {
	return []Finding{{Code: "probe.unreadable", Severity: Unknown, Message: err.Error()}}
}

// WrongValue is the failure of a check that was given a word which is no number.
func WrongValue(check, what, word, want string) Finding {
	return Finding{Code: "config.value", Severity: Fail, Want: want, Got: word, Remedy: FixConfig}.Phrase(check, "Invalid %s \"%s\"; want %s.", what, word, want)
}

// BadWord is that a word of nhc.conf means nothing to a check, which judges nothing then.
func BadWord(check, what, got, want string) Finding {
	return Finding{Code: "config.value", Severity: Unknown, Want: want, Got: got, Remedy: FixConfig}.Phrase(check, "%s %q, want %s", what, got, want)
}

// GPUDevice is how a finding names a GPU.
func GPUDevice(g *nvml.GPU) Device {
	return Device{Kind: "gpu", Name: fmt.Sprintf("gpu%d", g.Index), PCI: g.PCI, Serial: g.Serial.Value, UUID: g.UUID.Value}
}

// GPUName is gpu3, by NVML's index.
func GPUName(g *nvml.GPU) string { return fmt.Sprintf("gpu%d", g.Index) }

// Place is where a bad port is, and what is plugged into it.
type Place struct {
	Slot        string             `json:"slot,omitempty"`        // of the PCI bus, as it is printed on the machine
	FarEnd      string             `json:"far_end,omitempty"`     // switch and port: leaf03 port 12
	NetDev      string             `json:"netdev,omitempty"`      // the interface that was asked
	Transceiver *network.Module    `json:"transceiver,omitempty"` // nil: there is none, or it did not answer
	Devlink     []network.Reporter `json:"devlink,omitempty"`     // health reporters that have counted an error
}

// short is the place as a message has it, "" if nothing is known.
func (p *Place) short() string {
	var words []string
	if p.Slot != "" {
		words = append(words, "slot "+p.Slot)
	}
	if p.FarEnd != "" {
		words = append(words, "to "+p.FarEnd)
	}
	return strings.Join(words, ", ")
}

// Detail is what the message of a finding does not say of the place, "" if nothing is known.
func (f *Finding) Detail() string {
	if f.Place == nil {
		return ""
	}
	var words []string
	if f.Place.Transceiver != nil {
		words = append(words, f.Place.Transceiver.String())
	}
	for _, r := range f.Place.Devlink {
		words = append(words, r.String())
	}
	if len(words) == 0 {
		return ""
	}
	return f.Device.String() + ": " + strings.Join(words, "; ")
}

// NVMeDevice is how a finding names a disk.
func NVMeDevice(d *disk.NVMe) Device {
	return Device{Kind: "nvme", Name: d.Name, PCI: d.PCI, Serial: d.Serial}
}

// NVMeLive is the state of a controller that serves its disk.
const NVMeLive = "live"
