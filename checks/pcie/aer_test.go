package pcie

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// aerBefore returns a history of a device that ends some time ago: "fatal":[[-300,1]]
// has times relative to now.
func aerBefore(device string, ago time.Duration, series map[string][]checks.Point) string {
	const now = 1767323045
	text := ""
	for _, key := range slices.Sorted(maps.Keys(series)) {
		if text != "" {
			text += ","
		}
		text += fmt.Sprintf("%q:[", key)
		for i, p := range series[key] {
			if i > 0 {
				text += ","
			}
			text += fmt.Sprintf("[%d,%d]", now+p.At, p.Value)
		}
		text += "]"
	}
	return fmt.Sprintf(`{"version":1,"boot":"658f832e-2c36-42e1-a29c-a17c2e3298d2","devices":{%q:{"seen":%d,"series":{%s}}}}`, device, now-int64(ago/time.Second), text)
}

// quiet returns a history without an error.
func quiet(ago time.Duration) map[string][]checks.Point {
	at := -int64(ago / time.Second)
	return map[string][]checks.Point{"fatal": {{At: at, Value: 0}}, "nonfatal": {{At: at, Value: 0}}, "corrected": {{At: at, Value: 0}}}
}

func TestPCIeAER(t *testing.T) { checktest.Run(t, "check_pcie_aer") }

var _ = checktest.Table("check_pcie_aer", func(name string) []checktest.Scenario {
	const file = "past/pcie-aer.json"
	aer := func(d checks.Device, severity checks.Severity, code string, remedy checks.Remedy, want, got, text string) checks.Finding {
		return checktest.About(name, d, checks.Finding{Code: "pcie.aer." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	const adapter, port, fatal, nonfatal, corrected = "0000:23:00.0", "0000:63:01.0", "aer_dev_fatal", "aer_dev_nonfatal", "aer_dev_correctable"
	was := func(s checktest.Scenario, device string, ago time.Duration, series map[string][]checks.Point) checktest.Scenario {
		return s.Holding(file, aerBefore(device, ago, series))
	}
	const minutes5, day = 5 * time.Minute, 24 * time.Hour
	storm := checktest.Links(adapter, corrected, "RxErr 300\nBadTLP 700\nTOTAL_ERR_COR 1000")
	died := func(n uint64, ago time.Duration) map[string][]checks.Point {
		s := quiet(30 * time.Hour)
		s["fatal"] = append(s["fatal"], checks.Point{At: -int64(ago / time.Second), Value: n})
		s["fatal DLP"] = []checks.Point{{At: -int64(ago / time.Second), Value: n}}
		return s
	}
	dlp := checktest.Links(adapter, fatal, "DLP 2\nTOTAL_ERR_FATAL 2")
	odd := func(s checktest.Scenario) checktest.Scenario {
		s.Broken = true
		return s
	}
	noCounters := func(n *fakesys.Node) {
		for i := range 8 {
			for _, pattern := range []string{"0000:1%d:00.0", "0000:2%d:00.0", "0000:3%d:01.0", "0000:3%d:03.0", "0000:4%d:00.0", "0000:5%d:00.0", "0000:6%d:00.0", "0000:6%d:01.0"} {
				for _, f := range []string{fatal, nonfatal, corrected} {
					n.Set(fmt.Sprintf(pattern, i), f, "-")
				}
			}
		}
	}
	skip := checks.Finding{Code: "pcie.aer.none", Severity: checks.Skip, Message: name + ":  the kernel counts no PCIe errors of these devices: gpu nvme"}
	garbledFatal := reportUnread(name, checks.Device{Kind: "pci", PCI: adapter}, fmt.Errorf("parse /sys/bus/pci/devices/%s/aer_dev_fatal: invalid argument", adapter))
	unreadableFatal := reportUnread(name, checks.Device{Kind: "pci", PCI: adapter}, fmt.Errorf("read /sys/bus/pci/devices/%s/aer_dev_fatal: is a directory", adapter))
	return []checktest.Scenario{
		checktest.OnFabric("healthy", nil, nil),
		checktest.OnRoCE("healthy, RoCE", nil, nil),
		checktest.OnFabric("many corrected errors in the first run", nil, storm),
		was(checktest.OnFabric("corrected errors", nil, storm, aer(adapter3, checks.Warn, "corrected", "", "at most 8 per minute", "200.0",
			"corrected PCIe errors (BadTLP 700, RxErr 300), link partner 0000:63:01.0")), adapter, minutes5, quiet(minutes5)),
		was(checktest.OnFabric("few corrected errors", nil, checktest.Links(adapter, corrected, "RxErr 40\nTOTAL_ERR_COR 40")), adapter, minutes5, quiet(minutes5)),
		was(checktest.OnFabric("more corrected errors than allowed", checktest.Of("-r", "100", "infiniband"), storm, aer(adapter3, checks.Fail, "corrected", checks.ReseatOrRMA, "at most 100 per minute", "200.0",
			"corrected PCIe errors (BadTLP 700, RxErr 300), link partner 0000:63:01.0")).OrTable(map[string]any{"rate": int64(100), "devices": []any{"infiniband"}}), adapter, minutes5, quiet(minutes5)),
		was(checktest.OnFabric("corrected errors on a bridge", nil, checktest.Links(port, corrected, "BadDLLP 1000\nTOTAL_ERR_COR 1000"), aer(port3, checks.Warn, "corrected", "", "at most 8 per minute", "200.0",
			"corrected PCIe errors (BadDLLP 1000), link partner 0000:23:00.0")), port, minutes5, quiet(minutes5)),
		was(checktest.OnFabric("corrected errors above a switch", nil, checktest.Links("0000:53:00.0", corrected, "TOTAL_ERR_COR 1000"), aer(checktest.Switch3, checks.Warn, "corrected", "", "at most 8 per minute", "200.0",
			"corrected PCIe errors, link partner 0000:33:01.0")), "0000:53:00.0", minutes5, quiet(minutes5)),
		was(checktest.OnFabric("a fatal error", nil, dlp, aer(adapter3, checks.Fail, "fatal", checks.RebootNode, "0", "2", "fatal PCIe errors in the last 24 hours (DLP 2), link partner 0000:63:01.0")), adapter, minutes5, quiet(minutes5)),
		was(checktest.OnFabric("a fatal error 20 hours ago", nil, dlp, aer(adapter3, checks.Fail, "fatal", checks.RebootNode, "0", "2", "fatal PCIe errors in the last 24 hours (DLP 2), link partner 0000:63:01.0")),
			adapter, minutes5, died(2, 20*time.Hour)),
		was(checktest.OnFabric("a fatal error 25 hours ago", nil, dlp), adapter, minutes5, died(2, day+time.Hour)),
		checktest.OnFabric("fatal errors before the first run", nil, dlp, aer(adapter3, checks.Warn, "fatal", checks.RebootNode, "0", "2", "fatal PCIe errors since boot (DLP 2), link partner 0000:63:01.0")),
		was(checktest.OnFabric("uncorrected errors", nil, checktest.Links(adapter, nonfatal, "CmpltTO 3\nUnsupReq 2\nTOTAL_ERR_NONFATAL 5"), aer(adapter3, checks.Warn, "nonfatal", "", "0", "3",
			"uncorrected PCIe errors in the last hour (CmpltTO 3), link partner 0000:63:01.0")), adapter, minutes5, quiet(minutes5)),
		was(checktest.OnFabric("unsupported requests", nil, checktest.Links(adapter, nonfatal, "UnsupReq 5\nTOTAL_ERR_NONFATAL 5")), adapter, minutes5, quiet(minutes5)),
		was(checktest.OnFabric("counters that were reset", nil, nil), adapter, minutes5, map[string][]checks.Point{"fatal": {{At: -300, Value: 7}}, "nonfatal": {{At: -300, Value: 7}}, "corrected": {{At: -300, Value: 100000}}}),
		{Name: "no PCI bus", Words: checktest.Of("gpu", "nvme"), Want: []checks.Finding{skip}},
		checktest.OnFabric("no counters", checktest.Of("gpu", "nvme"), noCounters, skip),
		odd(checktest.OnFabric("unreadable counters", nil, checktest.Links(adapter, fatal+"/", ""), unreadableFatal)),
		was(odd(checktest.OnFabric("a fatal error beside counters that cannot be read", nil, func(n *fakesys.Node) { dlp(n); checktest.Links(adapter, corrected+"/", "")(n) },
			reportUnread(name, checks.Device{Kind: "pci", PCI: adapter}, fmt.Errorf("read /sys/bus/pci/devices/%s/aer_dev_correctable: is a directory", adapter)),
			aer(adapter3, checks.Fail, "fatal", checks.RebootNode, "0", "2", "fatal PCIe errors in the last 24 hours (DLP 2), link partner 0000:63:01.0"))), adapter, minutes5, quiet(minutes5)),
		odd(checktest.OnFabric("garbage in counters", nil, checktest.Links(adapter, fatal, "TOTAL_ERR_FATAL \xff"), garbledFatal)),
		odd(checktest.Scenario{Name: "unreadable PCI bus", Files: map[string]string{"sys/bus/pci/devices": ""}, Want: checks.Unreadable(fmt.Errorf("read /sys/bus/pci/devices: not a directory"))}),
		odd(checktest.OnFabric("a damaged state file", nil, nil, checks.Finding{Code: "fabric.past", Severity: checks.Warn, Message: name + ":  /past/pcie-aer.json is damaged; a new history begins"}).Holding(file, "{")),
	}
})

// Counters that a run cannot read keep their history: their errors meanwhile are judged when they can be read again.
func TestAERUnreadKeepsThePast(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	sys := fakesys.DGXH100()
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	dir := sys.Dir("0000:23:00.0")
	for i, step := range []struct {
		fatal, corrected string
		want             checks.Severity
	}{
		{"TOTAL_ERR_FATAL 0", "TOTAL_ERR_COR 0", checks.OK}, {"x", "TOTAL_ERR_COR 0", checks.Unknown}, {"x", "TOTAL_ERR_COR 0", checks.Unknown},
		{"DLP 1\nTOTAL_ERR_FATAL 1", "TOTAL_ERR_COR 0", checks.Fail},
	} {
		for file, text := range map[string]string{"proc/uptime": fmt.Sprintf("%d.00 1.00\n", 1000+300*i), dir + "/aer_dev_fatal": step.fatal + "\n", dir + "/aer_dev_correctable": step.corrected + "\n"} {
			if err := selftest.Place(root, file, text); err != nil {
				t.Fatal(err)
			}
		}
		env := &checks.Env{Host: probe.NewHost(root)}
		env.Host.SetPast("/past")
		if got := (&pcieAER{}).Run(t.Context(), env); checks.Worst(got) != step.want {
			t.Errorf("run %d: %v, want %v", i, got, step.want)
		}
	}
}

// addBridges finds both ends of each link from a root port through a switch to a device.
func TestAERPartners(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := fakesys.DGXH100().Write(root); err != nil {
		t.Fatal(err)
	}
	env := &checks.Env{Host: probe.NewHost(root)}
	chosen, _, _ := choosePCIe(env, "check_x", checktest.Of("0000:13:00.0", "0000:23:00.0", "0000:43:00.0"))
	got := map[string]string{}
	for _, e := range addBridges(env, chosen) {
		got[e.address] = e.partner
	}
	for a, b := range map[string]string{"0000:33:01.0": "0000:53:00.0", "0000:63:00.0": "0000:13:00.0", "0000:63:01.0": "0000:23:00.0", "0000:33:03.0": "0000:43:00.0"} {
		if got[a] != b || got[b] != a {
			t.Errorf("%s faces %q, which faces %q; want %s", a, got[a], got[b], b)
		}
	}
	if len(got) != 8 {
		t.Errorf("%v", got)
	}
}
