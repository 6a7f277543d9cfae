package gpu

import (
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/gpustate"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

var _ = checktest.Table("check_gpu_count", func(string) []checktest.Scenario {
	lost := func(name, kept string, d checks.Device) checktest.Scenario {
		board := gpustate.BoardText(d)
		d.Kind, d.PCI = "gpu", fakenvml.Address(3)
		return checktest.OnGPUs(name, checktest.Of("8"), func(n *nvml.Snapshot) { n.GPUs = append(n.GPUs[:3], n.GPUs[4:]...) }, checks.Finding{
			Code: "gpu.count.nvml", Severity: checks.Fail, Remedy: checks.RebootNode, Want: "8 GPUs", Got: "7", Device: d,
			Message: gpuCountName + ":  want 8 GPUs, got 7: 0000:13:00.0 is on the PCI bus, in the driver, not in NVML" + board,
		}).Holding("past/gpu-boards.json", kept)
	}
	board := boards(3)
	garbage := lost("one not in NVML, the state of boards is garbage", "{\x00", checks.Device{})
	garbage.Broken = true
	keeps := checktest.OnGPUs("the boards are stored", checktest.Of("8"), nil)
	keeps.Leaves = map[string]string{"past/gpu-boards.json": `{"machine":"","boards":` + boards(0, 1, 2, 3, 4, 5, 6, 7) + `}`}
	// A board that does not answer keeps the boot in which it last did: it can be another one now.
	seenIn := func(boot string) string {
		boot = `,"boot":"` + boot + `"}`
		return strings.TrimSuffix(strings.ReplaceAll(boards(0, 1, 2, 3, 4, 5, 6, 7), "}", boot), boot) + "}"
	}
	booted := lost("one not in NVML, after a boot", `{"machine":"","boot":"b1","boards":`+seenIn("b1")+`}`, checks.Device{Serial: fakenvml.Serial(3), UUID: fakenvml.UUID(3)}).
		Holding("proc/sys/kernel/random/boot_id", "b2\n")
	booted.Leaves = map[string]string{"past/gpu-boards.json": `{"machine":"","boot":"b2","boards":` + strings.Replace(seenIn("b2"), fakenvml.UUID(3)+`","boot":"b2"`, fakenvml.UUID(3)+`","boot":"b1"`, 1) + `}`}
	return []checktest.Scenario{
		booted,
		lost("one not in NVML, with a known board", `{"machine":"","boards":`+board+`}`, checks.Device{Serial: fakenvml.Serial(3), UUID: fakenvml.UUID(3)}),
		lost("one not in NVML, with another machine's boards", `{"machine":"U2","boards":`+board+`}`, checks.Device{}),
		garbage, keeps,
	}
})

// boards returns the stored serial numbers and UUIDs of some GPUs.
func boards(gpus ...int) string {
	var list []string
	for _, i := range gpus {
		list = append(list, fmt.Sprintf(`%q:{"serial":%q,"uuid":%q}`, fakenvml.Address(i), fakenvml.Serial(i), fakenvml.UUID(i)))
	}
	return "{" + strings.Join(list, ",") + "}"
}

var _ = checktest.Table("check_gpu_ecc", func(string) []checktest.Scenario {
	all := `{"machine":"","boards":` + boards(0, 1, 2, 3, 4, 5, 6, 7) + `}`
	// A GPU that is lost before NVML reports its serial number gets the stored one, if its UUID is the same.
	silent := func(name, kept, serial string) checktest.Scenario {
		want := checktest.Gpu3In(gpuECCName, checktest.ErrLost)
		want.Device.Serial = serial
		want.Message = strings.Replace(want.Message, ", serial "+fakenvml.Serial(3), checks.Before(", serial ", serial, ""), 1)
		s := checktest.OnGPUs(name, nil, checktest.Gpu3(func(g *nvml.GPU) {
			*g = nvml.GPU{Index: 3, Err: checktest.ErrLost, PCI: g.PCI, UUID: g.UUID}
		}), want).Holding("past/gpu-boards.json", kept)
		s.Leaves = map[string]string{"past/gpu-boards.json": strings.Replace(all, fakenvml.Serial(3), serial, 1)}
		if serial == "" {
			s.Leaves["past/gpu-boards.json"] = strings.Replace(s.Leaves["past/gpu-boards.json"], `"serial":"",`, "", 1)
		}
		return s
	}
	other := fmt.Sprintf(`{%q:{"serial":"1","uuid":"GPU-1"}}`, fakenvml.Address(3))
	return []checktest.Scenario{
		silent("a lost GPU with a known board", `{"machine":"","boards":`+boards(3)+`}`, fakenvml.Serial(3)),
		silent("a lost GPU that has replaced another board", `{"machine":"","boards":`+other+`}`, ""),
	}
})
