package session

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func gpu(i int) checks.Device {
	return checks.Device{Kind: "gpu", Name: fmt.Sprintf("gpu%d", i), PCI: fmt.Sprintf("0000:1%d:00.0", i), UUID: fmt.Sprintf("GPU-%d", i), Serial: fmt.Sprint(1650 + i)}
}

func hca(port, guid string) checks.Device {
	return checks.Device{Kind: "port", Name: "mlx5_4" + port, PCI: "0000:c1:00.0", UUID: guid}
}

func gpus(skip int) (list []checks.Device) {
	for i := range 8 {
		if i != skip {
			list = append(list, gpu(i))
		}
	}
	return list
}

// change returns a device with one change.
func change(d checks.Device, what func(*checks.Device)) checks.Device {
	what(&d)
	return d
}

func TestSilence(t *testing.T) {
	t.Parallel()
	dated := checks.Silenced{Until: noon.Add(time.Hour), By: "alice", Why: "RMA", Since: noon}
	forGood := checks.Silenced{By: "alice", Why: "sold", Since: noon}
	lost := checks.Finding{Code: "gpu.recovery.lost", Severity: checks.Fail, Device: gpu(3), Got: "lost"}
	count := checks.Finding{Code: "gpu.count", Severity: checks.Fail, Got: "7 GPUs"}
	port := checks.Finding{Code: "ib.ports.polling", Severity: checks.Fail, Device: hca(":1", "")}
	ecc := checks.Finding{Code: "gpu.ecc.dram", Severity: checks.Fail, Device: gpu(3), Got: "12"}
	disk := func(name, n string) checks.Device {
		return checks.Device{Kind: "nvme", Name: name, PCI: "0000:8" + n + ":00.0", Serial: "S" + n}
	}
	worn := checks.Finding{Code: "nvme.wear", Severity: checks.Fail, Device: checks.Device{Kind: "nvme", Name: "nvme1", PCI: "0000:81:00.0"}}
	disks := checks.Finding{Code: "nvme.count", Severity: checks.Fail, Got: "2 disks"}
	before, after := []checks.Device{disk("nvme0", "0"), disk("nvme1", "1")}, []checks.Device{disk("nvme1", "0"), disk("nvme0", "1")}
	memory := checks.Finding{Code: "hw.memory.small", Severity: checks.Fail, Got: "7 kB"}
	with := func(f checks.Finding, what func(*checks.Finding)) checks.Finding {
		what(&f)
		return f
	}
	adapter := []checks.Device{change(hca("", "guid1"), func(d *checks.Device) { d.Kind = "hca" })}
	other := []checks.Device{change(hca("", "guid2"), func(d *checks.Device) { d.Kind = "hca" })}
	for _, tt := range []struct {
		name    string
		was     checks.Finding  // silenced in the line "a"
		with    []checks.Device // while the node had these
		by      checks.Silenced //
		now     checks.Finding  // a later failure in the line "a"
		present []checks.Device // and the devices then
		at      time.Time       //
		want    bool            // it is silenced
	}{
		{"the same", lost, gpus(-1), dated, lost, gpus(-1), noon, true},
		{"the date has come", lost, gpus(-1), dated, lost, gpus(-1), noon.Add(time.Hour), false},
		{"the clock is wrong after a boot", lost, gpus(-1), dated, lost, gpus(-1), time.Unix(0, 0), true},
		{"without a date", lost, gpus(-1), forGood, lost, gpus(-1), noon.Add(1e6 * time.Hour), true},
		{"another code", lost, gpus(-1), dated, with(lost, func(f *checks.Finding) { f.Code = "gpu.recovery.reset" }), gpus(-1), noon, false},
		{"another GPU", lost, gpus(-1), dated, with(lost, func(f *checks.Finding) { f.Device = gpu(4) }), gpus(-1), noon, false},
		{"its number has changed", lost, gpus(-1), dated, with(lost, func(f *checks.Finding) { f.Device.Name = "gpu2" }), gpus(-1), noon, true},
		{"it is replaced", lost, gpus(-1), dated, with(lost, func(f *checks.Finding) { f.Device.UUID = "GPU-new" }), nil, noon, false},
		{"another serial number", lost, gpus(-1), dated, with(lost, func(f *checks.Finding) { f.Device.Serial = "9" }), nil, noon, false},
		{"it is in another slot", lost, gpus(-1), dated, with(lost, func(f *checks.Finding) { f.Device.PCI = "0000:99:00.0" }), nil, noon, false},
		{"it only has an address", lost, gpus(-1), dated, with(lost, func(f *checks.Finding) { f.Device = checks.Device{Kind: "gpu", PCI: gpu(3).PCI} }), nil, noon, true},
		{"a finding about the node", lost, gpus(-1), dated, with(lost, func(f *checks.Finding) { f.Device = checks.Device{} }), gpus(-1), noon, false},
		{"seven GPUs", count, gpus(5), forGood, count, gpus(5), noon, true},
		{"devices cannot be read", count, gpus(5), forGood, count, nil, noon, true},
		{"seven GPUs, but others", count, gpus(5), forGood, count, gpus(6), noon, false},
		{"six GPUs", count, gpus(5), dated, with(count, func(f *checks.Finding) { f.Got = "6 GPUs" }), gpus(5), noon, false},
		{"six on the bus", count, gpus(5), dated, count, gpus(5)[1:], noon, false},
		{"a boot renames a disk", worn, before, forGood, with(worn, func(f *checks.Finding) { f.Device.Name = "nvme0" }), after, noon, true},
		{"the disk that has its name now", worn, before, forGood, with(worn, func(f *checks.Finding) { f.Device.PCI = "0000:80:00.0" }), after, noon, false},
		{"another disk in its slot", worn, before, forGood, with(worn, func(f *checks.Finding) { f.Device.Serial = "S9" }), after, noon, false},
		{"a boot renames all disks", disks, before, forGood, disks, after, noon, true},
		{"one of two disks is another", disks, before, forGood, disks, []checks.Device{disk("nvme0", "0"), disk("nvme1", "9")}, noon, false},
		{"a port without a cable", port, adapter, forGood, port, adapter, noon, true},
		{"the other port of the adapter", port, adapter, forGood, with(port, func(f *checks.Finding) { f.Device.Name = "mlx5_4:2" }), adapter, noon, false},
		{"another adapter in its slot", port, adapter, forGood, port, other, noon, false},
		{"a number until a date", ecc, gpus(-1), dated, with(ecc, func(f *checks.Finding) { f.Got = "13" }), gpus(-1), noon, true},
		{"a number that was accepted", ecc, gpus(-1), forGood, with(ecc, func(f *checks.Finding) { f.Got = "13" }), gpus(-1), noon, false},
		{"no device", memory, gpus(-1), dated, with(memory, func(f *checks.Finding) { f.Got = "8 kB" }), gpus(-1), noon, true},
	} {
		given := tt.now
		s := NewSilence(tt.was, "a", tt.with, tt.by)
		got := Silence([]checks.Finding{tt.now}, "a", []checks.Silence{s}, tt.present, tt.at)
		if is := got[0].Severity == checks.Warn && got[0].Silenced != nil; is != tt.want || !is && got[0].Severity != checks.Fail {
			t.Errorf("%s: %+v, want silenced: %v", tt.name, got[0], tt.want)
		}
		if diff := cmp.Diff(given, tt.now); diff != "" {
			t.Errorf("%s changed its argument: %s", tt.name, diff)
		}
	}
	s := []checks.Silence{NewSilence(memory, "a", nil, dated)}
	if got := Silence([]checks.Finding{memory}, "b", s, nil, noon); got[0].Silenced != nil {
		t.Error("it is silenced in another line, too")
	}
	mount := checks.Finding{Code: "fs.mount.missing", Severity: checks.Fail}
	private := []checks.Silence{{Code: mount.Code, Line: "a", Silenced: dated}} // with privacy the event has no device
	mount.Device = checks.Device{Kind: "mount", Name: "/scratch"}
	onGPU := with(mount, func(f *checks.Finding) { f.Device = gpu(3) })
	if a, b, c := Silence([]checks.Finding{mount}, "a", private, nil, noon), Silence([]checks.Finding{mount}, "b", private, nil, noon), Silence([]checks.Finding{onGPU}, "a", private, nil, noon); a[0].Silenced == nil || b[0].Silenced != nil || c[0].Silenced != nil {
		t.Errorf("a mount of a line: %+v, of another line: %+v, a GPU of the line: %+v", a[0], b[0], c[0])
	}
	memory.Message = "check_hw_mem:  too small."
	if got, want := Silence([]checks.Finding{memory}, "a", s, nil, noon)[0].Message, "check_hw_mem:  too small; "+dated.String(); got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	warn := with(lost, func(f *checks.Finding) { f.Severity = checks.Unknown })
	if got := Silence([]checks.Finding{warn}, "a", []checks.Silence{NewSilence(lost, "a", nil, dated)}, nil, noon); got[0].Silenced != nil {
		t.Error("what is no failure is silenced")
	}
}

func TestSilences(t *testing.T) {
	t.Parallel()
	silence := func(code string, d checks.Device, until time.Time, devices ...checks.Device) checks.Silence {
		return checks.Silence{Code: code, Device: d, Devices: devices, Silenced: checks.Silenced{Until: until, Since: noon}}
	}
	dated, old := silence("a", gpu(3), noon.Add(time.Hour)), silence("b", gpu(4), noon)
	got, err := AddSilence([]checks.Silence{dated, old}, silence("a", gpu(3), time.Time{}))
	if diff := cmp.Diff([]checks.Silence{silence("a", gpu(3), time.Time{})}, got); err != nil || diff != "" {
		t.Errorf("one for the same fault, and one that has ended: %v %s", err, diff)
	}
	full := []checks.Silence{}
	for i := range maxSilences {
		full = append(full, silence(fmt.Sprint("c", i), gpu(1), time.Time{}))
	}
	if _, err := AddSilence(full, dated); err == nil {
		t.Error("there is no limit")
	}
	set := silence("gpu.count", checks.Device{}, noon.Add(time.Hour), gpus(5)...)
	ofLine := func(line string) checks.Silence {
		return checks.Silence{Code: "hw.memory.small", Line: line, Silenced: checks.Silenced{Since: noon}}
	}
	list := []checks.Silence{
		dated, silence("a", gpu(4), time.Time{}), set,
		silence("ib.ports.polling", hca(":1", "guid1"), time.Time{}), silence("ib.ports.polling", hca(":2", "guid1"), time.Time{}),
		ofLine("l"), ofLine("other"),
	}
	for _, tt := range []struct {
		name  string
		ended func() ([]checks.Silence, []checks.Silence)
		want  []checks.Silence
	}{
		{"by code", func() (_, _ []checks.Silence) { return EndSilences(list, "a", "") }, list[:2]},
		{"by device", func() (_, _ []checks.Silence) { return EndSilences(list, "a", "gpu4") }, list[1:2]},
		{"by serial number", func() (_, _ []checks.Silence) { return EndSilences(list, "a", "1653") }, list[:1]},
		{"by the address of nvidia-smi", func() (_, _ []checks.Silence) { return EndSilences(list, "a", "00000000:13:00.0") }, list[:1]},
		{"of no such device", func() (_, _ []checks.Silence) { return EndSilences(list, "a", "gpu5") }, nil},
		{"a dated fault that is gone may return", func() (_, _ []checks.Silence) { return GoneSilences(list, "a", "l", gpu(3)) }, nil},
		{"an accepted one that is gone", func() (_, _ []checks.Silence) { return GoneSilences(list, "a", "l", gpu(4)) }, list[1:2]},
		{"a number of devices", func() (_, _ []checks.Silence) { return GoneSilences(list, "gpu.count", "l", checks.Device{}) }, list[2:3]},
		{"a port", func() (_, _ []checks.Silence) { return GoneSilences(list, "ib.ports.polling", "l", hca(":1", "")) }, list[3:4]},
		{"a line", func() (_, _ []checks.Silence) { return GoneSilences(list, "hw.memory.small", "l", checks.Device{}) }, list[5:6]},
		{"a line, with privacy", func() (_, _ []checks.Silence) { return GoneSilences(list, "hw.memory.small", "", checks.Device{}) }, list[5:]},
	} {
		stay, ended := tt.ended()
		if diff := cmp.Diff(tt.want, ended); diff != "" || len(stay)+len(ended) != len(list) {
			t.Errorf("%s: %d stay, %s", tt.name, len(stay), diff)
		}
	}
}

func TestParseUntil(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Time{
		"2026-12-01":                time.Date(2026, 12, 1, 0, 0, 0, 0, time.Local),
		"2026-12-01 08:30":          time.Date(2026, 12, 1, 8, 30, 0, 0, time.Local),
		"2026-12-01T12:00:00Z":      time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC),
		"2026-12-01T12:00:00+02:00": time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC),
		"+30d":                      noon.Add(30 * 24 * time.Hour),
		"+12h":                      noon.Add(12 * time.Hour),
		"30d":                       {},
		"+":                         {},
		"+0d":                       {},
		"+-1d":                      {},
		"2026-11-22":                {},
		"tomorrow":                  {},
		"":                          {},
	} {
		got, err := ParseUntil(text, noon)
		if want.IsZero() != (err != nil) || err == nil && !got.Equal(want) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
}
