package gpu

import (
	"maps"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/jobscan"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// byGres adds n GPUs in Slurm's Gres of the node.
func byGres(s checktest.Scenario, n int) checktest.Scenario {
	s.Slurm = &jobscan.SlurmGPUs{Count: n, Pos: "/etc/slurm/slurm.conf:12", NVIDIA: true}
	return s
}

// having returns a node with n healthy GPUs.
func having(n int, name string, words []string, want ...checks.Finding) checktest.Scenario {
	s := checktest.OnGPUs(name, words, func(all *nvml.Snapshot) { all.GPUs = all.GPUs[:n] }, want...)
	s.Files = maps.Clone(fakenvml.Files(fakenvml.H100, n))
	return s
}

var _ = checktest.Table("check_gpu_count", func(string) []checktest.Scenario {
	count := func(code string, severity checks.Severity, want, got, text string) checks.Finding {
		f := checks.Finding{Code: "gpu.count" + code, Severity: severity, Want: want, Got: got, Message: gpuCountName + ":  " + text}
		if code == ".slurm" {
			f.Remedy = checks.FixConfig
		}
		return f
	}
	fewer := func(want, got string) checks.Finding {
		return count("", checks.Fail, want, got, "want "+want+", got "+got+": Slurm's Gres (/etc/slurm/slurm.conf:12) has "+strings.Fields(want)[0])
	}
	const gone7 = gpuCountName + ":  want 8 GPUs, got 7: 0000:1b:00.0 was on the PCI bus before and is missing now"
	past := `{"machine":"","pci":["` + strings.Join(addresses(8), `","`) + `"]}`
	gone := func(severity checks.Severity) checks.Finding {
		f := checks.Finding{Code: "gpu.count.gone", Severity: severity, Want: "8 GPUs", Got: "7", Remedy: checks.PowerCycle, Device: checks.Device{Kind: "gpu", PCI: fakenvml.Address(7)}}
		f.Message = strings.Replace(gone7, "0000:1b:00.0", fakenvml.Address(7), 1)
		return f
	}
	only8, small := checktest.Hgx(), checktest.Hgx()
	only8.GPUs, small.GPUs = []int{8}, []int{1, 2, 4, 8}
	none := checktest.Scenario{Name: "all GPUs of Slurm's Gres are gone", NVML: &nvml.Snapshot{}, Want: []checks.Finding{fewer("8 GPUs", "0")}}
	others := byGres(checktest.Scenario{Name: "no GPU, and Slurm's Gres has GPUs of an unknown vendor", NVML: &nvml.Snapshot{}, Want: []checks.Finding{{Code: "gpu.none", Severity: checks.Skip,
		Message: gpuCountName + ":  no NVIDIA GPU on this node"}}}, 8)
	others.Slurm.NVIDIA = false
	unloaded := byGres(checktest.Scenario{Name: "no GPU and no driver, but Slurm's Gres has GPUs", NVMLErr: &nvml.Error{Call: "nvmlInit", Code: 9}, Want: []checks.Finding{{
		Code: "gpu.nvml", Severity: checks.Fail, Want: "8 GPUs", Got: "0", Remedy: checks.RebootNode,
		Message: gpuCountName + ":  want 8 GPUs, got 0: 0 on the PCI bus, and NVML cannot be asked: nvmlInit: the driver is not loaded (NVML error 9)"}}}, 8)
	mig := byGres(having(4, "Slurm counts MIG instances", nil), 8)
	mig.NVML.GPUs[0].Modes.MIG = nvml.Known(true)
	passed := byGres(having(8, "GPUs passed to virtual machines", nil), 9)
	passed.Files["sys/bus/pci/devices/0000:ff:00.0/vendor"], passed.Files["sys/bus/pci/devices/0000:ff:00.0/class"] = "0x10de\n", "0x030200\n"
	passed.Links = map[string]string{"sys/bus/pci/devices/0000:ff:00.0/driver": "../../../bus/pci/drivers/vfio-pci"}
	dead := checks.Finding{Code: "gpu.count.nvml", Severity: checks.Warn, Remedy: checks.RebootNode, Want: "7 GPUs", Got: "7", Device: checks.Device{Kind: "gpu", PCI: fakenvml.Address(3)}}
	const lost = " is on the PCI bus, in the driver, not in NVML"
	dead.Message = gpuCountName + ":  " + fakenvml.Address(3) + lost + ", beside the wanted 7 GPUs"
	drop3 := func(n *nvml.Snapshot) { n.GPUs = append(n.GPUs[:3], n.GPUs[4:]...) }
	notSlurms := dead
	notSlurms.Want, notSlurms.Message = "8 GPUs", gpuCountName+":  want 8 GPUs, got 7: "+fakenvml.Address(3)+lost
	stillFails := dead
	stillFails.Severity, stillFails.Want = checks.Fail, "8 GPUs"
	stillFails.Message = notSlurms.Message
	two := func(s checktest.Scenario) checktest.Scenario { // with a display card
		s.Files["sys/bus/pci/devices/0000:"+strings.TrimPrefix(fakenvml.Address(0), "0000:")+"/device"] = "0x1fb0\n"
		return s
	}
	idle := byGres(having(8, "a display card without a driver, and the number of Slurm's Gres", nil, notSlurms), 7).Lacking("proc/driver/nvidia/gpus/" + fakenvml.Address(3) + "/information")
	drop3(idle.NVML)
	idle.Files["sys/bus/pci/devices/"+fakenvml.Address(3)+"/device"] = "0x1fb0\n"
	idle.Want[0].Message = strings.Replace(idle.Want[0].Message, "in the driver", "not in the driver", 1)
	unbelievable := byGres(checktest.OnGPUs("a dead one, and Slurm's Gres has more than any node of the platform", nil, drop3, stillFails), 16).On(only8)
	down := byGres(having(8, "no driver, and Slurm's Gres has more than any node of the platform", nil, checks.Finding{Code: "gpu.nvml", Severity: checks.Fail, Want: "8 GPUs", Got: "0", Remedy: checks.FixConfig,
		Message: gpuCountName + ":  want 8 GPUs, got 0: 8 on the PCI bus, and NVML cannot be asked: nvmlInit: the driver is not loaded (NVML error 9)"}), 16).On(only8)
	down.NVML, down.NVMLErr = nil, &nvml.Error{Call: "nvmlInit", Code: 9}
	excluded := byGres(checktest.OnGPUs("one in Slurm's Gres is excluded from the driver", nil, drop3, fewer("8 GPUs", "7")), 8).
		Holding("proc/driver/nvidia/gpus/"+fakenvml.Address(3)+"/information", "Device Minor: 3\nGPU Excluded:\t Yes\n")
	excluded.Want[0].Remedy = checks.FixConfig
	excluded.Want[0].Message += "; " + fakenvml.Address(3) + " is excluded from the driver"
	left := byGres(having(7, "Slurm's Gres has only the healthy ones", nil, gone(checks.Warn)), 7).Holding("past/gpu-count.json", past)
	left.Leaves = map[string]string{"past/gpu-count.json": `{"machine":"","pci":["` + strings.Join(addresses(7), `","`) + `"]}`}
	return []checktest.Scenario{
		byGres(having(8, "the number of Slurm's Gres", nil), 8),
		byGres(having(8, "the number of nhc.conf takes precedence over Slurm's", checktest.Of("8")), 4),
		byGres(having(7, "fewer than Slurm's Gres", nil, fewer("8 GPUs", "7")), 8),
		byGres(having(4, "half a board, and Slurm has a full board", nil, fewer("8 GPUs", "4")), 8).On(checktest.Hgx()),
		byGres(having(4, "half a board, as in Slurm's Gres", nil), 4).On(checktest.Hgx()),
		byGres(having(2, "one of the platform's numbers, but not Slurm's", nil, fewer("4 GPUs", "2")), 4).On(small),
		byGres(having(6, "fewer than Slurm's Gres, which has fewer than the platform", nil, fewer("7 GPUs", "6")), 7).On(only8),
		byGres(having(7, "fewer than the platform, as in Slurm's Gres", nil, count(".slurm", checks.Warn, "8 GPUs", "7",
			"want 8 GPUs, got 7: no HGX H100 has 7; Slurm's Gres (/etc/slurm/slurm.conf:12) has this number, too")), 7).On(only8),
		byGres(having(8, "Slurm's Gres has fewer than the node", nil, count(".slurm", checks.Warn, "8 GPUs", "7",
			"Slurm's Gres (/etc/slurm/slurm.conf:12) has only 7 of 8 GPUs: jobs cannot use the others")), 7),
		byGres(having(8, "Slurm's Gres has more than any node of the platform", nil, count(".slurm", checks.Warn, "at most 8 GPUs", "16",
			"Slurm's Gres (/etc/slurm/slurm.conf:12) has 16 GPUs, but no HGX H100 has more than 8")), 16).On(only8),
		idle, unbelievable, down, excluded,
		two(byGres(having(8, "a display card that is not in Slurm's Gres", nil), 7)),
		two(byGres(having(7, "one gone, and a display card", nil, gone(checks.Fail)), 6).Holding("past/gpu-count.json", past)),
		left,
		byGres(checktest.OnGPUs("a dead one that is not in Slurm's Gres", nil, drop3, notSlurms), 7),
		checktest.OnGPUs("a dead one that nhc.conf does not count", checktest.Of("7"), drop3, dead),
		byGres(checktest.OnGPUs("a dead one that is in Slurm's Gres", nil, drop3, stillFails), 8),
		byGres(notNow("one in Slurm's Gres is being reset", nil), 8),
		byGres(none, 8), others, unloaded, mig, passed,
	}
})

func addresses(n int) (list []string) {
	for i := range n {
		list = append(list, fakenvml.Address(i))
	}
	return list
}
