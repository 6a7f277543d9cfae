package topology

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/disk"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestNVMe(t *testing.T) { checktest.Run(t, "check_nvme") }

var _ = checktest.Table("check_nvme", func(name string) []checktest.Scenario {
	const file = "past/nvme.json"
	on3 := func(severity checks.Severity, code string, remedy checks.Remedy, want, got, text string) checks.Finding {
		return checktest.NVMeFinding(name, 3, checks.Finding{Code: "nvme." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
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
	past := func(s checktest.Scenario, ago int, series string) checktest.Scenario {
		at := 1767323045 - ago
		return s.Holding(file, fmt.Sprintf(`{"version":1,"boot":"658f832e-2c36-42e1-a29c-a17c2e3298d2","devices":{"nvme3 S6PENN0T000003":{"seen":%d,"series":{%s}}}}`, at, fmt.Sprintf(series, at)))
	}
	none := checks.Finding{Code: "nvme.none", Severity: checks.Skip, Message: name + ":  no NVMe disk on this node"}
	remote := fakesys.New()
	remote.AddNVMe(fakesys.PCI{Address: fakesys.NVMeAddress(0), ID: "144d:a80a"}, 0)
	remote.Set("nvme0", "transport", "tcp").Set("nvme0", "state", "connecting")
	missing := func(disk string) checks.Finding {
		return checks.Finding{Code: "nvme.missing", Severity: checks.Fail, Remedy: checks.FixConfig, Device: checks.Device{Kind: "nvme", Name: disk}, Want: disk, Got: "none",
			Message: name + ":  " + disk + ": no such controller, want " + disk + ", got none"}
	}
	noDisks := withoutDisks(missing("nvme0"), missing("nvme1"))
	noDisks.Name, noDisks.Words = "no disk, but two are wanted", checktest.Of("nvme0", "nvme1")
	silent := func(disks, why string) checks.Finding {
		return checks.Finding{Code: "nvme.smart", Severity: checks.Skip, Message: name + ":  " + disks + ": health log not judged: " + why}
	}
	remove := func(n *fakesys.Node) { n.Remove(fakesys.NVMeAddress(3)) }
	gone := func(where string) checks.Finding {
		return on3(checks.Fail, "gone", checks.PowerCycle, "", "", "the disk has disappeared since boot, serial S6PENN0T000003, "+where)
	}
	still := func(s checktest.Scenario) checktest.Scenario { // the past has the address as a number
		s.Still = true
		return s
	}
	const was = `"pci":[[%[1]d,17152]]` // 0000:43:00.0
	const first = `"media":[[%[1]d,0]],"passing":[[%[1]d,0]]`
	return []checktest.Scenario{
		checktest.OnFabric("healthy", nil, nil),
		checktest.OnFabric("as wanted", checktest.Of("-s", "20", "-u", "90", "-t", "70", "nvme[0-7]"), heat("37850", "84850")).
			OrTable(map[string]any{"spare": int64(20), "used": int64(90), "temperature": int64(70), "devices": []any{"nvme[0-7]"}}),
		checktest.OnFabric("dead", nil, set("state", "dead"), on3(checks.Fail, "state", checks.PowerCycle, "live", "dead", "controller")),
		checktest.OnFabric("being deleted", nil, set("state", "deleting"), on3(checks.Warn, "state", "", "live", "deleting", "controller")),
		past(checktest.OnFabric("being deleted for five minutes", nil, set("state", "deleting (no IO)"), on3(checks.Fail, "state", checks.PowerCycle, "live", "deleting (no IO)", "controller")), 300, `"passing":[[%d,1]]`),
		checktest.OnFabric("in a reset", nil, set("state", "resetting"), on3(checks.Warn, "state", "", "live", "resetting", "controller")),
		past(checktest.OnFabric("in a reset for one minute", nil, set("state", "connecting"), on3(checks.Warn, "state", "", "live", "connecting", "controller")), 60, `"passing":[[%d,1]]`),
		past(checktest.OnFabric("in a reset for five minutes", nil, set("state", "resetting"), on3(checks.Fail, "state", checks.PowerCycle, "live", "resetting", "controller")), 300, `"passing":[[%d,1]]`),
		past(checktest.OnFabric("in a reset, live in the last run", nil, set("state", "resetting"), on3(checks.Warn, "state", "", "live", "resetting", "controller")), 300, first),
		checktest.OnFabric("no namespace yet", nil, set("nvme3n1/size", "-"), on3(checks.Warn, "space", "", "", "", "no namespace")),
		still(past(checktest.OnFabric("no namespace any more", nil, set("nvme3n1/size", "-"), on3(checks.Fail, "space", checks.ReseatOrRMA, "", "", "no namespace, but this disk had one")), 300, `"passing":[[%[1]d,0]]}, "marks":{"namespace":[%[1]d]`)),
		checktest.OnFabric("a namespace without a size", nil, set("nvme3n1/size", "0"), on3(checks.Fail, "space", checks.ReseatOrRMA, "", "", "namespace nvme3n1 has no size")),
		checktest.OnFabric("a read-only namespace", nil, set("nvme3n1/ro", "1"), on3(checks.Warn, "ro", "", "", "", "namespace nvme3n1 is read-only")),
		past(checktest.OnFabric("a read-only namespace that was so before", nil, set("nvme3n1/ro", "1"), on3(checks.Warn, "ro", "", "", "", "namespace nvme3n1 is read-only")), 300, `"ro nvme3n1":[[%[1]d,1]]`),
		still(past(checktest.OnFabric("a namespace has become read-only", nil, set("nvme3n1/ro", "1"), on3(checks.Fail, "ro", "", "", "", "namespace nvme3n1 has become read-only, by a fault or by an order")), 300, `"ro nvme3n1":[[%[1]d,0]]`)),
		still(past(checktest.OnFabric("gone from the bus", nil, remove, gone("not on the PCI bus")), 300, was)),
		still(past(checktest.OnFabric("gone, and still on the bus", nil, func(n *fakesys.Node) { n.Remove("nvme3") }, gone("still on the PCI bus")), 300, was)),
		past(checktest.OnFabric("gone, and replaced by another disk", nil, set("serial", "S6PENN0T000999")), 300, was),
		past(checktest.OnFabric("another name", nil, func(n *fakesys.Node) {
			n.Set("nvme3", "serial", "S6PENN0T000004").Set("nvme4", "serial", "S6PENN0T000003")
		}), 300, was),
		past(checktest.OnFabric("passed to a virtual machine", nil, func(n *fakesys.Node) {
			n.Remove("nvme3")
			n.Links[n.Dir(fakesys.NVMeAddress(3))+"/driver"] = "../../../../../../bus/pci/drivers/vfio-pci"
		}), 300, was),
		past(checktest.OnFabric("gone, but the line is about another disk", checktest.Of("nvme1"), remove), 300, was),
		still(past(checktest.OnFabric("gone, a line with a glob", checktest.Of("nvme[0-3]"), remove, gone("not on the PCI bus")), 300, was)),
		checktest.OnFabric("gone since the last boot", nil, remove).Holding(file, `{"version":1,"boot":"x","devices":{"nvme3 S6PENN0T000003":{"seen":1767322745,"series":{"pci":[[1767322745,17152]]}}}}`),
		checktest.OnFabric("reliability is degraded", nil, bit(disk.WarnDegraded), on3(checks.Fail, "degraded", checks.ReseatOrRMA, "", "", "reliability is degraded")),
		checktest.OnFabric("read-only", nil, bit(disk.WarnReadOnly), on3(checks.Fail, "readonly", checks.ReseatOrRMA, "", "", "media is read-only")),
		checktest.OnFabric("no backup", nil, bit(disk.WarnBackup), on3(checks.Fail, "backup", checks.ReseatOrRMA, "", "", "the backup of volatile memory has failed")),
		checktest.OnFabric("persistent memory region", nil, bit(disk.WarnPMR), on3(checks.Warn, "pmr", checks.ReseatOrRMA, "", "", "the persistent memory region is read-only or unreliable")),
		checktest.OnFabric("few spare blocks", nil, smart(func(s *fakesys.SMART) { s.Spare, s.Warning = 9, disk.WarnSpare }), on3(checks.Warn, "spare", checks.ReseatOrRMA, "at least 10 %", "9 %", "spare blocks")),
		checktest.OnFabric("fewer spare blocks than wanted", checktest.Of("-s", "50"), smart(func(s *fakesys.SMART) { s.Spare = 49 }), on3(checks.Fail, "spare", checks.ReseatOrRMA, "at least 50 %", "49 %", "spare blocks")),
		checktest.OnFabric("lifetime used up", nil, smart(func(s *fakesys.SMART) { s.Used = 104 }), on3(checks.Warn, "used", "", "less than 100 %", "104 %", "lifetime used")),
		checktest.OnFabric("more lifetime used than wanted", checktest.Of("-u", "80"), smart(func(s *fakesys.SMART) { s.Used = 81 }), on3(checks.Fail, "used", "", "at most 80 %", "81 %", "lifetime used")),
		checktest.OnFabric("old media errors", nil, smart(func(s *fakesys.SMART) { s.MediaErrors = 5 })),
		past(checktest.OnFabric("new media errors", nil, smart(func(s *fakesys.SMART) { s.MediaErrors = 2 }), on3(checks.Warn, "media", checks.ReseatOrRMA, "0", "2", "media errors in the last 24 hours")), 300, first),
		past(checktest.OnFabric("media errors of some runs ago", nil, smart(func(s *fakesys.SMART) { s.MediaErrors = 2 }), on3(checks.Warn, "media", checks.ReseatOrRMA, "0", "2", "media errors in the last 24 hours")),
			300, `"media":[[1767301445,0],[1767305045,2]],"passing":[[%[1]d,0]]`),
		checktest.OnFabric("hot, by the kernel", nil, heat("85850", "84850"), on3(checks.Warn, "temp", "", "below 85 C", "86 C", "temperature")),
		checktest.OnFabric("hotter than wanted", checktest.Of("-t", "60"), heat("61000", "84850"), on3(checks.Fail, "temp", "", "at most 60 C", "61 C", "temperature")),
		checktest.OnFabric("hotter than wanted, by its log", checktest.Of("-t", "60"), smart(func(s *fakesys.SMART) { s.Celsius = 61 }), on3(checks.Fail, "temp", "", "at most 60 C", "61 C", "temperature")),
		checktest.OnFabric("beyond a limit, by its log", nil, bit(disk.WarnTemperature), on3(checks.Warn, "temp", "", "", "", "the disk reports a temperature beyond its limit")),
		noDisks,
		checktest.OnFabric("no such disk", checktest.Of("nvme3", "nvme8"), nil, checks.Finding{Code: "nvme.missing", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Device: checks.Device{Kind: "nvme", Name: "nvme8"},
			Want: "nvme8", Got: "none", Message: name + ":  nvme8: no such controller, want nvme8, got none"}),
		checktest.OnFabric("no device node", nil, func(n *fakesys.Node) { delete(n.Files, "dev/nvme3") }, silent("nvme3", "open /dev/nvme3: no such file or directory")),
		checktest.OnFabric("no log", nil, func(n *fakesys.Node) {
			n.Files["dev/nvme3"] = string(make([]byte, 512))
		}, silent("nvme3", "parse /dev/nvme3: the controller has no health log")),
		checktest.Odd(checktest.OnFabric("a log that is cut", nil, func(n *fakesys.Node) { n.Files["dev/nvme3"] = "\x00" }, on3(checks.Unknown, "smart", "", "", "", "cannot be read: parse /dev/nvme3: 1 bytes, want 512"))),
		checktest.Odd(checktest.OnFabric("garbage in the log", nil, smart(func(s *fakesys.SMART) { s.Spare = 255 }), on3(checks.Unknown, "smart", "", "", "", "cannot be read: parse /dev/nvme3: spare blocks of 255 %, limit 10 %"))),
		checktest.Odd(checktest.OnFabric("unreadable state", nil, set("state/", ""), on3(checks.Unknown, "error", "", "", "", "cannot be read: read /sys/class/nvme/nvme3/state: is a directory"))),
		checktest.Odd(checktest.OnFabric("taken out in mid-read", nil, set("state", "-"), on3(checks.Unknown, "error", "", "", "", "cannot be read: read /sys/class/nvme/nvme3/state: file does not exist"))),
		checktest.Odd(checktest.OnFabric("garbage for a size", nil, set("nvme3n1/size", "\xff"), on3(checks.Unknown, "error", "", "", "", "cannot be read: parse /sys/class/nvme/nvme3/nvme3n1/size: invalid argument"))),
		checktest.Odd(checktest.OnFabric("garbage for a temperature", nil, heat("hot", "85000"), on3(checks.Unknown, "error", "", "", "", "cannot be read: parse /sys/class/nvme/nvme3/hwmon4/temp1_input: invalid argument"))),
		checktest.Odd(checktest.UnreadableAt(checktest.OnFabric("unreadable list", nil, nil, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /sys/class/nvme: not a directory"}), "sys/class/nvme")),
		checktest.OnNode(fakesys.New(), "no disk", nil, none), checktest.OnNode(remote, "only across the network", nil, none), withoutDisks(none),
	}
})

// runNVMe runs the check on a node with the memory of earlier runs, as often as there are changes. It
// returns the messages of the last run. Between two runs a minute passes, or a boot.
func runNVMe(t *testing.T, node *fakesys.Node, changes ...func(*fakesys.Node)) (messages []string) {
	t.Helper()
	root, now := t.TempDir(), 1767323045
	for i, change := range changes {
		change(node)
		days, _ := strconv.Atoi(node.Files["days"]) // between two runs
		now += 60 + days*24*60*60
		if err := os.RemoveAll(filepath.Join(root, "sys")); err != nil {
			t.Fatal(err)
		}
		node.Files["proc/stat"], node.Files["proc/uptime"] = "cpu 0\nbtime 1767000000\n", fmt.Sprintf("%d.00 1.00\n", now-1767000000)
		if err := node.Write(root); err != nil {
			t.Fatal(err)
		}
		env := &checks.Env{Host: probe.NewHost(root), Doing: func(string) {}}
		env.Host.SetPast("/past")
		findings := (&nvmeHealth{}).Run(t.Context(), env)
		for _, f := range findings {
			if i == len(changes)-1 && f.Severity != checks.Skip {
				messages = append(messages, f.Severity.String()+" "+f.Code)
			}
		}
	}
	return messages
}

func TestNVMeRuns(t *testing.T) {
	t.Parallel()
	same := func(*fakesys.Node) {}
	set := func(file, content string) func(*fakesys.Node) {
		return func(n *fakesys.Node) { n.Set("nvme3", file, content) }
	}
	remove := func(n *fakesys.Node) { n.Remove(fakesys.NVMeAddress(3)) }
	for name, s := range map[string]struct {
		model string
		runs  []func(*fakesys.Node)
		want  []string
	}{
		"a disk is gone":              {"SAMSUNG", []func(*fakesys.Node){same, remove}, []string{"fail nvme.gone"}},
		"a volume of AWS is gone":     {"Amazon Elastic Block Store", []func(*fakesys.Node){same, remove}, nil},
		"a volume of Azure is gone":   {"MSFT NVMe Accelerator v1.0", []func(*fakesys.Node){same, set("state", "deleting"), remove}, nil},
		"a volume of Google is gone":  {"nvme_card-pd", []func(*fakesys.Node){same, same, remove}, nil},
		"no namespace from the start": {"SAMSUNG", []func(*fakesys.Node){set("nvme3n1/size", "-"), same}, []string{"warn nvme.space"}},
		"a secondary controller": {"SAMSUNG", []func(*fakesys.Node){same, func(n *fakesys.Node) {
			n.Set("nvme4", "serial", "S6PENN0T000003").Set("nvme4", "nvme4n1/size", "-")
		}}, []string{"warn nvme.space"}},
		"no namespace any more": {"SAMSUNG", []func(*fakesys.Node){same, set("nvme3n1/size", "-"), same}, []string{"fail nvme.space"}},
		"no namespace after a boot that gave it another name": {"SAMSUNG", []func(*fakesys.Node){same, func(n *fakesys.Node) {
			n.Files["proc/sys/kernel/random/boot_id"] = "next\n"
			n.Set("nvme3", "serial", "S6PENN0T000004").Set("nvme4", "serial", "S6PENN0T000003").Set("nvme4", "nvme4n1/size", "-")
		}}, []string{"fail nvme.space"}},
		"no namespace for a month after such a boot": {"SAMSUNG", []func(*fakesys.Node){same, func(n *fakesys.Node) {
			n.Files["proc/sys/kernel/random/boot_id"], n.Files["days"] = "next\n", "20"
			n.Set("nvme3", "serial", "S6PENN0T000004").Set("nvme4", "serial", "S6PENN0T000003").Set("nvme4", "nvme4n1/size", "-")
		}, same}, []string{"fail nvme.space"}},
		"volumes of a cloud without a namespace": {"MSFT NVMe Accelerator v1.0", []func(*fakesys.Node){same, set("nvme3n1/size", "-")}, []string{"warn nvme.space"}},
		"read-only since the boot": {"SAMSUNG", []func(*fakesys.Node){same, func(n *fakesys.Node) {
			n.Files["proc/sys/kernel/random/boot_id"] = "next\n"
			n.Set("nvme3", "nvme3n1/ro", "1")
		}, same}, []string{"warn nvme.ro"}},
		"read-only after a reset": {"SAMSUNG", []func(*fakesys.Node){same, set("state", "resetting"), func(n *fakesys.Node) {
			n.Set("nvme3", "state", "live").Set("nvme3", "nvme3n1/ro", "1")
		}, same}, []string{"fail nvme.ro"}},
		"a read-only volume of a cloud in the place of another": {"nvme_card-pd", []func(*fakesys.Node){same, set("nvme3n1/ro", "1")}, []string{"warn nvme.ro"}},
		"media errors beside a log that was unreadable, and a reset": {"SAMSUNG", []func(*fakesys.Node){same, func(n *fakesys.Node) { n.Files["dev/nvme3"] = "\x00" }, set("state", "resetting"), func(n *fakesys.Node) {
			s := fakesys.Healthy
			s.MediaErrors = 2
			n.Set("nvme3", "state", "live").SetSMART(3, s)
		}}, []string{"warn nvme.media"}},
		"a disk was deleted": {"SAMSUNG", []func(*fakesys.Node){same, set("state", "deleting"), remove}, []string{"fail nvme.gone"}},
	} {
		node := fakesys.DGXH100()
		node.Set("nvme3", "model", s.model)
		if diff := cmp.Diff(s.want, runNVMe(t, node, s.runs...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// withoutDisks is a node that has none.
func withoutDisks(want ...checks.Finding) checktest.Scenario {
	return checktest.OnFabric("no disk", nil, func(n *fakesys.Node) {
		for i := range 8 {
			n.Remove(fakesys.NVMeAddress(i))
			delete(n.Files, fmt.Sprintf("dev/nvme%d", i))
		}
	}, want...)
}

func TestNVMeCount(t *testing.T)   { checktest.Run(t, "check_nvme_count") }
func TestNumNVMeDevs(t *testing.T) { checktest.Run(t, "check_num_nvme_devs") }

var (
	_ = checktest.Table("check_nvme_count", nvmeCountScenarios)
	_ = checktest.Table("check_num_nvme_devs", nvmeCountScenarios)
)

func nvmeCountScenarios(name string) []checktest.Scenario {
	says := func(want, got, more string) checks.Finding {
		f := checks.Finding{Code: "nvme.count", Severity: checks.Fail, Remedy: checks.ReseatOrRMA, Want: want, Got: got}
		f.Message = name + ":  NVMe disks" + checktest.WantGot(f) + more
		return f
	}
	unread := func(text string) checks.Finding {
		return checktest.NVMeFinding(name, 3, checks.Finding{Code: "nvme.unread", Severity: checks.Unknown}, text)
	}
	eight := checktest.Of("8")
	wrong := func(want, got string) checks.Finding {
		f := says(want, got, "")
		f.Remedy = checks.FixConfig
		return f
	}
	none := withoutDisks(wrong("8", "0"))
	none.Words = eight
	return []checktest.Scenario{
		checktest.OnFabric("healthy", eight, nil),
		checktest.OnFabric("as wanted", checktest.Of("7-8"), nil).OrTable(map[string]any{"count": "7-8"}),
		checktest.OnFabric("as wanted, a number", eight, nil).OrTable(map[string]any{"count": int64(8)}),
		checktest.OnFabric("none wanted", checktest.Of("0"), nil, wrong("0", "8")), none,
		checktest.OnFabric("one is gone from the bus", eight, func(n *fakesys.Node) { n.Remove(fakesys.NVMeAddress(3)) }, says("8", "7", "")),
		checktest.OnFabric("one was given up", eight, func(n *fakesys.Node) { n.Remove("nvme3") }, says("8", "7", ": 0000:43:00.0 is on the PCI bus without a controller")),
		checktest.OnFabric("one is dead", eight, func(n *fakesys.Node) { n.Set("nvme3", "state", "dead") }, says("8", "7", ": nvme3 0000:43:00.0 is dead")),
		checktest.OnFabric("one is in a reset", eight, func(n *fakesys.Node) { n.Set("nvme3", "state", "resetting") }, unread("not counted: the controller is resetting")),
		checktest.OnFabric("one shows no disk", eight, func(n *fakesys.Node) { n.Set("nvme3", "nvme3n1/size", "-") }, says("8", "7", ": nvme3 0000:43:00.0 is without a namespace")),
		checktest.OnFabric("one too many", checktest.Of("7"), nil, wrong("7", "8")),
		checktest.OnFabric("one is enough", checktest.Of("1-8"), func(n *fakesys.Node) { n.Set("nvme3", "state", "dead") }),
		checktest.OnFabric("one is across the network", checktest.Of("7"), func(n *fakesys.Node) { n.Set("nvme3", "transport", "tcp") }),
		checktest.Odd(checktest.OnFabric("unreadable state", eight, func(n *fakesys.Node) { n.Set("nvme3", "state/", "") }, unread("cannot be read: read /sys/class/nvme/nvme3/state: is a directory"))),
		checktest.Odd(checktest.OnFabric("garbage for a size, and one is dead", eight, func(n *fakesys.Node) {
			n.Set("nvme3", "nvme3n1/size", "\xff").Set("nvme4", "state", "dead")
		}, unread("cannot be read: parse /sys/class/nvme/nvme3/nvme3n1/size: invalid argument"), says("8", "6", ": nvme4 0000:44:00.0 is dead"))),
		checktest.Odd(checktest.UnreadableAt(checktest.OnFabric("unreadable list", eight, nil, checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /sys/class/nvme: not a directory"}), "sys/class/nvme")),
	}
}

func TestNVMeCountWords(t *testing.T) {
	t.Parallel()
	for _, words := range [][]string{nil, checktest.Of("eight"), checktest.Of("8-7"), checktest.Of("-1"), checktest.Of("8", "9"), checktest.Of("7-")} {
		if err := checks.Bind(&nvmeCount{name: "check_nvme_count"}, words); err == nil {
			t.Errorf("%q is taken", words)
		}
	}
}
