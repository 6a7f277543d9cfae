package lbnl

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestHWEDAC(t *testing.T) { checktest.Run(t, "check_hw_edac") }

const (
	edacDir  = "sys/devices/system/edac/mc/"
	edacPast = "past/hw-edac.json"
	edacBoot = "658f832e-2c36-42e1-a29c-a17c2e3298d2"
)

// edacHistory returns the history of a module or controller, last read some seconds ago.
func edacHistory(boot, name string, ago int, rest string) string {
	return fmt.Sprintf(`{"version":1,"boot":%q,"devices":{%q:{"seen":%d,%s}}}`, boot, name, 1767323045-ago, rest)
}

// edacSeries returns its counters, which have had their values for that time.
func edacSeries(ago int, ue, ce uint64) string {
	at := 1767323045 - ago
	return fmt.Sprintf(`"series":{"ue":[[%d,%d]],"ce":[[%d,%d]]}`, at, ue, at, ce)
}

// meminfo is the file of a node with some memory out of use.
func meminfo(kB int) map[string]string {
	return map[string]string{
		"proc/meminfo": fmt.Sprintf("MemTotal:       2113512844 kB\nMemFree:        2000000000 kB\nHardwareCorrupted: %5d kB\n", kB),
		"proc/stat":    "cpu  0 0 0 0\nbtime 1767000000\n", "proc/uptime": "323045.00 1.00\n", "proc/sys/kernel/random/boot_id": edacBoot + "\n",
	}
}

var _ = checktest.Table("check_hw_edac", func(name string) []checktest.Scenario {
	const dimm, place = "mc1/dimm2", " (CPU_SrcID#0_MC#1_Chan#1_DIMM#0, channel 1 slot 0, Intel_10nm Socket#0 IMC#1)"
	const minutes5, hour, day = 300, 3600, 86400
	about := func(device string, f checks.Finding, text string) checks.Finding {
		f.Code = "hw.edac." + f.Code
		return checktest.About(name, checks.Device{Kind: "dimm", Name: device}, f, text)
	}
	uncorrected := func(device, n, text string) checks.Finding {
		return about(device, checks.Finding{Code: "uncorrected", Severity: checks.Fail, Remedy: checks.RebootNode, Want: "0", Got: n}, "uncorrected memory errors since boot"+text)
	}
	corrected := func(severity checks.Severity, device, limit, n, text string) checks.Finding {
		f := checks.Finding{Code: "corrected", Severity: severity, Remedy: checks.ReseatOrRMA, Want: "at most " + limit + " in 24 hours", Got: n}
		return about(device, f, "corrected memory errors"+text)
	}
	unread := func(device, why string) checks.Finding {
		return about(device, checks.Finding{Code: "unread", Severity: checks.Unknown}, "cannot be read: "+why)
	}
	nodeUnread := func(why string) checks.Finding {
		text := "cannot be read: " + why
		return checks.Finding{Code: "hw.edac.unread", Severity: checks.Unknown, Message: name + ":  " + text, Got: text}
	}
	again := uncorrected(dimm, "1", place+", again after a reboot")
	again.Remedy, again.Do = checks.ReseatOrRMA, "A reboot did not help: replace the module. The BMC's event log names its slot."
	pages := checks.Finding{Code: "hw.edac.pages", Severity: checks.Warn, Want: "0 kB", Got: "8 kB", Message: name + ":  memory out of use for errors of the hardware, want 0 kB, got 8 kB"}
	none := checks.Finding{Code: "hw.edac.none", Severity: checks.Skip, Message: name + ":  no EDAC driver has found a memory controller (amd64_edac, skx_edac, i10nm_edac, ghes_edac)"}

	set := func(files ...string) func(*fakesys.Node) { // pairs of file and content
		return func(n *fakesys.Node) {
			for i := 0; i < len(files); i += 2 {
				n.Files[edacDir+files[i]] = files[i+1]
			}
		}
	}
	ue := func(n string) func(*fakesys.Node) {
		return set("mc1/ue_count", n+"\n", "mc1/dimm2/dimm_ue_count", n+"\n")
	}
	ce := func(n string) func(*fakesys.Node) {
		return set("mc1/ce_count", n+"\n", "mc1/dimm2/dimm_ce_count", n+"\n")
	}
	was := func(s checktest.Scenario, ago int, ue, ce uint64) checktest.Scenario {
		return s.Holding(edacPast, edacHistory(edacBoot, dimm, ago, edacSeries(ago, ue, ce)))
	}
	unloaded := func(n *fakesys.Node) {
		maps.DeleteFunc(n.Files, func(file, _ string) bool { return strings.HasPrefix(file, edacDir) })
	}
	garbage := "parse /sys/devices/system/edac/mc/mc1/dimm2/dimm_ue_count: invalid argument"
	const badCount = "mc1/dimm2/dimm_ue_count"

	// Other nodes.
	plain := func(text string, kB int, files map[string]string, want ...checks.Finding) checktest.Scenario {
		all := meminfo(kB)
		for file, content := range files {
			all[edacDir+file] = content
		}
		return checktest.Scenario{Name: text, Files: all, Past: "/past", Want: want}
	}
	ranks := map[string]string{"mc0/mc_name": "F19h_M10h\n", "mc0/ue_count": "0\n", "mc0/ce_count": "0\n"}
	for i := range 8 {
		dir := fmt.Sprintf("mc0/rank%d/", i)
		ranks[dir+"dimm_label"], ranks[dir+"dimm_location"] = fmt.Sprintf("mc#0csrow#%dchannel#%d\n", i/4, i%4), fmt.Sprintf("csrow %d channel %d \n", i/4, i%4)
		ranks[dir+"dimm_ue_count"], ranks[dir+"dimm_ce_count"] = "0\n", "0\n"
	}
	badRank := maps.Clone(ranks)
	badRank["mc0/ue_count"], badRank["mc0/rank5/dimm_ue_count"] = "1\n", "1\n"
	old := map[string]string{
		"mc0/mc_name": "Haswell Socket#0\n", "mc0/ue_count": "1\n", "mc0/ce_count": "20\n", "mc0/dimm0/dimm_label": "A1\n",
		"mc0/csrow0/ue_count": "0\n", "mc0/csrow0/ch0_ce_count": "0\n", "mc0/csrow0/ch0_dimm_label": "A1\n",
		"mc0/csrow1/ue_count": "1\n", "mc0/csrow1/ch0_ce_count": "0\n", "mc0/csrow1/ch1_ce_count": "20\n", "mc0/csrow1/ch1_dimm_label": "B2\n",
	}
	bare := func(ue, ce string) map[string]string {
		return map[string]string{"mc0/mc_name": "ghes_edac\n", "mc0/ue_count": ue + "\n", "mc0/ce_count": ce + "\n"}
	}
	nv := map[string]string{"mc0/mc_name": "HBM\n", "mc0/ue_count": "0\n", "mc0/ce_count": "3\n", "mc0/dimm0/dimm_mem_type": "High-bandwidth-memory-Gen2\n",
		"mc0/dimm0/dimm_ue_count": "0\n", "mc0/dimm0/dimm_ce_count": "3\n", "mc0/dimm1/dimm_mem_type": "Non-volatile-RAM\n", "mc0/dimm1/dimm_ue_count": "0\n", "mc0/dimm1/dimm_ce_count": "0\n"}
	oldPast := edacHistory(edacBoot, "mc0/csrow1/ch1", hour, fmt.Sprintf(`"series":{"ce":[[%d,0]]}`, 1767323045-hour))
	barePast := edacHistory(edacBoot, "mc0", hour, edacSeries(hour, 0, 0))
	return []checktest.Scenario{
		checktest.OnFabric("healthy", nil, nil),
		checktest.OnFabric("as wanted", checktest.Of("-w", "100", "-f", "1000"), nil).OrTable(map[string]any{"warn": int64(100), "fail": int64(1000)}),
		checktest.OnFabric("uncorrected errors of one of 32 modules", nil, ue("1"), uncorrected(dimm, "1", place)),
		was(checktest.OnFabric("an uncorrected error since the last run", nil, ue("2"), uncorrected(dimm, "2", place)), minutes5, 1, 0),
		checktest.OnFabric("a module without a label", nil, func(n *fakesys.Node) {
			ue("1")(n)
			set("mc1/dimm2/dimm_label", "")(n)
		}, uncorrected(dimm, "1", " (channel 1 slot 0, Intel_10nm Socket#0 IMC#1)")),
		checktest.OnFabric("uncorrected errors of no known module", nil, set("mc1/ue_count", "3\n", "mc1/ue_noinfo_count", "2\n", badCount, "1\n"),
			uncorrected(dimm, "1", place), uncorrected("mc1", "2", " of an unknown module (Intel_10nm Socket#0 IMC#1)")),
		was(checktest.OnFabric("the driver was loaded again", nil, nil, uncorrected(dimm, "1", " (Intel_10nm Socket#0 IMC#1)")), minutes5, 1, 0),
		was(checktest.OnFabric("the driver was unloaded", nil, unloaded, uncorrected(dimm, "1", ", and its driver does not show it now")), minutes5, 1, 0),
		was(checktest.OnFabric("the driver was unloaded, without an error", nil, unloaded, none), minutes5, 0, 5),
		checktest.OnFabric("an uncorrected error in the last boot", nil, nil).
			Holding(edacPast, edacHistory("x", dimm, minutes5, `"marks":{"x":[1767322000]},`+edacSeries(minutes5, 1, 0))),
		checktest.OnFabric("an uncorrected error in this boot and in the last", nil, ue("1"), again).
			Holding(edacPast, edacHistory("x", dimm, minutes5, `"marks":{"x":[1767322000]},`+edacSeries(minutes5, 1, 0))),
		checktest.OnFabric("an uncorrected error in this boot, and one two months ago", nil, ue("1"), uncorrected(dimm, "1", place)).
			Holding(edacPast, edacHistory("x", dimm, minutes5, `"marks":{"y":[1762000000]},`+edacSeries(minutes5, 0, 0))),

		checktest.OnFabric("many corrected errors in the first run", nil, ce("5000")),
		was(checktest.OnFabric("few corrected errors", nil, ce("9")), hour, 0, 0),
		was(checktest.OnFabric("corrected errors", nil, ce("10"), corrected(checks.Warn, dimm, "9", "10", place)), hour, 0, 0),
		was(checktest.OnFabric("a flood of corrected errors", nil, ce("5000"), corrected(checks.Warn, dimm, "9", "5000", place)), hour, 0, 0),
		was(checktest.OnFabric("a flood of corrected errors that fails", checktest.Of("-f", "1000"), ce("5000"), corrected(checks.Fail, dimm, "1000", "5000", place)), hour, 0, 0),
		was(checktest.OnFabric("less corrected errors than allowed", checktest.Of("-w", "100"), ce("50")), hour, 0, 0),
		was(checktest.OnFabric("corrected errors that fail below the warning", checktest.Of("-w", "100", "-f", "20"), ce("50"), corrected(checks.Fail, dimm, "20", "50", place)), hour, 0, 0),
		was(checktest.OnFabric("few corrected errors of three days without a run", nil, ce("27")), 3*day, 0, 0),
		was(checktest.OnFabric("more corrected errors of three days without a run", nil, ce("60"), corrected(checks.Warn, dimm, "9", "20", place)), 3*day, 0, 0),
		was(checktest.OnFabric("corrected errors, and counters that were reset", nil, ce("3")), minutes5, 0, 100000),
		checktest.OnFabric("corrected errors of no known module", nil, set("mc1/ce_count", "40\n"), corrected(checks.Warn, "mc1", "9", "40", " of an unknown module (Intel_10nm Socket#0 IMC#1)")).
			Holding(edacPast, edacHistory(edacBoot, "mc1", hour, edacSeries(hour, 0, 0))),
		checktest.OnFabric("memory out of use", nil, func(n *fakesys.Node) { n.Files["proc/meminfo"] = meminfo(8)["proc/meminfo"] }, pages),

		plain("no EDAC driver", 0, nil, none),
		plain("no EDAC driver, but memory out of use", 8, nil, none, pages),
		plain("no memory controller", 0, map[string]string{"power/": ""}, none),
		plain("ranks of AMD", 0, ranks),
		plain("a rank of AMD", 0, badRank, uncorrected("mc0/rank5", "1", " (mc#0csrow#1channel#1, csrow 1 channel 1, F19h_M10h)")),
		plain("an old kernel", 0, old, uncorrected("mc0/csrow1", "1", " (Haswell Socket#0)"), corrected(checks.Warn, "mc0/csrow1/ch1", "9", "20", " (B2, Haswell Socket#0)")).Holding(edacPast, oldPast),
		plain("a controller without modules", 0, bare("0", "9")).Holding(edacPast, barePast),
		plain("errors of a controller without modules", 0, bare("1", "10"), uncorrected("mc0", "1", " of an unknown module (ghes_edac)"),
			corrected(checks.Warn, "mc0", "9", "10", " of an unknown module (ghes_edac)")).Holding(edacPast, barePast),
		plain("HBM and an NVDIMM", 0, nv),

		checktest.Odd(checktest.OnFabric("garbage in a counter", nil, set(badCount, "many\n"), unread(dimm, garbage))),
		checktest.Odd(checktest.OnFabric("garbage in a counter, an error of another module", nil, set(badCount, "\xff\n", "mc1/ue_count", "1\n", "mc1/dimm3/dimm_ue_count", "1\n"),
			unread(dimm, garbage), uncorrected("mc1/dimm3", "1", " (CPU_SrcID#0_MC#1_Chan#1_DIMM#1, channel 1 slot 1, Intel_10nm Socket#0 IMC#1)"))),
		checktest.Odd(checktest.OnFabric("garbage in a counter, an error of its controller", nil, set(badCount, "\n", "mc1/ue_count", "1\n"),
			unread(dimm, garbage), uncorrected("mc1", "1", " of an unknown module (Intel_10nm Socket#0 IMC#1)"))),
		checktest.Odd(was(checktest.OnFabric("garbage in a counter that had errors", nil, set(badCount, "4294967296\n", "mc1/ue_count", "1\n"),
			unread(dimm, garbage), uncorrected(dimm, "1", " (Intel_10nm Socket#0 IMC#1)")), minutes5, 1, 0)),
		checktest.Odd(checktest.OnFabric("unreadable counters", nil, func(n *fakesys.Node) {
			delete(n.Files, edacDir+"mc1/ce_count")
			delete(n.Files, edacDir+"mc1/dimm2/dimm_ce_count")
			set("mc1/ce_count/", "", "mc1/dimm2/dimm_ce_count/", "")(n)
		}, unread(dimm, "read /sys/devices/system/edac/mc/mc1/dimm2/dimm_ce_count: is a directory"), unread("mc1", "read /sys/devices/system/edac/mc/mc1/ce_count: is a directory"))),
		checktest.Odd(checktest.OnFabric("a controller without counters", nil, func(n *fakesys.Node) { delete(n.Files, edacDir+"mc1/ue_count") },
			unread("mc1", "read /sys/devices/system/edac/mc/mc1/ue_count: file does not exist"))),
		checktest.Odd(checktest.Changed(was(checktest.OnFabric("an unreadable directory", nil, unloaded,
			nodeUnread("read /sys/devices/system/edac/mc: not a directory"), uncorrected(dimm, "1", ", and its driver does not show it now")), minutes5, 1, 0),
			func(s *checktest.Scenario) { s.Files[strings.TrimSuffix(edacDir, "/")] = "" })),
		checktest.Odd(checktest.OnFabric("no meminfo", nil, func(n *fakesys.Node) { delete(n.Files, "proc/meminfo") }, nodeUnread("read /proc/meminfo: no such file or directory"))),
		checktest.Odd(checktest.OnFabric("a damaged state file", nil, ue("1"), uncorrected(dimm, "1", place),
			checks.Finding{Code: "fabric.past", Severity: checks.Warn, Message: name + ":  /past/hw-edac.json is damaged; a new history begins"}).Holding(edacPast, "{")),
	}
})

// TestHWEDACRuns: what a run stores is what the next judges. Each row is a run: when, the counters, and its findings.
func TestHWEDACRuns(t *testing.T) {
	t.Parallel()
	type row struct {
		after  int // seconds
		boot   string
		ue, ce string // of the module; "-": garbage
		want   string
		all    string // corrected errors of the controller; "": those of the module
	}
	for text, rows := range map[string][]row{
		"a controller that is read before its module counts": {{0, "a", "0", "0", "", "20000"}, {300, "a", "0", "1", "", "20000"}, {300, "a", "0", "1", "", "20001"}},
		"a pause is judged once":                             {{0, "a", "0", "0", "", ""}, {10 * 86400, "a", "0", "50", "", ""}, {300, "a", "0", "50", "", ""}, {300, "a", "0", "60", "corrected warn", ""}},
		"a day is judged as a whole":                         {{0, "a", "0", "0", "", ""}, {7200, "a", "0", "5", "", ""}, {7200, "a", "0", "10", "corrected warn", ""}, {7200, "a", "0", "10", "corrected warn", ""}, {80000, "a", "0", "10", "", ""}},
		"until the boot":                                     {{0, "a", "1", "0", "uncorrected reboot-node", ""}, {86400 * 2, "a", "0", "0", "uncorrected reboot-node", ""}, {300, "b", "0", "0", "", ""}, {300, "b", "1", "0", "uncorrected reseat-or-rma", ""}},
		"two runs at once are one boot":                      {{0, "a", "0", "0", "", ""}, {12, "a", "1", "0", "uncorrected reboot-node", ""}, {300, "a", "1", "0", "uncorrected reboot-node", ""}},
		"an unread counter has no new one":                   {{0, "a", "1", "0", "uncorrected reboot-node", ""}, {300, "a", "-", "0", "unread , uncorrected reboot-node", ""}, {300, "a", "1", "0", "uncorrected reboot-node", ""}},
		"an unread counter at first":                         {{0, "a", "-", "0", "unread , uncorrected reboot-node", ""}, {300, "a", "1", "0", "uncorrected reboot-node", ""}},
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			now := 323045
			past := t.TempDir()
			for i, r := range rows {
				now += r.after
				total := r.ue
				if total == "-" {
					total = "1"
				}
				files := meminfo(0)
				maps.Copy(files, map[string]string{
					"proc/uptime": fmt.Sprintf("%d.00 1.00\n", now), "proc/sys/kernel/random/boot_id": r.boot + "\n", edacDir + "mc0/mc_name": "x\n", edacDir + "mc0/ue_count": total + "\n", edacDir + "mc0/ce_count": cmp.Or(r.all, r.ce) + "\n",
					edacDir + "mc0/dimm0/dimm_ue_count": r.ue + "\n", edacDir + "mc0/dimm0/dimm_ce_count": r.ce + "\n",
				})
				root := checktest.Scenario{Files: files, Links: map[string]string{"past": past}}.Build(t)
				env := &checks.Env{Host: probe.NewHost(root)}
				env.Host.SetPast("/past")
				var got []string
				for _, f := range checktest.Bound(t, []string{"check_hw_edac"}).Run(context.Background(), env) {
					what := string(f.Remedy)
					if f.Severity == checks.Warn {
						what = "warn"
					}
					got = append(got, strings.TrimPrefix(f.Code, "hw.edac.")+" "+what)
				}
				if diff := gocmp.Diff(r.want, strings.Join(got, ", ")); diff != "" {
					t.Errorf("run %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}
