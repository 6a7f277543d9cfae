package fabric

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

const (
	started23 = checktest.On23 + "firmware version: 28.39.1002"
	again23   = checktest.On23 + "mlx5_health_try_recover:339:(pid 4711): health recovery succeeded"
	power     = "mlx5_core 0000:%02x:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W)."
)

// kmsgLines gives a node a kernel log with lines of a given age in seconds: "100 TEXT".
func kmsgLines(lines ...string) func(*fakesys.Node) {
	return func(n *fakesys.Node) {
		n.Files["dev/kmsg"] = ""
		for _, line := range lines {
			before, text, _ := strings.Cut(line, " ")
			ago, err := strconv.ParseInt(before, 10, 64)
			if err != nil {
				panic(err)
			}
			n.Files["dev/kmsg"] += kmsgged(ago, text)
		}
	}
}

// said returns a finding about port 3 of the InfiniBand node, logged this many seconds ago.
func said(severity checks.Severity, code string, remedy checks.Remedy, lines int, since, last int64, line, text, until string) checks.Finding {
	f := checktest.PortFinding(KernelLogName, "mlx5_3", 3, checks.Finding{Code: code, Severity: severity, Remedy: remedy, Want: "no such message"}, "")
	f.Got = fmt.Sprintf("%d lines, last at %s: %s", lines, checks.Clock(fabricNow-last), checks.XidText(line))
	f.Message = fmt.Sprintf("%s:  %s: %s, interface ib3, since %s: %s", KernelLogName, f.Device, text, checks.Clock(fabricNow-since), until)
	return f
}

func saidOfDisk(severity checks.Severity, code string, remedy checks.Remedy, line, text, until string) checks.Finding {
	f := checktest.NVMeFinding(KernelLogName, 3, checks.Finding{Code: code, Severity: severity, Remedy: remedy, Want: "no such message"}, "")
	f.Got = fmt.Sprintf("1 lines, last at %s: %s", checks.Clock(fabricNow-100), line)
	f.Message = fmt.Sprintf("%s:  %s: %s, since %s: %s", KernelLogName, f.Device, text, checks.Clock(fabricNow-100), until)
	return f
}

// saidByKernel returns a warning about no device.
func saidByKernel(code, line, text string) checks.Finding {
	return checks.Finding{
		Code: code, Severity: checks.Warn, Want: "no such message", Got: fmt.Sprintf("1 lines, last at %s: %s", checks.Clock(fabricNow-100), checks.XidText(line)),
		Message: fmt.Sprintf("%s:  %s, since %s: watch it", KernelLogName, text, checks.Clock(fabricNow-100)),
	}
}

func TestKernelLog(t *testing.T) { checktest.Run(t, "check_kernel_log") }

var _ = checktest.Table("check_kernel_log", func(string) []checktest.Scenario {
	const (
		dead    = "the driver reports the adapter as dead"
		deadBy5 = dead + " (its firmware asks for a reset)"
		restart = "a reboot clears it"
		cycle   = "power the node off and on"
		cured   = "the driver recovered it: watch it"
		replace = "update its firmware, then replace it"
		shorted = "the cable or transceiver is bad or shorted"
		module  = "check the transceiver and the cable"
		failed  = checktest.On23 + "mlx5_health_try_recover:335:(pid 4711): health recovery failed"
		cold    = checktest.On23 + "print_health_info:501:(pid 0): Cold reset is required"
		slow    = checktest.On23 + "wait_func:1189:(pid 72061): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource"
		given   = "nvme nvme3: Disabling device after reset failure: -19"
		reset3  = "nvme nvme3: Device not ready; aborting reset, CSTS=0x1"
	)
	down3 := []string{"9000 " + reset3, "5000 " + reset3, "100 " + reset3}
	on := func(name string, lines []string, change func(*fakesys.Node), want ...checks.Finding) checktest.Scenario {
		all := []func(*fakesys.Node){kmsgLines(lines...)}
		if change != nil {
			all = append(all, change)
		}
		return checktest.OnFabric(name, nil, inTurn(all...), want...)
	}
	allPower := func(not int) (lines []string) {
		for i := range 8 {
			if i != not {
				lines = append(lines, "100 "+fmt.Sprintf(power, 0x20+i))
			}
		}
		return lines
	}
	down := func(n *fakesys.Node) { n.Down("mlx5_3") }
	otherDriver := func(n *fakesys.Node) {
		n.Links[n.Dir("0000:20:00.0")+"/driver"] = "../../../../bus/pci/drivers/bnxt_en"
	}
	gone := func(n *fakesys.Node) { // the RDMA device, as after "Unloading"
		n.Remove("mlx5_3")
	}
	past := func(boot string, l messageLog) string {
		l.Boot = boot
		data, err := json.Marshal(l)
		if err != nil {
			panic(err)
		}
		return string(data)
	}
	old := messageLog{Cursor: 1, Events: []messageEvent{{
		Driver: "mlx5", Code: "nic.fatal", PCI: "0000:23:00.0", Number: 5, Text: checktest.Fatal23, Times: []int64{fabricNow - 40*3600}, First: fabricNow - 40*3600, Lines: 1,
	}}}
	watched := messageLog{Cursor: 1, Events: []messageEvent{{
		Driver: "mlx5", Code: "nic.hot", PCI: "0000:23:00.0", Text: "x", Times: []int64{fabricNow - 30*3600}, First: fabricNow - 30*3600, Lines: 1,
	}}}
	fatal := said(checks.Fail, "nic.fatal", checks.RebootNode, 1, 100, 100, checktest.Fatal23, deadBy5, restart)
	roles := messageLog{Roles: map[string]messageRole{"0000:23:00.0": {Name: "mlx5_3:1", GUID: fatal.Device.UUID, Jobs: true}}}
	lost := fatal
	lost.Message = strings.Replace(lost.Message, ", interface ib3", "", 1)
	toCycle := said(checks.Fail, "nic.fatal", checks.PowerCycle, 1, 100, 100, checktest.Fatal23, deadBy5+", the adapter asks for a power cycle", "power the node off and on")
	toCycle.Do = "Power the node off and on: a warm reboot does not reset the adapter."
	unknown := checks.Finding{Code: "nic.probe", Severity: checks.Warn, Remedy: checks.PowerCycle, Want: "no such message", Device: checks.Device{Kind: "hca", PCI: "0000:23:00.0"},
		Got:     fmt.Sprintf("1 lines, last at %s: %s", checks.Clock(fabricNow-100), checktest.On23+"probe_one:1770:(pid 1193): mlx5_init_one failed with error code -110"),
		Message: KernelLogName + ":  0000:23:00.0: the driver could not start the adapter, which has no RDMA device, since " + checks.Clock(fabricNow-100) + ": watch it"}
	cleared := func(s checktest.Scenario, json string) checktest.Scenario {
		return s.Holding("past/ib-clear.json", json)
	}
	again := checks.Finding{Code: "klog.past", Severity: checks.Warn, Message: KernelLogName + ":  /past/kernel-log.json is damaged; a new record begins"}
	senseless := checks.Finding{Code: "klog.past", Severity: checks.Warn, Message: KernelLogName + ":  kernel-log.json: invalid content; a new record begins"}
	uncleared := checks.Finding{Code: "ib.clear", Severity: checks.Warn, Message: KernelLogName + ":  acknowledgements of port errors are lost, repeat nhc-gpu clear --ib: /past/ib-clear.json is damaged"}
	overrun := checks.Finding{Code: "klog.lost", Severity: checks.Warn, Message: KernelLogName + ":  kernel log lines were overwritten before they were read: they may have reported a fault"}
	garbage := on("garbage", nil, func(n *fakesys.Node) {
		n.Files["dev/kmsg"] = "6,1,1,-;" + checktest.Fatal23[:60] + "\n6,2,1,-;mlx5_core : Fatal error 5 detected\n6,3,1,-; " + checktest.Fatal23 + "\n\x00\xff\n6,x;y\n" +
			"14,4,322945000000,-;" + checktest.Fatal23 + "\n" // a process has written it
	})
	garbage.Broken = true
	unread := on("no log", nil, func(n *fakesys.Node) { delete(n.Files, "dev/kmsg") },
		checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "open /dev/kmsg: no such file or directory"})
	hidden := on("a container without the log", nil, func(n *fakesys.Node) { delete(n.Files, "dev/kmsg") },
		checks.Finding{Code: "probe.contained", Severity: checks.Skip, Message: KernelLogName + ":  this container has no access to the kernel log"}).Contained()
	unread.Broken, hidden.Broken = true, true

	numbered := func(s checktest.Scenario) checktest.Scenario { // by more than its devices
		s.Still = true
		return s
	}

	return []checktest.Scenario{
		on("healthy", nil, nil),
		on("what every boot says", []string{
			"9000 " + started23, "8990 " + checktest.On23 + "Port module event: module 0, Cable plugged", "8970 mlx5_core 0000:23:00.0 ib3: Link up",
			"8980 " + checktest.On23 + "mlx5_pcie_event:304:(pid 7): PCIe slot advertised sufficient power (27W).",
			"8960 " + checktest.On23 + "E-Switch: Total vports 10, per vport: max uc(128) max mc(2048)", "8950 nvme nvme3: 128/0/0 default/read/poll queues",
		}, nil),
		checktest.OnFabric("as wanted", checktest.Of("48"), kmsgLines()).OrTable(map[string]any{"hours": 48.0}),
		on("dead", []string{"100 " + checktest.Fatal23}, nil, fatal),
		numbered(on("dead, and what the firmware adds", []string{"100 " + checktest.Fatal23,
			"100 " + checktest.On23 + "print_health_info:447:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:",
			"100 " + checktest.On23 + "print_health_info:452:(pid 0): assert_var[0] 0x00000003", "100 " + checktest.On23 + "print_health_info:421:(pid 0): synd 0x1: firmware internal error",
		}, nil, said(checks.Fail, "nic.fatal", checks.RebootNode, 1, 100, 100, checktest.Fatal23, deadBy5+", the adapter reports a fault", restart))),
		on("dead, and a cold reset is due", []string{"100 " + checktest.Fatal23, "99 " + cold}, nil,
			toCycle),
		on("a cold reset is due after a start of the driver", []string{"100 " + cold, "90 " + started23}, nil,
			said(checks.Fail, "nic.coldreset", checks.PowerCycle, 1, 100, 100, cold, "the adapter asks for a power cycle", "power the node off and on")),
		on("dead, and recovered", []string{"100 " + checktest.Fatal23, "95 " + started23, "90 " + again23}, nil, said(checks.Warn, "nic.fatal", checks.NoRemedy, 1, 100, 100, checktest.Fatal23, deadBy5, cured)),
		on("dead, and not recovered", []string{"100 " + checktest.Fatal23, "95 " + started23, "90 " + failed}, nil,
			said(checks.Fail, "nic.recovery", checks.PowerCycle, 1, 90, 90, failed, "the driver could not recover the adapter, "+dead, cycle)),
		on("dead, as mlx5 logs it, and not recovered", []string{"100 " + checktest.Fatal23, "90 " + failed}, nil,
			said(checks.Fail, "nic.fatal", checks.PowerCycle, 1, 100, 100, checktest.Fatal23, deadBy5+", the driver could not recover the adapter", cycle)),
		on("dead and recovered for the third time in a day", []string{"9000 " + checktest.Fatal23, "8990 " + again23, "5000 " + checktest.Fatal23, "4990 " + again23, "100 " + checktest.Fatal23, "90 " + again23}, nil,
			said(checks.Fail, "nic.fatal", checks.RebootNode, 3, 100, 100, checktest.Fatal23, deadBy5+", 3 times within 24 hours", replace)),
		on("an administrator resets it", []string{"105 " + checktest.On23 + "mlx5_sync_reset_request_event:420:(pid 7): PCI Sync FW Update Reset Ack. Device reset is expected.",
			"100 " + checktest.On23 + "poll_sync_reset:235:(pid 0): Got Device Reset", "99 " + checktest.Fatal23, "90 " + started23}, nil),
		on("it does not come back from an administrator's reset", []string{"105 " + checktest.On23 + "poll_sync_reset:235:(pid 0): Got Device Reset", "100 " + failed}, nil,
			said(checks.Fail, "nic.recovery", checks.PowerCycle, 1, 100, 100, failed, "the driver could not recover the adapter", cycle)),
		on("its driver reads nothing but ones", []string{"105 " + checktest.Fatal23, "100 " + checktest.On23 + "firmware version: 65535.65535.65535"}, nil,
			said(checks.Fail, "nic.fatal", checks.RebootNode, 1, 105, 105, checktest.Fatal23, deadBy5, restart)),
		on("it fails ten minutes after an administrator's reset", []string{"700 " + checktest.On23 + "poll_sync_reset:235:(pid 0): Got Device Reset", "100 " + checktest.Fatal23}, nil, fatal),
		on("its firmware stops", []string{"100 " + checktest.On23 + "poll_health:825:(pid 0): device's health compromised - reached miss count"}, nil,
			said(checks.Fail, "nic.heartbeat", checks.RebootNode, 1, 100, 100, checktest.On23+"poll_health:825:(pid 0): device's health compromised - reached miss count", "the adapter's firmware has stopped", restart)),
		on("a critical fault", []string{"100 " + checktest.On23 + "print_health_info:447:(pid 0): Health issue observed, unrecoverable hardware error, severity(2) CRITICAL:"}, nil,
			said(checks.Fail, "nic.health", checks.PowerCycle, 1, 100, 100, checktest.On23+"print_health_info:447:(pid 0): Health issue observed, unrecoverable hardware error, severity(2) CRITICAL:",
				"the adapter reports a critical fault, unrecoverable hardware error", cycle)),
		on("a command times out", []string{"100 " + slow}, nil, said(checks.Warn, "nic.timeout", checks.RebootNode, 1, 100, 100, slow, "the adapter's firmware has not answered a command", "watch it")),
		on("three commands time out", []string{"900 " + slow, "500 " + slow, "100 " + slow}, nil,
			said(checks.Fail, "nic.timeout", checks.RebootNode, 3, 900, 100, slow, "the adapter's firmware has not answered a command, 3 times within an hour", replace)),
		on("too hot", []string{"100 " + checktest.On23 + "temp_warn:181:(pid 0): High temperature on sensors with bit set 0 1"}, nil,
			said(checks.Warn, "nic.hot", checks.NoRemedy, 1, 100, 100, checktest.On23+"temp_warn:181:(pid 0): High temperature on sensors with bit set 0 1", "the adapter is too hot", "watch it")),
		on("too little power in every slot", allPower(-1), nil),
		on("too little power in every slot of the driver's", allPower(0), otherDriver),
		on("too little power in one slot", []string{"100 " + fmt.Sprintf(power, 0x23)}, nil,
			said(checks.Warn, "nic.power", checks.NoRemedy, 1, 100, 100, fmt.Sprintf(power, 0x23), "the slot supplies too little power for the adapter", "watch it")),
		on("a shorted cable", []string{"100 " + checktest.Shorted23}, down, said(checks.Fail, "nic.module.cable", checks.CheckCable, 1, 100, 100, checktest.Shorted23, shorted+", the link is down", module)),
		on("a shorted cable, but the link is up", []string{"100 " + checktest.Shorted23}, nil, said(checks.Warn, "nic.module.cable", checks.CheckCable, 1, 100, 100, checktest.Shorted23, shorted, "watch it")),
		on("a shorted cable, and the port waits for the subnet manager", []string{"100 " + checktest.Shorted23}, func(n *fakesys.Node) { n.Set("mlx5_3", "ports/1/state", "2: INIT") },
			said(checks.Warn, "nic.module.cable", checks.CheckCable, 1, 100, 100, checktest.Shorted23, shorted, "watch it")),
		on("a shorted cable, and the link trains after a boot", []string{"100 " + checktest.Shorted23}, func(n *fakesys.Node) { n.Down("mlx5_3").Files["proc/uptime"] = "60.00 1.00\n" },
			said(checks.Warn, "nic.module.cable", checks.CheckCable, 1, 100, 100, checktest.Shorted23, shorted, "watch it")),
		checktest.Odd(on("a shorted cable, and the state of the link cannot be read", []string{"100 " + checktest.Shorted23}, func(n *fakesys.Node) { n.Set("mlx5_3", "ports/1/phys_state/", "") },
			said(checks.Warn, "nic.module.cable", checks.CheckCable, 1, 100, 100, checktest.Shorted23, shorted, "watch it"))),
		on("a shorted cable, and another was plugged in", []string{"100 " + checktest.Shorted23, "90 " + checktest.On23 + "Port module event: module 0, Cable plugged"}, nil),
		on("a disk is given up", []string{"100 " + given}, func(n *fakesys.Node) { n.Set("nvme3", "state", "dead") },
			saidOfDisk(checks.Fail, "nvme.log.dead", checks.PowerCycle, given, "the driver has given up the disk", cycle)),
		on("a disk was given up, and is back", []string{"100 " + given}, nil, saidOfDisk(checks.Warn, "nvme.log.dead", checks.NoRemedy, given, "the driver has given up the disk, the disk works again", "watch it")),
		on("a disk across the network is reset", []string{"100 " + reset3}, func(n *fakesys.Node) { n.Set("nvme3", "transport", "tcp") }),
		on("a volume of a cloud is reset three times, and detached", append(slices.Clone(down3), "50 "+given), func(n *fakesys.Node) {
			n.Set("nvme3", "model", "Amazon Elastic Block Store              ").Set("nvme3", "state", "dead")
		}),
		on("a disk is reset", []string{"100 " + reset3}, nil, saidOfDisk(checks.Warn, "nvme.log.down", checks.ReseatOrRMA, reset3, "the disk has stopped answering and was reset", "watch it")),
		on("a disk is reset three times", down3, nil, func() checks.Finding {
			f := saidOfDisk(checks.Fail, "nvme.log.down", checks.ReseatOrRMA, reset3, "the disk has stopped answering and was reset, 3 times within 24 hours", replace)
			f.Got, f.Message = strings.Replace(f.Got, "1 lines", "3 lines", 1), strings.Replace(f.Message, checks.Clock(fabricNow-100), checks.Clock(fabricNow-9000), 1)
			return f
		}()),
		on("a task hangs", []string{"100 INFO: task NHC: drain me:4711 blocked for more than 122 seconds."}, nil,
			saidByKernel("kernel.hung", "INFO: task NHC: drain me:4711 blocked for more than 122 seconds.", "a task hangs in the kernel")),
		on("a CPU hangs", []string{
			"100 watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [python:4711]", "100 watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3", "100 rcu: INFO: rcu_sched self-detected stall on CPU",
		}, nil,
			saidByKernel("kernel.softlockup", "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [python:4711]", "a CPU runs only kernel code for long (soft lockup)"),
			saidByKernel("kernel.hardlockup", "watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3", "a CPU takes no interrupts (hard lockup)"),
			saidByKernel("kernel.stall", "rcu: INFO: rcu_sched self-detected stall on CPU", "a CPU or a task holds up the kernel (RCU stall)")),
		on("a task hung long ago", []string{"90000 INFO: task python:4711 blocked for more than 122 seconds."}, nil),
		cleared(on("an operator has cleared the hung task", []string{"100 INFO: task python:4711 blocked for more than 122 seconds."}, nil), `[{"at":1767323000,"who":"uid 0"}]`),
		cleared(on("an operator has cleared the kernel's messages", []string{"100 INFO: task python:4711 blocked for more than 122 seconds."}, nil), `[{"at":1767323000,"device":"kernel","who":"uid 0"}]`),
		on("remembered from before the log was overwritten", nil, nil,
			said(checks.Fail, "nic.fatal", checks.RebootNode, 1, 40*3600, 40*3600, checktest.Fatal23, deadBy5, restart)).Holding("past/kernel-log.json", past(fabricBoot, old)),
		on("of an earlier boot", nil, nil).Holding("past/kernel-log.json", past("another", old)),
		on("a warning of long ago", nil, nil).Holding("past/kernel-log.json", past(fabricBoot, watched)),
		on("its RDMA device has gone with it", []string{"100 " + checktest.Fatal23}, gone, lost).Holding("past/kernel-log.json", past(fabricBoot, roles)),
		on("it has never started", []string{"100 " + checktest.On23 + "probe_one:1770:(pid 1193): mlx5_init_one failed with error code -110"}, gone, unknown),
		on("a card that is not there", []string{"100 " + strings.Replace(checktest.Fatal23, "0000:23", "0000:99", 1)}, nil),
		cleared(on("an operator has cleared it", []string{"100 " + checktest.Fatal23}, nil), `[{"at":1767323000,"device":"mlx5_3","who":"uid 0"}]`),
		cleared(on("an operator has cleared the earlier events", []string{"100 " + checktest.Fatal23}, nil, fatal), `[{"at":1767322000,"who":"uid 0"}]`),
		cleared(on("an operator has cleared another", []string{"100 " + checktest.Fatal23}, nil, fatal), `[{"at":1767323000,"device":"mlx5_9","who":"uid 0"}]`),
		cleared(on("the list of cleared events cannot be read", []string{"100 " + checktest.Fatal23}, nil, uncleared, fatal), `[{"at":`),
		on("the kept data cannot be read", []string{"100 " + checktest.Fatal23}, nil, again, fatal).Holding("past/kernel-log.json", `{"boot":`),
		on("the kept data is invalid", []string{"100 " + checktest.Fatal23}, nil, senseless, fatal).Holding("past/kernel-log.json", `{"boot":"x","events":[{"driver":"mlx5","code":"nic.unheard"}]}`),
		on("the log was overwritten", []string{"100 " + checktest.Fatal23}, nil, overrun, fatal).Holding("past/kernel-log.json", past(fabricBoot, messageLog{Cursor: 1})),
		checktest.OnRoCE("RoCE", nil, kmsgLines("100 "+strings.Replace(checktest.Fatal23, "5 det", "1 det", 1)), func() checks.Finding {
			f := said(checks.Fail, "nic.fatal", checks.RebootNode, 1, 100, 100, strings.Replace(checktest.Fatal23, "5 det", "1 det", 1), dead+" (PCI reads fail)", restart)
			f.Device.Name = "rocep3s0:1"
			f.Message = strings.NewReplacer("mlx5_3:1", "rocep3s0:1", "ib3", "eth13").Replace(f.Message)
			return f
		}()),
		{Name: "no adapter", Files: map[string]string{"dev/kmsg": "6,1,1,-;Linux version\n"}, Want: []checks.Finding{{Code: "klog.none", Severity: checks.Skip, Message: KernelLogName + ":  no RDMA adapter and no NVMe disk on this node"}}},
		garbage, unread, hidden,
	}
})

// An adapter without jobs' traffic is not judged.
func TestMessagesOfTheFrontEnd(t *testing.T) {
	t.Parallel()
	sys := fakesys.RoCE()
	sys.DefaultRoute("eth13")
	kmsgLines("100 " + checktest.Fatal23)(sys)
	root := t.TempDir()
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	env := &checks.Env{Host: probe.NewHost(root), Doing: func(string) {}}
	env.Host.SetPast("/past")
	if got := (&kernelMessages{Hours: 24}).Run(t.Context(), env); len(got) > 0 {
		t.Errorf("%+v", got)
	}
}

// Later runs know the lines that one run has read, whatever happens to the log.
func TestMessagesAreRemembered(t *testing.T) {
	t.Parallel()
	sys := fakesys.DGXH100()
	root := t.TempDir()
	kmsgLines("9000 " + checktest.Fatal23)(sys)
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	look := func(want ...string) {
		t.Helper()
		for _, name := range []string{"dev/kmsg", "proc/sys/kernel/random/boot_id"} {
			if err := os.WriteFile(filepath.Join(root, name), []byte(sys.Files[name]), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		env := &checks.Env{Host: probe.NewHost(root), Doing: func(string) {}}
		env.Host.SetPast("/past")
		var got []string
		for _, f := range (&kernelMessages{Hours: 24}).Run(t.Context(), env) {
			got = append(got, fmt.Sprint(f.Severity, " ", f.Code, " ", f.Device.Name, " ", strings.Fields(f.Got)[0]))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	look("fail nic.fatal mlx5_3:1 1")
	look("fail nic.fatal mlx5_3:1 1") // and does not count twice
	sys.Files["dev/kmsg"] += kmsgged(50, "usb 1-1: new device")
	look("fail nic.fatal mlx5_3:1 1")
	sys.Files["dev/kmsg"] += kmsgged(40, started23) + kmsgged(30, again23)
	look("warn nic.fatal mlx5_3:1 1")
	sys.Files["dev/kmsg"] += kmsgged(20, checktest.Fatal23)
	look("fail nic.fatal mlx5_3:1 2")
	env := &checks.Env{Host: probe.NewHost(root), Doing: func(string) {}}
	env.Host.SetPast("/past")
	if cleared, err := ClearIB(env, []string{"mlx5_3"}, "uid 0"); err != nil || !slices.Equal(cleared, []string{"mlx5_3:1"}) {
		t.Errorf("%v, %v", cleared, err)
	}
	look()
	sys.Files["dev/kmsg"] += kmsgged(10, "INFO: task python:4711 blocked for more than 122 seconds.")
	look("warn kernel.hung  1")
	if cleared, err := ClearIB(env, []string{"kernel"}, "uid 0"); err != nil || !slices.Equal(cleared, []string{"kernel"}) {
		t.Errorf("%v, %v", cleared, err)
	}
	look()
	sys.Files["proc/sys/kernel/random/boot_id"] = "another\n"
	sys.Files["dev/kmsg"] = "6,1,1,-;Linux version\n"
	look()
	if _, err := os.Stat(filepath.Join(root, "past/kernel-log.json")); err != nil {
		t.Error(err)
	}
}

// A wrong value is a configuration error: it drains no node.
func TestMessageWords(t *testing.T) {
	t.Parallel()
	for _, words := range [][]string{{"x"}, {"0"}, {"-5"}, {"NaN"}, {"24", "48"}, {"-z"}} {
		if err := checks.Bind(&kernelMessages{Hours: 24}, words); err == nil {
			t.Errorf("%q is taken", words)
		}
	}
	got := (&kernelMessages{}).Run(t.Context(), &checks.Env{})
	if len(got) != 1 || got[0].Code != "config.value" || got[0].Severity != checks.Unknown {
		t.Errorf("%+v", got)
	}
}

// Without a state file the messages are still judged.
func TestMessagesThatCannotBeKept(t *testing.T) {
	t.Parallel()
	sys := fakesys.DGXH100()
	kmsgLines("100 " + checktest.Fatal23)(sys)
	sys.Files["past"] = "" // in place of the directory
	root := t.TempDir()
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	env := &checks.Env{Host: probe.NewHost(root), Doing: func(string) {}}
	env.Host.SetPast("/past")
	var codes []string
	for _, f := range (&kernelMessages{Hours: 24}).Run(t.Context(), env) {
		codes = append(codes, f.Code)
	}
	if !slices.Contains(codes, "nic.fatal") || !slices.Contains(codes, "klog.past") {
		t.Errorf("%v", codes)
	}
}

// TestMessageTable rejects an incomplete row, a line that its row does not match, and a line that
// another row also matches.
func TestMessageTable(t *testing.T) {
	t.Parallel()
	m := checks.MessageTable()
	seen := map[string]bool{}
	for i := range m.Rows {
		r := &m.Rows[i]
		name := r.Driver + " " + r.Code
		if seen[name] {
			t.Errorf("%s: twice", name)
		}
		seen[name] = true
		if r.Means == "" || r.Do == "" || r.Source == "" || len(r.Forms) == 0 || len(r.Lines) == 0 {
			t.Errorf("%s: %+v: want what it means, what to do, a source, forms and lines", name, *r)
		}
		if r.Class != checks.XidIgnore && r.Class != checks.XidWatch && r.Class != checks.XidReboot || r.Class == checks.XidIgnore && (r.Repeat != nil || r.State != "") {
			t.Errorf("%s: class %s", name, r.Class)
		}
		if r.Class == checks.XidReboot && r.Remedy == checks.NoRemedy || r.Class == checks.XidIgnore && r.Remedy != checks.NoRemedy {
			t.Errorf("%s: class %s with remedy %q", name, r.Class, r.Remedy)
		}
		if !slices.Contains([]string{"", "link", "live"}, r.State) || !slices.Contains([]string{"", "boot"}, r.Until) {
			t.Errorf("%s: state %q, until %q", name, r.State, r.Until)
		}
		if _, ok := checks.CodeRows().Words[r.Code]; ok == (r.Class == checks.XidIgnore) {
			t.Errorf("%s: words in codes.toml: %v, class %s", name, ok, r.Class)
		}
		matched := map[string]bool{}
		for _, line := range r.Lines {
			n := 0
			for j := range m.Forms {
				if _, ok := m.Forms[j].Match(line); ok {
					n++
					matched[m.Forms[j].Form] = m.RowOf[j] == r
				}
			}
			if l, ok := checks.Believe([]byte(line), false, checks.AboutDevice); !ok || l.Row != r || n != 1 {
				t.Errorf("%s: %d forms match, %v: %s", name, n, ok, line)
			}
		}
		if len(matched) < len(r.Forms) && r.Code != "nic.health.detail" {
			t.Errorf("%s: %d forms, lines of %d", name, len(r.Forms), len(matched))
		}
	}
	for _, d := range m.Drivers {
		if d.Source == "" || d.Proof == "" {
			t.Errorf("%s: say what prints it, and why no user can", d.Name)
		}
	}
}

// docs/reference/kernel-log.md has the table of klog.toml.
func TestMessagePage(t *testing.T) {
	t.Parallel()
	const head, write = "## The messages\n\n", "NHC_GPU_WRITE=docs go test ./checks/... -run MessagePage"
	path := checktest.FromRoot(t, "docs/reference/kernel-log.md")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, _, ok := strings.Cut(string(data), head)
	if !ok {
		t.Fatalf("%s: no %q", path, head)
	}
	var page strings.Builder
	page.WriteString(before + head + "Generated from checks/klog.toml: " + write + "\n\n| driver | message | the node | means | code |\n|---|---|---|---|---|\n")
	for i := range checks.MessageTable().Rows {
		r := &checks.MessageTable().Rows[i]
		forms := "`" + strings.Join(r.Forms, "`, `") + "`"
		code := r.Code
		if r.Class == checks.XidIgnore {
			code = ""
		}
		fmt.Fprintf(&page, "| %s | %s | %s | %s | %s |\n", r.Driver, strings.ReplaceAll(forms, "|", "\\|"), r.Does(), r.Means, code)
	}
	if os.Getenv(checktest.WriteSetting) == "docs" {
		if err := os.WriteFile(path, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(page.String(), string(data)); diff != "" {
		t.Errorf("%s is not what klog.toml says; %s writes it (-want +got):\n%s", path, write, diff)
	}
}

// A genuine line begins with a driver and names a device, or is the kernel's own.
func FuzzMessage(f *testing.F) {
	for i := range checks.MessageTable().Rows {
		for _, line := range checks.MessageTable().Rows[i].Lines {
			f.Add(line)
		}
	}
	f.Fuzz(func(t *testing.T, line string) {
		l, ok := checks.Believe([]byte(line), false, checks.AboutDevice)
		if !ok {
			return
		}
		_, pci := checks.PCIAddress(l.PCI)
		if !checks.OfDevice([]byte(line)) || l.Row == nil || l.Row.Driver != "kernel" && !pci && !strings.HasPrefix(l.Dev, "nvme") {
			t.Errorf("%q: %+v", line, l)
		}
	})
}
