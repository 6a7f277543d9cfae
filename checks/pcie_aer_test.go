package checks

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

// aerBefore is a history of a device, the last of it so long ago: "fatal":[[-300,1]]
// has times relative to now.
func aerBefore(device string, ago time.Duration, series map[string][]point) string {
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

// quiet is a history without an error.
func quiet(ago time.Duration) map[string][]point {
	at := -int64(ago / time.Second)
	return map[string][]point{"fatal": {{at, 0}}, "nonfatal": {{at, 0}}, "corrected": {{at, 0}}}
}

func TestPCIeAER(t *testing.T) { testCheck(t, "check_pcie_aer") }

var _ = table("check_pcie_aer", func(name string) []scenario {
	const file = "past/pcie-aer.json"
	aer := func(d Device, severity Severity, code string, remedy Remedy, want, got, text string) Finding {
		return about(name, d, Finding{Code: "pcie.aer." + code, Severity: severity, Remedy: remedy, Want: want, Got: got}, text)
	}
	const adapter, port, fatal, nonfatal, corrected = "0000:23:00.0", "0000:63:01.0", "aer_dev_fatal", "aer_dev_nonfatal", "aer_dev_correctable"
	was := func(s scenario, device string, ago time.Duration, series map[string][]point) scenario {
		return s.holding(file, aerBefore(device, ago, series))
	}
	const minutes5, day = 5 * time.Minute, 24 * time.Hour
	storm := links(adapter, corrected, "RxErr 300\nBadTLP 700\nTOTAL_ERR_COR 1000")
	died := func(n uint64, ago time.Duration) map[string][]point {
		s := quiet(30 * time.Hour)
		s["fatal"] = append(s["fatal"], point{-int64(ago / time.Second), n})
		s["fatal DLP"] = []point{{-int64(ago / time.Second), n}}
		return s
	}
	dlp := links(adapter, fatal, "DLP 2\nTOTAL_ERR_FATAL 2")
	odd := func(s scenario) scenario {
		s.broken = true
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
	skip := Finding{Code: "pcie.aer.none", Severity: Skip, Message: name + ":  the kernel counts no PCIe errors of such devices: gpu nvme"}
	unreadableFatal := pcieUnknown(name, Device{Kind: "pci", PCI: adapter}, fmt.Errorf("read /sys/bus/pci/devices/%s/aer_dev_fatal: is a directory", adapter))
	return []scenario{
		onFabric("healthy", nil, nil),
		onRoCE("healthy, RoCE", nil, nil),
		onFabric("many corrected errors, no past", nil, storm),
		was(onFabric("corrected errors", nil, storm, aer(adapter3, Warn, "corrected", ReseatOrRMA, "at most 8 a minute", "200.0",
			"corrected PCIe errors (BadTLP 700, RxErr 300), link partner 0000:63:01.0")), adapter, minutes5, quiet(minutes5)),
		was(onFabric("few corrected errors", nil, links(adapter, corrected, "RxErr 40\nTOTAL_ERR_COR 40")), adapter, minutes5, quiet(minutes5)),
		was(onFabric("more corrected errors than allowed", of("-r", "100", "infiniband"), storm, aer(adapter3, Fail, "corrected", ReseatOrRMA, "at most 100 a minute", "200.0",
			"corrected PCIe errors (BadTLP 700, RxErr 300), link partner 0000:63:01.0")).orTable(map[string]any{"rate": int64(100), "devices": []any{"infiniband"}}), adapter, minutes5, quiet(minutes5)),
		was(onFabric("corrected errors on a bridge", nil, links(port, corrected, "BadDLLP 1000\nTOTAL_ERR_COR 1000"), aer(port3, Warn, "corrected", ReseatOrRMA, "at most 8 a minute", "200.0",
			"corrected PCIe errors (BadDLLP 1000), link partner 0000:23:00.0")), port, minutes5, quiet(minutes5)),
		was(onFabric("corrected errors above a switch", nil, links("0000:53:00.0", corrected, "TOTAL_ERR_COR 1000"), aer(switch3, Warn, "corrected", ReseatOrRMA, "at most 8 a minute", "200.0",
			"corrected PCIe errors, link partner 0000:33:01.0")), "0000:53:00.0", minutes5, quiet(minutes5)),
		was(onFabric("a fatal error", nil, dlp, aer(adapter3, Fail, "fatal", RebootNode, "0", "2", "fatal PCIe errors in the last 24 hours (DLP 2), link partner 0000:63:01.0")), adapter, minutes5, quiet(minutes5)),
		was(onFabric("a fatal error of this morning", nil, dlp, aer(adapter3, Fail, "fatal", RebootNode, "0", "2", "fatal PCIe errors in the last 24 hours (DLP 2), link partner 0000:63:01.0")),
			adapter, minutes5, died(2, 20*time.Hour)),
		was(onFabric("a fatal error of the day before", nil, dlp), adapter, minutes5, died(2, day+time.Hour)),
		onFabric("fatal errors before the first run", nil, dlp, aer(adapter3, Warn, "fatal", RebootNode, "0", "2", "fatal PCIe errors since the node was booted (DLP 2), link partner 0000:63:01.0")),
		was(onFabric("uncorrected errors", nil, links(adapter, nonfatal, "CmpltTO 3\nUnsupReq 2\nTOTAL_ERR_NONFATAL 5"), aer(adapter3, Warn, "nonfatal", "", "0", "3",
			"uncorrected PCIe errors in the last hour (CmpltTO 3), link partner 0000:63:01.0")), adapter, minutes5, quiet(minutes5)),
		was(onFabric("unsupported requests", nil, links(adapter, nonfatal, "UnsupReq 5\nTOTAL_ERR_NONFATAL 5")), adapter, minutes5, quiet(minutes5)),
		was(onFabric("counters that were reset", nil, nil), adapter, minutes5, map[string][]point{"fatal": {{-300, 7}}, "nonfatal": {{-300, 7}}, "corrected": {{-300, 100000}}}),
		{name: "no PCI bus", words: of("gpu", "nvme"), want: []Finding{skip}},
		onFabric("counters are not kept", of("gpu", "nvme"), noCounters, skip),
		odd(onFabric("unreadable counters", nil, links(adapter, fatal+"/", ""), unreadableFatal)),
		odd(onFabric("garbage in counters", nil, links(adapter, fatal, "TOTAL_ERR_FATAL \xff"))),
		odd(scenario{name: "unreadable PCI bus", files: map[string]string{"sys/bus/pci/devices": ""}, want: unreadable(fmt.Errorf("read /sys/bus/pci/devices: not a directory"))}),
		odd(onFabric("a past that is broken", nil, nil, Finding{Code: "fabric.past", Severity: Warn, Message: name + ":  read /past/pcie-aer.json: unexpected end of JSON input; it is begun anew"}).holding(file, "{")),
	}
})

// Which end of a link faces which, from a root port over a switch to a device.
func TestAERPartners(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := fakesys.DGXH100().Write(root); err != nil {
		t.Fatal(err)
	}
	env := &Env{Host: probe.NewHost(root)}
	chosen, _, _ := pcieChosen(env, "check_x", of("0000:13:00.0", "0000:23:00.0", "0000:43:00.0"))
	got := map[string]string{}
	for _, e := range withBridges(env, chosen) {
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
