package conf

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// figureChecks names the checks that judge by a figure, and what a device that misses it does.
var figureChecks = map[string][2]string{
	FigureGPUs:             {"check_gpu_count", "fails, if the bus has a number that the platform never has"},
	FigurePowerLimit:       {"check_gpu_power", "warns"},
	FigureGraphicsClock:    {"check_gpu_clocks", "warns"},
	FigureMemoryClock:      {"check_gpu_clocks", "warns"},
	FigurePCIeGen:          {"check_gpu_pcie", "warns"},
	FigurePCIeWidth:        {"check_gpu_pcie", "fails, where the kernel shows no slot above the GPU (most virtual machines); elsewhere the slot decides"},
	FigureMemoryNode:       {"check_gpu_procs", "1: memory in use without a process is page cache"},
	FigureRemappedRows:     {"check_gpu_remap", "fails at this number, instead of 512"},
	FigureDRAMErrors:       {"check_gpu_ecc", "warns above it"},
	FigureSRAMErrors:       {"check_gpu_ecc", "warns above it"},
	FigureNVLinks:          {"check_gpu_nvlink", "warns; fails if earlier runs or the other GPUs also had more"},
	FigureNVLinkBandwidth:  {"check_gpu_nvlink", "warns"},
	FigureNVLinkGPUs:       {"check_gpu_nvlink", "`nvlinks` is not judged on smaller nodes without NVSwitches"},
	FigureNVSwitchGPUs:     {"check_gpu_fabric", "says which nodes need the fabric manager"},
	FigureNVLinkDomain:     {"check_gpu_fabric", "says which nodes need a cluster UUID"},
	FigureMemoryPeak:       {"check_gpu_membw", "warns: triad below 80 % of it"},
	FigureBF16:             {"check_gpu_gemm, check_gpu_soak", "warns: BF16 by cuBLASLt, n 8192, below 80 % of it (70 % in a soak)"},
	FigureNetworkPorts:     {"check_ib_ports", "warns"},
	FigureNetworkRate:      {"check_ib_ports", "warns"},
	FigureNetworkGPUs:      {"check_hw_topology", "warns"},
	FigureNetworkPCIeGen:   {"check_ib_pcie", "warns"},
	FigureNetworkPCIeWidth: {"check_ib_pcie", "warns"},
	FigureNetworkTreeGen:   {"check_ib_pcie", "warns"},
	FigureGPUNetwork:       {"check_hw_topology", "warns"},
}

// TestPlatformPage compares docs/reference/platforms.md with the built-in platforms, or writes
// it.
func TestPlatformPage(t *testing.T) {
	t.Parallel()
	const path, write = "../docs/reference/platforms.md", "NHC_GPU_WRITE=docs go test ./conf -run PlatformPage"
	var page strings.Builder
	page.WriteString("# Platforms\n\n[Thresholds and profiles](../thresholds.md) shows how to change a figure.\n" +
		"`nhc-gpu platforms NAME` prints a platform's figures with the source of each.\n\n<!-- " + write + " writes this page. -->\n\n" +
		"## Keys\n\nFigures are of one GPU, except those of the node's GPUs and of its network.\n\n| key | unit | what | used by | if a device misses it |\n|---|---|---|---|---|\n")
	for _, judged := range []bool{true, false} {
		for _, key := range FigureKeys() {
			kind := FigureKinds[key]
			if kind.Judged != judged {
				continue
			}
			by, known := figureChecks[key]
			if known != judged {
				t.Errorf("%s: judged %v, and figureChecks has it: %v", key, judged, known)
			}
			if !judged {
				by[0] = "none, for your information"
			}
			what := kind.What
			if kind.Words != nil {
				what += ": `" + strings.Join(kind.Words, "`, `") + "`"
			}
			fmt.Fprintf(&page, "| `%s` | %s | %s | %s | %s |\n", key, kind.Unit, what, by[0], by[1])
		}
	}
	page.WriteString("\n## Built-in platforms\n\nPower limit, clock, PCIe, NVLinks and network are minima: a device that has more passes. A dash: the\nfigure is not known, and not judged.\n\n| platform | PCI device | GPUs | power limit, W, at least | graphics clock, MHz, at least | PCIe, at least | NVLinks, at least | network ports, Gb/s, at least | file |\n|---|---|---|---|---|---|---|---|---|\n")
	list, err := ShippedPlatforms()
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		p := &list[i]
		of := func(key string) string {
			f, ok := p.Figures[key]
			if !ok {
				return "-"
			}
			return strings.Trim(f.value(FigureKinds[key].Words), "[]\"")
		}
		pcie, network := of(FigurePCIeGen)+" x"+of(FigurePCIeWidth), of(FigureNetworkPorts)+" x "+of(FigureNetworkRate)
		if network == "- x -" {
			network = "-"
		}
		if pcie == "- x-" {
			pcie = "-"
		}
		fmt.Fprintf(&page, "| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", p.Name, strings.Join(p.Devices, ", "), of(FigureGPUs), of(FigurePowerLimit),
			of(FigureGraphicsClock), pcie, of(FigureNVLinks), network, strings.SplitN(p.Pos.String(), ":", 2)[0])
	}
	if os.Getenv("NHC_GPU_WRITE") == "docs" {
		if err := os.WriteFile(path, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(page.String(), string(got)); diff != "" {
		t.Errorf("%s is not what the profiles say; %s writes it (-want +got):\n%s", path, write, diff)
	}
}
