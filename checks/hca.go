package checks

import (
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"
)

//go:embed hca.toml
var hcaTOML string

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

type hcaFile struct {
	Sources map[string]string `toml:"sources"`
	HCAs    []HCAModel        `toml:"hca"`
	Boards  []hcaBoard        `toml:"board"`
}

// hcaTable is read when it is first asked for: most runs have no HCA to ask about.
var hcaTable = sync.OnceValue(func() *hcaFile {
	f, err := parseHCAs(hcaTOML)
	if err != nil {
		panic(fmt.Sprintf("checks: hca.toml: %v", err))
	}
	return f
})

// parseHCAs reads hca.toml, and refuses what would answer one question in two ways.
func parseHCAs(text string) (*hcaFile, error) {
	var f hcaFile
	meta, err := toml.Decode(text, &f)
	if err != nil {
		return nil, err
	}
	if keys := meta.Undecoded(); len(keys) > 0 {
		return nil, fmt.Errorf("key %s: unknown", keys[0])
	}
	seen := map[string]bool{}
	once := func(what, id string) error {
		if id == "" || seen[what+id] {
			return fmt.Errorf("%s %q: want it once", what, id)
		}
		seen[what+id] = true
		return nil
	}
	cite := func(source *string) error {
		full, ok := f.Sources[*source]
		*source = full
		if !ok {
			return errors.New("a row without a source")
		}
		return nil
	}
	for i := range f.HCAs {
		m := &f.HCAs[i]
		err := errors.Join(once("hca", m.Name), cite(&m.Source))
		for _, id := range m.Devices {
			err = errors.Join(err, once("device", id))
		}
		if err != nil {
			return nil, err
		}
	}
	for i := range f.Boards {
		b := &f.Boards[i]
		err := cite(&b.Source)
		for _, id := range b.IDs {
			err = errors.Join(err, once("board", id))
		}
		if !seen["hca"+b.HCA] {
			err = errors.Join(err, fmt.Errorf("hca %q: unknown", b.HCA))
		}
		if err != nil {
			return nil, err
		}
	}
	return &f, nil
}

// hcaModel is what is known of an HCA, nil if nothing is: by its PCI vendor and
// device, as sysfs has them ("0x15b3") or without 0x, and by its board id, as
// sysfs has it in board_id, which may be "". A board that is known of another
// device is ignored.
func hcaModel(vendor, device, board string) *HCAModel { return hcaTable().find(vendor, device, board) }

func (f *hcaFile) find(vendor, device, board string) *HCAModel {
	id := bareID(vendor) + ":" + bareID(device)
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

// bareID is a PCI id as sysfs has it, without 0x.
func bareID(id string) string {
	return strings.TrimPrefix(strings.ToLower(strings.TrimSpace(id)), "0x")
}

// Carries says whether a port carries data, on a device that shows so many. One
// that shows fewer ports than the model has with planes shows none of these, and
// all its ports carry data.
func (m *HCAModel) Carries(port, ports int) bool {
	return len(m.DataPorts) == 0 || ports != m.Ports || slices.Contains(m.DataPorts, port)
}
