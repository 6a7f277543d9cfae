package checks

import (
	"maps"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// byGres are so many GPUs in Slurm's Gres of the node.
func (s scenario) byGres(n int) scenario {
	s.slurm = &probe.SlurmGPUs{Count: n, Pos: "/etc/slurm/slurm.conf:12", NVIDIA: true}
	return s
}

// having is a node of so many healthy GPUs.
func having(n int, name string, words []string, want ...Finding) scenario {
	s := onGPUs(name, words, func(all *probe.NVML) { all.GPUs = all.GPUs[:n] }, want...)
	s.files = maps.Clone(fakenvml.Files(fakenvml.H100, n))
	return s
}

var _ = table("check_gpu_count", func(string) []scenario {
	count := func(code string, severity Severity, want, got, text string) Finding {
		f := Finding{Code: "gpu.count" + code, Severity: severity, Want: want, Got: got, Message: gpuCountName + ":  " + text}
		if code == ".slurm" {
			f.Remedy = FixConfig
		}
		return f
	}
	fewer := func(want, got string) Finding {
		return count("", Fail, want, got, "want "+want+", got "+got+": Slurm's Gres, /etc/slurm/slurm.conf:12, has as many")
	}
	const gone7 = gpuCountName + ":  want 8 GPUs, got 7: 0000:1b:00.0 was there before, is no longer on the PCI bus"
	past := `{"machine":"","pci":["` + strings.Join(addresses(8), `","`) + `"]}`
	gone := func(severity Severity) Finding {
		f := Finding{Code: "gpu.count.gone", Severity: severity, Want: "8 GPUs", Got: "7", Remedy: ReseatOrRMA, Device: Device{Kind: "gpu", PCI: fakenvml.Address(7)}}
		f.Message = strings.Replace(gone7, "0000:1b:00.0", fakenvml.Address(7), 1)
		return f
	}
	only8, small := hgx(), hgx()
	only8.GPUs, small.GPUs = []int{8}, []int{1, 2, 4, 8}
	none := scenario{name: "no GPU is left of those of Slurm", nvml: &probe.NVML{}, want: []Finding{fewer("8 GPUs", "0")}}
	others := scenario{name: "no GPU, and nobody knows whose Slurm's are", nvml: &probe.NVML{}, want: []Finding{{Code: "gpu.none", Severity: Skip,
		Message: gpuCountName + ":  no NVIDIA GPU on this node"}}}.byGres(8)
	others.slurm.NVIDIA = false
	unloaded := scenario{name: "no GPU and no driver, though Slurm has some", nvmlErr: &probe.NVMLError{Call: "nvmlInit", Code: 9}, want: []Finding{{
		Code: "gpu.nvml", Severity: Fail, Want: "8 GPUs", Got: "0", Remedy: RebootNode,
		Message: gpuCountName + ":  want 8 GPUs, got 0: 0 on the PCI bus, and NVML cannot be asked: nvmlInit: the driver is not loaded (NVML error 9)"}}}.byGres(8)
	mig := having(4, "Slurm counts MIG instances", nil).byGres(8)
	mig.nvml.GPUs[0].Modes.MIG = probe.Known(true)
	passed := having(8, "GPUs are given to virtual machines", nil).byGres(9)
	passed.files["sys/bus/pci/devices/0000:ff:00.0/vendor"], passed.files["sys/bus/pci/devices/0000:ff:00.0/class"] = "0x10de\n", "0x030200\n"
	passed.links = map[string]string{"sys/bus/pci/devices/0000:ff:00.0/driver": "../../../bus/pci/drivers/vfio-pci"}
	dead := Finding{Code: "gpu.count.nvml", Severity: Warn, Remedy: RebootNode, Want: "7 GPUs", Got: "7", Device: Device{Kind: "gpu", PCI: fakenvml.Address(3)}}
	dead.Message = gpuCountName + ":  want 7 GPUs, got 7: " + fakenvml.Address(3) + " is on the PCI bus, in the driver, not in NVML"
	drop3 := func(n *probe.NVML) { n.GPUs = append(n.GPUs[:3], n.GPUs[4:]...) }
	notSlurms := dead
	notSlurms.Want, notSlurms.Message = "8 GPUs", strings.Replace(dead.Message, "want 7", "want 8", 1)
	stillFails := dead
	stillFails.Severity, stillFails.Want = Fail, "8 GPUs"
	stillFails.Message = strings.Replace(dead.Message, "want 7", "want 8", 1)
	two := func(s scenario) scenario { // a display card beside them
		s.files["sys/bus/pci/devices/0000:"+strings.TrimPrefix(fakenvml.Address(0), "0000:")+"/device"] = "0x1fb0\n"
		return s
	}
	idle := having(8, "a display card without a driver, and as many others as Slurm has", nil, notSlurms).byGres(7).lacking("proc/driver/nvidia/gpus/" + fakenvml.Address(3) + "/information")
	drop3(idle.nvml)
	idle.files["sys/bus/pci/devices/"+fakenvml.Address(3)+"/device"] = "0x1fb0\n"
	idle.want[0].Message = strings.Replace(idle.want[0].Message, "in the driver", "not in the driver", 1)
	unbelievable := onGPUs("a dead one, and Slurm has more than any such node", nil, drop3, stillFails).byGres(16).on(only8)
	down := having(8, "no driver, and Slurm has more than any such node", nil, Finding{Code: "gpu.nvml", Severity: Fail, Want: "8 GPUs", Got: "0", Remedy: RebootNode,
		Message: gpuCountName + ":  want 8 GPUs, got 0: 8 on the PCI bus, and NVML cannot be asked: nvmlInit: the driver is not loaded (NVML error 9)"}).byGres(16).on(only8)
	down.nvml, down.nvmlErr = nil, &probe.NVMLError{Call: "nvmlInit", Code: 9}
	excluded := onGPUs("one that Slurm has is excluded from the driver", nil, drop3, fewer("8 GPUs", "7")).byGres(8).
		holding("proc/driver/nvidia/gpus/"+fakenvml.Address(3)+"/information", "Device Minor: 3\nGPU Excluded:\t Yes\n")
	excluded.want[0].Message += "; " + fakenvml.Address(3) + " is excluded from the driver"
	left := having(7, "Slurm has as many as are left", nil, gone(Warn)).byGres(7).holding("past/gpu-count.json", past)
	left.leaves = map[string]string{"past/gpu-count.json": `{"machine":"","pci":["` + strings.Join(addresses(7), `","`) + `"]}`}
	return []scenario{
		having(8, "as Slurm has", nil).byGres(8),
		having(8, "as nhc.conf has, whatever Slurm has", of("8")).byGres(4),
		having(7, "fewer than Slurm has", nil, fewer("8 GPUs", "7")).byGres(8),
		having(4, "half a board, and Slurm has a whole one", nil, fewer("8 GPUs", "4")).byGres(8).on(hgx()),
		having(4, "half a board, as Slurm has", nil).byGres(4).on(hgx()),
		having(2, "one of the platform's numbers, but not Slurm's", nil, fewer("4 GPUs", "2")).byGres(4).on(small),
		having(6, "fewer than Slurm has, which has fewer than the platform", nil, fewer("7 GPUs", "6")).byGres(7).on(only8),
		having(7, "fewer than the platform has, as Slurm knows", nil, count(".slurm", Warn, "8 GPUs", "7",
			"want 8 GPUs, got 7: no HGX H100 has 7; Slurm's Gres, /etc/slurm/slurm.conf:12, has no more")).byGres(7).on(only8),
		having(8, "Slurm has fewer than there are", nil, count(".slurm", Warn, "8 GPUs", "7",
			"Slurm's Gres, /etc/slurm/slurm.conf:12, has 7 of 8 GPUs: jobs do not get the rest")).byGres(7),
		having(8, "Slurm has more than any such node", nil, count(".slurm", Warn, "at most 8 GPUs", "16",
			"Slurm's Gres, /etc/slurm/slurm.conf:12, has 16 GPUs, no HGX H100 has more than 8")).byGres(16).on(only8),
		idle, unbelievable, down, excluded,
		two(having(8, "a display card that Slurm does not have", nil).byGres(7)),
		two(having(7, "one gone, beside a display card", nil, gone(Fail)).byGres(6).holding("past/gpu-count.json", past)),
		left,
		onGPUs("a dead one that Slurm does not have", nil, drop3, notSlurms).byGres(7),
		onGPUs("a dead one that nhc.conf does not count", of("7"), drop3, dead),
		onGPUs("a dead one that Slurm has", nil, drop3, stillFails).byGres(8),
		notNow("one of Slurm's is being reset", nil).byGres(8),
		none.byGres(8), others, unloaded, mig, passed,
	}
})

func addresses(n int) (list []string) {
	for i := range n {
		list = append(list, fakenvml.Address(i))
	}
	return list
}
