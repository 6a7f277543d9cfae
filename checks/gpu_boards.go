package checks

import (
	"cmp"
	"maps"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// A GPU that is gone cannot say any more which board it is, and who has sold it
// will ask: what each address has had is kept.

// board is how a GPU is known outside of its node.
type board struct {
	Serial string `json:"serial,omitempty"`
	UUID   string `json:"uuid,omitempty"`
}

// keptBoards are the boards of a machine, by PCI address.
type keptBoards struct {
	Machine string           `json:"machine"`        // as in [everSeen]
	Boot    string           `json:"boot,omitempty"` // in which the driver was last seen
	Boards  map[string]board `json:"boards"`
}

const boardsName = "gpu-boards"

// boards reads what is known of the boards of this machine, once.
func (e *Env) boards() *keptBoards {
	past := probe.Kept[keptBoards](e.Host, boardsName)
	if past.Boards != nil {
		return past
	}
	machine := e.Host.ProductUUID()
	if e.recall(boardsName, past) != nil || past.Machine != machine || past.Boards == nil {
		*past = keptBoards{Machine: machine, Boards: map[string]board{}}
	}
	return past
}

// keepBoards keeps which boards the GPUs are, once a run. A GPU that is lost tells less
// than before: only another UUID is another board. That nothing can be kept is for the
// checks to say.
func (e *Env) keepBoards(n *probe.NVML) {
	kept := probe.Kept[bool](e.Host, "boards are kept")
	if *kept {
		return
	}
	*kept = true
	past := e.boards()
	now := keptBoards{Machine: past.Machine, Boards: maps.Clone(past.Boards)}
	now.Boot, _ = e.Host.BootID() // without it no boot is known
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if g.PCI == "" || !g.UUID.Known {
			continue
		}
		b := board{g.Serial.Value, g.UUID.Value}
		if was := now.Boards[g.PCI]; b.Serial == "" && was.UUID == b.UUID {
			b.Serial = was.Serial
		}
		now.Boards[g.PCI] = b
	}
	if now.Boot != past.Boot || !maps.Equal(now.Boards, past.Boards) {
		_ = e.remember(boardsName, now)
		*past = now
	}
}

// fromBoards completes a GPU that does not tell who it is.
func (e *Env) fromBoards(d Device) Device {
	if d.Kind != "gpu" || d.Serial != "" {
		return d
	}
	if b := e.boards().Boards[d.PCI]; d.UUID == "" || d.UUID == b.UUID {
		d.Serial, d.UUID = b.Serial, cmp.Or(d.UUID, b.UUID)
	}
	return d
}

// nameBoards puts serial number and UUID to findings about GPUs that have none.
func (e *Env) nameBoards(findings []Finding) []Finding {
	for i := range findings {
		f := &findings[i]
		if f.Device.Kind != "gpu" || f.Device.Serial != "" || f.Whole {
			continue
		}
		was := f.Device
		if f.Device = e.fromBoards(was); was.UUID == "" && f.Device != was && strings.HasPrefix(f.Code, "gpu.count.") {
			f.Message += boardText(f.Device)
		}
	}
	return findings
}

// boardText names the board of a GPU in a message, for the person who replaces it.
func boardText(d Device) string {
	return before(", serial ", d.Serial, "") + before(", ", d.UUID, "")
}
