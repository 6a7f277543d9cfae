package disk

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/tests/fakesys"
)

func TestNVMe(t *testing.T) {
	t.Parallel()
	sys := fakesys.DGXH100()
	sys.Set("nvme1", "nvme1n1/size", "much").Set("nvme2", "state", "-").Set("nvme4", "hwmon5/temp1_input", "37850").Set("nvme4", "hwmon5/temp1_crit", "84850")
	sys.Set("nvme5", "hwmon5/temp1_input", "warm").Set("nvme6", "nvme6c6n1/size", "1").Set("nvme6", "nvme6n1/size", "-")
	sys.Files["sys/class/nvme/nonsense/state"] = "live\n"
	root := t.TempDir()
	if err := sys.Write(root); err != nil {
		t.Fatal(err)
	}
	h := probe.NewHost(root)
	h.SetStuck([]string{"read /sys/class/nvme/nvme7"})
	var doing []string
	list, err := NVMes(h, func(what string) { doing = append(doing, what) })
	if err != nil || len(list) != 8 {
		t.Fatalf("%d, %v", len(list), err)
	}
	if len(doing) != 7 || doing[3] != "read /sys/class/nvme/nvme3" || !errors.Is(list[7].Err, probe.ErrStuck) {
		t.Errorf("a hang would be that of %q; of one that hangs: %v", doing, list[7].Err)
	}
	want := NVMe{Name: "nvme3", PCI: "0000:43:00.0", State: "live", Transport: "pcie", Model: "SAMSUNG MZ1L23T8HBLA-00A07", Serial: "S6PENN0T000003", Firmware: "GDC7402Q",
		NameSpaces: []NameSpace{{"nvme3n1", 7501476528, false}}}
	if diff := cmp.Diff(want, list[3]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]NameSpace{{"nvme6c6n1", 1, false}}, list[6].NameSpaces); diff != "" {
		t.Errorf("several paths (-want +got):\n%s", diff)
	}
	if !errors.Is(list[1].Err, fs.ErrInvalid) || !errors.Is(list[2].Err, fs.ErrNotExist) {
		t.Errorf("errors %v, %v", list[1].Err, list[2].Err)
	}
	if heat, err := NVMeHeat(h, "nvme4"); err != nil || heat == nil || *heat != (Heat{37.85, 84.85}) {
		t.Errorf("temperature %v, %v", heat, err)
	}
	if heat, err := NVMeHeat(h, "nvme5"); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("temperature %v, %v", heat, err)
	}
	if heat, err := NVMeHeat(h, "nvme0"); heat != nil || err != nil {
		t.Errorf("temperature %v, %v", heat, err)
	}
}

func TestNVMeSMART(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	put := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, "dev", name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "dev/nvme4"), 0o755); err != nil {
		t.Fatal(err)
	}
	put("nvme0", fakesys.SMART{Warning: WarnReadOnly | WarnSpare, Celsius: 41, Spare: 9, Limit: 10, Used: 104, MediaErrors: 70000}.Page())
	put("nvme1", "short")
	put("nvme2", string(make([]byte, 512)))
	put("nvme3", fakesys.SMART{Celsius: 41, Spare: 250}.Page())
	h := probe.NewHost(root)
	got, err := NVMeSMART(h, "nvme0")
	if diff := cmp.Diff(SMART{Warning: 9, Celsius: 41, Spare: 9, SpareLimit: 10, Used: 104, MediaErrors: 70000}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for name, want := range map[string]string{
		"nvme1": "parse /dev/nvme1: 5 bytes, want 512", "nvme2": "parse /dev/nvme2: " + ErrNoSMART.Error(), "nvme3": "parse /dev/nvme3: spare blocks of 250 %, limit 0 %",
		"nvme4": "read /dev/nvme4: not a disk", "nvme9": "open /dev/nvme9: no such file or directory",
	} {
		if _, err := NVMeSMART(h, name); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

// The number of the call contains the size of the structure, which the kernel checks.
func TestAdminCommandSize(t *testing.T) {
	t.Parallel()
	if n := unsafe.Sizeof(adminCommand{}); n != 72 || ioctlAdmin>>16&0x3fff != 72 {
		t.Errorf("%d bytes, want 72", n)
	}
	if at := unsafe.Offsetof(adminCommand{}.cdw10); at != 40 {
		t.Errorf("cdw10 at %d, want 40", at)
	}
	// A file that is not a disk rejects the call.
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := readSMARTPage(int(f.Fd()), make([]byte, smartSize)); err == nil {
		t.Error("/dev/null has a log of its health")
	}
}

func FuzzSMART(f *testing.F) {
	f.Add([]byte(fakesys.Healthy.Page()))
	f.Add([]byte{})
	f.Add(make([]byte, smartSize))
	f.Fuzz(func(t *testing.T, page []byte) {
		s, err := parseSMART(page)
		if err == nil && (s.Spare > 100 || s.Used > 255 || s.Celsius < -273 || math.IsInf(s.Celsius, 0)) {
			t.Errorf("%x: %+v", page, s)
		}
	})
}
