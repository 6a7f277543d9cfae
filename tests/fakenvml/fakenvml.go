// Package fakenvml builds a libnvidia-ml.so.1 for tests, which answers as a
// scenario says: README.md has its language. The program under test loads it as
// it would load NVIDIA's own.
package fakenvml

import (
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

//go:embed src nodes
var files embed.FS

// Model is what the GPUs of a node are: the name of a file in nodes/.
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
	"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetGpuMaxPcieLinkGeneration", "nvmlDeviceGetMarginTemperature",
	"nvmlDeviceGetRepairStatus", "nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetUnrepairableMemoryFlag_v1",
	"nvmlSystemGetConfComputeState", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3",
	"nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceGetMemoryInfo_v2",
	"nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetNvLinkRemoteDeviceType",
}

// Scenario is a healthy node with that many GPUs of a model, and lines that
// change it. The last line that fits a call counts.
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

// deviceIDs are device and subsystem, as NVML gives them.
var deviceIDs = map[Model]string{
	V100: "0x1db510de 0x124910de", A100: "0x20b210de 0x147f10de", H100: "0x233010de 0x16c110de", B200: "0x290110de 0x199910de",
	H100NVL: "0x232110de 0x183910de", GB200: "0x294110de 0x204610de",
}

// Address is where the GPU with that index is on the PCI bus of a node.
func Address(i int) string { return fmt.Sprintf("0000:%02x:00.0", 0x10+i) }

// UUID is that of the GPU with that index.
func UUID(i int) string { return fmt.Sprintf("GPU-00000000-0000-0000-0000-0000000000%02x", i) }

// Serial is that of the GPU with that index.
func Serial(i int) string { return fmt.Sprintf("16500000%02x", i) }

// Place puts the library, without the symbols that are missing, and its scenario
// into dir. It gives the path of the library.
func Place(dir, scenario string, missing ...string) (string, error) {
	built, err := build(missing)
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile(built)
	if err != nil {
		return "", err
	}
	lib := filepath.Join(dir, "libnvidia-ml.so.1")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(lib, data, 0o755); err != nil {
		return "", err
	}
	return lib, os.WriteFile(filepath.Join(dir, "nvml.scenario"), []byte(scenario), 0o644)
}

// build compiles the library, once for each set of missing symbols.
func build(missing []string) (string, error) {
	sum := sha256.New()
	for _, name := range []string{"fakenvml.c", "calls.h"} {
		data, err := files.ReadFile("src/" + name)
		if err != nil {
			return "", err
		}
		sum.Write(data)
	}
	fmt.Fprint(sum, missing)
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("nhc-gpu-fakenvml-%d", os.Getuid()))
	if err := ownDir(dir); err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprintf("%x.so", sum.Sum(nil)[:8]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, compile(path, missing)
}

// ownDir makes a directory, or accepts one, that nobody else can write to.
func ownDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(st.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s: not a directory of this user alone", dir)
	}
	return nil
}

func compile(path string, missing []string) error {
	header, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}/pkg/nvml", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		return fmt.Errorf("find nvml.h: %w", err)
	}
	src, err := os.MkdirTemp("", "nhc-gpu-fakenvml-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(src)
	for _, name := range []string{"fakenvml.c", "calls.h"} {
		data, err := files.ReadFile("src/" + name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(src, name), data, 0o644); err != nil {
			return err
		}
	}
	hidden := ""
	if len(missing) > 0 {
		hidden = "local: " + strings.Join(missing, "; ") + ";"
	}
	script := filepath.Join(src, "symbols.map")
	if err := os.WriteFile(script, []byte("{ global: nvml*; "+hidden+" };\n"), 0o644); err != nil {
		return err
	}
	out := filepath.Join(src, "lib.so")
	cmd := exec.Command("gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", "-Wno-deprecated-declarations",
		"-fPIC", "-shared", "-I"+strings.TrimSpace(string(header)), "-Wl,--version-script="+script, "-o", out, filepath.Join(src, "fakenvml.c"), "-ldl")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("gcc: %w\n%s", err, text)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		return err
	}
	part := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.WriteFile(part, data, 0o755); err != nil {
		return err
	}
	return os.Rename(part, path)
}
