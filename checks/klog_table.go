package checks

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"
)

// klog.toml holds the messages of drivers about their devices, and what they mean.

//go:embed klog.toml
var klogTOML string

// MessageRow is one [[message]] of klog.toml, which explains the fields.
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

// messages are the rows of klog.toml, and the forms that they match.
type messages struct {
	Version string          `toml:"version"`
	Drivers []messageDriver `toml:"driver"`
	Rows    []MessageRow    `toml:"message"`
	Forms   []kernelForm
	RowOf   []*MessageRow // of each form
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
		d := m.driver(r.Driver)
		for _, form := range r.Forms {
			m.Forms = append(m.Forms, kernelForm{Subject: AboutDevice, Kind: saysMessage, Form: d.Start + form, Source: r.Source, Proof: d.Proof})
			m.RowOf = append(m.RowOf, r)
		}
	}
	return &m
})

func (m *messages) driver(name string) messageDriver {
	i := slices.IndexFunc(m.Drivers, func(d messageDriver) bool { return d.Name == name })
	if i < 0 {
		panic("checks: klog.toml: no driver " + name)
	}
	return m.Drivers[i]
}

// Row returns the row of a driver's code, nil if there is none.
func (m *messages) Row(driver, code string) *MessageRow {
	for i := range m.Rows {
		if r := &m.Rows[i]; r.Driver == driver && r.Code == code {
			return r
		}
	}
	return nil
}

// deviceDrivers are what the lines of klog.toml begin with. They keep a log without
// such a line from costing the reading of the table.
var deviceDrivers = []string{"mlx5_core ", "bnxt_en ", "ice ", "i40e ", "irdma ", "idpf ", "efa ", "hfi1 ", "nvme nvme"}

// OfDevice says whether a line begins as those of the drivers in klog.toml.
func OfDevice(text []byte) bool {
	return slices.ContainsFunc(deviceDrivers, func(start string) bool { return len(text) > len(start) && string(text[:len(start)]) == start })
}

// DoMessage is what to do about a finding of klog.toml.
func DoMessage(code string) string {
	if !strings.HasPrefix(code, "nic.") && !strings.HasPrefix(code, "nvme.log.") {
		return ""
	}
	for i := range MessageTable().Rows {
		if r := &MessageTable().Rows[i]; r.Code == code {
			return r.Do
		}
	}
	return ""
}

// Does is what check_kernel_log does with a message, in a few words.
func (r *MessageRow) Does() (text string) {
	switch {
	case r.Begins:
		return "ends what was logged about the device before"
	case len(r.Clears) > 0:
		return "ends such faults of the device"
	case r.Expects:
		return "nothing, nor for what follows within five minutes"
	case r.Class == XidIgnore:
		return "nothing"
	case r.State == "link":
		return "fails while a port of the device is down, otherwise a warning"
	case r.State == "live":
		return "fails unless the disk is live, otherwise a warning"
	case r.Until == "boot":
		return "fails until the next boot"
	case r.Class == XidReboot:
		text = "fails until the driver starts the device anew, or a boot"
	case r.Peers:
		text = "a warning, unless every device says so"
	default:
		text = "a warning"
	}
	if r.Repeat != nil {
		text += fmt.Sprintf("; fails at %d within %d hours", r.Repeat.Events, r.Repeat.Hours)
	}
	return strings.ReplaceAll(text, " 1 hours", " an hour")
}

// Meaning is what a message means, with the meaning of its number.
func (r *MessageRow) Meaning(number int) string {
	if number > 0 && number < len(r.Numbers) {
		return fmt.Sprintf("%s (%s)", r.Means, r.Numbers[number])
	}
	return r.Means
}
