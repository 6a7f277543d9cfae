package fabric

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// flapPast returns the history of an earlier run, five minutes ago: eight ports that never lost
// their link, and port 3 that lost it at these times, in seconds ago.
func flapPast(name, dev string, ago ...int64) string {
	all := map[string]*checks.DeviceHistory{}
	for i := range 8 {
		d := &checks.DeviceHistory{Seen: fabricNow - 300, Series: map[string][]checks.Point{
			ibDowned: {{At: fabricNow - 7200, Value: 0}}, ibCarrier + fmt.Sprintf(dev, i): {{At: fabricNow - 7200, Value: 1}},
		}}
		for _, a := range ago {
			if i == 3 {
				d.Marks = map[string][]int64{ibFlapMark: append([]int64{fabricNow - a}, d.Marks[ibFlapMark]...)}
			}
		}
		all[fmt.Sprintf(name, i)] = d
	}
	data, err := json.Marshal(checks.HistoryFile{Version: checks.HistoryVersion, Boot: fabricBoot, Devices: all})
	if err != nil {
		panic(err)
	}
	return string(data)
}

// flapsOn returns a line on a node with InfiniBand and a port 3 that lost its link at these
// times, seconds ago.
func flapsOn(name string, words []string, ago []int64, now func(*fakesys.Node), want ...checks.Finding) checktest.Scenario {
	return checktest.OnFabric(name, words, now, want...).Holding("past/ib-flaps.json", flapPast("mlx5_%d:1", "ib%d", ago...))
}

// kmsgged returns a record of the kernel's log, this many seconds old.
func kmsgged(ago int64, text string) string { return kernelRecord(9000-ago, ago, text) }

// kernelRecord returns a record of the kernel's log with its number.
func kernelRecord(seq, ago int64, text string) string {
	const booted = 1767000000
	return fmt.Sprintf("6,%d,%d,-;%s\n", seq, (fabricNow-ago-booted)*1e6, text)
}

// The kernel's log from before the last run on, and one that begins later.
var (
	wholeLog = kernelRecord(70, 400, "nvme 0000:01:00.0: x")
	lateLog  = kernelRecord(70, 200, "nvme 0000:01:00.0: x")
)

// syslogged returns a line of syslog.
func syslogged(ago int64, text string) string {
	return time.Unix(fabricNow-ago, 0).UTC().Format(time.RFC3339) + " gpu-ib3 " + text + "\n"
}

func flapFinding(device string, severity checks.Severity, ago int64, want string, got int) checks.Finding {
	text := "link lost, last at " + time.Unix(fabricNow-ago, 0).UTC().Format(time.RFC3339)
	return checktest.PortFinding(ibFlapsName, device, 3, checks.Finding{Code: "ib.flap", Severity: severity, Remedy: checks.CheckCable, Want: want, Got: fmt.Sprint(got)}, text)
}

// lagFlap returns a line on a node with four LAGs; the last one lost a link this many seconds
// ago.
func lagFlap(name, member string, change func(*fakesys.Node), ago int64) checktest.Scenario {
	sys := fakesys.Kinds()["lags of data ports"]
	change(sys)
	f := checks.Finding{Code: "ib.flap", Severity: checks.Warn, Remedy: checks.CheckCable, Want: "0 in 24 hours", Got: "1"}
	d := checks.Device{Kind: "port", Name: "mlx5_bond_3:1", PCI: "0000:c3:00.0", UUID: "b83f:d203:00c5:1ac3"}
	past := fmt.Sprintf(`{"seen":%d,"series":{"counters/link_downed":[[%[2]d,0]],"carrier ens3a":[[%[2]d,1]],"carrier ens3b":[[%[2]d,1]]}}`, fabricNow-300, fabricNow-7200)
	text := "link" + member + " lost, last at " + time.Unix(fabricNow-ago, 0).UTC().Format(time.RFC3339)
	return checktest.OnNode(sys, name, nil, checktest.About(ibFlapsName, d, f, text)).
		Holding("past/ib-flaps.json", fmt.Sprintf(`{"version":1,"boot":%q,"devices":{"mlx5_bond_3:1":%s}}`, fabricBoot, past))
}

func TestIBLinkFlapping(t *testing.T) { checktest.Run(t, "check_ib_link_flapping") }

var _ = checktest.Table("check_ib_link_flapping", func(string) []checktest.Scenario {
	const bad, never, few = "mlx5_3", "0 in 24 hours", "fewer than 5 in 24 hours"
	hourly := []int64{600, 3600, 7200, 10800, 14400}
	carrier := func(n int) func(*fakesys.Node) {
		return func(node *fakesys.Node) { node.Set("ib3", "carrier_down_count", fmt.Sprint(n)) }
	}
	downs := func(n int) func(*fakesys.Node) {
		return func(node *fakesys.Node) { node.Set("eth13", "carrier_down_count", fmt.Sprint(n)) }
	}
	kmsg := func(text string) func(*fakesys.Node) {
		return func(n *fakesys.Node) { n.Files["dev/kmsg"] = text }
	}
	file := func(text string) func(*fakesys.Node) {
		return func(n *fakesys.Node) { n.Files["var/log/syslog"] = text }
	}
	ofMember := func(log string) func(*fakesys.Node) {
		return inTurn(func(n *fakesys.Node) { n.Set("ens3b", "carrier_down_count", "2") }, kmsg(log))
	}
	onMost := func(n *fakesys.Node) {
		for i := range 5 {
			n.Set(fmt.Sprintf("mlx5_%d", i), "ports/1/counters/link_downed", "1")
		}
		n.Files["dev/kmsg"] = ""
	}
	fabric := checks.Finding{Code: "ib.flap.fabric", Severity: checks.Warn, Remedy: checks.CheckFabric,
		Message: "check_ib_link_flapping:  links of 5 of 8 InfiniBand ports lost at once, a fault of the fabric: mlx5_0:1 1, mlx5_1:1 1, mlx5_2:1 1, mlx5_3:1 1, mlx5_4:1 1 times"}
	fiveLines := ""
	for _, ago := range hourly {
		fiveLines = syslogged(ago, "systemd-networkd[1587]: ib3: Lost carrier") + fiveLines
	}
	hourAgo := strings.ReplaceAll(flapPast("mlx5_%d:1", "ib%d"), `"seen":1767322745`, `"seen":1767319445`) // an unread counter is no longer waited for
	others := syslogged(900, "systemd-networkd[1587]: eth9: Lost carrier") + syslogged(800, "ib3[12]: Lost carrier") + syslogged(700, "app: ib3: Lost carrier") +
		"Jan  2 02:59:05 ib3 kernel: eth9: Lost carrier\n"
	list := []checktest.Scenario{
		flapsOn("healthy", nil, nil, nil),
		flapsOn("a link was lost", nil, nil, inTurn(countsOn(bad, "counters/link_downed", 1), kmsg("")), flapFinding(bad, checks.Warn, 0, never, 1)),
		flapsOn("an interface was taken down and up", nil, nil, inTurn(carrier(3), kmsg(""))),
		flapsOn("an interface lost its carrier, and link_downed does not exist", nil, nil, inTurn(countsOn(bad, "counters/link_downed/", 0), carrier(3), kmsg("")),
			untold(ibFlapsName, "read /sys/class/infiniband/mlx5_3/ports/1/counters/link_downed: is a directory"), flapFinding(bad, checks.Warn, 0, never, 2)).Holding("past/ib-flaps.json", hourAgo),
		flapsOn("an interface lost its carrier, and link_downed can say no more", nil, nil, inTurn(countsOn(bad, "counters/link_downed", 255), carrier(3), kmsg("")), flapFinding(bad, checks.Warn, 0, never, 2)).
			Holding("past/ib-flaps.json", strings.Replace(flapPast("mlx5_%d:1", "ib%d"), `"carrier ib3":[[1767315845,1]],"counters/link_downed":[[1767315845,0]]`, `"carrier ib3":[[1767315845,1]],"counters/link_downed":[[1767315845,255]]`, 1)),
		checktest.OnRoCE("an interface lost its carrier", nil, inTurn(func(n *fakesys.Node) { n.Set("eth13", "carrier_down_count", "3") }, kmsg("")), flapFinding("rocep3s0", checks.Warn, 0, never, 2)).
			Holding("past/ib-flaps.json", flapPast("rocep%ds0:1", "eth1%d")),
		checktest.OnRoCE("an interface got another MTU", nil, inTurn(downs(7), kmsg(wholeLog))).
			Holding("past/ib-flaps.json", flapPast("rocep%ds0:1", "eth1%d")),
		checktest.OnRoCE("an interface got another MTU, and lost its link", nil, inTurn(downs(8), kmsg(wholeLog+kernelRecord(71, 100, "mlx5_core 0000:23:00.0 eth13: Link down"))),
			flapFinding("rocep3s0", checks.Warn, 100, never, 1)).Holding("past/ib-flaps.json", flapPast("rocep%ds0:1", "eth1%d")),
		checktest.OnRoCE("an interface lost its carrier, and the log begins later", nil, inTurn(downs(7), kmsg(lateLog)), flapFinding("rocep3s0", checks.Fail, 0, few, 6)).
			Holding("past/ib-flaps.json", flapPast("rocep%ds0:1", "eth1%d")),
		checktest.OnRoCE("an interface lost its carrier, and the log has a gap", nil, inTurn(downs(7), kmsg(wholeLog+kernelRecord(75, 90, "nvme 0000:01:00.0: x"))), flapFinding("rocep3s0", checks.Fail, 0, few, 6)).
			Holding("past/ib-flaps.json", flapPast("rocep%ds0:1", "eth1%d")),
		lagFlap("the second member of a LAG lost its carrier", " of ens3b", ofMember(""), 0),
		lagFlap("a cable of the second member of a LAG was taken out", " of ens3b", ofMember(kmsgged(100, "mlx5_core 0000:c3:00.1: Port module event: module 1, Cable unplugged")), 100),
		lagFlap("the kernel says that the second member of a LAG lost its link", " of ens3b", ofMember(kmsgged(100, "mlx5_core 0000:c3:00.1 ens3b: Link down")), 100),
		flapsOn("three sources report one loss", checktest.Of("24", "5", "/var/log/syslog"), nil, inTurn(countsOn(bad, "counters/link_downed", 1), carrier(2),
			kmsg(kmsgged(121, "mlx5_core 0000:23:00.0 ib3: Link down")), file(syslogged(120, "systemd-networkd[1587]: ib3: Lost carrier"))), flapFinding(bad, checks.Warn, 121, never, 1)),
		flapsOn("the log has more of them", nil, nil, inTurn(countsOn(bad, "counters/link_downed", 1),
			kmsg(kmsgged(400, "mlx5_core 0000:23:00.0 ib3: Link down")+kmsgged(200, "mlx5_core 0000:23:00.0 ib3: Link down")+kmsgged(100, "mlx5_core 0000:23:00.0 ib3: Link down"))), flapFinding(bad, checks.Warn, 100, never, 2)),
		flapsOn("a cable was taken out", nil, nil, inTurn(countsOn(bad, "counters/link_downed", 1), kmsg(kmsgged(100, "mlx5_core 0000:23:00.0: Port module event: module 0, Cable unplugged"))),
			flapFinding(bad, checks.Warn, 100, never, 1)),
		flapsOn("a fifth time in a day", nil, []int64{3600, 7200, 10800, 80000}, inTurn(countsOn(bad, "counters/link_downed", 1), kmsg("")), flapFinding(bad, checks.Fail, 0, few, 5)),
		flapsOn("four times in a day, and once before", nil, []int64{3600, 7200, 10800, 86500}, inTurn(countsOn(bad, "counters/link_downed", 1), kmsg("")), flapFinding(bad, checks.Warn, 0, never, 4)),
		flapsOn("five times in a day, the last an hour ago", nil, []int64{3700, 7200, 10800, 14400, 18000}, nil, flapFinding(bad, checks.Fail, 3700, few, 5)),
		flapsOn("five times in a day, then quiet", nil, []int64{22000, 25200, 28800, 32400, 36000}, nil, flapFinding(bad, checks.Warn, 22000, never, 5)),
		flapsOn("other figures", checktest.Of("6", "2"), []int64{3600, 7200}, nil, flapFinding(bad, checks.Fail, 3600, "fewer than 2 in 6 hours", 2)),
		flapsOn("of another device than the one named", checktest.Of("-d", "mlx5_0"), hourly, nil),
		flapsOn("a log that AzureHPC would read", checktest.Of("24", "/var/log/syslog"), nil, file(fiveLines+syslogged(100, "systemd-networkd[1587]: ib3: Lost carrier")), flapFinding(bad, checks.Warn, 100, never, 1)),
		checktest.OnFabric("a log, without a history", checktest.Of("24", "/var/log/syslog"), file(fiveLines), flapFinding(bad, checks.Fail, 600, few, 5)),
		checktest.OnFabric("a log of other programs with similar names", checktest.Of("/var/log/syslog"), file(others)),
		flapsOn("a log that is not there", checktest.Of("24", "5", "/var/log/messages"), nil, nil,
			checks.Finding{Code: "ib.flap.log", Severity: checks.Skip, Message: "check_ib_link_flapping:  read /var/log/messages: no such file or directory"}),
		flapsOn("most ports at once", nil, nil, onMost, fabric),
		checktest.AsIs(flapsOn("most ports at once, and one again and again", nil, nil, inTurn(onMost, countsOn(bad, "counters/link_downed", 20)),
			flapFinding(bad, checks.Fail, 0, few, 20), checks.Finding{Code: fabric.Code, Severity: checks.Warn, Remedy: checks.CheckFabric, Message: strings.Replace(fabric.Message, "mlx5_3:1 1", "mlx5_3:1 20", 1)})),
		flapsOn("as often as the counter can say", nil, nil, inTurn(countsOn(bad, "counters/link_downed", 255), kmsg("")), flapFinding(bad, checks.Fail, 0, few, 255)),
		checktest.OnFabric("each line of a log that AzureHPC would read is a loss", checktest.Of("24", "5", "/var/log/syslog"),
			file(syslogged(105, "systemd-networkd[5398]: ib3: lost carrier")+strings.Repeat(syslogged(100, "systemd-networkd[5398]: ib3: lost carrier"), 5)),
			flapFinding(bad, checks.Fail, 100, few, 6)),
		flapsOn("the driver was reloaded", nil, nil, inTurn(countsOn(bad, "counters/link_downed", 1), carrier(1))).
			Holding("past/ib-flaps.json", strings.ReplaceAll(flapPast("mlx5_%d:1", "ib%d"), `"carrier ib3":[[1767315845,1]]`, `"carrier ib3":[[1767315845,4]]`)),
		flapsOn("the driver was reloaded, and its interface has another number", nil, nil, inTurn(countsOn(bad, "counters/link_downed", 1), carrier(2))).
			Holding("past/ib-flaps.json", strings.ReplaceAll(flapPast("mlx5_%d:1", "ib%d"), `"carrier ib3":`, `"index ib3":[[1767315845,4]],"carrier ib3":`)),
		checktest.OnFabric("the first run, with high counters", nil, inTurn(countsOn(bad, "counters/link_downed", 255), kmsg(""))),
		checktest.OnFabric("the first run, as links come up after a boot", nil, inTurn(carrier(3),
			kmsg("6,1,9000000,-;mlx5_core 0000:23:00.0 ib3: Link down\n6,2,19000000,-;mlx5_core 0000:23:00.0 ib3: Link down\n"))),
		flapsOn("after a boot it is known still", nil, nil, nil, flapFinding(bad, checks.Fail, 600, few, 5)).
			Holding("past/ib-flaps.json", `{"version":1,"boot":"another","devices":{"mlx5_3:1":{"seen":1767322745,"marks":{"lost":[1767308645,1767312245,1767315845,1767319445,1767322445]}}}}`),
		flapsOn("an operator has cleared it", nil, hourly, nil).Holding("past/ib-clear.json", `[{"at":1767322900,"device":"mlx5_3","who":"uid 0"}]`),
		flapsOn("an operator has cleared the earlier events", nil, hourly, nil, flapFinding(bad, checks.Warn, 600, never, 1)).Holding("past/ib-clear.json", `[{"at":1767320000,"who":"uid 0"}]`),
		flapsOn("an operator has cleared another port", nil, hourly, nil, flapFinding(bad, checks.Fail, 600, few, 5)).Holding("past/ib-clear.json", `[{"at":1767322900,"device":"mlx5_9:*","who":"uid 0"}]`),
		flapsOn("the list of cleared events cannot be read", nil, nil, nil,
			checks.Finding{Code: "ib.clear", Severity: checks.Warn, Message: "check_ib_link_flapping:  acknowledgements of port errors are lost, repeat nhc-gpu clear --ib: /past/ib-clear.json is damaged"}).
			Holding("past/ib-clear.json", `[{"at":`),
		checktest.OnRoCE("RoCE", nil, inTurn(func(n *fakesys.Node) { n.Set("eth13", "carrier_down_count", "2") }, kmsg(kmsgged(100, "mlx5_core 0000:23:00.0 eth13: Link down"))),
			flapFinding("rocep3s0", checks.Warn, 100, never, 1)).Holding("past/ib-flaps.json", flapPast("rocep%ds0:1", "eth1%d")),
		{Name: "no RDMA device", Want: []checks.Finding{{Code: "ib.none", Severity: checks.Skip, Message: "check_ib_link_flapping:  no RDMA device on this node"}}},
	}
	unread := flapsOn("a counter cannot be read", nil, nil, inTurn(countsOn(bad, "counters/link_downed/", 0), carrier(2), kmsg("")),
		untold(ibFlapsName, "read /sys/class/infiniband/mlx5_3/ports/1/counters/link_downed: is a directory"), flapFinding(bad, checks.Warn, 0, never, 1)).Holding("past/ib-flaps.json", hourAgo)
	garbage := flapsOn("garbage", nil, nil, inTurn(func(n *fakesys.Node) {
		n.Set(bad, "ports/1/counters/link_downed", "?").Set("ib3", "carrier_down_count", "x")
	}, kmsg("")), untold(ibFlapsName, "parse /sys/class/infiniband/mlx5_3/ports/1/counters/link_downed: invalid argument; parse /sys/class/net/ib3/carrier_down_count: invalid argument"))
	noLog := flapsOn("no kernel log", nil, nil, countsOn(bad, "counters/link_downed", 1),
		checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "open /dev/kmsg: no such file or directory"}, flapFinding(bad, checks.Warn, 0, never, 1))
	noFile := flapsOn("a log that cannot be read", checktest.Of("24", "/var/log/syslog"), nil, func(n *fakesys.Node) { n.Files["var/log/syslog/"] = "" },
		checks.Finding{Code: "probe.unreadable", Severity: checks.Unknown, Message: "read /var/log/syslog: is a directory"})
	full := checktest.OnFabric("a log full of containers' interfaces", checktest.Of("24", "/var/log/syslog"), file(strings.Repeat(syslogged(20000, "systemd-networkd[1587]: veth0: Lost carrier"), flapLines+1)+fiveLines), flapFinding(bad, checks.Fail, 600, few, 5))
	full.UnitOnly = true // it is long
	for _, s := range []*checktest.Scenario{&unread, &garbage, &noLog, &noFile} {
		s.Broken = true
	}
	noLog.Still, noFile.Still = true, true
	return append(list, unread, garbage, noLog, noFile, full)
})

func TestFlapWords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		words string
		want  ibLinkFlapping
	}{
		{"", ibLinkFlapping{Hours: 24, Count: 5}},
		{"6", ibLinkFlapping{Hours: 6, Count: 5}},
		{"6 2 /a /b", ibLinkFlapping{Hours: 6, Count: 2, Logs: []string{"/a", "/b"}}},
		{"6 /a", ibLinkFlapping{Hours: 6, Count: 5, Logs: []string{"/a"}}},
		{"/a /b", ibLinkFlapping{Hours: 24, Count: 5, Logs: []string{"/a", "/b"}}},
		{"-d mlx5_0 -dmlx5_1 /a", ibLinkFlapping{Hours: 24, Count: 5, Logs: []string{"/a"}, Devices: []string{"mlx5_0", "mlx5_1"}}},
	} {
		got := ibLinkFlapping{Hours: 24, Count: 5}
		if err := checks.Bind(&got, strings.Fields(c.words)); err != nil {
			t.Errorf("%s: %v", c.words, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.words, diff)
		}
	}
	for _, words := range []string{"0", "nan", "-d", "1e9", "24 0", "24 65", "24 5 log", "soon", "24 many"} {
		if err := checks.Bind(&ibLinkFlapping{Hours: 24, Count: 5}, strings.Fields(words)); err == nil {
			t.Errorf("%s is taken", words)
		}
	}
}

func TestFlapLines(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := time.Date(2026, 1, 2, 3, 1, 5, 0, time.UTC)
	for line, want := range map[string]flapLine{
		"Jan  2 03:01:05 gpu01 systemd-networkd[1587]: ib3: Lost carrier":                                             {Source: "systemd-networkd", Dev: "ib3", At: at},
		"2026-01-02T03:01:05+00:00 gpu01 systemd-networkd[1]: ib3: lost carrier":                                      {Source: "systemd-networkd", Dev: "ib3", At: at},
		"Dec 31 23:00:00 gpu01 systemd-networkd[1587]: ib3: Lost carrier":                                             {Source: "systemd-networkd", Dev: "ib3", At: time.Date(2025, 12, 31, 23, 0, 0, 0, time.UTC)},
		"Jan  2 03:01:05 gpu01 kernel: [44643.002] mlx5_core 0000:23:00.0 eth13: Link down":                           {Source: "kernel", PCI: "0000:23:00.0", Dev: "eth13", At: at},
		"Jan  2 03:01:05 gpu01 kernel: bnxt_en 0000:23:00.0 eth13: NIC Link is Down":                                  {Source: "kernel", PCI: "0000:23:00.0", Dev: "eth13", At: at},
		"Jan  2 03:01:05 gpu01 kernel: mlx5_core 0000:23:00.0: Port module event: module 0, Cable unplugged":          {Source: "module", PCI: "0000:23:00.0", At: at},
		"Jan  2 03:01:05 gpu01 systemd-networkd[1587]: ib3: Gained carrier":                                           {},
		"Jan  2 03:01:05 ib3 sshd[12]: ib3: Lost carrier":                                                             {},
		"Jan  2 03:01:05 gpu01 systemd-networkd[1587]: message of ib3: Lost carrier":                                  {},
		"Jan  2 03:01:05 gpu01 kernel: python[12]: mlx5_core 0000:23:00.0 eth13: Link down":                           {},
		"Jan  2 03:01:05 gpu01 kernel: usb 1-1: Link down":                                                            {},
		"Xxx  2 03:01:05 gpu01 systemd-networkd[1587]: ib3: Lost carrier":                                             {},
		"Feb 29 03:01:05 gpu01 systemd-networkd[1587]: ib3: Lost carrier":                                             {},
		"Jan  2 03:01:05 gpu01 kernel: mlx5_core 0000:23:00.0: Port module event: module 0, Cable plugged, unplugged": {},
		"Lost carrier": {},
	} {
		got, ok := parseSyslogFlap([]byte(line), now)
		if ok != (want != flapLine{}) || ok && !got.At.Equal(want.At) {
			t.Errorf("%s: %v %v", line, ok, got)
		}
		if got.At = want.At; ok && got != want {
			t.Errorf("%s: %+v", line, got)
		}
	}
}

func FuzzFlapLines(f *testing.F) {
	f.Add([]byte("Jan  2 03:01:05 gpu01 systemd-networkd[1587]: ib3: Lost carrier"))
	f.Add([]byte("2026-01-02T03:01:05.123456+00:00 gpu01 kernel: [44643.002] mlx5_core 0000:23:00.0 eth13: Link down"))
	f.Add([]byte("mlx5_core 0000:23:00.0: Port module event: module 0, Cable unplugged"))
	now := time.Unix(fabricNow, 0).UTC()
	f.Fuzz(func(t *testing.T, line []byte) {
		if l, ok := parseSyslogFlap(line, now); ok && (l.Source == "" || l.Dev+l.PCI == "" || l.At.IsZero()) {
			t.Errorf("%q: %+v", line, l)
		}
		if l, ok := checks.Believe(line, false, checks.AboutLink); ok {
			if pci, is := checks.PCIAddress(l.PCI); !is || pci != l.PCI {
				t.Errorf("%q: %+v", line, l)
			}
		}
	})
}

// A loss counts once, although link_downed could not be read when the carrier showed it.
func TestFlapsOnce(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	sys := fakesys.DGXH100()
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	put := func(name, content string) {
		if err := selftest.Place(root, name, content); err != nil {
			t.Fatal(err)
		}
	}
	put("dev/kmsg", "")
	for i, step := range []struct{ downed, carrier, want string }{{"0", "1", ""}, {"x", "3", ""}, {"2", "3", "2"}, {"3", "4", "3"}} {
		put("proc/uptime", fmt.Sprintf("%d.00 1.00\n", 323045+300*i))
		put(sys.Dir("mlx5_3")+"/ports/1/counters/link_downed", step.downed+"\n")
		put(sys.Dir("ib3")+"/carrier_down_count", step.carrier+"\n")
		env := &checks.Env{Host: probe.NewHost(root)}
		env.Host.SetPast("/past")
		got := ""
		for _, f := range (&ibLinkFlapping{Hours: 24, Count: 5}).Run(t.Context(), env) {
			if f.Code == "ib.flap" {
				got += f.Got
			}
		}
		if got != step.want {
			t.Errorf("run %d: %q losses, want %q", i+1, got, step.want)
		}
	}
}

// A port that flaps fails until it has been stable for a quarter of the hours; a reboot in
// between changes nothing, and one flap after it fails at once.
func TestFlapsEnd(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	sys := fakesys.DGXH100()
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	put := func(name, content string) {
		if err := selftest.Place(root, name, content); err != nil {
			t.Fatal(err)
		}
	}
	put("dev/kmsg", "")
	down := sys.Dir("mlx5_3") + "/ports/1/counters/link_downed"
	run := func(minute int) checks.Severity {
		put("proc/uptime", fmt.Sprintf("%d.00 1.00\n", 323045+60*minute))
		env := &checks.Env{Host: probe.NewHost(root)}
		env.Host.SetPast("/past")
		return checks.Worst((&ibLinkFlapping{Hours: 24, Count: 5}).Run(t.Context(), env))
	}
	lost := 0
	for _, step := range []struct {
		minute int
		flaps  int
		reboot bool
		want   checks.Severity
	}{
		{minute: 0, want: checks.OK}, {minute: 60, flaps: 1, want: checks.Warn}, {minute: 120, flaps: 3, want: checks.Warn}, {minute: 180, flaps: 1, want: checks.Fail}, {minute: 185, want: checks.Fail},
		{minute: 190, reboot: true, want: checks.Fail}, {minute: 540, want: checks.Fail}, {minute: 541, want: checks.Warn}, {minute: 900, want: checks.Warn}, {minute: 905, flaps: 1, want: checks.Fail},
		{minute: 905 + 24*60 + 1, want: checks.OK},
	} {
		if step.reboot {
			put("proc/sys/kernel/random/boot_id", "another\n")
		}
		lost += step.flaps
		put(down, fmt.Sprintf("%d\n", lost))
		if got := run(step.minute); got != step.want {
			t.Errorf("after %d minutes: %v, want %v", step.minute, got, step.want)
		}
	}
	put(down, "x\n")
	if got := run(2360); got != checks.Unknown {
		t.Errorf("unreadable: %v", got)
	}
	lost += 5
	put(down, fmt.Sprintf("%d\n", lost))
	if got := run(2400); got != checks.Fail {
		t.Errorf("losses since the counter was last read: %v", got)
	}
	env := &checks.Env{Host: probe.NewHost(root)}
	env.Host.SetPast("/past")
	if got, err := ClearIB(env, []string{"mlx5_3"}, "uid 0"); err != nil || len(got) != 1 || got[0] != "mlx5_3:1" {
		t.Errorf("cleared %v, %v", got, err)
	}
	if got := run(2405); got != checks.OK {
		t.Errorf("after it was cleared: %v", got)
	}
}
