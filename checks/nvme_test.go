package checks

import (
	"fmt"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestNVMe(t *testing.T) { testCheck(t, "check_nvme") }

var _ = table("check_nvme", func(name string) []scenario {
	const file = "past/nvme.json"
	on3 := func(severity Severity, code string, remedy Remedy, want, got, text string) Finding {
		return nvmeFinding(name, 3, Finding{Code: "nvme." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	set := func(file, content string) func(*fakesys.Node) {
		return func(n *fakesys.Node) { n.Set("nvme3", file, content) }
	}
	smart := func(change func(*fakesys.SMART)) func(*fakesys.Node) {
		s := fakesys.Healthy
		change(&s)
		return func(n *fakesys.Node) { n.SetSMART(3, s) }
	}
	bit := func(b byte) func(*fakesys.Node) { return smart(func(s *fakesys.SMART) { s.Warning = b }) }
	heat := func(now, critical string) func(*fakesys.Node) {
		return func(n *fakesys.Node) {
			n.Set("nvme3", "hwmon4/temp1_input", now).Set("nvme3", "hwmon4/temp1_crit", critical)
		}
	}
	past := func(s scenario, ago int, series string) scenario {
		at := 1767323045 - ago
		return s.holding(file, fmt.Sprintf(`{"version":1,"boot":"658f832e-2c36-42e1-a29c-a17c2e3298d2","devices":{"nvme3 S6PENN0T000003":{"seen":%d,"series":{%s}}}}`, at, fmt.Sprintf(series, at)))
	}
	none := Finding{Code: "nvme.none", Severity: Skip, Message: name + ":  no NVMe disk on this node"}
	remote := fakesys.New()
	remote.AddNVMe(fakesys.PCI{Address: fakesys.NVMeAddress(0), ID: "144d:a80a"}, 0)
	remote.Set("nvme0", "transport", "tcp").Set("nvme0", "state", "connecting")
	silent := func(disks, why string) Finding {
		return Finding{Code: "nvme.smart", Severity: Skip, Message: name + ":  " + disks + ": not judged by its own log: " + why}
	}
	remove := func(n *fakesys.Node) { n.Remove(fakesys.NVMeAddress(3)) }
	gone := func(where string) Finding {
		return on3(Fail, "gone", ReseatOrRMA, "", "", "no NVMe disk any more, as it was earlier in this boot, serial S6PENN0T000003; "+where)
	}
	still := func(s scenario) scenario { // the past has the address as a number
		s.still = true
		return s
	}
	const was = `"pci":[[%[1]d,17152]]` // 0000:43:00.0
	const first = `"media":[[%[1]d,0]],"passing":[[%[1]d,0]]`
	return []scenario{
		onFabric("healthy", nil, nil),
		onFabric("as wanted", of("-s", "20", "-u", "90", "-t", "70", "nvme[0-7]"), heat("37850", "84850")).
			orTable(map[string]any{"spare": int64(20), "used": int64(90), "temperature": int64(70), "devices": []any{"nvme[0-7]"}}),
		onFabric("dead", nil, set("state", "dead"), on3(Fail, "state", ReseatOrRMA, "live", "dead", "controller")),
		onFabric("being deleted", nil, set("state", "deleting (no IO)"), on3(Fail, "state", ReseatOrRMA, "live", "deleting (no IO)", "controller")),
		onFabric("in a reset", nil, set("state", "resetting"), on3(Warn, "state", "", "live", "resetting", "controller")),
		past(onFabric("in a reset since a minute", nil, set("state", "connecting"), on3(Warn, "state", "", "live", "connecting", "controller")), 60, `"passing":[[%d,1]]`),
		past(onFabric("in a reset since five minutes", nil, set("state", "resetting"), on3(Fail, "state", ReseatOrRMA, "live", "resetting", "controller")), 300, `"passing":[[%d,1]]`),
		past(onFabric("in a reset, not so before", nil, set("state", "resetting"), on3(Warn, "state", "", "live", "resetting", "controller")), 300, first),
		onFabric("no name space", nil, set("nvme3n1/size", "-"), on3(Fail, "space", ReseatOrRMA, "", "", "no name space")),
		onFabric("no name space on any", of("nvme3"), set("nvme3n1/size", "-"), on3(Warn, "space", ReseatOrRMA, "", "", "no name space")),
		onFabric("a name space without a size", nil, set("nvme3n1/size", "0"), on3(Fail, "space", ReseatOrRMA, "", "", "name space nvme3n1 has no size")),
		onFabric("a name space that is read-only", nil, set("nvme3n1/ro", "1"), on3(Fail, "ro", ReseatOrRMA, "", "", "name space nvme3n1 is read-only")),
		still(past(onFabric("gone from the bus", nil, remove, gone("nor on the PCI bus")), 300, was)),
		still(past(onFabric("gone, and still on the bus", nil, func(n *fakesys.Node) { n.Remove("nvme3") }, gone("it is on the PCI bus")), 300, was)),
		past(onFabric("gone, and another disk is in its place", nil, set("serial", "S6PENN0T000999")), 300, was),
		past(onFabric("another name", nil, func(n *fakesys.Node) {
			n.Set("nvme3", "serial", "S6PENN0T000004").Set("nvme4", "serial", "S6PENN0T000003")
		}), 300, was),
		past(onFabric("given to a virtual machine", nil, func(n *fakesys.Node) {
			n.Remove("nvme3")
			n.Links[n.Dir(fakesys.NVMeAddress(3))+"/driver"] = "../../../../../../bus/pci/drivers/vfio-pci"
		}), 300, was),
		past(onFabric("gone, as a line on another disk does not care", of("nvme1"), remove), 300, was),
		still(past(onFabric("gone, of a line with a glob", of("nvme[0-3]"), remove, gone("nor on the PCI bus")), 300, was)),
		onFabric("gone since the last boot", nil, remove).holding(file, `{"version":1,"boot":"x","devices":{"nvme3 S6PENN0T000003":{"seen":1767322745,"series":{"pci":[[1767322745,17152]]}}}}`),
		onFabric("reliability is degraded", nil, bit(probe.WarnDegraded), on3(Fail, "degraded", ReseatOrRMA, "", "", "reliability is degraded")),
		onFabric("read-only", nil, bit(probe.WarnReadOnly), on3(Fail, "readonly", ReseatOrRMA, "", "", "media is read-only")),
		onFabric("no backup", nil, bit(probe.WarnBackup), on3(Fail, "backup", ReseatOrRMA, "", "", "the backup of volatile memory has failed")),
		onFabric("persistent memory region", nil, bit(probe.WarnPMR), on3(Warn, "pmr", ReseatOrRMA, "", "", "the persistent memory region is read-only or unreliable")),
		onFabric("few spare blocks", nil, smart(func(s *fakesys.SMART) { s.Spare, s.Warning = 9, probe.WarnSpare }), on3(Warn, "spare", ReseatOrRMA, "at least 10 %", "9 %", "spare blocks")),
		onFabric("fewer spare blocks than wanted", of("-s", "50"), smart(func(s *fakesys.SMART) { s.Spare = 49 }), on3(Fail, "spare", ReseatOrRMA, "at least 50 %", "49 %", "spare blocks")),
		onFabric("life used up", nil, smart(func(s *fakesys.SMART) { s.Used = 104 }), on3(Warn, "used", "", "less than 100 %", "104 %", "life used")),
		onFabric("more life used than wanted", of("-u", "80"), smart(func(s *fakesys.SMART) { s.Used = 81 }), on3(Fail, "used", "", "at most 80 %", "81 %", "life used")),
		onFabric("old media errors", nil, smart(func(s *fakesys.SMART) { s.MediaErrors = 5 })),
		past(onFabric("new media errors", nil, smart(func(s *fakesys.SMART) { s.MediaErrors = 2 }), on3(Warn, "media", ReseatOrRMA, "0", "2", "media errors in the last 24 hours")), 300, first),
		past(onFabric("media errors of some runs ago", nil, smart(func(s *fakesys.SMART) { s.MediaErrors = 2 }), on3(Warn, "media", ReseatOrRMA, "0", "2", "media errors in the last 24 hours")),
			300, `"media":[[1767301445,0],[1767305045,2]],"passing":[[%[1]d,0]]`),
		onFabric("hot, by the kernel", nil, heat("85850", "84850"), on3(Warn, "temp", "", "below 85 C", "86 C", "temperature")),
		onFabric("hotter than wanted", of("-t", "60"), heat("61000", "84850"), on3(Fail, "temp", "", "at most 60 C", "61 C", "temperature")),
		onFabric("hotter than wanted, by its log", of("-t", "60"), smart(func(s *fakesys.SMART) { s.Celsius = 61 }), on3(Fail, "temp", "", "at most 60 C", "61 C", "temperature")),
		onFabric("beyond a limit, by its log", nil, bit(probe.WarnTemperature), on3(Warn, "temp", "", "", "", "the disk says that its temperature is beyond a limit")),
		onFabric("no such disk", of("nvme3", "nvme8"), nil, Finding{Code: "nvme.missing", Severity: Fail, Remedy: ReseatOrRMA, Device: Device{Kind: "nvme", Name: "nvme8"},
			Want: "nvme8", Got: "none", Message: name + ":  nvme8: no such controller, want nvme8, got none"}),
		onFabric("no device node", nil, func(n *fakesys.Node) { delete(n.Files, "dev/nvme3") }, silent("nvme3", "open /dev/nvme3: no such file or directory")),
		onFabric("no log", nil, func(n *fakesys.Node) {
			n.Files["dev/nvme3"] = string(make([]byte, 512))
		}, silent("nvme3", "parse /dev/nvme3: the controller does not give a log of its health")),
		odd(onFabric("a log that is cut", nil, func(n *fakesys.Node) { n.Files["dev/nvme3"] = "\x00" }, on3(Unknown, "smart", "", "", "", "could not tell: parse /dev/nvme3: 1 bytes, want 512"))),
		odd(onFabric("garbage in the log", nil, smart(func(s *fakesys.SMART) { s.Spare = 255 }), on3(Unknown, "smart", "", "", "", "could not tell: parse /dev/nvme3: spare blocks of 255 %, limit 10 %"))),
		odd(onFabric("unreadable state", nil, set("state/", ""), on3(Unknown, "error", "", "", "", "could not tell: read /sys/class/nvme/nvme3/state: is a directory"))),
		odd(onFabric("taken out in mid-read", nil, set("state", "-"), on3(Unknown, "error", "", "", "", "could not tell: read /sys/class/nvme/nvme3/state: file does not exist"))),
		odd(onFabric("garbage for a size", nil, set("nvme3n1/size", "\xff"), on3(Unknown, "error", "", "", "", "could not tell: parse /sys/class/nvme/nvme3/nvme3n1/size: invalid argument"))),
		odd(onFabric("garbage for a temperature", nil, heat("hot", "85000"), on3(Unknown, "error", "", "", "", "could not tell: parse /sys/class/nvme/nvme3/hwmon4/temp1_input: invalid argument"))),
		odd(unreadableAt(onFabric("unreadable list", nil, nil, Finding{Code: "probe.unreadable", Severity: Unknown, Message: "read /sys/class/nvme: not a directory"}), "sys/class/nvme")),
		onNode(fakesys.New(), "no disk", nil, none), onNode(remote, "only across the network", nil, none), withoutDisks(none),
	}
})

// withoutDisks is a node that has none.
func withoutDisks(want Finding) scenario {
	return onFabric("no disk", nil, func(n *fakesys.Node) {
		for i := range 8 {
			n.Remove(fakesys.NVMeAddress(i))
			delete(n.Files, fmt.Sprintf("dev/nvme%d", i))
		}
	}, want)
}

func TestNVMeCount(t *testing.T)   { testCheck(t, "check_nvme_count") }
func TestNumNVMeDevs(t *testing.T) { testCheck(t, "check_num_nvme_devs") }

var (
	_ = table("check_nvme_count", nvmeCountScenarios)
	_ = table("check_num_nvme_devs", nvmeCountScenarios)
)

func nvmeCountScenarios(name string) []scenario {
	says := func(want, got, more string) Finding {
		f := Finding{Code: "nvme.count", Severity: Fail, Remedy: ReseatOrRMA, Want: want, Got: got}
		f.Message = name + ":  NVMe disks" + wantGot(f) + more
		return f
	}
	unread := func(text string) Finding {
		return nvmeFinding(name, 3, Finding{Code: "nvme.unread", Severity: Unknown}, text)
	}
	eight := of("8")
	none := withoutDisks(says("8", "0", ""))
	none.words = eight
	return []scenario{
		onFabric("healthy", eight, nil),
		onFabric("as wanted", of("7-8"), nil).orTable(map[string]any{"count": "7-8"}),
		onFabric("of one size", eight, nil).orTable(map[string]any{"count": int64(8)}),
		onFabric("none is right", of("0"), nil, says("0", "8", "")), none,
		onFabric("one is gone from the bus", eight, func(n *fakesys.Node) { n.Remove(fakesys.NVMeAddress(3)) }, says("8", "7", "")),
		onFabric("one was given up", eight, func(n *fakesys.Node) { n.Remove("nvme3") }, says("8", "7", ": 0000:43:00.0 is on the PCI bus without a controller")),
		onFabric("one is dead", eight, func(n *fakesys.Node) { n.Set("nvme3", "state", "dead") }, says("8", "7", ": nvme3 0000:43:00.0 is dead")),
		onFabric("one is in a reset", eight, func(n *fakesys.Node) { n.Set("nvme3", "state", "resetting") }, unread("could not tell: the controller is resetting")),
		onFabric("one shows no disk", eight, func(n *fakesys.Node) { n.Set("nvme3", "nvme3n1/size", "-") }, says("8", "7", ": nvme3 0000:43:00.0 is without a name space")),
		onFabric("one too many", of("7"), nil, says("7", "8", "")),
		onFabric("one is enough", of("1-8"), func(n *fakesys.Node) { n.Set("nvme3", "state", "dead") }),
		onFabric("one is across the network", of("7"), func(n *fakesys.Node) { n.Set("nvme3", "transport", "tcp") }),
		odd(onFabric("unreadable state", eight, func(n *fakesys.Node) { n.Set("nvme3", "state/", "") }, unread("could not tell: read /sys/class/nvme/nvme3/state: is a directory"))),
		odd(onFabric("garbage for a size, and one is dead", eight, func(n *fakesys.Node) {
			n.Set("nvme3", "nvme3n1/size", "\xff").Set("nvme4", "state", "dead")
		}, unread("could not tell: parse /sys/class/nvme/nvme3/nvme3n1/size: invalid argument"), says("8", "6", ": nvme4 0000:44:00.0 is dead"))),
		odd(unreadableAt(onFabric("unreadable list", eight, nil, Finding{Code: "probe.unreadable", Severity: Unknown, Message: "read /sys/class/nvme: not a directory"}), "sys/class/nvme")),
	}
}

func TestNVMeCountWords(t *testing.T) {
	t.Parallel()
	for _, words := range [][]string{nil, of("eight"), of("8-7"), of("-1"), of("8", "9"), of("7-")} {
		if err := Bind(&nvmeCount{name: "check_nvme_count"}, words); err == nil {
			t.Errorf("%q is taken", words)
		}
	}
}
