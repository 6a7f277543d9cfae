package checks

import (
	"slices"
	"time"
)

// Part describes a device as a vendor asks for it before a replacement: docs/rma.md. Empty fields are
// unknown.
type Part struct {
	Node       string    `json:"node"`
	Time       time.Time `json:"time"`
	Device     Device    `json:"device"`
	State      string    `json:"state"`                 // whether it answers
	SerialFrom string    `json:"serial_from,omitempty"` // who knows the serial number and the UUID
	Model      string    `json:"model,omitempty"`
	PartNumber string    `json:"part_number,omitempty"`
	Board      string    `json:"board,omitempty"` // an adapter's PSID
	Firmware   string    `json:"firmware,omitempty"`
	VBIOS      string    `json:"vbios,omitempty"`
	Inforom    string    `json:"inforom,omitempty"`
	Driver     string    `json:"driver,omitempty"`
	PCIID      string    `json:"pci_id,omitempty"` // vendor and device: 10de:2330
	System     System    `json:"system"`
	Location   Location  `json:"location"`

	Errors   []PartError `json:"errors"`
	Archives []string    `json:"archives"` // paths of evidence
	Add      []string    `json:"add"`      // what only a person can add
}

// PartAnswers is the state of a GPU that answers NVML.
const PartAnswers = "answers"

// System identifies the machine, as its DMI tables do.
type System struct {
	Vendor        string `json:"vendor,omitempty"`
	Product       string `json:"product,omitempty"`
	Serial        string `json:"serial,omitempty"`
	BIOS          string `json:"bios,omitempty"`
	Board         string `json:"board,omitempty"`
	BoardSerial   string `json:"board_serial,omitempty"`
	ChassisSerial string `json:"chassis_serial,omitempty"`
	AssetTag      string `json:"asset_tag,omitempty"`
}

// Location is the place of a device in the machine.
type Location struct {
	Slot    string   `json:"slot,omitempty"`    // as printed on the machine
	NUMA    int      `json:"numa"`              // -1: unknown
	Bridges []string `json:"bridges,omitempty"` // PCI addresses, from the root port down
	NVLinks []string `json:"nvlinks,omitempty"` // the far end of each group of links
}

// PartError is an error of the device, in all its runs or lines.
type PartError struct {
	Source  string    `json:"source"` // health check, kernel log
	Code    string    `json:"code"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
	Count   int       `json:"count"`   // changes of the node, or lines of the log
	Message string    `json:"message"` // the first one
}

// AddError adds an error, or counts it.
func (p *Part) AddError(e PartError) {
	i := slices.IndexFunc(p.Errors, func(old PartError) bool { return old.Source == e.Source && old.Code == e.Code })
	if i < 0 {
		p.Errors = append(p.Errors, e)
		return
	}
	old := &p.Errors[i]
	old.Count += e.Count
	if e.First.Before(old.First) {
		old.First, old.Message = e.First, e.Message
	}
	if e.Last.After(old.Last) {
		old.Last = e.Last
	}
}
