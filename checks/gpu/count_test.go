package gpu

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

func TestGPUCount(t *testing.T) { checktest.Run(t, "check_gpu_count") }

var _ = checktest.Table("check_gpu_count", func(name string) (list []checktest.Scenario) {
	// missing returns the finding of a missing GPU; without an index only its address is known.
	missing := func(code string, remedy checks.Remedy, index, want, got int, text string) checks.Finding {
		f := checks.Finding{Code: "gpu.count" + code, Severity: checks.Fail, Remedy: remedy, Want: checks.Plural(want, "GPU"), Got: fmt.Sprint(got)}
		f.Device = checks.Device{Kind: "gpu", PCI: fakenvml.Address(3)}
		if index >= 0 {
			f.Device = checks.Device{Kind: "gpu", Name: fmt.Sprintf("gpu%d", index), PCI: fakenvml.Address(index), Serial: fakenvml.Serial(index), UUID: fakenvml.UUID(index)}
		}
		f.Message = fmt.Sprintf("%s:  want %s, got %d: %s %s", name, f.Want, got, f.Device, text)
		if want == got {
			f.Message = fmt.Sprintf("%s:  %s %s, beside the wanted %s", name, f.Device, text, f.Want)
		}
		return f
	}
	pci := "sys/bus/pci/devices/" + fakenvml.Address(3) + "/"
	driver := "proc/driver/nvidia/gpus/" + fakenvml.Address(3) + "/information"
	drop3 := func(n *nvml.Snapshot) { n.GPUs = append(n.GPUs[:3], n.GPUs[4:]...) }
	drained3 := func(n *nvml.Snapshot) {
		drop3(n)
		n.Drained = []string{fakenvml.Address(3)}
	}
	drainedBeside := missing(".drained", checks.FixConfig, -1, 7, 7, "is on the PCI bus, in the driver, set aside with nvidia-smi drain")
	drainedBeside.Severity = checks.Warn
	drainedFour := missing(".drained", checks.FixConfig, -1, 8, 6, "is on the PCI bus, in the driver, set aside with nvidia-smi drain")
	drainedFour.Device.PCI = fakenvml.Address(4)
	drainedFour.Message = strings.ReplaceAll(drainedFour.Message, fakenvml.Address(3), fakenvml.Address(4))
	offBus := func(s checktest.Scenario) checktest.Scenario {
		for f := range s.Files {
			if strings.HasPrefix(f, pci) {
				delete(s.Files, f)
			}
		}
		return s
	}
	remembered := func(machine string) string {
		var all []string
		for i := range 8 {
			all = append(all, `"`+fakenvml.Address(i)+`"`)
		}
		return `{"machine":"` + machine + `","pci":[` + strings.Join(all, ",") + `]}`
	}
	noNVML := func(s checktest.Scenario, err error) checktest.Scenario {
		s.NVML, s.NVMLErr, s.Broken = nil, err, true
		return s
	}
	cannot := func(want string, onBus int, why string) checks.Finding {
		remedy := checks.RebootNode
		if onBus > 0 && strings.HasSuffix(why, "(NVML error 9)") {
			remedy = checks.FixConfig
		}
		return checks.Finding{Code: "gpu.nvml", Severity: checks.Fail, Want: want, Got: "0", Remedy: remedy,
			Message: fmt.Sprintf("%s:  want %s, got 0: %d on the PCI bus, and NVML cannot be asked: %s", name, want, onBus, why)}
	}
	none := fmt.Errorf("load libnvidia-ml.so.1: %w", probe.ErrNoLibrary)
	noneWanted := func(s checktest.Scenario, remedy checks.Remedy) checktest.Scenario {
		f := cannot("8 GPUs", 0, "load libnvidia-ml.so.1: not found")
		if f.Remedy = remedy; remedy == checks.FixConfig {
			f.Code = "gpu.count"
		}
		s.Want = []checks.Finding{f}
		return s
	}
	skip := checks.Finding{Code: "gpu.none", Severity: checks.Skip, Message: name + ":  no NVIDIA GPU on this node"}

	keeps := checktest.OnGPUs("the GPUs of this run are stored", nil, nil).Holding("sys/class/dmi/id/product_uuid", "U1\n")
	keeps.Leaves = map[string]string{"past/gpu-count.json": remembered("U1")}
	forgets := checktest.OnGPUs("the number of nhc.conf replaces the stored one", checktest.Of("8"), nil).Holding("past/gpu-count.json", `{"machine":"","pci":["0000:99:00.0"]}`)
	forgets.Leaves = map[string]string{"past/gpu-count.json": remembered("")}
	unreadable := checktest.OnGPUs("unreadable PCI bus", checktest.Of("8"), nil, checktest.Unknown("read /sys/bus/pci/devices: not a directory"))
	unreadable.Files, unreadable.Broken = map[string]string{"sys/bus/pci/devices": ""}, true
	garbage := checktest.OnGPUs("the stored state is garbage", nil, nil).Holding("past/gpu-count.json", "{\x00")
	garbage.Broken = true
	cannotKeep := checktest.OnGPUs("the state cannot be stored", nil, nil, checks.Finding{Code: "gpu.past", Severity: checks.Warn,
		Message: name + ":  write /past/gpu-count.json: not a directory"}).Holding("past", "")
	cannotKeep.Broken = true
	starting := noNVML(checktest.OnGPUs("NVML is not ready", checktest.Of("8"), nil, checks.Finding{Code: "gpu.nvml", Severity: checks.Unknown,
		Message: name + ":  cannot ask NVML: nvmlInit: in use or not ready, as during a reset (NVML error 27)"}), &nvml.Error{Call: "nvmlInit", Code: 27})
	passed := offBus(checktest.OnGPUs("one passed to a virtual machine", nil, drop3))
	passed.Files[pci+"vendor"], passed.Files[pci+"class"] = "0x10de\n", "0x030200\n"
	passed.Links = map[string]string{pci + "driver": "../../../bus/pci/drivers/vfio-pci"}
	passed = passed.Lacking(driver)
	passedWanted := passed
	passedWanted.Name, passedWanted.Words = "one passed to a virtual machine, but wanted", checktest.Of("8")
	passedWanted.Want = []checks.Finding{{Code: "gpu.count", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "8 GPUs", Got: "7",
		Message: name + ":  want 8 GPUs, got 7: " + fakenvml.Address(3) + " is left to vfio-pci"}}
	passedSince := passed
	passedSince.Files = maps.Clone(passed.Files)
	passedSince = passedSince.Holding("past/gpu-count.json", remembered(""))
	passedSince.Name, passedSince.Leaves = "one passed to a virtual machine since the last run", map[string]string{"past/gpu-count.json": remembered("")}
	renumbered := checktest.OnGPUs("the buses are renumbered", nil, nil).Holding("past/gpu-count.json", strings.ReplaceAll(remembered(""), "0000:1", "0000:9"))
	renumbered.Leaves = map[string]string{"past/gpu-count.json": remembered("")}
	fewer := offBus(checktest.OnGPUs("one gone, the others renumbered", nil, drop3, checks.Finding{Code: "gpu.count.gone", Severity: checks.Fail, Remedy: checks.PowerCycle,
		Want: "8 GPUs", Got: "7", Message: name + ":  want 8 GPUs, got 7: the node had that many before"})).
		Lacking(driver).Holding("past/gpu-count.json", strings.ReplaceAll(remembered(""), "0000:1", "0000:9"))
	fewer.Leaves = map[string]string{"past/gpu-count.json": strings.ReplaceAll(remembered(""), "0000:1", "0000:9")}
	allGone := checktest.Scenario{Name: "all gone since an earlier run", NVMLErr: none, Files: map[string]string{"past/gpu-count.json": remembered("")},
		Want: []checks.Finding{cannot("8 GPUs", 0, "load libnvidia-ml.so.1: not found")}, Broken: true}
	allGoneToo := checktest.Scenario{Name: "all gone, NVML works", NVML: &nvml.Snapshot{}, Files: allGone.Files, Broken: true}
	for i := range 8 {
		f := missing(".gone", checks.PowerCycle, -1, 8, 0, "was on the PCI bus before and is missing now")
		f.Device.PCI = fakenvml.Address(i)
		f.Message = strings.ReplaceAll(f.Message, fakenvml.Address(3), fakenvml.Address(i))
		allGoneToo.Want = append(allGoneToo.Want, f)
	}
	noted := func(f checks.Finding, severity checks.Severity, code string) checks.Finding {
		f.Severity, f.Code = severity, code
		return f
	}
	unnumbered := noNVML(renumbered, &nvml.Error{Call: "nvmlInit", Code: 9})
	unnumbered.Name, unnumbered.Leaves = "the buses are renumbered, no driver is loaded", nil
	unnumbered.Want = []checks.Finding{cannot("8 GPUs", 8, "nvmlInit: the driver is not loaded (NVML error 9)")}
	stillInNVML := offBus(checktest.OnGPUs("one is off the PCI bus but in NVML", nil, nil,
		missing(".gone", checks.PowerCycle, 3, 8, 7, "is in NVML, but no longer on the PCI bus"))).Holding("past/gpu-count.json", remembered(""))
	nameless := onlyNVML(checktest.OnGPUs("no GPU in the kernel, and no address in NVML", checktest.Of("8"), allGPUs(func(g *nvml.GPU) { g.PCI = "" })))
	sameAddress := onlyNVML(checktest.OnGPUs("no GPU in the kernel, and one address for all in NVML", nil, allGPUs(func(g *nvml.GPU) { g.PCI = "0000:00:00.0" })))
	sameAddress.Leaves = map[string]string{"past/gpu-count.json": `{"machine":"","pci":["0000:00:00.0","gpu1","gpu2","gpu3","gpu4","gpu5","gpu6","gpu7"]}`}
	nameless.UnitOnly, sameAddress.UnitOnly = true, true
	barred := func(g *nvml.GPU) { g.Err = &nvml.Error{Call: "nvmlDeviceGetHandleByIndex_v2(3)", Code: 4} }
	list = append(list,
		checktest.OnGPUs("eight", checktest.Of("8"), nil).OrTable(map[string]any{"want": int64(8)}),
		checktest.OnGPUs("AzureHPC's second argument", checktest.Of("8", "nvidia"), nil).OrTable(map[string]any{"want": int64(8), "type": "nvidia"}),
		checktest.OnGPUs("no number given", nil, nil),
		keeps, forgets,
		checktest.OnGPUs("MIG instances are not counted", checktest.Of("8"), checktest.Gpu3(func(g *nvml.GPU) { g.Modes.MIG = nvml.Known(true) })),
		checktest.OnGPUs("minor numbers in another order", checktest.Of("8"), func(n *nvml.Snapshot) { n.GPUs[0].Minor, n.GPUs[7].Minor = n.GPUs[7].Minor, n.GPUs[0].Minor }),
		allGone, allGoneToo, unnumbered, stillInNVML, passed, passedWanted, passedSince, renumbered, fewer,
		checktest.OnGPUs("one more than wanted, without a driver", checktest.Of("7"), drop3,
			noted(missing(".nvml", checks.NoRemedy, -1, 7, 7, "is on the PCI bus, not in the driver, not in NVML"), checks.Warn, "gpu.count.more")).Lacking(driver),
		checktest.OnGPUs("no permission for one", checktest.Of("8"), checktest.Gpu3(barred), noted(missing(".nvml", checks.NoRemedy, 3, 8, 7,
			"is on the PCI bus, in the driver, but NVML reports nvmlDeviceGetHandleByIndex_v2(3): no permission (NVML error 4)"), checks.Unknown, "gpu.error")),
		noNVML(checktest.OnGPUs("no permission for NVML", checktest.Of("8"), nil, checks.Finding{Code: "gpu.nvml", Severity: checks.Unknown,
			Message: name + ":  cannot ask NVML: nvmlInit: no permission (NVML error 4)"}), &nvml.Error{Call: "nvmlInit", Code: 4}),
		noNVML(checktest.OnGPUs("the operating system blocks NVML", checktest.Of("8"), nil, checks.Finding{Code: "gpu.nvml", Severity: checks.Unknown,
			Message: name + ":  cannot ask NVML: nvmlInit: kept from the driver by the operating system or a cgroup (NVML error 17)"}), &nvml.Error{Call: "nvmlInit", Code: 17}),
		checktest.OnGPUs("one excluded from the driver", checktest.Of("7"), drop3).Holding(driver, "Device Minor: 3\nGPU Excluded:\t Yes\n"),
		withoutBus(checktest.OnGPUs("a container without a PCI bus", checktest.Of("8"), nil)),
		checktest.Scenario{Name: "no GPU", NVMLErr: none, Want: []checks.Finding{skip}},
		checktest.Scenario{Name: "no GPU, but NVML works", NVML: &nvml.Snapshot{}, Want: []checks.Finding{skip}},
		checktest.Scenario{Name: "no GPU, and NVML fails", NVMLErr: &nvml.Error{Call: "nvmlInit", Code: 999}, Broken: true, Want: []checks.Finding{{Code: "gpu.nvml", Severity: checks.Unknown,
			Message: name + ":  cannot ask NVML: nvmlInit: unknown error (NVML error 999)"}}},

		checktest.OnGPUs("too few", checktest.Of("16"), nil, checks.Finding{Code: "gpu.count", Severity: checks.Fail, Want: "16 GPUs", Got: "8", Message: name + ":  want 16 GPUs, got 8"}),
		checktest.OnGPUs("too few, and the platform never has the number of nhc.conf", checktest.Of("16"), nil,
			checks.Finding{Code: "gpu.count", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "16 GPUs", Got: "8", Message: name + ":  want 16 GPUs, got 8"}).On(checktest.Hgx()),
		byGres(checktest.OnGPUs("too few, but as many as Slurm's Gres", checktest.Of("16"), nil,
			checks.Finding{Code: "gpu.count", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "16 GPUs", Got: "8", Message: name + ":  want 16 GPUs, got 8"}), 8),
		checktest.OnGPUs("too many", checktest.Of("1"), nil, checks.Finding{Code: "gpu.count", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "1 GPU", Got: "8", Message: name + ":  want 1 GPU, got 8"}),
		checktest.OnGPUs("too many, and one lost", checktest.Of("4"), checktest.Gpu3(func(g *nvml.GPU) { g.Err = checktest.ErrLost }),
			noted(missing(".nvml", checks.RebootNode, 3, 4, 7, "is on the PCI bus, in the driver, but NVML reports nvmlDeviceGetX(3): the GPU is lost (NVML error 15)"), checks.Warn, "gpu.count.nvml"),
			checks.Finding{Code: "gpu.count", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "4 GPUs", Got: "7", Message: name + ":  want 4 GPUs, got 7"}),
		checktest.OnGPUs("one not in NVML", checktest.Of("8"), drop3, missing(".nvml", checks.RebootNode, -1, 8, 7, "is on the PCI bus, in the driver, not in NVML")),
		checktest.OnGPUs("one set aside with nvidia-smi drain", checktest.Of("8"), drained3, missing(".drained", checks.FixConfig, -1, 8, 7, "is on the PCI bus, in the driver, set aside with nvidia-smi drain")),
		checktest.OnGPUs("one set aside, and no number given", nil, drained3, missing(".drained", checks.FixConfig, -1, 8, 7, "is on the PCI bus, in the driver, set aside with nvidia-smi drain")),
		checktest.OnGPUs("one set aside, and not wanted", checktest.Of("7"), drained3, drainedBeside),
		checktest.OnGPUs("another one set aside", checktest.Of("8"), func(n *nvml.Snapshot) {
			n.GPUs = slices.Delete(n.GPUs, 3, 5)
			n.Drained = []string{fakenvml.Address(4)}
		}, missing(".nvml", checks.RebootNode, -1, 8, 6, "is on the PCI bus, in the driver, not in NVML"), drainedFour),
		checktest.OnGPUs("one not in the driver either", nil, drop3, missing(".nvml", checks.RebootNode, -1, 8, 7, "is on the PCI bus, not in the driver, not in NVML")).Lacking(driver),
		checktest.OnGPUs("no power cable", nil, checktest.Gpu3(func(g *nvml.GPU) { g.Err = checktest.ErrPower }), checktest.Gpu3In(name, checktest.ErrPower)),
		checktest.OnGPUs("no interrupts", checktest.Of("8"), checktest.Gpu3(func(g *nvml.GPU) { g.Err = checktest.ErrIRQ }), checktest.Gpu3In(name, checktest.ErrIRQ)),
		checktest.OnGPUs("one lost", checktest.Of("8"), checktest.Gpu3(func(g *nvml.GPU) { g.Err = checktest.ErrLost }), checktest.Gpu3In(name, checktest.ErrLost)),
		checktest.OnGPUs("one that does not answer", checktest.Of("8"), checktest.Gpu3(func(g *nvml.GPU) { g.Err = checktest.ErrOdd }),
			missing(".nvml", checks.RebootNode, 3, 8, 7, "is on the PCI bus, in the driver, but NVML reports "+checktest.OddText)),
		notNow("one that is being reset", checktest.Of("8")), starting,
		offBus(checktest.OnGPUs("one off the bus", checktest.Of("8"), nil, missing(".gone", checks.PowerCycle, 3, 8, 7, "is in NVML, but no longer on the PCI bus"))),
		offBus(checktest.OnGPUs("one gone since an earlier run", nil, drop3, missing(".gone", checks.PowerCycle, -1, 8, 7, "was on the PCI bus before and is missing now"))).
			Lacking(driver).Holding("past/gpu-count.json", remembered("")),
		offBus(checktest.OnGPUs("the state of another machine", nil, drop3)).Lacking(driver).Holding("past/gpu-count.json", remembered("U2")).Holding("sys/class/dmi/id/product_uuid", "U1\n"),
		checktest.OnGPUs("one without a device node", checktest.Of("8"), nil, missing(".node", checks.NoRemedy, 3, 8, 7, "has no device node /dev/nvidia3")).Lacking("dev/nvidia3"),
		onlyNVML(checktest.OnGPUs("a kernel that shows no GPU, as in WSL 2", checktest.Of("8"), nil)),
		nameless, sameAddress,
		noNVML(checktest.OnGPUs("no driver", checktest.Of("8"), nil, cannot("8 GPUs", 8, "nvmlInit: the driver is not loaded (NVML error 9)")), &nvml.Error{Call: "nvmlInit", Code: 9}),
		noNVML(checktest.OnGPUs("no driver, and fewer wanted than on the PCI bus", checktest.Of("7"), nil, cannot("7 GPUs", 8, "nvmlInit: the driver is not loaded (NVML error 9)")), &nvml.Error{Call: "nvmlInit", Code: 9}),
		noNVML(checktest.OnGPUs("no library", nil, nil, cannot("8 GPUs", 8, "load libnvidia-ml.so.1: not found")), none),
		noneWanted(checktest.Scenario{Name: "no GPU on the PCI bus, but eight are wanted", Words: checktest.Of("8"), NVMLErr: none}, checks.FixConfig),
		noneWanted(checktest.Scenario{Name: "no GPU on the PCI bus, but eight are wanted and were there before", Words: checktest.Of("8"), NVMLErr: none, Files: allGone.Files, Broken: true}, checks.RebootNode),
		noneWanted(byGres(checktest.Scenario{Name: "no GPU on the PCI bus, but eight are wanted and in Slurm's Gres", Words: checktest.Of("8"), NVMLErr: none, Files: map[string]string{}, Broken: true}, 8), checks.RebootNode),
		checktest.Scenario{Name: "no GPU on the PCI bus, NVML works, but eight are wanted", Words: checktest.Of("8"), NVML: &nvml.Snapshot{}, Want: []checks.Finding{
			{Code: "gpu.count", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "8 GPUs", Got: "0", Message: name + ":  want 8 GPUs, got 0"}}},
		checktest.OnGPUs("GPUs of another vendor", checktest.Of("8", "rocm"), nil, checks.Finding{Code: "gpu.amd", Severity: checks.Skip, Message: name + ":  not run: AMD GPUs are not supported"}),
		checktest.OnGPUs("NVIDIA by name", checktest.Of("8", "NVIDIA"), nil),
		unreadable, garbage, cannotKeep,
	)
	list = append(list, countWithoutAnswers()...)
	list = append(list, countInContainers()...)
	list = append(list, countBesideDisplays()...)
	return list
})

// given returns a container with the first n of eight GPUs: /sys shows all. It has the driver's
// files of the others or not.
func given(n int, name string, words []string, files bool, want ...checks.Finding) checktest.Scenario {
	s := checktest.OnGPUs(name, words, func(all *nvml.Snapshot) { all.GPUs = all.GPUs[:n] }, want...).Contained()
	if s.Files = maps.Clone(fakenvml.Files(fakenvml.H100, 8)); n == 0 {
		s.NVML, s.NVMLErr = nil, fmt.Errorf("load libnvidia-ml.so.1: %w", probe.ErrNoLibrary)
	}
	for i := range 8 {
		s = s.Linked("sys/bus/pci/devices/"+fakenvml.Address(i)+"/driver", "../../../bus/pci/drivers/nvidia")
		if i >= n {
			s = s.Lacking(fmt.Sprintf("dev/nvidia%d", i))
			if !files {
				s = s.Lacking("proc/driver/nvidia/gpus/" + fakenvml.Address(i) + "/information")
			}
		}
	}
	return s
}

func countInContainers() []checktest.Scenario {
	const pci, gpus, name = "sys/bus/pci/devices/", "proc/driver/nvidia/gpus/", gpuCountName
	dead := func(i, want, got int, text string) checks.Finding {
		f := checks.Finding{Code: "gpu.count.nvml", Severity: checks.Fail, Remedy: checks.RebootNode, Want: checks.Plural(want, "GPU"), Got: fmt.Sprint(got), Device: checks.Device{Kind: "gpu", PCI: fakenvml.Address(i)}}
		f.Message = fmt.Sprintf("%s:  want %d GPUs, got %d: %s %s", name, want, got, fakenvml.Address(i), text)
		return f
	}
	var others []string
	for i := 4; i < 8; i++ {
		others = append(others, fakenvml.Address(i)+" was not given to this container")
	}
	drop3 := func(s checktest.Scenario) checktest.Scenario {
		s.NVML.GPUs = append(s.NVML.GPUs[:3:3], s.NVML.GPUs[4:]...)
		return s
	}
	unbound := drop3(given(8, "a container, one GPU without a driver", nil, true, dead(3, 8, 7, "is on the PCI bus, not in the driver, not in NVML"))).
		Lacking("dev/nvidia3", gpus+fakenvml.Address(3)+"/information")
	delete(unbound.Links, pci+fakenvml.Address(3)+"/driver")
	host := given(4, "no container, four of eight without a driver", nil, false, dead(4, 8, 4, "is on the PCI bus, not in the driver, not in NVML"),
		dead(5, 8, 4, "is on the PCI bus, not in the driver, not in NVML"), dead(6, 8, 4, "is on the PCI bus, not in the driver, not in NVML"),
		dead(7, 8, 4, "is on the PCI bus, not in the driver, not in NVML")).Linked("proc/self/ns/pid", "pid:[4026531836]")
	noLinks := given(4, "a container with four of eight, no drivers in /sys", nil, false)
	noLinks.Links = nil
	return []checktest.Scenario{
		given(4, "a container with four of eight", nil, false), given(4, "a container with four, as wanted", checktest.Of("4"), false),
		given(4, "a container with four, by CDI", nil, true), given(4, "a container with four, by CDI, as wanted", checktest.Of("4"), true),
		byGres(given(4, "a container with four, as in Slurm's Gres", nil, false), 4), noLinks.Contained(),
		given(4, "a container with four, eight wanted", checktest.Of("8"), false, checks.Finding{Code: "gpu.count", Severity: checks.Fail, Remedy: checks.FixConfig, Want: "8 GPUs", Got: "4",
			Message: name + ":  want 8 GPUs, got 4: " + strings.Join(others, ", ")}),
		given(0, "a container without GPUs", nil, false, checks.Finding{Code: "gpu.none", Severity: checks.Skip, Message: name + ":  no NVIDIA GPU on this node"}),
		drop3(given(8, "a container with all, and NVML has lost one", nil, true, dead(3, 8, 7, "is on the PCI bus, in the driver, not in NVML"))),
		drop3(given(6, "a container with six, and NVML has lost one", nil, false, dead(3, 6, 5, "is on the PCI bus, in the driver, not in NVML"))),
		unbound, host,
	}
}

// onlyNVML removes all files about GPUs.
func onlyNVML(s checktest.Scenario) checktest.Scenario {
	s.Files, s.Links = nil, nil
	return s
}

// countBesideDisplays returns nodes with eight GPUs and a card without NVIDIA's driver.
func countBesideDisplays() []checktest.Scenario {
	const name, card = gpuCountName, "0000:ff:00.0"
	beside := func(name, class, device, driver string, want ...checks.Finding) checktest.Scenario {
		s := checktest.OnGPUs(name, nil, nil, want...)
		dir := "sys/bus/pci/devices/" + card + "/"
		s = s.Holding(dir+"vendor", "0x10de\n").Holding(dir+"class", class+"\n").Holding(dir+"device", device+"\n")
		for i := range 8 {
			s = s.Linked("sys/bus/pci/devices/"+fakenvml.Address(i)+"/driver", "../../../bus/pci/drivers/nvidia")
		}
		if driver != "" {
			s = s.Linked(dir+"driver", "../../../bus/pci/drivers/"+driver)
		}
		return s
	}
	dead := checks.Finding{Code: "gpu.count.nvml", Severity: checks.Fail, Remedy: checks.RebootNode, Want: "9 GPUs", Got: "8", Device: checks.Device{Kind: "gpu", PCI: card},
		Message: name + ":  want 9 GPUs, got 8: " + card + " is on the PCI bus, not in the driver, not in NVML"}
	before := dead
	before.Severity, before.Remedy, before.Message = checks.Warn, checks.NoRemedy, strings.Replace(dead.Message, "not in NVML", "which had it before", 1)
	const display, compute, h100 = "0x030000", "0x030200", "0x2330"
	return []checktest.Scenario{
		beside("a display card without a driver", display, "0x0ff3", ""), beside("a display card with nouveau", display, "0x0ff3", "nouveau"),
		beside("a display card that has lost its driver", display, "0x0ff3", "", before).Holding("past/gpu-count.json", `{"machine":"","pci":["`+card+`"]}`),
		beside("a 3D controller without a driver", compute, "0x20f1", "", dead), beside("a GPU with nouveau", compute, "0x2330", "nouveau", dead),
		beside("a VGA GPU without a driver", display, h100, "", dead), beside("a VGA GPU with nouveau", display, h100, "nouveau", dead),
	}
}

// onlyDisplay returns nodes with one card and without NVIDIA's library. It is not a GPU for jobs if it is a
// display card and nothing else shows that it is one.
func onlyDisplay(check string, lost ...checks.Finding) []checktest.Scenario {
	const card = "0000:01:00.0"
	node := func(name, class, driver string, want ...checks.Finding) checktest.Scenario {
		s := checktest.Scenario{Name: name, NVMLErr: fmt.Errorf("load libnvidia-ml.so.1: %w", probe.ErrNoLibrary), Files: map[string]string{}, Want: want}
		dir := "sys/bus/pci/devices/" + card + "/"
		s = s.Holding(dir+"vendor", "0x10de\n").Holding(dir+"class", class+"\n").Holding(dir+"device", "0x128b\n")
		if driver != "" {
			s = s.Linked(dir+"driver", "../../../bus/pci/drivers/"+driver)
		}
		return s
	}
	none := checks.Finding{Code: "gpu.none", Severity: checks.Skip, Message: check + ":  no NVIDIA GPU for jobs on this node: " + card + " is a display card without NVIDIA's driver"}
	const display, other = "0x030000", "sys/bus/pci/devices/0000:02:00.0/"
	return []checktest.Scenario{
		node("a display card beside a GPU of a virtual machine", display, "nouveau", none).Holding(other+"vendor", "0x10de\n").Holding(other+"class", "0x030200\n").
			Linked(other+"driver", "../../../bus/pci/drivers/vfio-pci"),
		node("a CPU node with a display card and nouveau", display, "nouveau", none), node("a CPU node with a display card without a driver", display, "", none),
		node("no library for a 3D controller", "0x030200", "", lost...),
		node("no library for a card that the driver had before", display, "", lost...).Holding("past/gpu-count.json", `{"machine":"","pci":["`+card+`"]}`),
		node("no library, but the driver's module", display, "", lost...).Holding("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Fri\n"),
		node("no library for a card of a platform", display, "", lost...).On(&checks.Platform{Name: "X"}),
	}
}

var _ = checktest.Table("check_gpu_count", func(name string) []checktest.Scenario {
	lost := checks.Finding{Code: "gpu.nvml", Severity: checks.Fail, Want: "1 GPU", Got: "0", Remedy: checks.RebootNode,
		Message: name + ":  want 1 GPU, got 0: 1 on the PCI bus, and NVML cannot be asked: load libnvidia-ml.so.1: not found"}
	list := onlyDisplay(name, lost)
	wanted := list[1]
	wanted.Name, wanted.Words, wanted.Want = "no library, and a GPU is wanted", checktest.Of("1"), []checks.Finding{lost}
	gres := byGres(list[1], 1)
	gres.Name, gres.Want = "no library, and Slurm's Gres has a GPU", []checks.Finding{lost}
	return append(list, wanted, gres)
})

var _ = checktest.Table("check_gpu_ecc", func(name string) []checktest.Scenario {
	return onlyDisplay(name, checks.Finding{Code: "gpu.nvml", Severity: checks.Unknown, Message: name + ":  cannot ask NVML: load libnvidia-ml.so.1: not found"})
})

var _ = checktest.Table("check_gpu_driver", func(name string) []checktest.Scenario {
	return onlyDisplay(name, checks.Finding{Code: "gpu.driver.library", Severity: checks.Fail, Message: name + ":  load libnvidia-ml.so.1: not found"})
})

// withoutBus removes the PCI bus.
func withoutBus(s checktest.Scenario) checktest.Scenario {
	for f := range s.Files {
		if strings.HasPrefix(f, "sys/bus") {
			delete(s.Files, f)
		}
	}
	return s
}

// countWithoutAnswers returns nodes whose NVML says nothing, of the node or of one GPU, while the kernel or NVML's own
// number shows whether a GPU is missing.
func countWithoutAnswers() []checktest.Scenario {
	const name = gpuCountName
	initErr := &nvml.Error{Call: "nvmlInit", Code: 27}
	cannot := checks.Finding{Code: "gpu.nvml", Severity: checks.Unknown, Message: name + ":  cannot ask NVML: " + initErr.Error()}
	silent := func(s checktest.Scenario, want ...checks.Finding) checktest.Scenario {
		s.NVML, s.NVMLErr, s.Broken, s.Want = nil, initErr, true, append(want, cannot)
		return s
	}
	count := func(code, device, want, got, text string, remedy checks.Remedy) checks.Finding {
		f := checks.Finding{Code: code, Severity: checks.Fail, Want: want, Got: got, Remedy: remedy, Message: name + ":  want " + want + ", got " + got + text}
		if device != "" {
			f.Device = checks.Device{Kind: "gpu", PCI: device}
		}
		return f
	}
	seventh, past := fakenvml.Address(7), `{"machine":"","pci":["`+strings.Join(addresses(8), `","`)+`"]}`
	fewer := count("gpu.count", "", "8 GPUs", "7", ": the PCI bus shows no more", checks.NoRemedy)
	before := count("gpu.count.gone", seventh, "8 GPUs", "7", ": "+seventh+" was on the PCI bus before and is missing now", checks.PowerCycle)
	stays := count("gpu.count.gone", seventh, "8 GPUs", "7", ": "+seventh+" is in the driver, but no longer on the PCI bus", checks.PowerCycle)
	renumbered := count("gpu.count.gone", "", "8 GPUs", "7", ": the node had that many before", checks.PowerCycle)
	inDriver := having(7, "NVML is not ready, and one is in the driver but off the PCI bus", nil).
		Holding("proc/driver/nvidia/gpus/"+seventh+"/information", "Device Minor: 7\n")
	passed := having(7, "NVML is not ready, and one is passed to a virtual machine", checktest.Of("8")).
		Holding("sys/bus/pci/devices/"+seventh+"/vendor", "0x10de\n").Holding("sys/bus/pci/devices/"+seventh+"/class", "0x030200\n").
		Linked("sys/bus/pci/devices/"+seventh+"/driver", "../../../bus/pci/drivers/vfio-pci")

	// One GPU of n is not ready.
	reset := &nvml.Error{Call: "nvmlDeviceGetHandleByIndex_v2(3)", Code: 27}
	unready := func(n int, title string, words []string, err *nvml.Error, want int, more ...checks.Finding) checktest.Scenario {
		f := checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.error", Severity: checks.Unknown}, "")
		f.Want, f.Got = checks.Plural(want, "GPU"), fmt.Sprint(n-1)
		f.Message = fmt.Sprintf("%s:  want %s, got %s: %s is on the PCI bus, in the driver, but NVML reports %s", name, f.Want, f.Got, f.Device, err)
		s := having(n, title, words, append([]checks.Finding{f}, more...)...)
		s.NVML.GPUs[3].Err, s.Broken = err, true
		return s
	}
	offBus := func(title string, code int) checktest.Scenario {
		err := &nvml.Error{Call: "nvmlDeviceGetHandleByIndex_v2(3)", Code: code}
		f := checktest.GPUFinding(name, 3, checks.Finding{Code: "gpu.count.gone", Severity: checks.Fail, Remedy: checks.PowerCycle}, "")
		f.Want, f.Got = "8 GPUs", "7"
		f.Message = fmt.Sprintf("%s:  want 8 GPUs, got 7: %s is no longer on the PCI bus, in the driver, and NVML reports %s", name, f.Device, err)
		s := checktest.OnGPUs(title, checktest.Of("8"), checktest.Gpu3(func(g *nvml.GPU) { g.Err = err }), f)
		for file := range s.Files {
			if strings.HasPrefix(file, "sys/bus/pci/devices/"+fakenvml.Address(3)+"/") {
				delete(s.Files, file)
			}
		}
		return s
	}
	only8 := checktest.Hgx()
	only8.GPUs = []int{8}
	odd := count("gpu.count", "", "8 GPUs", "7", ": no "+only8.Name+" has 7", checks.NoRemedy)
	shared := unready(7, "vGPUs of a platform, one not ready", nil, reset, 7).On(only8)
	for i := range shared.NVML.GPUs {
		shared.NVML.GPUs[i].VGPU = nvml.Known(i != 3)
	}
	noBus := withoutBus(having(7, "NVML is not ready, and the PCI bus cannot be seen", checktest.Of("8")))
	list := []checktest.Scenario{
		silent(having(7, "NVML is not ready, and one of eight is off the PCI bus", checktest.Of("8")), fewer),
		silent(having(7, "NVML is not ready, and one is off the PCI bus since an earlier run", nil).Holding("past/gpu-count.json", past), before),
		silent(having(7, "NVML is not ready, one is gone, the others are renumbered", nil).Holding("past/gpu-count.json", strings.ReplaceAll(past, "0000:1", "0000:9")), renumbered),
		silent(inDriver, stays), silent(passed), silent(noBus),
		silent(having(8, "NVML is not ready, and the buses are renumbered", nil).Holding("past/gpu-count.json", strings.ReplaceAll(past, "0000:1", "0000:9"))),
		silent(byGres(having(7, "NVML is not ready, and Slurm's Gres has no more than the PCI bus", nil).Holding("past/gpu-count.json", past), 7)),
		silent(byGres(having(7, "NVML is not ready, and Slurm's Gres may count MIG instances", nil), 8)),

		unready(7, "one not ready, and another one missing", checktest.Of("8"), reset, 8, count("gpu.count", "", "8 GPUs", "6", "", checks.NoRemedy)),
		unready(7, "one not ready, and another one missing of the platform", nil, reset, 7, odd).On(only8),
		unready(8, "one not ready, on a platform", nil, reset, 8).On(only8), shared,
		byGres(unready(4, "one not ready, and Slurm's Gres may count MIG instances", nil, reset, 7), 7),
		offBus("one off the bus that is not ready", 27), offBus("one off the bus that is in use", 19), offBus("one off the bus without permission", 4),
	}
	return list
}

// notNow returns a node where one GPU of eight is not ready.
func notNow(name string, words []string) checktest.Scenario {
	err := &nvml.Error{Call: "nvmlDeviceGetHandleByIndex_v2(3)", Code: 19}
	f := checktest.GPUFinding(gpuCountName, 3, checks.Finding{Code: "gpu.error", Severity: checks.Unknown}, "")
	f.Want, f.Got = "8 GPUs", "7"
	f.Message = gpuCountName + ":  want 8 GPUs, got 7: " + f.Device.String() + " is on the PCI bus, in the driver, but NVML reports " + err.Error()
	s := checktest.OnGPUs(name, words, checktest.Gpu3(func(g *nvml.GPU) { g.Err = err }), f)
	s.Broken = true
	return s
}
