package fabric

import (
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// HCAModel describes a model of adapter, by its PCI ids and its board id; 0 means unknown.
type HCAModel struct {
	Name        string   `toml:"name"`
	Devices     []string `toml:"devices"`  // "15b3:1021"
	Virtual     bool     `toml:"virtual"`  // a virtual function: its rate and link are those of the physical function
	Module      string   `toml:"module"`   // kernel module that makes it an RDMA device
	PCIeGen     int      `toml:"pcie_gen"` // highest, like the width: the slot can have less
	PCIeWidth   int      `toml:"pcie_width"`
	Rate        int      `toml:"rate"`         // highest of a port, of all its planes together, Gb/s; many are configured for less
	Ports       int      `toml:"ports"`        // number of ports if its planes are ports
	DataPorts   []int    `toml:"data_ports"`   // the ports of these that carry data, in order
	ReadRequest int      `toml:"read_request"` // recommended MaxReadReq, bytes
	DPU         bool     `toml:"dpu"`
	Ethernet    bool     `toml:"ethernet"` // has no InfiniBand
	Source      string   `toml:"source"`

	Board string `toml:"-"` // board id, if the board is known
}

// hcaBoard is a group of boards that differ from the abilities of their device.
type hcaBoard struct {
	IDs     []string `toml:"ids"`
	HCA     string   `toml:"hca"` // name of the model
	Rate    int      `toml:"rate"`
	PCIeGen int      `toml:"pcie_gen"`
	Source  string   `toml:"source"`
}

// hcaFile is the content of hca.toml. The program contains its rows as Go code, hca_rows.go,
// generated from it: parsing would cost more than reading a node's adapters.
type hcaFile struct {
	Sources map[string]string `toml:"sources"`
	HCAs    []HCAModel        `toml:"hca"`
	Boards  []hcaBoard        `toml:"board"`
}

// ModelOf returns the model of an adapter, nil if it is unknown: by its PCI vendor and device, as
// in sysfs ("0x15b3") or without 0x, and by its board id, as in sysfs's board_id, or "". A board
// that belongs to another device is ignored.
func ModelOf(vendor, device, board string) *HCAModel { return hcaRows.find(vendor, device, board) }

func (f *hcaFile) find(vendor, device, board string) *HCAModel {
	id := checks.BareID(vendor) + ":" + checks.BareID(device)
	at := slices.IndexFunc(f.HCAs, func(m HCAModel) bool { return slices.Contains(m.Devices, id) })
	if at < 0 {
		return nil
	}
	m := f.HCAs[at]
	m.DataPorts = slices.Clone(m.DataPorts)
	board = strings.TrimSpace(board)
	of := slices.IndexFunc(f.Boards, func(b hcaBoard) bool { return b.HCA == m.Name && slices.Contains(b.IDs, board) })
	if of >= 0 {
		b := &f.Boards[of]
		m.Board, m.Source = board, b.Source
		if b.Rate > 0 {
			m.Rate = b.Rate
		}
		if b.PCIeGen > 0 {
			m.PCIeGen = b.PCIeGen
		}
	}
	return &m
}

// Carries reports whether a port carries data, on a device with this number of ports. A device
// with fewer ports than the model has with planes has no planes, and all its ports carry data.
func (m *HCAModel) Carries(port, ports int) bool {
	return len(m.DataPorts) == 0 || ports != m.Ports || slices.Contains(m.DataPorts, port)
}
