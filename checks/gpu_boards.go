package checks

import (
	"maps"

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
	Machine string           `json:"machine"` // as in [everSeen]
	Boards  map[string]board `json:"boards"`
}

const boardsName = "gpu-boards"

// nameBoards puts serial number and UUID to findings about GPUs that have none.
// That nothing can be kept is for the check to say.
func (e *Env) nameBoards(n *probe.NVML, findings []Finding) []Finding {
	var past keptBoards
	machine := e.Host.ProductUUID()
	if e.recall(boardsName, &past) != nil || past.Machine != machine {
		past = keptBoards{Machine: machine}
	}
	now := keptBoards{Machine: machine, Boards: map[string]board{}}
	maps.Copy(now.Boards, past.Boards)
	for i := range n.GPUs {
		if g := &n.GPUs[i]; g.PCI != "" && g.UUID.Known {
			now.Boards[g.PCI] = board{g.Serial.Value, g.UUID.Value}
		}
	}
	if !maps.Equal(now.Boards, past.Boards) {
		_ = e.remember(boardsName, now)
	}
	for i := range findings {
		if d := &findings[i].Device; d.Kind == "gpu" && d.Serial == "" && d.UUID == "" {
			d.Serial, d.UUID = now.Boards[d.PCI].Serial, now.Boards[d.PCI].UUID
		}
	}
	return findings
}
