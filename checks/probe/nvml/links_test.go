package nvml

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvidia"
	"github.com/nhc-gpu/nhc-gpu/tests/fakenvml"
)

// list18 returns a list of that many links with one different value.
func list18(v any, link int, odd any) []any {
	list := make([]any, 18)
	for i := range list {
		list[i] = v
	}
	list[link] = odd
	return list
}

// A link that sleeps is not down.
func TestNVLinksThatSleep(t *testing.T) {
	t.Parallel()
	got, _ := askFake(t, fakenvml.Scenario(fakenvml.H100, 4, "* nvmlDeviceGetNvLinkState 7 = 0", "0 field 165 7 = 2", "1 field 165 7 = 0", "2 field 165 7 error 3", "3 field 165 7 error 999"))
	for gpu, want := range []any{list18(true, 7, true), list18(true, 7, false), list18(true, 7, false), list18(true, 7, false)} {
		if diff := cmp.Diff(want, gpuAt(got, gpu, "NVLinks")); diff != "" {
			t.Errorf("gpu%d (-want +got):\n%s", gpu, diff)
		}
	}
}

func TestNVLinksOfHopper(t *testing.T) {
	t.Parallel()
	got, a := askFake(t, fakenvml.Scenario(fakenvml.H100, 8, "3 field 161 7 = 5", "3 field 164 7 = 13281", "3 field 165 7 = 3",
		"3 nvmlDeviceGetNvLinkRemoteDeviceType 7 = 255", "3 nvmlDeviceGetNvLinkRemotePciInfo 7 = 0:0:0.0",
		"3 nvmlDeviceGetP2PStatus 5 2 = 5", "3 nvmlDeviceGetP2PStatus 6 1 = 4", "3 nvmlDeviceGetP2PStatus 7 0 = 99", "3 nvmlDeviceGetP2PStatus 4 * error 2",
		"4 field 161 7 error 999", "5 nvmlDeviceGetP2PStatus 0 2 error 999", "6 nvmlDeviceGetNvLinkRemoteDeviceType 17 error 15", "7 field 164 error 999",
		"2 nvmlDeviceGetNvLinkState 3 = 0", "2 nvmlDeviceGetNvLinkState 11 error 999", "1 nvmlDeviceGetNvLinkState 5 = 2", "0 nvmlDeviceGetNvLinkState * error 999"))
	for _, c := range []struct {
		gpu  int
		path string
		want any
	}{
		{3, "NVLink.Counts.replays", list18(0., 7, 5.)}, {3, "NVLink.Speed", list18(26562., 7, 13281.)}, {3, "NVLink.Idle", list18(false, 7, true)},
		{3, "NVLink.Far", list18("switch", 7, "unknown")}, {3, "NVLink.BER", nil},
		{3, "NVLink.PeerP2P", map[string]any{"gpu0": "ok", "gpu1": "ok", "gpu2": "ok", "gpu5": "NVLink: not supported",
			"gpu6": "write: disabled by a setting of the driver", "gpu7": "read: status 99"}},
		{3, "NVLinkErrors.Sums.replays", 5.},
		{4, "NVLink.Counts.replays", list18(0., 7, float64(UnreadCount))}, {4, "NVLink.Counts.crc", list18(0., 0, 0.)}, // one counter of one link
		{4, "NVLinkErrors.Sums.error", "field 161 of nvmlDeviceGetFieldValues(4): unknown error (NVML error 999)"},
		{2, "NVLinkErrors.Sums.error", "nvmlDeviceGetNvLinkState(2): unknown error (NVML error 999)"},                             // the counters of an unread link are unread, too
		{5, "NVLink.PeerP2P", map[string]any{"gpu1": "ok", "gpu2": "ok", "gpu3": "ok", "gpu4": "ok", "gpu6": "ok", "gpu7": "ok"}}, // of gpu0 it is an error
		{6, "NVLink.Far", list18("switch", 17, "")}, {6, "Err.Code", 15.},
		{7, "NVLink.Speed.error", "field 164 of nvmlDeviceGetFieldValues(7): unknown error (NVML error 999)"},
		{2, "NVLinks", func() any { l := list18(true, 3, false); l[11] = false; return l }()}, {2, "NVLink.Speed", func() any { l := list18(26562., 3, 0.); l[11] = 0.; return l }()},
		{1, "NVLinks", list18(true, 5, false)}, {0, "NVLinks.error", "nvmlDeviceGetNvLinkState(0): unknown error (NVML error 999)"},
	} {
		if diff := cmp.Diff(c.want, gpuAt(got, c.gpu, strings.Split(c.path, ".")...)); diff != "" {
			t.Errorf("gpu%d %s (-want +got):\n%s", c.gpu, c.path, diff)
		}
	}
	if far := gpuAt(got, 3, "NVLink", "FarPCI").([]any); far[7] != "" || far[6] != "0000:07:00.0" {
		t.Errorf("far ends: %v", far)
	}
	n := 0
	for _, c := range callsOf(a, 0) {
		if strings.HasPrefix(c, "nvmlDeviceGetFieldValues") {
			n++
		}
	}
	if n > 8 {
		t.Errorf("%d calls for the fields of one GPU", n)
	}
}

// NVLink 5 has other counters, which no driver sums up.
func TestNVLinksOfBlackwell(t *testing.T) {
	t.Parallel()
	got, a := askFake(t, fakenvml.Scenario(fakenvml.B200, 2, "1 field 215 7 = 4", "1 field 214 7 = 1", "1 field 219 7 = 9", "1 field 219 8 = 1", "1 field 220 7 = 0x306"))
	counts := gpuAt(got, 1, "NVLink", "Counts").(map[string]any)
	if diff := cmp.Diff(list18(0., 7, 4.), counts["recoveries"]); diff != "" || counts["replays"] != nil || len(counts) != 11 {
		t.Errorf("%v (-want +got):\n%s", counts, diff)
	}
	if ber := gpuAt(got, 1, "NVLink", "BER").([]any)[7]; ber != 3e-6 {
		t.Errorf("bit error rate: %v", ber)
	}
	sums := gpuAt(got, 1, "NVLinkErrors", "Sums").(map[string]any)
	if sums["effective"] != 10. || sums["recoveries"] != 4. || sums["recoveries_failed"] != 1. {
		t.Errorf("sums: %v", sums)
	}
	if gpuAt(got, 1, "Fabric", "Mask") != 426. || a.Err != "" {
		t.Errorf("%v", gpuAt(got, 1, "Fabric"))
	}
}

// An old driver has neither the new fields nor the new calls.
func TestNVLinksOfOldDrivers(t *testing.T) {
	t.Parallel()
	got, a := askFake(t, fakenvml.Scenario(fakenvml.A100, 2, "1 field 48 = 5", "1 field 103 = 6", "1 field 86 = 12500"), fakenvml.Old...)
	if counts := gpuAt(got, 1, "NVLink", "Counts").(map[string]any); counts["replays"].([]any)[2] != 5. || counts["crc_data"].([]any)[7] != 6. {
		t.Errorf("%v", counts)
	}
	if speeds := gpuAt(got, 1, "NVLink", "Speed").([]any); len(speeds) != 12 || speeds[2] != 12500. || speeds[11] != 25000. {
		t.Errorf("%v", speeds)
	}
	if gpuAt(got, 1, "Fabric") != nil || gpuAt(got, 1, "NVLink", "Far") != nil || a.Err != "" {
		t.Errorf("%v, %v", gpuAt(got, 1, "Fabric"), gpuAt(got, 1, "NVLink", "Far"))
	}
	none, _ := askFake(t, fakenvml.Scenario(fakenvml.A100, 2, "* nvmlDeviceGetNvLinkState error 3"))
	if links := gpuAt(none, 1, "NVLink").(map[string]any); gpuAt(none, 1, "NVLinks") != nil || links["Speed"] != nil || links["Counts"] != nil || links["PeerP2P"] != nil {
		t.Errorf("a GPU without NVLinks has %v", links)
	}
}

// The fabric is read by the newest call that the driver has.
func TestFabricForms(t *testing.T) {
	t.Parallel()
	const line = "* nvmlDeviceGetGpuFabricInfo = 3 28 4026 0x9c 0xc3 0xa9 2"
	want := map[string]any{"State": 3., "Status": 28., "Clique": 4026., "Cluster": "9c0000000000000000000000000000c3", "Mask": 169., "Summary": 2.}
	for name, c := range map[string]struct {
		lines   []string
		missing []string
		change  map[string]any
	}{
		"third":  {nil, nil, nil},
		"second": {[]string{"- fabricVersions = 2"}, nil, map[string]any{"Summary": 0.}},
		"first":  {nil, []string{"nvmlDeviceGetGpuFabricInfoV"}, map[string]any{"Summary": 0., "Mask": 0.}},
	} {
		got, _ := askFake(t, fakenvml.Scenario(fakenvml.GB200, 1, append(c.lines, line)...), c.missing...)
		w := maps.Clone(want)
		maps.Copy(w, c.change)
		if diff := cmp.Diff(any(w), gpuAt(got, 0, "Fabric")); diff != "" {
			t.Errorf("%s form (-want +got):\n%s", name, diff)
		}
	}
	got, a := askFake(t, fakenvml.Scenario(fakenvml.H100, 1, "* nvmlDeviceGetGpuFabricInfo error 15"))
	if e := gpuAt(got, 0, "Fabric", "error"); e != "nvmlDeviceGetGpuFabricInfoV(0): the GPU is lost (NVML error 15)" || slices.Contains(a.Calls, "nvmlDeviceGetGpuFabricInfo(0)") {
		t.Errorf("%v, %v", e, a.Calls)
	}
}

func TestNVSwitches(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	files := fakenvml.Files(fakenvml.H100, 2)
	for pci, class := range map[string]string{"0000:05:00.0": "0x068000\n", "0000:06:00.0": "0x068000\n", "0000:07:00.0": "0x060400\n"} {
		files["sys/bus/pci/devices/"+pci+"/vendor"], files["sys/bus/pci/devices/"+pci+"/class"] = "0x10de\n", class
	}
	files["sys/bus/pci/devices/0000:08:00.0/vendor"], files["sys/bus/pci/devices/0000:08:00.0/class"] = "0x8086\n", "0x068000\n"
	files["dev/nvidia-caps-imex-channels/channel0"], files["dev/nvidia-caps-imex-channels/channel1"] = "", ""
	if err := fakenvml.Write(root, files); err != nil {
		t.Fatal(err)
	}
	h := probe.NewHost(root)
	if got, err := nvidia.NVSwitches(h); err != nil || !slices.Equal(got, []string{"0000:05:00.0", "0000:06:00.0"}) {
		t.Errorf("%v, %v", got, err)
	}
	if n, err := nvidia.IMEXChannels(h); err != nil || n != 2 {
		t.Errorf("%d channels, %v", n, err)
	}
	h = probe.NewHost(t.TempDir())
	if got, err := nvidia.NVSwitches(h); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	if n, err := nvidia.IMEXChannels(h); err != nil || n != 0 {
		t.Errorf("%d channels, %v", n, err)
	}
}

func FuzzDecodeBER(f *testing.F) {
	for _, packed := range []int64{0, 0x306, 0xfff, 0x100, -1, math.MaxInt64} {
		f.Add(packed)
	}
	f.Fuzz(func(t *testing.T, packed int64) {
		if rate := DecodeBER(packed); math.IsNaN(rate) || rate < 0 || rate > 15 {
			t.Errorf("%#x: %g", packed, rate)
		}
	})
}
