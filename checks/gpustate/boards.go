package gpustate

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// A lost GPU no longer reports its serial number, but the vendor asks for it: the boards of all
// addresses are stored.

// board identifies a GPU outside of its node.
type board struct {
	Serial string `json:"serial,omitempty"`
	UUID   string `json:"uuid,omitempty"`
	Boot   string `json:"boot,omitempty"` // the last boot in which the GPU reported its UUID, if it is known
}

// keptBoards are the boards of a machine, by PCI address.
type keptBoards struct {
	Machine string           `json:"machine"`        // the DMI UUID, as in seenGPUs of package gpu
	Boot    string           `json:"boot,omitempty"` // last boot with a running driver
	Boards  map[string]board `json:"boards"`
}

const boardsName = "gpu-boards"

// recallBoards reads the stored boards of this machine, once.
func recallBoards(env *checks.Env) *keptBoards {
	past := probe.Kept[keptBoards](env.Host, boardsName)
	if past.Boards != nil {
		return past
	}
	machine := nvidia.ProductUUID(env.Host)
	if env.Recall(boardsName, past) != nil || past.Machine != machine || past.Boards == nil {
		*past = keptBoards{Machine: machine, Boards: map[string]board{}}
	}
	return past
}

// keepBoards stores the boards of the GPUs, once per run. A lost GPU reports less than before: only a
// new UUID means a new board. Errors are ignored, since the checks report that they cannot store state.
func keepBoards(env *checks.Env, n *nvml.Snapshot) {
	kept := probe.Kept[bool](env.Host, "boards are kept")
	if *kept {
		return
	}
	*kept = true
	past := recallBoards(env)
	now := keptBoards{Machine: past.Machine, Boards: maps.Clone(past.Boards)}
	now.Boot, _ = probe.BootID(env.Host) // without it the boot is unknown
	for i := range n.GPUs {
		g := &n.GPUs[i]
		if g.PCI == "" || !g.UUID.Known {
			continue
		}
		b := board{g.Serial.Value, g.UUID.Value, now.Boot}
		if was := now.Boards[g.PCI]; b.Serial == "" && was.UUID == b.UUID {
			b.Serial = was.Serial
		}
		now.Boards[g.PCI] = b
	}
	if now.Boot != past.Boot || !maps.Equal(now.Boards, past.Boards) {
		_ = env.Remember(boardsName, now)
		*past = now
	}
}

// Board adds the stored serial number and UUID of a GPU.
func Board(env *checks.Env, d checks.Device) checks.Device { return fromBoards(env, d) }

// fromBoards adds the stored serial number and UUID of a GPU.
func fromBoards(env *checks.Env, d checks.Device) checks.Device {
	if d.Kind != "gpu" || d.Serial != "" {
		return d
	}
	if b := recallBoards(env).Boards[d.PCI]; d.UUID == "" || d.UUID == b.UUID {
		d.Serial, d.UUID = b.Serial, cmp.Or(d.UUID, b.UUID)
	}
	return d
}

// Boards returns the GPUs that this machine has, or had, in the order of their addresses. Those of before have not
// reported themselves in this boot: the slots can have other boards now.
func Boards(env *checks.Env) (list, before []checks.Device) {
	past := recallBoards(env)
	boot, _ := probe.BootID(env.Host)
	for _, pci := range slices.Sorted(maps.Keys(past.Boards)) {
		b := past.Boards[pci]
		d := checks.Device{Kind: "gpu", PCI: pci, Serial: b.Serial, UUID: b.UUID}
		if b.Boot != "" && boot != "" && b.Boot != boot {
			before = append(before, d)
		} else {
			list = append(list, d)
		}
	}
	return list, before
}

// nameBoards adds serial numbers and UUIDs to findings about GPUs.
func nameBoards(env *checks.Env, findings []checks.Finding) []checks.Finding {
	for i := range findings {
		f := &findings[i]
		if f.Device.Kind != "gpu" || f.Device.Serial != "" || f.Whole {
			continue
		}
		was := f.Device
		if f.Device = fromBoards(env, was); was.UUID == "" && f.Device != was && strings.HasPrefix(f.Code, "gpu.count.") {
			f.Message += BoardText(f.Device)
		}
	}
	return findings
}

// BoardText returns the serial number and the UUID of a GPU for a message.
func BoardText(d checks.Device) string {
	return checks.Before(", serial ", d.Serial, "") + checks.Before(", ", d.UUID, "")
}
