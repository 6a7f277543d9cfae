package checks

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

func TestGPUCount(t *testing.T) { testCheck(t, "check_gpu_count") }

var _ = table("check_gpu_count", func(name string) (list []scenario) {
	// missing is what is said of one GPU; without an index it is known by its address alone.
	missing := func(code string, remedy Remedy, index, want, got int, text string) Finding {
		f := Finding{Code: "gpu.count" + code, Severity: Fail, Remedy: remedy, Want: plural(want, "GPU"), Got: fmt.Sprint(got)}
		f.Device = Device{Kind: "gpu", PCI: fakenvml.Address(3)}
		if index >= 0 {
			f.Device = Device{Kind: "gpu", Name: fmt.Sprintf("gpu%d", index), PCI: fakenvml.Address(index), Serial: fakenvml.Serial(index), UUID: fakenvml.UUID(index)}
		}
		f.Message = fmt.Sprintf("%s:  want %s, got %d: %s %s", name, f.Want, got, f.Device, text)
		return f
	}
	pci := "sys/bus/pci/devices/" + fakenvml.Address(3) + "/"
	driver := "proc/driver/nvidia/gpus/" + fakenvml.Address(3) + "/information"
	drop3 := func(n *probe.NVML) { n.GPUs = append(n.GPUs[:3], n.GPUs[4:]...) }
	offBus := func(s scenario) scenario {
		for f := range s.files {
			if strings.HasPrefix(f, pci) {
				delete(s.files, f)
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
	noNVML := func(s scenario, err error) scenario {
		s.nvml, s.nvmlErr, s.broken = nil, err, true
		return s
	}
	cannot := func(want string, onBus int, why string) Finding {
		return Finding{Code: "gpu.nvml", Severity: Fail, Want: want, Got: "0", Remedy: RebootNode,
			Message: fmt.Sprintf("%s:  want %s, got 0: %d on the PCI bus, and NVML cannot be asked: %s", name, want, onBus, why)}
	}
	none := fmt.Errorf("load libnvidia-ml.so.1: %w", probe.ErrNoLibrary)
	skip := Finding{Code: "gpu.none", Severity: Skip, Message: name + ":  no NVIDIA GPU on this node"}

	keeps := onGPUs("what was seen is kept", nil, nil).holding("sys/class/dmi/id/product_uuid", "U1\n")
	keeps.leaves = map[string]string{"past/gpu-count.json": remembered("U1")}
	forgets := onGPUs("the number of nhc.conf replaces the past", of("8"), nil).holding("past/gpu-count.json", `{"machine":"","pci":["0000:99:00.0"]}`)
	forgets.leaves = map[string]string{"past/gpu-count.json": remembered("")}
	unreadable := onGPUs("unreadable PCI bus", of("8"), nil, unknown("read /sys/bus/pci/devices: not a directory"))
	unreadable.files, unreadable.broken = map[string]string{"sys/bus/pci/devices": ""}, true
	garbage := onGPUs("garbage in what was kept", nil, nil).holding("past/gpu-count.json", "{\x00")
	garbage.broken = true
	cannotKeep := onGPUs("cannot keep what was seen", nil, nil, Finding{Code: "gpu.past", Severity: Warn,
		Message: name + ":  write /past/gpu-count.json: not a directory"}).holding("past", "")
	cannotKeep.broken = true
	starting := noNVML(onGPUs("NVML is not ready", of("8"), nil, Finding{Code: "gpu.nvml", Severity: Unknown,
		Message: name + ":  cannot ask NVML: nvmlInit: in use or not ready, as during a reset (NVML error 27)"}), &probe.NVMLError{Call: "nvmlInit", Code: 27})
	passed := offBus(onGPUs("one given to a virtual machine", nil, drop3))
	passed.files[pci+"vendor"], passed.files[pci+"class"] = "0x10de\n", "0x030200\n"
	passed.links = map[string]string{pci + "driver": "../../../bus/pci/drivers/vfio-pci"}
	passed = passed.lacking(driver)
	passedWanted := passed
	passedWanted.name, passedWanted.words = "one given to a virtual machine, but wanted", of("8")
	passedWanted.want = []Finding{{Code: "gpu.count", Severity: Fail, Want: "8 GPUs", Got: "7",
		Message: name + ":  want 8 GPUs, got 7: " + fakenvml.Address(3) + " is left to vfio-pci"}}
	passedSince := passed
	passedSince.files = maps.Clone(passed.files)
	passedSince = passedSince.holding("past/gpu-count.json", remembered(""))
	passedSince.name, passedSince.leaves = "one given to a virtual machine since", map[string]string{"past/gpu-count.json": remembered("")}
	renumbered := onGPUs("the buses are numbered anew", nil, nil).holding("past/gpu-count.json", strings.ReplaceAll(remembered(""), "0000:1", "0000:9"))
	renumbered.leaves = map[string]string{"past/gpu-count.json": remembered("")}
	fewer := offBus(onGPUs("one gone, the others numbered anew", nil, drop3, Finding{Code: "gpu.count.gone", Severity: Fail, Remedy: ReseatOrRMA,
		Want: "8 GPUs", Got: "7", Message: name + ":  want 8 GPUs, got 7: so many were there before"})).
		lacking(driver).holding("past/gpu-count.json", strings.ReplaceAll(remembered(""), "0000:1", "0000:9"))
	fewer.leaves = map[string]string{"past/gpu-count.json": strings.ReplaceAll(remembered(""), "0000:1", "0000:9")}
	allGone := scenario{name: "all gone since an earlier run", nvmlErr: none, files: map[string]string{"past/gpu-count.json": remembered("")},
		want: []Finding{cannot("8 GPUs", 0, "load libnvidia-ml.so.1: not found")}, broken: true}
	allGoneToo := scenario{name: "all gone, NVML is there", nvml: &probe.NVML{}, files: allGone.files, broken: true}
	for i := range 8 {
		f := missing(".gone", ReseatOrRMA, -1, 8, 0, "was there before, is no longer on the PCI bus")
		f.Device.PCI = fakenvml.Address(i)
		f.Message = strings.ReplaceAll(f.Message, fakenvml.Address(3), fakenvml.Address(i))
		allGoneToo.want = append(allGoneToo.want, f)
	}
	noted := func(f Finding, severity Severity, code string) Finding {
		f.Severity, f.Code = severity, code
		return f
	}
	unnumbered := noNVML(renumbered, &probe.NVMLError{Call: "nvmlInit", Code: 9})
	unnumbered.name, unnumbered.leaves = "the buses are numbered anew, and no driver is loaded", nil
	unnumbered.want = []Finding{cannot("8 GPUs", 8, "nvmlInit: the driver is not loaded (NVML error 9)")}
	stillInNVML := offBus(onGPUs("one that was there before is off the bus, but in NVML", nil, nil,
		missing(".gone", ReseatOrRMA, 3, 8, 7, "is in NVML, but no longer on the PCI bus"))).holding("past/gpu-count.json", remembered(""))
	barred := func(g *probe.GPU) { g.Err = &probe.NVMLError{Call: "nvmlDeviceGetHandleByIndex_v2(3)", Code: 4} }
	list = append(list,
		onGPUs("eight", of("8"), nil).orTable(map[string]any{"want": int64(8)}),
		onGPUs("AzureHPC's second word", of("8", "nvidia"), nil).orTable(map[string]any{"want": int64(8), "type": "nvidia"}),
		onGPUs("no number given", nil, nil),
		keeps, forgets,
		onGPUs("MIG makes no GPU more", of("8"), gpu3(func(g *probe.GPU) { g.Modes.MIG = probe.Known(true) })),
		onGPUs("minor numbers in another order", of("8"), func(n *probe.NVML) { n.GPUs[0].Minor, n.GPUs[7].Minor = n.GPUs[7].Minor, n.GPUs[0].Minor }),
		allGone, allGoneToo, unnumbered, stillInNVML, passed, passedWanted, passedSince, renumbered, fewer,
		onGPUs("one more on the bus than wanted, without a driver", of("7"), drop3,
			noted(missing(".nvml", NoRemedy, -1, 7, 7, "is on the PCI bus, not in the driver, not in NVML"), Warn, "gpu.count.more")).lacking(driver),
		onGPUs("one that may not be asked", of("8"), gpu3(barred), noted(missing(".nvml", NoRemedy, 3, 8, 7,
			"is on the PCI bus, in the driver, but NVML says nvmlDeviceGetHandleByIndex_v2(3): no permission (NVML error 4)"), Unknown, "gpu.error")),
		noNVML(onGPUs("NVML may not be asked", of("8"), nil, Finding{Code: "gpu.nvml", Severity: Unknown,
			Message: name + ":  cannot ask NVML: nvmlInit: no permission (NVML error 4)"}), &probe.NVMLError{Call: "nvmlInit", Code: 4}),
		noNVML(onGPUs("the operating system does not let NVML ask", of("8"), nil, Finding{Code: "gpu.nvml", Severity: Unknown,
			Message: name + ":  cannot ask NVML: nvmlInit: kept from the driver by the operating system or a cgroup (NVML error 17)"}), &probe.NVMLError{Call: "nvmlInit", Code: 17}),
		onGPUs("one excluded from the driver", of("7"), drop3).holding(driver, "Device Minor: 3\nGPU Excluded:\t Yes\n"),
		onGPUs("a container without a PCI bus", of("8"), nil).withoutBus(),
		scenario{name: "no GPU", nvmlErr: none, want: []Finding{skip}},
		scenario{name: "no GPU, but NVML", nvml: &probe.NVML{}, want: []Finding{skip}},

		onGPUs("too few", of("16"), nil, Finding{Code: "gpu.count", Severity: Fail, Want: "16 GPUs", Got: "8", Message: name + ":  want 16 GPUs, got 8"}),
		onGPUs("too many", of("1"), nil, Finding{Code: "gpu.count", Severity: Fail, Want: "1 GPU", Got: "8", Message: name + ":  want 1 GPU, got 8"}),
		onGPUs("too many, and one lost", of("4"), gpu3(func(g *probe.GPU) { g.Err = errLost }),
			noted(missing(".nvml", RebootNode, 3, 4, 7, "is on the PCI bus, in the driver, but NVML says nvmlDeviceGetX(3): the GPU is lost (NVML error 15)"), Warn, "gpu.count.nvml"),
			Finding{Code: "gpu.count", Severity: Fail, Want: "4 GPUs", Got: "7", Message: name + ":  want 4 GPUs, got 7"}),
		onGPUs("one not in NVML", of("8"), drop3, missing(".nvml", RebootNode, -1, 8, 7, "is on the PCI bus, in the driver, not in NVML")),
		onGPUs("one not in the driver either", nil, drop3, missing(".nvml", RebootNode, -1, 8, 7, "is on the PCI bus, not in the driver, not in NVML")).lacking(driver),
		onGPUs("no power cable", nil, gpu3(func(g *probe.GPU) { g.Err = errPower }), gpu3In(name, errPower)),
		onGPUs("no interrupts", of("8"), gpu3(func(g *probe.GPU) { g.Err = errIRQ }), gpu3In(name, errIRQ)),
		onGPUs("one lost", of("8"), gpu3(func(g *probe.GPU) { g.Err = errLost }), gpu3In(name, errLost)),
		onGPUs("one that answers nothing", of("8"), gpu3(func(g *probe.GPU) { g.Err = errOdd }),
			missing(".nvml", RebootNode, 3, 8, 7, "is on the PCI bus, in the driver, but NVML says "+oddText)),
		notNow("one that is being reset", of("8")), starting,
		offBus(onGPUs("one off the bus", of("8"), nil, missing(".gone", ReseatOrRMA, 3, 8, 7, "is in NVML, but no longer on the PCI bus"))),
		offBus(onGPUs("one gone since an earlier run", nil, drop3, missing(".gone", ReseatOrRMA, -1, 8, 7, "was there before, is no longer on the PCI bus"))).
			lacking(driver).holding("past/gpu-count.json", remembered("")),
		offBus(onGPUs("another machine's past", nil, drop3)).lacking(driver).holding("past/gpu-count.json", remembered("U2")).holding("sys/class/dmi/id/product_uuid", "U1\n"),
		onGPUs("one without a device node", of("8"), nil, missing(".node", NoRemedy, 3, 8, 7, "has no device node /dev/nvidia3")).lacking("dev/nvidia3"),
		noNVML(onGPUs("no driver", of("8"), nil, cannot("8 GPUs", 8, "nvmlInit: the driver is not loaded (NVML error 9)")), &probe.NVMLError{Call: "nvmlInit", Code: 9}),
		noNVML(onGPUs("no driver, and fewer wanted than are there", of("7"), nil, cannot("7 GPUs", 8, "nvmlInit: the driver is not loaded (NVML error 9)")), &probe.NVMLError{Call: "nvmlInit", Code: 9}),
		noNVML(onGPUs("no library", nil, nil, cannot("8 GPUs", 8, "load libnvidia-ml.so.1: not found")), none),
		scenario{name: "nothing where one is wanted", words: of("1"), nvmlErr: none, want: []Finding{cannot("1 GPU", 0, "load libnvidia-ml.so.1: not found")}},
		onGPUs("GPUs of another maker", of("8", "rocm"), nil, Finding{Code: "gpu.amd", Severity: Skip, Message: name + ":  not run: AMD GPUs are not supported"}),
		onGPUs("NVIDIA by name", of("8", "NVIDIA"), nil),
		unreadable, garbage, cannotKeep,
	)
	list = append(list, countInContainers()...)
	list = append(list, countBesideDisplays()...)
	return list
})

// given is a container that was given the first n of eight GPUs: /sys shows all. Of the
// others it has the driver's files or not.
func given(n int, name string, words []string, files bool, want ...Finding) scenario {
	s := onGPUs(name, words, func(all *probe.NVML) { all.GPUs = all.GPUs[:n] }, want...).contained()
	if s.files = maps.Clone(fakenvml.Files(fakenvml.H100, 8)); n == 0 {
		s.nvml, s.nvmlErr = nil, fmt.Errorf("load libnvidia-ml.so.1: %w", probe.ErrNoLibrary)
	}
	for i := range 8 {
		s = s.linked("sys/bus/pci/devices/"+fakenvml.Address(i)+"/driver", "../../../bus/pci/drivers/nvidia")
		if i >= n {
			s = s.lacking(fmt.Sprintf("dev/nvidia%d", i))
			if !files {
				s = s.lacking("proc/driver/nvidia/gpus/" + fakenvml.Address(i) + "/information")
			}
		}
	}
	return s
}

func countInContainers() []scenario {
	const pci, gpus, name = "sys/bus/pci/devices/", "proc/driver/nvidia/gpus/", gpuCountName
	dead := func(i, want, got int, text string) Finding {
		f := Finding{Code: "gpu.count.nvml", Severity: Fail, Remedy: RebootNode, Want: plural(want, "GPU"), Got: fmt.Sprint(got), Device: Device{Kind: "gpu", PCI: fakenvml.Address(i)}}
		f.Message = fmt.Sprintf("%s:  want %d GPUs, got %d: %s %s", name, want, got, fakenvml.Address(i), text)
		return f
	}
	var others []string
	for i := 4; i < 8; i++ {
		others = append(others, fakenvml.Address(i)+" was not given to this container")
	}
	drop3 := func(s scenario) scenario {
		s.nvml.GPUs = append(s.nvml.GPUs[:3:3], s.nvml.GPUs[4:]...)
		return s
	}
	unbound := drop3(given(8, "a container, and no driver has one GPU", nil, true, dead(3, 8, 7, "is on the PCI bus, not in the driver, not in NVML"))).
		lacking("dev/nvidia3", gpus+fakenvml.Address(3)+"/information")
	delete(unbound.links, pci+fakenvml.Address(3)+"/driver")
	host := given(4, "no container, and four of eight are in no view of the driver", nil, false, dead(4, 8, 4, "is on the PCI bus, not in the driver, not in NVML"),
		dead(5, 8, 4, "is on the PCI bus, not in the driver, not in NVML"), dead(6, 8, 4, "is on the PCI bus, not in the driver, not in NVML"),
		dead(7, 8, 4, "is on the PCI bus, not in the driver, not in NVML")).linked("proc/self/ns/pid", "pid:[4026531836]")
	noLinks := given(4, "a container given four of eight, whose /sys shows no drivers", nil, false)
	noLinks.links = nil
	return []scenario{
		given(4, "a container given four of eight", nil, false), given(4, "a container given four, as wanted", of("4"), false),
		given(4, "a container given four, of CDI", nil, true), given(4, "a container given four, of CDI, as wanted", of("4"), true),
		given(4, "a container given four, as Slurm has them", nil, false).byGres(4), noLinks.contained(),
		given(4, "a container given four, eight wanted", of("8"), false, Finding{Code: "gpu.count", Severity: Fail, Want: "8 GPUs", Got: "4",
			Message: name + ":  want 8 GPUs, got 4: " + strings.Join(others, ", ")}),
		given(0, "a container given none", nil, false, Finding{Code: "gpu.none", Severity: Skip, Message: name + ":  no NVIDIA GPU on this node"}),
		drop3(given(8, "a container given all, and NVML has lost one", nil, true, dead(3, 8, 7, "is on the PCI bus, in the driver, not in NVML"))),
		drop3(given(6, "a container given six, and NVML has lost one", nil, false, dead(3, 6, 5, "is on the PCI bus, in the driver, not in NVML"))),
		unbound, host,
	}
}

// countBesideDisplays are nodes of eight GPUs and a card that NVIDIA's driver does not have.
func countBesideDisplays() []scenario {
	const name, card = gpuCountName, "0000:ff:00.0"
	beside := func(name, class, device, driver string, want ...Finding) scenario {
		s := onGPUs(name, nil, nil, want...)
		dir := "sys/bus/pci/devices/" + card + "/"
		s = s.holding(dir+"vendor", "0x10de\n").holding(dir+"class", class+"\n").holding(dir+"device", device+"\n")
		for i := range 8 {
			s = s.linked("sys/bus/pci/devices/"+fakenvml.Address(i)+"/driver", "../../../bus/pci/drivers/nvidia")
		}
		if driver != "" {
			s = s.linked(dir+"driver", "../../../bus/pci/drivers/"+driver)
		}
		return s
	}
	dead := Finding{Code: "gpu.count.nvml", Severity: Fail, Remedy: RebootNode, Want: "9 GPUs", Got: "8", Device: Device{Kind: "gpu", PCI: card},
		Message: name + ":  want 9 GPUs, got 8: " + card + " is on the PCI bus, not in the driver, not in NVML"}
	before := dead
	before.Severity, before.Remedy, before.Message = Warn, NoRemedy, strings.Replace(dead.Message, "not in NVML", "which has had it before", 1)
	const display, compute, h100 = "0x030000", "0x030200", "0x2330"
	return []scenario{
		beside("a display card that no driver has", display, "0x0ff3", ""), beside("a display card of nouveau", display, "0x0ff3", "nouveau"),
		beside("a display card that no driver has any more", display, "0x0ff3", "", before).holding("past/gpu-count.json", `{"machine":"","pci":["`+card+`"]}`),
		beside("a GPU of a class of its own that no driver has", compute, "0x20f1", "", dead), beside("a GPU of nouveau", compute, "0x2330", "nouveau", dead),
		beside("a GPU of the class of displays that no driver has", display, h100, "", dead), beside("a GPU of the class of displays, of nouveau", display, h100, "nouveau", dead),
	}
}

// withoutBus takes the PCI bus away.
func (s scenario) withoutBus() scenario {
	for f := range s.files {
		if strings.HasPrefix(f, "sys/bus") {
			delete(s.files, f)
		}
	}
	return s
}

// notNow is a line on a node of which one GPU of eight cannot be asked now.
func notNow(name string, words []string) scenario {
	err := &probe.NVMLError{Call: "nvmlDeviceGetHandleByIndex_v2(3)", Code: 19}
	f := gpuFinding(gpuCountName, 3, Finding{Code: "gpu.error", Severity: Unknown}, "")
	f.Want, f.Got = "8 GPUs", "7"
	f.Message = gpuCountName + ":  want 8 GPUs, got 7: " + f.Device.String() + " is on the PCI bus, in the driver, but NVML says " + err.Error()
	s := onGPUs(name, words, gpu3(func(g *probe.GPU) { g.Err = err }), f)
	s.broken = true
	return s
}
