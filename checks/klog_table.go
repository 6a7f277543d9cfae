package checks

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"
)

// klog.toml holds the drivers' messages about their devices, those of the kernel about tasks and CPUs that hang, and how
// they are judged.

//go:embed klog.toml
var klogTOML string

// MessageRow is one [[message]] of klog.toml. The fields are explained there.
type MessageRow struct {
	Driver  string   `toml:"driver"`
	Code    string   `toml:"code"`
	Forms   []string `toml:"forms"`
	Lines   []string `toml:"lines"`
	Class   XidClass `toml:"class"`
	Until   string   `toml:"until"`
	Means   string   `toml:"means"`
	Numbers []string `toml:"numbers"`
	Remedy  Remedy   `toml:"remedy"`
	Do      string   `toml:"do"`
	State   string   `toml:"state"`
	Peers   bool     `toml:"peers"`
	Repeat  *Repeat  `toml:"repeat"`
	Begins  bool     `toml:"begins"`
	Clears  []string `toml:"clears"`
	Expects bool     `toml:"expects"`
	Final   bool     `toml:"final"`
	Source  string   `toml:"source"`
	Why     string   `toml:"why"`
}

// messageDriver is one [[driver]] of klog.toml.
type messageDriver struct {
	Name   string `toml:"name"`
	Start  string `toml:"start"`
	Source string `toml:"source"`
	Proof  string `toml:"proof"`
}

// messages holds the rows of klog.toml and their compiled forms.
type messages struct {
	Version string          `toml:"version"`
	Drivers []messageDriver `toml:"driver"`
	Rows    []MessageRow    `toml:"message"`
	Forms   []kernelForm
	RowOf   []*MessageRow // by index of the form
}

// MessageTable reads klog.toml.
var MessageTable = sync.OnceValue(func() *messages {
	var m messages
	if _, err := toml.Decode(klogTOML, &m); err != nil {
		panic(fmt.Sprintf("checks: klog.toml: %v", err))
	}
	for i := range m.Rows {
		r := &m.Rows[i]
		if r.Remedy == "none" {
			r.Remedy = NoRemedy
		}
		d := m.findDriver(r.Driver)
		for _, form := range r.Forms {
			m.Forms = append(m.Forms, kernelForm{Subject: AboutDevice, Kind: saysMessage, Form: d.Start + form, Source: r.Source, Proof: d.Proof})
			m.RowOf = append(m.RowOf, r)
		}
	}
	return &m
})

func (m *messages) findDriver(name string) messageDriver {
	i := slices.IndexFunc(m.Drivers, func(d messageDriver) bool { return d.Name == name })
	if i < 0 {
		panic("checks: klog.toml: no driver " + name)
	}
	return m.Drivers[i]
}

// Row returns the row with a driver and a code, nil if there is none.
func (m *messages) Row(driver, code string) *MessageRow {
	for i := range m.Rows {
		if r := &m.Rows[i]; r.Driver == driver && r.Code == code {
			return r
		}
	}
	return nil
}

// deviceDrivers are the beginnings of the lines in klog.toml. A log without such a line does
// not cause the table to be parsed.
var deviceDrivers = []string{"mlx5_core ", "bnxt_en ", "ice ", "i40e ", "irdma ", "idpf ", "efa ", "hfi1 ", "nvme nvme", "INFO: task ", "watchdog: ", "NMI watchdog: ", "rcu: INFO: "}

// OfDevice reports whether a line begins like those of the drivers in klog.toml.
func OfDevice(text []byte) bool {
	return slices.ContainsFunc(deviceDrivers, func(start string) bool { return len(text) > len(start) && string(text[:len(start)]) == start })
}

// DoMessage returns the advice on a code of klog.toml.
func DoMessage(code string) string {
	if !strings.HasPrefix(code, "nic.") && !strings.HasPrefix(code, "nvme.log.") && !strings.HasPrefix(code, "kernel.") {
		return ""
	}
	for i := range MessageTable().Rows {
		if r := &MessageTable().Rows[i]; r.Code == code {
			return r.Do
		}
	}
	return ""
}

// Does returns how check_kernel_log judges a message, in a few words.
func (r *MessageRow) Does() (text string) {
	switch {
	case r.Begins:
		return "ends all earlier faults of the device"
	case len(r.Clears) > 0:
		return "ends faults of this kind on the device"
	case r.Expects:
		return "no effect; also ignores the device's faults of the next five minutes"
	case r.Class == XidIgnore:
		return "no effect"
	case r.State == "link":
		return "fails while a port of the device is down, otherwise warns"
	case r.State == "live":
		return "fails unless the disk is live, otherwise warns"
	case r.Until == "boot":
		return "fails until the next reboot"
	case r.Class == XidReboot:
		text = "fails until the driver restarts the device, or a reboot"
	case r.Peers:
		text = "warns, unless every device reports it"
	default:
		text = "warns"
	}
	if r.Repeat != nil {
		text += fmt.Sprintf("; fails at %d within %d hours", r.Repeat.Events, r.Repeat.Hours)
	}
	return strings.ReplaceAll(text, " 1 hours", " an hour")
}

// Meaning returns the meaning of a message, with the meaning of its number.
func (r *MessageRow) Meaning(number int) string {
	if number > 0 && number < len(r.Numbers) {
		return fmt.Sprintf("%s (%s)", r.Means, r.Numbers[number])
	}
	return r.Means
}
