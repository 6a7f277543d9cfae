package node

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/pci"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// Every figure that a check can use is passed to the checks.
func TestEveryFigureIsKnown(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("[[platform]]\nname = \"all\"\ndevices = [\"abcd\"]\n")
	judged := 0
	for i, key := range conf.FigureKeys() {
		if words := conf.FigureKinds[key].Words; words != nil {
			fmt.Fprintf(&b, "%s = %q\n", key, words[i%len(words)])
		} else {
			fmt.Fprintf(&b, "%s = %d\n", key, min(i%7+1, conf.FigureKinds[key].Most))
		}
		if conf.FigureKinds[key].Judged {
			judged++
		}
	}
	b.WriteString("[[platform.floor]]\ntest = \"gemm\"\nalgorithm = \"bf16 cublaslt\"\nsize = 8192\nranks = 2\nvalue = 600.5\nsource = \"ours\"\nverified = true\n")
	got := PlatformsOf("/etc/nhc/profiles.toml", []byte(b.String()))("abcd", "", 1)
	if got == nil || got.Name != "all" || got.File != "/etc/nhc/profiles.toml" {
		t.Fatalf("%+v", got)
	}
	v := reflect.ValueOf(*got)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("%s is not filled", v.Type().Field(i).Name)
		}
	}
	want := []checks.Floor{{
		Test: "gemm", Algorithm: "bf16 cublaslt", Size: 8192, Ranks: 2, Value: 600.5, Unit: "TFLOP/s", Source: "ours", Verified: true,
		File: fmt.Sprintf("/etc/nhc/profiles.toml:%d", 4+len(conf.FigureKeys())),
	}}
	if diff := cmp.Diff(want, got.Floors); diff != "" {
		t.Errorf("floors (-want +got):\n%s", diff)
	}
	if want := judged + 3; v.NumField() != want {
		t.Errorf("%d fields, want %d", v.NumField(), want)
	}
	near := []string{checks.NearSwitch, checks.NearRootPort, checks.NearNUMA, checks.NearSystem}
	if diff := cmp.Diff(near, conf.FigureKinds[conf.FigureGPUNetwork].Words); diff != "" {
		t.Errorf("words (-checks +conf):\n%s", diff)
	}
	if p := PlatformsOf("", nil)("ffff", "", 1); p != nil {
		t.Errorf("%+v", p)
	}
}

// The healthy nodes of the fake library match the figures of their platforms.
func TestFakesFitTheirPlatforms(t *testing.T) {
	t.Parallel()
	for model, want := range map[fakenvml.Model]string{
		fakenvml.V100: "V100 SXM2", fakenvml.A100: "HGX A100 80GB", fakenvml.H100: "HGX H100", fakenvml.B200: "HGX B200",
	} {
		root := t.TempDir()
		if err := fakenvml.Write(root, fakenvml.Files(model, 8)); err != nil {
			t.Fatal(err)
		}
		ids, err := pci.GPUIDs(probe.NewHost(root))
		if err != nil {
			t.Fatal(err)
		}
		groups := checks.GroupPlatforms(ids, PlatformsOf("", nil))
		if len(groups) != 1 || groups[0].Platform == nil || groups[0].Platform.Name != want {
			t.Errorf("%s is %+v, want %s", model, groups, want)
			continue
		}
		p := groups[0].Platform
		for call, least := range map[string]int{
			"nvmlDeviceGetPowerManagementDefaultLimit": p.PowerLimit * 1000, "nvmlDeviceGetMaxClockInfo 0": p.GraphicsClock,
			"nvmlDeviceGetMaxClockInfo 2": p.MemoryClock, "nvmlDeviceGetMaxPcieLinkGeneration": p.PCIeGen, "nvmlDeviceGetCurrPcieLinkWidth": p.PCIeWidth,
		} {
			_, rest, found := strings.Cut(fakenvml.Scenario(model, 8), "* "+call+" = ")
			has := 0
			if _, err := fmt.Sscan(rest, &has); !found || err != nil || has < least {
				t.Errorf("%s: %s is %d, want at least %d", model, call, has, least)
			}
		}
	}
}
