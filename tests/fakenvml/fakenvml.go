// Package fakenvml builds a libnvidia-ml.so.1 for tests, which answers as a scenario defines:
// README.md describes its language. The program under test loads it like NVIDIA's own.
package fakenvml

import (
	"embed"
	"fmt"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/tests/fakelib"
)

//go:embed src nodes kinds.toml
var files embed.FS

// Model is the GPU model of a node: the name of a file in nodes/.
type Model string

// The models.
const (
	V100 Model = "v100"
	A100 Model = "a100"
	H100 Model = "h100"
	B200 Model = "b200"

	H100NVL Model = "h100nvl"
	GB200   Model = "gb200"
)

// Old are the functions that a driver of release 470 does not have.
var Old = []string{
	"nvmlDeviceGetDefaultEccMode", "nvmlDeviceGetNumaNodeId", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetGpuMaxPcieLinkGeneration", "nvmlDeviceGetMarginTemperature",
	"nvmlDeviceGetRepairStatus", "nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetUnrepairableMemoryFlag_v1",
	"nvmlSystemGetConfComputeState", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
	"nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMemoryInfo_v2",
	"nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetNvLinkRemoteDeviceType",
}

// Scenario returns a healthy node with that number of GPUs of a model, changed by lines. The last
// line that matches a call counts.
func Scenario(model Model, gpus int, lines ...string) string {
	base, err := files.ReadFile("nodes/" + string(model) + ".nvml")
	if err != nil {
		panic(err)
	}
	var b strings.Builder
	b.Write(base)
	fmt.Fprintf(&b, "- nvmlDeviceGetCount = %d\n", gpus)
	for i := range gpus {
		fmt.Fprintf(&b, "%d nvmlDeviceGetPciInfo = %s %s\n", i, Address(i), deviceIDs[model])
	}
	for _, l := range lines {
		b.WriteString(l + "\n")
	}
	return b.String()
}

// deviceIDs are device and subsystem in NVML's form.
var deviceIDs = map[Model]string{
	V100: "0x1db510de 0x124910de", A100: "0x20b210de 0x147f10de", H100: "0x233010de 0x16c110de", B200: "0x290110de 0x199910de",
	H100NVL: "0x232110de 0x183910de", GB200: "0x294110de 0x204610de",
}

// Address returns the PCI address of the GPU with that index.
func Address(i int) string { return fmt.Sprintf("0000:%02x:00.0", 0x10+i) }

// UUID returns the UUID of the GPU with that index.
func UUID(i int) string { return fmt.Sprintf("GPU-00000000-0000-0000-0000-0000000000%02x", i) }

// Serial returns the serial number of the GPU with that index.
func Serial(i int) string { return fmt.Sprintf("16500000%02x", i) }

// Place puts the library, without the missing symbols, and its scenario into dir. It returns the
// path of the library.
func Place(dir, scenario string, missing ...string) (string, error) {
	header, err := fakelib.Folder("github.com/NVIDIA/go-nvml", "pkg/nvml")
	if err != nil {
		return "", err
	}
	lib := fakelib.Library{
		Soname: "libnvidia-ml.so.1", Sources: map[string][]byte{}, Global: "nvml*", Missing: missing,
		Flags: []string{"-O1", "-Wno-unused-parameter", "-Wno-deprecated-declarations", "-I" + header}, Libs: []string{"-ldl"},
	}
	for _, name := range []string{"fakenvml.c", "calls.h"} {
		if lib.Sources[name], err = files.ReadFile("src/" + name); err != nil {
			return "", err
		}
	}
	return lib.Place(dir, "nvml.scenario", scenario)
}
