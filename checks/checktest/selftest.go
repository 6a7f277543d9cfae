package checktest

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
)

// selftestsOf returns the scenarios of some checks in checks/selftest. The program has all of
// them, but a test of one package does not have the checks of the others.
func selftestsOf(t *testing.T, own []string) map[string][]selftest.Scenario {
	t.Helper()
	by := map[string][]selftest.Scenario{}
	for file, page := range readPages(t, hasAny(own)) {
		list, err := selftest.Parse(page)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, s := range list {
			by[s.Check] = append(by[s.Check], s)
		}
	}
	return by
}

// checkSelftests runs each check on the nodes of its scenarios in checks/selftest.
func checkSelftests(t *testing.T, own []string) {
	b, err := theBench()
	if err != nil {
		t.Fatal(err)
	}
	for name, list := range selftestsOf(t, own) {
		for _, s := range list {
			t.Run(name+"/"+s.Name, func(t *testing.T) {
				t.Parallel()
				if _, wrong, err := b.Try(t.Context(), &s); wrong != nil || err != nil {
					t.Error(err, strings.Join(wrong, "\n"))
				}
			})
		}
	}
}

// wholeNode lists the codes that are not about one GPU.
var wholeNode = []string{
	"gpu.amd", "gpu.none", "gpu.nvml", "gpu.past", "gpu.unsupported",
	"gpu.count", "gpu.count.slurm", "gpu.driver.library", "gpu.driver.mismatch", "gpu.driver.missing", "gpu.driver.module", "gpu.driver.unloaded", "gpu.driver.uvm", "gpu.driver.version", "gpu.mode.cc",
	"job.none", "job.gpus.unknown",
	"gpu.xid.absent", "gpu.xid.file", "gpu.xid.flood", "gpu.xid.ledger", "gpu.xid.lost", "gpu.xid.policy",
	"gpu.fabric.boot", "gpu.fabric.channels", "gpu.fabric.imex", "gpu.fabric.manager", "gpu.fabric.none", "gpu.nvlink.boot", "gpu.nvlink.mig", "gpu.vbios.one",
	"ib.none", "ib.left", "ib.unnamed", "ib.count", "ib.count.platform", "ib.errors.fabric", "ib.errors.none", "ib.errors.policy",
	"ib.firmware.board", "ib.flap.fabric", "ib.flap.log", "ib.inactive", "ib.modules", "ib.modules.abi", "ib.modules.extra", "ib.pcie.unseen",
	"ib.ports.boot", "ib.ports.count", "ib.ports.guid", "ib.ports.member", "ib.ports.slower",
	"eth.none", "eth.boot", "eth.missing", "eth.lacp",
	"fabric.past", "probe.unreadable", "klog.none", "klog.past", "klog.lost",
	"net.dns.none", "net.dns.server", "net.dns.failed", "net.dns.name", "net.dns.slow", "net.dns.config",
	"net.route.missing", "net.route.nowhere", "net.route.interface", "net.route.gateway", "net.route.unread",
	"hw.edac.corrected", "hw.edac.none", "hw.edac.pages", "hw.edac.uncorrected", "hw.edac.unread",
	"nvme.none", "nvme.missing", "nvme.gone", "nvme.count", "pcie.aer.none", "pcie.none", "pcie.count",
	"topology.none", "topology.hidden", "topology.unbalanced", "topology.file",
}

// deviceless lists the checks without a device: one failing scenario is enough for them,
// whatever it names.
var deviceless = []string{"check_hw_edac", "check_ib_modules", "check_net_dns", "check_net_route", "check_num_nvme_devs", "check_nvme_count"}

// checkSelftestOneOfEight rejects a check of GPUs unless the self-test shows that it passes
// on eight healthy GPUs and, for every code that it can report, that it names the one faulty
// GPU of eight and no other.
func checkSelftestOneOfEight(t *testing.T, own []string) {
	by := selftestsOf(t, own)
	for _, name := range own {
		if !selftested(name) {
			continue
		}
		healthy, fails, shown, alone := false, false, map[string]bool{}, map[string]bool{}
		ofGPUs := map[string]bool{} // codes that some scenario reports for a GPU
		for _, s := range by[name] {
			healthy = healthy || len(s.Want) == 0 && hasEight(&s)
			named := map[string]bool{}
			for _, w := range s.Want {
				shown[w.Code] = true
				named[w.Device] = true
			}
			for _, w := range s.Want {
				one := hasEight(&s) && len(named) == 1 && isOne(w.Device) && strings.Contains(w.Message, w.Device)
				alone[w.Code] = alone[w.Code] || one
				if isOne(w.Device) {
					ofGPUs[w.Code] = true
				}
				fails = fails || w.Severity == checks.Fail.String() && (one && s.Moved(0) != nil || slices.Contains(deviceless, name))
			}
		}
		if !healthy {
			t.Errorf("%s: no scenario with eight GPUs that passes", name)
		}
		if !fails {
			t.Errorf("%s: no scenario with one failing GPU of eight that works with any GPU", name)
		}
		info, _ := checks.Lookup(name)
		codes := map[string]bool{}
		for code := range info.Advice() {
			codes[code] = true
		}
		for code := range ofGPUs {
			codes[code] = true
		}
		for _, code := range slices.Sorted(maps.Keys(codes)) {
			switch {
			case !shown[code]:
				t.Errorf("%s: no scenario shows %s", name, code)
			case !alone[code] && (ofGPUs[code] || !slices.Contains(wholeNode, code)):
				t.Errorf("%s: no scenario where %s names exactly one GPU of eight", name, code)
			}
		}
	}
}

// hasEight reports whether the node of a scenario has eight GPUs according to the driver.
func hasEight(s *selftest.Scenario) bool {
	node, err := selftest.ReadNode(s.Node)
	if err != nil {
		return false
	}
	gpus := map[string]bool{}
	for _, files := range []map[string]string{node.Files, s.Files} {
		for f := range files {
			if ok, _ := filepath.Match("proc/driver/nvidia/gpus/*/information", f); ok {
				gpus[f] = true
			}
		}
	}
	return len(gpus) == 8
}

// isOne reports whether a device is one of several: a GPU, a port or a disk with name and
// address, or an address alone.
func isOne(device string) bool {
	name, address, found := strings.Cut(device, " ")
	if !found {
		return strings.Count(name, ":") == 2
	}
	return strings.Count(address, ":") == 2
}

// checkSelftestIsTheUnitTests compares the written files with the scenarios of the unit tests:
// each node, snapshot and file.
func checkSelftestIsTheUnitTests(t *testing.T, own []string) {
	by := selftestsOf(t, own)
	for _, name := range own {
		if !selftested(name) {
			continue
		}
		list := slices.DeleteFunc(scenariosOf(name), isLeftOut)
		if len(list) != len(by[name]) {
			t.Errorf("%s: %d scenarios, want %d: %s writes them", name, len(by[name]), len(list), selftestWrite)
			continue
		}
		for i, s := range list {
			t.Run(name+"/"+s.Name, func(t *testing.T) {
				t.Parallel()
				same(t, s, &by[name][i])
			})
		}
	}
}

func same(t *testing.T, s Scenario, written *selftest.Scenario) {
	t.Helper()
	base, err := selftest.ReadNode(written.Node)
	if err != nil {
		t.Fatal(err)
	}
	if err := base.Change(written.NVML); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.Platform, written.Platform); diff != "" {
		t.Errorf("platform (-want +got):\n%s", diff)
	}
	nvml := base.NVML
	if written.Error != nil {
		why, bad := selftest.ParseError(written.Error)
		if nvml = nil; bad != nil || fmt.Sprint(why) != fmt.Sprint(s.NVMLErr) || errors.Is(why, probe.ErrNoLibrary) != errors.Is(s.NVMLErr, probe.ErrNoLibrary) {
			t.Errorf("error %v (%v), want %v", why, bad, s.NVMLErr)
		}
	}
	if want, got := flatten(s.NVML), flatten(nvml); !reflect.DeepEqual(want, got) { // cmp takes fifty times as long
		t.Errorf("NVML (-want +got):\n%s", cmp.Diff(want, got))
	}
	files, links := map[string]string{}, map[string]string{}
	maps.Copy(files, written.Kept(base))
	maps.Copy(files, written.Files)
	for f, content := range files {
		files[f] = selftest.RawBytes(content)
	}
	if diff := cmp.Diff(s.Files, files, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	maps.Copy(links, written.KeptLinks(base))
	maps.Copy(links, written.Links)
	if diff := cmp.Diff(s.Links, links, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
}
