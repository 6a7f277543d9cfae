package checks

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/disk"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// Severity is the severity of a finding. Only Fail drains a node.
type Severity int

// The severities in rising order. Skip: the check does not apply to this node. Unknown: the
// check could not be evaluated; this neither passes nor drains.
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

// ExitStatus returns the exit status of a report with this verdict, as of a Nagios plugin: 0 ok, 1
// warn, 2 fail, 3 unknown.
func (s Severity) ExitStatus() int { return [...]int{OK: 0, Skip: 0, Warn: 1, Unknown: 3, Fail: 2}[s] }

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
	return fmt.Errorf("severity %q: want one of %s", name, strings.Join(severityNames[:], ", "))
}

// Remedy is the repair for a finding.
type Remedy string

// The remedies; the list is closed. Data files write NoRemedy as "none".
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

// remedies holds each remedy's text in a drain reason, and its rank: of several failures, the
// reason names the remedy with the highest rank.
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

// Remedies returns the names of the remedies, sorted.
func Remedies() (names []string) {
	for r := range remedies {
		if r != NoRemedy {
			names = append(names, string(r))
		}
	}
	slices.Sort(names)
	return names
}

// IsRemedy reports whether a text is the name of a remedy.
func IsRemedy(name string) bool { return name != "" && remedies[Remedy(name)].rank > 0 }

// The advice on a reset. nvidia-smi resets no GPU that another program has open, monitoring included, and all GPUs without
// -i. The fabric manager takes NVLink with it when it stops, and a reset of Ampere GPUs needs it.
const (
	ResetAdvice    = "With no job on the node: systemctl stop nvidia-dcgm nvidia-dcgm-exporter nvidia-persistenced (not the fabric manager), nvidia-smi --gpu-reset -i ADDRESS, then start them again. fuser -v /dev/nvidia* shows what else uses the GPU. If the reset fails, reboot."
	ResetAllAdvice = "When all jobs have ended, reboot the node, or reset all GPUs and the NVSwitches of the node: systemctl stop nvidia-dcgm nvidia-dcgm-exporter nvidia-persistenced (not the fabric manager), nvidia-smi --gpu-reset without -i, then start them again. Then Fabric, State in nvidia-smi -q must be Completed."
)

// ReseatLimits follows advice to reseat a GPU: only a PCIe card can be reseated.
const ReseatLimits = " For an SXM board or an NVL72 tray contact the vendor (nhc-gpu rma GPU)."

// PastDir is the directory of what nhc-gpu knows of a node, as advice names it.
const PastDir = "/var/lib/nhc-gpu/NODE"

// Words returns the remedy as an imperative, "" for none: "reset the GPU".
func (r Remedy) Words() string { return remedies[r].words }

// Rank returns the effort of the remedy: 1 if the node can stay in service, more for a reset, a
// reboot, a power cycle and the replacement of a part.
func (r Remedy) Rank() int { return remedies[r].rank }

// Device identifies the device of a finding. Empty fields are unknown.
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

// Finding is one result of a check. Policies, alerts and tests must use Code, never the
// text.
type Finding struct {
	Code     string   `json:"code"` // stable: "fs.mount.missing"
	Severity Severity `json:"severity"`
	Device   Device   `json:"device,omitzero"`
	Message  string   `json:"message"` // one complete line: the text that LBNL prints after "Health check failed:  "
	Want     string   `json:"want,omitempty"`
	Got      string   `json:"got,omitempty"`
	Remedy   Remedy   `json:"remedy,omitempty"`
	Do       string   `json:"do,omitempty"`     // advice on this finding, if that on its code does not fit; see [Finding.Advice]
	Status   int      `json:"status,omitempty"` // exit status of LBNL's die; 0 means 1
	Place    *Place   `json:"place,omitempty"`  // location of a bad port, and its transceiver; nil: unknown
	Syslog   bool     `json:"syslog,omitempty"` // a warning that goes to syslog instead of the log
	Loud     bool     `json:"loud,omitempty"`   // a warning that goes to syslog as well

	// Whole is set if the device as a whole is in this state. Other findings about it in the
	// same run are consequences and are only counted.
	Whole bool `json:"whole,omitempty"`

	// Drill is set if the finding belongs to a rehearsal: the fault is not there. No remedy may be
	// carried out for it, and any real failure takes precedence.
	Drill bool `json:"drill,omitempty"`

	// Would is the action that the policy would have taken, and Held why it did not.
	Would string `json:"would,omitempty"`
	Held  string `json:"held,omitempty"`

	// Jobs are the jobs that were running when the fault began, set when the results of a run are judged. A check
	// sets the job that its finding is about.
	Jobs string `json:"jobs,omitempty"`

	// Check is the name of the check, set with the results of a run. Without one, the message is the whole reason.
	Check string `json:"-"`

	Silenced *Silenced `json:"-"` // a warning that a person has made of a failure; nil: none
}

// DrillMark begins the text of each finding of a rehearsal, and the reason of its drain.
const DrillMark = "[drill] "

// Of reports whether two devices are the same, as far as both are known.
func (d Device) Of(other Device) bool {
	same := func(a, b string) bool { return a != "" && a == b }
	return d.Kind == other.Kind && (d == other || same(d.UUID, other.UUID) || same(d.PCI, other.PCI) || d.PCI == "" && other.PCI == "" && same(d.Name, other.Name))
}

// hardware are the kinds of devices whose names contain no user, process or file.
var hardware = []string{"gpu", "port", "ports", "hca", "hcas", "netdev", "nvswitch", "pci", "bridge", "nvme", "numa", "dimm"}

// IsHardware reports whether users cannot choose the name of the device.
func (d Device) IsHardware() bool { return slices.Contains(hardware, d.Kind) }

// ArrayCode is the code of a finding that only carries data: Device.Name is the name of a
// shell array, Got its new items, one a line. Its severity is [OK].
const ArrayCode = "shell.array"

// Hung describes a step that the worker never answered.
type Hung struct {
	PID   int
	State string // state of the process in /proc/PID/stat: "D"
	Wchan string // the kernel function that it sleeps in, "" if unknown
	Doing string // the call that the check announced with Env.At
	For   time.Duration
	Stuck bool // it survived SIGKILL
	Moved bool // it made new calls in the second half of that time: slow, not stuck
	Cut   bool // the end of the run ended it before its own deadline
	Short bool // of that it had less than a second, and less than half of its own time
}

// Unsent reports that the run had ended before the check began, so that nothing hangs.
func (h *Hung) Unsent() bool { return h.Cut && h.For == 0 && !h.Stuck }

// Result is the result of one step.
type Result struct {
	Findings []Finding
	Fact     string // see [Env.Fact]
	Took     time.Duration
	Hung     *Hung
}

// Worst returns the highest severity among the findings, OK if there are none.
func Worst(findings []Finding) Severity {
	worst := OK
	for _, f := range findings {
		worst = max(worst, f.Severity)
	}
	return worst
}

// Report sets the device and the message of f. If f has neither Want nor Got, the text becomes Got.
func (f Finding) Report(check string, d Device, format string, args ...any) Finding {
	f.Device = d
	text := oneLine(fmt.Sprintf(format, args...))
	f = f.Describe(check, "%s", text)
	if f.Want == "" && f.Got == "" {
		f.Got = text
	}
	return f
}

// Describe sets the message of f: check, device, text, and want and got if f has them.
func (f Finding) Describe(check, format string, args ...any) Finding {
	return f.Phrase(check, "%s%s%s%s", Before("", f.Device.String(), ": "), fmt.Sprintf(format, args...), Before(", want ", f.Want, ""), Before(", got ", f.Got, ""))
}

// Phrase sets the message of f to the check and the text, on one line. Use it if the text already
// contains device, want and got. Texts of LBNL NHC's checks keep their line breaks.
func (f Finding) Phrase(check, format string, args ...any) Finding {
	text := fmt.Sprintf(format, args...)
	if !OfLBNL(check) {
		text = oneLine(text)
	}
	f.Message = check + ":  " + text
	return f
}

// maxShort bounds a text that a user can choose, bytes.
const maxShort = 1 << 10

// Short cuts a text that a user can choose, such as the command of a process. Otherwise a few processes
// with long names could make the answer of a worker too large, and hide a failure.
func Short(text string) string {
	if len(text) <= maxShort {
		return text
	}
	end := maxShort
	for end > maxShort-utf8.UTFMax && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "..."
}

// Text returns the message without the name of the check.
func (f Finding) Text(check string) string { return strings.TrimPrefix(f.Message, check+":  ") }

// Advice returns the advice on the finding, "" if there is none.
func (f Finding) Advice() string { return cmp.Or(f.Do, WhatToDo(f.Code)) }

// Unreadable returns the finding of a check that could not read its input.
func Unreadable(err error) []Finding {
	return []Finding{{Code: "probe.unreadable", Severity: Unknown, Message: err.Error()}}
}

// WrongValue returns the failure for an argument that is not a number.
func WrongValue(check, what, word, want string) Finding {
	return Finding{Code: "config.value", Severity: Fail, Want: want, Got: word, Remedy: FixConfig}.Phrase(check, "Invalid %s \"%s\"; want %s.", what, word, want)
}

// BadWord returns the finding for an argument that the check cannot interpret. The check then judges nothing.
func BadWord(check, what, got, want string) Finding {
	return Finding{Code: "config.value", Severity: Unknown, Want: want, Got: got, Remedy: FixConfig}.Phrase(check, "%s %q, want %s", what, got, want)
}

// GPUDevice returns the device of a GPU for a finding.
func GPUDevice(g *nvml.GPU) Device {
	return Device{Kind: "gpu", Name: GPUName(g), PCI: g.PCI, Serial: g.Serial.Value, UUID: g.UUID.Value}
}

// GPUName returns the name of a GPU by its NVML index: gpu3.
func GPUName(g *nvml.GPU) string { return fmt.Sprintf("gpu%d", g.Index) }

// Place is the location of a bad port, and its transceiver.
type Place struct {
	Slot        string             `json:"slot,omitempty"`        // PCI slot, as printed on the machine
	FarEnd      string             `json:"far_end,omitempty"`     // switch and port: leaf03 port 12
	NetDev      string             `json:"netdev,omitempty"`      // the network interface that was queried
	Transceiver *network.Module    `json:"transceiver,omitempty"` // nil: not plugged in, or no answer
	Devlink     []network.Reporter `json:"devlink,omitempty"`     // health reporters with at least one error
}

// text returns the place for a message, "" if nothing is known.
func (p *Place) text() string {
	var words []string
	if p.Slot != "" {
		words = append(words, "slot "+p.Slot)
	}
	if p.FarEnd != "" {
		words = append(words, "to "+p.FarEnd)
	}
	return strings.Join(words, ", ")
}

// Detail returns the data about the place that the message does not contain, "" if there is none.
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

// NVMeDevice returns the device of a disk for a finding.
func NVMeDevice(d *disk.NVMe) Device {
	return Device{Kind: "nvme", Name: d.Name, PCI: d.PCI, Serial: d.Serial}
}

// NVMeLive is the state of a controller that works normally.
const NVMeLive = "live"
