package fabric

import (
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// HCAModel is what is known of a kind of HCA, by its PCI ids and its board id; 0
// is what nobody knows.
type HCAModel struct {
	Name        string   `toml:"name"`
	Devices     []string `toml:"devices"`  // "15b3:1021"
	Virtual     bool     `toml:"virtual"`  // a virtual function: its rate and link are those of another device
	Module      string   `toml:"module"`   // of the kernel, that makes it an RDMA device
	PCIeGen     int      `toml:"pcie_gen"` // at most, as the width: the slot may have less
	PCIeWidth   int      `toml:"pcie_width"`
	Rate        int      `toml:"rate"`         // highest of a port, of all its planes together, Gb/s; many are set to less
	Ports       int      `toml:"ports"`        // that it shows where its planes are ports
	DataPorts   []int    `toml:"data_ports"`   // those of them that carry data, in order
	ReadRequest int      `toml:"read_request"` // MaxReadReq that is recommended, bytes
	DPU         bool     `toml:"dpu"`
	Ethernet    bool     `toml:"ethernet"` // has no InfiniBand
	Source      string   `toml:"source"`

	Board string `toml:"-"` // the board id, if the board is known
}

// hcaBoard are boards that differ from what their device can do.
type hcaBoard struct {
	IDs     []string `toml:"ids"`
	HCA     string   `toml:"hca"` // name of the model
	Rate    int      `toml:"rate"`
	PCIeGen int      `toml:"pcie_gen"`
	Source  string   `toml:"source"`
}

// hcaFile is hca.toml. The program has its rows as they are in hca_rows.go, which is
// made of it: parsing would cost more than asking a node's adapters.
type hcaFile struct {
	Sources map[string]string `toml:"sources"`
	HCAs    []HCAModel        `toml:"hca"`
	Boards  []hcaBoard        `toml:"board"`
}

// ModelOf is what is known of an HCA, nil if nothing is: by its PCI vendor and
// device, as sysfs has them ("0x15b3") or without 0x, and by its board id, as
// sysfs has it in board_id, which may be "". A board that is known of another
// device is ignored.
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

// Carries says whether a port carries data, on a device that shows so many. One
// that shows fewer ports than the model has with planes shows none of these, and
// all its ports carry data.
func (m *HCAModel) Carries(port, ports int) bool {
	return len(m.DataPorts) == 0 || ports != m.Ports || slices.Contains(m.DataPorts, port)
}
